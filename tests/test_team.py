"""Processes that learn together: to the bits of one process, or to a sentence that all of them say."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forgetfree.errors import InputError
from forgetfree.lab.together import joined
from together import learning

TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
    "--nproc-per-node",
]  # fmt: skip
SAME = [
    "learned:wsn:mlp", "learned:wsn:dropout", "learned:wsn:norm", "learned:wsn:lstm", "learned:ewc:norm",
    "learned:packnet:dropout", "learned:softnet:norm", "learned:gpm:mlp", "learned:f2m:mlp",
]  # fmt: skip


def together(size: int, folder: Path, *scenarios: str, **environment: str) -> list[dict[str, Any]]:
    """What each of so many processes has found, in the order of ranks."""
    here = Path(__file__).parent
    command = [*TORCHRUN, str(size), "-m", "together.learning", str(folder / "found"), *scenarios]
    paths = os.pathsep.join([str(here), str(here.parent / "src")])
    given = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}
    ended = subprocess.run(command, env=given, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads((folder / f"found.{rank}").read_text()) for rank in range(size)]


def differing(one: Any, other: Any) -> list[str]:
    assert isinstance(one, dict), one
    assert isinstance(other, dict), other
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_learn_the_bits_of_one(size: int, tmp_path: Path) -> None:
    found = together(size, tmp_path, *SAME)
    for scenario in SAME:
        alone = learning.perform(scenario)
        for each in found:
            assert differing(each[scenario], alone) == [], scenario


def test_what_goes_wrong_in_one_process_ends_all_of_them_with_one_sentence(tmp_path: Path) -> None:
    first, second = together(2, tmp_path, "not_finite", "other_data", "odd_share", "learned:wsn:mlp")
    assert second["not_finite"].startswith("LearningError: task 'task 0': the loss became nan")
    assert first["not_finite"].removeprefix("LearningError: process 1 of 2: ") in second["not_finite"]
    for each in (first, second):
        assert "do not have the same data" in each["other_data"]
        assert "accumulate must be a multiple of 2" in each["odd_share"]
    assert differing(first["learned:wsn:mlp"], learning.perform("learned:wsn:mlp")) == []  # they are still together


def test_a_checkpoint_is_gone_on_from_by_another_number_of_processes(tmp_path: Path) -> None:
    scenario = f"resumed:{tmp_path / 'some.safetensors'}"
    stopped = together(2, tmp_path, scenario, STOP="1")
    assert [each[scenario] for each in stopped] == ["stopped"] * 2
    assert not (tmp_path / "elsewhere").exists()
    kept = (tmp_path / "some.safetensors").read_bytes()
    alone = learning.perform(scenario)
    (tmp_path / "some.safetensors").write_bytes(kept)
    for each in together(2, tmp_path, scenario):
        assert differing(each[scenario], alone) == []
    (tmp_path / "some.safetensors").unlink()
    assert differing(learning.perform(scenario), alone) == []


def test_a_run_under_torchrun_leaves_the_archive_of_one_in_a_single_process(tmp_path: Path) -> None:
    words = ["run", "til/digits_split", "--method", "wsn", "--scale", "smoke", "--set", "recipe.accumulate=2"]
    alone = subprocess.run(
        [sys.executable, "-m", "forgetfree", *words, "--out", str(tmp_path / "alone")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    shared = subprocess.run(
        [*TORCHRUN, "2", "-m", "forgetfree", *words, "--out", str(tmp_path / "shared")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert shared.returncode == 0, shared.stderr[-3000:]
    assert shared.stdout.count("Run folders:") == 1, "one of them speaks"
    one, other = (next((tmp_path / name).rglob("memory.ticket")) for name in ("alone", "shared"))
    assert one.read_bytes() == other.read_bytes()
    records = [json.loads(path.with_name("record.json").read_text()) for path in (one, other)]
    for record in records:
        del record["seconds"]
    assert records[0] == records[1]


def test_jobs_and_torchrun_do_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="leave one of the two out"), joined(jobs=3):
        pass
