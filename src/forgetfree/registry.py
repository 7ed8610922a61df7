"""What there is, by name, without importing it: methods, benchmarks, backbones, experiments; ours and those of plug-ins.

A table says where a thing lives (`package.module:Name`) and what a list, a legend or a completion shows of it. What
lives there is imported when it is asked for, so that `forgetfree list` needs no torch:

    METHODS["wsn"]              the class, imported now
    METHODS.entry("wsn").title  a sentence, without importing it

An installed package adds to a table by an entry point of its group, a script by `--plugin package.module`:

    [project.entry-points."forgetfree.methods"]
    mine = "mine.tables:METHODS"            # name → MethodEntry, in a module that imports no torch
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Literal, TypeVar

from forgetfree.errors import PluginError

Scenario = Literal["til", "fscil"]
Badge = Literal["reference", "code", "paper only", "ours"]
"""How far a method was checked: a reference to compare with, beside a public program, by the paper alone, or our own."""

GROUPS = {kind: f"forgetfree.{kind}" for kind in ("methods", "benchmarks", "backbones", "experiments")}
"""The groups of entry points."""


@dataclass(frozen=True)
class Entry:
    """Something by name: where it lives, and one sentence that says what it is."""

    place: str
    """As in package.module:Name."""
    title: str
    source: str = "forgetfree"
    """The package or module that brought it."""


@dataclass(frozen=True)
class MethodEntry(Entry):
    """A method: beside its place, what tables, figures and the laboratory show of it without importing it."""

    scenario: Scenario = "til"
    label: str = ""
    """Its name for people: WSN, fine-tuning."""
    colour: str = "#5e6670"
    marker: str = "o"
    badge: Badge = "code"
    forget_free: bool = False
    upper_bound: bool = False
    """Whether it sees more than a continual learner may: all data at once, or a network for each task."""
    capacity: bool = False
    """Whether `capacity`, the fraction of weights that a task keeps, is what its runs are told apart by."""
    tickets: bool = False
    """Whether each task has a binary mask of its own."""


BROKEN = (
    ImportError, AttributeError, SyntaxError, NameError, TypeError, ValueError, LookupError, OSError, RuntimeError,
    AssertionError, ArithmeticError,
)  # fmt: skip
"""What a broken plug-in may raise when it is imported."""

Kind = TypeVar("Kind", bound=Entry)


class Table(Mapping[str, Any], Generic[Kind]):
    """Name → thing, imported when asked for; `entry(name)` is what is known of it before that."""

    def __init__(self, kind: str, ours: Mapping[str, Kind]):
        self.kind = kind
        self._ours: dict[str, Kind] = dict(ours)
        self._plugged: dict[str, Kind] = {}
        self._found: dict[str, Kind] | None = None

    def entry(self, name: str) -> Kind:
        return self.entries[name]

    @property
    def entries(self) -> Mapping[str, Kind]:
        """Everything there is: ours, of installed packages, of plug-ins given by name."""
        if self._found is None:
            self._found = dict(self._ours)
            for point in sorted(entry_points(group=GROUPS[self.kind]), key=lambda point: (point.name, point.value)):
                self._take(_loaded(point), f"{point.dist.name if point.dist else point.value}")
        return {**self._found, **self._plugged}

    def plug(self, entries: Mapping[str, Kind], source: str) -> None:
        """Add what a plug-in brings; a name that somebody else has already is refused."""
        before = self.entries
        for name, entry in entries.items():
            other = before.get(name)
            if other is not None and (other.place, other.source) != (entry.place, source):
                raise PluginError(
                    f"{source} brings {self.kind.removesuffix('s')} {name!r}, which {other.source} has already. Rename "
                    "one of them, or leave one plug-in out."
                )
            self._plugged[name] = replace(entry, source=source)

    def name_of(self, thing: Any) -> str | None:
        """The name that something has in this table."""
        place = f"{thing.__module__}:{thing.__qualname__}"
        return next((name for name, entry in self.entries.items() if entry.place == place), None)

    def __getitem__(self, name: str) -> Any:
        return resolved(self.entries[name], f"{self.kind.removesuffix('s')} {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def _take(self, entries: Any, source: str) -> None:
        assert self._found is not None
        if not isinstance(entries, Mapping) or not all(isinstance(entry, Entry) for entry in entries.values()):
            raise PluginError(
                f"{source} offers {GROUPS[self.kind]} that are no table: name → forgetfree.registry.Entry is wanted "
                f"(MethodEntry for methods); got {type(entries).__name__}."
            )
        for name, entry in entries.items():
            if name in self._found:
                raise PluginError(
                    f"two packages bring {self.kind.removesuffix('s')} {name!r}: {self._found[name].source} and "
                    f"{source}. Uninstall one of them."
                )
            self._found[name] = replace(entry, source=source)


def resolved(entry: Entry, what: str) -> Any:
    """What lives at the place of an entry."""
    try:
        return pkgutil.resolve_name(entry.place)
    except BROKEN as error:
        raise PluginError(
            f"{what} of {entry.source} cannot be imported from {entry.place}. It says: {error}"
        ) from error


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except BROKEN as error:
        raise PluginError(
            f"the plug-in {point.name!r} ({point.value}) cannot be loaded. It says: {type(error).__name__}: {error}"
        ) from error


def load_plugin(place: str, tables: Mapping[str, Table[Any]]) -> None:
    """Import a module by its name and add the tables that it has (METHODS, BENCHMARKS, BACKBONES, EXPERIMENTS)."""
    try:
        module = importlib.import_module(place)
    except BROKEN as error:
        raise PluginError(
            f"--plugin {place}: it cannot be imported. It says: {type(error).__name__}: {error}"
        ) from error
    brought = {kind: getattr(module, kind.upper(), None) for kind in tables}
    if not any(brought.values()):
        raise PluginError(
            f"--plugin {place}: it has none of {', '.join(kind.upper() for kind in tables)}: name → Entry."
        )
    for kind, entries in brought.items():
        if entries:
            tables[kind].plug(entries, place)
