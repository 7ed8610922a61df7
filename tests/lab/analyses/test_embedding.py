"""Embedding: which images are shown, that their place is the same twice, and the silhouette by hand."""

import pytest
import torch

from forgetfree.lab.analyses import embedding
from forgetfree.lab.analyses.embedding import analyse, applies, chosen
from forgetfree.lab.analyses.subject import Subject
from forgetfree.lab.experiment import perform, plan
from forgetfree.lab.records import RunFolder


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """SoftNet after five digits and two more."""
    out = tmp_path_factory.mktemp("digits")
    (short,) = plan("fscil/digits", methods=["softnet"], scale="smoke")
    perform(short, out)
    return Subject(RunFolder(out / short.folder))


def test_even_base_classes_and_the_second_session_are_shown(digits):
    inputs, classes, novel = chosen(digits)
    assert sorted(set(classes.tolist())) == [0, 2, 4, 5]
    assert classes.bincount().tolist() == [20, 0, 20, 0, 20, 20]
    assert classes[novel].tolist() == [5] * 20
    assert len(inputs) == 80
    for number, name, label in ((2, "fscil_digits 1", 2), (5, "fscil_digits 2", 0)):
        exam = digits.benchmark.tests[name]
        of_class = {image.numpy().tobytes() for image in exam.inputs[exam.labels == label]}
        assert {image.numpy().tobytes() for image in inputs[classes == number]} <= of_class


def test_classes_and_images_are_bounded(digits, monkeypatch):
    monkeypatch.setattr(embedding, "MOST_CLASSES", 2)
    monkeypatch.setattr(embedding, "MOST_IMAGES", 3)
    _, classes, _ = chosen(digits)
    assert classes.tolist() == [0] * 3 + [2] * 3 + [5] * 3


def test_the_silhouette_is_that_by_hand_in_the_features_of_the_archive(digits):
    found = analyse(digits, lambda done: None)
    inputs, classes, novel = chosen(digits)
    with torch.no_grad():
        features = digits.learner.task_modules("fscil_digits 3")["backbone"](inputs).double()
    distance = torch.cdist(features, features)
    values = []
    for i, label in enumerate(classes):
        means = {int(c): float(distance[i][classes == c].sum()) for c in classes.unique()}
        own = means.pop(int(label)) / 19
        other = min(means.values()) / 20
        values.append((other - own) / max(own, other))
    by_hand = torch.tensor(values)
    expected = {"all": by_hand.mean(), "base": by_hand[~novel].mean(), "novel": by_hand[novel].mean()}
    assert found["silhouette"] == pytest.approx({part: float(value) for part, value in expected.items()}, abs=1e-4)


def test_an_embedding_is_the_same_twice_and_says_what_each_point_is(digits):
    told = []
    one, again = analyse(digits, told.append), analyse(digits, lambda done: None)
    assert one == again
    assert len(one["x"]) == len(one["y"]) == len(one["class"]) == len(one["novel"]) == 80
    assert [label for label, new in zip(one["class"], one["novel"], strict=True) if new] == [5] * 20
    assert one["sessions"] == 3
    assert told[-1] == 1


def test_it_is_of_subnetworks_with_more_than_one_session():
    wanted = {("fscil/digits", "softnet"): True, ("fscil/digits", "hardnet"): True, ("fscil/digits", "ncm"): False}
    for (experiment, method), expected in {**wanted, ("fscil/iris", "softnet"): False}.items():
        (one,) = plan(experiment, methods=[method])
        assert applies(one) is expected
