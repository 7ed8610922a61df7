"""Values that are no numbers: refused where they would be kept or stored, and never certified as answers that hold."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree import archive

QUICK = ff.Recipe(epochs=1)


def task(inputs: Tensor) -> ff.Task:
    return ff.Task("a", ("p", "q"), (inputs, torch.arange(len(inputs)) % 2))


class Watching(nn.Module):
    """Keeps the mean of what it has seen, and a mask that is infinite from the start; answers use neither."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("mask", torch.full((8,), -torch.inf))

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(rows.mean(0), 0.1)
        return self.layer(rows.nan_to_num(0, 1, -1))


@pytest.mark.parametrize("method", ["wsn", "finetune", "single_task", "hat", "softnet"])
def test_statistics_that_became_infinite_are_not_kept(method: str) -> None:
    rows = torch.randn(16, 8)
    learner = ff.METHODS[method](Watching(), **({"capacity": 0.5} if method in ("wsn", "softnet") else {}))
    learner.recipe = replace(learner.recipe, epochs=1)
    spoiled = rows.clone()
    spoiled[3, 2] = torch.inf
    with pytest.raises(ff.LearningError, match=r"mean.* not finite.*Check the inputs"):
        learner.learn(task(spoiled))
    assert not learner.tasks
    learner.learn(task(rows))  # the mask was infinite before, and may be
    assert list(learner.tasks) == ["a"]


def large(method: str, factor: float) -> Any:
    backbone = nn.Linear(8, 8)
    with torch.no_grad():
        backbone.weight.mul_(factor)
    learner = ff.METHODS[method](backbone, recipe=QUICK, **({"capacity": 0.5} if method == "wsn" else {}))
    learner.learn(task(torch.randn(16, 8)))
    return learner


@pytest.mark.parametrize("method", ["wsn", "finetune"])
def test_weights_too_large_for_a_type_are_not_rounded_to_infinity(tmp_path: Path, method: str) -> None:
    learner = large(method, 1e6)
    with pytest.raises(ff.InputError, match=r"weight holds -?[\d.e+]+, .*float16.*65504.*bfloat16"):
        ff.save(learner, tmp_path / "file", dtype="float16")
    assert not list(tmp_path.iterdir())
    ff.save(learner, tmp_path / "file", dtype="bfloat16")
    assert ff.verify(tmp_path / "file", nn.Linear(8, 8)).ok


def test_a_free_weight_that_is_not_stored_may_be_of_any_size(tmp_path: Path) -> None:
    learner = large("wsn", 1)
    free = ~learner.network.used["weight"]
    learner.network._kept.weights["weight"][free] = 1e6
    ff.save(learner, tmp_path / "file", dtype="float16")
    assert ff.verify(tmp_path / "file", nn.Linear(8, 8)).ok


def test_answers_that_rounding_made_infinite_do_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in archives that were written before such weights were refused."""
    learner = large("wsn", 1e6)
    monkeypatch.setattr(archive, "_refuse_overflow", lambda *_: None)
    monkeypatch.setattr(archive, "_refuse_lost_answers", lambda *_: None)
    ff.save(learner, tmp_path / "file", dtype="float16")
    found = ff.verify(tmp_path / "file", nn.Linear(8, 8))
    assert not found.ok
    assert "not finite" in found.tasks[0].rule
