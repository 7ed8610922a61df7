"""Accuracy over capacity (Figure 4 of the paper): what a method reaches, against the memory that it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from forgetfree.lab.report.columns import accuracy, coded, noisy
from forgetfree.lab.report.figures.comparison import family, in_legend, mean_and_deviation
from forgetfree.lab.report.figures.figure import Drawing, Run, Series, series
from forgetfree.lab.report.figures.ink import canvas, method_styles

TITLE = "Accuracy over capacity"
WIDE = 4.0
"""Where the largest capacity is more than so many times the smallest, equal steps are equal factors."""
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
"""Percent."""
AROUND: dict[str, Any] = {"markerfacecolor": "none", "markersize": 10.0, "linestyle": "none"}
"""Large and hollow, for points that lie on those of another line."""


@dataclass(frozen=True)
class Line:
    """A method: a point for each of its capacities."""

    label: str
    method: str
    capacity: tuple[float, ...]
    """CAP at the end, by one code for all, where one dense network is 1."""
    accuracy: tuple[float, ...]
    spread: tuple[float, ...]
    """The deviation of accuracy over seeds."""
    noisy: bool = False
    """Whether it is WSN again, with noise behind its masks."""


def measure(runs: Sequence[Run]) -> tuple[Line, ...]:
    """A line for each method, its points in order of capacity."""
    by_method: dict[tuple[str, str], list[Series]] = {}
    for one in series(runs):
        by_method.setdefault((one.method, family(one)), []).append(one)
    return tuple(_line(title, members) for (_, title), members in by_method.items())


def _line(title: str, members: Sequence[Series]) -> Line:
    points = sorted(
        (mean(coded(run) for run in one.runs), *mean_and_deviation([accuracy(run) for run in one.runs]))
        for one in members
    )
    capacity, reached, spread = zip(*points, strict=True)
    return Line(title, members[0].method, capacity, reached, spread, noisy(members[0].runs[0]))


def draw(lines: tuple[Line, ...]) -> Drawing:
    drawing, (axes,) = canvas(width=7.2)
    for line, style in zip(lines, method_styles([line.method for line in lines]), strict=True):
        capacity, reached, spread = (
            [100 * value for value in values] for values in (line.capacity, line.accuracy, line.spread)
        )
        (drawn,) = axes.plot(capacity, reached, label=in_legend(line.label), **(style | (AROUND if line.noisy else {})))
        if any(spread):
            colour = drawn.get_color()
            axes.errorbar(capacity, reached, yerr=spread, fmt="none", ecolor=colour, elinewidth=1.0, capsize=2)
    _scale(axes, [100 * value for line in lines for value in line.capacity])
    axes.set_xlabel("capacity, % of one dense network (weights and masks by one code)")
    axes.set_ylabel("accuracy at the end, %")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawing


def _scale(axes: Axes, capacities: Sequence[float]) -> None:
    """A network for each task takes ten times the memory of one that they share: then x is logarithmic."""
    if max(capacities) <= WIDE * min(capacities):
        return
    axes.set_xscale("log")
    low, high = min(capacities) / 1.3, max(capacities) * 1.3
    axes.set_xlim(low, high)
    shown = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(shown, [str(tick) for tick in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def words(lines: tuple[Line, ...]) -> str:
    best = max(lines, key=lambda line: max(line.accuracy))
    at = best.accuracy.index(max(best.accuracy))
    return (
        f"Accuracy at the end against capacity for {len(lines)} method{'s and settings' if len(lines) > 1 else ''}; "
        "bars: deviation over seeds. The highest is "
        f"{best.label} with {100 * best.accuracy[at]:.1f} % at {100 * best.capacity[at]:.0f} % of a dense network."
    )
