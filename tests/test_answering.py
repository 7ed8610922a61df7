"""Answering: batches of several tasks in one call, and modules that are noticed when they change."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.answering import Answers, in_groups, where_rows_meet
from forgetfree.batches import convert
from forgetfree.contracts import Inputs
from forgetfree.sealing import steps
from zoo import TIL, ZOO, Entry

KINDS = ["mlp with dropout", "cnn with batch norm", "transformer encoder", "tied weight", "counting"]
RECIPE = ff.Recipe(epochs=1, batch_size=8, lr=0.03)


def taught(entry: Entry, **settings: Any) -> ff.WSN:
    learner = ff.WSN(entry.build(), capacity=0.3, recipe=RECIPE, **settings)
    for seed, name in enumerate("abc"):
        learner.learn(entry.task(name, seed=seed))
    return learner


def rows_at(inputs: Inputs, rows: list[int]) -> Inputs:
    return convert(inputs, lambda value: value[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixed_batch_has_the_bits_of_each_task_asked_alone(kind: str) -> None:
    learner, batch = taught(ZOO[kind]), ZOO[kind].inputs(7, seed=9)
    names = ["b", "a", "b", "c", "a", "b", "c"]
    for _ in range(2):
        together = learner.predict(batch, task=names)
        assert isinstance(together, Tensor)
        assert tuple(together.shape) == (7, 3)
        assert together.is_contiguous()
        for name in "abc":
            rows = [row for row, owner in enumerate(names) if owner == name]
            assert torch.equal(together[rows], learner.predict(rows_at(batch, rows), task=name))


def test_a_batch_of_one_task_by_list_is_that_task_asked_alone() -> None:
    entry = ZOO["mlp with dropout"]
    learner, batch = taught(entry), entry.inputs(4, seed=9)
    assert torch.equal(learner.predict(batch, task=("b",) * 4), learner.predict(batch, task="b"))


def test_inputs_in_a_tuple_are_split_by_row() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return torch.relu(self.layer(left) + right.mean(1, keepdim=True))

    entry = Entry(Sum, lambda n, chance: (torch.randn(n, 6, generator=chance), torch.randn(n, 2, generator=chance)))
    learner, batch = taught(entry), entry.inputs(3, seed=9)
    together = learner.predict(batch, task=["c", "a", "c"])
    assert torch.equal(together[[0, 2]], learner.predict(rows_at(batch, [0, 2]), task="c"))
    assert torch.equal(together[1:2], learner.predict(rows_at(batch, [1]), task="a"))


def test_tasks_of_different_widths_give_a_list_of_rows() -> None:
    inputs = torch.randn(12, 6)
    learner = ff.WSN(ZOO["mlp with dropout"].build(), capacity=0.3, recipe=RECIPE)
    for name, classes in (("two", 2), ("three", 3)):
        learner.learn(ff.Task(name, tuple(range(classes)), (inputs, torch.arange(12) % classes)))
    answers = learner.predict(inputs[:3], task=["three", "two", "three"])
    assert isinstance(answers, list)
    assert [tuple(row.shape) for row in answers] == [(3,), (2,), (3,)]
    assert torch.equal(torch.stack([answers[0], answers[2]]), learner.predict(inputs[[0, 2]], task="three"))


@pytest.mark.parametrize("method", TIL)
def test_every_method_answers_mixed_batches(method: str) -> None:
    entry = ZOO["mlp with dropout"]
    settings = {"capacity": 0.3} if method in ("wsn", "packnet", "supsup") else {}
    recipe = replace(RECIPE, optimizer="sgd") if method in ("hat", "gpm") else RECIPE
    learner = ff.METHODS[method](entry.build(), recipe=recipe, **settings)
    for seed, name in enumerate("ab"):
        learner.learn(entry.task(name, seed=seed))
    if hasattr(learner, "finish"):
        with pytest.raises(ff.TaskError, match="call finish"):
            learner.predict(entry.inputs(2), task=["a", "b"])
        learner.finish()
    batch = entry.inputs(4, seed=9)
    together = learner.predict(batch, task=["a", "b", "b", "a"])
    assert torch.equal(together[[0, 3]], learner.predict(batch[[0, 3]], task="a"))
    assert torch.equal(together[[1, 2]], learner.predict(batch[[1, 2]], task="b"))


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ([], ff.InputError, "empty"),
        (["a", "b"], ff.InputError, "2 names and inputs of shape \\(3, 6\\)"),
        (["a", "x", "y"], ff.TaskError, "no tasks 'x', 'y' are learned; learned tasks are \\['a', 'b', 'c'\\]"),
        (["a", "x", "x"], ff.TaskError, "no task 'x' is learned"),
        (["a", 1, "b"], ff.TaskError, "asked by its name"),
        (3, ff.TaskError, "asked by its name"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(names: Any, error: type[Exception], message: str) -> None:
    entry = ZOO["mlp with dropout"]
    with pytest.raises(error, match=message):
        taught(entry).predict(entry.inputs(3), task=names)


def test_inputs_that_differ_in_rows_are_refused() -> None:
    learner = taught(ZOO["transformer encoder"])
    batch = ZOO["transformer encoder"].inputs(3)
    batch["padding"] = batch["padding"][:2]
    with pytest.raises(ff.InputError, match="one name for every row"):
        learner.predict(batch, task=["a", "b", "a"])


@pytest.mark.parametrize("cache_bytes", [1 << 30, 1])
def test_a_norm_that_looks_at_its_batch_refuses_mixed_batches_only(cache_bytes: int) -> None:
    norm = nn.BatchNorm1d(8, track_running_stats=False)
    entry = Entry(lambda: nn.Sequential(nn.Linear(6, 8), norm), ZOO["mlp with dropout"].draw)
    learner, batch = taught(entry, cache_bytes=cache_bytes), entry.inputs(4)
    for _ in range(2):
        with pytest.raises(ff.InputError, match="1 \\(BatchNorm1d\\) keeps no running statistics"):
            learner.predict(batch, task=["a", "b", "a", "b"])
        assert torch.equal(learner.predict(batch, task=["a"] * 4), learner.predict(batch, task="a"))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4)])
def test_other_norms_may_meet_mixed_batches(layer: nn.Module) -> None:
    assert where_rows_meet(nn.Sequential(nn.Linear(4, 4), layer)) is None


def test_an_answer_that_is_not_row_by_row_is_refused() -> None:
    with pytest.raises(ff.InputError, match="not row by row"):
        in_groups(torch.zeros(3, 2), ["a", "b", "a"], lambda _, rows: rows.sum(0))


class Meddling(nn.Module):
    """Changes itself in one of many ways when it meets three rows in use."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.layer = nn.Linear(6, 8)
        self.inner = nn.Sequential(nn.Tanh(), nn.Identity())
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("nothing", None)

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) == 3 and not self.training:
            with torch.no_grad():
                WAYS[self.way](self)
        extra = [value for name, value in self.named_buffers() if name not in ("scale", "nothing")]
        return self.inner(self.layer(rows)) * self.scale + (self.nothing or 0) + sum(extra)


