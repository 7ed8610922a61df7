"""scikit-learn's handwritten digits: 1 797 images of 8×8, embedded, so that everything runs anywhere.

60 % to learn, 15 % to validate, 25 % to test, drawn by the seed.
"""

import torch

from forgetfree.lab.benchmarks.stream import Benchmark, Splits, check_count, permuted, random_permutations, split
from forgetfree.rng import generator

MOST_TASKS = 1000
"""All permutations are made at once."""


def digits_permuted(*, tasks: int = 10, seed: int = 0) -> Benchmark:
    """The same ten digits in every task, the 64 pixels each time in another order."""
    check_count("tasks", tasks, MOST_TASKS)
    return permuted("digits_permuted", _splits(seed), random_permutations(tasks, 64, seed), 10)


def digits_split(*, seed: int = 0) -> Benchmark:
    """Five tasks of two digits each: 0 or 1, 2 or 3, and so on to 8 or 9."""
    return split("digits_split", _splits(seed), [(digit, digit + 1) for digit in range(0, 10, 2)])


def _splits(seed: int) -> Splits:
    from sklearn.datasets import load_digits  # half a second, and only needed here

    digits = load_digits()
    images, labels = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=generator(seed, "digits"))
    first, second = int(0.60 * len(order)), int(0.75 * len(order))
    train, valid, test = ((images[part], labels[part]) for part in (order[:first], order[first:second], order[second:]))
    return Splits(train, valid, test)
