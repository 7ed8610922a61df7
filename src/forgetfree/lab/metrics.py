"""Metrics: ACC, BWT and FWT of accuracies, those of few-shot sessions, and the footprint of a memory (CAP).

`accuracy[t][i]` is the accuracy on task i after task t was learned; None where it was not measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from forgetfree.contracts import Memory
from forgetfree.errors import InputError

Matrix = Sequence[Sequence[float | None]]

BYTES = 4
"""Of a weight of the dense network that everything is compared with: float32."""
PAPER_ALPHA = 0.78
"""The compression rate of masks that the paper assumes: a mask bit costs 1 - 0.78 bits."""


@dataclass(frozen=True)
class Footprint:
    """What a memory costs, in units of one dense network's weights (32 bits each); heads are counted apart."""

    formula: float
    """The paper's CAP: used weights, plus 1 - 0.78 bits for every mask bit."""
    density: float
    """The part of the shared weights that some task uses."""
    weights: int
    """How many shared weights some task uses."""
    mask_bits: int
    """Bits of all masks, before any coding."""
    own: int
    """Values that single tasks own (biases, norms, statistics), heads apart."""
    heads: int
    """Values in heads."""
    extras: int = 0
    """Other values that a method needs to answer."""
    training: int = 0
    """Values kept between tasks only to learn the next one: scores, a Fisher matrix, bases."""
    written: float | None = None
    """Bytes of the archive that was really written, over those of one dense network; None where none was."""
    written_without_heads: float | None = None


def average_accuracy(accuracy: Matrix) -> float:
    """ACC: the mean over all tasks at the end."""
    last = [value for value in accuracy[-1] if value is not None]
    if len(last) != len(accuracy[-1]):
        raise InputError("ACC needs the accuracy of every task after the last one was learned.")
    return sum(last) / len(last)


def backward_transfer(accuracy: Matrix) -> float | None:
    """BWT: mean over the earlier tasks of accuracy at the end minus right after learning; None if not measured."""
    changes = [
        end - first
        for i, end in enumerate(accuracy[-1][:-1])
        if end is not None and (first := accuracy[i][i]) is not None
    ]
    return sum(changes) / len(changes) if changes and len(changes) == len(accuracy) - 1 else None


def forward_transfer(
    before: Sequence[float | None], random: Sequence[float], *, over: Literal["T", "T-1"] = "T-1"
) -> float | None:
    """FWT: by how much what was learned before beats a random network on the next task; None if not measured.

    `before[i]` is the accuracy on task i after task i-1, `random[i]` a random network's. The paper prints a division by
    T of a sum over T-1 tasks; most of its numbers are means over T-1.
    """
    gains = [value - random[i] for i, value in enumerate(before) if i and value is not None]
    if not gains or len(gains) != len(before) - 1:
        return None
    return sum(gains) / (len(before) if over == "T" else len(gains))


@dataclass(frozen=True)
class SessionAccuracy:
    """How well all classes met are told apart after one few-shot session."""

    overall: float
    """On the test images of all classes met."""
    base: float
    """On those of the first session's classes, answered among all classes met."""
    novel: float | None
    """On those of all later classes; None after the first session."""

    @property
    def harmonic(self) -> float | None:
        """The harmonic mean of base and novel: high only if both are."""
        if self.novel is None:
            return None
        both = self.base + self.novel
        return 2 * self.base * self.novel / both if both else 0.0


def session_accuracies(accuracy: Matrix, tested: Sequence[int]) -> list[SessionAccuracy | None]:
    """One entry per session, None where it was not measured; `tested[i]` is how many images session i is tested on."""
    measured: list[SessionAccuracy | None] = []
    for t, row in enumerate(accuracy):
        met = [value for value in row[: t + 1] if value is not None]
        if len(met) <= t:
            measured.append(None)
            continue
        right = [value * count for value, count in zip(met, tested, strict=False)]
        novel = sum(right[1:]) / sum(tested[1 : t + 1]) if t else None
        measured.append(SessionAccuracy(sum(right) / sum(tested[: t + 1]), met[0], novel))
    return measured


def performance_drop(sessions: Sequence[SessionAccuracy | None]) -> float | None:
    """Overall accuracy after the first session minus that after the last; None where one was not measured."""
    first, last = sessions[0], sessions[-1]
    return None if first is None or last is None else first.overall - last.overall


def footprint(memory: Memory, dense: int, *, sections: Mapping[str, int] | None = None, nbytes: int = 0) -> Footprint:
    """What `memory` costs; `dense` is the number of weights of one network.

    `sections` and `nbytes` are those of an archive that was written: bytes of its parts, and of the whole file.
    """
    floating = {name: value for name, value in memory.shared.items() if value.is_floating_point()}
    total = sum(value.numel() for value in floating.values())
    weights = sum(
        int(memory.used[name].unpack().sum()) if name in memory.used else value.numel()
        for name, value in floating.items()
    )
    mask_bits = sum(mask.shape.numel() for ticket in memory.tickets.values() for mask in ticket.masks.values())
    return Footprint(
        formula=weights / dense + (1 - PAPER_ALPHA) * mask_bits / (32 * dense),
        density=weights / max(total, 1),
        weights=weights,
        mask_bits=mask_bits,
        own=sum(value.numel() for ticket in memory.tickets.values() for value in ticket.own.values()),
        heads=sum(value.numel() for head in memory.heads.values() for value in head.values()),
        extras=sum(value.numel() for value in memory.extras.values()),
        training=sum(value.numel() for value in memory.training.values()),
        written=None if sections is None else nbytes / (BYTES * dense),
        written_without_heads=None if sections is None else (nbytes - sections["heads"]) / (BYTES * dense),
    )
