"""What a figure is: arrays measured from finished runs of one benchmark, and a drawing of them.

`measure` reads records and analyses only, and can be tested without ink. Where the runs do not have what a figure needs
it raises Missing, which names the run or the analysis to make.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any, Protocol

from matplotlib.figure import Figure as Drawing

from forgetfree.errors import InputError
from forgetfree.lab.report.columns import Run
from forgetfree.lab.report.layout import label
from forgetfree.lab.report.our_rows import grouped
from forgetfree.lab.report.published import methods, session_methods

SHARED_BY_GROUP = ("benchmark.", "backbone.")
"""Overrides that all runs of a figure have alike: the title of their group says them, not the label of a line."""


class Missing(InputError):
    """The runs do not have what a figure needs."""


class Figure(Protocol):
    """What a module of this folder has."""

    TITLE: str

    def measure(self, runs: Sequence[Run]) -> Any:
        """The arrays to draw, as a frozen dataclass; `runs` are of one benchmark and scale."""

    def draw(self, arrays: Any) -> Drawing:
        """The arrays as a picture."""

    def words(self, arrays: Any) -> str:
        """What it shows, in a sentence or two that name its numbers: a caption, and for those who cannot see it."""


@dataclass(frozen=True)
class Series:
    """Runs that differ in nothing but seed and draw: one line, bar or panel of a figure."""

    label: str
    method: str
    capacity: float | None
    runs: Sequence[Run]


def series(runs: Sequence[Run]) -> list[Series]:
    """Runs by method, capacity and settings, in the order of the paper's tables, then by capacity."""
    few_shot = any(run.record.sessions for run in runs)
    groups = grouped(runs, block=lambda _: "")
    known = [*session_methods(), *methods()] if few_shot else [*methods(), *session_methods()]
    order = [*known, *(method for method, _, _ in groups)]
    keys = sorted(groups, key=lambda key: (order.index(key[0]), key[1] or 0.0, key[2]))
    rest = {key: _rest(key[2]) for key in keys}
    return [
        Series(
            ", ".join([label(method, capacity), *rest[method, capacity, source]]),
            method, capacity, groups[method, capacity, source][""],
        )
        for method, capacity, source in keys
    ]  # fmt: skip


def analysed(run: Run, name: str) -> Mapping[str, Any]:
    """What an analysis found of a run; Missing, with the command that makes it, where it was not made."""
    found = run.folder.analysis(name)
    if found is None:
        raise Missing(f"{run.folder.path} has no analysis {name!r}; make it with: forgetfree analyse {run.folder.path}")
    return found


def deviation(values: Sequence[float]) -> float:
    """Over seeds; one seed deviates by nothing."""
    return stdev(values) if len(values) > 1 else 0.0


def having(runs: Sequence[Run], wanted: Callable[[Run], bool], what: str) -> list[Run]:
    """The runs that are `wanted`; Missing says `what` to make where there is none."""
    found = [run for run in runs if wanted(run)]
    if not found:
        there = ", ".join(dict.fromkeys(run.method for run in runs))
        raise Missing(f"{what}; there are runs of {there}.")
    return found


def _rest(source: str) -> list[str]:
    """What sets runs apart beside method, capacity and scale, and what the group of runs says."""
    return [part for part in source.split(", ")[1:] if not part.startswith(("scale ", *SHARED_BY_GROUP))]


__all__ = [
    "SHARED_BY_GROUP",
    "Drawing",
    "Figure",
    "Missing",
    "Run",
    "Series",
    "analysed",
    "deviation",
    "having",
    "series",
]
