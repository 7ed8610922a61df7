"""Bars for each task, method beside method (Figure 7 of the paper): who is ahead early, and who late."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from statistics import mean

from forgetfree.lab import legend
from forgetfree.lab.paper import SUGGESTED_TIL, options
from forgetfree.lab.report.columns import accuracy
from forgetfree.lab.report.figures.comparison import (
    at_best,
    by_task,
    command,
    in_legend,
    mean_and_deviation,
    of_tasks,
)
from forgetfree.lab.report.figures.figure import Drawing, Missing, Run, Series, series
from forgetfree.lab.report.figures.ink import INK, canvas

TITLE = "Methods task by task"
MOST_GROUPS = 10
"""Of bars; longer streams have several tasks in each."""
GROUPS_IN_ROW = 5
HATCHES = ("/////", "-----", "\\\\\\\\\\", "+++++", "xxxxx")
"""Of every other method, so that neighbours differ without colour."""


@dataclass(frozen=True)
class Bars:
    """A method: a bar for each group of tasks."""

    label: str
    method: str
    height: tuple[float, ...]
    """The mean accuracy at the end of the tasks of a group."""
    spread: tuple[float, ...]
    """Its deviation over seeds."""


@dataclass(frozen=True)
class Comparison:
    """All bars."""

    groups: tuple[tuple[int, int], ...]
    """The first and the last task of each group, counted from one."""
    bars: tuple[Bars, ...]


def measure(runs: Sequence[Run]) -> Comparison:
    """Each method at the capacity that reaches most."""
    methods = at_best(series(of_tasks(runs)), accuracy)
    if len(methods) < 2:
        ask = command(runs[0], options(SUGGESTED_TIL))
        raise Missing(f"there is only {methods[0].label} to compare; make others with: {ask}")
    tasks = len(runs[0].record.tasks)
    size = math.ceil(tasks / MOST_GROUPS)
    groups = tuple((start + 1, min(start + size, tasks)) for start in range(0, tasks, size))
    return Comparison(groups, tuple(_bars(one, groups) for one in methods))


def _bars(one: Series, groups: Sequence[tuple[int, int]]) -> Bars:
    found = [mean_and_deviation([mean(by_task(run)[first - 1 : last]) for run in one.runs]) for first, last in groups]
    height, spread = zip(*found, strict=True)
    return Bars(one.label, one.method, height, spread)


def draw(comparison: Comparison) -> Drawing:
    rows = math.ceil(len(comparison.groups) / GROUPS_IN_ROW)
    drawing, axes = canvas(rows, 1, width=9.0, height=2.3 * rows + 0.7)
    width = 0.86 / len(comparison.bars)
    colours = [legend.entry(bars.method).colour for bars in comparison.bars]
    hatches = _hatches(colours)
    for row, each in enumerate(axes):
        shown = range(row * GROUPS_IN_ROW, min((row + 1) * GROUPS_IN_ROW, len(comparison.groups)))
        for number, bars in enumerate(comparison.bars):
            colour, hatch = colours[number], hatches[number]
            each.bar(
                [place + (number - (len(comparison.bars) - 1) / 2) * width for place in range(len(shown))],
                [100 * bars.height[group] for group in shown], 0.9 * width,
                yerr=[100 * bars.spread[group] for group in shown] if any(bars.spread) else None,
                error_kw={"elinewidth": 0.8, "ecolor": INK}, label=in_legend(bars.label),
                facecolor="none" if hatch else colour, edgecolor=colour, hatch=hatch, linewidth=0.8,
            )  # fmt: skip
        each.set_xticks(range(len(shown)), [_named(comparison.groups[group]) for group in shown])
        each.set_xlim(-0.5, GROUPS_IN_ROW - 0.5 if rows > 1 else len(shown) - 0.5)
        each.set_ylim(bottom=0, top=_top(comparison))
        each.tick_params(axis="x", length=0)
        each.grid(axis="x", visible=False)
        each.set_ylabel("accuracy, %")
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return drawing


def _hatches(colours: Sequence[str]) -> list[str]:
    """Of every other bar, and so that no two bars of a colour and no two neighbours have the same."""
    hatches: list[str] = []
    for number, colour in enumerate(colours):
        turn = number // 2 % len(HATCHES)
        order = [*HATCHES[turn:], *HATCHES[:turn]]
        order = [*order, ""] if number % 2 else ["", *order]
        taken = {hatch for other, hatch in zip(colours, hatches, strict=False) if other == colour} | {*hatches[-1:]}
        crossed = (one + other for one, other in combinations(HATCHES, 2))
        hatches.append(next((hatch for hatch in chain(order, crossed) if hatch not in taken), order[0]))
    return hatches


def _named(group: tuple[int, int]) -> str:
    first, last = group
    return f"task {first}" if first == last else f"tasks {first}-{last}"


def _top(comparison: Comparison) -> float:
    """So much that bars of all rows are on one scale."""
    ends = [value + by for bars in comparison.bars for value, by in zip(bars.height, bars.spread, strict=True)]
    return 102 * min(1.0, max(ends))


def words(comparison: Comparison) -> str:
    at_start, at_end = (max(comparison.bars, key=lambda bars: bars.height[group]) for group in (0, -1))
    (first, last) = comparison.groups[0], comparison.groups[-1]
    return (
        f"Accuracy at the end for {len(comparison.bars)} methods side by side, each at the capacity that reaches most; "
        f"whiskers: deviation over seeds. Highest on {_named(first)}: {at_start.label} "
        f"({100 * at_start.height[0]:.1f} %); on {_named(last)}: {at_end.label} ({100 * at_end.height[-1]:.1f} %)."
    )
