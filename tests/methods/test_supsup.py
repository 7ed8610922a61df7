"""SupSup: a random network that never changes, and a mask of exactly so many ones for each task."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.files import digest_of
from forgetfree.masks import kept_count
from snapshots import backbone, pair, task
from test_archive import same_bits

SupSup: Any = ff.METHODS["supsup"]
RECIPE = ff.Recipe(epochs=3, batch_size=16, lr=0.02, weight_decay=0.01, optimizer="adamw")


def taught(names: str, **options: Any) -> Any:
    learner = SupSup(backbone(), **({"capacity": 0.4, "recipe": RECIPE, "seed": 7} | options))
    for position, name in enumerate(names):
        learner.learn(task(name, position))
    return learner


def scores_of(learner: Any, name: str) -> dict[str, Tensor]:
    """What a task would start from."""
    with learner.learning(task(name)) as session:
        return {key: value for key, value in session.state().items() if key.startswith("scores.")}


def test_weights_are_two_constants_per_layer_drawn_from_the_seed_alone() -> None:
    one, two, other = taught(""), SupSup(backbone(5), capacity=0.4, seed=7), taught("", seed=8)
    for layer, value in one.network.weights.items():
        constant = (2 / value.shape[1]) ** 0.5
        assert value.unique().tolist() == pytest.approx([-constant, constant])
        assert 0.3 < float((value > 0).float().mean()) < 0.7
        assert same_bits(value, two.network.weights[layer])
        assert not torch.equal(value, other.network.weights[layer])


def test_no_task_moves_a_weight() -> None:
    learner = taught("")
    digest, before = digest_of(learner.network.weights), {}
    for position, name in enumerate("abc"):
        with learner.learning(task("look")) as session:
            assert not [key for key in session.moving() if key in ("network.0.weight", "network.4.weight")]
        learner.learn(task(name, position))
        before[name] = learner.predict(pair(99)[0], name)
        assert digest_of(learner.network.weights) == digest
    for name, answer in before.items():
        assert same_bits(learner.predict(pair(99)[0], name), answer)


@pytest.mark.parametrize("capacity", [0.05, 0.4, 1.0])
def test_every_mask_has_exactly_so_many_ones(capacity: float) -> None:
    learner = taught("ab", capacity=capacity)
    for ticket in learner.network.tickets.values():
        for layer, value in learner.network.weights.items():
            assert int(ticket.mask(layer).sum()) == kept_count(value.numel(), capacity)


def test_with_full_capacity_a_task_is_the_random_network_with_its_own_tensors_and_head() -> None:
    learner, batch = taught("a", capacity=1.0), pair(99)[0]
    module, ticket = backbone().eval(), learner.network.tickets["a"]
    state = {**module.state_dict(), **learner.network.weights, **ticket.own}
    module.load_state_dict(state)
    with torch.no_grad():
        expected = learner.task_modules("a")["head"](module(batch))
    assert same_bits(learner.predict(batch, "a"), expected)


def test_scores_differ_from_task_to_task_and_so_do_masks() -> None:
    learner = taught("a")
    first, second = scores_of(taught(""), "x"), scores_of(learner, "x")
    assert all((first[name] != second[name]).any() for name in first)
    learner.learn(task("b", 0))  # the same data as the first
    one, two = learner.network.tickets.values()
    assert all(not torch.equal(one.mask(layer), two.mask(layer)) for layer in one.masks)


def test_learning_moves_scores_to_masks_that_answer_better() -> None:
    learner = SupSup(
        nn.Sequential(nn.Linear(6, 40, bias=False), nn.ReLU(), nn.Linear(40, 20, bias=False), nn.ReLU()),
        capacity=0.5, recipe=ff.Recipe(epochs=20, batch_size=16, lr=0.02), seed=7,
    )  # fmt: skip
    start = scores_of(learner, "a")
    learner.learn(task("a"))
    curves = learner.tasks["a"].curves
    assert curves[-1]["loss"] < 0.5 * curves[0]["loss"]
    began = {key.removeprefix("scores."): value.abs() for key, value in start.items()}
    for layer, size in began.items():
        mask = learner.network.tickets["a"].mask(layer)
        assert size[mask].min() < size[~mask].max(), "the first scores would have chosen the same"


def test_with_transfer_a_task_starts_at_the_mean_of_the_earlier_scores() -> None:
    ends: list[dict[str, Tensor]] = []
    learner = SupSup(backbone(), capacity=0.4, recipe=RECIPE, seed=7, transfer=True)
    for position, name in enumerate("abc"):
        with learner.learning(task(name, position)) as session:
            with torch.no_grad():
                for key, value in session.moving().items():
                    if key.startswith("scores."):
                        value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(position)))
            ends.append({key: value for key, value in session.state().items() if key.startswith("scores.")})
            session.keep()
    for key, value in scores_of(learner, "d").items():
        torch.testing.assert_close(value, torch.stack([end[key] for end in ends]).mean(0))
    assert {f"mean_scores.{layer}" for layer in learner.network.weights} == set(learner.memory().training)
    assert taught("a").memory().training == {}
    learner.remove("b")
    assert learner.memory().training == {}


def test_removal_leaves_weights_and_other_tasks_as_they_are() -> None:
    learner, batch = taught("abc"), pair(99)[0]
    digest, before = digest_of(learner.network.weights), learner.predict(batch, "c")
    learner.remove("a")
    assert digest_of(learner.network.weights) == digest
    learner.learn(task("d", 3))
    assert same_bits(learner.predict(batch, "c"), before)
