"""What there is, by name, without importing it: methods, benchmarks, backbones, experiments; ours and of plug-ins.

A table says where a thing lives (`package.module:Name`) and what a list, a legend or a completion shows of it. What
lives there is imported when it is asked for, so that `forgetfree list` needs no torch:

    METHODS["wsn"]              the class, imported now
    METHODS.entry("wsn").title  a sentence, without importing it

An installed package adds to a table by an entry point of its group, a script by `--plugin package.module`:

    [project.entry-points."forgetfree.methods"]
    mine = "mine.tables:METHODS"            # name → MethodEntry, in a module that imports no torch
"""

import inspect
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Generic, Literal, TypeVar

from forgetfree.errors import PluginError

Scenario = Literal["til", "fscil"]
Badge = Literal["reference", "code", "paper only", "ours"]
"""How far a method was checked: a reference to compare with, beside its public code, by its paper alone, or our own."""

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
    """Its name for people: WSN, fine-tuning; without one, that of the table."""
    colour: str = ""
    """As in #0060a8; without one, the laboratory picks one by the name."""
    marker: str = ""
    """One of o s ^ D v P X < > *, as in matplotlib; without one, the laboratory picks one by the name."""
    badge: Badge = "code"
    forget_free: bool = False
    upper_bound: bool = False
    """Whether it sees more than a continual learner may: all data at once, or a network for each task."""
    capacity: bool = False
    """Whether `capacity`, the fraction of weights that a task keeps, is what its runs are told apart by."""
    tickets: bool = False
    """Whether each task has a binary mask of its own."""
    reuses: bool = False
    """Whether a task learns some of the weights in its ticket and finds the others learned by earlier tasks."""
    nested: bool = False
    """Whether a ticket contains all weights that earlier tasks kept, so that it reuses them without choice."""


BROKEN = (
    ImportError, AttributeError, SyntaxError, NameError, TypeError, ValueError, LookupError, OSError, RuntimeError,
    AssertionError, ArithmeticError, SystemExit,
)  # fmt: skip
"""What a broken plug-in may raise when it is imported."""


def resolved(entry: Entry, what: str) -> Any:
    """What lives at the place of an entry."""
    try:
        return pkgutil.resolve_name(entry.place)
    except BROKEN as error:
        raise PluginError(
            f"{what} of {entry.source} cannot be imported from {entry.place}. It says: {_said(error)}"
        ) from error


Kind = TypeVar("Kind", bound=Entry)


class Table(Mapping[str, Any], Generic[Kind]):
    """Name → thing, imported when asked for; `entry(name)` is what is known of it before that.

    Our own names are looked up without asking installed packages, so that a broken one among them is in nobody's way.
    """

    def __init__(
        self,
        kind: str,
        ours: Mapping[str, Kind] | Callable[[], Mapping[str, Kind]],
        *,
        entry_type: type[Entry] = Entry,
        resolve: Callable[[Entry, str], Any] = resolved,
    ):
        self.kind, self.entry_type = kind, entry_type
        self._given, self._resolve = ours, resolve
        self._read: dict[str, Kind] | None = None
        self._installed: dict[str, Kind] | None = None
        self._plugged: dict[str, Kind] = {}
        self._functions: dict[str, Any] = {}

    @property
    def word(self) -> str:
        """One of them: method, benchmark."""
        return self.kind.removesuffix("s")

    @property
    def entries(self) -> Mapping[str, Kind]:
        """Everything there is: ours, of installed packages, of plug-ins given by name."""
        return {**self._ours, **self._of_packages(), **self._plugged}

    def entry(self, name: str) -> Kind:
        """What is known of something without importing it."""
        if name in self._ours:
            return self._ours[name]
        return self._plugged[name] if name in self._plugged else self._of_packages()[name]

    def required(self, name: str) -> Any:
        """What has this name; where nothing has, the error says what there is and how to get more."""
        if name not in self:
            raise PluginError(
                f"there is no {self.word} {name!r} here. There are: {', '.join(self)}. Install the package that brings "
                f"it, or name its module: --plugin package.module, in Python {self.kind.upper()}.plug(…)."
            )
        return self[name]

    def plug(self, entries: Mapping[str, Kind], source: str) -> None:
        """Add what a plug-in brings; a name that somebody else has already is refused."""
        before = self.entries
        for name, entry in self._checked(entries, source).items():
            other = before.get(name)
            if other is not None and other.place != entry.place:
                raise PluginError(
                    f"{source} brings {self.word} {name!r}, which {other.source} has already. Rename one of them, or "
                    "leave one plug-in out."
                )
        self._plugged |= self._checked(entries, source)

    def plugin_of(self, name: str) -> str | None:
        """The module that was plugged in by its name and brought this; None for ours and those of packages."""
        return self._plugged[name].source if name in self._plugged else None

    def name_of(self, thing: Any) -> str | None:
        """The name that something has in this table."""
        package = thing.__module__.partition(".")[0]

        def found(entries: Mapping[str, Kind]) -> str | None:
            for name, entry in entries.items():
                module, _, path = entry.place.partition(":")
                if path == thing.__qualname__ and module.partition(".")[0] == package and self[name] is thing:
                    return name
            return None

        # installed packages are asked last: a broken one is in nobody's way
        return found({**self._ours, **self._plugged}) or found(self._of_packages())

    def __getitem__(self, name: str) -> Any:
        entry = self.entry(name)
        if name in self._functions and name not in self._ours:
            return self._functions[name]
        return self._resolve(entry, f"{self.word} {name!r}")

    def __repr__(self) -> str:
        return f"<table of {self.kind}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self._ours or name in self._plugged or name in self._of_packages()

    @property
    def _ours(self) -> dict[str, Kind]:
        if self._read is None:
            self._read = dict(self._given() if callable(self._given) else self._given)
        return self._read

    def _of_packages(self) -> dict[str, Kind]:
        if self._installed is None:
            found: dict[str, Kind] = {}
            for point in _points(self.kind):
                brought, source = _loaded(point), _source(point)
                if brought is self:  # the laboratory offers its own table to the core in the same way
                    continue
                for name, entry in self._checked(brought, source).items():
                    other = self._ours.get(name) or found.get(name)
                    if other is not None:
                        raise PluginError(
                            f"two packages bring {self.word} {name!r}: {other.source} and {source}. Uninstall one of "
                            "them."
                        )
                    found[name] = entry
            self._installed = found
        return self._installed

    def _checked(self, brought: Any, source: str) -> dict[str, Kind]:
        """A table that somebody brings, each entry with its source."""
        wanted = self.entry_type
        entries = brought.entries if isinstance(brought, Table) else brought
        if isinstance(entries, Mapping) and self.kind == "backbones":
            entries = self._described(entries)
        if not isinstance(entries, Mapping) or not all(isinstance(entry, wanted) for entry in entries.values()):
            kinds = sorted({type(entry).__name__ for entry in entries.values()} if isinstance(entries, Mapping) else [])
            got = f"values of type {', '.join(kinds)}" if kinds else type(entries).__name__
            raise PluginError(
                f"{source} offers {self.kind} that are no table of them: name → forgetfree.registry.{wanted.__name__} "
                f"is wanted; got {got}."
            )
        return {str(name): replace(entry, source=source) for name, entry in entries.items()}

    def _described(self, functions: Mapping[str, Any]) -> dict[str, Any]:
        """Backbones may also be offered as name → function, which imports them all."""
        entries = dict(functions)
        for name, made in functions.items():
            if inspect.isroutine(made) or inspect.isclass(made):
                self._functions[name] = made
                title = (made.__doc__ or "").strip().partition("\n")[0]
                entries[name] = Entry(f"{made.__module__}:{made.__qualname__}", title)
        return entries


