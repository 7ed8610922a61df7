"""The life of a learner: a removed task leaves nothing behind, others do not notice, and there is room for more."""

import copy
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

import forgetfree as ff
from forgetfree import archive
from forgetfree.heads import TaskHeads
from forgetfree.network import SharedNetwork
from forgetfree.scores import Scores
from forgetfree.tickets import capacity_report, new_in, used
from snapshots import assert_same, backbone, pair, snapshot, task
from test_archive import everything, opened, raw, same_bits
from zoo import TIL, ZOO

SETTINGS: dict[str, dict[str, Any]] = {
    "wsn": {"capacity": 0.1},
    "hat": {"recipe": ff.Recipe(epochs=2, batch_size=16, lr=0.05, optimizer="sgd")},
    "gpm": {"recipe": ff.Recipe(epochs=2, batch_size=16, lr=0.05, optimizer="sgd")},
    "packnet": {"capacity": 0.1},
    "supsup": {"capacity": 0.1},
}
QUICK = ff.Recipe(epochs=2, batch_size=16, lr=0.05)
TEN = [f"task number {number}" for number in range(10)]
FOURTH = TEN[3]
OTHERS = [name for name in TEN if name != FOURTH]


def taught(method: str = "wsn", names: list[str] = TEN, **options: Any) -> Any:
    """A learner of some tasks, each of which looks for its weights elsewhere: so each has some that no other uses."""
    made = ff.METHODS[method](backbone(), **({"recipe": QUICK, "seed": 7} | SETTINGS.get(method, {}) | options))
    for position, name in enumerate(names):
        if method == "wsn":
            made.scores = Scores.random(made.network.weights, position)
        made.learn(task(name, position))
    if method == "multitask":
        made.finish()
    return made


@pytest.fixture(scope="module")
def ten() -> ff.WSN:
    return taught()


@pytest.fixture
def learner(ten: ff.WSN) -> ff.WSN:
    return copy.deepcopy(ten)


def reachable(thing: Any) -> Iterator[Any]:
    """All plain values and tensors that can be reached from an object by its attributes, items, cells and defaults."""
    pending, met = [thing], {}
    while pending:
        one = pending.pop()
        if id(one) in met or isinstance(one, type) or type(one).__name__ in ("module", "builtin_function_or_method"):
            continue
        met[id(one)] = one  # kept, so that no other object gets its place
        yield one
        if isinstance(one, str | bytes | int | float | complex | Tensor | torch.dtype | torch.device):
            continue
        if isinstance(one, Mapping):
            pending += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            pending += list(one)
        if is_dataclass(one):
            pending += [getattr(one, entry.name) for entry in fields(one)]
        pending += list(getattr(one, "__dict__", {}).values())
        pending += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
        pending += [part for part in (getattr(one, "__self__", None), getattr(one, "func", None)) if part is not None]
        pending += list(getattr(one, "args", ()) or ()) if callable(one) else []


def traces(made: Any, names: list[str], tensors: dict[str, bytes], digest: str) -> list[str]:
    """What can still be found of a task in memory: its names, its digest, any run of values of its tensors."""
    found = []
    for thing in reachable(made):
        if isinstance(thing, str):
            found += [name for name in (*names, digest) if name in thing]
        elif isinstance(thing, Tensor) and thing.device.type != "meta":
            found += [name for name, content in tensors.items() if content in raw(thing)]
    return found


def belongings(made: Any, name: str) -> tuple[list[str], dict[str, bytes], str]:
    """Names, own tensors, head and digest of a task, and each value that it alone uses."""
    known = made.tasks[name]
    memory = made.memory()
    tensors = {f"own {key}": value for key, value in memory.tickets[name].own.items() if value.numel() > 1}
    tensors |= {f"head {key}": value for key, value in memory.heads[name].items()}
    tensors["answers"] = known.certificate.answers
    if isinstance(made, ff.WSN):
        for layer, mask in alone(made, name).items():
            for kind, held in (("weight", made.network.weights), ("score", made.scores.state_dict())):
                tensors |= {f"{kind} {number} of {layer}": one for number, one in enumerate(held[layer][mask])}
    return [name, *known.classes], {key: raw(value) for key, value in tensors.items()}, known.certificate.digest


