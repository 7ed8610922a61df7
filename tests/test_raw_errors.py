"""What ended in an error of torch's or Python's own: it works, or a sentence says what to do."""

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from zoo import FSCIL, TIL

QUICK = ff.Recipe(epochs=2, batch_size=8)
ROWS = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


def task(name: str = "a") -> ff.Task:
    return ff.Task(name, (f"{name}0", f"{name}1"), (ROWS, (ROWS[:, 0] > 0).long()))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(8, 8), nn.Parameter(torch.randn(5, 5, dtype=torch.cfloat))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(self.layer(rows)) @ self.weight, n=8)


class With(nn.Module):
    """A layer, and a buffer of some kind."""

    def __init__(self, buffer: Tensor):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("table", buffer)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows)


@pytest.mark.parametrize("masked", [None, ["*weight"]])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop"])
def test_complex_weights_are_learned_and_keep_their_bits(optimizer: Any, masked: Any) -> None:
    learner = ff.WSN(Complex(), capacity=0.5, masked=masked, recipe=ff.Recipe(epochs=2, optimizer=optimizer))
    learner.learn(task())
    before = learner.predict(ROWS, "a")
    learner.learn(task("b"))
    assert torch.equal(learner.predict(ROWS, "a"), before)
    assert all(found.ok for found in learner.verify())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (lambda: With(torch.eye(8).to_sparse()), "table.*sparse"),
        (lambda: With(torch.eye(8).to_sparse_csr()), "table.*sparse"),
        (lambda: With(torch.quantize_per_tensor(torch.eye(8), 0.1, 0, torch.qint8)), "table.*quantised"),
        (lambda: nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 0), nn.Linear(0, 4)), r"1\.weight.*no value"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["wsn", "finetune", "single_task"])
def test_tensors_that_cannot_be_kept_are_refused_with_a_sentence(method: str, kind: Any, words: str) -> None:
    with pytest.raises(ff.ModuleError, match=words):
        ff.METHODS[method](kind(), **({"capacity": 0.5} if method == "wsn" else {}))


@pytest.mark.parametrize("method", ["wsn", "finetune", "ncm"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_optimizer_that_asks_again_is_given_a_closure(method: str, accumulate: int) -> None:
    def careful(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=4)

    recipe = ff.Recipe(epochs=4, batch_size=16 // accumulate, accumulate=accumulate, clip=5.0, optimizer=careful)
    learner = ff.METHODS[method](nn.Linear(8, 8), recipe=recipe, **({"capacity": 0.9} if method == "wsn" else {}))
    learner.learn(task())
    losses = [epoch["loss"] for epoch in learner.tasks["a"].curves]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["x" * 250, "x" * 300, "a\0b", "a\ud800b", "é" * 125])
def test_names_that_files_can_hardly_have_work_or_are_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    learner = ff.WSN(nn.Linear(8, 8), capacity=0.5, recipe=QUICK)
    learner.learn(task())
    if "\0" not in name and "\ud800" not in name and len(os.fsencode(name)) <= 255:
        ff.save(learner, tmp_path / name)
        assert [found.name for found in tmp_path.iterdir()] == [name]
        return
    with pytest.raises(ff.FileError, match="cannot write"):
        ff.save(learner, tmp_path / name)
    with pytest.raises(ff.FileError):
        ff.load(tmp_path / name)
    with pytest.raises(ff.FileError):
        learner.learn(task("b"), checkpoint=tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", [*TIL, *FSCIL])
def test_a_learner_is_not_pickled_and_the_error_names_save(method: str) -> None:
    kind = ff.METHODS[method]
    learner = kind(nn.Linear(8, 8), **({"capacity": 0.5} if "capacity" in kind.__dataclass_fields__ else {}))
    with pytest.raises(ff.InputError, match=r"ff\.save|forgetfree\.save"):
        pickle.dumps(learner)
    copy.deepcopy(learner)
    copy.copy(learner)
