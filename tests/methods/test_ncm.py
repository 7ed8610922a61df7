"""NCM: class means of a network that stands still; the simplest answer there is, and the floor for all others."""

from dataclasses import replace

import pytest
import torch

import forgetfree as ff
from few_shots import accuracies, backbone, kept, sessions
from forgetfree.heads import HEADS
from forgetfree.methods import METHODS, NCM

RECIPE = ff.Recipe(epochs=8, batch_size=32, lr=0.02)


def test_one_image_of_a_class_is_taken_for_its_own_class():
    tasks, _ = sessions(2, images=1, shots=1)
    learner = NCM(backbone(), recipe=RECIPE)
    for task in tasks:
        learner.learn(task)
    images = torch.cat([task.train[0] for task in tasks])
    assert torch.equal(learner.predict(images).argmax(1), torch.arange(len(learner.classes)))


def test_class_means_know_the_first_classes_about_as_well_as_the_classifier_they_were_trained_with():
    (base, *_), tests = sessions(1, images=40)
    noisy = replace(
        base, train=(base.train[0] + 1.5 * torch.randn(base.train[0].shape, generator=draws()), base.train[1])
    )
    found = []
    for method in ("ncm", "joint"):  # the same network: answered by class means, and by its linear classifier
        learner = METHODS[method](backbone(), recipe=RECIPE)
        learner.learn(noisy)
        found += accuracies(learner, tests[:1])
    assert 0.7 < min(found) < 1
    assert abs(found[0] - found[1]) < 0.03


def test_a_session_adds_its_means_and_changes_nothing_else():
    tasks, _ = sessions(2)
    learner = NCM(backbone(), recipe=RECIPE)
    learner.learn(tasks[0])
    before = kept(learner)
    learner.learn(tasks[1])
    after = kept(learner)
    for name, value in before.items():
        if name in after:
            assert torch.equal(after[name], value), name
    count, parts = len(tasks[0].classes), learner.task_modules(tasks[1].name)
    features = parts["backbone"](tasks[1].train[0])
    by_hand = torch.stack([features[tasks[1].train[1] == label].mean(0) for label in range(len(tasks[1].classes))])
    assert torch.allclose(parts["head"].means[count:], by_hand, atol=1e-6)
    assert torch.equal(parts["head"].means[:count], before[f"{tasks[0].name} means"])


def draws():
    return torch.Generator().manual_seed(7)


def test_normalised_means_are_those_of_features_of_length_one():
    tasks, _ = sessions(1)
    learners = {
        name: NCM(backbone(), recipe=RECIPE, heads=HEADS[name]) for name in ("euclidean", "cosine", "normalised")
    }
    for learner in learners.values():
        for task in tasks:
            learner.learn(task)
    parts = {name: learner.task_modules(tasks[1].name) for name, learner in learners.items()}
    features = parts["normalised"]["backbone"](tasks[1].train[0])
    own = tasks[1].train[1] == 0
    count, unit = len(tasks[0].classes), features / features.norm(dim=1, keepdim=True)
    mean = unit[own].mean(0)
    assert torch.allclose(parts["normalised"]["head"].rows[count], mean / mean.norm(), atol=1e-6)
    assert torch.allclose(parts["cosine"]["head"].means[count], features[own].mean(0), atol=1e-6)
    assert torch.equal(parts["cosine"]["head"].means, parts["euclidean"]["head"].means)
    answers = {name: learner.predict(tasks[1].train[0]) for name, learner in learners.items()}
    assert answers["normalised"].amax() <= 1 + 1e-6
    assert not torch.equal(answers["normalised"], answers["cosine"])


@pytest.mark.parametrize("method", ["f2m", "softnet", "warp"])
def test_sessions_train_against_means_of_features_as_they_are_whatever_answers(method):
    tasks, _ = sessions(2)
    given = {"capacity": 0.5, "drift_compensation": True} if method == "softnet" else {}
    learners = [METHODS[method](backbone(), recipe=RECIPE, heads=HEADS[name], **given) for name in ("euclidean", "lda")]
    for learner in learners:
        for task in tasks:
            learner.learn(task)
    means = [learner.task_modules(tasks[-1].name)["head"].means for learner in learners]
    assert torch.equal(*means)
    pairs = zip(*(learner.network.weights.values() for learner in learners), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_normalised_means_come_back_from_an_archive(tmp_path):
    tasks, tests = sessions(1)
    learner = NCM(backbone(), recipe=RECIPE, heads=HEADS["normalised"])
    for task in tasks:
        learner.learn(task)
    ff.save(learner, tmp_path / "some.ticket")
    again = ff.load(tmp_path / "some.ticket", backbone())
    assert torch.equal(again.predict(tests[1][0]), learner.predict(tests[1][0]))
    extra, _ = sessions(2)
    for each in (learner, again):
        each.learn(replace(extra[2], name="more"))
    assert torch.equal(again.predict(tests[1][0]), learner.predict(tests[1][0]))
