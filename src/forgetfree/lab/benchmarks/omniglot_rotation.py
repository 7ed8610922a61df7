"""Omniglot Rotation: a hundred tasks of twelve characters, every drawing in four rotations under one label.

The first 1 200 of 1 623 characters in the order of their names, `Alphabet/character01`, by code point: the released
code takes them as the file system lists them, another order on every machine. Drawings are 32×32, black 0, white 1.
"""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from forgetfree.errors import DataError, InputError
from forgetfree.lab.benchmarks.sources import omniglot
from forgetfree.lab.benchmarks.stream import Benchmark, Notes, Part, check_count, from_parts
from forgetfree.rng import generator

CHARACTERS = 12
"""In a task."""
MOST_TASKS = 100
TESTED, VALIDATED = 0.25, 0.05
"""Fractions of each character's images: a quarter tests, 5 % (rounded, at least one) of the rest validates."""

Split = Literal["drawing", "released"]


def omniglot_rotation(
    *,
    tasks: int = 100,
    split: Split = "drawing",
    inverted: bool = False,
    seed: int = 0,
    data_root: str | Path | None = None,
) -> Benchmark:
    """A hundred tasks, or the first few of them; the seed chooses what is learned, what validates and what tests.

    By `"drawing"`, all four rotations of a drawing fall on one side: of the 20 drawings of a character 14 are learned,
    1 validates, 5 test. As `"released"`, the 80 rotated images are shuffled and 20 test, so that a test image may be a
    training image turned. The released code then validates on a copy of the 60 others, which says nothing; here 3 of
    them are held out and 57 learned.

    `inverted` makes ink one and paper zero. The released code leaves white paper at one, from which a network without
    norms learns several times slower.
    """
    check_count("tasks", tasks, MOST_TASKS)
    if split not in ("drawing", "released"):
        raise InputError(f"split is 'drawing' or 'released'; got {split!r}.")
    data = omniglot(data_root)
    if len(data.names) < CHARACTERS * tasks:
        raise DataError(f"{tasks} tasks need {CHARACTERS * tasks} characters; there are {len(data.names)}.")
    drawings = data.drawings.shape[1]

    def samples(t: int, part: Part) -> tuple[Tensor, Tensor]:
        inputs = []
        for character in range(CHARACTERS * t, CHARACTERS * (t + 1)):
            turned = torch.stack([torch.rot90(data.drawings[character], turn, (1, 2)) for turn in range(4)], dim=1)
            count = drawings if split == "drawing" else 4 * drawings
            chosen = _parts(count, seed, character)[part]
            inputs.append((turned if split == "drawing" else turned.flatten(0, 1))[chosen].reshape(-1, 1, 32, 32))
        labels = torch.arange(CHARACTERS).repeat_interleave(len(inputs[0]))
        images = torch.cat(inputs).float().div_(255)
        return 1 - images if inverted else images, labels

    classes = [data.names[CHARACTERS * t : CHARACTERS * (t + 1)] for t in range(tasks)]
    notes: Notes = {
        **({"split": "rotations of one drawing may be learned and tested"} if split == "released" else {}),
        **({"pixels": "inverted, ink is one"} if inverted else {}),
    }
    return from_parts("omniglot_rotation", classes, samples, notes=notes)


def _parts(count: int, seed: int, character: int) -> dict[Part, Tensor]:
    """Which of a character's drawings, or of its rotated images, belong to which part."""
    order = torch.randperm(count, generator=generator(seed, "omniglot", character))
    tested = round(TESTED * count)
    rest = order[tested:]
    validated = max(1, round(VALIDATED * len(rest)))
    return {"train": rest[validated:], "valid": rest[:validated], "test": order[:tested]}
