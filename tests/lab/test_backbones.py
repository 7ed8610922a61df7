"""The backbones of the paper's task-incremental benchmarks: their sizes, their norms, and that they never forget."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.answering import where_rows_meet
from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.experiment import known_keys

CLASSES = 3
CAPACITY = 0.02


@dataclass(frozen=True, eq=False)
class Case:
    """A backbone as a benchmark builds it, with what it takes, what it gives, and the published number of weights."""

    name: str
    arguments: dict[str, Any]
    inputs: tuple[int, ...]
    features: int
    weights: int
    large: bool = False

    def build(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return BACKBONES[self.name](**self.arguments)

    def samples(self, count: int, seed: int) -> Tensor:
        return torch.randn(count, *self.inputs, generator=torch.Generator().manual_seed(seed))

    def task(self, name: str, seed: int) -> ff.Task:
        return ff.Task(name, tuple(range(CLASSES)), (self.samples(4, seed), torch.arange(4) % CLASSES))

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.arguments.values())])


IMAGE = (3, 32, 32)
CASES = [
    Case("mlp", {}, (1, 28, 28), 100, 88_400),
    Case("lenet", {}, IMAGE, 500, 2_986_500),
    Case("lenet", {"size": "large", "channels": 1}, (1, 32, 32), 1500, 24_436_400, large=True),
    Case("alexnet", {}, IMAGE, 2048, 6_499_328),
    Case("alexnet", {"norm": "batch"}, IMAGE, 2048, 6_499_328),
    Case("resnet18_reduced", {}, IMAGE, 640, 1_090_140),
    Case("resnet18_reduced", {"norm": "batch"}, IMAGE, 640, 1_090_140),
    Case("tinynet", {}, (3, 64, 64), 640, 2_743_520),
]
SMALL = [case for case in CASES if not case.large]
ARCHIVED = [case for case in SMALL if str(case) != "alexnet-batch"]  # takes seconds; the residual one stands for it
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_normed = pytest.mark.parametrize("name", ["alexnet", "resnet18_reduced"])


@pytest.fixture(scope="module", autouse=True)
def _learners_leave_with_the_module() -> Iterator[None]:
    yield
    learned.cache_clear()


@cache
def learned(case: Case) -> tuple[ff.WSN, Tensor, Tensor]:
    """A learner of two tasks, a batch, and what the first task answered to it before the second was learned."""
    learner = ff.WSN(case.build(), capacity=CAPACITY, recipe=ff.Recipe(epochs=1, batch_size=4), seed=1)
    learner.learn(case.task("a", seed=1))
    batch = case.samples(3, seed=9)
    before = learner.predict(batch, task="a")
    learner.learn(case.task("b", seed=2))
    return learner, batch, before


def masked_layers(module: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    return [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Linear)]


def norms(module: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    return [part for part in module.modules() if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)]


def test_every_backbone_of_the_table_is_tested() -> None:
    assert {case.name for case in CASES} == set(BACKBONES)


@every_case
def test_it_has_the_published_number_of_weights_and_no_bias(case: Case) -> None:
    module = case.build()
    assert sum(weight.numel() for weight in module.parameters() if weight.dim() >= 2) == case.weights
    assert sum(layer.weight.numel() for layer in masked_layers(module)) == case.weights
    assert all(layer.bias is None for layer in masked_layers(module))


@every_case
def test_features_are_a_row_per_sample(case: Case) -> None:
    with torch.no_grad():
        assert case.build()(case.samples(2, seed=0)).shape == (2, case.features)


def test_a_lenet_takes_the_channels_it_is_told() -> None:
    assert BACKBONES["lenet"](channels=1)(torch.randn(2, 1, 32, 32)).shape == (2, 500)


def test_the_dropout_rates_of_alexnet_are_the_released_ones() -> None:
    rates = [part.p for part in BACKBONES["alexnet"]().modules() if isinstance(part, nn.Dropout)]
    assert rates == [0.2, 0.2, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(("name", "count"), [("alexnet", 5), ("resnet18_reduced", 20)])
def test_every_norm_is_of_the_kind_that_was_asked_for(name: str, count: int) -> None:
    of_task, of_batch = norms(BACKBONES[name]()), norms(BACKBONES[name](norm="batch"))
    assert len(of_task) == len(of_batch) == count
    assert all(norm.affine and norm.running_mean is not None for norm in of_task)
    assert not any(norm.affine or norm.running_mean is not None for norm in of_batch)


@every_normed
def test_rows_meet_in_norms_of_the_batch_and_not_in_norms_of_the_task(name: str) -> None:
    assert where_rows_meet(BACKBONES[name](norm="task")) is None
    assert where_rows_meet(BACKBONES[name](norm="batch")) == "1 (BatchNorm2d)"


def test_a_batch_of_several_tasks_is_answered_with_norms_of_the_task_and_refused_with_norms_of_the_batch() -> None:
    for case in (case for case in CASES if case.name == "resnet18_reduced"):
        learner, batch, _ = learned(case)
        if case.arguments:
            with pytest.raises(ff.InputError, match="BatchNorm2d"):
                learner.predict(batch, task=["a", "b", "a"])
        else:
            assert learner.predict(batch, task=["a", "b", "a"]).shape == (3, CLASSES)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_a_second_task_changes_no_bit_of_the_first(case: Case) -> None:
    learner, batch, before = learned(case)
    assert before.isfinite().all()
    assert not torch.equal(before[0], before[1])  # a network that passes nothing on would keep its bits as well
    assert torch.equal(learner.predict(batch, task="a"), before)
    assert sum(mask.shape.numel() for mask in learner.memory().used.values()) == case.weights


@pytest.mark.parametrize("case", ARCHIVED, ids=str)
def test_an_archive_builds_it_by_name_and_answers_bit_for_bit(case: Case, tmp_path: Path) -> None:
    learner, batch, _ = learned(case)
    path = tmp_path / "file.ticket"
    ff.save(learner, path, codec="ans")  # the fastest; all are tested with archives
    loaded = ff.load(path)
    for name in "ab":
        assert torch.equal(loaded.predict(batch, task=name), learner.predict(batch, task=name))


@every_normed
def test_an_unknown_norm_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ff.InputError, match=r"'task', 'batch'.*'layer'"):
        BACKBONES[name](norm="layer")


def test_an_unknown_size_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ff.InputError, match=r"'small' or 'large'.*'medium'"):
        BACKBONES["lenet"](size="medium")


@pytest.mark.parametrize("name", BACKBONES)
def test_an_experiment_can_read_its_settings_off_the_signature(name: str) -> None:
    given = {key for case in CASES if case.name == name for key in case.arguments}
    assert given <= set(known_keys("backbone", name))
