"""The schema of settings: the signature of what is built says which keys there are, their types and their defaults.

That is the function in BENCHMARKS or BACKBONES, the constructor in METHODS, the fields of Recipe, the keywords of the
protocol. An unknown key is an error that lists the known ones.
"""

import dataclasses
import functools
import inspect
import logging
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from forgetfree.errors import InputError
from forgetfree.heads import HEADS, HeadFactory, head_by_name, head_name, linear_head
from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.lab.experiment.experiments import check_known
from forgetfree.lab.protocols import fscil, til
from forgetfree.lab.records import Record
from forgetfree.methods import METHODS
from forgetfree.training import Recipe

PROTOCOLS: dict[str, Callable[..., Record]] = {"til": til.run, "fscil": fscil.run}
GIVEN = {
    "benchmark": {"seed", "data_root"},
    "backbone": set(),
    "method": {"backbone", "recipe", "session", "seed", "device", "masked", "cache_bytes"},
    "recipe": set(),
    "session": set(),
    "protocol": {"learner", "benchmark", "dense", "checkpoints", "archive", "backbone", "base", "progress", "say"},
}
"""Arguments that come from the plan itself, never from a TOML or --set."""
RECIPES = ("recipe", "session")
"""Sections that are fields of a Recipe: how a task is trained, and how few-shot sessions after the first are."""


@runtime_checkable
class HasDefaultHeads(Protocol):
    """A method whose heads, where nobody says which, are made by `default_heads`."""

    default_heads: HeadFactory | None


@runtime_checkable
class HasRenamedKeys(Protocol):
    """What knows its settings by earlier names too: old key → new key."""

    renamed: Mapping[str, str]


def known_keys(section: str, name: str = "") -> dict[str, Any]:
    """The settings a section takes, key → annotation, read off the signature of what it builds."""
    target = _built_by(section, name)
    typed = target.__init__ if inspect.isclass(target) and not dataclasses.is_dataclass(target) else target
    hints = typing.get_type_hints(typed)
    return {key: hints.get(key, Any) for key in _parameters(section, target)}


def current_key(section: str, name: str, key: str) -> str:
    """What a key is called now."""
    return renamed_keys(section, name).get(key, key)


def renamed_keys(section: str, name: str) -> Mapping[str, str]:
    """Earlier names of keys that are still understood, old → new."""
    target = _built_by(section, name)
    return target.renamed if isinstance(target, HasRenamedKeys) else {}


@functools.cache
def warn_renamed(old: str, new: str, where: str) -> None:
    """Say once that a key has another name now."""
    logging.getLogger(__name__).warning("%s: the key %s is now called %s; the old name will go.", where, old, new)


def sections(method: str) -> list[str]:
    """The sections of a plan: few-shot sessions after the first have a recipe of their own."""
    return [section for section in GIVEN if section != "session" or METHODS.entry(method).scenario == "fscil"]


def checked(section: str, values: Mapping[str, Any], method: str, *, stored: bool = False) -> dict[str, Any]:
    """The values in the types that the signature asks for, with the defaults of what is not said.

    Those of a `stored` run may have earlier names without a word.
    """
    named = section in ("benchmark", "backbone")
    if named:
        table: Mapping[str, Any] = BENCHMARKS if section == "benchmark" else BACKBONES
        check_known(section, str(values.get("name")), table)
    name = str(values["name"]) if named else method if section == "method" else METHODS.entry(method).scenario
    keys, result = known_keys(section, name), _defaults(section, name)
    where = f"{section} {values.get('name', method if section == 'method' else '')}".rstrip()
    for written, value in values.items():
        if named and written == "name":
            result[written] = value
            continue
        key = current_key(section, name, written)
        if key != written and key in values:
            raise InputError(f"{where} says both {written} and {key}, which is what {written} is called now.")
        if key != written and not stored:
            warn_renamed(written, key, where)
        check_known("key", key, keys, f"of {where}")
        result[key] = converted(f"{section}.{key}", value, keys[key])
    return result


def missing(section: str, name: str, values: Mapping[str, Any]) -> list[str]:
    """Keys without a default that have no value."""
    parameters = _parameters(section, _built_by(section, name)).items()
    return [key for key, value in parameters if value.default is inspect.Parameter.empty and key not in values]


def converted(key: str, value: Any, annotation: Any) -> Any:
    """`value` as the annotation wants it: none, tuples, whole numbers for fractions; an error says what it takes."""
    if key.rpartition(".")[2] == "heads":
        if head_by_name(str(value)) is None:
            check_known("head", str(value), HEADS)
        return value
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    if value in ("none", None) and types.NoneType in options:
        return None
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is Any:
            return value
        if origin is typing.Literal:
            if value in typing.get_args(option):
                return value
        elif origin in (tuple, list):
            if isinstance(value, list | tuple):
                return tuple(value)
        elif origin is float:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        elif origin is bool or isinstance(value, bool):
            if origin is bool and isinstance(value, bool):
                return value
        elif inspect.isclass(origin) and isinstance(value, origin):
            return value
    raise InputError(f"{key} takes {_readable(annotation)}; got {value!r}.")


def takes_list(annotation: Any) -> bool:
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return any((typing.get_origin(option) or option) in (tuple, list) for option in options)


def plain(value: Any) -> Any:
    """As TOML can say it: tuples are lists, None is the text "none"."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return "none" if value is None else value


def _defaults(section: str, name: str) -> dict[str, Any]:
    """Every setting that has a default, so that a plan says everything that was in force."""
    target = _built_by(section, name)
    factories = {
        entry.name: entry.default_factory
        for entry in (dataclasses.fields(target) if dataclasses.is_dataclass(target) else ())
        if entry.default_factory is not dataclasses.MISSING
    }
    defaults = {
        key: factories[key]() if key in factories else value.default
        for key, value in _parameters(section, target).items()
        if value.default is not inspect.Parameter.empty
    }
    if "heads" in defaults:
        usual = target.default_heads if isinstance(target, HasDefaultHeads) else linear_head
        made = defaults["heads"] or usual or linear_head
        defaults["heads"] = head_name(made)
        if head_by_name(defaults["heads"]) is None:  # of a method's own, without a name: nothing is said of them
            del defaults["heads"]
    return defaults


def _parameters(section: str, target: Any) -> dict[str, inspect.Parameter]:
    return {key: value for key, value in inspect.signature(target).parameters.items() if key not in GIVEN[section]}


def _built_by(section: str, name: str) -> Any:
    """What a section's settings are the arguments of."""
    tables: dict[str, Mapping[str, Any]] = {
        "benchmark": BENCHMARKS,
        "backbone": BACKBONES,
        "method": METHODS,
        "protocol": PROTOCOLS,
    }
    return Recipe if section in RECIPES else tables[section][name]


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _readable(annotation: Any) -> str:
    if _is_union(annotation):
        return " or ".join(_readable(option) for option in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(annotation)))
    return {
        "NoneType": "none",
        "float": "a number",
        "int": "a whole number",
        "str": "a text",
        "bool": "true or false",
    }.get(getattr(annotation, "__name__", ""), str(annotation))