def alone(made: ff.WSN, name: str) -> dict[str, Tensor]:
    """Where only this task uses a weight."""
    others = used({other: ticket for other, ticket in made.network.tickets.items() if other != name})
    return {layer: made.network.tickets[name].mask(layer) & ~mask for layer, mask in others.items()}


def test_the_other_tasks_keep_their_bits_and_their_certificates(learner: ff.WSN) -> None:
    batch = pair(99)[0]
    before = {name: learner.predict(batch, task=name) for name in OTHERS}
    known = dict(learner.tasks)
    learner.remove(FOURTH)
    assert list(learner.tasks) == OTHERS
    for name in OTHERS:
        assert same_bits(learner.predict(batch, task=name), before[name])
        assert same_bits(copy.deepcopy(learner).predict(batch, task=name), before[name])
        assert learner.tasks[name] == known[name]
    assert [(found.task, found.ok) for found in learner.verify()] == [(name, True) for name in OTHERS]
    with pytest.raises(ff.TaskError, match=f"no task '{FOURTH}' is learned"):
        learner.predict(batch, task=FOURTH)


def test_what_only_the_removed_task_used_is_free_and_holds_other_values(learner: ff.WSN) -> None:
    network, only = learner.network, alone(learner, FOURTH)
    assert all(mask.any() for mask in only.values()), "it used nothing alone: nothing was put to the test"
    still_used = {name: mask & ~only[name] for name, mask in network.used.items()}
    weights = {name: value.clone() for name, value in network.weights.items()}
    scores = {name: value.clone() for name, value in learner.scores.state_dict().items()}
    learner.remove(FOURTH)
    for name, mask in only.items():
        assert torch.equal(network.used[name], still_used[name])
        assert (network.weights[name][mask] != weights[name][mask]).all()
        assert (learner.scores.state_dict()[name][mask] != scores[name][mask]).all()
        assert torch.equal(network.weights[name][~mask], weights[name][~mask])
        assert torch.equal(learner.scores.state_dict()[name][~mask], scores[name][~mask])
        assert network.weights[name][mask].abs().max() <= network.weights[name][0].numel() ** -0.5


@pytest.mark.parametrize("method", TIL)
def test_nothing_of_a_removed_task_is_in_memory_or_in_the_next_archive(method: str) -> None:
    recipe = ff.Recipe(epochs=1, batch_size=16, carry_optimizer=True)
    made = taught(method, **({} if "recipe" in SETTINGS.get(method, {}) else {"recipe": recipe}))
    for name in TEN:
        made.predict(pair(99)[0], task=name)  # fills the cache
    names, tensors, digest = belongings(made, FOURTH)
    assert set(traces(made, names, tensors, digest)) == {*names, *tensors, digest}, "the search finds what is there"
    made.remove(FOURTH)
    assert traces(made, names, tensors, digest) == []
    for resumable in (False, True):
        manifest, sections = opened(archive.pack(made, resumable=resumable))
        content = b"".join(sections.values())
        assert not [name for name in (*names, digest) if name in repr(manifest)]
        assert not [name for name, values in tensors.items() if values in content]


def test_the_room_of_a_removed_task_is_learned_in_again(learner: ff.WSN) -> None:
    batch = pair(99)[0]
    free = learner.remaining_capacity().free
    learner.remove(FOURTH)
    more = learner.remaining_capacity().free
    assert all(more[name] > free[name] for name in free)
    before = {name: learner.predict(batch, task=name) for name in OTHERS}
    freed = {name: ~mask for name, mask in learner.network.used.items()}
    learner.learn(task(FOURTH, 77))
    learner.learn(task("another", 78))
    assert list(learner.tasks) == [*OTHERS, FOURTH, "another"]
    assert any((mask & learner.network.used[name]).any() for name, mask in freed.items())
    for name in OTHERS:
        assert same_bits(learner.predict(batch, task=name), before[name])
    assert all(found.ok for found in learner.verify())


def test_removing_twice_draws_other_values(learner: ff.WSN) -> None:
    """Values that come back could be told from those of a task that was learned in between."""
    only, drawn = alone(learner, FOURTH)["0.weight"], []
    for _ in range(2):
        learner = copy.deepcopy(learner)
        ticket = learner.network.tickets[FOURTH]
        learner.remove(FOURTH)
        drawn.append((learner.network.weights["0.weight"][only], learner.scores.state_dict()["0.weight"][only]))
        learner.network._kept = replace(learner.network._kept, tickets={**learner.network.tickets, FOURTH: ticket})
        learner.engine._learned = {**learner.engine.learned, FOURTH: learner.tasks[TEN[0]]}
    assert only.any()
    for one, other in zip(*drawn, strict=True):
        assert (one != other).all()


