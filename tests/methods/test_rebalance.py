"""Rebalance: its three losses, class weights that stand or are imprinted, both first sessions, and the same bits."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import forgetfree as ff
from few_shots import accuracies, assert_same, backbone, sessions
from forgetfree.batches import Batch
from forgetfree.errors import InputError
from forgetfree.few_shot.exemplars import herding
from forgetfree.heads import CosineClassifier, linear_head
from forgetfree.methods.rebalance import Grown, imprinted, in_place_of, less_forget, margin_ranking
from forgetfree.testing import small_tasks

Rebalance, NCM = ff.METHODS["rebalance"], ff.METHODS["ncm"]
BASE = ff.Recipe(epochs=8, batch_size=16, lr=0.02)
SESSION = ff.Recipe(
    epochs=12, batch_size=16, optimizer="sgd", lr=0.05, momentum=0.9, weight_decay=5e-4, milestones=(8,), factor=0.1
)


def fresh(**settings):
    return Rebalance(backbone(), **{"recipe": BASE, "session": SESSION, "seed": 3, **settings})


def taught(tasks, **settings):
    learner = fresh(**settings)
    for task in tasks:
        learner.learn(task)
    return learner


@pytest.mark.parametrize("settings", [{}, {"first_classifier": "dense", "choose": "herding"}], ids=str)
def test_it_tells_old_and_new_classes_apart(settings):
    tasks, tests = sessions()
    learner = taught(tasks, session=replace(SESSION, epochs=24, milestones=(16,)), **settings)
    assert learner.base_name == settings.get("first_classifier", "cosine")
    assert min(accuracies(learner, tests)) > 0.6  # chance is 1 in 27


def test_without_kept_images_new_classes_are_learned_and_old_ones_forgotten():
    tasks, tests = sessions(1)
    learner = taught(tasks, exemplars=0)
    assert not learner.memory().training
    old, new = accuracies(learner, tests)
    assert old < 0.3 < 0.6 < new


def test_small_sessions_with_validation_are_learned():
    tasks = small_tasks()
    learner = taught(tasks)
    assert min(accuracies(learner, [task.valid for task in tasks])) > 0.6


def test_the_ranking_asks_nothing_where_the_margin_is_met():
    cosines = torch.tensor([[0.95, 0.0, 0.3, 0.4], [0.0, 0.9, 0.5, -1.0], [0.0, 0.0, 0.1, 0.2]])
    labels = torch.tensor([0, 1, 2])  # two old classes, two new ones
    assert float(margin_ranking(cosines[:1], labels[:1], 2, 0.5, 2)) == 0
    assert float(margin_ranking(cosines[2:], labels[2:], 2, 0.5, 2)) == 0  # an image of a new class is not ranked
    torch.testing.assert_close(margin_ranking(cosines, labels, 2, 0.5, 2), torch.tensor(0.1 / 4))
    torch.testing.assert_close(margin_ranking(cosines, labels, 2, 0.5, 1), torch.tensor(0.1 / 2))
    torch.testing.assert_close(margin_ranking(cosines, labels, 2, 0.5, 9), torch.tensor(0.1 / 4))


def test_less_forget_is_about_directions():
    before = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert float(less_forget(3 * before, before)) == 0
    torch.testing.assert_close(less_forget(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), before), torch.tensor(0.5))


def test_the_loss_of_a_session_is_the_sum_of_its_three():
    (first, second, *_), _ = sessions()
    learner = taught([first], less_forget=3.0, ranking=2.0, margin=0.8, closest=1)
    module = learner.task_modules("session 0")["backbone"]
    with learner.learning(second) as session:
        session.eval()
        inputs, labels = session.task.train
        head = session.head
        with torch.no_grad():
            some = module(inputs).any(1)  # features that are all zero have no direction to keep
            inputs, labels = inputs[some], labels[some]
            features = module(inputs)
            classes = F.cross_entropy(head(features), labels)
            ranked = margin_ranking(head.cosines(features), labels, 12, 0.8, 1)
            assert float(ranked) > 0.01
        # at the first step features are what they were
        torch.testing.assert_close(session.loss(Batch(inputs, labels)).detach(), classes + 2.0 * ranked)
        with torch.no_grad():
            session.moving()["network.3.weight"].normal_()
            turned = session.model.network(inputs, learner.network.everything)
            classes = F.cross_entropy(head(turned), labels)
            ranked = margin_ranking(head.cosines(turned), labels, 12, 0.8, 1)
            pulled = 3.0 * math.sqrt(12 / 5) * less_forget(turned, features)
        torch.testing.assert_close(session.loss(Batch(inputs, labels)).detach(), classes + 2.0 * ranked + pulled)


def test_new_class_weights_are_mean_directions_with_the_mean_length_of_the_old():
    (first, second, *_), _ = sessions()
    learner = taught([first])
    module, old = learner.task_modules("session 0").values()
    with learner.learning(second) as session:
        head = session.head
        assert torch.equal(head.old, old.weight)
        assert torch.equal(head.scale, old.scale)
        torch.testing.assert_close(head.new.norm(dim=1), old.weight.norm(dim=1).mean().expand(5))
        seen = F.normalize(module(second.train[0][second.train[1] == 4]), dim=1).mean(0)
        torch.testing.assert_close(F.normalize(head.new[4], dim=0), F.normalize(seen, dim=0))


def test_old_class_weights_stand_and_new_ones_and_the_scale_move():
    (first, second, *_), _ = sessions()
    learner = taught([first])
    before = learner.task_modules("session 0")["head"]
    with learner.learning(second) as session:
        start = session.head.new.detach().clone()
    learner.learn(second)
    after = learner.task_modules("session 1")["head"]
    assert isinstance(after, CosineClassifier)
    assert after.weight.shape == (17, 16)
    assert torch.equal(after.weight[:12], before.weight)
    assert not torch.equal(after.weight[12:], start)
    assert not torch.equal(after.scale, before.scale)


def test_a_grown_classifier_answers_as_one():
    old = CosineClassifier(4, 3, scale=7.0)
    head = Grown(old, F.normalize(torch.randn(2, 4), dim=1))
    features = torch.randn(6, 4)
    assert torch.equal(head(features), head.whole()(features))
    torch.testing.assert_close(head(features)[:, :3], old(features))
    assert set(dict(head.named_parameters())) == {"new", "scale"}


def test_in_place_of_a_linear_classifier_stand_mean_directions_and_the_length_of_its_scores():
    features, labels = torch.rand(10, 4), torch.arange(10) % 2
    linear = nn.Linear(4, 2)
    head = in_place_of(linear, features, labels)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(2))
    assert torch.equal(head.weight, imprinted(features, labels, [0, 1]))
    torch.testing.assert_close(head.scale, features.norm(dim=1).mean() * linear.weight.norm(dim=1).mean())


def test_the_dense_first_session_is_the_network_that_ncm_learns(tmp_path):
    (first, second, *_), tests = sessions()
    path = tmp_path / "base"
    plain = NCM(backbone(), recipe=BASE, seed=3)
    plain.learn(first, checkpoint=path)
    learner, epochs = fresh(first_classifier="dense"), []
    learner.learn(first, checkpoint=path, progress=epochs.append)
    assert not epochs  # all was there
    assert all(torch.equal(value, plain.memory().shared[name]) for name, value in learner.memory().shared.items())
    assert accuracies(learner, tests[:1])[0] > 0.8
    learner.learn(second)
    assert_same(learner, taught([first, second], first_classifier="dense"))
    with pytest.raises(InputError, match="checkpoint of another learning"):
        fresh(first_classifier="cosine").learn(first, checkpoint=path)


@pytest.mark.parametrize("choose", ["random", "herding"])
def test_kept_images_are_of_their_class_and_counted(choose):
    (first, second, *_), _ = sessions()
    learner = taught([first, second], exemplars=3, choose=choose)
    images = {name: value for name, value in learner.memory().training.items() if name.startswith("exemplars.")}
    assert list(images) == [f"exemplars.{label}" for label in range(17)]
    for label in range(17):
        inputs, labels = first.train if label < 12 else second.train
        own = inputs[labels == label % 12]
        places = [[torch.equal(image, other) for other in own].index(True) for image in images[f"exemplars.{label}"]]
        assert len(set(places)) == 3  # no image twice
        if choose == "herding" and label >= 12:
            features = learner.task_modules("session 1")["backbone"](own)
            assert places == herding(F.normalize(features, dim=1), 3)


def test_chance_chooses_other_images_of_each_class_and_for_each_seed():
    (first, *_), _ = sessions()
    inputs, labels = first.train
    chosen = {}
    for seed in (3, 4):
        kept_images = taught([first], seed=seed).replay.kept
        chosen[seed] = [
            tuple([torch.equal(image, other) for other in inputs[labels == label]].index(True) for image in images)
            for label, images in kept_images.items()
        ]
    assert chosen[3] != chosen[4]
    assert len(set(chosen[3])) > 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_classifier": "linear"}, {"choose": "best"}, {"exemplars": -1}, {"less_forget": -1}, {"ranking": "1"},
        {"margin": math.nan}, {"closest": 0}, {"closest": True},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError, match=str(next(iter(wrong.values())))):
        fresh(**wrong)


@pytest.mark.parametrize("first", ["cosine", "dense"])
def test_heads_of_another_kind_are_refused(first):
    with pytest.raises(InputError, match="cosine_classifier"):
        fresh(heads=linear_head, first_classifier=first)
