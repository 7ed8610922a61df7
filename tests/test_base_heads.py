"""Heads that a first session learns with: cosines, rotations as classes, noisy rows; and who takes them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import forgetfree as ff
from few_shots import backbone, sessions
from forgetfree.base_heads import BaseHead, CosineBase, turned
from forgetfree.batches import Batch
from forgetfree.contracts import Task
from forgetfree.errors import InputError
from forgetfree.methods import METHODS

RECIPE = ff.Recipe(epochs=2, batch_size=32, lr=0.01)
IMAGES = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


class Stopped(Exception):
    pass


def made(**settings):
    head = CosineBase(**settings)(16, Task("t", ("a", "b", "c"), (IMAGES, LABELS)))
    assert isinstance(head, BaseHead)
    return head


def test_scores_are_cosines_times_a_temperature():
    head, features = made(temperature=8.0), torch.randn(5, 16)
    expected = 8 * F.cosine_similarity(features.unsqueeze(1), head.weight.unsqueeze(0), dim=2)
    assert torch.allclose(head(features), expected, atol=1e-5)


@pytest.mark.parametrize(("rotations", "angles"), [(1, [0]), (2, [0, 2]), (4, [0, 1, 2, 3])])
def test_an_image_in_every_rotation_is_a_class_of_its_own(rotations, angles):
    head = made(rotations=rotations, smoothing=0.1)
    flat = nn.Flatten()
    seen = torch.cat([torch.rot90(IMAGES, angle, (2, 3)) for angle in angles])
    assert torch.equal(turned(IMAGES, rotations), seen)
    labels = torch.cat([LABELS * rotations + at for at in range(rotations)])
    expected = F.cross_entropy(head.joint(flat(seen)), labels, label_smoothing=0.1)
    assert torch.equal(head.session_loss(flat, Batch(IMAGES, LABELS)), expected)
    assert head(flat(IMAGES)).shape == (6, 3)
    assert torch.equal(head(flat(IMAGES)), head.joint(flat(IMAGES))[:, ::rotations])


def test_rows_are_noisy_only_while_they_learn():
    head, features = made(noise=True), torch.randn(4, 16)
    assert not torch.equal(head.train()(features), head(features))
    assert torch.equal(head.eval()(features), head(features))


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="rotations is 1, 2 or 4"):
        CosineBase(rotations=3)
    with pytest.raises(InputError, match="square images"):
        turned(torch.zeros(2, 8), 4)
    for wrong in ("cosine", "bayes", "cosine_base(rotation=4)", 3):
        with pytest.raises(InputError):
            METHODS["ncm"](backbone(), base_classifier=wrong)


@pytest.mark.parametrize("method", ["ncm", "softnet", "fsll", "crt", "bayes_means"])
def test_the_base_network_is_another_and_the_answers_are_of_the_usual_kind(method, tmp_path):
    given = {"capacity": 0.5} if method == "softnet" else {}
    tasks, tests = sessions(1)
    usual, other = (
        METHODS[method](backbone(), recipe=RECIPE, session=RECIPE, base_classifier=chosen, **given)
        for chosen in ("linear", "cosine_base(temperature=8.0)")
    )
    for learner in (usual, other):
        for task in tasks:
            learner.learn(task)
        if method == "crt":
            learner.finish()
    assert other.base_name != usual.base_name
    heads = [learner.task_modules(tasks[-1].name)["head"] for learner in (usual, other)]
    assert type(heads[0]) is type(heads[1])
    assert not torch.equal(usual.predict(tests[0][0]), other.predict(tests[0][0]))
    ff.save(other, tmp_path / "some.ticket")
    again = ff.load(tmp_path / "some.ticket", backbone())
    assert again.base_classifier == "cosine_base(temperature=8.0)"
    assert torch.equal(again.predict(tests[0][0]), other.predict(tests[0][0]))


def test_crt_on_another_base_goes_on_where_it_was_killed(tmp_path):
    tasks, tests = sessions(1)
    whole, killed, resumed = (
        METHODS["crt"](backbone(), recipe=RECIPE, session=RECIPE, base_classifier="cosine_base") for _ in range(3)
    )
    whole.learn(tasks[0])
    steps = []

    def stop(step):
        steps.append(step)
        if len([each for each in steps if each.finished]) == 3:  # in the classifier's first epoch
            raise Stopped

    with pytest.raises(Stopped):
        killed.learn(tasks[0], checkpoint=tmp_path / "some.safetensors", progress=stop)
    resumed.learn(tasks[0], checkpoint=tmp_path / "some.safetensors")
    assert torch.equal(resumed.predict(tests[0][0]), whole.predict(tests[0][0]))
