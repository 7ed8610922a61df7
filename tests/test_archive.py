"""Archives: what comes back is what went in, bit for bit; what is damaged or made up is refused in a sentence.

Run as a script, this file saves two learners over each other in processes that it kills at random moments, and prints
what it found.
"""

import json
import os
import pickle
import random
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

import forgetfree as ff
from forgetfree import archive, certificate, manifests
from forgetfree.codec import CODECS
from forgetfree.engine import Engine
from forgetfree.files import flatten, unflatten
from forgetfree.lab.backbones import BACKBONES
from forgetfree.masks import select
from forgetfree.scores import Scores
from snapshots import FEATURES, assert_same, backbone, learner, pair, snapshot, task
from soak.mutants import damaged
from zoo import TIL, ZOO, Entry, on_every_backbone

SETTINGS: dict[str, dict[str, Any]] = {
    "wsn": {"capacity": 0.3},
    "hat": {"recipe": ff.Recipe(epochs=1, batch_size=16, lr=0.05, optimizer="sgd")},
    "gpm": {"recipe": ff.Recipe(epochs=1, batch_size=16, lr=0.02, optimizer="sgd")},
    "packnet": {"capacity": 0.3},
    "supsup": {"capacity": 0.3},
}
QUICK = ff.Recipe(epochs=1, batch_size=16, lr=0.02)
KILLS, ALL_KILLS = 10, 50
MUTATIONS, ALL_MUTATIONS = 60, 2500
BITS = 300
"""Of a header, which has some ten thousand; `make test-all` flips them all."""
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def taught(method: str, entry: Entry, names: str = "ab", **options: Any) -> Any:
    """A learner of some tasks; the test is skipped where a method does not take such inputs."""
    made = ff.METHODS[method](entry.build(), **({"recipe": QUICK, "seed": 3} | SETTINGS.get(method, {}) | options))
    try:
        for position, name in enumerate(names):
            made.learn(entry.task(name, seed=position))
    except ff.InputError as error:
        pytest.skip(f"{method}: {error}")
    if method == "multitask":
        made.finish()
    return made


def other(entry: Entry) -> nn.Module:
    """The same backbone with other values in all its tensors: they must not matter."""
    module = entry.build()
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers()):
            value.copy_(torch.full_like(value, 3))
    return module


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Stricter than torch.equal, for which 0.0 is -0.0."""
    return (one.dtype, one.shape) == (other.dtype, other.shape) and raw(one) == raw(other)


def raw(value: Tensor) -> bytes:
    return bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def everything(made: Any) -> dict[str, Any]:
    """All tensors of a learner as bytes, and what is said of its tasks."""
    if isinstance(made, ff.WSN):
        return snapshot(made)
    memory = made.memory()
    heads = {f"{task}/{name}": value for task, head in memory.heads.items() for name, value in head.items()}
    return {name: raw(value) for name, value in {**memory.shared, **heads}.items()} | {"tasks": repr(made.tasks)}


def assert_same_answers(one: Any, other: Any, batch: Any) -> None:
    assert list(one.tasks) == list(other.tasks)
    for name in one.tasks:
        assert same_bits(one.predict(batch, task=name), other.predict(batch, task=name)), name


@pytest.mark.parametrize(("method", "kind"), on_every_backbone(TIL))
def test_a_loaded_learner_answers_bit_for_bit_whatever_was_in_the_backbone(
    method: str, kind: str, tmp_path: Path
) -> None:
    entry = ZOO[kind]
    made, batch, path = taught(method, entry), entry.inputs(7, seed=99), tmp_path / "file.ticket"
    for resumable in (False, True):
        assert ff.save(made, path, resumable=resumable) == path.stat().st_size
        for module in (entry.build(), other(entry)):
            loaded = ff.load(path, module)
            assert type(loaded) is type(made)
            assert dict(loaded.tasks) == dict(made.tasks)
            assert_same_answers(made, loaded, batch)
        assert ff.verify(path, entry.build()).ok
        assert ff.inspect(path).resumable is resumable
        again = tmp_path / "again.ticket"
        ff.save(loaded, again, resumable=resumable)
        assert_same_answers(made, ff.load(again, other(entry)), batch)


@pytest.mark.parametrize("carry", [False, True], ids=["fresh", "carried"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("method", ["wsn", "finetune", "single_task", "ewc", "packnet", "supsup", "piggyback"])
def test_a_resumable_archive_goes_on_to_the_same_bits(method: str, optimizer: Any, carry: bool, tmp_path: Path) -> None:
    recipe = ff.Recipe(
        epochs=2, batch_size=16, lr=0.02, momentum=0.9, weight_decay=0.01, optimizer=optimizer, carry_optimizer=carry
    )
    never_stopped = ff.METHODS[method](backbone(), recipe=recipe, seed=7, **SETTINGS.get(method, {}))
    for position, name in enumerate("ab"):
        never_stopped.learn(task(name, position))
    ff.save(never_stopped, tmp_path / "file", resumable=True)
    never_stopped.learn(task("c", 2))
    loaded = ff.load(tmp_path / "file", backbone(seed=5))
    loaded.learn(task("c", 2))
    assert_same(everything(loaded), everything(never_stopped))
    assert_same_answers(loaded, never_stopped, pair(9)[0])


@pytest.mark.parametrize("kind", ZOO)
def test_any_module_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    entry = ZOO[kind]
    never_stopped = taught("wsn", entry, own_from="previous")
    ff.save(never_stopped, tmp_path / "file", resumable=True)
    loaded = ff.load(tmp_path / "file", other(entry))
    for made in (never_stopped, loaded):
        made.learn(entry.task("c", seed=2))
    assert_same(everything(loaded), everything(never_stopped))


def test_without_all_of_it_learning_goes_on_from_what_is_known(tmp_path: Path) -> None:
    made = learner(QUICK)
    for position, name in enumerate("ab"):
        made.learn(task(name, position))
    whole = ff.save(made, tmp_path / "whole", resumable=True)
    assert ff.save(made, tmp_path / "small") < whole
    assert "free" in ff.inspect(tmp_path / "whole").sections
    assert "free" not in ff.inspect(tmp_path / "small").sections
    one, other = (ff.load(tmp_path / "small", backbone(seed)) for seed in (2, 3))
    for loaded in (one, other):
        loaded.learn(task("c", 2))
    assert_same(everything(one), everything(other))


@pytest.mark.parametrize("capacity", [1.0, 0.3, 0.001])
@pytest.mark.parametrize("by", ["magnitude", "value"])
@pytest.mark.parametrize("kind", ["cnn with batch norm", "transformer encoder"])
def test_the_next_session_starts_at_the_last_ticket(kind: str, by: Any, capacity: float, tmp_path: Path) -> None:
    entry = ZOO[kind]
    made, batch = taught("wsn", entry, "abc", by=by, capacity=capacity), entry.inputs(5, seed=99)
    ff.save(made, tmp_path / "file")
    loaded = ff.load(tmp_path / "file", other(entry))
    last = made.network.tickets["c"]
    for name, selection in loaded.scores.top(capacity).items():
        assert torch.equal(selection.mask(), last.mask(name)), name
        assert loaded.scores.state_dict()[name].dtype == made.scores.state_dict()[name].dtype
    before = {name: made.predict(batch, task=name) for name in made.tasks}
    loaded.learn(entry.task("d", seed=3))
    assert list(loaded.tasks) == list("abcd")
    for name, answer in before.items():
        assert same_bits(loaded.predict(batch, task=name), answer)
    assert all(found.ok for found in loaded.verify())


def test_scores_come_back_as_spread_as_they_were(tmp_path: Path) -> None:
    made = taught("wsn", ZOO["mlp with dropout"], "abc")
    ff.save(made, tmp_path / "file")
    loaded = ff.load(tmp_path / "file", ZOO["mlp with dropout"].build())
    for name, before in made.scores.quantiles().items():
        after = loaded.scores.quantiles()[name]
        assert torch.allclose(after, before, rtol=0.05, atol=0.05 * float(before.max()))


@pytest.mark.parametrize("by", ["magnitude", "value"])
def test_scores_that_are_all_alike_still_select_the_last_ticket_and_then_what_is_used_most(by: Any) -> None:
    chance = torch.Generator().manual_seed(0)
    mask = torch.rand(20, 20, generator=chance) < 0.3
    uses = torch.randint(5, (20, 20), generator=chance, dtype=torch.int32) + mask
    alike, spread = torch.full((65,), 0.5), torch.linspace(0, 1, 65)
    for quantiles in (alike, spread):
        scores = Scores.after({"layer": mask}, {"layer": uses}, {"layer": quantiles}, seed=0, by=by)
        values = scores.state_dict()["layer"]
        chosen = select(values.abs() if by == "magnitude" else values, int(mask.sum()))
        assert torch.equal(chosen, mask)
    ranks = values.abs() if by == "magnitude" else values
    for more in range(1, 5):
        assert ranks[~mask & (uses == more)].min() >= ranks[~mask & (uses == more - 1)].max()
    assert bool((values < 0).any()) is (by == "magnitude")


def classification(entry: Entry, name: str, seed: int) -> ff.Task:
    return entry.task(name, seed=seed)


def regression(entry: Entry, name: str, seed: int) -> ff.Task:
    return ff.Task(name, (), (entry.inputs(24, seed), torch.randn(24, 2)), loss="mse", outputs=2)


def wide(entry: Entry, name: str, seed: int) -> ff.Task:
    inputs, labels = entry.task(name, seed=seed).train
    return ff.Task(name, ("x", "y", "z"), (inputs, labels), outputs=7)


def with_a_function_as_loss(entry: Entry, name: str, seed: int) -> ff.Task:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs - labels).abs().mean()

    return ff.Task(name, (), (entry.inputs(24, seed), torch.randn(24, 2)), loss=loss, outputs=2)


MLP = ZOO["mlp with dropout"]


class WithATable(nn.Module):
    """A frozen layer, a buffer that no task changes, and one that is no number at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 12)
        self.frozen = nn.Linear(12, 8).requires_grad_(False)
        self.register_buffer("shift", torch.linspace(0, 1, 6))
        self.register_buffer("order", torch.randperm(8, generator=torch.Generator().manual_seed(1)))

    def forward(self, rows: Tensor) -> Tensor:
        return self.frozen(torch.tanh(self.layer(rows + self.shift)))[:, self.order]


