"""Tickets: what one task owns, and set algebra over the tickets of many.

A ticket is a binary mask over the shared weights (which of them the task uses) and the few tensors that are the
task's own: biases, norms, running statistics. Masks at rest are bit-packed: N weights cost N/8 bytes.

The algebra answers the questions of the paper's layer-wise analysis: which weights are used by anybody, new in a
task, reused by it, reused by all, and how far two tasks overlap.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from forgetfree.errors import TaskError


@dataclass(frozen=True)
class PackedMask:
    """A binary mask in one bit per weight, on the CPU, most significant bit first."""

    bits: Tensor
    shape: torch.Size

    @classmethod
    def pack(cls, mask: Tensor) -> "PackedMask":
        flat = (mask.detach() != 0).reshape(-1).cpu().numpy()
        return cls(torch.from_numpy(np.packbits(flat)), mask.shape)

    @classmethod
    def full(cls, shape: torch.Size) -> "PackedMask":
        """The mask that hides nothing."""
        return cls.pack(torch.ones(shape))

    def unpack(self, device: torch.device | str = "cpu") -> Tensor:
        """The mask as booleans."""
        flat = np.unpackbits(self.bits.numpy(), count=self.shape.numel()).astype(bool)
        return torch.from_numpy(flat).view(self.shape).to(device)

    @property
    def nbytes(self) -> int:
        return self.bits.numel()


@dataclass(frozen=True)
class Ticket:
    """What one task owns: its mask of every shared tensor, and its own tensors.

    `own` holds only what the task changed; the rest is the common start, stored once for all.
    """

    masks: Mapping[str, PackedMask]
    own: Mapping[str, Tensor] = field(default_factory=dict)

    def mask(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        return self.masks[name].unpack(device)


Tickets = Mapping[str, Ticket]
Sets = dict[str, Tensor]  # one boolean tensor per shared tensor


def used(tickets: Tickets) -> Sets:
    """Weights that at least one task uses: M_T, the accumulated mask (Algorithm 1, line 9)."""
    return _merge(tickets.values(), torch.logical_or)


def reused_by_all(tickets: Tickets) -> Sets:
    """Weights that every task uses."""
    return _merge(tickets.values(), torch.logical_and)


def new_in(tickets: Tickets, task: str) -> Sets:
    """Weights that `task` uses and no task before it did."""
    earlier = used(_before(tickets, task))
    return {name: mask & ~earlier[name] if earlier else mask for name, mask in _unpacked(tickets[task]).items()}


def reused_in(tickets: Tickets, task: str) -> Sets:
    """Weights that `task` uses and some task before it did too."""
    earlier = used(_before(tickets, task))
    return {
        name: mask & earlier[name] if earlier else torch.zeros_like(mask)
        for name, mask in _unpacked(tickets[task]).items()
    }


def overlap(one: Ticket, other: Ticket) -> Sets:
    """Weights that both tickets use."""
    return {name: mask & other.mask(name) for name, mask in _unpacked(one).items()}


@dataclass(frozen=True)
class CapacityReport:
    """How full a network is, and how many more tasks fit into it."""

    used: Mapping[str, int]
    """Weights of each layer that some task uses."""
    total: Mapping[str, int]
    new: Mapping[str, float]
    """Weights of each layer that the last tasks used and no task before them did, per task."""
    most: Mapping[str, int]
    """The largest number of weights of each layer that one task used and no task before it did."""

    @property
    def free(self) -> dict[str, int]:
        return {name: self.total[name] - self.used[name] for name in self.total}

    @property
    def tasks(self) -> int | None:
        """How many more tasks find as many free weights in every layer as the most demanding one took; None before it.

        It never rises as tasks are learned, and is 0 from when some layer has too few. That stops nothing: tasks mostly
        reuse what others use (see `new`), and where a layer is full they do so alone.
        """
        further = [self.free[name] // most for name, most in self.most.items() if most > 0]
        return min(further) if further else None


def capacity_report(tickets: Tickets, shapes: Mapping[str, torch.Size], last: int = 3) -> CapacityReport:
    """How much is left in layers of these shapes, going by the `last` tasks."""
    taken = {name: torch.zeros(shape, dtype=torch.bool) for name, shape in shapes.items()}
    fresh: dict[str, list[int]] = {name: [] for name in shapes}
    for ticket in tickets.values():
        for name, mask in _unpacked(ticket).items():
            fresh[name].append(int((mask & ~taken[name]).sum()))
            taken[name] |= mask
    return CapacityReport(
        {name: int(mask.sum()) for name, mask in taken.items()},
        {name: shape.numel() for name, shape in shapes.items()},
        {name: sum(counts[-last:]) / max(1, len(counts[-last:])) for name, counts in fresh.items()},
        {name: max(counts, default=0) for name, counts in fresh.items()},
    )


def density(sets: Sets) -> float:
    """The fraction of all weights that is in the set."""
    return sum(int(mask.sum()) for mask in sets.values()) / max(1, sum(mask.numel() for mask in sets.values()))


def _before(tickets: Tickets, task: str) -> Tickets:
    names = list(tickets)
    if task not in tickets:
        raise TaskError(f"no ticket for task {task!r}; there are tickets for {names}.")
    return {name: tickets[name] for name in names[: names.index(task)]}


def _unpacked(ticket: Ticket) -> Sets:
    return {name: mask.unpack() for name, mask in ticket.masks.items()}


def _merge(tickets: Iterable[Ticket], join: Callable[[Tensor, Tensor], Tensor]) -> Sets:
    merged: Sets = {}
    for ticket in tickets:
        for name, mask in _unpacked(ticket).items():
            merged[name] = join(merged[name], mask) if name in merged else mask
    return merged
