"""Sampling by class: episodes (ways, shots, queries), and streams with as many images of every class.

for episode in episodes(task.train, ways=5, shots=1, queries=15, count=50, chance=generator(seed, "episodes")):
    prototypes = features(episode.support).view(5, 1, -1).mean(1)
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import IterableDataset

from forgetfree.batches import Batch
from forgetfree.checks import check_whole
from forgetfree.contracts import Data
from forgetfree.errors import InputError
from forgetfree.samples import Samples, labels_of, samples_at


@dataclass(frozen=True)
class Episode:
    """A small task made of a larger one: a few classes, some images of each to learn from and others to be tested on.

    Labels are positions in `classes`, 0 .. ways-1. Images come class by class, so that
    `support.unflatten(0, (ways, shots))` has a row for each class.
    """

    support: Tensor
    """[ways * shots, ...]"""
    support_labels: Tensor
    query: Tensor
    """[ways * queries, ...]; none of its images is in the support."""
    query_labels: Tensor
    classes: Tensor
    """[ways]: the labels that the classes have in the data."""

    @property
    def global_support_labels(self) -> Tensor:
        """The labels of the support as the data has them."""
        return self.classes[self.support_labels]

    @property
    def global_query_labels(self) -> Tensor:
        """The labels of the queries as the data has them."""
        return self.classes[self.query_labels]


def episodes(data: Data, *, ways: int, shots: int, queries: int, count: int, chance: Generator) -> Iterator[Episode]:
    """`count` episodes of `ways` classes, each with `shots` images to learn from and `queries` others to be tested on.

    Each episode draws its classes anew, all being equally likely, and then its images. Of a Dataset every sample is
    read once for its label, and those drawn once more.
    """
    check_whole("ways, how many classes an episode has,", ways, 1)
    check_whole("shots, how many images of a class an episode learns from,", shots, 1)
    check_whole("queries, how many other images of a class it is tested on,", queries)
    check_whole("count, how many episodes are drawn,", count)
    positions = _positions_by_class(data)
    if len(positions) < ways:
        raise InputError(f"an episode of {ways} ways needs as many classes; the data has {len(positions)}.")
    for label, at in positions.items():
        if len(at) < shots + queries:
            raise InputError(
                f"an episode asks for {shots} shots and {queries} queries of a class, {shots + queries} images; class "
                f"{label} has {len(at)}."
            )
    return (_episode(data, positions, ways, shots, queries, chance) for _ in range(count))


def balanced_batches(data: Data, *, per_class: int, chance: Generator) -> Iterator[Batch]:
    """Batches without end, each with the next `per_class` images of every class, class by class.

    A class gives all its images in a random order, then all again in another one, whatever the other classes do.
    """
    check_whole("per_class, how many images of a class are in a batch,", per_class, 1)
    positions = _positions_by_class(data)
    labels = torch.tensor(list(positions)).repeat_interleave(per_class)
    images = [_over_and_over(at, chance) for at in positions.values()]

    def drawn() -> Iterator[Batch]:
        while True:
            at = [position for of_class in images for position in islice(of_class, per_class)]
            yield Batch(samples_at(data, at), labels.clone())

    return drawn()


class Balanced(IterableDataset[tuple[Any, int]]):
    """As many images of every class, in an order drawn by a new `chance()` for every pass.

    A pass is as long as the largest class has images, times the number of classes. Classes take turns, in an order
    drawn anew for every round; in its turn a class gives its next `draws` images, and begins again, in another order,
    after its last.
    """

    def __init__(self, data: Data, draws: int, chance: Callable[[], Generator]):
        self._data = Samples(data)
        self._draws, self._chance = draws, chance
        self._classes = list(_positions_by_class(data).values())

    def __len__(self) -> int:
        return len(self._classes) * max(map(len, self._classes))

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return (self._data[at] for at in islice(self._drawn(self._chance()), len(self)))

    def _drawn(self, chance: Generator) -> Iterator[int]:
        """Positions without end: in a round every class has one turn."""
        images = [_over_and_over(positions, chance) for positions in self._classes]
        for number in _over_and_over(torch.arange(len(images)), chance):
            yield from islice(images[number], self._draws)


def _episode(
    data: Data, positions: Mapping[int, Tensor], ways: int, shots: int, queries: int, chance: Generator
) -> Episode:
    classes = torch.tensor(list(positions))[torch.randperm(len(positions), generator=chance)[:ways]]
    of_classes = [positions[label] for label in classes.tolist()]
    drawn = torch.cat([at[torch.randperm(len(at), generator=chance)[: shots + queries]] for at in of_classes])
    images = samples_at(data, drawn.tolist())
    by_class = images.reshape(ways, shots + queries, *images.shape[1:])
    support, query = by_class[:, :shots], by_class[:, shots:]  # [ways, shots, ...], [ways, queries, ...]
    numbers = torch.arange(ways)
    return Episode(
        support.flatten(0, 1), numbers.repeat_interleave(shots), query.flatten(0, 1),
        numbers.repeat_interleave(queries), classes,
    )  # fmt: skip


def _positions_by_class(data: Data) -> dict[int, Tensor]:
    """Where the samples of each class are, in the order of labels."""
    if isinstance(data, IterableDataset) or (isinstance(data, tuple | list) and not isinstance(data[0], Tensor)):
        given = type(data).__name__ if isinstance(data, IterableDataset) else f"inputs in a {type(data[0]).__name__}"
        raise InputError(
            f"images are drawn by class from one tensor of inputs with its labels, or from a Dataset; got {given}."
        )
    labels = labels_of(data)
    return {label: (labels == label).nonzero().squeeze(1) for label in sorted(set(labels.tolist()))}


def _over_and_over(values: Tensor, chance: Generator) -> Iterator[int]:
    """All values in a random order, then all in another one, without end."""
    while True:
        yield from values[torch.randperm(len(values), generator=chance)].tolist()