OPTIONS: dict[str, tuple[Entry, Callable[[Entry, str, int], ff.Task], dict[str, Any]]] = {
    "own tensors from the task before": (ZOO["cnn with batch norm"], classification, {"own_from": "previous"}),
    "sparse answers": (MLP, classification, {"sparse_answers": True, "capacity": 0.05}),
    "float64": (Entry(lambda: MLP.kind().double(), MLP.draw), classification, {}),
    "bfloat16": (Entry(lambda: MLP.kind().bfloat16(), MLP.draw), classification, {}),
    "outputs that are no classes": (MLP, regression, {}),
    "a head wider than the classes": (MLP, wide, {}),
    "a loss of its own": (MLP, with_a_function_as_loss, {}),
    "a head without bias": (MLP, classification, {"heads": ff.linear_head_without_bias}),
    "fixed tensors and tables": (Entry(WithATable, MLP.draw), classification, {}),
    "biases shared too": (MLP, classification, {"masked": ["*"]}),
    "one layer shared": (MLP, classification, {"masked": ["0.weight"]}),
    "all weights used": (MLP, classification, {"capacity": 1.0}),
}


@pytest.mark.parametrize(("entry", "make", "options"), OPTIONS.values(), ids=OPTIONS.keys())
def test_every_kind_of_learner_comes_back(
    entry: Entry, make: Callable[[Entry, str, int], ff.Task], options: dict[str, Any], tmp_path: Path
) -> None:
    made = ff.WSN(entry.build(), **({"capacity": 0.3, "recipe": QUICK} | options))
    for position, name in enumerate("abc"):
        made.learn(make(entry, name, position))
    batch, path = entry.inputs(5, seed=99), tmp_path / "file"
    for resumable in (False, True):
        ff.save(made, path, resumable=resumable)
        assert ff.verify(path, other(entry)).ok
        loaded = ff.load(path, other(entry))
        assert_same_answers(made, loaded, batch)
        assert str(loaded.layout()).split() != []
        assert (loaded.capacity, loaded.recipe, loaded.seed) == (made.capacity, made.recipe, made.seed)
        assert loaded.layout().of("masked") == made.layout().of("masked")
        assert loaded.layout().of("fixed") == made.layout().of("fixed")
    made.learn(make(entry, "d", 3))
    loaded.learn(make(entry, "d", 3))
    if make is classification:  # the others draw their labels anew
        assert_same(everything(loaded), everything(made))


