"""Rotated and mixed images are classes of their own; the real ones come first and stay as they are."""

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, TensorDataset

from forgetfree.batches import batches, check_data
from forgetfree.contracts import Task
from forgetfree.errors import InputError
from forgetfree.rng import generator
from forgetfree.virtual import mixed, mixing_weights, pair_labels, real_labels, real_scores, rotate, rotated

IMAGES = torch.rand(10, 2, 5, 5, generator=generator(0, "images"))
LABELS = torch.arange(10) % 3
LABELS_OF_SIX = torch.arange(60) % 6
TASK = Task("pets", ("cat", "dog", 7), (IMAGES, LABELS), valid=(IMAGES[:4], LABELS[:4]))
AS_DATASET = Task("pets", ("cat", "dog", 7), TensorDataset(IMAGES, LABELS), valid=TASK.valid)


def chance():
    return generator(1, "virtual")


def test_every_class_comes_once_for_each_angle_and_the_real_ones_first():
    virtual = rotated(TASK)
    assert virtual.classes[:5] == ("cat", "dog", 7, "cat @90", "dog @90")
    assert virtual.classes[5:] == ("7 @90", "cat @180", "dog @180", "7 @180", "cat @270", "dog @270", "7 @270")
    inputs, labels = virtual.train
    for turn in range(4):
        part = slice(10 * turn, 10 * turn + 10)
        assert torch.equal(inputs[part], torch.rot90(IMAGES, turn, (2, 3)))
        assert torch.equal(labels[part], LABELS + 3 * turn)
    check_data(virtual)


def test_a_quarter_turn_is_counter_clockwise_and_four_of_them_are_none():
    image = torch.tensor([[[[1, 2], [3, 4]]]])
    assert rotate(image, 90).tolist() == [[[[2, 4], [1, 3]]]]
    assert torch.equal(rotate(rotate(rotate(rotate(IMAGES, 90), 90), 90), 90), IMAGES)
    with pytest.raises(InputError, match="multiples of 90 degrees; got 45"):
        rotate(IMAGES, 45)


def test_only_the_angles_that_are_asked_for_are_taken():
    virtual = rotated(TASK, (0, 180))
    assert virtual.classes == ("cat", "dog", 7, "cat @180", "dog @180", "7 @180")
    assert torch.equal(virtual.train[0][10:], IMAGES.flip(2, 3))
    assert rotated(Task("wide", ("a",), (IMAGES[:, :, :3], LABELS * 0)), (0, 180)).classes == ("a", "a @180")


@pytest.mark.parametrize("make", [rotated, lambda task: mixed(task, chance=chance(), times=2)])
def test_a_dataset_gives_the_same_images_as_its_tensors(make):
    of_tensors, of_dataset = make(TASK), make(AS_DATASET)
    assert of_tensors.classes == of_dataset.classes
    (batch,) = batches(of_dataset, of_dataset.train, 1000)
    assert torch.equal(batch.inputs, of_tensors.train[0])
    assert torch.equal(batch.labels, of_tensors.train[1])
    for outside in (-1, len(of_dataset.train)):
        with pytest.raises(IndexError):
            of_dataset.train[outside]


@pytest.mark.parametrize("make", [rotated, lambda task: mixed(task, chance=chance())])
def test_validation_data_and_scores_of_real_classes_stay_real(make):
    virtual = make(TASK)
    assert virtual.valid is TASK.valid
    assert virtual.classes[: virtual.real] == TASK.classes
    assert torch.equal(virtual.train[0][:10], IMAGES)
    assert torch.equal(virtual.train[1][:10], LABELS)
    scores = torch.randn(5, len(virtual.classes))
    assert torch.equal(real_scores(scores, virtual), scores[:, :3])


def test_real_labels_are_the_classes_that_a_virtual_one_is_made_from():
    assert real_labels(torch.tensor([1, 4, 11]), rotated(TASK)).tolist() == [[1, 1], [1, 1], [2, 2]]
    assert real_labels(torch.tensor([2, 3, 4, 5]), mixed(TASK, chance=chance())).tolist() == [
        [2, 2],
        [0, 1],
        [0, 2],
        [1, 2],
    ]


@given(classes=st.integers(2, 30))
def test_labels_of_pairs_are_those_of_alice_and_each_comes_once(classes):
    number = pair_labels(classes)
    for a, b in combinations(range(classes), 2):
        assert number[a, b] == number[b, a] == classes + ((2 * classes - a - 1) * a) // 2 + (b - a) - 1
    upper = number[tuple(torch.triu_indices(classes, classes, 1))]
    assert upper.tolist() == list(range(classes, classes + math.comb(classes, 2)))
    assert (number.diag() == -1).all()


@given(classes=st.integers(2, 12), pairs=st.integers(1, 80), seed=st.integers(0, 9))
def test_some_pairs_are_drawn_and_numbered_without_gaps_in_the_same_order(classes, pairs, seed):
    number = pair_labels(classes, pairs, generator(seed, "pairs"))
    upper = number[tuple(torch.triu_indices(classes, classes, 1))]
    drawn = upper[upper >= 0].tolist()
    assert drawn == list(range(classes, classes + min(pairs, math.comb(classes, 2))))
    assert torch.equal(number, number.T)


