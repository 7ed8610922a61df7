"""Settings that cannot be: one sentence each, saying what was given and what is taken."""

import math

from forgetfree.errors import InputError


def check_number(what: str, value: float, least: float = -math.inf, below: float = math.inf) -> float:
    """`value` itself, if it is a finite number in [least, below); `what` begins the sentence that refuses it."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not least <= value < below:
        limits = [f"at least {least:g}"] * (least > -math.inf) + [f"below {below:g}"] * (below < math.inf)
        raise InputError(f"{what} is a number{' ' if limits else ''}{' and '.join(limits)}; got {value!r}.")
    return float(value)


def check_switch(what: str, value: bool) -> bool:
    """`value` itself, if it is True or False: a text would count as true."""
    if not isinstance(value, bool):
        raise InputError(f"{what} is True or False; got {value!r}.")
    return value


def check_whole(what: str, value: int, least: int = 0) -> int:
    """`value` itself, if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{what} is a whole number of at least {least}; got {value!r}.")
    return value


def check_one_of(what: str, value: str, *choices: str) -> str:
    """`value` itself, if it is one of the choices."""
    if value not in choices:
        raise InputError(f"{what} is {' or '.join(map(repr, choices))}; got {value!r}.")
    return value