NAMES = ["a/b", "a", "b", "../..", "ü 任务 🎟", "line\nbreak", "\ud800", "__metadata__", "x" * 5000, "manifest", " "]


@pytest.mark.parametrize("method", ["wsn", "single_task"])
def test_a_task_may_have_any_name(method: str, tmp_path: Path) -> None:
    made = ff.METHODS[method](MLP.build(), **({"recipe": QUICK} | SETTINGS.get(method, {})))
    for position, name in enumerate(NAMES):
        made.learn(MLP.task(name, seed=position))
    ff.save(made, tmp_path / "file")
    assert ff.verify(tmp_path / "file", MLP.build()).ok
    assert_same_answers(made, ff.load(tmp_path / "file", MLP.build()), MLP.inputs(5))
    assert [entry["name"] for entry in ff.inspect(tmp_path / "file").tasks] == NAMES


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("method", TIL)
def test_a_learner_of_nothing_comes_back_and_learns(method: str, resumable: bool, tmp_path: Path) -> None:
    made = ff.METHODS[method](backbone(), **({"recipe": QUICK, "seed": 7} | SETTINGS.get(method, {})))
    ff.save(made, tmp_path / "file", resumable=resumable)
    loaded = ff.load(tmp_path / "file", backbone())
    assert dict(loaded.tasks) == {}
    assert ff.inspect(tmp_path / "file").tasks == ()
    for one in (made, loaded):
        one.learn(task("a"))
        if method == "multitask":
            one.finish()
    assert all(found.ok for found in loaded.verify())
    if resumable:
        assert_same(everything(loaded), everything(made))


def test_sixty_tasks_come_back(tmp_path: Path) -> None:
    made = ff.WSN(MLP.build(), capacity=0.1, recipe=QUICK)
    for number in range(60):
        made.learn(MLP.task(f"task {number}", count=8, seed=number))
    ff.save(made, tmp_path / "file")
    assert_same_answers(made, ff.load(tmp_path / "file", other(MLP)), MLP.inputs(5))
    assert ff.verify(tmp_path / "file", other(MLP)).ok
    seen = ff.inspect(tmp_path / "file").tasks
    assert len(seen) == 60
    assert all(entry["new"] + entry["reused"] == entry["weights"] for entry in seen)


def cosine(features: int, task: ff.Task) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(features), nn.Linear(features, task.width))


