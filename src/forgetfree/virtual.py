"""Virtual classes: images of a task are rotated or mixed, and what comes out are classes of their own.

    rotated(task)                       cat, dog, cat @90, dog @90, cat @180, …
    mixed(task, chance=chance)          cat, dog, bird, cat + dog, cat + bird, dog + bird

A network that must tell them apart learns features with room for classes still to come. Real classes come first and
keep their labels, so validation data stays as it is, and the scores of real classes are the first ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import combinations
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset, IterableDataset

from forgetfree.batches import signature
from forgetfree.checks import check_whole
from forgetfree.contracts import Data, Task
from forgetfree.errors import InputError
from forgetfree.samples import Samples, labels_of

ANGLES = (0, 90, 180, 270)
BETA = 20
"""Both parameters of the Beta distribution that mixtures are drawn from (ALICE)."""
MIXTURES = (0.4, 0.6)
"""A mixture outside of these is half and half: an image that is mostly of one class would have the wrong label."""


@dataclass(frozen=True)
class VirtualTask(Task):
    """A task with virtual classes after its real ones."""

    real: int = 0
    """How many of its classes are real: the first ones."""
    parents: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """By class: the labels of the two real classes that it is made from, twice the same one where it is of one."""


def rotated(task: Task, angles: Sequence[int] = ANGLES) -> VirtualTask:
    """The task with every class once for each angle (in degrees, counter-clockwise); 0 is the class itself.

    `task.augment` acts on rotated images. A horizontal flip makes a cat at 90° one at 270°, so leave flips out of it.
    """
    turns = _check_angles(task, angles)
    count = _check_classes(task)
    _check_images(task, square=any(turn % 2 for turn in turns))
    names = [name if not turn else f"{name} @{90 * turn}" for turn in turns for name in task.classes]
    if isinstance(task.train, tuple | list):
        inputs, labels = task.train
        assert isinstance(inputs, Tensor)
        images = torch.cat([_turned(inputs, turn) for turn in turns])
        train: Data = images, torch.cat([labels.long() + count * at for at in range(len(turns))])
    else:
        train = _Rotated(task.train, turns, count)
    return _virtual(task, names, train, [(label, label) for _ in turns for label in range(count)])


def mixed(task: Task, *, chance: Generator, pairs: int | None = None, times: int = 1) -> VirtualTask:
    """The task with a class for each pair of classes, or for so many `pairs` drawn by chance; its images are mixtures.

    `times` over, every image is paired with another one by chance; where both are of classes that make a pair, λ of the
    one and 1 - λ of the other are an image of that pair. λ is drawn from Beta(20, 20), and is 1/2 outside [.4, .6].
    """
    count = _check_classes(task)
    if count < 2:
        raise InputError(f"task {task.name!r} has {count} class; images of two classes are mixed.")
    check_whole("times, how often every image is paired with another,", times, 1)
    _check_images(task, floating=True)
    number = pair_labels(count, pairs, chance)
    labels = labels_of(task.train)
    one = torch.arange(len(labels)).repeat(times)
    other = torch.cat([torch.randperm(len(labels), generator=chance) for _ in range(times)])
    made = number[labels[one], labels[other]]
    one, other, made = (values[made >= 0] for values in (one, other, made))
    weight = mixing_weights(len(made), chance)
    if isinstance(task.train, tuple | list):
        inputs = task.train[0]
        assert isinstance(inputs, Tensor)
        mixtures = mix(inputs[one], inputs[other], weight)
        train: Data = torch.cat([inputs, mixtures]), torch.cat([labels, made]).to(task.train[1].device)
    else:
        train = _Mixed(task.train, one.tolist(), other.tolist(), weight, made.tolist())
    drawn = [pair for pair in combinations(range(count), 2) if number[pair] >= 0]
    names = [f"{task.classes[a]} + {task.classes[b]}" for a, b in drawn]
    parents = [*((label, label) for label in range(count)), *drawn]
    return _virtual(task, [*task.classes, *names], train, parents)


def real_scores(scores: Tensor, virtual: VirtualTask) -> Tensor:
    """The scores of the real classes: a real image is of one of these, whatever it looks like."""
    return scores[:, : virtual.real]


def real_labels(labels: Tensor, virtual: VirtualTask) -> Tensor:
    """The two real classes that each virtual one is made from, [labels, 2]; twice the same where it is of one."""
    return torch.tensor(virtual.parents, device=labels.device)[labels]


def rotate(images: Tensor, angle: int) -> Tensor:
    """Images [..., height, width] turned counter-clockwise by a multiple of 90 degrees, pixel for pixel."""
    if isinstance(angle, bool) or not isinstance(angle, int) or angle % 90:
        raise InputError(f"images are rotated by multiples of 90 degrees; got {angle!r}.")
    return _turned(images, angle // 90)


def pair_labels(classes: int, pairs: int | None = None, chance: Generator | None = None) -> Tensor:
    """The label of each pair of classes, [classes, classes], after those of the classes; -1 where there is none.

    Pairs are numbered (0, 1), (0, 2) … (1, 2) …: C + (2C - a - 1)·a/2 + (b - a) - 1 for a < b (ALICE). Where only some
    are drawn, these are numbered in the same order without gaps.
    """
    there = math.comb(classes, 2)
    taken = torch.arange(there)
    if pairs is not None and check_whole("pairs, how many pairs of classes are mixed,", pairs, 1) < there:
        taken = torch.randperm(there, generator=chance)[:pairs].sort().values
    number = torch.full((classes, classes), -1)
    a, b = torch.triu_indices(classes, classes, offset=1)[:, taken]  # in the order of the formula
    number[a, b] = number[b, a] = classes + torch.arange(len(taken))
    return number


def mixing_weights(count: int, chance: Generator) -> Tensor:
    """λ of `count` mixtures: from Beta(20, 20), and 1/2 where that is outside [.4, .6]."""
    # torch's Beta takes no generator; but the k-th smallest of 2k - 1 uniform numbers is Beta(k, k)
    drawn = torch.rand(count, 2 * BETA - 1, generator=chance).sort(dim=1).values[:, BETA - 1]
    low, high = MIXTURES
    return torch.where((drawn < low) | (drawn > high), 0.5, drawn)


def mix(one: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    """λ of the one and 1 - λ of the other, image by image."""
    share = weight.to(one).view(-1, *(1,) * (one.dim() - 1))
    return share * one + (1 - share) * other


class _Rotated(Dataset[tuple[Any, int]]):
    """All samples as they are, then all of them turned, and so on."""

    def __init__(self, data: Dataset[Any], turns: Sequence[int], classes: int):
        self._data, self._turns, self._classes = Samples(data), turns, classes

    def __len__(self) -> int:
        return len(self._turns) * len(self._data)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        number, sample = divmod(_checked_index(at, len(self)), len(self._data))
        image, label = self._data[sample]
        return _turned(image, self._turns[number]), label + number * self._classes


class _Mixed(Dataset[tuple[Any, int]]):
    """All samples as they are, then mixtures of two."""

    def __init__(
        self, data: Dataset[Any], one: Sequence[int], other: Sequence[int], weight: Tensor, labels: Sequence[int]
    ):
        self._data = Samples(data)
        self._one, self._other, self._weight, self._labels = one, other, weight, labels

    def __len__(self) -> int:
        return len(self._data) + len(self._labels)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        if _checked_index(at, len(self)) < len(self._data):
            return self._data[at]
        number = at - len(self._data)
        one, other = (self._data[position[number]][0] for position in (self._one, self._other))
        return mix(one[None], other[None], self._weight[number : number + 1])[0], self._labels[number]


def _virtual(task: Task, names: Sequence[int | str], train: Data, parents: Sequence[tuple[int, int]]) -> VirtualTask:
    same = {part.name: getattr(task, part.name) for part in fields(Task)}
    changed = {"classes": tuple(names), "train": train, "outputs": None}
    return VirtualTask(**{**same, **changed}, real=len(task.classes), parents=tuple(parents))


def _turned(images: Tensor, turns: int) -> Tensor:
    return torch.rot90(images, turns, (-2, -1))


def _checked_index(at: int, length: int) -> int:
    if not 0 <= at < length:
        raise IndexError(f"sample {at} of {length}.")
    return at


def _check_angles(task: Task, angles: Sequence[int]) -> list[int]:
    given = list(angles)
    if not given or given[0] != 0 or len(set(given)) != len(given) or not set(given) <= set(ANGLES):
        raise InputError(
            f"task {task.name!r} is rotated by different angles of {ANGLES}, and 0, the real images, comes first; got "
            f"{tuple(given)}."
        )
    return [angle // 90 for angle in given]


def _check_classes(task: Task) -> int:
    if isinstance(task, VirtualTask):
        raise InputError(f"task {task.name!r} has virtual classes already; make others of the real task.")
    if not task.classifies:
        raise InputError(f"task {task.name!r} has no classes learned by cross-entropy, so none can be made of them.")
    if task.width != len(task.classes):
        raise InputError(
            f"task {task.name!r} asks for {task.outputs} outputs; virtual classes come right after its "
            f"{len(task.classes)} real ones, so leave `outputs` out."
        )
    return len(task.classes)


def _check_images(task: Task, *, square: bool = False, floating: bool = False) -> None:
    """Refuse what is no image; of a Dataset the first one is looked at."""
    data = task.train
    if isinstance(data, IterableDataset):
        raise InputError(f"task {task.name!r} is a stream; virtual classes are made of tensors or of a Dataset.")
    inputs = data[0] if isinstance(data, tuple | list) else torch.as_tensor(data[0][0])[None]
    if not isinstance(inputs, Tensor) or inputs.dim() != 4:
        given = _words(inputs) if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
        raise InputError(
            f"task {task.name!r}: virtual classes are made of images, [batch, channels, height, width]; got {given}."
        )
    if square and inputs.shape[2] != inputs.shape[3]:
        raise InputError(
            f"task {task.name!r}: images turned by 90 degrees have the same shape where they are square; got "
            f"{_words(inputs)}."
        )
    if floating and not inputs.is_floating_point():
        raise InputError(f"task {task.name!r}: images are mixed as floating-point numbers; got {_words(inputs)}.")


def _words(inputs: Tensor) -> str:
    shape, kind = signature(inputs)
    return f"[{', '.join(['batch', *map(str, shape)])}] of {kind}"
