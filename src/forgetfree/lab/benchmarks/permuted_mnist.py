"""Permuted MNIST: the ten digits in every task, the 784 pixels each time in another order.

As in the code that made the published numbers: 54 000 images to learn, the first 6 000 of the training set to
validate, 10 000 to test; every task is permuted, the first one too.
"""

from pathlib import Path

import torch
from torch import Tensor

from forgetfree.errors import InputError
from forgetfree.lab.benchmarks.sources import mnist
from forgetfree.lab.benchmarks.stream import Benchmark, Notes, Splits, permuted

MEAN, DEVIATION = 0.1307, 0.3081
PUBLISHED_TASKS = 10
MOST_TASKS = 100


def permuted_mnist(
    *, tasks: int = 10, seed: int = 0, data_root: str | Path | None = None, limit: int | None = None
) -> Benchmark:
    """Ten tasks as published, or the first few of them; more than ten follow the same rule, unpublished.

    `limit` takes the first so many images of each part, for a quick look.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is how many images of each part are used, at least 1; got {limit}.")
    permutations = mnist_permutations(tasks, seed)
    notes: Notes = {} if limit is None else {"subset": f"the first {limit} images of each of train, valid and test"}
    return permuted("permuted_mnist", _splits(data_root, limit), permutations, 10, notes=notes)


def mnist_permutations(tasks: int, seed: int) -> list[Tensor]:
    """The published orders of the 784 pixels: shuffle 0..9 by the seed; task i with number r shuffles by 100·r + i."""
    from sklearn.utils import shuffle  # half a second, and only needed here

    if not 1 <= tasks <= MOST_TASKS:
        raise InputError(
            f"permuted_mnist has 1 to {MOST_TASKS} tasks, got {tasks}: beyond that its permutations could repeat."
        )
    numbers = shuffle(range(max(tasks, PUBLISHED_TASKS)), random_state=seed)[:tasks]
    return [torch.tensor(shuffle(range(784), random_state=100 * number + i)) for i, number in enumerate(numbers)]


def _splits(root: str | Path | None, limit: int | None) -> Splits:
    images, labels, test, test_labels = mnist(root)
    images, test, labels, test_labels = images.flatten(1), test.flatten(1), labels.long(), test_labels.long()
    held_out = len(images) // 10
    return Splits(
        (images[held_out:][:limit], labels[held_out:][:limit]),
        (images[:held_out][:limit], labels[:held_out][:limit]),
        (test[:limit], test_labels[:limit]),
        _normalised,
    )


def _normalised(images: Tensor) -> Tensor:
    return images.float().div_(255).sub_(MEAN).div_(DEVIATION)
