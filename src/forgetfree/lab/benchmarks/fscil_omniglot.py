"""Few-shot Omniglot: 200 handwritten characters as base classes, then ten sessions of five, five drawings each.

Of the 20 drawings of a character 5 test; a base character is learned from 14 and validated on 1. Drawings are 32×32,
ink is one and paper zero, and none is rotated. The paper has no such stream: real data, many classes, quickly learned.
"""

from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from forgetfree.contracts import Augment
from forgetfree.errors import DataError, InputError
from forgetfree.lab.augmentation import AUGMENTATIONS
from forgetfree.lab.benchmarks.few_shot import HELD_OUT, Labelled, check_numbers, drawn_order, sessions
from forgetfree.lab.benchmarks.sources import omniglot
from forgetfree.lab.benchmarks.stream import Benchmark
from forgetfree.rng import generator

TESTED = 5
"""Drawings of each character."""


def fscil_omniglot(
    *,
    base: int = 200,
    ways: int = 5,
    shots: int = 5,
    tasks: int = 11,
    draw: int = 0,
    held_out: float = HELD_OUT,
    augmentation: Literal["none", "slanted"] = "none",
    hidden: int = 0,
    seed: int = 0,
    data_root: str | Path | None = None,
) -> Benchmark:
    """`base` characters, then `tasks - 1` sessions; the seed chooses the characters and what tests, and with `draw` the
    shots. `augmentation` changes the drawings of the base session while it is learned."""
    check_numbers(base=base, ways=ways, shots=shots, tasks=tasks)
    if augmentation not in ("none", "slanted"):
        raise InputError(f"augmentation is none or slanted; got {augmentation!r}.")
    data = omniglot(data_root)
    needed, there = base + ways * (tasks - 1), len(data.names)
    if needed > there:
        raise DataError(
            f"{tasks} sessions of {base} and then {ways} classes need {needed} characters; there are {there}."
        )
    characters = drawn_order(there, seed)[:needed]
    drawn = data.drawings.shape[1]
    orders = [torch.randperm(drawn, generator=generator(seed, "omniglot", character)) for character in characters]

    def part(chosen: slice) -> Labelled:
        images = [data.drawings[character][order[chosen]] for character, order in zip(characters, orders, strict=True)]
        return Labelled(torch.cat(images), torch.arange(needed).repeat_interleave(len(images[0])))

    return sessions(
        "fscil_omniglot", part(slice(TESTED, None)), part(slice(TESTED)), [data.names[at] for at in characters],
        order=range(needed), base=base, ways=ways, shots=shots, tasks=tasks, seed=seed, draw=draw,
        held_out=held_out, hidden=hidden, prepare=_inked, augment=cast(Augment | None, AUGMENTATIONS.get(augmentation)),
    )  # fmt: skip


def _inked(drawings: Tensor) -> Tensor:
    return 1 - drawings.unsqueeze(1).float() / 255
