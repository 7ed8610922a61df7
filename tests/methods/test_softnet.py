"""SoftNet and HardNet (Algorithm 2): what may move in a session, what never does, and what a session may see."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.few_shot.prototypes import metric_loss
from forgetfree.heads import HEADS, similarity
from forgetfree.methods.softnet import followed, moving_in
from forgetfree.network import TrainableView
from forgetfree.testing import small_tasks

SoftNet: Any = ff.METHODS["softnet"]
HardNet: Any = ff.METHODS["hardnet"]
RECIPE = ff.Recipe(epochs=3, batch_size=16, lr=0.02)
SESSION = ff.Recipe(epochs=6, batch_size=64, optimizer="sgd", lr=0.5)


def backbone() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stage = nn.Sequential(nn.Linear(32, 24), nn.BatchNorm1d(24), nn.ReLU())
        return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), stage)


def sessions() -> list[ff.Task]:
    """A base session and later ones without validation data, as few-shot sessions are."""
    first, *others = small_tasks(3)
    return [first, *(replace(task, valid=None) for task in others)]


def taught(made: Any, count: int = 3) -> Any:
    for task in sessions()[:count]:
        made.learn(task)
    return made


def learner(kind: Any = SoftNet, **settings: Any) -> Any:
    return kind(backbone(), **({"capacity": 0.5, "recipe": RECIPE, "session": SESSION, "seed": 3} | settings))


def weights(made: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in made.network.weights.items()}


def test_majors_never_move_and_only_minors_of_the_chosen_block_do():
    made = taught(learner(), 1)
    start, own = weights(made), dict(made.network.tickets["task 0"].own)
    majors = {name: mask.clone() for name, mask in made.network.used.items()}
    taught_on = made
    for task in sessions()[1:]:
        taught_on.learn(task)
    moved = {name: value != start[name] for name, value in weights(made).items()}
    assert not any(bool((moved[name] & majors[name]).any()) for name in moved)
    assert not moved["0.weight"].any()
    assert moved["3.0.weight"].any()
    assert bool((moved["3.0.weight"] <= ~majors["3.0.weight"]).all())
    now = made.network.tickets["task 0"].own
    assert set(now) == set(own)
    assert all(torch.equal(now[name], own[name]) for name in own)
    assert all(torch.equal(made.network.used[name], majors[name]) for name in majors)


def test_hardnet_moves_nothing_and_its_old_scores_stay_bit_identical():
    made = taught(learner(HardNet), 1)
    start, inputs = weights(made), sessions()[0].train[0]
    before = made.predict(inputs)
    for task in sessions()[1:]:
        made.learn(task)
    assert all(torch.equal(value, start[name]) for name, value in weights(made).items())
    assert torch.equal(made.predict(inputs)[:, : before.shape[1]], before)
    assert made.tasks["task 2"].selection == "as it was: nothing is trained"


@pytest.mark.parametrize("draw", ["epoch", "forward"])
def test_the_soft_mask_is_one_on_majors_and_below_one_elsewhere(draw):
    made = taught(learner(resample=draw), 1)
    for name, major in made.network.used.items():
        mask = made.soft_mask(name)
        assert bool((mask[major] == 1).all())
        assert bool((mask[~major] >= 0).all())
        assert bool((mask[~major] < 1).all())
        assert float(mask[~major].std()) > 0.2  # drawn, not zero
    assert int(made.network.used["0.weight"].sum()) == 128  # c = 50 % of 256


def test_hardnets_mask_is_zero_elsewhere_and_softness_can_start_late():
    for made in (taught(learner(HardNet), 1), taught(learner(soft_from_epoch=99), 1)):
        assert all(torch.equal(made.soft_mask(name), major.float()) for name, major in made.network.used.items())
    late, early = taught(learner(soft_from_epoch=2), 1), taught(learner(), 1)
    assert not torch.equal(late.network.weights["0.weight"], early.network.weights["0.weight"])


def test_what_answers_is_what_was_trained_through_the_soft_mask():
    made = taught(learner(), 1)
    module = made.task_modules("task 0")["backbone"]
    for name, value in made.network.weights.items():
        assert torch.equal(module.get_parameter(name), value * made.soft_mask(name))


def test_the_draw_of_minor_weights_is_that_of_the_best_epoch():
    made = learner()
    made.learn(sessions()[0])
    best = int(made.tasks["task 0"].selection.split()[1])
    assert made.drawn == best - 1


def test_it_tells_old_and_new_classes_apart():
    for kind in (SoftNet, HardNet):
        made = taught(learner(kind))
        assert made.classes == tuple(name for task in sessions() for name in task.classes)
        start = 0
        for task in sessions():
            inputs, labels = task.train
            right = made.predict(inputs).argmax(1) == labels + start
            assert float(right.float().mean()) > 0.8, (kind, task.name)
            start += len(task.classes)


def test_a_session_sees_no_earlier_image_unless_exemplars_are_on(monkeypatch):
    def images_seen(exemplars: int) -> set[tuple[float, ...]]:
        made, seen = taught(learner(exemplars=exemplars), 2), set()
        forward = TrainableView.forward

        def watched(view: Any, inputs: Tensor, masks: Any) -> Any:
            seen.update(map(tuple, inputs.tolist()))
            return forward(view, inputs, masks)

        monkeypatch.setattr(TrainableView, "forward", watched)
        made.learn(sessions()[2])
        monkeypatch.undo()
        return seen

    own, before, base = (set(map(tuple, task.train[0].tolist())) for task in (sessions()[i] for i in (2, 1, 0)))
    assert images_seen(0) == own
    with_exemplars = images_seen(4)
    assert with_exemplars > own
    assert len(with_exemplars & before) == 4 * 3  # of each class of the session before
    assert not with_exemplars & base


def test_exemplars_are_counted_as_memory_for_learning():
    made = taught(learner(exemplars=2))
    kept = made.memory().training
    assert sum(len(images) for images in kept.values()) == 2 * (3 + 4)
    assert not taught(learner()).memory().training


def test_the_metric_loss_is_the_papers_equation():
    draw = torch.Generator().manual_seed(0)
    features, means = torch.randn(4, 5, generator=draw), torch.randn(3, 5, generator=draw)
    labels = torch.tensor([2, 2, 2, 2])
    own = torch.cat([means[:2], features.mean(0, keepdim=True)])
    cosine = nn.functional.cosine_similarity(features[:, None], own[None], dim=2)
    expected = -torch.log_softmax(-(1 - cosine) / 0.5, 1)[:, 2].mean()
    assert float(metric_loss(features, labels, means, 2, temperature=0.5)) == pytest.approx(float(expected), abs=1e-6)


def test_scores_of_prototypes_are_minus_squared_distances_or_cosines():
    features, means = torch.tensor([[0.0, 3.0]]), torch.tensor([[4.0, 0.0], [0.0, 1.0]])
    assert similarity(features, means, "euclidean").tolist() == [[-25.0, -4.0]]
    assert similarity(features, means, "cosine").tolist() == [[0.0, 1.0]]


def test_the_default_block_is_the_last_of_the_last_stage():
    names = ["conv1.weight", "layer4.0.conv2.weight", "layer4.1.conv1.weight", "layer4.1.conv2.weight"]
    assert moving_in(None, dict.fromkeys(names)) == names[2:]
    assert moving_in(None, dict.fromkeys(["0.weight", "4.weight"])) == ["4.weight"]
    assert moving_in("layer4.*", dict.fromkeys(names)) == names[1:]
    with pytest.raises(ff.InputError, match="no shared tensor matches trainable_block='layer9"):
        learner(trainable_block="layer9.*")


def test_means_follow_features_that_move_together():
    means = torch.tensor([[0.0, 0.0], [10.0, 0.0]])
    features = torch.tensor([[0.1, 0.0], [9.9, 0.0]])
    moved = followed(means, features, torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    assert moved[0, 1] > 0.5
    assert moved[1, 1] < -0.5
    assert torch.equal(followed(means, features, torch.zeros(2, 2)), means)


def test_a_pull_holds_features_where_they_were():
    def drift(**settings: Any) -> float:
        made = taught(learner(**settings), 1)
        inputs = sessions()[1].train[0]
        before = made.task_modules("task 0")["backbone"](inputs)
        made.learn(sessions()[1])
        return float((made.task_modules("task 1")["backbone"](inputs) - before).norm())

    assert 0 < drift(feature_distillation=0.02) < drift()


def test_what_cannot_be_is_refused_in_words():
    made = taught(learner(), 1)
    inputs = sessions()[0].train[0]
    with pytest.raises(ff.TaskError, match=r"not asked by name.* 2 classes met\. Leave task='task 0' out"):
        made.predict(inputs, "task 0")
    with pytest.raises(ff.TaskError, match="which was met before"):
        made.learn(replace(sessions()[0], name="again"))
    with pytest.raises(ff.TaskError, match="learn the first session"):
        learner().predict(inputs)
    with pytest.raises(ff.InputError, match=r"resample.* is 'epoch' or 'forward'; got 'batch'"):
        learner(resample="batch")
    with pytest.raises(ff.InputError, match="temperature"):
        learner(temperature=0)
    with pytest.raises(ff.InputError, match="exemplars"):
        learner(exemplars=-1)
    with pytest.raises(ff.InputError, match="answers by class means"):
        taught(learner(heads=HEADS["linear"]), 1)
