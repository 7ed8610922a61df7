"""A benchmark is a stream of tasks to learn, and their tests, held apart so that no learner can see them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from forgetfree.chance import stream
from forgetfree.contracts import Task
from forgetfree.errors import InputError


@dataclass(frozen=True)
class Exam:
    """Inputs and labels that only the protocol sees."""

    inputs: Tensor
    labels: Tensor

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """In order, always the same batches: bit-identity is promised on the same batch."""
        for start in range(0, len(self.labels), size):
            yield self.inputs[start : start + size], self.labels[start : start + size]


@dataclass(frozen=True)
class Benchmark:
    """Tasks in the order they are learned, one test for each, and what a reader of its numbers must know."""

    name: str
    tasks: tuple[Task, ...]
    tests: Mapping[str, Exam]
    notes: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        if list(self.tests) != names:
            raise InputError(f"benchmark {self.name!r}: tests are for {list(self.tests)}, tasks are {names}.")


@dataclass(frozen=True)
class Splits:
    """Training, validation and test images of one data set, labels 0 .. classes-1."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter((self.train, self.valid, self.test))


def permuted(
    name: str, splits: Splits, permutations: list[Tensor], classes: int, **notes: str | int | float | bool
) -> Benchmark:
    """One task per permutation: the same images with their values in another order."""
    tasks, tests = [], {}
    for t, order in enumerate(permutations):
        train, valid, test = ((images[:, order], labels) for images, labels in splits)
        task = Task(f"{name} {t + 1}", tuple(range(classes)), train, valid)
        tasks.append(task)
        tests[task.name] = Exam(*test)
    return Benchmark(name, tuple(tasks), tests, notes)


def split(name: str, splits: Splits, groups: list[tuple[int, ...]], **notes: str | int | float | bool) -> Benchmark:
    """One task per group of classes; labels become positions in the group."""
    tasks, tests = [], {}
    for t, classes in enumerate(groups):
        train, valid, test = (_only(images, labels, classes) for images, labels in splits)
        task = Task(f"{name} {t + 1}", classes, train, valid)
        tasks.append(task)
        tests[task.name] = Exam(*test)
    return Benchmark(name, tuple(tasks), tests, notes)


def random_permutations(count: int, size: int, seed: int) -> list[Tensor]:
    """`count` orders of `size` values, each from its own stream of the seed."""
    return [torch.randperm(size, generator=stream(seed, "permutation", t)) for t in range(count)]


def _only(images: Tensor, labels: Tensor, classes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    chosen = torch.isin(labels, torch.tensor(classes))
    positions = torch.full((int(labels.max()) + 1,), -1)
    positions[torch.tensor(classes)] = torch.arange(len(classes))
    return images[chosen], positions[labels[chosen]]
