"""Few-shot digits: scikit-learn's handwritten digits, 0 to 4 as base classes, then one a session, five images each.

Embedded, so that everything runs anywhere. A quarter of the images tests, drawn by the seed.
"""

import torch

from forgetfree.lab.benchmarks.few_shot import HELD_OUT, Labelled, check_split, sessions
from forgetfree.lab.benchmarks.stream import Benchmark, check_count
from forgetfree.rng import generator

BASE, MOST_TASKS = 5, 6
TESTED = 0.25


def fscil_digits(
    *,
    tasks: int = MOST_TASKS,
    shots: int = 5,
    draw: int = 0,
    held_out: float = HELD_OUT,
    hidden: int = 0,
    seed: int = 0,
) -> Benchmark:
    """Five digits, then five sessions of one, or the first few of them; seed and draw choose the shots."""
    check_count("tasks", tasks, MOST_TASKS)
    check_split("random", draw)
    from sklearn.datasets import load_digits  # half a second, and only needed here

    digits = load_digits()
    images, labels = torch.from_numpy(digits.data), torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=generator(seed, "digits"))
    tested = int(TESTED * len(order))
    train, test = (Labelled(images[part], labels[part]) for part in (order[tested:], order[:tested]))
    return sessions(
        "fscil_digits", train, test, range(10), order=range(10), base=BASE, ways=1, shots=shots, tasks=tasks,
        seed=seed, draw=draw, held_out=held_out, hidden=hidden, prepare=lambda values: values.float() / 16,
    )  # fmt: skip