def methods() -> "Table[MethodEntry]":
    """The table of methods, found by its place: whoever asks for a method by name need not import any."""
    table: Table[MethodEntry] = pkgutil.resolve_name("forgetfree.methods:METHODS")
    return table


def backbone_builder(name: str) -> Callable[..., Any]:
    """The function that builds a backbone, by its name among all that installed packages offer.

    So an archive can build a backbone of the laboratory, or of any package, without importing the laboratory. A package
    offers name → Entry, or name → function.
    """
    found: dict[str, Any] = {}
    broken: list[str] = []
    for point in _points("backbones"):
        try:
            made = _offered(point).get(name)
            made = resolved(made, f"backbone {name!r}") if isinstance(made, Entry) else made
        except PluginError as error:
            broken.append(str(error))
            continue
        if made is not None and all(made is not other for other in found.values()):
            found[_source(point)] = made
    if len(found) == 1:
        return next(iter(found.values()))  # type: ignore[no-any-return]
    if found:
        raise PluginError(f"{' and '.join(found)} both bring a backbone {name!r}. Uninstall one of them.")
    names = sorted({known for point in _points("backbones") for known in _names(point)})
    words = [f"no backbone is called {name!r}; installed are {', '.join(names) or 'none'}.", *dict.fromkeys(broken)]
    raise PluginError(" ".join(words))


def load_plugin(place: str, tables: Mapping[str, Table[Any]]) -> None:
    """Import a module by its name and add the tables that it has (METHODS, BENCHMARKS, BACKBONES, EXPERIMENTS)."""
    try:
        module = pkgutil.resolve_name(f"{place}:")
    except BROKEN as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name in (place, place.partition(".")[0])
        hint = " Is it installed, or in the current folder?" if missing else ""
        raise PluginError(f"--plugin {place}: it cannot be imported. It says: {_said(error)}.{hint}") from error
    brought = {kind: vars(module).get(kind.upper()) for kind in tables}
    if not any(brought.values()):
        raise PluginError(
            f"--plugin {place}: it has none of {', '.join(kind.upper() for kind in tables)}: name → Entry."
        )
    for kind, entries in brought.items():
        if entries:
            tables[kind].plug(entries, place)


def lazy_names(
    package: str, places: Mapping[str, str], renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names are imported when they are used (PEP 562).

    `places` says where each lives, as in package.module:Name; modules of the package are found by their name too.
    """

    def find(name: str) -> Any:
        if renamed and name in renamed:
            warnings.warn(f"{package}.{name} is called {renamed[name]} now.", DeprecationWarning, stacklevel=2)
            return find(renamed[name])
        if name in places:
            value = pkgutil.resolve_name(places[name])
        elif not name.startswith("_") and find_spec(f"{package}.{name}"):
            value = pkgutil.resolve_name(f"{package}.{name}:")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        vars(sys.modules[package])[name] = value  # the next time it is simply there
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return find, names


def _points(kind: str) -> list[EntryPoint]:
    return sorted(entry_points(group=GROUPS[kind]), key=lambda point: (point.name, point.value))


def _source(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except BROKEN as error:
        raise PluginError(
            f"the plug-in {point.name!r} ({point.value}) of {_source(point)} cannot be loaded. It says: {_said(error)}"
        ) from error


def _offered(point: EntryPoint) -> Mapping[str, Any]:
    table = _loaded(point)
    if not isinstance(table, Mapping):
        raise PluginError(f"{_source(point)} offers backbones that are no table but a {type(table).__name__}.")
    return table


def _names(point: EntryPoint) -> list[str]:
    try:
        return list(_offered(point))
    except PluginError:  # said already
        return []


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
