"""Few-shot class-incremental streams: a base session of many classes, then sessions of a few classes with a few images.

Every session is a task. The first learns all images of the base classes but a part of each, which validates; a later
one is N-way K-shot: K images of each of N new classes, nothing to validate. No class comes twice. A task's test holds
its own classes only: a learner is tested on those of all sessions met so far.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset

from forgetfree.contracts import Augment, Data, Task
from forgetfree.errors import DataError, InputError
from forgetfree.lab.augmentation import AUGMENTATIONS
from forgetfree.lab.benchmarks.stream import Benchmark, Notes, TasksOnDemand, TestSet, TestSetsOnDemand, check_count
from forgetfree.rng import generator

HELD_OUT = 0.05
"""Fraction of each base class that validates, at least one image."""
HIDDEN_TEST = 0.2
"""Fraction of the training images of a class that tests where settings are chosen."""
IN_MEMORY = 1 << 30
"""Bytes: a base session with larger inputs is a Dataset that takes them one by one from the mapped images."""

Split = Literal["topic", "drawn_shots", "random"]
"""Classes in the order of their labels with the lists of images that TOPIC published, or with images drawn; or classes
drawn too."""


Augmentation = Literal["none", "crop_and_flip", "zoom_and_flip", "strong"]
"""How images are changed by chance while they are trained on."""


class Labelled(NamedTuple):
    """Images as they are stored and the class of each, a position in the names of all classes."""

    images: Tensor
    labels: Tensor

    def of_each_class(self, classes: int) -> tuple[Tensor, ...]:
        """The positions of the images of each class, ascending."""
        sizes = torch.bincount(self.labels, minlength=classes).tolist()
        return torch.split(self.labels.argsort(stable=True), sizes)


def sessions(
    name: str,
    train: Labelled,
    test: Labelled,
    names: Sequence[str | int],
    *,
    order: Sequence[int],
    base: int,
    ways: int,
    shots: int,
    tasks: int,
    seed: int,
    draw: int = 0,
    listed: Sequence[Tensor] | None = None,
    held_out: float = HELD_OUT,
    prepare: Callable[[Tensor], Tensor],
    augment: Augment | None = None,
    augment_sessions: bool = False,
    limit: int | None = None,
    hidden: int = 0,
    in_memory: int = IN_MEMORY,
    notes: Notes | None = None,
) -> Benchmark:
    """The first `base` classes of `order` as one task, then `tasks - 1` of `ways` classes with `shots` images each.

    `listed` gives the shots of every session after the first, as positions in `train`; without it they are drawn by
    the seed and `draw`, the number of a repetition. The base session depends on the seed alone. `prepare` turns stored
    images into inputs; `augment` changes those of the base session while it is trained, with `augment_sessions` those
    of all sessions. `limit` takes so many images of each class, for a quick look; shots stay as they are.

    With `hidden` it is a stream to choose settings on: so many base classes come in sessions, and nothing but training
    images of the base classes is seen, a fifth of which tests.
    """
    check_numbers(base=base, ways=ways, shots=shots, tasks=tasks, limit=limit)
    if not 0 < held_out < 1:
        raise InputError(f"held_out is the fraction of a base class that validates, in (0, 1); got {held_out}.")
    learned, tested = train.of_each_class(len(names)), test.of_each_class(len(names))
    if hidden:
        check_count("hidden", hidden, base - 2)
        test, order = train, _shuffled(order[:base], seed, "hidden classes")
        learned, tested = _divided(learned, seed)
        base, tasks, listed = base - hidden, min(tasks, 1 + hidden // ways), None
        notes = {**(notes or {}), "hidden": f"{hidden} base classes come in sessions; no test image is looked at"}
    groups = _groups(name, order, base, ways, tasks, names)
    if listed is not None and len(listed) < tasks - 1:
        raise DataError(f"{name}: session {len(listed) + 2} has no list of its images.")
    for t, group in enumerate(groups):
        _check_images(f"{name}: session {t + 1}", group, learned, tested, 2 if t == 0 else shots, names)
    parts = [_base_session(groups[0], learned, held_out, seed)]
    for t, group in enumerate(groups[1:], 2):
        if listed is None:
            chosen = [_some(learned[label], shots, seed, "shots", draw, label) for label in group]
        else:
            chosen = _from_list(f"{name}: session {t}", listed[t - 2], train.labels, group, shots, names)
        parts.append(_Parts(chosen, []))

    def data(found: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        chosen, labels = _one_after_another(found)
        return prepare(train.images[chosen]), labels

    def base_data(found: Sequence[Tensor]) -> Data:
        found = [shown[:limit] for shown in found]
        one = prepare(train.images[found[0][:1]])
        if sum(map(len, found)) * one.numel() * one.element_size() <= in_memory:
            return data(found)
        return Streamed(train.images, *_one_after_another(found), prepare)

    def task(t: int) -> Task:
        classes = tuple(names[label] for label in groups[t])
        if t == 0:
            return Task(
                titles[t], classes, base_data(parts[t].train), base_data(parts[t].valid), augment=augment
            )  # fmt: skip
        return Task(titles[t], classes, data(parts[t].train), augment=augment if augment_sessions else None)

    def test_set(t: int) -> TestSet:
        chosen, labels = _one_after_another([tested[label][:limit] for label in groups[t]])
        return TestSet(prepare(test.images[chosen]), labels)

    titles = [f"{name} {t + 1}" for t in range(tasks)]
    return Benchmark(
        name, TasksOnDemand(titles, task), TestSetsOnDemand(titles, test_set), _with_limit(notes or {}, limit)
    )


class Streamed(Dataset[tuple[Tensor, Tensor]]):
    """Chosen images and their labels, each made when it is asked for."""

    def __init__(self, images: Tensor, chosen: Tensor, labels: Tensor, prepare: Callable[[Tensor], Tensor]) -> None:
        self._images, self._chosen, self._labels, self._prepare = images, chosen, labels, prepare

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self._prepare(self._images[self._chosen[at]].unsqueeze(0))[0], self._labels[at]


def check_split(split: Split, draw: int) -> None:
    """Refuse a split that is not known, and a draw where nothing is drawn."""
    if split not in ("topic", "drawn_shots", "random"):
        raise InputError(f"split is 'topic', 'drawn_shots' or 'random'; got {split!r}.")
    if draw < 0 or (split == "topic" and draw):
        raise InputError(f"draw is the number of a random draw of shots, from 0; TOPIC's lists have one. Got {draw}.")


def class_order(split: Split, classes: int, seed: int) -> list[int]:
    """In which order classes come: that of their labels, as published, or one drawn by the seed."""
    return drawn_order(classes, seed) if split == "random" else list(range(classes))


def drawn_order(classes: int, seed: int) -> list[int]:
    """An order of classes by the seed."""
    return torch.randperm(classes, generator=generator(seed, "class order")).tolist()


def positions(name: str, lists: Sequence[Sequence[str]], files: Sequence[str]) -> list[Tensor]:
    """Where the images that each session's list names are among `files`."""
    places = {file: at for at, file in enumerate(files)}
    for t, listed in enumerate(lists, 2):
        missing = [file for file in listed if file not in places]
        if missing:
            raise DataError(f"{name}: session {t} lacks {len(missing)} of {len(listed)} images, as {missing[0]}.")
    return [torch.tensor([places[file] for file in listed]) for listed in lists]


