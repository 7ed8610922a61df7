"""Replay: images of earlier classes and tasks that are kept, to train on them again.

    store = ReplayStore(per_class=5)                    # exemplars: the best few of every class
    store = store.with_class(3, images)                 # the preferred first

    store = ReplayStore(size=200)                       # a reservoir: a fair sample of all that was seen
    store = store.reservoir(inputs, labels, task, chance)
    inputs, labels, tasks = store.sample(10, chance)

A store never changes: filling it gives another one, so that a session that fails leaves the old one behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from forgetfree.checks import check_whole
from forgetfree.errors import InputError
from forgetfree.forms import mapping, tensor

NO_TASK = -1
"""The task id of images that were kept without one."""


class Replay(NamedTuple):
    """Images to train on again, with the label of each and the id of its task (`NO_TASK` where it has none)."""

    inputs: Tensor
    labels: Tensor
    tasks: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class ReplayStore:
    """Either at most `per_class` images of every class, or at most `size` of all that were seen."""

    own_names: ClassVar[bool] = False
    per_class: int | None = None
    size: int | None = None
    kept: Mapping[int, Tensor] = field(default_factory=dict)
    """Images by class, the preferred first."""
    sampled: Replay | None = None
    """What a reservoir holds."""
    seen: int = 0
    """How many samples a reservoir was shown."""

    def __post_init__(self) -> None:
        if (self.per_class is None) == (self.size is None):
            raise InputError(
                "images are kept class by class, ReplayStore(per_class=5), or as a sample of all, "
                f"ReplayStore(size=200); got per_class={self.per_class!r} and size={self.size!r}."
            )
        if self.per_class is not None:
            check_whole("exemplars, how many images of a class are kept,", self.per_class)
        if self.size is not None:
            check_whole("size, how many samples a reservoir keeps,", self.size)

    def with_class(self, label: int, images: Tensor) -> "ReplayStore":
        """These, and the first `per_class` images of one class."""
        if self.per_class is None:
            raise InputError(
                "this store is a reservoir, filled by reservoir(…); for classes: ReplayStore(per_class=…)."
            )
        if not self.per_class:
            return self
        return replace(self, kept={**self.kept, label: images[: self.per_class].detach().clone()})

    def reservoir(self, inputs: Tensor, labels: Tensor, task: int | None, chance: Generator) -> "ReplayStore":
        """A store that has seen these samples too: each sample ever seen is in it with the same probability, size/n.

        The same samples in batches of another size give the same store.
        """
        if self.size is None:
            raise InputError("this store is filled by with_class(…); for a sample of all: ReplayStore(size=…).")
        given = _checked(inputs, labels, NO_TASK if task is None else task)
        old = self.sampled if self.sampled is not None else Replay(*(part[:0] for part in given))
        if any(
            one.shape[1:] != other.shape[1:] or one.dtype != other.dtype for one, other in zip(old, given, strict=True)
        ):
            raise InputError(
                f"a reservoir holds samples of one kind: inputs {_kind(old.inputs)} with labels {_kind(old.labels)}; "
                f"got {_kind(inputs)} with {_kind(labels)}."
            )
        places = self._places(len(labels), chance)
        length = min(self.size, self.seen + len(labels))
        sampled = Replay(*(_put(one, other, places, length) for one, other in zip(old, given, strict=True)))
        return replace(self, sampled=sampled, seen=self.seen + len(labels))

    def data(self) -> tuple[Tensor, Tensor]:
        """All inputs and labels, to train on."""
        everything = self._everything()
        return everything.inputs, everything.labels

    def sample(self, count: int, chance: Generator, *, replacement: bool = False) -> Replay:
        """`count` images drawn by chance; without `replacement` each at most once, and all where there are fewer."""
        everything = self._everything()
        if replacement:
            at = torch.randint(len(self), (count,), generator=chance)
        else:
            at = torch.randperm(len(self), generator=chance)[:count]
        return Replay(*(part[at.to(part.device)] for part in everything))

    def plain(self) -> dict[str, Tensor]:
        """All that is kept: images by class, or inputs, labels and tasks of a sample."""
        if self.sampled is not None:
            return dict(self.sampled._asdict())
        return {str(label): images for label, images in self.kept.items()}

    def tensors(self) -> dict[str, Tensor]:
        """All that is kept, by name: counted in the memory."""
        kind = "replay" if self.sampled is not None else "exemplars"
        return {f"{kind}.{name}": value for name, value in self.plain().items()}

    def to_state(self, *, resumable: bool = False) -> dict[str, Any]:
        """All that is kept as a tree of tensors and numbers; whoever learns on needs all of it, always."""
        if self.size is None:
            return dict(self.tensors())
        return {"seen": self.seen, "sampled": None if self.sampled is None else self.sampled._asdict()}

    def from_state(self, state: Mapping[str, Any], tickets: Any = None, seed: int = 0) -> "ReplayStore":
        """A store with the limits of this one that holds what `to_state` gave."""
        if self.size is None:
            mapping(tensor)(state, "exemplars")
            kept = {int(name.removeprefix("exemplars.")): images for name, images in state.items()}
            if any(images.dim() < 1 for images in kept.values()) or len({_of_one(each) for each in kept.values()}) > 1:
                raise InputError("the stored exemplars are not images of one shape and type.")
            return replace(self, kept=dict(sorted(kept.items())))
        sampled = None if state["sampled"] is None else Replay(**state["sampled"])
        if sampled is not None and len(sampled.labels) > self.size:
            raise InputError(f"{len(sampled.labels)} samples were kept; this reservoir has room for {self.size}.")
        return replace(self, sampled=sampled, seen=state["seen"])

    @classmethod
    def from_tensors(cls, per_class: int, tensors: Mapping[str, Tensor]) -> "ReplayStore":
        """Exemplars from their `tensors()`, in the order of labels."""
        return cls(per_class=per_class).from_state(tensors)

    @property
    def nbytes(self) -> int:
        """What the kept images, labels and task ids take."""
        return sum(value.nbytes for value in self.tensors().values())

    def __len__(self) -> int:
        held = [self.sampled.inputs] if self.sampled is not None else self.kept.values()
        return sum(map(len, held))

    def __bool__(self) -> bool:
        return len(self) > 0

    def to(self, device: torch.device | str) -> "ReplayStore":
        """The same store on another device; this one stays where it is."""
        return self.on(device)

    def on(self, device: torch.device | str) -> "ReplayStore":
        """A copy on another device."""
        kept = {label: images.to(device) for label, images in self.kept.items()}
        sampled = None if self.sampled is None else Replay(*(part.to(device) for part in self.sampled))
        return replace(self, kept=kept, sampled=sampled)

    def _everything(self) -> Replay:
        if not self:
            raise InputError("the store is empty: there is nothing to replay. Ask `if store:` first.")
        if self.sampled is not None:
            return self.sampled
        labels = torch.cat([torch.full((len(images),), label) for label, images in self.kept.items()])
        return Replay(torch.cat(list(self.kept.values())), labels, torch.full_like(labels, NO_TASK))

    def _places(self, count: int, chance: Generator) -> dict[int, int]:
        """Which of `count` new samples goes to which place (Vitter's Algorithm R); of two in one place the later."""
        assert self.size is not None
        places = {}
        for at, seen in enumerate(range(self.seen, self.seen + count)):
            # the n-th sample takes a place among the first n: one that exists with probability size/n
            place = seen if seen < self.size else int(torch.randint(seen + 1, (), generator=chance))
            if place < self.size:
                places[place] = at
        return places


def _checked(inputs: Tensor, labels: Tensor, task: int) -> Replay:
    if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor) or len(inputs) != len(labels):
        raise InputError(
            f"a reservoir is shown one tensor of inputs and as many labels; got {_kind(inputs)} and {_kind(labels)}."
        )
    return Replay(inputs.detach(), labels.detach(), torch.full((len(labels),), task, device=labels.device))


def _of_one(images: Tensor) -> tuple[Any, ...]:
    """Shape and type of one image."""
    return images.shape[1:], images.dtype


def _put(old: Tensor, new: Tensor, places: Mapping[int, int], length: int) -> Tensor:
    """A copy of `old`, grown to `length`, with some of `new` in these places."""
    held = old.new_empty((length, *old.shape[1:]))
    held[: len(old)] = old
    held[list(places)] = new.to(old.device)[list(places.values())]
    return held


def _kind(value: Any) -> str:
    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
