"""Exemplars: images of earlier classes that few-shot sessions train on again, and how they are chosen."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from forgetfree.contracts import Task, TaskRecord
from forgetfree.errors import InputError
from forgetfree.replay import ReplayStore
from forgetfree.samples import joined_data, samples_at, samples_of
from forgetfree.training.recipe import Recipe

REHEARSAL = Recipe(
    epochs=90, batch_size=120, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, milestones=(50, 70),
    factor=0.1,
)  # fmt: skip
"""How methods that move the whole network train a session on new and kept images."""


def rehearsing(task: Task, replay: ReplayStore) -> Task:
    """The session with the kept images of earlier classes among its own."""
    return replace(task, train=joined_data([task.train, replay.data()])) if replay else task


def with_shots(replay: ReplayStore, task: Task, known: int) -> ReplayStore:
    """The exemplars, and the first images of each class that is new in this session."""
    for label in range(known, len(task.classes)) if replay.per_class else ():
        replay = replay.with_class(label, samples_of(task.train, label))
    return replay


def with_chosen(
    replay: ReplayStore, task: Task, known: int, labels: Tensor, choose: Callable[[int, Tensor], list[int]]
) -> ReplayStore:
    """The exemplars, and of each new class those that `choose` (its label, where its images are) finds best."""
    for label in range(known, len(task.classes)) if replay.per_class else ():
        at = (labels == label).nonzero().flatten()
        replay = replay.with_class(label, samples_at(task.train, at[choose(label, at)].tolist()))
    return replay


def herding(features: Tensor, count: int) -> list[int]:
    """Positions of the samples whose running mean stays closest to the mean of all, the best first."""
    goal, total = features.double().mean(0), torch.zeros_like(features.double().sum(0))
    chosen: list[int] = []
    left = list(range(len(features)))
    while left and len(chosen) < count:
        reached = (total + features[left].double()) / (len(chosen) + 1)
        best = left[int((goal - reached).square().sum(1).argmin())]
        chosen.append(best)
        left.remove(best)
        total = total + features[best].double()
    return chosen


def check_classes(task: Task) -> None:
    """Refuse a class without an image before anything is trained; a Dataset is not read for this."""
    if isinstance(task.train, tuple | list):
        there = set(task.train[1].tolist())
        missing = [name for label, name in enumerate(task.classes) if label not in there]
        if missing:
            raise InputError(
                f"task {task.name!r}: no training image is of class {missing[0]!r}, so that it has no mean. Give "
                "images of it, or leave it out of the classes."
            )


def check_kept(replay: ReplayStore, learned: Mapping[str, TaskRecord]) -> None:
    """Refuse stored images that are not like those the first session was learned on, or of a class nobody met."""
    classes = sum(len(known.classes) for known in learned.values())
    for label, images in replay.kept.items():
        first = next(iter(learned.values())).inputs if learned else None
        if not 0 <= label < classes or first is None or tuple(images.shape[1:]) != first[0]:
            raise InputError(f"the stored exemplars of class {label} are not like what the sessions were learned on.")


def check_keepable(task: Task) -> None:
    """Refuse data that no single images can be kept of, before anything is learned."""
    data: Any = task.train
    if isinstance(data, tuple | list):
        single = isinstance(data[0], Tensor)
    elif isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        single = False
    else:
        single = hasattr(data[0][0], "__array__")  # tensors have it too
    if not single:
        raise InputError(
            f"task {task.name!r}: this method keeps images of every class, so that training data are one tensor of "
            "inputs with their labels, or a Dataset with a length whose samples are one tensor and a label."
        )