WAYS: dict[str, Any] = {
    "writes a weight": lambda module: module.layer.weight.add_(1),
    "writes a buffer": lambda module: module.scale.add_(1),
    "assigns a buffer": lambda module: setattr(module, "scale", module.scale + 1),
    "fills a buffer": lambda module: setattr(module, "nothing", torch.ones(())),
    "adds a buffer": lambda module: module.register_buffer("late", torch.ones(())),
    "adds a buffer at the very end": lambda module: module.inner[1].register_buffer("late", torch.ones(())),
    "deletes a part": lambda module: module.inner.__delitem__(0),
    "replaces a part": lambda module: module.inner.__setitem__(0, nn.ReLU()),
    "adds a part": lambda module: module.inner.append(nn.ReLU()),
    "assigns a weight": lambda module: setattr(module.layer, "weight", nn.Parameter(module.layer.weight + 1)),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_module_changes_in_itself_is_noticed(way: str) -> None:
    entry = Entry(lambda: Meddling(way), ZOO["counting"].draw)
    learner = taught(entry)
    small, three = entry.inputs(2, seed=9), entry.inputs(3, seed=9)
    before = [learner.predict(small, task="a") for _ in range(2)]
    changed = learner.predict(three, task="a")
    assert torch.equal(learner.predict(small, task="a"), before[0])
    assert torch.equal(learner.predict(three, task="a"), changed)
    assert torch.equal(copy.deepcopy(learner).predict(three, task="a"), changed)


@pytest.mark.parametrize("way", WAYS)
def test_a_change_is_noticed_where_no_head_comes_after_it(way: str) -> None:
    module = Meddling(way).eval()
    answers = Answers(lambda _: copy.deepcopy(module), budget=1 << 20)
    small, three = torch.ones(2, 6), torch.ones(3, 6)
    before = [answers("a", small) for _ in range(2)]
    answers("a", three)
    assert torch.equal(answers("a", small), before[0])


def test_the_least_recently_used_module_leaves_when_the_budget_is_full() -> None:
    built: list[str] = []

    def build(name: str) -> nn.Module:
        built.append(name)
        return nn.Linear(4, 4, bias=False)

    answers = Answers(build, budget=2 * 64)
    for name in ("any", "a", "b", "a", "c", "a", "b"):  # the first answer is by a module of its own
        answers(name, torch.zeros(1, 4))
    assert built == ["any", "a", "b", "c", "b"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.zeros(2, 6, 1), "was learned on inputs"),
        (torch.zeros(2, 5), "cannot take inputs"),
        ((torch.zeros(2, 6),), "was learned on inputs"),
        ({"rows": torch.zeros(2, 6)}, "was learned on inputs"),
    ],
)
def test_inputs_of_another_kind_are_explained_also_when_the_module_is_cached(given: Any, said: str) -> None:
    learner = taught(ZOO["mlp with dropout"])
    for _ in range(3):
        learner.predict(torch.zeros(2, 6), task="a")
        with pytest.raises(ff.InputError, match=said):
            learner.predict(given, task="a")


