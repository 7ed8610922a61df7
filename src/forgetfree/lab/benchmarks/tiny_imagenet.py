"""TinyImageNet: forty tasks of five classes, in an order that the seed draws.

As in the code that made the published numbers: 450 images of a class to learn, 50 (10 %) to validate, the 50 of the
official `val/` to test; 3×64×64 pixels, normalised with the mean and deviation of ImageNet. There, training
images are also cropped and mirrored at random: `augmentation="crop_and_flip"`.
"""

import random
from pathlib import Path

import torch
from torch import Tensor

from forgetfree.errors import DataError
from forgetfree.lab.benchmarks.few_shot import Augmentation, augmenting
from forgetfree.lab.benchmarks.sources import TINY_CLASSES
from forgetfree.lab.benchmarks.sources import tiny_imagenet as photographs
from forgetfree.lab.benchmarks.stream import Benchmark, Notes, Part, check_count, from_parts, shuffled_parts

CLASSES = 5
"""In a task."""
MOST_TASKS = TINY_CLASSES // CLASSES
HELD_OUT = 0.1
FEWEST = 10
"""Images of a class to learn and validate, so that one validates."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def tiny_imagenet(
    *,
    tasks: int = 40,
    wide_heads: bool = False,
    augmentation: Augmentation = "none",
    seed: int = 0,
    data_root: str | Path | None = None,
    limit: int | None = None,
) -> Benchmark:
    """Forty tasks, or the first few of them; the seed chooses the order of the classes and what validates.

    `wide_heads` gives every task 200 outputs, as in the released code. `augmentation` changes images while they are
    trained on, and not those that validate or test. A file that holds a part of the images is taken
    too, and the notes say so. `limit` takes so many images of each part of a task, its classes in turn, for a quick
    look.
    """
    check_count("tasks", tasks, MOST_TASKS)
    check_count("limit", limit)
    data, names = photographs(data_root, subset=True)
    if len(names) < CLASSES * tasks:
        raise DataError(f"{tasks} tasks need {CLASSES * tasks} classes; there are {len(names)}.")
    fewest, name = min(zip(data.train_labels.bincount().tolist(), names, strict=True))
    if fewest < FEWEST:
        raise DataError(f"a class needs {FEWEST} images, so that one validates; {name} has {fewest}.")
    order = list(range(len(names)))
    random.Random(seed).shuffle(order)  # the same as the released code's, which seeds Python's own generator
    groups = [order[CLASSES * t : CLASSES * (t + 1)] for t in range(tasks)]

    def samples(t: int, part: Part) -> tuple[Tensor, Tensor]:
        images, labels = (data.test, data.test_labels) if part == "test" else (data.train, data.train_labels)
        found = [(labels == label).nonzero().flatten() for label in groups[t]]
        if part != "test":
            found = [_part_of(positions, part, seed) for positions in found]
        chosen, answers = _in_turn(found)
        return _normalised(images[chosen[:limit]]), answers[:limit]

    classes = [tuple(names[label] for label in group) for group in groups]
    first = None if limit is None else f"{limit} images of each part of a task"
    subset = "; ".join(words for words in (data.subset_of("tiny-imagenet"), first) if words)
    notes: Notes = {"subset": subset} if subset else {}
    outputs = TINY_CLASSES if wide_heads else None
    augment = augmenting(augmentation, MEAN, DEVIATION)
    return from_parts("tiny_imagenet", classes, samples, outputs=outputs, augment=augment, notes=notes)


def _part_of(positions: Tensor, part: Part, seed: int) -> Tensor:
    learned, held_out = shuffled_parts(len(positions), HELD_OUT, seed)
    return positions[learned if part == "train" else held_out]


def _in_turn(found: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The first of each class, then the second of each, and so on; and which class each belongs to."""
    turns = torch.cat([torch.arange(len(positions)) for positions in found]).argsort(stable=True)
    answers = torch.cat([torch.full_like(positions, label) for label, positions in enumerate(found)])
    return torch.cat(found)[turns], answers[turns]


def _normalised(images: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, DEVIATION))
    return images.float().div_(255).sub_(mean).div_(deviation)
