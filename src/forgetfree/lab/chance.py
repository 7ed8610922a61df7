"""Chance: tasks whose training loss never left that of guessing, so that their accuracy says nothing of the method."""

import math
from collections.abc import Mapping, Sequence

NOTE = "at chance"
"""The note of a record that says which tasks these are."""
NEARNESS = 0.03
"""A last training loss above ln(classes) less this is that of guessing."""
CLASSES = {
    "permuted_mnist": 10,
    "five_datasets": 10,
    "omniglot_rotation": 12,
    "cifar100_split": 10,
    "cifar100_superclass": 5,
    "tiny_imagenet": 5,
    "digits_permuted": 10,
    "digits_split": 2,
}
"""Benchmark → classes of a task, for records of before, which have no such note."""


def at_chance(
    tasks: Sequence[str], curves: Mapping[str, Sequence[Mapping[str, float]]], classes: Sequence[int]
) -> list[int]:
    """The numbers of the tasks, from 1, whose last training loss is that of guessing among their classes.

    A penalty that a method adds counts: a loss that it holds up there has not been learned from either.
    """
    stuck = []
    for number, (task, count) in enumerate(zip(tasks, classes, strict=True), 1):
        last = curves[task][-1].get("loss") if curves.get(task) else None
        if count > 1 and last is not None and last > math.log(count) - NEARNESS:
            stuck.append(number)
    return stuck


def words(stuck: Sequence[int], tasks: int) -> str:
    """What the note says."""
    return (
        f"the training loss of {len(stuck)} of {tasks} tasks never left that of guessing: {' '.join(map(str, stuck))}"
    )
