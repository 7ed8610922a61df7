"""Few-shot CIFAR-100: 60 base classes, then eight sessions of five classes, five images each.

TOPIC's split has the classes in the order of their labels and fixed lists of shots. As in F2M's code, images are
normalised with CIFAR-100's own mean and deviation, and base images are cropped and mirrored at random while they are
learned; not as there, what validates is held out of the base classes' training images, not their test images.
"""

from functools import partial
from pathlib import Path

import torch

from forgetfree.lab.benchmarks.cifar100_split import FINE
from forgetfree.lab.benchmarks.few_shot import (
    HELD_OUT,
    Augmentation,
    Labelled,
    Split,
    augmenting,
    check_split,
    class_order,
    normalised,
    sessions,
)
from forgetfree.lab.benchmarks.sources import cifar100, session_lists
from forgetfree.lab.benchmarks.stream import Benchmark, check_count

BASE, WAYS, SHOTS, MOST_TASKS = 60, 5, 5, 9
MEAN, DEVIATION = (0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)


def fscil_cifar100(
    *,
    split: Split = "topic",
    draw: int = 0,
    tasks: int = MOST_TASKS,
    held_out: float = HELD_OUT,
    hidden: int = 0,
    augmentation: Augmentation = "crop_and_flip",
    augment_sessions: bool = False,
    seed: int = 0,
    data_root: str | Path | None = None,
    limit: int | None = None,
) -> Benchmark:
    """Nine sessions, or the first few of them; the seed chooses what validates.

    As `"drawn_shots"`, it chooses with `draw` the shots too, as in the tables that are means over ten draws; as
    `"random"`, also the order of the classes. `augmentation` is for the base session, with `augment_sessions` for all.
    `limit` takes so many images of each class, for a quick look; shots stay as they are.
    """
    check_count("tasks", tasks, MOST_TASKS)
    check_split(split, draw)
    data = cifar100(data_root)
    listed = None
    if split == "topic":  # positions in the original order of the training images
        listed = [torch.tensor([int(at) for at in shots]) for shots in session_lists("cifar100", data_root)]
    return sessions(
        "fscil_cifar100", Labelled(data.train, data.fine), Labelled(data.test, data.test_fine), FINE,
        order=class_order(split, len(FINE), seed), base=BASE, ways=WAYS, shots=SHOTS, tasks=tasks, seed=seed, draw=draw,
        listed=listed, held_out=held_out, hidden=hidden, prepare=partial(normalised, mean=MEAN, deviation=DEVIATION),
        augment=augmenting(augmentation, MEAN, DEVIATION), augment_sessions=augment_sessions, limit=limit,
    )  # fmt: skip