def test_removal_is_repeatable(ten: ff.WSN) -> None:
    one, two = copy.deepcopy(ten), copy.deepcopy(ten)
    for made in (one, two):
        made.remove(FOURTH)
        made.learn(task("more", 50))
    assert_same(snapshot(one), snapshot(two))


@pytest.mark.parametrize("method", TIL)
def test_every_method_removes_and_learns_and_stores_on(method: str, tmp_path: Path) -> None:
    names, batch = TEN[:3], pair(99)[0]
    made = taught(method, names)
    before = {name: made.predict(batch, task=name) for name in names}
    made.remove(names[1])
    assert list(made.tasks) == [names[0], names[2]]
    for name in made.tasks:
        assert same_bits(made.predict(batch, task=name), before[name])
    ff.save(made, tmp_path / "file", resumable=True)
    loaded = ff.load(tmp_path / "file", backbone())
    loaded.remove(names[0])
    ff.save(loaded, tmp_path / "file")
    last = ff.load(tmp_path / "file", backbone())
    assert list(last.tasks) == [names[2]]
    assert same_bits(last.predict(batch, task=names[2]), before[names[2]])
    assert ff.verify(tmp_path / "file", backbone()).ok
    if method != "multitask":  # whose data is not in an archive
        for one in (made, last):
            one.learn(task(names[1], 5))
            assert one.predict(batch, task=names[1]).shape == (40, 3)


def test_a_removal_is_remembered_by_an_archive(learner: ff.WSN, tmp_path: Path) -> None:
    learner.remove(FOURTH)
    ff.save(learner, tmp_path / "file", resumable=True)
    loaded = ff.load(tmp_path / "file", backbone())
    for made in (learner, loaded):
        made.remove(TEN[5])
        made.learn(task("more", 50))
    assert_same(snapshot(loaded), snapshot(learner))


def test_the_last_task_can_go_and_the_learner_starts_anew(tmp_path: Path) -> None:
    made = taught(names=TEN[:2])
    for name in TEN[:2]:
        made.remove(name)
    assert dict(made.tasks) == {}
    assert made.remaining_capacity().free == made.remaining_capacity().total
    for resumable in (False, True):
        ff.save(made, tmp_path / "file", resumable=resumable)
        loaded = ff.load(tmp_path / "file", backbone())
        loaded.learn(task("new", 4))
        assert all(found.ok for found in loaded.verify())


@pytest.mark.parametrize("kind", ZOO)
def test_any_module_can_lose_a_task(kind: str) -> None:
    entry = ZOO[kind]
    made = ff.WSN(entry.build(), capacity=0.3, recipe=QUICK)
    for position, name in enumerate("abc"):
        made.learn(entry.task(name, seed=position))
    batch = entry.inputs(5, seed=99)
    before = {name: made.predict(batch, task=name) for name in "ac"}
    made.remove("b")
    made.learn(entry.task("d", seed=3))
    for name, answer in before.items():
        assert same_bits(made.predict(batch, task=name), answer)
    assert all(found.ok for found in made.verify())


@pytest.mark.parametrize("method", TIL)
def test_an_unknown_task_cannot_be_removed(method: str) -> None:
    made = taught(method, TEN[:2])
    before = everything(made)
    for name in ("unknown", "", 7, None, TEN[:1]):
        with pytest.raises(ff.TaskError):
            made.remove(name)
    assert_same(everything(made), before)


def test_while_a_task_is_learned_here_none_can_be_removed(learner: ff.WSN) -> None:
    before = snapshot(learner)
    with learner.learning(task("new", 50)), pytest.raises(ff.TaskError, match="'new' is still being learned here"):
        learner.remove(FOURTH)
    assert_same(snapshot(learner), before)
    learner.remove(FOURTH)
    assert list(learner.tasks) == OTHERS


