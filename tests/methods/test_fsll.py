"""FSLL: the weights nearest to zero move, all others stay bit for bit; a session adds classes and keeps the old."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import forgetfree as ff
from forgetfree.batches import Batch
from forgetfree.errors import InputError
from forgetfree.heads import similarity
from forgetfree.methods import FSLL, NCM
from forgetfree.methods.fsll import triplet_loss
from forgetfree.testing import small_tasks

RECIPE = ff.Recipe(epochs=8, batch_size=32, lr=0.02)
QUICK = ff.Recipe(epochs=3, batch_size=25, optimizer="sgd", lr=0.01, momentum=0.9)
TASKS = small_tasks(3)
FEW = [TASKS[0], *(replace(task, train=(task.train[0][:12], task.train[1][:12]), valid=None) for task in TASKS[1:])]


def backbone():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())


def learned(count=3, kind=FSLL, **settings):
    learner = kind(backbone(), **({"recipe": RECIPE, "session": QUICK} | settings))
    for task in FEW[:count]:
        learner.learn(task)
    return learner


def accuracies(learner):
    """On the validation data of every session, among all classes."""
    found, before = [], 0
    for task in TASKS[: len(learner.tasks)]:
        inputs, labels = task.valid
        found.append(float((learner.predict(inputs).argmax(1) == labels + before).float().mean()))
        before += len(task.classes)
    return found


@pytest.mark.parametrize("settings", [{}, {"variant": "released", "exemplars": 5}])
def test_old_and_new_classes_are_known_after_all_sessions(settings):
    learner = learned(**settings)
    assert learner.classes == tuple(name for task in TASKS for name in task.classes)
    assert min(accuracies(learner)) > 0.6  # of nine classes


def test_only_the_smallest_weights_of_each_tensor_move():
    learner = learned(1, fraction=0.3)
    before, movable = dict(learner.network.weights), learner.movable()
    own = dict(learner.network.tickets[TASKS[0].name].own)
    learner.learn(FEW[1])
    for name, weight in before.items():
        small = weight.abs()[movable[name]]
        assert int(movable[name].sum()) == round(0.3 * weight.numel())
        assert small.max() <= weight.abs()[~movable[name]].min()
        now = learner.network.weights[name]
        assert torch.equal(now[~movable[name]], weight[~movable[name]])
        assert not torch.equal(now[movable[name]], weight[movable[name]])
    still = learner.network.tickets[TASKS[0].name].own
    assert own.keys() == still.keys()
    assert all(torch.equal(still[name], own[name]) for name in own)


def test_every_session_chooses_anew():
    learner = learned(1, fraction=0.3, session=replace(QUICK, lr=0.3), reg_weight=0.0)
    first = learner.movable()
    learner.learn(FEW[1])
    assert any(not torch.equal(mask, first[name]) for name, mask in learner.movable().items())


def test_nothing_that_moves_is_the_nearest_class_mean():
    inputs = TASKS[1].valid[0]
    assert torch.equal(learned(fraction=0.0).predict(inputs), learned(kind=NCM).predict(inputs))
    assert not torch.equal(learned(fraction=1.0).predict(inputs), learned(kind=NCM).predict(inputs))


def test_when_all_may_move_a_step_is_that_of_plain_fine_tuning():
    once = replace(QUICK, epochs=1, lr=0.5, momentum=0.0)
    learner = learned(1, fraction=1.0, reg_weight=0.0, session=once)
    assert all(bool(mask.all()) for mask in learner.movable().values())
    plain, known = learner.task_modules(TASKS[0].name)["backbone"].requires_grad_(True).eval(), len(learner.classes)
    means, (inputs, labels) = head_means(learner), FEW[1].train
    learner.learn(FEW[1])
    features = plain(inputs)
    new = torch.stack([features[labels == label].mean(0) for label in labels.unique()])
    loss = triplet_loss(features, labels + known, learner.margin) + similarity(new, means, "cosine").mean()
    loss.backward()
    for name, weight in learner.network.weights.items():
        expected = plain.get_parameter(name).detach() - 0.5 * plain.get_parameter(name).grad
        assert torch.allclose(weight, expected, atol=1e-6)
        assert not torch.equal(weight, plain.get_parameter(name))


def head_means(learner):
    return learner.task_modules(list(learner.tasks)[-1])["head"].means


def test_a_session_in_which_nothing_moves_has_a_loss_too():
    learner = learned(1, fraction=0.0)
    with learner.learning(FEW[1]) as session:
        assert not list(session.parameters())
        assert torch.isfinite(session.loss(Batch(*session.task.train)))
        session.keep()
    assert len(learner.tasks) == 2


def test_the_released_variant_moves_whole_tensors_without_large_weights_and_has_no_pull():
    learner = learned(1, variant="released")
    before = dict(learner.network.weights)
    sizes = {name: float(weight.abs().max()) for name, weight in before.items()}
    quiet, loud = sorted(sizes, key=sizes.__getitem__)
    assert sizes[quiet] < sizes[loud]
    after = [learned(2, variant="released", threshold=sizes[quiet], reg_weight=strength) for strength in (0.0, 50.0)]
    assert set(after[0].movable()) <= {quiet}
    weights = after[0].network.weights
    assert torch.equal(weights[loud], before[loud])
    assert not torch.equal(weights[quiet], before[quiet])
    assert all(torch.equal(weights[name], after[1].network.weights[name]) for name in weights)


def test_triplets_are_all_of_them():
    torch.manual_seed(3)
    features, labels = torch.randn(9, 4, requires_grad=True), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])
    rows = features.detach()
    by_hand = [
        max(0.5 + float((rows[a] - rows[p]).norm()) - float((rows[a] - rows[n]).norm()), 0)
        for a in range(9)
        for p in range(9)
        for n in range(9)
        if a != p and labels[a] == labels[p] and labels[a] != labels[n]
    ]
    value = triplet_loss(features, labels, 0.5)
    assert float(value.detach()) == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-5)
    same = torch.ones(4, 3, requires_grad=True)
    triplet_loss(same, torch.tensor([0, 0, 1, 1]), 0.5).backward()
    assert bool(same.grad.isfinite().all())
    assert float(triplet_loss(rows, torch.arange(9), 0.5)) == 0  # no two of a class


def test_the_loss_is_triplets_and_cosines_to_old_means_and_the_pull():
    learner = learned(1, reg_weight=2.0)
    old = next(iter(learner.engine.heads.kept.values())).means
    inputs, labels = FEW[1].train
    features = learner.task_modules(TASKS[0].name)["backbone"](inputs)
    means = torch.stack([features[labels == label].mean(0) for label in range(len(TASKS[1].classes))])
    expected = triplet_loss(features, labels, 0.0) + similarity(means, old, "cosine").mean()
    with learner.learning(FEW[1]) as session:
        batch = Batch(inputs, labels + len(old))
        assert float(session.loss(batch).detach()) == pytest.approx(float(expected), rel=1e-5)
        movable = learner.movable()
        with torch.no_grad():
            before = {name: value.clone() for name, value in session.moving().items()}
            for parameter in session.parameters():
                parameter += 1e-6
            count = sum(int(mask.sum()) for mask in movable.values())
            moved = sum(
                float((value - before[name]).abs()[movable[name.removeprefix("network.")]].sum())
                for name, value in session.moving().items()
            )
        assert float(session.loss(batch).detach()) == pytest.approx(float(expected) + 2 * moved / count, rel=1e-4)


def test_the_stronger_the_pull_the_less_weights_move():
    start = learned(1).network.weights
    moves = []
    for strength in (0.0, 0.5, 5.0):
        now = learned(2, reg_weight=strength, session=replace(QUICK, epochs=8, lr=1e-3)).network.weights
        moves.append(sum(float((now[name] - start[name]).abs().sum()) for name in start))
    assert moves[0] > moves[1] > moves[2]


def test_exemplars_are_kept_of_later_classes_counted_and_their_means_renewed():
    learner = learned(3, exemplars=3, fraction=1.0)
    base, met = len(TASKS[0].classes), len(learner.classes)
    kept = learner.memory().training
    assert set(kept) == {f"exemplars.{label}" for label in range(base, met)}
    assert all(len(images) == 3 for images in kept.values())
    assert not learned(2).memory().training
    name = TASKS[2].name
    again = learner.task_modules(name)["backbone"](kept[f"exemplars.{base}"]).mean(0)
    assert torch.allclose(learner.engine.heads.kept[name].means[base], again, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{"variant": "mine"}, {"fraction": 1.5}, {"fraction": -0.1}, {"threshold": -1.0}, {"reg_weight": "5"},
     {"margin": -1.0}, {"exemplars": 1.5}],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        FSLL(backbone(), **settings)
