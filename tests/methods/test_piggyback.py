"""Piggyback: the network handed in never changes, and a task starts from all of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import forgetfree as ff
from forgetfree.files import digest_of
from forgetfree.masks import above
from snapshots import backbone, pair, task
from test_archive import assert_same_answers, same_bits

Piggyback: Any = ff.METHODS["piggyback"]
RECIPE = ff.Recipe(epochs=3, batch_size=16, lr=0.002, weight_decay=0.01, optimizer="adamw")


def taught(names: str, **options: Any) -> Any:
    learner = Piggyback(backbone(), **({"recipe": RECIPE, "seed": 7} | options))
    for position, name in enumerate(names):
        learner.learn(task(name, position))
    return learner


def test_a_mask_has_ones_above_the_threshold_and_passes_its_gradient_on() -> None:
    scores = torch.tensor([-1.0, 0.0049, 0.005, 0.0051, 3.0], requires_grad=True)
    mask = above(scores, 0.005)
    assert mask.tolist() == [0, 0, 0, 1, 1]
    assert mask.dtype == scores.dtype
    arriving = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0])
    mask.backward(arriving)
    assert torch.equal(scores.grad, arriving)


def test_the_gradient_of_a_score_is_the_weight_times_that_of_the_effective_weight() -> None:
    weight, inputs = torch.randn(4, 3), torch.randn(6, 3)
    scores = torch.full((4, 3), 0.01).index_fill(0, torch.tensor([1]), 0.0).requires_grad_()
    effective = (weight * above(scores, 0.005)).detach().requires_grad_()
    (inputs @ effective.T).square().sum().backward()
    (inputs @ (weight * above(scores, 0.005)).T).square().sum().backward()
    torch.testing.assert_close(scores.grad, weight * effective.grad)


def test_masks_above_a_threshold_go_through_vmap_and_grad() -> None:
    scores = torch.randn(5, 4)
    assert torch.equal(torch.vmap(lambda row: above(row, 0.1))(scores), (scores > 0.1).float())
    weight = torch.randn(4)
    gradient = torch.vmap(torch.func.grad(lambda row: (above(row, 0.1) * weight).sum()))(scores)
    assert torch.equal(gradient, weight.expand(5, 4))


def test_a_task_starts_from_the_whole_network() -> None:
    learner, batch = taught(""), pair(99)[0]
    with learner.learning(task("a")) as session:
        session.eval()
        answer = session(batch).detach()
        session.keep()
    assert all(mask.unpack().all() for mask in learner.network.tickets["a"].masks.values())
    with torch.no_grad():
        dense = learner.task_modules("a")["head"](backbone().eval()(batch))
    assert same_bits(answer, dense)
    assert same_bits(learner.predict(batch, "a"), dense)


def test_no_task_moves_a_weight_and_masks_come_to_differ() -> None:
    learner, before = taught(""), {}
    digest = digest_of(
        {name: value for name, value in backbone().named_parameters() if name in learner.network.weights}
    )
    for position, name in enumerate("abc"):
        learner.learn(task(name, position))
        before[name] = learner.predict(pair(99)[0], name)
        assert digest_of(learner.network.weights) == digest
        masks = {layer: mask.unpack() for layer, mask in learner.network.tickets[name].masks.items()}
        assert all(mask.any() and not mask.all() for mask in masks.values())
    for name, answer in before.items():
        assert same_bits(learner.predict(pair(99)[0], name), answer)
    one, two = (learner.network.tickets[name] for name in "ab")
    assert not torch.equal(one.mask("0.weight"), two.mask("0.weight"))


def test_steps_that_are_too_small_flip_nothing() -> None:
    """Adam moves a score by lr a step at most: 9 steps of 1e-4 do not reach from 1e-2 to 5e-3."""
    learner = taught("a", recipe=ff.Recipe(epochs=3, batch_size=16, lr=1e-4))
    assert all(mask.unpack().all() for mask in learner.network.tickets["a"].masks.values())
    nearer = taught("a", recipe=ff.Recipe(epochs=3, batch_size=16, lr=1e-4), first_score=5.2e-3)
    assert not all(mask.unpack().all() for mask in nearer.network.tickets["a"].masks.values())


def test_scores_start_above_the_threshold_or_are_refused() -> None:
    for start in (5e-3, 0.0):
        with pytest.raises(ff.InputError, match="scores start above the threshold"):
            taught("", first_score=start)


def test_scores_of_weights_in_half_precision_are_not() -> None:
    learner = Piggyback(backbone().bfloat16())
    with learner.learning(task("a")) as session:
        kinds = {key: value.dtype for key, value in session.state().items() if key.startswith("scores.")}
    assert set(kinds.values()) == {torch.float32}


def unused_by(learner: Any) -> dict[str, Tensor]:
    return {name: value[~learner.network.used[name]] for name, value in learner.network.weights.items()}


@pytest.mark.parametrize("resumable", [False, True])
def test_a_loaded_learner_has_the_whole_network_and_learns_on_to_the_same_bits(tmp_path: Path, resumable: bool) -> None:
    learner, batch = taught("a"), pair(99)[0]
    unused = unused_by(learner)
    assert all(value.numel() for value in unused.values()), "nothing is put to the test"
    assert {key.removeprefix("unused."): value.numel() for key, value in learner.memory().training.items()} == {
        name: value.numel() for name, value in unused.items()
    }
    ff.save(learner, tmp_path / "file", resumable=resumable)
    loaded = ff.load(tmp_path / "file", backbone(5))
    assert digest_of(loaded.network.weights) == digest_of(learner.network.weights)
    for one in (learner, loaded):
        one.learn(task("b", 1))
    assert_same_answers(learner, loaded, batch)
    for layer, mask in learner.network.tickets["b"].masks.items():
        assert torch.equal(mask.bits, loaded.network.tickets["b"].masks[layer].bits)


def test_removal_leaves_weights_and_other_tasks_as_they_are() -> None:
    learner, batch = taught("abc"), pair(99)[0]
    digest, before = digest_of(learner.network.weights), learner.predict(batch, "c")
    learner.remove("a")
    assert digest_of(learner.network.weights) == digest
    learner.learn(task("d", 3))
    assert same_bits(learner.predict(batch, "c"), before)
