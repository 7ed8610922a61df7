"""What version 0.1 wrote is read by every later one: archives, checkpoints and run folders, and learning goes on there.

`before/make.py` says how the files in `before` came about. Bits are compared where torch and processor are those of
that day; elsewhere numbers may differ a little.
"""

import json
import platform
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from typer.testing import CliRunner

import forgetfree as ff
from forgetfree.lab import cli
from forgetfree.lab.experiment import Plan, parse_overrides, perform, plan
from forgetfree.lab.records import RunFolder, find_runs
from forgetfree.methods import METHODS

BEFORE = Path(__file__).resolve().parent / "before"
TOLERANCE = 1e-4
"""Of answers on another machine, relative to the largest."""
IMAGES = 0.02
"""Of accuracies on another machine: a few images may be taken for something else."""
ALL, MORE = "all classes", "one more"


def _stored() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All answers and inputs by name; and what is said of them."""
    with safe_open(BEFORE / "answers.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, {name: json.loads(value) for name, value in file.metadata().items()}


STORED, SAID = _stored()
CIRCUMSTANCES: dict[str, str] = SAID["circumstances"]
INPUTS: dict[str, str] = SAID["inputs"]
"""Which kind of inputs an archive takes."""
EPOCHS_LEFT: dict[str, int] = SAID["epochs left"]
"""How many epochs are left for whoever goes on from a checkpoint."""
ARCHIVES = {path.stem: path for path in sorted((BEFORE / "archives").glob("*.ticket"))}
GOES_ON = [name for name in ARCHIVES if any(key.startswith(f"{name}/") and key.endswith(MORE) for key in STORED)]
FINISHED, UNFINISHED = (find_runs([BEFORE / name]) for name in ("finished", "unfinished"))


def same_circumstances(there: dict[str, Any]) -> bool:
    here = {
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    return all(there[key] == value for key, value in here.items())


def assert_same(found: Tensor, stored: Tensor) -> None:
    """The same bits; on another machine, about the same numbers."""
    assert (found.shape, found.dtype) == (stored.shape, stored.dtype)
    if same_circumstances(CIRCUMSTANCES):
        assert torch.equal(found, stored), f"they differ by {float((found - stored).abs().max()):g}"
    else:
        torch.testing.assert_close(found, stored, rtol=0, atol=TOLERANCE * float(stored.abs().max()))


def assert_answers(learner: Any, name: str, when: str = "") -> None:
    """All that a learner answers to the probe is what was stored."""
    probe = STORED[f"probe/{INPUTS[name]}"]
    if f"{name}/{ALL}{when}" in STORED:  # few-shot sessions have one answer
        assert_same(learner.predict(probe), STORED[f"{name}/{ALL}{when}"])
        return
    asked = [f"{name}/{task}{when}" for task in learner.tasks]
    assert set(asked) <= set(STORED)
    for task, key in zip(learner.tasks, asked, strict=True):
        assert_same(learner.predict(probe, task=task), STORED[key])


def learn_one_more(learner: Any, name: str, **options: Any) -> None:
    kind = INPUTS[name]
    learner.learn(ff.Task(MORE, ("new/0", "new/1"), (STORED[f"{MORE}/{kind}"], STORED[f"labels/{kind}"])), **options)
    if hasattr(learner, "finish"):
        learner.finish(**options)
    assert MORE in learner.tasks


def test_there_are_archives_of_every_method_and_hardly_one_cannot_go_on():
    since = {"bayes_means", "s3c", "warp"}
    assert {ff.inspect(path).method for path in ARCHIVES.values()} == set(METHODS) - since
    without_data = {"multitask", "multitask-resumable", "joint", "crt"}
    assert set(ARCHIVES) - set(GOES_ON) == without_data
    assert {name.rpartition("-")[0] for name in EPOCHS_LEFT} <= set(GOES_ON)
    assert len(EPOCHS_LEFT) >= 24
    assert set(ARCHIVES) == set(INPUTS)


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_of_before_answers_the_same_bits(name):
    learner = ff.load(ARCHIVES[name])
    assert_answers(learner, name)
    method = next(each for each, made in METHODS.items() if type(learner) is made)
    assert name.startswith(method)


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_of_before_is_verified_and_says_what_is_in_it(name):
    verified, inspected = ff.verify(ARCHIVES[name]), ff.inspect(ARCHIVES[name])
    assert verified.ok
    if same_circumstances(CIRCUMSTANCES):
        assert {task.rule for task in verified.tasks} == {"bit for bit"}
    assert bool(verified.rounded) == bool(inspected.rounded) == (name == "wsn-float16")
    assert inspected.resumable == name.endswith("-resumable")
    assert inspected.version == CIRCUMSTANCES["forgetfree"]


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_of_before_written_anew_is_still_the_same_learner(name, tmp_path):
    learner, path = ff.load(ARCHIVES[name]), tmp_path / "anew.ticket"
    ff.save(learner, path, resumable=name.endswith("-resumable"))
    again = ff.load(path)
    assert_answers(again, name)
    if name in GOES_ON and name.endswith("-resumable"):
        learn_one_more(again, name)
        assert_answers(again, name, f"/after {MORE}")


@pytest.mark.parametrize("name", GOES_ON)
def test_learning_goes_on_from_an_archive_of_before_to_the_same_bits(name):
    learner = ff.load(ARCHIVES[name])
    learn_one_more(learner, name)
    assert_answers(learner, name, f"/after {MORE}")


@pytest.mark.parametrize("name", sorted(set(ARCHIVES) - set(GOES_ON)))
def test_an_archive_of_before_without_the_data_it_needs_does_not_learn(name):
    learner = ff.load(ARCHIVES[name])
    with pytest.raises(ff.TaskError, match="without the data"):
        learn_one_more(learner, name)
    assert_answers(learner, name)


@pytest.mark.parametrize("name", EPOCHS_LEFT)
def test_a_checkpoint_of_before_goes_on_where_it_was_left_to_the_same_bits(name, tmp_path):
    shutil.copytree(BEFORE / "checkpoints" / name, tmp_path, dirs_exist_ok=True)
    archive, epochs = name.rpartition("-")[0], []
    learner = ff.load(ARCHIVES[archive])
    learn_one_more(learner, archive, checkpoint=tmp_path / "task.safetensors", progress=epochs.append)
    assert sum(step.finished for step in epochs) == EPOCHS_LEFT[name]
    assert_answers(learner, archive, f"/after {MORE}")


def id_of(folder: RunFolder) -> str:
    return "-".join(folder.path.relative_to(BEFORE).parts[1:])


def numbers(folder: Path) -> dict[str, Any]:
    """A record without wall times, without the size of its archive, which is another in another format, and without the
    note on tasks at chance, which records of before do not have."""
    record = json.loads((folder / "record.json").read_text())
    record.pop("seconds")
    record["notes"].pop("at chance", None)
    for part in ("bytes", "sections"):
        record["archive"].pop(part, None)
    for costs in (record["metrics"], *record["footprints"]):
        for written in ("written", "written_without_heads"):
            costs.pop(written, None)
    return record


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder; not the locks."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_there_are_run_folders_of_before():
    assert [folder.finished for folder in FINISHED] == [True] * 2
    assert [folder.finished for folder in UNFINISHED] == [False] * 3


@pytest.mark.parametrize("folder", [*FINISHED, *UNFINISHED], ids=id_of)
def test_the_plan_of_a_run_of_before_names_its_folder(folder):
    plan = Plan.from_toml(folder.plan())
    assert plan.folder == folder.path.relative_to(folder.path.parents[1])
    assert Plan.from_toml(plan.as_toml()) == plan


def test_a_report_reads_the_runs_of_before(tmp_path):
    result = CliRunner().invoke(cli.app, ["report", str(BEFORE / "finished"), "--to", str(tmp_path)])
    assert result.exit_code == 0, (result.output, result.exception)
    rows = json.loads((tmp_path / "report.json").read_text())
    assert sorted(row["method"] for row in rows) == ["softnet", "wsn"]


@pytest.mark.parametrize("folder", FINISHED, ids=id_of)
def test_a_finished_run_of_before_is_only_read(folder, tmp_path):
    shutil.copytree(BEFORE / "finished", tmp_path, dirs_exist_ok=True)
    before = content(tmp_path)
    record = perform(Plan.from_toml(folder.plan()), tmp_path)
    assert record == folder.record()
    assert record.accuracy == json.loads((folder.path / "record.json").read_text())["accuracy"]
    assert content(tmp_path) == before


@pytest.mark.parametrize("folder", FINISHED, ids=id_of)
def test_the_archive_in_a_run_folder_of_before_is_verified(folder):
    assert ff.verify(folder.archive).ok


@pytest.mark.parametrize("folder", UNFINISHED, ids=id_of)
def test_a_run_killed_before_is_resumed_to_the_numbers_of_one_that_never_was(folder, tmp_path):
    shutil.copytree(BEFORE / "unfinished", tmp_path, dirs_exist_ok=True)
    plan = Plan.from_toml(folder.plan())
    epochs: list[tuple[str, int]] = []
    perform(plan, tmp_path, progress=lambda step: epochs.append((step.task, step.epoch)) if step.finished else None)
    events = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    earlier = [(event["task"], event["epoch"]) for event in events if event["event"] == "epoch"]
    assert earlier
    assert epochs
    assert not set(earlier) & set(epochs), "what was learned before was learned again"
    found, stored = numbers(tmp_path / plan.folder), numbers(BEFORE / "whole" / plan.folder)
    if same_circumstances(folder.versions()):
        assert found == stored
    else:
        assert found.keys() == stored.keys()
        for row, other in zip(found["accuracy"], stored["accuracy"], strict=True):
            assert row == pytest.approx(other, abs=IMAGES)


COMMANDS = (BEFORE / "commands.txt").read_text().splitlines()
"""What README and documents of that version told to run."""


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("forgetfree run ")])
def test_a_run_that_was_documented_then_is_still_planned_into_the_same_folders(command):
    experiment, *words = shlex.split(command)[2:]
    options = list(zip(words[::2], words[1::2], strict=True))
    given = {flag: [value for key, value in options if key == flag and "$" not in value] for flag, _ in options}
    overrides = parse_overrides(given.get("--set", []))
    plans = plan(
        experiment, methods=given.get("--method", []), scale=given.get("--scale", ["cpu"])[0], overrides=overrides
    )
    assert plans
    for key in overrides:
        assert all(key.rpartition(".")[2] in str(each.folder) for each in plans), (
            "the words of the command name the folder"
        )


@pytest.mark.parametrize("command", [line for line in COMMANDS if not line.startswith("forgetfree run ")])
def test_a_command_that_was_documented_then_is_still_understood(command):
    words = shlex.split(command)[1:]
    done = CliRunner().invoke(cli.app, [*words, "--help"])
    assert done.exit_code == 0, done.output
    flags = [word for word in words if word.startswith("--")]
    assert all(flag in done.output for flag in flags), done.output