class Bounded(nn.Linear):
    """The tensors of a linear layer, but another answer."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(torch.tanh(rows))


def test_a_head_of_ones_own_is_passed_in_again(tmp_path: Path) -> None:
    made = taught("wsn", MLP, heads=cosine)
    ff.save(made, tmp_path / "file")
    with pytest.raises(ff.ArchiveError, match=r"cosine.*load\(path, heads="):
        ff.load(tmp_path / "file", MLP.build())
    with pytest.raises(ff.ArchiveError, match="cosine"):
        ff.verify(tmp_path / "file", MLP.build())
    assert ff.verify(tmp_path / "file", MLP.build(), heads=cosine).ok
    assert_same_answers(made, ff.load(tmp_path / "file", MLP.build(), heads=cosine), MLP.inputs(5))
    with pytest.raises(ff.ArchiveError, match="not the module that was stored"):
        ff.load(tmp_path / "file", MLP.build(), heads=ff.linear_head)


def test_a_head_of_ones_own_is_never_taken_for_one_of_ours(tmp_path: Path) -> None:
    def linear(features: int, task: ff.Task) -> nn.Module:
        return Bounded(features, task.width)

    linear.__qualname__ = "linear"  # as of a function in a notebook
    ff.save(taught("wsn", MLP, heads=linear), tmp_path / "file")
    with pytest.raises(ff.ArchiveError, match=r"linear.*heads="):
        ff.load(tmp_path / "file", MLP.build())


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.5)


FUNCTIONS = {
    "an optimizer": ff.Recipe(epochs=1, optimizer=partial(torch.optim.SGD, lr=0.1)),
    "an optimizer with the name of ours": ff.Recipe(epochs=1, optimizer=adam),
    "a collate function": ff.Recipe(epochs=1, loader={"collate_fn": torch.utils.data.default_collate}),
    "both": ff.Recipe(epochs=1, optimizer=adam, loader={"collate_fn": torch.utils.data.default_collate}),
}


@pytest.mark.parametrize("recipe", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_a_recipe_with_functions_in_it_answers_and_asks_for_them_to_learn(recipe: ff.Recipe, tmp_path: Path) -> None:
    made = taught("wsn", MLP, recipe=recipe)
    ff.save(made, tmp_path / "file", resumable=True)
    loaded = ff.load(tmp_path / "file", MLP.build())
    assert_same_answers(made, loaded, MLP.inputs(5))
    before = everything(loaded)
    with pytest.raises(ff.InputError, match=r"load\(path, recipe="):
        loaded.learn(MLP.task("c", seed=2))
    assert_same(everything(loaded), before)
    complete = ff.load(tmp_path / "file", MLP.build(), recipe=recipe)
    for one in (made, complete):
        one.learn(MLP.task("c", seed=2))
    assert_same(everything(complete), everything(made))


def test_what_is_fixed_is_known_from_the_archive_not_from_the_backbone_passed_in(tmp_path: Path) -> None:
    """A module often comes frozen, to answer only, or thawed, fresh from its constructor."""
    entry = Entry(WithATable, MLP.draw)
    for method in ("wsn", "finetune"):
        made = taught(method, entry)
        ff.save(made, tmp_path / "file", resumable=True)
        given = [entry.build().requires_grad_(False), entry.build().requires_grad_(True)]
        loaded = [ff.load(tmp_path / "file", module) for module in given]
        assert not any(value.requires_grad for value in given[0].parameters())
        assert all(value.requires_grad for value in given[1].parameters())
        for one in (made, *loaded):
            one.learn(entry.task("c", seed=2))
        for one in loaded:
            assert_same(everything(one), everything(made))


def test_multitask_says_that_it_cannot_go_on_without_its_data(tmp_path: Path) -> None:
    made = taught("multitask", MLP)
    ff.save(made, tmp_path / "file", resumable=True)
    loaded = ff.load(tmp_path / "file", MLP.build())
    with pytest.raises(ff.TaskError, match="data"):
        loaded.learn(MLP.task("c", seed=2))
    assert_same_answers(made, loaded, MLP.inputs(5))


def test_two_archives_of_one_learner_hold_the_same(tmp_path: Path) -> None:
    made = taught("wsn", MLP)
    one, two = (load_tensors(archive.pack(made)) for _ in range(2))
    assert {name: raw(value) for name, value in one.items()} == {name: raw(value) for name, value in two.items()}


def test_saving_changes_nothing_and_takes_nothing_from_the_callers_chance(tmp_path: Path) -> None:
    for method in TIL:
        made = taught(method, MLP)
        before, chance = everything(made), torch.get_rng_state()
        ff.save(made, tmp_path / "file", resumable=True)
        ff.save(made, tmp_path / "file", dtype="float16")
        ff.load(tmp_path / "file", MLP.build())
        ff.verify(tmp_path / "file", MLP.build())
        assert_same(everything(made), before)
        assert torch.equal(torch.get_rng_state(), chance)


def test_a_backbone_that_was_built_by_name_need_not_be_passed_in(tmp_path: Path) -> None:
    made = named_learner("ab")
    ff.save(made, tmp_path / "file")
    loaded = ff.load(tmp_path / "file")
    assert_same_answers(made, loaded, pair(9)[0])
    assert ff.verify(tmp_path / "file").ok
    assert ff.inspect(tmp_path / "file").backbone.startswith("mlp")
    ff.save(loaded, tmp_path / "again")
    assert_same_answers(made, ff.load(tmp_path / "again"), pair(9)[0])


def test_an_archive_shows_what_is_in_it(tmp_path: Path) -> None:
    made = named_learner("abc")
    nbytes = ff.save(made, tmp_path / "file")
    seen = ff.inspect(str(tmp_path / "file"))
    assert (seen.method, seen.nbytes, seen.version, seen.resumable, seen.rounded) == (
        "wsn", nbytes, ff.__version__, False, None,
    )  # fmt: skip
    assert seen.arguments["capacity"] == made.capacity
    assert seen.layers == {name: (int(used.sum()), used.numel()) for name, used in made.network.used.items()}
    assert [entry["name"] for entry in seen.tasks] == ["a", "b", "c"]
    assert seen.tasks[0]["classes"] == ["a 0", "a 1", "a 2"]
    for entry, ticket in zip(seen.tasks, made.network.tickets.values(), strict=True):
        assert entry["weights"] == sum(int(ticket.mask(name).sum()) for name in ticket.masks)
        assert entry["own"] == sum(value.numel() for value in ticket.own.values())
        assert entry["head"] == 8 * 3 + 3
    assert sum(entry["new"] for entry in seen.tasks) == sum(used for used, _ in seen.layers.values())
    assert seen.tasks[0]["reused"] == 0
    assert sum(seen.sections.values()) < nbytes


@pytest.mark.parametrize("codec", CODECS)
def test_one_more_task_never_codes_closed_blocks_anew(codec: str) -> None:
    made = learner(QUICK)
    earlier: dict[str, list[bytes]] = {}
    tasks_in_a_block = 1 if codec == "context" else 7
    for number in range(9):
        made.learn(task(f"task {number}", number))
        manifest, sections = opened(archive.pack(made, codec=codec))
        at, blocks = 0, {}
        for name, lengths in manifest["blocks"].items():
            blocks[name] = [sections["masks"][at + sum(lengths[:i]) :][:length] for i, length in enumerate(lengths)]
            at += sum(lengths)
        for name, before in earlier.items():
            closed = number // tasks_in_a_block
            assert blocks[name][:closed] == before[:closed]
        earlier = blocks


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_brings_the_masks_back(codec: str, tmp_path: Path) -> None:
    made = named_learner("abc")
    ff.save(made, tmp_path / "file", codec=codec)
    assert_same_answers(made, ff.load(tmp_path / "file"), pair(9)[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("method", TIL)
def test_rounded_weights_take_less_and_say_what_they_cost(method: str, dtype: Any, tmp_path: Path) -> None:
    build = BACKBONES["mlp"](inputs=FEATURES, hidden=(40, 40))
    made = ff.METHODS[method](build, **({"recipe": QUICK} | SETTINGS.get(method, {})))
    for position, name in enumerate("ab"):
        made.learn(task(name, position))
    if method == "multitask":
        made.finish()
    exact = ff.save(made, tmp_path / "exact")
    assert ff.save(made, tmp_path / "rounded", dtype=dtype) < exact
    assert ff.inspect(tmp_path / "exact").rounded is None
    seen, verified = ff.inspect(tmp_path / "rounded"), ff.verify(tmp_path / "rounded")
    assert verified.ok
    assert verified.rounded == seen.rounded
    assert seen.rounded["dtype"] == dtype
    loaded = ff.load(tmp_path / "rounded")
    for name, known in made.tasks.items():
        probe = certificate._probe(known.inputs, known.certificate.ranges, known.certificate.probe)
        before, after = made.predict(probe, task=name), loaded.predict(probe, task=name)
        measured = float((before - after).abs().max() / before.abs().max())
        assert 0 < measured < 0.1
        assert seen.rounded["difference"][name] == pytest.approx(measured, rel=1e-5)
        assert after.dtype == before.dtype


def test_rounding_leaves_counters_and_tables_whole(tmp_path: Path) -> None:
    entry = Entry(WithATable, MLP.draw)
    made = taught("finetune", entry)
    made.network._module.order += 100_000  # more than float16 can say
    made.network._module.register_forward_pre_hook(lambda module, _: module.order.remainder_(100_000))
    ff.save(made, tmp_path / "file", dtype="float16")
    assert torch.equal(ff.load(tmp_path / "file", entry.build()).memory().shared["order"], made.network.module.order)


def test_rounded_and_resumable_is_refused(tmp_path: Path) -> None:
    made = named_learner("a")
    with pytest.raises(ff.InputError, match="either dtype or resumable"):
        ff.save(made, tmp_path / "file", dtype="float16", resumable=True)
    with pytest.raises(ff.InputError, match="int8"):
        ff.save(made, tmp_path / "file", dtype="int8")  # type: ignore[arg-type]
    with pytest.raises(ff.InputError, match="zip"):
        ff.save(made, tmp_path / "file", codec="zip")
    assert not any(tmp_path.iterdir())


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = named_learner("ab")
    ff.save(made, tmp_path / "file", resumable=True)
    path = tmp_path / "checkpoint"
    learner(QUICK).learn(task("a"), checkpoint=path)
    resumed = learner(QUICK)

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("something was unpickled")

    for module, names in ((pickle, ("load", "loads", "Unpickler", "_Unpickler")), (torch, ("load",)), (np, ("load",))):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    assert_same_answers(made, ff.load(tmp_path / "file"), pair(9)[0])
    assert ff.verify(tmp_path / "file").ok
    assert len(ff.inspect(tmp_path / "file").tasks) == 2
    resumed.learn(task("a"), checkpoint=path)
    assert list(resumed.tasks) == ["a"]


@pytest.mark.parametrize("moment", ["note", "certify"])
def test_an_archive_saved_while_another_thread_keeps_a_task_is_whole(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path = learner(QUICK), tmp_path / "file"
    made.learn(task("a"))
    ff.save(made, path)
    original, saving = getattr(Engine, moment), threading.Thread(target=ff.save, args=(made, path))

    def interrupted(*args: Any) -> None:
        saving.start()
        saving.join(0.5)
        original(*args)

    monkeypatch.setattr(Engine, moment, interrupted)
    made.learn(task("b", 1))
    saving.join()
    assert ff.verify(path, backbone()).ok
    assert list(ff.load(path, backbone()).tasks) in (["a"], ["a", "b"])


@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("method", ["wsn", "finetune", "single_task", "ewc", "packnet", "supsup", "piggyback"])
def test_an_archive_holds_the_learner_of_one_moment(
    method: str, dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task is kept, and one removed, right after everything was read."""
    made, read, path = taught(method, MLP), ff.METHODS[method].to_state, tmp_path / "file"

    def overtaken(*args: Any, **options: Any) -> Any:
        stored = read(*args, **options)
        made.learn(MLP.task("c", seed=2))
        made.remove("a")
        return stored

    monkeypatch.setattr(ff.METHODS[method], "to_state", overtaken)
    ff.save(made, path, dtype=dtype)
    assert list(made.tasks) == ["b", "c"]
    assert ff.verify(path, MLP.build()).ok
    assert list(ff.load(path, MLP.build()).tasks) == ["a", "b"]


