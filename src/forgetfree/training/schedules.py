"""Learning-rate schedules: by which factor the learning rate is multiplied when part of the training is done.

           1 |   ____            warm-up from 0 to 1, then by the schedule down to `floor`
             |  /    \\__
       floor | /        \\____
             +----------------
    progress   0            1

Progress is the fraction of the training that is done, in [0, 1]; `warmup` is a fraction of the training too.
"""

import math
from collections.abc import Callable

from forgetfree.checks import check_number
from forgetfree.errors import InputError

Schedule = Callable[[float], float]
"""Progress in [0, 1] -> the factor of the learning rate."""


def cosine(warmup: float = 0.0, floor: float = 0.0) -> Schedule:
    """Half a cosine from 1 to `floor`, after a linear warm-up."""
    return _after_warmup(lambda done: (1 + math.cos(math.pi * done)) / 2, warmup, floor)


def linear(warmup: float = 0.0, floor: float = 0.0) -> Schedule:
    """A straight line from 1 to `floor`, after a linear warm-up."""
    return _after_warmup(lambda done: 1 - done, warmup, floor)


def constant(warmup: float = 0.0, floor: float = 0.0) -> Schedule:
    """1 after a linear warm-up; a floor is never reached, so none is taken."""
    if floor:
        raise InputError(f"a constant learning rate has no floor; got floor={floor!r}.")
    return _after_warmup(lambda _: 1.0, warmup, floor)


SCHEDULES: dict[str, Callable[[float, float], Schedule]] = {"constant": constant, "cosine": cosine, "linear": linear}
"""(warmup, floor) -> Schedule, by name."""


def factor_at(name: str, progress: float, warmup: float = 0.0, floor: float = 0.0) -> float:
    """The factor of the schedule of this name when `progress` of the training is done."""
    if name not in SCHEDULES:
        raise InputError(f"there is no schedule {name!r}; there are {', '.join(SCHEDULES)}.")
    return SCHEDULES[name](warmup, floor)(progress)


def _after_warmup(falling: Schedule, warmup: float, floor: float) -> Schedule:
    check_number("warmup, the part of the training in which the learning rate rises,", warmup, 0, 1)
    check_number("floor, the part of the learning rate that is left at the end,", floor, 0, 1)

    def factor(progress: float) -> float:
        if not 0 <= progress <= 1:
            raise InputError(f"progress is the fraction of the training that is done, in [0, 1]; got {progress!r}.")
        if progress < warmup:
            return progress / warmup
        height = falling((progress - warmup) / (1 - warmup))
        return floor + (1 - floor) * height

    return factor
