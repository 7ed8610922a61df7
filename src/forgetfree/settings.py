"""Settings: the fields of a learner. Each says once, in its annotation, what it may be and which sessions it reaches.

    capacity: Capacity                                                                    # a rule by its type
    margin: Annotated[float, Number("by which the own class is to be closer", 0), LATER] = 0.5

From the fields follow the constructor, the keys of a configuration, the checks (at any time, not only at first), what
an archive stores, and what tells one checkpoint or shared base network from another: nothing is listed by hand.
"""

import dataclasses
import functools
import types
import typing
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from forgetfree.checks import check_number, check_one_of, check_switch, check_whole
from forgetfree.errors import InputError
from forgetfree.rng import derive
from forgetfree.training.likeness import identified
from forgetfree.training.recipe import RECENT, Recipe, is_recipe, plain

Kind = TypeVar("Kind")


class Reach(Enum):
    """Which sessions a field reaches: what a field does not reach can be shared by learners that differ in it."""

    FIRST = "the first session"
    LATER = "later sessions"
    BOTH = "all sessions"
    NEITHER = "no session"


FIRST, LATER, NEITHER = Reach.FIRST, Reach.LATER, Reach.NEITHER


class Marker(Enum):
    """What else is to be said of a field."""

    FIXED = "chosen when the learner is built"
    LOCAL = "of this machine: no archive has it"
    NAMES_BASE = "the kind of base network itself"
    QUIET = "not told while it is as usual: there are checkpoints that are older"


FIXED, LOCAL, NAMES_BASE, QUIET = Marker.FIXED, Marker.LOCAL, Marker.NAMES_BASE, Marker.QUIET
MISSING = dataclasses.MISSING
"""The default of a field that has none."""


@dataclass_transform(kw_only_default=True, eq_default=False)
def learner(kind: type[Kind]) -> type[Kind]:
    """Make a dataclass of a method: its fields become keyword arguments, and names that they had once still work."""
    made: Any = dataclass(eq=False, kw_only=True, repr=False)(kind)
    made.renamed = {old: name for name, setting in settings_of(made).items() for old in setting.was}
    built = made.__init__

    @functools.wraps(built)
    def init(self: Any, *args: Any, **arguments: Any) -> None:
        for old, new in made.renamed.items():
            if old in arguments:
                if new in arguments:
                    raise InputError(f"{kind.__name__}: {old} is called {new} now: give one of the two.")
                warnings.warn(f"{kind.__name__}({old}=…) is called {new} now.", DeprecationWarning, stacklevel=2)
                arguments[new] = arguments.pop(old)
        built(self, *args, **arguments)

    made.__init__ = init
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Was:
    """The name that a field had once: still taken, with a warning."""

    name: str


@dataclass(frozen=True)
class Number:
    """A finite number in [least, below); the words say what it is."""

    what: str
    least: float = -float("inf")
    below: float = float("inf")

    def __call__(self, name: str, value: Any) -> float:
        return check_number(f"{name}, {self.what},", value, self.least, self.below)


@dataclass(frozen=True)
class Whole:
    """A whole number of at least `least`."""

    what: str
    least: int = 0

    def __call__(self, name: str, value: Any) -> int:
        return check_whole(f"{name}, {self.what},", value, self.least)


@dataclass(frozen=True)
class Fraction:
    """A fraction in (0, 1], or with zero in it."""

    what: str
    zero: bool = False

    def __call__(self, name: str, value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (0 <= value <= 1 if self.zero else 0 < value <= 1):
            raise InputError(
                f"{name} is {self.what}, in {'[' if self.zero else '('}0, 1]; got {value!r}. For 5 % pass 0.05."
            )
        return float(value)


Capacity = Annotated[float, Fraction("the fraction of weights kept")]
Exemplars = Annotated[int, Whole("how many images of a class are kept"), LATER]


@dataclass(frozen=True)
class Setting:
    """One field as its annotation has it."""

    name: str
    rules: tuple[Any, ...]
    choices: tuple[Any, ...]
    switch: bool
    optional: bool
    tuples: bool
    """Whether it may be a tuple, which an archive has as a list."""
    reach: Reach
    markers: frozenset[Marker]
    default: Any
    was: tuple[str, ...]
    """Names that it had once."""

    def checked(self, value: Any) -> Any:
        """`value`, if the field can be that."""
        if value is None and self.optional:
            return None
        if self.choices:
            check_one_of(self.name, value, *self.choices)
        if self.switch:
            check_switch(self.name, value)
        for rule in self.rules:
            value = rule(self.name, value)
        return value


def settings_of(kind: Any) -> dict[str, Setting]:
    """Every field of a learner's class, in the order of its constructor."""
    return _settings_of(kind)


@functools.cache
def _settings_of(kind: Any) -> dict[str, Setting]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: _setting(field, hints[field.name]) for field in dataclasses.fields(kind)}


