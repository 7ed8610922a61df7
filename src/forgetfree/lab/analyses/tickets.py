"""Tickets: how many weights of each layer a task uses, how many of them are new, and how far two tasks agree.

Masks stay packed, eight weights in a byte: every question is an "and", an "or" and a count of bits.

PackNet's tickets hold all that earlier tasks kept, for a task answers with it: each contains the one before. What a
task of PackNet adds is new by construction.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forgetfree.lab import legend
from forgetfree.lab.analyses.subject import Advance, Subject
from forgetfree.lab.experiment import Plan
from forgetfree.tickets import Tickets

SETS = ("all used", "per task", "new per task", "reused per task", "reused for all tasks")
"""The five sets of the paper's layer-wise analysis, once a task is learned: used by it or an earlier one; used by it;
by it and none before; by it and one before; by it and all before. Nothing is reused at the first task."""

DIGITS = 5

Packed = NDArray[np.uint8]
"""The mask of one task over one layer; bits behind its last weight are zero."""

BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)
"""How many bits are set in each byte."""


def applies(plan: Plan) -> bool:
    method = legend.entry(plan.method)
    return method.tickets and method.scenario == "til"


def analyse(subject: Subject, advance: Advance) -> Mapping[str, Any]:
    """What the tickets of a run have in common.

    `weights`: layer → how many there are. `sets`: set → layer → how many are in it after each task. `uses`: layer → how
    many weights are used by none, by one, … by all tasks at the end. `agreement` and `correlation`: task by task, over
    all layers; see the functions of these names.
    """
    tickets: Tickets = subject.learner.memory().tickets
    names = list(tickets)
    weights = {layer: mask.shape.numel() for layer, mask in tickets[names[0]].masks.items()}
    sets: dict[str, dict[str, list[int]]] = {kind: {} for kind in SETS}
    uses = {}
    both = np.zeros((len(names), len(names)), np.int64)
    for done, layer in enumerate(weights):
        masks = [ticket.masks[layer].bits.numpy() for ticket in tickets.values()]
        for kind, counts in five_sets(masks).items():
            sets[kind][layer] = counts
        uses[layer] = times_used(masks, weights[layer])
        both += overlaps(masks)
        advance((done + 1) / len(weights))
    total = sum(weights.values())
    return {
        "tasks": names,
        "weights": weights,
        "sets": sets,
        "uses": uses,
        "agreement": agreement(both),
        "correlation": correlation(both, total),
    }


def five_sets(masks: Sequence[Packed]) -> dict[str, list[int]]:
    """Set → how many weights of a layer are in it after each task."""
    counts: dict[str, list[int]] = {kind: [] for kind in SETS}
    before, by_all = np.zeros_like(masks[0]), masks[0]
    for t, mask in enumerate(masks):
        by_all = by_all & mask
        reused_by_all = _count(by_all) if t else 0
        members = (_count(before | mask), _count(mask), _count(mask & ~before), _count(mask & before), reused_by_all)
        for kind, count in zip(SETS, members, strict=True):
            counts[kind].append(count)
        before = before | mask
    return counts


def times_used(masks: Sequence[Packed], weights: int) -> list[int]:
    """How many weights of a layer are used by exactly 0, 1, … of the tasks."""
    times = np.zeros(weights, np.int32)
    for mask in masks:
        times += np.unpackbits(mask, count=weights)
    found: list[int] = np.bincount(times, minlength=len(masks) + 1).tolist()
    return found


def overlaps(masks: Sequence[Packed]) -> NDArray[np.int64]:
    """How many weights of a layer two tasks both use, task by task."""
    both = np.zeros((len(masks), len(masks)), np.int64)
    for i, one in enumerate(masks):
        for j, other in enumerate(masks[: i + 1]):
            both[i, j] = both[j, i] = _count(one & other)
    return both


def agreement(both: NDArray[np.int64]) -> list[list[float]]:
    """Of the weights that the task of a row uses, the part that the task of a column uses as well.

    Two masks drawn at random agree in as much as the second one is large: half of all weights, if it has half of them.
    """
    return [[round(int(count) / max(1, int(row[i])), DIGITS) for count in row] for i, row in enumerate(both)]


def correlation(both: NDArray[np.int64], weights: int) -> list[list[float | None]]:
    """Pearson's correlation of two masks as maps of zeros and ones over all weights; None for one without contrast.

    Masks drawn at random are not correlated, however large they are; equal ones are at 1. The paper plots a "binary map
    correlation" without saying which, and the released code does not compute any.
    """
    used: list[int] = both.diagonal().tolist()
    spread = [sqrt(count * (weights - count)) for count in used]

    def of(i: int, j: int) -> float | None:
        if not spread[i] or not spread[j]:
            return None
        return round((weights * int(both[i, j]) - used[i] * used[j]) / (spread[i] * spread[j]), DIGITS)

    return [[of(i, j) for j in range(len(used))] for i in range(len(used))]


def _count(mask: Packed) -> int:
    return int(BITS[mask].sum(dtype=np.int64))