@cache
def named_learner(names: str, method: str = "wsn") -> Any:
    """A learner whose archive needs no backbone."""
    build = BACKBONES["mlp"](inputs=FEATURES, hidden=(12, 8), bias=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = ff.METHODS[method](build, **({"recipe": QUICK, "seed": 7} | SETTINGS.get(method, {})))
    for position, name in enumerate(names):
        made.learn(task(name, position))
    return made


@cache
def original(method: str, resumable: bool) -> bytes:
    return archive.pack(named_learner("abc", method), resumable=resumable)


ORIGINALS = [
    ("wsn", False),
    ("wsn", True),
    ("finetune", True),
    ("single_task", False),
    ("ewc", False),
    ("gpm", False),
]


def opened(content: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Manifest and sections of an archive."""
    sections = {name: value.numpy().tobytes() for name, value in load_tensors(content).items()}
    return unflatten(json.loads(zlib.decompress(sections.pop("manifest"))), {}), sections


def closed(manifest: Any, sections: Mapping[str, bytes], **header: str) -> bytes:
    """An archive whose digests are right, whatever is in it; a manifest of bytes is taken as it is."""
    if not isinstance(manifest, bytes):
        if isinstance(manifest, dict) and "digests" in manifest:
            manifest["digests"] = {name: archive._digest(content) for name, content in sections.items()}
        manifest = zlib.compress(json.dumps(flatten(manifest, {})).encode())
    whole = {**sections, "manifest": manifest}
    tensors = {name: torch.from_numpy(np.frombuffer(content, np.uint8).copy()) for name, content in whole.items()}
    known = {"kind": archive.KIND, "format": str(archive.FORMAT), "digest": archive._digest_of_all(whole)}
    return bytes(save_tensors(tensors, known | header))


def test_what_is_closed_again_is_the_same_archive(tmp_path: Path) -> None:
    """Else the tests of what is made up could not fail."""
    for method, resumable in ORIGINALS:
        path = tmp_path / method
        path.write_bytes(closed(*opened(original(method, resumable))))
        assert ff.verify(path).ok
        assert_same_answers(named_learner("abc", method), ff.load(path), pair(9)[0])


DOORS: dict[str, Callable[[Path], Any]] = {"load": ff.load, "inspect": ff.inspect, "verify": ff.verify}


def outcome(path: Path, door: str) -> Any:
    """What comes out of an archive, or the error; any error but ours goes on."""
    try:
        return DOORS[door](path)
    except ff.ArchiveError as error:
        refused = error
    assert str(path) in str(refused)
    assert str(refused).endswith(".")
    assert len(str(refused)) > len(str(path)) + 20
    return refused


def holds_the_same(one: bytes, other: bytes) -> bool:
    """Whether two files hold the same: blanks in a header mean nothing."""
    return one == other or (
        one[8:].split(b'"}', 1)[0].strip() == other[8:].split(b'"}', 1)[0].strip()
        and outcome_of_sections(one) == outcome_of_sections(other)
    )


def outcome_of_sections(content: bytes) -> Any:
    try:
        return {name: raw(value) for name, value in load_tensors(content).items()}
    except Exception as error:  # whatever a foreign reader says of it
        return repr(error)


@pytest.fixture
def bounded() -> Iterator[None]:
    """Fails a test that takes much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert taken < 1 << 20, f"it took {taken >> 10} MB"


def damage_all(numbers: range, path: Path) -> None:
    for number in numbers:
        content = original(*ORIGINALS[number % len(ORIGINALS)])
        changed = damaged(content, random.Random(f"damage {number}"))
        if holds_the_same(changed, content):
            continue
        path.write_bytes(changed)
        for door in DOORS:
            assert isinstance(outcome(path, door), ff.ArchiveError), (number, door)


def test_a_damaged_archive_is_refused_in_a_sentence(tmp_path: Path, bounded: None) -> None:
    damage_all(range(MUTATIONS), tmp_path / "file")


@pytest.mark.slow
def test_an_archive_damaged_in_thousands_of_ways_is_refused_in_a_sentence(tmp_path: Path, bounded: None) -> None:
    damage_all(range(MUTATIONS, ALL_MUTATIONS), tmp_path / "file")


def bits_of_the_header() -> range:
    return range(8 * (8 + int.from_bytes(original("wsn", False)[:8], "little")))


def flip_each(bits: Iterable[int], path: Path) -> None:
    content = original("wsn", False)
    for bit in bits:
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert isinstance(outcome(path, "load"), ff.ArchiveError), bit


def test_a_bit_of_the_header_counts_wherever_it_is(tmp_path: Path) -> None:
    flip_each(random.Random("bits").sample(bits_of_the_header(), BITS), tmp_path / "file")


@pytest.mark.slow
def test_every_bit_of_the_header_counts(tmp_path: Path) -> None:
    flip_each(bits_of_the_header(), tmp_path / "file")


ODD = [
    None, True, False, 0, 1, -1, 3, 2**31, 2**40, 2**63, 2**100, 0.5, 1e308, float("nan"), float("inf"), "", "x",
    "load", "float16", "int8", "complex64", "Tensor", "wsn", "huffman", [], [-1], [2**40], [0], ["x"], {}, {"x": 1}, (),
    (1, 2), ("float32", [2**40]), ("float64", [3]), ((2**33,), "float32"), [[[[[]]]]], "[" * 100_000, '{"dict": []}',
]  # fmt: skip


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def put(tree: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """The tree with something else at one place; what is `GONE` there is left out."""
    if not path:
        return change(tree)
    if isinstance(tree, dict):
        return {k: new for k, v in tree.items() if (new := put(v, path[1:], change) if k == path[0] else v) is not GONE}
    kind = list if isinstance(tree, list) else tuple
    changed = (put(value, path[1:], change) if key == path[0] else value for key, value in enumerate(tree))
    return kind(value for value in changed if value is not GONE)


GONE = object()


def made_up(content: bytes, chance: random.Random) -> bytes:
    """One thing in an archive is not as it was, and all digests are right."""
    manifest, sections = opened(content)
    match chance.randrange(6):
        case 0:
            name = chance.choice([name for name in sections if sections[name]])
            sections[name] = damaged(sections[name].ljust(16, b"\0"), chance)
        case 1:
            one, other = chance.sample(sorted(sections), 2)
            sections[one], sections[other] = sections[other], sections[one]
        case 2:
            del sections[chance.choice(sorted(sections))]
        case 3:
            manifest = put(manifest, chance.choice(list(places(manifest))), lambda _: GONE)
        case _:
            manifest = put(manifest, chance.choice(list(places(manifest))), lambda _: chance.choice(ODD))
    if manifest is GONE:
        manifest = None
    return closed(manifest, sections)


def make_up_all(numbers: range, path: Path) -> None:
    batch = pair(9)[0]
    for number in numbers:
        method, resumable = ORIGINALS[number % len(ORIGINALS)]
        right = named_learner("abc", method)
        path.write_bytes(made_up(original(method, resumable), random.Random(f"made up {number}")))
        loaded, _, verified = (outcome(path, door) for door in DOORS)
        if isinstance(loaded, ff.ArchiveError) or isinstance(verified, ff.ArchiveError) or not verified.ok:
            continue
        for name in loaded.tasks:  # nothing in it, or in its certificates, says that it is another learner
            assert name in right.tasks, number
            assert same_bits(loaded.predict(batch, task=name), right.predict(batch, task=name)), number


def test_a_made_up_archive_is_refused_or_found_out(tmp_path: Path, bounded: None) -> None:
    make_up_all(range(MUTATIONS), tmp_path / "file")


@pytest.mark.slow
def test_an_archive_made_up_in_thousands_of_ways_is_refused_or_found_out(tmp_path: Path, bounded: None) -> None:
    make_up_all(range(MUTATIONS, ALL_MUTATIONS), tmp_path / "file")


def at(*path: Any, value: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    return lambda manifest, sections: (put(manifest, path, lambda _: value), sections)


def larger(shape: list[int]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A layer that claims to be huge, everywhere."""

    def change(manifest: Any, sections: Any) -> tuple[Any, Any]:
        for place in ("tensors", "shared"):
            manifest = put(manifest, (place, "1.weight"), lambda _: ("float32", shape))
        return manifest, sections

    return change


def larger_backbone(width: int) -> Callable[[Any, Any], tuple[Any, Any]]:
    return at("backbone", "arguments", "hidden", value=(width, width))


def huge_throughout(manifest: Any, sections: Any) -> tuple[Any, Any]:
    """A network that would be huge, in all that is said of it."""
    manifest, sections = larger_backbone(2**20)(manifest, sections)
    forms = {"1.weight": [2**20, 6], "1.bias": [2**20], "3.weight": [2**20, 2**20], "3.bias": [2**20]}
    for name, shape in forms.items():
        for place in ("tensors", "shared") if "weight" in name else ("tensors",):
            manifest = put(manifest, (place, name), lambda _, shape=shape: ("float32", shape))
    return put(manifest, ("arguments", "capacity"), lambda _: 1e-12), sections


def unbalanced(manifest: Any, sections: Any) -> tuple[Any, Any]:
    manifest["blocks"]["1.weight"][0] += 1
    return manifest, sections


def shifted(manifest: Any, sections: Any) -> tuple[Any, Any]:
    manifest["blocks"]["1.weight"][0] += 1
    manifest["blocks"]["1.weight"][1] -= 1
    return manifest, sections


def bomb(piece: bytes, times: int = 1) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A manifest that is far larger than it looks; made in pieces, so that it is never whole here."""

    def change(_: Any, sections: Any) -> tuple[Any, Any]:
        packer = zlib.compressobj(9)
        return b"".join([*(packer.compress(piece) for _ in range(times)), packer.flush()]), sections

    return change


def without(key: str) -> Callable[[Any, Any], tuple[Any, Any]]:
    return lambda manifest, sections: (put(manifest, (key,), lambda _: GONE), sections)


def wide_head(manifest: Any, sections: Any) -> tuple[Any, Any]:
    return put(manifest, ("tasks", 0, "features"), lambda _: 2**34), sections


def other_own_tensors(manifest: Any, sections: Any) -> tuple[Any, Any]:
    entry = manifest["shelves"]["own"]["tensors"]
    manifest["shelves"]["own"]["tensors"] = [("uint8", [8 * kind[1][0] // 2]) for kind in entry]
    return manifest, sections


MADE_UP = {
    "an unknown method": at("method", value="magic"),
    "an unknown codec": at("codec", value="magic"),
    "an unknown type": at("shelves", "weights", "tensors", 0, value=("float31", [3])),
    "a function in place of a type": at("shelves", "weights", "tensors", 0, value=("load", [3])),
    "a negative shape": larger([-12, -6]),
    "a shape that is no number": larger(["12", 6]),  # type: ignore[list-item]
    "a huge shape": larger([2**20, 2**20]),
    "a shape beyond all memory": larger([2**62, 2**62]),
    "a huge shape in one place only": at("shared", "1.weight", value=("float32", [2**20, 2**20])),
    "a huge backbone": larger_backbone(2**20),
    # what would be granted, unlike the above, and so must be refused before it is asked for
    "a backbone of gigabytes": larger_backbone(20_000),
    "a shape of gigabytes": larger([2**13, 2**13]),
    "a network that is huge throughout": huge_throughout,
    "a tensor beyond the end": at("shelves", "heads", "tensors", 0, value=("float32", [2**40])),
    "a tensor of negative size": at("shelves", "heads", "tensors", 0, value=("float32", [-1])),
    "blocks that do not add up": unbalanced,
    "blocks that begin elsewhere": shifted,
    "a block of negative length": at("blocks", "1.weight", 0, value=-1),
    "too few blocks": at("blocks", "1.weight", value=[]),
    "a bomb of blanks": bomb(b" " * (1 << 20), 1 << 8),
    "a bomb of numbers": bomb(b"[" + b"0," * (1 << 19), 1 << 8),
    "deep brackets": bomb(b"[" * (1 << 20)),
    "deep dicts": bomb(b'{"list":[' * (1 << 17)),
    "no manifest but a number": bomb(b"7"),
    "no JSON": bomb(b"{'a': 1}"),
    "bytes after the manifest": lambda manifest, sections: (
        zlib.compress(json.dumps(flatten(manifest, {})).encode()) + b"more", sections,
    ),
    "half a manifest": lambda manifest, sections: (
        zlib.compress(json.dumps(flatten(manifest, {})).encode())[:-9], sections,
    ),
    "a head that would be enormous": wide_head,
    "own tensors of another type": other_own_tensors,
    "a recipe that cannot be": at("arguments", "recipe", "epochs", value=-3),
    "a capacity that cannot be": at("arguments", "capacity", value=7.0),
    "an argument that is not there": at("arguments", value={"heads": "linear", "recipe": {}, "magic": 1}),
    "heads that are not there": at("arguments", "heads", value="magic"),
    "a backbone that is not there": at("backbone", "name", value="magic"),
    "a backbone that cannot be": at("backbone", "arguments", value={"inputs": "many"}),
    **{f"no {key}": without(key) for key in ("method", "arguments", "tensors", "shared", "codec", "blocks", "tasks",
                                             "resumable", "shelves", "digests", "backbone")},
}  # fmt: skip


@pytest.mark.parametrize("change", MADE_UP.values(), ids=MADE_UP.keys())
def test_what_cannot_be_is_refused(
    change: Callable[[Any, Any], tuple[Any, Any]], tmp_path: Path, bounded: None
) -> None:
    path = tmp_path / "file"
    path.write_bytes(closed(*change(*opened(original("wsn", False)))))
    started = time.process_time()
    for door in ("load", "verify"):
        assert isinstance(outcome(path, door), ff.ArchiveError)
    outcome(path, "inspect")
    assert time.process_time() - started < 10


OF_A_CERTIFICATE = [
    ("inputs",), ("certificate", "probe"), ("certificate", "ranges"), ("certificate", "fingerprint", "threads"),
]  # fmt: skip
ODD_IN_IT = [*ODD, ((2**28,), "float32"), (0, 2**70)]
of_a_certificate = pytest.mark.parametrize(
    "place", range(len(OF_A_CERTIFICATE)), ids=lambda at: OF_A_CERTIFICATE[at][-1]
)


def put_into_certificates(path: tuple[str, ...], values: list[Any], file: Path) -> None:
    threads = torch.get_num_threads()
    for value in values:
        manifest, sections = opened(original("wsn", False))
        for number in range(3):
            manifest = put(manifest, ("tasks", number, *path), lambda _, value=value: value)
        file.write_bytes(closed(manifest, sections))
        found = outcome(file, "verify")
        assert isinstance(found, ff.ArchiveError | ff.Verification)
        assert torch.get_num_threads() == threads


@of_a_certificate
def test_a_made_up_certificate_harms_nobody(place: int, tmp_path: Path, bounded: None) -> None:
    """Every odd value once, each in one of the places."""
    put_into_certificates(OF_A_CERTIFICATE[place], ODD_IN_IT[place :: len(OF_A_CERTIFICATE)], tmp_path / "file")


@pytest.mark.slow
@of_a_certificate
def test_no_odd_value_anywhere_in_a_certificate_harms_anybody(place: int, tmp_path: Path, bounded: None) -> None:
    put_into_certificates(OF_A_CERTIFICATE[place], ODD_IN_IT, tmp_path / "file")


@pytest.mark.parametrize("size", [2**20, 2**31, 2**63, 2**64 - 1])
def test_a_header_that_claims_to_be_huge_is_refused(size: int, tmp_path: Path, bounded: None) -> None:
    (tmp_path / "file").write_bytes(size.to_bytes(8, "little") + original("wsn", False)[8:])
    for door in DOORS:
        assert isinstance(outcome(tmp_path / "file", door), ff.ArchiveError)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.int64])
def test_sections_are_bytes_and_nothing_else(dtype: torch.dtype, tmp_path: Path) -> None:
    content = original("wsn", False)
    tensors = {name: value.to(dtype) for name, value in load_tensors(content).items()}
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    (tmp_path / "file").write_bytes(save_tensors(tensors, header))
    for door in DOORS:
        assert isinstance(outcome(tmp_path / "file", door), ff.ArchiveError)


def test_sections_of_two_archives_do_not_mix(tmp_path: Path) -> None:
    one, two = opened(original("wsn", False)), opened(archive.pack(named_learner("ab")))
    for name in one[1]:
        mixed = {**one[1], name: two[1][name]}
        if mixed == one[1] or name == "training":  # what learning goes on from is no matter of any answer
            continue
        (tmp_path / "file").write_bytes(closed(one[0] | {"digests": 0}, mixed))
        found = outcome(tmp_path / "file", "verify")
        assert isinstance(found, ff.ArchiveError) or not found.ok, name


def test_where_next_to_nothing_is_used_of_a_network_its_archive_still_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file that claims much is not believed; so one that has to claim much is made larger."""
    monkeypatch.setattr(manifests, "LIMITS", {**manifests.LIMITS, "weights behind masks": (0, 1)})
    made = ff.WSN(BACKBONES["mlp"](inputs=FEATURES), capacity=0.001, recipe=QUICK)
    for position, name in enumerate("abc"):
        made.learn(task(name, position))
    ff.save(made, tmp_path / "file")
    assert ff.inspect(tmp_path / "file").sections["padding"] > 0
    assert_same_answers(made, ff.load(tmp_path / "file"), pair(9)[0])


def test_a_newer_format_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(closed(*opened(original("wsn", False)), format=str(archive.FORMAT + 1)))
    for door in DOORS:
        assert "Update" in str(outcome(tmp_path / "file", door))


@pytest.mark.parametrize("version", ["0", "-1", "1.0", " 1", "2.0", "one", "", "9" * 10_000])
def test_a_format_that_never_was_is_refused(version: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(closed(*opened(original("wsn", False)), format=version))
    for door in DOORS:
        assert isinstance(outcome(tmp_path / "file", door), ff.ArchiveError)


OTHER_BACKBONES: dict[str, tuple[Callable[[], Any], str]] = {
    "other names": (
        lambda: nn.Sequential(nn.Identity(), *MLP.build()),
        "0.weight is not there in this backbone and float32 12×6 in the archive",
    ),
    "other shapes": (
        lambda: nn.Sequential(nn.Linear(6, 13), nn.ReLU(), nn.Dropout(0.2), nn.Linear(13, 8), nn.Tanh()),
        "0.weight is float32 13×6 in this backbone and float32 12×6 in the archive",
    ),
    "another type": (lambda: MLP.build().double(), "float64 12×6 in this backbone and float32 12×6 in the archive"),
    "less": (lambda: nn.Sequential(nn.Linear(6, 12)), "3.weight is not there in this backbone"),
    "more": (lambda: nn.Sequential(*MLP.build(), nn.Linear(8, 8)), "5.weight.*not there in the archive"),
    "no module": (lambda: 7, "an nn.Module; got int"),
}


@pytest.mark.parametrize(("make", "words"), OTHER_BACKBONES.values(), ids=OTHER_BACKBONES.keys())
@pytest.mark.parametrize("method", TIL)
def test_another_backbone_is_refused_by_its_differences(
    method: str, make: Callable[[], Any], words: str, tmp_path: Path
) -> None:
    ff.save(taught(method, MLP), tmp_path / "file")
    for door in (ff.load, ff.verify):
        with pytest.raises(ff.ArchiveError, match=words):
            door(tmp_path / "file", make())


def test_a_backbone_that_cannot_be_built_is_asked_for(tmp_path: Path) -> None:
    ff.save(taught("wsn", MLP), tmp_path / "file")
    with pytest.raises(ff.ArchiveError, match=r"a Sequential, which an archive cannot build.*load\(path, backbone\)"):
        ff.load(tmp_path / "file")
    assert "Sequential" in ff.inspect(tmp_path / "file").backbone


def test_an_unknown_task_of_a_loaded_learner_is_a_task_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(original("wsn", False))
    loaded = ff.load(tmp_path / "file")
    with pytest.raises(ff.TaskError, match=r"no task 'x' is learned; learned tasks are \['a', 'b', 'c'\]"):
        loaded.predict(pair(0)[0], task="x")
    with pytest.raises(ff.TaskError, match="learned already"):
        loaded.learn(task("a"))


def foreign(folder: Path) -> dict[str, Path]:
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_bytes(b"not an archive at all, but long enough to look like something")
    (folder / "tensors").write_bytes(save_tensors({"weight": torch.ones(3)}))
    (folder / "other kind").write_bytes(save_tensors({"weight": torch.ones(3)}, {"kind": "something else"}))
    (folder / "folder").mkdir()
    learner(QUICK).learn(task("a"), checkpoint=folder / "checkpoint")
    return {path.name: path for path in folder.iterdir()} | {"missing": folder / "missing"}


@pytest.mark.parametrize("kind", ["empty", "text", "tensors", "other kind", "folder", "checkpoint", "missing"])
def test_what_is_no_archive_is_refused(kind: str, tmp_path: Path) -> None:
    path = foreign(tmp_path)[kind]
    for door in DOORS:
        assert isinstance(outcome(path, door), ff.ArchiveError)


def test_a_learner_of_another_class_is_refused(tmp_path: Path) -> None:
    class Other(ff.WSN):
        pass

    for made in (Other(backbone(), capacity=0.3), nn.Linear(2, 2), None):
        with pytest.raises(ff.InputError, match="cannot be stored: an archive finds its method by name"):
            ff.save(made, tmp_path / "file")
    assert not any(tmp_path.iterdir())


def test_where_nothing_can_be_written_what_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    ff.save(named_learner("ab"), path)
    before = path.read_bytes()

    def full(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(ff.FileError, match=r"No space left.*untouched"):
            ff.save(named_learner("abc"), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_locked_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(ff.FileError, match="Permission denied"):
            ff.save(named_learner("ab"), tmp_path / "file")
    finally:
        tmp_path.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("path", ["folder", "file/below", "", "/"])
def test_a_path_that_is_no_file_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ff.FileError, match="cannot write"):
        ff.save(named_learner("ab"), path)
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["file", "folder"]


def killed(kills: int, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, __file__, folder, str(kills)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["killed"] == kills
    assert report["wrong"] == []
    assert len(report["found"]) == 2, "both learners are met, or the moments were not random"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_killed_while_it_saves_over_an_archive_the_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    killed(KILLS, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_killed_fifty_times_while_it_saves_the_file_is_always_whole(tmp_path: Path) -> None:
    killed(ALL_KILLS, tmp_path)


def main(folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    print("seed of the moments:", seed)
    path, learners = folder / "file", [named_learner("ab"), named_learner("abc")]
    right = {str(list(made.tasks)): made for made in learners}
    started = time.monotonic()
    for made in learners:
        ff.save(made, path)
    duration = time.monotonic() - started
    found, wrong = set(), []
    for number in range(kills):
        child = os.fork()
        if child == 0:
            while True:
                for made in learners:
                    ff.save(made, path)
        time.sleep(chance.uniform(0, 4) * duration)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        loaded = ff.load(path)
        tasks = str(list(loaded.tasks))
        found.add(tasks)
        same = tasks in right and all(
            same_bits(loaded.predict(pair(9)[0], task=name), right[tasks].predict(pair(9)[0], task=name))
            for name in loaded.tasks
        )
        if not (same and ff.verify(path).ok and os.WIFSIGNALED(status)):
            wrong.append(number)
    ff.save(learners[0], path)
    left = [entry.name for entry in folder.iterdir() if entry != path]
    print(json.dumps({"killed": kills, "wrong": wrong + left, "found": list(found)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
