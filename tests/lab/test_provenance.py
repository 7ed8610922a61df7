"""A run says what its numbers come from, and goes on with nothing else."""

import os
import shutil
import subprocess
import tomllib
from dataclasses import replace

import pytest
import tomli_w
from torch.utils.data import TensorDataset

import forgetfree
from forgetfree.errors import InputError
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.lab.experiment import perform, plan, provenance
from forgetfree.lab.experiment.provenance import commit, data_digest
from forgetfree.lab.records import RunFolder

PLAN = {"methods": ["finetune"], "scale": "smoke", "seeds": [1]}


def made():
    (found,) = plan("til/digits_split", **PLAN)
    return found


def stream(change=lambda data: data, part="train"):
    """Embedded digits, with one part of the first task changed."""
    benchmark = BENCHMARKS["digits_split"](seed=1)
    first, *others = benchmark.tasks
    if part == "test":
        test = benchmark.tests[first.name]
        inputs, labels = change((test.inputs, test.labels))
        return replace(benchmark, tests={**benchmark.tests, first.name: replace(test, inputs=inputs, labels=labels)})
    return replace(benchmark, tasks=[replace(first, **{part: change(getattr(first, part))}), *others])


def one_pixel(data):
    inputs = data[0].clone()
    inputs[-1, 0] += 1e-6
    return inputs, data[1]


def one_label(data):
    labels = data[1].clone()
    labels[0] = 1 - labels[0]
    return data[0], labels


def test_a_run_says_its_version_its_commit_and_the_digest_of_its_data(tmp_path):
    perform(made(), tmp_path)
    said = tomllib.loads((tmp_path / made().folder / "run.toml").read_text())["versions"]
    assert said["forgetfree"] == forgetfree.__version__
    assert said["data"] == data_digest(BENCHMARKS["digits_split"](seed=1))
    assert {key: said[key] for key in commit()} == commit()
    assert RunFolder(tmp_path / made().folder).plan() == made().as_toml()


@pytest.mark.parametrize("part", ["train", "valid", "test"])
@pytest.mark.parametrize("change", [one_pixel, one_label])
def test_a_digest_of_data_sees_one_value(part, change):
    assert data_digest(stream()) == data_digest(stream())
    assert data_digest(stream(change, part)) != data_digest(stream())


def test_a_digest_reads_a_dataset_and_takes_a_part_of_what_is_large(monkeypatch):
    as_dataset = stream(lambda data: TensorDataset(*data))
    assert data_digest(as_dataset) == data_digest(as_dataset)
    assert data_digest(as_dataset) != data_digest(stream(lambda data: TensorDataset(*one_pixel(data))))
    monkeypatch.setattr(provenance, "DIGESTED_BYTES", 1)
    assert data_digest(stream()) == data_digest(stream(one_pixel))
    assert data_digest(stream()) != data_digest(stream(one_label))


def test_a_run_does_not_go_on_with_other_data(tmp_path, monkeypatch):
    folder = _stopped(tmp_path)
    before = (folder / "run.toml").read_bytes()
    monkeypatch.setattr(provenance, "data_digest", lambda benchmark: "sha256:other")
    with pytest.raises(InputError, match=r"begun on other data: its digest is sha256:.* there, sha256:other here"):
        perform(made(), tmp_path)
    assert (folder / "run.toml").read_bytes() == before


def test_a_run_of_before_goes_on_whatever_version_and_commit_it_says(tmp_path):
    folder = _stopped(tmp_path)
    said = tomllib.loads((folder / "run.toml").read_text())
    for versions in ({**said["versions"], "commit": "0" * 40, "forgetfree": "0.0.1"}, None):
        content = {key: value for key, value in said.items() if key != "versions"}
        (folder / "run.toml").write_text(
            tomli_w.dumps(content if versions is None else {**content, "versions": versions})
        )
        (folder / "record.json").unlink(missing_ok=True)
        assert perform(made(), tmp_path).acc > 0


def _stopped(out):
    perform(made(), out)
    folder = out / made().folder
    (folder / "record.json").unlink()
    return folder


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@needs_git
def test_a_commit_is_that_of_the_package_and_says_whether_files_were_changed(tmp_path):
    package = _repository(tmp_path / "work")
    said = commit(package)
    assert len(said["commit"]) == 40
    assert said["changed"] is False
    (package / "__init__.py").write_text("changed")
    assert commit(package) == {**said, "changed": True}
    (package / "__init__.py").write_text("")
    (package / "new.py").write_text("")
    assert commit(package)["changed"] is True


@needs_git
def test_a_package_inside_of_somebody_elses_work_tree_has_no_commit(tmp_path):
    installed = _repository(tmp_path / "work").parent / "packages" / "forgetfree"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert commit(installed) == {}
    assert commit(tmp_path) == {}


@needs_git
def test_asking_for_the_commit_runs_nothing_of_the_repository_and_heeds_no_environment(tmp_path, monkeypatch):
    package, trace = _repository(tmp_path / "work"), tmp_path / "trace"
    script = tmp_path / "monitor"
    script.write_text(f"#!/bin/sh\ntouch {trace}\n")
    script.chmod(0o755)
    _git(package, "config", "core.fsmonitor", str(script))
    monkeypatch.setenv("GIT_DIR", os.devnull)
    assert commit(package)["changed"] is False
    assert not trace.exists()


def test_a_machine_without_git_or_with_a_slow_one_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "PATIENCE", 0.05)
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nexec sleep 5\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert commit() == {}
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert commit() == {}


def _repository(root):
    package = root / "forgetfree"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    _git(root, "init", "--quiet")
    _git(root, "add", ".")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    _git(root, *who, "commit", "--quiet", "--message", "first")
    return package


def _git(folder, *words):
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)
