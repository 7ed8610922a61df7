"""A benchmark is a stream of tasks to learn, and their tests, held apart so that no learner can see them.

Images are held once, as they are stored; a task's inputs are made from them when the task is asked for, and not held:
ten permuted copies of MNIST would be two gigabytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

import torch
from torch import Tensor

from forgetfree.contracts import Augment, Task
from forgetfree.errors import InputError
from forgetfree.rng import generator

Notes = Mapping[str, str | int | float | bool]
Part = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class TestSet:
    """Inputs and labels that only the protocol sees."""

    __test__ = False  # pytest takes classes of this name for tests

    inputs: Tensor
    labels: Tensor

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """In order, always the same batches: bit-identity is promised on the same batch."""
        for start in range(0, len(self.labels), size):
            yield self.inputs[start : start + size], self.labels[start : start + size]

    def some(self, count: int | None) -> "TestSet":
        """At most `count` of the samples, evenly spread over their order; None means all."""
        if count is None or count >= len(self.labels):
            return self
        chosen = torch.arange(count) * len(self.labels) // count
        return TestSet(self.inputs[chosen], self.labels[chosen])


@dataclass(frozen=True)
class Benchmark:
    """Tasks in the order they are learned, one test for each, and what a reader of its numbers must know."""

    name: str
    tasks: Sequence[Task]
    tests: Mapping[str, TestSet]
    notes: Notes = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks = self.tasks
        names = tasks.names if isinstance(tasks, TasksOnDemand) else tuple(task.name for task in tasks)
        if names != self.names:
            raise InputError(f"benchmark {self.name!r}: tests are for {self.names}, tasks are {names}.")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks in their order, without making a task."""
        return tuple(self.tests)


class TasksOnDemand(Sequence[Task]):
    """Tasks by position, each made anew, and the same, whenever it is asked for."""

    def __init__(self, names: Sequence[str], make: Callable[[int], Task]) -> None:
        self.names, self._make = tuple(names), make

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, at: int) -> Task: ...
    @overload
    def __getitem__(self, at: slice) -> "TasksOnDemand": ...
    def __getitem__(self, at: int | slice) -> "Task | TasksOnDemand":
        positions = range(len(self))[at]  # as a tuple would: from the end, and an IndexError beyond it
        if isinstance(positions, int):
            return self._make(positions)
        return TasksOnDemand(self.names[at], lambda t: self._make(positions[t]))


class TestSetsOnDemand(Mapping[str, TestSet]):
    """Test sets by the name of their task, each made anew, and the same, whenever it is asked for."""

    __test__ = False

    def __init__(self, names: Sequence[str], make: Callable[[int], TestSet]) -> None:
        self._positions, self._make = {name: t for t, name in enumerate(names)}, make

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __getitem__(self, name: str) -> TestSet:
        return self._make(self._positions[name])


def _as_stored(images: Tensor) -> Tensor:
    return images


@dataclass(frozen=True)
class Splits:
    """Training, validation and test images of one data set, labels 0 .. classes-1.

    `prepare` turns images as stored into inputs, each value by itself: it may be called before or after a permutation.
    """

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    prepare: Callable[[Tensor], Tensor] = _as_stored


def permuted(
    name: str, splits: Splits, permutations: Sequence[Tensor], classes: int, *, notes: Notes | None = None
) -> Benchmark:
    """One task per permutation: the same images with their values in another order."""

    def view(t: int, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return splits.prepare(images[:, permutations[t]]), labels

    return from_views(name, splits, [tuple(range(classes))] * len(permutations), view, notes=notes)


def split(name: str, splits: Splits, groups: Sequence[tuple[int, ...]], *, notes: Notes | None = None) -> Benchmark:
    """One task per group of classes; labels become positions in the group."""

    def view(t: int, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        chosen = torch.isin(labels, torch.tensor(groups[t]))
        positions = torch.full((max(int(labels.max()), *groups[t]) + 1,), -1)
        positions[torch.tensor(groups[t])] = torch.arange(len(groups[t]))
        return splits.prepare(images[chosen]), positions[labels[chosen]]

    return from_views(name, splits, groups, view, notes=notes)


def from_views(
    name: str,
    splits: Splits,
    classes: Sequence[tuple[int, ...]],
    view: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]],
    *,
    notes: Notes | None = None,
) -> Benchmark:
    """One task per entry of `classes`; `view(t, images, labels)` is what task t sees of a part of the data."""
    return from_parts(name, classes, lambda t, part: view(t, *getattr(splits, part)), notes=notes)


def from_parts(
    name: str,
    classes: Sequence[tuple[int | str, ...]],
    samples: Callable[[int, Part], tuple[Tensor, Tensor]],
    *,
    outputs: int | None = None,
    augment: Augment | None = None,
    notes: Notes | None = None,
) -> Benchmark:
    """One task per entry of `classes`; `samples(t, part)` makes its inputs and labels when they are asked for.

    `outputs` asks for heads wider than the task; `augment` changes images while they are trained on.
    """
    names = [f"{name} {t + 1}" for t in range(len(classes))]

    def task(t: int) -> Task:
        return Task(names[t], classes[t], samples(t, "train"), samples(t, "valid"), outputs=outputs, augment=augment)

    def test(t: int) -> TestSet:
        return TestSet(*samples(t, "test"))

    return Benchmark(name, TasksOnDemand(names, task), TestSetsOnDemand(names, test), notes or {})


def shuffled_parts(count: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Positions to learn and to validate among `count`: shuffled by scikit-learn, the first `fraction` validates."""
    from sklearn.utils import shuffle  # half a second, and only needed here

    order = torch.tensor(shuffle(range(count), random_state=seed))
    held_out = int(fraction * count)
    return order[held_out:], order[:held_out]


def check_count(what: str, given: int | None, most: int | None = None) -> None:
    """Refuse a number of tasks or of images that cannot be."""
    if given is not None and (given < 1 or (most is not None and given > most)):
        raise InputError(f"{what} is a whole number from 1{f' to {most}' if most else ''}; got {given}.")


def random_permutations(count: int, size: int, seed: int) -> list[Tensor]:
    """`count` orders of `size` values, each from its own stream of the seed."""
    return [torch.randperm(size, generator=generator(seed, "permutation", t)) for t in range(count)]


Exam = TestSet
"""Deprecated: the name it had before."""
ExamsOnDemand = TestSetsOnDemand
