"""S3C: noisy cosine rows over classes and rotations, trained in sessions on a network that stands still."""

import pytest
import torch
from torch import nn

import forgetfree as ff
from few_shots import backbone, sessions
from forgetfree.base_heads import CosineBase
from forgetfree.contracts import Task
from forgetfree.errors import InputError
from forgetfree.methods.s3c import S3C, grown

RECIPE = ff.Recipe(epochs=2, batch_size=32, lr=0.01)
FEW = ff.Recipe(epochs=5, batch_size=64, lr=0.05, optimizer="sgd")
ROTATIONS = CosineBase(rotations=4, noise=True)


def images(classes, count, seed):
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 1, 6, 6, generator=draw)
    labels = torch.arange(classes).repeat_interleave(count)
    return centres[labels] + 0.3 * torch.randn(len(labels), 1, 6, 6, generator=draw), labels


def convolution():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 12), nn.ReLU())


def taught(count=2, **given):
    learner = S3C(convolution(), **({"recipe": RECIPE, "session": FEW, "heads": ROTATIONS} | given))
    learner.learn(Task("base", ("a", "b", "c", "d"), images(4, 20, 0)))
    for t in range(count):
        learner.learn(Task(f"more {t}", (f"{t}/a", f"{t}/b"), images(2, 5, 10 + t)))
    return learner


def test_the_network_stands_still_and_rows_learn():
    learner = taught(0)
    before, weights = learner.task_modules("base")["head"], {k: v.clone() for k, v in learner.network.weights.items()}
    learner.learn(Task("more", ("e", "f"), images(2, 5, 10)))
    head = learner.task_modules("more")["head"]
    assert all(torch.equal(learner.network.weights[name], value) for name, value in weights.items())
    assert head.weight.shape == ((4 + 2) * 4, 12)
    assert not torch.equal(head.weight[: 4 * 4], before.weight)
    means = learner.means["rows"]
    assert means.shape == head.weight.shape


def test_new_rows_begin_at_the_means_of_each_rotation_and_old_ones_where_they_were():
    learner = taught(session=ff.Recipe(epochs=1, batch_size=64, lr=0.0, optimizer="sgd"))
    head, means = learner.task_modules("more 1")["head"], learner.means["rows"]
    alike = nn.functional.cosine_similarity(head.weight[16:], means[16:])
    assert torch.allclose(alike, torch.ones(len(alike)), atol=1e-5)
    assert torch.equal(head.weight[:16], taught(0).task_modules("base")["head"].weight)


def test_an_image_that_looks_the_same_in_every_rotation_has_the_mean_of_its_four_scores():
    learner = taught()
    same = torch.ones(1, 1, 6, 6)
    parts = learner.task_modules("more 1")
    features = learner.network.answer("base")(same)
    rows = parts["head"].weight.view(8, 4, 12)
    expected = 16 * nn.functional.cosine_similarity(features.view(1, 1, 12), rows, dim=2).mean(1)
    assert torch.allclose(learner.predict(same), expected.unsqueeze(0), atol=1e-4)


def test_without_noise_and_rotations_it_is_a_cosine_classifier():
    tasks, tests = sessions(1)
    learner = S3C(backbone(), recipe=RECIPE, session=FEW, heads=CosineBase(temperature=16.0))
    for task in tasks:
        learner.learn(task)
    parts = learner.task_modules(tasks[1].name)
    features = parts["backbone"](tests[0][0])
    expected = 16 * nn.functional.cosine_similarity(features.unsqueeze(1), parts["head"].weight.unsqueeze(0), dim=2)
    assert torch.allclose(learner.predict(tests[0][0]), expected, atol=1e-4)


def test_old_means_hold_old_rows():
    free, held = taught(replay_weight=0.0), taught(replay_weight=50.0)
    means = free.means["rows"][:16]
    losses = [
        float(nn.functional.cross_entropy(each.task_modules("more 1")["head"].joint(means), torch.arange(16)))
        for each in (free, held)
    ]
    assert losses[1] < losses[0]


def test_a_grown_head_keeps_the_noise_of_its_rows():
    learner = taught(0)
    head = learner.task_modules("base")["head"]
    with torch.no_grad():
        head.noise.fill_(2.0)
    more = grown(head, torch.randn(4, 12))
    assert torch.equal(more.noise, torch.cat([torch.full((16, 12), 2.0), torch.zeros(4, 12)]))


def test_vectors_are_not_turned():
    tasks, _ = sessions(1)
    with pytest.raises(InputError, match="square images"):
        S3C(backbone(), recipe=RECIPE, heads=ROTATIONS).learn(tasks[0])