def test_while_another_thread_learns_no_task_can_be_removed(learner: ff.WSN) -> None:
    before = snapshot(learner)
    begun, over = threading.Event(), threading.Event()

    def learn() -> None:
        with learner.learning(task("new", 50)):
            begun.set()
            over.wait(60)

    thread = threading.Thread(target=learn)
    thread.start()
    begun.wait(60)
    try:
        with pytest.raises(ff.TaskError, match=r"'new' is being learned\. Wait"):
            learner.remove(FOURTH)
        assert_same(snapshot(learner), before)
    finally:
        over.set()
        thread.join()
    learner.remove(FOURTH)
    assert list(learner.tasks) == OTHERS


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("method", TIL)
def test_an_error_in_the_middle_leaves_everything_as_it_was(
    method: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = taught(method, TEN[:3])
    before, answer = everything(made), made.predict(pair(99)[0], task=TEN[1])

    def fail(*_: Any) -> NoReturn:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(TaskHeads, "remove", fail)
        with pytest.raises(error):
            made.remove(TEN[1])
    assert_same(everything(made), before)
    assert same_bits(made.predict(pair(99)[0], task=TEN[1]), answer)
    twin = taught(method, TEN[:3])
    for one in (made, twin):
        one.remove(TEN[0])
        if method == "multitask":
            one.finish()
        else:
            one.learn(task("more", 50))
    assert_same(everything(made), everything(twin))


def test_an_error_after_the_weights_changed_puts_them_back(learner: ff.WSN, monkeypatch: pytest.MonkeyPatch) -> None:
    before, remove = snapshot(learner), SharedNetwork.remove

    def fail(*args: Any) -> NoReturn:
        remove(*args)
        raise RuntimeError

    monkeypatch.setattr(SharedNetwork, "remove", fail)
    with pytest.raises(RuntimeError):
        learner.remove(FOURTH)
    assert_same(snapshot(learner), before)
    assert all(found.ok for found in learner.verify())


def test_the_room_of_every_layer_adds_up(ten: ff.WSN) -> None:
    seen = ten.remaining_capacity()
    assert list(seen.total) == list(ten.network.weights)
    for name, mask in ten.network.used.items():
        assert seen.used[name] == int(mask.sum())
        assert seen.total[name] == mask.numel()
        assert seen.used[name] + seen.free[name] == seen.total[name]
        fresh = [int(new_in(ten.network.tickets, task)[name].sum()) for task in TEN[-3:]]
        assert seen.new[name] == sum(fresh) / 3


def test_before_the_first_task_all_is_free_and_no_end_in_sight() -> None:
    seen = taught(names=[]).remaining_capacity()
    assert seen.free == seen.total
    assert set(seen.new.values()) == {0.0}
    assert seen.tasks is None


def test_after_one_task_as_many_fit_as_are_as_large() -> None:
    seen = taught(names=TEN[:1], capacity=0.1).remaining_capacity()
    assert seen.used == {"0.weight": 8, "4.weight": 10}  # of 72 and 96: n - round(0.9 (n - 1))
    assert seen.new == {"0.weight": 8.0, "4.weight": 10.0}
    assert seen.tasks == min(64 // 8, 86 // 10)


def test_a_full_network_has_no_room_left_and_still_learns() -> None:
    made = taught(names=TEN[:1], capacity=1.0)
    assert set(made.remaining_capacity().free.values()) == {0}
    assert made.remaining_capacity().tasks == 0
    made.learn(task("more", 50))
    assert made.remaining_capacity().tasks == 0
    for number in range(3):
        made.learn(task(f"more {number}", 51 + number))
        assert made.remaining_capacity().tasks == 0, "though they use nothing new"
    made.remove(TEN[0])
    assert set(made.remaining_capacity().free.values()) == {0}


def test_the_tasks_that_fit_only_become_fewer_and_none_fit_where_a_layer_is_full() -> None:
    made, said = taught(names=[]), []
    for position in range(12):
        made.scores = Scores.random(made.network.weights, position)
        made.learn(task(f"task {position}", position), capacity=0.3)
        said.append(made.remaining_capacity().tasks)
    assert said == sorted(said, reverse=True)
    assert said[0] == 2
    assert said[-1] == 0


def test_forecasts_look_at_the_last_tasks_only(ten: ff.WSN) -> None:
    shapes = {name: value.shape for name, value in ten.network.weights.items()}
    for last in (1, 3, 10, 100):
        fresh = [new_in(ten.network.tickets, task)["0.weight"].sum() for task in TEN[-last:]]
        assert capacity_report(ten.network.tickets, shapes, last).new["0.weight"] == pytest.approx(
            float(sum(fresh) / len(fresh))
        )
