"""EXPERIMENTS: every TOML that can be run by name, ours and those of plug-ins; and files of the user's own."""

import difflib
import tomllib
import typing
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from forgetfree.errors import InputError, PluginError
from forgetfree.registry import BROKEN, Entry, Scenario, Table

CATALOG = resources.files("forgetfree.lab") / "catalog"
SCENARIOS: tuple[Scenario, ...] = typing.get_args(Scenario)
FILE = ".toml"
SECTIONS = ("benchmark", "backbone", "method", "recipe", "session", "protocol")
"""Tables of an experiment that are settings; `methods` and `scales` hold such tables for one method or scale."""
HEADS = "heads"
"""A table of what a head means here, where its name alone is given: the settings that were chosen for it."""
KEYS = ("title", "scenario", *SECTIONS, HEADS, "methods", "scales")


def catalog() -> dict[str, str]:
    """Every experiment, name → title, in order of name."""
    return {name: entry.title for name, entry in sorted(EXPERIMENTS.entries.items())}


def describe(experiment: str) -> str:
    """The TOML of an experiment, letter by letter."""
    if experiment.endswith(FILE):
        return _text(Path(experiment))
    check_known("experiment", experiment, EXPERIMENTS)
    return str(EXPERIMENTS[experiment])


def read(experiment: str) -> tuple[str, dict[str, Any]]:
    """The name of an experiment and what its file says; a word that ends in .toml is a file of one's own.

    Such a file says its `scenario`, or lies in a folder of that name; in a plan it is called scenario/stem.
    """
    name, content = experiment, _parsed(describe(experiment), experiment)
    if experiment.endswith(FILE):
        path = Path(experiment).absolute()
        scenario = content.get("scenario", path.parent.name if path.parent.name in SCENARIOS else None)
        if scenario is None:
            raise InputError(
                f'{experiment} does not say how it is learned: begin it with scenario = "til" (task by task) or '
                'scenario = "fscil" (few-shot sessions), or put it into a folder til or fscil.'
            )
        name = f"{scenario}/{path.stem}"
    scenario = name.partition("/")[0]
    check_known("scenario", scenario, SCENARIOS, f"of {experiment}")
    if content.get("scenario", scenario) != scenario:
        raise InputError(f"{experiment} is called {name}, and says scenario = {content['scenario']!r}.")
    for key in content:
        check_known("section", key, KEYS, f"of {experiment}")
    for missing in ("benchmark", "backbone"):
        if "name" not in content.get(missing, {}):
            raise InputError(f'{experiment} does not say which {missing} it takes: [{missing}] name = "…".')
    if not content.get("methods"):
        raise InputError(f"{experiment} names no method: each has a section of its own, as in [methods.wsn].")
    content.setdefault("scales", {"cpu": {}})
    return name, content


def check_known(kind: str, name: str, names: Iterable[str], where: str = "", *, unlisted: Iterable[str] = ()) -> None:
    """Refuse a name that is none of the names, with those that come near; `unlisted` ones may, but are not all told."""
    names = list(names)
    if name in names:
        return
    near = difflib.get_close_matches(name, [*names, *unlisted], n=2, cutoff=0.5)
    near += [full for full in names if full.endswith(f".{name}") and full not in near]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise InputError(f"there is no {kind} {name!r}{' ' + where if where else ''}.{hint} There are: {', '.join(names)}.")


def _ours() -> dict[str, Entry]:
    files = [
        (f"{scenario.name}/{file.name.removesuffix(FILE)}", file)
        for scenario in CATALOG.iterdir()
        if scenario.is_dir()
        for file in scenario.iterdir()
        if file.name.endswith(FILE)
    ]
    return {
        name: Entry(f"forgetfree.lab:catalog/{name}{FILE}", str(_parsed(file.read_text(), name)["title"]))
        for name, file in sorted(files, key=lambda pair: pair[0])
    }


def _resource(entry: Entry, what: str) -> str:
    """The text of a file in a package, as in package:folder/file.toml."""
    package, _, path = entry.place.partition(":")
    try:
        return resources.files(package).joinpath(path).read_text()
    except BROKEN as error:
        raise PluginError(
            f"{what} of {entry.source} cannot be read from {entry.place}. It says: {type(error).__name__}: {error}"
        ) from error


EXPERIMENTS: Table[Entry] = Table("experiments", _ours, resolve=_resource)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def _parsed(text: str, experiment: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{experiment} is no TOML: {error}.") from error