def test_inputs_of_another_type_are_brought_to_that_of_the_weights() -> None:
    learner, batch = taught(ZOO["mlp with dropout"]), ZOO["mlp with dropout"].inputs(4)
    plain = [learner.predict(batch, task="a") for _ in range(2)]
    assert torch.equal(learner.predict(batch.double(), task="a"), plain[0])
    assert torch.equal(learner.predict(batch.double(), task=["a"] * 4), plain[0])


def asked(backbone: nn.Module, inputs: Tensor) -> tuple[ff.WSN, Tensor]:
    learner = ff.WSN(backbone, capacity=0.5, recipe=ff.Recipe(epochs=1))
    learner.learn(ff.Task("a", (0, 1), (inputs, torch.arange(len(inputs)) % 2)))
    learner.predict(inputs, "a")
    return learner, learner.predict(inputs, "a")


def test_a_chain_of_torchs_layers_is_answered_layer_by_layer_to_the_same_bits() -> None:
    twice = nn.Linear(6, 6)
    chain = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Flatten(), twice, nn.Sequential(nn.Tanh(), twice))
    inputs = torch.randn(8, 2, 4)
    learner, answer = asked(chain, inputs)
    shared = learner.engine._answers._shared("a")
    assert shared.steps is not None
    assert len(shared.steps) == 7, "a layer that comes twice is two steps"
    with torch.no_grad():
        assert torch.equal(shared.module(inputs), answer)


class Odd(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


@pytest.mark.parametrize(
    "part", [Odd(4, 4), nn.ReLU(inplace=True), nn.LSTM(4, 4), nn.RReLU()], ids=lambda p: type(p).__name__
)
def test_other_layers_are_called_as_modules(part: nn.Module) -> None:
    assert steps(nn.Sequential(nn.Linear(4, 4), part)) is None


def test_a_hook_on_a_layer_or_on_all_layers_is_called() -> None:
    seen: list[str] = []
    hooked = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    hooked[1].register_forward_hook(lambda *_: seen.append("its own"))
    learner, _ = asked(hooked, torch.randn(8, 4))
    assert learner.engine._answers._shared("a").steps is None
    seen.clear()
    learner.predict(torch.randn(8, 4), "a")
    assert seen == ["its own"]
    plain, _ = asked(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(8, 4))
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append("everybody's"))
    plain.predict(torch.randn(8, 4), "a")
    handle.remove()
    assert "everybody's" in seen
