"""Few-shot miniImageNet: 60 base classes, then eight sessions of five classes, five photographs each, 3×84×84.

TOPIC's split has the classes in the order of WordNet's numbers and fixed lists of shots; its list of 100 photographs of
each class to test holds for every split. Normalised with the mean and deviation of ImageNet; of base photographs
random boxes are enlarged, and mirrored at random, while they are learned.
"""

from functools import partial
from pathlib import Path

from forgetfree.lab.benchmarks.few_shot import (
    HELD_OUT,
    Augmentation,
    Labelled,
    Split,
    augmenting,
    check_split,
    class_order,
    normalised,
    positions,
    sessions,
)
from forgetfree.lab.benchmarks.sources import mini_imagenet, session_lists
from forgetfree.lab.benchmarks.stream import Benchmark, Notes, check_count
from forgetfree.lab.benchmarks.tiny_imagenet import DEVIATION, MEAN

BASE, WAYS, SHOTS, MOST_TASKS = 60, 5, 5, 9


def fscil_mini_imagenet(
    *,
    split: Split = "topic",
    draw: int = 0,
    tasks: int = MOST_TASKS,
    held_out: float = HELD_OUT,
    hidden: int = 0,
    augmentation: Augmentation = "zoom_and_flip",
    augment_sessions: bool = False,
    seed: int = 0,
    data_root: str | Path | None = None,
    limit: int | None = None,
) -> Benchmark:
    """Nine sessions, or the first few of them; the seed chooses what validates.

    As `"drawn_shots"`, it chooses with `draw` the shots too, as in the tables that are means over ten draws; as
    `"random"`, also the order of the classes. `augmentation` is for the base session, with `augment_sessions` for all.
    A file that holds a part of the photographs is taken too, and the notes say so. `limit` takes so many of each class,
    for a quick look; shots stay as they are.
    """
    check_count("tasks", tasks, MOST_TASKS)
    check_count("limit", limit)
    check_split(split, draw)
    data = mini_imagenet(data_root, subset=True)
    images, listed = data.images, None
    if split == "topic":
        lists = [[file.rpartition("/")[2] for file in shots] for shots in session_lists("mini_imagenet", data_root)]
        listed = positions("fscil_mini_imagenet", lists[: tasks - 1], data.files)
    subset = images.subset_of("mini-imagenet")
    notes: Notes = {"subset": subset} if subset else {}
    return sessions(
        "fscil_mini_imagenet", Labelled(images.train, images.train_labels), Labelled(images.test, images.test_labels),
        data.names, order=class_order(split, len(data.names), seed), base=BASE, ways=WAYS, shots=SHOTS,
        tasks=tasks, seed=seed, draw=draw, listed=listed, held_out=held_out, hidden=hidden,
        prepare=partial(normalised, mean=MEAN, deviation=DEVIATION),
        augment=augmenting(augmentation, MEAN, DEVIATION), augment_sessions=augment_sessions, limit=limit, notes=notes,
    )  # fmt: skip