def normalised(images: Tensor, *, mean: tuple[float, float, float], deviation: tuple[float, float, float]) -> Tensor:
    """Colours 0 .. 255 as numbers, each channel by its mean and deviation."""
    middle, width = (torch.tensor(values).view(3, 1, 1) for values in (mean, deviation))
    return images.float().div_(255).sub_(middle).div_(width)


def augmenting(
    name: Augmentation, mean: tuple[float, float, float], deviation: tuple[float, float, float]
) -> Augment | None:
    """The augmentation of this name, for images that are normalised by this mean and deviation."""
    if name not in ("none", *AUGMENTATIONS):
        raise InputError(f"augmentation is one of none, {', '.join(AUGMENTATIONS)}; got {name!r}.")
    if name == "none":
        return None
    return cast(Augment, _InColours(mean, deviation) if name == "strong" else AUGMENTATIONS[name])


@dataclass(frozen=True)
class _InColours:
    """The strong augmentation, which changes colours, on images that are normalised already."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        middle, width = (torch.tensor(values).view(3, 1, 1).to(images) for values in (self.mean, self.deviation))
        colours = images.mul(width).add_(middle).clamp_(0, 1)
        return AUGMENTATIONS["strong"](colours, generator).sub_(middle).div_(width)


def check_numbers(**given: int | None) -> None:
    """Refuse numbers of classes, images or tasks that cannot be."""
    for what, count in given.items():
        check_count(what, count)


@dataclass(frozen=True)
class _Parts:
    """Positions of the images of each class of a task."""

    train: Sequence[Tensor]
    valid: Sequence[Tensor]


def _groups(
    name: str, order: Sequence[int], base: int, ways: int, tasks: int, names: Sequence[str | int]
) -> list[list[int]]:
    starts = [0, *(base + ways * t for t in range(tasks))]
    met: dict[int, int] = {}
    for t in range(tasks):
        group, wanted = order[starts[t] : starts[t + 1]], starts[t + 1] - starts[t]
        if len(group) < wanted:
            raise DataError(f"{name}: session {t + 1} needs {wanted} classes; {len(group)} of {len(order)} are left.")
        for label in group:
            if label in met:
                raise DataError(
                    f"{name}: session {t + 1} needs new classes; {names[label]} is in session {met[label]} already."
                )
            met[label] = t + 1
    return [list(order[start:end]) for start, end in pairwise(starts)]


def _check_images(
    where: str,
    group: Sequence[int],
    learned: Sequence[Tensor],
    tested: Sequence[Tensor],
    fewest: int,
    names: Sequence[str | int],
) -> None:
    for label in group:
        if len(learned[label]) < fewest:
            raise DataError(f"{where} needs {fewest} images of {names[label]}; there are {len(learned[label])}.")
        if not len(tested[label]):
            raise DataError(f"{where} has no image of {names[label]} to test.")


def _base_session(group: Sequence[int], learned: Sequence[Tensor], held_out: float, seed: int) -> _Parts:
    orders = [_some(learned[label], len(learned[label]), seed, "validation", label) for label in group]
    counts = [min(max(1, int(held_out * len(order))), len(order) - 1) for order in orders]
    pairs = list(zip(orders, counts, strict=True))
    return _Parts([order[count:] for order, count in pairs], [order[:count] for order, count in pairs])


def _divided(found: Sequence[Tensor], seed: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The training images of each class in two parts, of which the second tests."""
    orders = [_some(images, len(images), seed, "hidden images", label) for label, images in enumerate(found)]
    counts = [max(1, round(HIDDEN_TEST * len(order))) for order in orders]
    pairs = list(zip(orders, counts, strict=True))
    return tuple(order[count:] for order, count in pairs), tuple(order[:count] for order, count in pairs)


