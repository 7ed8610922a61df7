"""A package outside of the tree: docs/extending.md is that package, built, installed and run as its author would."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FILE = re.compile(r"^`(?P<path>[\w./]+)`\n\n```\w+\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {found["path"]: found["content"] for found in FILE.finditer(PAGE)}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Where the package is installed: a folder on the Python path, with the package's entry points."""
    source, target = tmp_path_factory.mktemp("my-methods"), tmp_path_factory.mktemp("site")
    for path, content in FILES.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(content)
    (source / "my_methods" / "__init__.py").write_text("")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--target", str(target), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def forgetfree(site, tmp_path):
    """Run a command of the command line with the package installed, in an empty folder."""

    def run(*words: str, code: int = 0, on_path: Path | None = site) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "forgetfree.lab.cli", *words],
            cwd=tmp_path, env=environment(on_path), capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def environment(site: Path | None) -> dict[str, str]:
    path = [str(ROOT / "src"), *([str(site)] if site else [])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def record(folder: Path) -> dict:
    content = json.loads((folder / "record.json").read_text())
    return {key: value for key, value in content.items() if key != "seconds"}


def test_the_page_has_every_file_of_the_package():
    assert set(FILES) == {
        "pyproject.toml", "my_methods/tables.py", "my_methods/linear_probe.py", "my_methods/scaled_means.py",
        "my_methods/blobs.py", "my_methods/experiments/blobs.toml", "my_methods/experiments/few_digits.toml",
    }  # fmt: skip


def test_what_the_package_brings_is_listed(forgetfree):
    listed = forgetfree("list")
    for name in ("linear_probe", "fisher_means", "blobs", "til/blobs", "fscil/few_digits"):
        assert name in listed
    assert "my-methods" in listed


def test_its_methods_are_run_in_processes_reported_saved_loaded_verified_and_exported(forgetfree, tmp_path):
    forgetfree("run", "til/blobs", "--method", "linear_probe", "--method", "wsn", "--jobs", "2", "--out", "runs")
    forgetfree(
        "run", "fscil/few_digits", "--method", "fisher_means", "--method", "ncm", "--scale", "smoke", "--out", "runs"
    )
    assert "Linear probe" in forgetfree("report", "runs") or "linear_probe" in forgetfree("report", "runs")
    probe = tmp_path / "runs" / "til-blobs" / "linear_probe-cpu-seed0"
    assert record(probe)["different"] == 0
    assert record(probe)["archive"]["verified"]
    forgetfree("verify", str(probe / "memory.ticket"))
    forgetfree("export", str(probe / "memory.ticket"), "--task", "blobs 1", "--to", "probe.pt2")
    assert (tmp_path / "probe.pt2").stat().st_size > 0
    few = tmp_path / "runs" / "fscil-few_digits" / "fisher_means-smoke-seed0"
    assert record(few)["archive"]["different"] == 0
    assert record(few)["footprints"][-1]["extras"] == 64
    forgetfree("verify", str(few / "memory.ticket"))
    page = forgetfree("report", "runs", "--html", "page.html")
    assert "page.html" in page


def test_a_run_of_it_that_was_killed_goes_on_to_the_same_numbers(forgetfree, site, tmp_path):
    words = [
        "run",
        "til/blobs",
        "--method",
        "linear_probe",
        "--set",
        "recipe.epochs=40",
        "--set",
        "benchmark.images=600",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "forgetfree.lab.cli", *words, "--out", "killed"],
        cwd=tmp_path, env=environment(site), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    folder = tmp_path / "killed" / "til-blobs" / "linear_probe-benchmark.images=600-recipe.epochs=40-cpu-seed0"
    events = folder / "events.jsonl"
    end = time.monotonic() + 120
    while time.monotonic() < end and not (events.exists() and events.read_text().count('"epoch"') >= 45):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "record.json").exists(), "it was over before it could be killed"
    forgetfree("resume", "killed")
    forgetfree(*words, "--out", "whole")
    assert record(folder) == record(tmp_path / "whole" / "til-blobs" / folder.name)


def test_an_archive_of_a_method_that_is_not_installed_says_which_and_how_to_get_it(forgetfree, tmp_path):
    forgetfree("run", "til/blobs", "--method", "linear_probe", "--scale", "smoke", "--out", "runs")
    archive = tmp_path / "runs" / "til-blobs" / "linear_probe-smoke-seed0" / "memory.ticket"
    said = forgetfree("verify", str(archive), code=2, on_path=None)
    assert "linear_probe" in said
    assert "my-methods" in said
    assert "Install" in said
    assert "linear_probe" in forgetfree("inspect", str(archive), on_path=None)


def test_nothing_need_be_installed_for_a_plug_in_and_a_file_of_ones_own(forgetfree, site, tmp_path):
    (tmp_path / "my_methods").symlink_to(site / "my_methods")
    (tmp_path / "mine.toml").write_text(FILES["my_methods/experiments/blobs.toml"])
    words = ["--plugin", "my_methods.tables", "run", "./mine.toml", "--method", "linear_probe", "--scale", "smoke"]
    forgetfree(*words, "--seed", "0", "--seed", "1", "--jobs", "2", "--out", "runs", on_path=None)
    folders = sorted(folder.name for folder in (tmp_path / "runs" / "til-mine").iterdir())
    assert folders == ["linear_probe-smoke-seed0", "linear_probe-smoke-seed1"]
    assert "linear_probe" in forgetfree("report", "runs", on_path=None).replace("Linear probe", "linear_probe")
