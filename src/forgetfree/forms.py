"""Forms: what plain values that were read from a file must look like, said once for every field.

A form is a function of a value and of where it stands. It returns nothing, or raises a `FormError` whose sentence names
the place, what is there, and what should be:

    TASK = fields({"name": text(), "outputs": whole(1), "classes": listed(either(whole(), text()))})
    TASK(found, "tasks[3]")

Digests say that a file is as somebody wrote it; forms say that whoever uses its values will not trip over them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from forgetfree.errors import ForgetfreeError

Form = Callable[[Any, str], None]

LARGEST = 2**63 - 1
LONGEST = 1 << 20
"""Of a text, in characters."""
DEEPEST = 32
"""How deep plain values may lie in each other."""


class FormError(ForgetfreeError, ValueError):
    """A value in a file that is not what belongs there."""


def whole(least: int = -LARGEST, most: int = LARGEST) -> Form:
    """A whole number in [least, most]."""

    def form(value: Any, where: str) -> None:
        if type(value) is not int or not least <= value <= most:
            limits = f" of at least {least}" if least > -LARGEST else ""
            raise _wrong(where, value, f"a whole number{limits}{f' and at most {most}' if most < LARGEST else ''}")

    return form


def number(least: float = -math.inf, most: float = math.inf, *, finite: bool = True) -> Form:
    """A number in [least, most], finite or not."""

    def form(value: Any, where: str) -> None:
        small = type(value) is int and abs(value) <= LARGEST  # a larger one could not be compared with a float
        right = small or (type(value) is float and (math.isfinite(value) or not finite))
        if not right or value < least or value > most:
            limits = f" from {least:g} to {most:g}" if least > -math.inf or most < math.inf else ""
            raise _wrong(where, value, f"a {'finite ' if finite else ''}number{limits}")

    return form


def text(longest: int = LONGEST) -> Form:
    """A text."""

    def form(value: Any, where: str) -> None:
        if type(value) is not str or len(value) > longest:
            raise _wrong(where, value, f"a text of at most {longest} characters")

    return form


def word(*choices: Any) -> Form:
    """One of some words."""

    def form(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in choices:
            raise _wrong(where, value, f"one of {', '.join(map(str, choices))}")

    return form


def flag(value: Any, where: str) -> None:
    """True or False."""
    if type(value) is not bool:
        raise _wrong(where, value, "true or false")


def nothing(value: Any, where: str) -> None:
    """None."""
    if value is not None:
        raise _wrong(where, value, "nothing")


def tensor(value: Any, where: str) -> None:
    """A tensor of any shape."""
    if not isinstance(value, Tensor):
        raise _wrong(where, value, "a tensor")


def numbers(value: Any, where: str) -> None:
    """A tensor of floating-point numbers."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise _wrong(where, value, "a tensor of floating-point numbers")


def plain(value: Any, where: str) -> None:
    """Numbers, texts, None, and lists and dicts of them, not too deep in each other."""
    level = [value]
    for _ in range(DEEPEST):
        below = []
        for each in level:
            if isinstance(each, dict):
                below += [*each, *each.values()]
            elif isinstance(each, list | tuple):
                below += each
            elif each is not None and type(each) not in (bool, int, float, str):
                raise _wrong(where, each, "a plain value")
        if not below:
            return
        level = below
    raise FormError(f"{where} is nested deeper than {DEEPEST} levels")


def plain_or_tensor(value: Any, where: str) -> None:
    """A tensor or a plain value, as optimizers keep them."""
    if not isinstance(value, Tensor):
        plain(value, where)


def optional(form: Form) -> Form:
    """None, or what another form says."""
    return lambda value, where: None if value is None else form(value, where)


def either(*forms: Form) -> Form:
    """What one of several forms says."""

    def check(value: Any, where: str) -> None:
        said = []
        for form in forms:
            try:
                return form(value, where)
            except FormError as error:
                said.append(str(error))
        raise FormError(said[-1])

    return check


def both(*forms: Form) -> Form:
    """What all of these forms say."""

    def check(value: Any, where: str) -> None:
        for form in forms:
            form(value, where)

    return check


def listed(form: Form, least: int = 0, most: int = LARGEST, *, kind: Any = list | tuple) -> Form:
    """A list or tuple of so many, or only one of the two kinds."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, kind) or not least <= len(value) <= most:
            count = f" of {least}" if least == most else f" of {least} or more" if least else ""
            raise _wrong(where, value, f"a {'tuple' if kind is tuple else 'list'}{count}")
        for at, each in enumerate(value):
            form(each, f"{where}[{at}]")

    return check


def row(*forms: Form, kind: Any = list | tuple) -> Form:
    """A list or tuple with one value for each form."""

    def check(value: Any, where: str) -> None:
        listed(anything, len(forms), len(forms), kind=kind)(value, where)
        for at, (form, each) in enumerate(zip(forms, value, strict=True)):
            form(each, f"{where}[{at}]")

    return check


def mapping(form: Form, key: Form | None = None) -> Form:
    """A dict from texts, or what `key` says, to what a form says."""
    named = key or text()

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, value, "a table of values by name")
        for name, each in value.items():
            named(name, f"a name in {where}")
            form(each, f"{where}.{short(name)}")

    return check


def fields(needed: Mapping[str, Form], also: Mapping[str, Form] | None = None, *, others: bool = False) -> Form:
    """A dict with these names: all that are needed, and of others only those in `also`, unless any are let through."""
    may = {**needed, **(also or {})}

    def check(value: Any, where: str) -> None:
        mapping(anything)(value, where)
        missing = [name for name in needed if name not in value]
        if missing:
            raise FormError(f"{where} has no {missing[0]}")
        for name, each in value.items():
            if name in may:
                may[name](each, f"{where}.{name}")
            elif not others:
                raise FormError(f"{where}.{short(name)} is unknown")

    return check


def anything(value: Any, where: str) -> None:
    """Whatever it is."""


def _wrong(where: str, value: Any, right: str) -> FormError:
    return FormError(f"{where} is {short(value)}; it should be {right}")


def short(value: Any, most: int = 60) -> str:
    """A value as a sentence shows it: nothing that a terminal would obey, and never much of it."""
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a huge number"
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    shown = ascii(value[: most + 1] if isinstance(value, str) else value)
    return shown if len(shown) <= most else f"{shown[:most]}…"
