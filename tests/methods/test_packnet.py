"""PackNet: tasks own disjoint weights, each keeps its share of what is free, and nothing kept ever moves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.batches import batches
from forgetfree.masked_weights import Shared, masked_weights
from forgetfree.tickets import density, new_in, used
from forgetfree.training.loop import fit
from snapshots import backbone, pair, task
from test_archive import same_bits

PackNet: Any = ff.METHODS["packnet"]
RECIPE = ff.Recipe(epochs=4, batch_size=16, lr=0.02)
HARSH = ff.Recipe(epochs=2, batch_size=16, lr=0.02, weight_decay=0.1, momentum=0.9, optimizer="adamw")


def taught(names: str, recipe: ff.Recipe = RECIPE, **options: Any) -> Any:
    learner = PackNet(backbone(), **({"capacity": 0.3, "recipe": recipe, "seed": 7} | options))
    for position, name in enumerate(names):
        learner.learn(task(name, position))
    return learner


def bits(learner: Any) -> dict[str, bytes]:
    memory = learner.memory()
    tensors = dict(memory.shared)
    for name, ticket in memory.tickets.items():
        tensors |= {f"{name} mask {key}": mask.bits for key, mask in ticket.masks.items()}
        tensors |= {f"{name} own {key}": value for key, value in ticket.own.items()}
        tensors |= {f"{name} head {key}": value for key, value in memory.heads[name].items()}
    return {key: value.contiguous().numpy().tobytes() for key, value in tensors.items()}


def test_each_task_owns_its_share_of_what_the_earlier_ones_left_and_uses_all_of_theirs() -> None:
    learner = taught("abcd")
    tickets = learner.network.tickets
    free = {name: value.numel() for name, value in learner.network.weights.items()}
    earlier = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in learner.network.weights.items()}
    for name in "abcd":
        for layer, owned in new_in(tickets, name).items():
            assert int(owned.sum()) == round(0.3 * free[layer])
            assert not (owned & earlier[layer]).any()
            earlier[layer] = earlier[layer] | owned
            assert torch.equal(tickets[name].mask(layer), earlier[layer])
            free[layer] -= int(owned.sum())


@pytest.mark.parametrize("capacity", [0.1, 0.5, 1.0])
def test_after_so_many_tasks_the_network_is_as_full_as_the_formula_says(capacity: float) -> None:
    learner = taught("abcde", ff.Recipe(epochs=1, batch_size=40), capacity=capacity)
    full = 1 - (1 - capacity) ** 5
    weights = sum(value.numel() for value in learner.network.weights.values())
    assert density(used(learner.network.tickets)) == pytest.approx(full, abs=2 * 5 / weights)
    assert learner.remaining_capacity().used == {name: int(mask.sum()) for name, mask in learner.network.used.items()}


def test_of_the_free_weights_the_largest_are_kept() -> None:
    learner = PackNet(backbone(), capacity=0.25, recipe=RECIPE)
    for name in "ab":
        before = dict(learner.network.used)
        with learner.learning(task(name)) as session:
            weights = {key.removeprefix("network."): value for key, value in session.state().items()}
            session.keep()
        for layer, mask in before.items():
            owned, size = new_in(learner.network.tickets, name)[layer], weights[layer].abs()
            assert int(owned.sum()) == round(0.25 * int((~mask).sum()))
            if name == "a":  # the second starts from zeros: all alike, and the lower index wins
                assert size[owned].min() >= size[~owned].max()
            else:
                assert owned.reshape(-1).nonzero().max() < (~owned & ~mask).reshape(-1).nonzero().min()


def test_a_layer_keeps_one_weight_at_least_and_a_full_one_is_reused() -> None:
    learner = taught("a", capacity=1e-6)
    assert learner.remaining_capacity().used == {"0.weight": 1, "4.weight": 1}
    full = taught("ab", capacity=1.0)
    for layer, mask in full.network.tickets["b"].masks.items():
        assert mask.unpack().all(), layer
        assert not new_in(full.network.tickets, "b")[layer].any()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "rmsprop"])
@pytest.mark.parametrize("refill", [False, True])
def test_old_answers_are_bit_identical_whatever_the_optimizer_does(optimizer: Any, refill: bool) -> None:
    recipe = replace(HARSH, optimizer=optimizer, lr=0.01, carry_optimizer=True)
    learner, batch = taught("a", recipe, refill=refill), pair(99)[0]
    before = learner.predict(batch, "a")
    weights, mask = dict(learner.network.weights), dict(learner.network.used)
    for position, name in enumerate("bcd", 1):
        learner.learn(task(name, position))
    assert same_bits(learner.predict(batch, "a"), before)
    for layer, value in learner.network.weights.items():
        assert same_bits(value[mask[layer]], weights[layer][mask[layer]])
    assert all(found.ok for found in learner.verify())


def test_what_is_free_is_exactly_zero_between_tasks_also_under_weight_decay() -> None:
    learner = taught("ab", HARSH)
    for layer, value in learner.network.weights.items():
        free = ~learner.network.used[layer]
        assert free.any()
        assert same_bits(value[free], torch.zeros(int(free.sum())))
        assert (value[~free] != 0).all()


def test_refilled_weights_are_drawn_from_the_seed_within_the_bounds_of_a_linear_layer() -> None:
    one, two, other = (taught("a", refill=True, seed=seed) for seed in (7, 7, 8))
    for layer, value in one.network.weights.items():
        free = ~one.network.used[layer] & ~other.network.used[layer]
        assert same_bits(value, two.network.weights[layer])
        assert (value[free] != other.network.weights[layer][free]).any()
        assert value[free].abs().max() <= value[0].numel() ** -0.5
        assert value[free].std() > 0.4 * value[0].numel() ** -0.5


def test_the_second_phase_trains_the_survivors_through_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    phases: list[tuple[int, dict[str, int]]] = []
    learner = PackNet(backbone(), capacity=0.3, recipe=RECIPE)
    original = fit

    def train(session: Any, recipe: ff.Recipe, **options: Any) -> Any:
        session.loss(batch_of(task("a"))).backward()
        moving = session.moving()
        reached = {name: int((moving[f"network.{name}"].grad != 0).sum()) for name in learner.network.weights}
        for parameter in session.parameters():
            parameter.grad = None
        phases.append((recipe.epochs, reached))
        return original(session, recipe, **options)

    monkeypatch.setattr("forgetfree.training.phases.fit", train)
    learner.learn(task("a"))
    assert [epochs for epochs, _ in phases] == [4, 2]
    kept = {name: round(0.3 * value.numel()) for name, value in learner.network.weights.items()}
    for name, count in phases[0][1].items():
        assert count > kept[name] >= phases[1][1][name] > 0
    assert len(learner.tasks["a"].curves) == 6


def test_what_is_kept_was_chosen_before_retraining(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = PackNet(backbone(), capacity=0.3, recipe=RECIPE)
    original, sizes = fit, {}

    def train(session: Any, recipe: ff.Recipe, **options: Any) -> Any:
        fitted = original(session, recipe, **options)
        for name in learner.network.weights:
            weight = session.moving()[f"network.{name}"].detach()
            sizes.setdefault(name, weight.abs().clone())
            weight.copy_(1 / weight if session.model.chosen else weight)  # now the smallest are the largest
        return fitted

    monkeypatch.setattr("forgetfree.training.phases.fit", train)
    learner.learn(task("a"))
    for name, size in sizes.items():
        mask = learner.network.tickets["a"].mask(name)
        assert size[mask].min() >= size[~mask].max()


def batch_of(one: ff.Task) -> Any:
    return next(iter(batches(one, one.train, 40)))


def test_retraining_takes_as_many_epochs_as_asked_for() -> None:
    assert len(taught("a", retrain_epochs=3).tasks["a"].curves) == 4 + 3
    assert len(taught("a", replace(RECIPE, epochs=1)).tasks["a"].curves) == 1 + 1
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(ff.InputError, match=r"retrain_epochs, .*, is a whole number of at least 1"):
            taught("", retrain_epochs=wrong)


def test_retraining_helps() -> None:
    """Else pruning to so little would be the end of what was learned."""
    learner = taught("a", ff.Recipe(epochs=20, batch_size=16, lr=0.02), capacity=0.2)
    curves = learner.tasks["a"].curves
    assert curves[-1]["loss"] < curves[20]["loss"]


class Stop(Exception):
    pass


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("moment", [2, 4, 5, 6])
def test_a_learn_killed_in_either_phase_goes_on_to_the_same_bits(tmp_path: Path, moment: int, valid: bool) -> None:
    """Epochs 1 to 4 train, 5 to 7 retrain."""

    def make() -> Any:
        learner = PackNet(backbone(), capacity=0.3, retrain_epochs=3, recipe=replace(HARSH, epochs=4), seed=7)
        learner.learn(task("a"))
        return learner

    def stop(event: ff.Progress) -> None:
        nonlocal epochs
        epochs += event.finished
        if epochs == moment:
            raise Stop

    plain, killed, resumed, epochs = make(), make(), make(), 0
    plain.learn(task("b", 1, valid=valid))
    with pytest.raises(Stop):
        killed.learn(task("b", 1, valid=valid), checkpoint=tmp_path / "b.checkpoint", progress=stop)
    seen: list[ff.Progress] = []
    resumed.learn(task("b", 1, valid=valid), checkpoint=tmp_path / "b.checkpoint", progress=seen.append)
    assert sum(event.finished for event in seen) == 7 - moment
    assert bits(resumed) == bits(plain)
    assert resumed.tasks == plain.tasks
    assert (tmp_path / "b-retrain.checkpoint").exists()


def test_a_session_of_ones_own_is_pruned_when_it_is_kept() -> None:
    learner, batch = PackNet(backbone(), capacity=0.3, recipe=RECIPE), pair(99)[0]
    with learner.learning(task("a")) as session:
        optimizer = torch.optim.Adam(session.parameters(), lr=0.02)
        for _ in range(5):
            optimizer.zero_grad()
            session.loss(batch_of(session.task)).backward()
            optimizer.step()
        session.keep()
    assert learner.remaining_capacity().used == {"0.weight": round(0.3 * 72), "4.weight": round(0.3 * 96)}
    assert learner.predict(batch, "a").shape == (40, 3)


def test_a_removed_task_leaves_its_weights_to_those_that_build_on_them() -> None:
    learner, batch = taught("abc"), pair(99)[0]
    before = {name: learner.predict(batch, name) for name in "bc"}
    owned = {layer: learner.network.used[layer].clone() for layer in learner.network.weights}
    learner.remove("a")
    assert {layer: int(mask.sum()) for layer, mask in owned.items()} == learner.remaining_capacity().used
    learner.remove("c")
    assert all(learner.remaining_capacity().used[layer] < int(mask.sum()) for layer, mask in owned.items())
    assert same_bits(learner.predict(batch, "b"), before["b"])
    for layer, value in learner.network.weights.items():
        assert not value[~learner.network.used[layer]].any()
    learner.learn(task("d", 3))
    assert same_bits(learner.predict(batch, "b"), before["b"])


def test_where_all_tasks_are_removed_learning_starts_from_a_drawn_network() -> None:
    learner = taught("ab")
    for name in "ab":
        learner.remove(name)
    assert all((value != 0).all() for value in learner.network.weights.values())
    learner.learn(task("c", 2))
    assert learner.tasks["c"].curves[-1]["loss"] < learner.tasks["c"].curves[0]["loss"]


def test_a_mask_of_one_number_is_a_mask_of_ones() -> None:
    weight = nn.Parameter(torch.randn(5, 4))
    seen: dict[str, Tensor] = masked_weights({"layer": torch.ones(())}, {"layer": Shared(weight)})
    assert same_bits(seen["layer"], weight)
    seen["layer"].sum().backward()
    assert torch.equal(weight.grad, torch.ones(5, 4))