def _shuffled(values: Sequence[int], seed: int, *words: int | str) -> list[int]:
    return [values[at] for at in torch.randperm(len(values), generator=generator(seed, *words)).tolist()]


def _some(found: Tensor, count: int, seed: int, *words: int | str) -> Tensor:
    return found[torch.randperm(len(found), generator=generator(seed, *words))[:count]]


def _from_list(
    where: str, listed: Tensor, labels: Tensor, group: Sequence[int], shots: int, names: Sequence[str | int]
) -> list[Tensor]:
    found = labels[listed].long()
    strange = [int(label) for label in found if int(label) not in group]
    if strange:
        raise DataError(f"{where} lists an image of {names[strange[0]]}, which is not one of its classes.")
    chosen = [listed[found == label] for label in group]
    for label, shown in zip(group, chosen, strict=True):
        different = len(set(shown.tolist()))
        if not shots == different == len(shown):
            raise DataError(f"{where} needs {shots} images of {names[label]}; its list has {different}.")
    return chosen


def _one_after_another(found: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """All positions, class by class, and which class each belongs to."""
    sizes = torch.tensor([len(shown) for shown in found])
    return torch.cat(list(found)), torch.arange(len(found)).repeat_interleave(sizes)


def _with_limit(notes: Notes, limit: int | None) -> Notes:
    if limit is None:
        return notes
    words = f"{limit} images of each class in every part but the shots"
    return {**notes, "subset": "; ".join(str(part) for part in (notes.get("subset"), words) if part)}
