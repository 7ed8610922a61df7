"""CIFAR-100 Split: ten tasks of ten classes, in the order of their labels.

As in the code that made the published numbers: task t is the classes 10t .. 10t+9, 4 750 images to learn, 250 (5 %) to
validate, 1 000 to test; normalised with the mean and deviation of CIFAR-10; no augmentation.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from forgetfree.lab.benchmarks.sources import Cifar100, cifar100
from forgetfree.lab.benchmarks.stream import Benchmark, Notes, Part, check_count, from_parts, shuffled_parts

MEAN, DEVIATION = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
HELD_OUT = 0.05
FINE = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur",
    "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard",
    "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain",
    "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket",
    "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider",
    "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger",
    "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip
"""The names of the fine labels 0 .. 99."""


def cifar100_split(
    *,
    tasks: int = 10,
    wide_heads: bool = False,
    seed: int = 0,
    data_root: str | Path | None = None,
    limit: int | None = None,
) -> Benchmark:
    """Ten tasks, or the first few of them; the seed chooses what validates.

    `wide_heads` gives every task 100 outputs, as in the released code. `limit` takes the first so many images of
    each part of a task, for a quick look.
    """
    check_count("tasks", tasks, 10)
    groups = [tuple(range(10 * t, 10 * t + 10)) for t in range(tasks)]
    return class_groups(
        "cifar100_split", cifar100(data_root), groups, _normalised, seed=seed, wide_heads=wide_heads, limit=limit
    )


def class_groups(
    name: str,
    data: Cifar100,
    groups: Sequence[tuple[int, ...]],
    prepare: Callable[[Tensor], Tensor],
    *,
    seed: int,
    wide_heads: bool,
    limit: int | None,
    notes: Notes | None = None,
) -> Benchmark:
    """One task per group of fine labels, 5 % of its training images held out by the seed; `prepare` makes inputs."""
    check_count("limit", limit)
    subset: Notes = {} if limit is None else {"subset": f"the first {limit} images of each part of a task"}

    def samples(t: int, part: Part) -> tuple[Tensor, Tensor]:
        images, labels = (data.test, data.test_fine) if part == "test" else (data.train, data.fine)
        group = torch.tensor(groups[t])
        chosen = torch.isin(labels, group).nonzero().flatten()
        if part != "test":
            learned, held_out = shuffled_parts(len(chosen), HELD_OUT, seed)
            chosen = chosen[learned if part == "train" else held_out]
        chosen = chosen[:limit]
        return prepare(images[chosen]), torch.searchsorted(group, labels[chosen])  # groups are ascending

    names = [tuple(FINE[label] for label in group) for group in groups]
    outputs = len(FINE) if wide_heads else None
    return from_parts(name, names, samples, outputs=outputs, notes={**(notes or {}), **subset})


def _normalised(images: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(values).div(255).view(3, 1, 1) for values in (MEAN, DEVIATION))
    return images.float().div_(255).sub_(mean).div_(deviation)
