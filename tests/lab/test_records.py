"""Run folders: made once, checked when met again, never mixed up, whole or not there."""

import json
import subprocess
import sys

import pytest

import forgetfree as ff
from forgetfree.lab.experiment import perform, plan
from forgetfree.lab.records import RunFolder, find_runs


def smoke(**overrides):
    (each,) = plan("til/digits_split", scale="smoke", overrides=overrides)
    return each


def test_a_folder_holds_plan_record_and_events(tmp_path):
    each = smoke()
    record = perform(each, tmp_path)
    folder = RunFolder(tmp_path / each.folder)
    assert folder.finished
    assert folder.plan() == each.as_toml()
    assert folder.versions()["torch"]
    assert folder.record() == record
    content = json.loads((folder.path / "record.json").read_text())
    assert content["metrics"]["acc"] == record.acc
    assert content["accuracy"][0][1] is None
    events = [json.loads(line)["event"] for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert events[0] == "start"
    assert events[-1] == "finish"
    assert events.count("epoch") == 5
    assert not folder.checkpoints.exists()


def test_a_finished_folder_is_not_run_again(tmp_path):
    each = smoke()
    first = perform(each, tmp_path)
    before = (tmp_path / each.folder / "record.json").stat().st_mtime_ns
    assert perform(each, tmp_path) == first
    assert (tmp_path / each.folder / "record.json").stat().st_mtime_ns == before


def test_the_same_plan_gives_the_same_record_but_for_the_time(tmp_path):
    one, other = perform(smoke(), tmp_path / "a"), perform(smoke(), tmp_path / "b")
    assert one.reproducible() == other.reproducible()


def test_a_folder_of_another_plan_is_an_error_that_shows_the_difference(tmp_path):
    each = smoke()
    perform(each, tmp_path)
    file = tmp_path / each.folder / "run.toml"
    file.write_text(file.read_text().replace("lr = 0.003", "lr = 0.5"))
    with pytest.raises(ff.InputError, match=r"recipe.lr: 0.5 there, 0.003 here"):
        perform(each, tmp_path)


def test_a_damaged_folder_is_a_clear_error(tmp_path):
    each = smoke()
    perform(each, tmp_path)
    (tmp_path / each.folder / "record.json").write_text('{"accuracy": 3')
    with pytest.raises(ff.FileError, match="cannot be read as a record"):
        perform(each, tmp_path)
    (tmp_path / each.folder / "run.toml").write_text("[run")
    with pytest.raises(ff.FileError, match="not a TOML file"):
        perform(each, tmp_path)


def test_two_processes_cannot_run_one_folder(tmp_path):
    each = smoke()
    with RunFolder(tmp_path / each.folder).locked(), pytest.raises(ff.FileError, match="another process"):
        perform(each, tmp_path)
    perform(each, tmp_path)


def test_runs_are_found_below_any_parent(tmp_path):
    each = smoke()
    perform(each, tmp_path)
    for start in (tmp_path, tmp_path / each.folder, tmp_path / each.folder.parent):
        assert [folder.path for folder in find_runs([start])] == [tmp_path / each.folder]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ff.InputError, match="no run folder"):
        find_runs([tmp_path / "empty"])
    with pytest.raises(ff.InputError, match="there is no folder"):
        find_runs([tmp_path / "nowhere"])


def test_a_full_disk_is_a_clear_error_and_the_run_goes_on_when_there_is_room(tmp_path):
    """The kernel refuses files above 40 kB in the child, so the first checkpoint cannot be written."""
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from forgetfree.lab.experiment import perform, plan\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "perform(plan('til/digits_split', scale='smoke')[0], Path(sys.argv[1]))\n"
    )
    failed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert failed.returncode == 1
    last = failed.stderr.strip().splitlines()[-1]
    assert "FileError: cannot write" in last
    assert "task-001.safetensors" in last
    folder = RunFolder(tmp_path / smoke().folder)
    assert folder.started
    assert not folder.finished
    assert not list(tmp_path.rglob("*.partial"))
    assert perform(smoke(), tmp_path).reproducible() == perform(smoke(), tmp_path / "elsewhere").reproducible()