def _setting(field: Any, hint: Any) -> Setting:
    metadata = hint.__metadata__ if typing.get_origin(hint) is Annotated else ()
    bare = typing.get_args(hint)[0] if metadata else hint
    options = typing.get_args(bare) if typing.get_origin(bare) in (typing.Union, types.UnionType) else (bare,)
    named = [typing.get_args(option) for option in options if typing.get_origin(option) is Literal]
    return Setting(
        field.name,
        tuple(entry for entry in metadata if callable(entry)),
        tuple(choice for several in named for choice in several),
        bool in options,
        types.NoneType in options,
        any(typing.get_origin(option) is tuple for option in options),
        next((entry for entry in metadata if isinstance(entry, Reach)), Reach.BOTH),
        frozenset(entry for entry in metadata if isinstance(entry, Marker)),
        field.default,
        tuple(entry.name for entry in metadata if isinstance(entry, Was)),
    )


def assign(learner: Any, name: str, value: Any) -> None:
    """Set an attribute of a learner; a field is checked first, alone and beside the others, or nothing changes."""
    kind = type(learner)
    if name in kind.renamed:
        warnings.warn(f"{name} is called {kind.renamed[name]} now.", DeprecationWarning, stacklevel=3)
        name = kind.renamed[name]
    setting = settings_of(kind).get(name)
    if setting is not None and value is None:  # nothing is said: what is usual for the method
        value = getattr(kind, f"default_{name}", None)
    if setting is None or "engine" not in vars(learner):  # no field, or still being built
        object.__setattr__(learner, name, value if setting is None else setting.checked(value))
        return
    before = getattr(learner, name)
    if FIXED in setting.markers and value is not before and value != before:
        raise InputError(f"{name} is {FIXED.value}; it is {before!r}. Build another learner to change it.")
    object.__setattr__(learner, name, setting.checked(value))
    try:
        learner.check()
    except InputError:
        object.__setattr__(learner, name, before)
        raise


def check_all(learner: Any) -> None:
    """Refuse a learner whose fields were changed behind its back: what `load` would refuse is not saved."""
    for name, setting in settings_of(type(learner)).items():
        value = setting.checked(getattr(learner, name))
        if callable(value) and name != "heads" and LOCAL not in setting.markers:
            raise InputError(f"{name} is a function, {value!r}, which an archive cannot hold: choose it by a name.")
    learner.check()


@contextmanager
def given(learner: Any, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Other values for some fields, for one task; what was given."""
    told = {name: value for name, value in values.items() if value is not None}
    known = settings_of(type(learner))
    for name in told:
        if name not in known:
            raise InputError(f"{type(learner).__name__} has no {name}; it has {', '.join(known)}.")
    before = {name: getattr(learner, name) for name in told}
    try:
        for name, value in told.items():
            setattr(learner, name, value)
        yield told
    finally:
        for name, value in before.items():
            object.__setattr__(learner, name, value)


def own_fields(kind: type, host: type) -> list[str]:
    """The fields that a method adds to those of its host."""
    common = settings_of(host)
    return [name for name in settings_of(kind) if name not in common]


def current_names(kind: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Stored arguments by the names that the fields have today; what is no field any more is left out."""
    known = settings_of(kind)
    named = {kind.renamed.get(name, name): value for name, value in arguments.items()}
    return {name: value for name, value in named.items() if name in known}


def restored(kind: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Stored arguments as a constructor takes them: recipes are recipes again, and what was a tuple is one."""
    known, values = settings_of(kind), {}
    for name, value in current_names(kind, arguments).items():
        if is_recipe in known[name].rules and isinstance(value, Mapping):
            value = Recipe.from_described(value)
        values[name] = tuple(value) if known[name].tuples and isinstance(value, list) else value
    return values


def stored_fields(learner: Any) -> dict[str, Any]:
    """The fields as plain values, for an archive."""
    kinds = settings_of(type(learner))
    return {name: described(getattr(learner, name)) for name, setting in kinds.items() if LOCAL not in setting.markers}


def identity(learner: Any, *, first: bool) -> dict[str, Any]:
    """All fields that reach the first session, or later ones, as plain values."""
    reached = (Reach.BOTH, Reach.FIRST if first else Reach.LATER)
    return {
        name: _identified(value)
        for name, setting in settings_of(type(learner)).items()
        if setting.reach in reached
        and not ((value := getattr(learner, name)) == setting.default and QUIET in setting.markers)
    }


def _identified(value: Any) -> Any:
    """A field as a plain value that differs where two functions of one name do."""
    if isinstance(value, Recipe):
        value = {name: each for name, each in vars(value).items() if each is not None or name not in RECENT}
    return identified(value)


def digest(values: Mapping[str, Any]) -> str:
    """Eight letters that differ where the values do."""
    return f"{derive(0, repr(sorted(values.items(), key=lambda entry: entry[0]))) >> 31:08x}"


def described(value: Any) -> Any:
    """A field as a plain value: a recipe by its fields, a function by its name."""
    return value.described() if hasattr(value, "described") else plain(value)
