"""5-Datasets: CIFAR-10, MNIST, SVHN, Fashion-MNIST and notMNIST, ten classes each, in this order.

As in the code that made the published numbers: 3×32×32 pixels, each data set with its own mean and deviation, 5 % to
validate; digits and clothes stand in a black edge, grey images fill three equal channels; no augmentation. The letters
are others: the released code reads 16 853 and 1 873 of them from a pickle, which is never opened here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from forgetfree.lab.benchmarks.sources import Images, cifar10, fashion_mnist, mnist, notmnist, svhn
from forgetfree.lab.benchmarks.stream import Benchmark, Notes, Part, check_count, from_parts, shuffled_parts

HELD_OUT = 0.05


@dataclass(frozen=True)
class Member:
    """One of the five: where it comes from, how it is normalised, what its labels mean."""

    source: str
    read: Callable[..., Images]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    classes: tuple[str, ...]


MEMBERS = (
    Member(
        "cifar10", cifar10, (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    Member("mnist", mnist, (0.1,), (0.2752,), tuple(f"mnist {digit}" for digit in range(10))),
    Member(
        "svhn", svhn, (0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197), tuple(f"svhn {digit}" for digit in range(10))
    ),
    Member(
        "fashion-mnist", fashion_mnist, (0.2190,), (0.3318,),
        ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    Member("notmnist", notmnist, (0.4254,), (0.4501,), tuple("ABCDEFGHIJ")),
)  # fmt: skip


def five_datasets(
    *, tasks: int = 5, seed: int = 0, data_root: str | Path | None = None, limit: int | None = None
) -> Benchmark:
    """Five tasks, or the first few of them; the seed chooses what validates.

    Files that hold a part of a data set are taken too, and the notes say so. `limit` takes the first so many images of
    each part of a task, for a quick look.
    """
    check_count("tasks", tasks, len(MEMBERS))
    check_count("limit", limit)
    members = MEMBERS[:tasks]
    data = [member.read(data_root, subset=True) for member in members]

    def samples(t: int, part: Part) -> tuple[Tensor, Tensor]:
        images, labels, test, test_labels = data[t]
        if part == "test":
            return _prepared(test[:limit], members[t]), test_labels[:limit].long()
        learned, held_out = shuffled_parts(len(labels), HELD_OUT, seed)
        chosen = (learned if part == "train" else held_out)[:limit]
        return _prepared(images[chosen], members[t]), labels[chosen].long()

    classes = [member.classes for member in members]
    return from_parts("five_datasets", classes, samples, notes=_notes(members, data, limit))


def _notes(members: tuple[Member, ...], data: list[Images], limit: int | None) -> Notes:
    lacking = [images.subset_of(member.source) for member, images in zip(members, data, strict=True)]
    first = None if limit is None else f"the first {limit} images of each part of a task"
    subset = "; ".join(words for words in (*lacking, first) if words)
    notes = {"subset": subset} if subset else {}
    if members[-1].source == "notmnist":
        letters = data[-1]
        notes["notmnist"] = (
            f"{len(letters.train)} letters to learn and validate, {len(letters.test)} to test; "
            "the released code has 16853 and 1873 others"
        )
    return notes


def _prepared(images: Tensor, member: Member) -> Tensor:
    if images.dim() == 3:  # grey
        edge = (32 - images.shape[-1]) // 2
        images = pad(images, (edge, edge, edge, edge)).unsqueeze(1).expand(-1, 3, -1, -1)
    mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in (member.mean, member.deviation))
    return images.float().div_(255).sub_(mean).div_(deviation)