def test_a_mixture_is_of_both_its_images_and_has_the_label_of_their_pair():
    apart = IMAGES.repeat(6, 1, 1, 1) + torch.arange(60.0).view(-1, 1, 1, 1)
    many = Task("many", tuple(range(6)), (apart, LABELS_OF_SIX))
    virtual = mixed(many, chance=chance(), times=3)
    inputs, labels = virtual.train
    images, real = many.train
    assert 60 + 3 * 60 * 0.7 < len(labels) < 60 + 3 * 60
    flat, centre = images.flatten(1), inputs[60:].flatten(1)
    for mixture, label in zip(centre[:40], labels[60:100].tolist(), strict=True):
        a, b = real_labels(torch.tensor([label]), virtual)[0].tolist()
        assert a < b
        # the mixture lies on the line between an image of the one class and one of the other
        ones, others = flat[real == a], flat[real == b]
        gaps = [line_gap(mixture, one, other) for one in ones for other in others]
        assert min(gaps) < 1e-3


def line_gap(point, one, other) -> float:
    along = other - one
    share = ((point - one) @ along / (along @ along)).clamp(0.4, 0.6)
    return float((one + share * along - point).norm())


def test_only_pairs_that_were_drawn_are_mixed():
    six = Task("six", tuple("abcdef"), (IMAGES.repeat(6, 1, 1, 1), LABELS_OF_SIX))
    virtual = mixed(six, chance=chance(), pairs=4, times=5)
    assert len(virtual.classes) == 6 + 4
    assert virtual.classes[6:] == tuple(f"{'abcdef'[a]} + {'abcdef'[b]}" for a, b in virtual.parents[6:])
    assert set(virtual.train[1].tolist()) == set(range(10))


def test_the_same_chance_mixes_the_same_images_and_another_one_others():
    one, again, other = (mixed(TASK, chance=generator(seed, "mix")).train[0] for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert one.shape != other.shape or not torch.equal(one, other)


def test_mixing_weights_are_beta_distributed_and_one_half_outside_of_the_middle():
    weights = mixing_weights(40_000, generator(0, "weights"))
    assert weights.min() >= 0.4
    assert weights.max() <= 0.6
    inside = weights[weights != 0.5]
    beta = torch.distributions.Beta(20.0, 20.0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        drawn = beta.sample((40_000,))
    expected = drawn[(drawn >= 0.4) & (drawn <= 0.6)]
    assert abs(len(inside) / 40_000 - len(expected) / 40_000) < 0.015
    assert abs(inside.std() - expected.std()) < 0.001
    assert abs(inside.mean() - 0.5) < 0.001


def test_all_else_of_a_task_is_kept():
    def augment(inputs, chance):
        return inputs

    task = Task("pets", TASK.classes, TASK.train, loss="cross_entropy", augment=augment, outputs=3)
    for virtual in (rotated(task), mixed(task, chance=chance())):
        assert (virtual.name, virtual.loss, virtual.augment) == ("pets", "cross_entropy", augment)
        assert virtual.width == len(virtual.classes)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(IMAGES, LABELS, strict=True))


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Task("flat", ("a",), (IMAGES.flatten(1), LABELS * 0)), r"images, \[batch, .*got \[batch, 50\] of float32"),
        (Task("flat", ("a",), TensorDataset(IMAGES.flatten(1), LABELS * 0)), r"got \[batch, 50\] of float32"),
        (Task("two", ("a",), ((IMAGES, IMAGES), LABELS * 0)), "got a tuple"),
        (Task("wide", ("a",), (IMAGES[:, :, :3], LABELS * 0)), r"where they are square; got \[batch, 2, 3, 5\]"),
        (Task("stream", ("a",), Stream()), "is a stream"),
        (Task("depth", (), (IMAGES, IMAGES), loss="mse", outputs=1), "has no classes"),
        (Task("more", ("a",), (IMAGES, LABELS * 0), outputs=4), "asks for 4 outputs"),
        (rotated(TASK), "virtual classes already"),
    ],
)
def test_what_cannot_be_rotated_is_told(task, told):
    with pytest.raises(InputError, match=told):
        rotated(task)


@pytest.mark.parametrize("angles", [(), (90, 180), (0, 45), (0, 0), (90, 0)])
def test_angles_that_cannot_be_are_told(angles):
    with pytest.raises(InputError, match="0, the real images, comes first"):
        rotated(TASK, angles)


def test_what_cannot_be_mixed_is_told():
    with pytest.raises(InputError, match=r"mixed as floating-point numbers; got .* of uint8"):
        mixed(Task("bytes", TASK.classes, ((IMAGES * 255).byte(), LABELS)), chance=chance())
    with pytest.raises(InputError, match="has 1 class; images of two classes are mixed"):
        mixed(Task("one", ("a",), (IMAGES, LABELS * 0)), chance=chance())
    with pytest.raises(InputError, match="pairs, how many pairs"):
        mixed(TASK, chance=chance(), pairs=0)
