"""Accuracy per task (Figure 5a of the paper): WSN of several capacities, and the other methods apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from matplotlib.axes import Axes

from forgetfree.lab.paper import SOFTNET, WSN
from forgetfree.lab.report.columns import noisy
from forgetfree.lab.report.figures.comparison import (
    by_task,
    command,
    counted,
    in_legend,
    mean_and_deviation,
    of_tasks,
)
from forgetfree.lab.report.figures.figure import Drawing, Run, Series, having, series
from forgetfree.lab.report.figures.ink import INK, canvas, method_styles

TITLE = "Accuracy per task"
THIN = 0.9
OURS = (WSN, SOFTNET)
"""The method of the figure, and the same runs with noise behind the masks."""


@dataclass(frozen=True)
class Line:
    """A setting: a point for each task."""

    label: str
    method: str
    capacity: float | None
    end: tuple[float, ...]
    """Accuracy after the last task."""
    spread: tuple[float, ...]
    """Its deviation over seeds."""
    first: tuple[float, ...] | None
    """Accuracy right after the task itself; None where it is that of the end, or was not measured."""


def measure(runs: Sequence[Run]) -> tuple[Line, ...]:
    """WSN by capacity first, each with its noisy twin, then what else was run."""
    first = of_tasks(runs)[0]
    ask = command(first, f"--method {WSN} --set capacity=0.1,0.3,0.5")
    having(runs, lambda run: run.method == WSN, f"this figure needs WSN; make it with: {ask}")
    return tuple(sorted(map(_line, series(runs)), key=lambda line: line.method not in OURS))


def _line(one: Series) -> Line:
    at_end = [mean_and_deviation(values) for values in zip(*map(by_task, one.runs), strict=True)]
    end, spread = zip(*at_end, strict=True)
    return Line(one.label, one.method, one.capacity, end, spread, _first(one))


def _first(one: Series) -> tuple[float, ...] | None:
    tables = [run.record.accuracy for run in one.runs]
    found = [[table[t][t] for table in tables] for t in range(len(tables[0]))]
    known = [[value for value in values if value is not None] for values in found]
    if known == [list(values) for values in zip(*map(by_task, one.runs), strict=True)] or noisy(one.runs[0]):
        return None
    return tuple(map(mean, known)) if all(len(values) == len(tables) for values in known) else None


def draw(lines: tuple[Line, ...]) -> Drawing:
    ours = [line for line in lines if line.method in OURS]
    others = [line for line in lines if line not in ours]
    panels = 2 if others else 1
    drawing, axes = canvas(panels, 1, width=7.2, height=2.9 * panels)
    for line, style in zip(ours, method_styles([line.method for line in ours]), strict=True):
        _plot(axes[0], line, style)
    axes[0].set_title("WSN by capacity")
    for line, style in zip(others, method_styles([line.method for line in others]), strict=True):
        _plot(axes[1], line, style)
    if others:
        _plot(axes[1], _best(ours), method_styles([WSN])[0])
        if any(line.first for line in others):
            axes[1].plot(
                [], [], color=INK, marker="o", markerfacecolor="none", linestyle="none", label="right after learning"
            )
        axes[1].set_title("Other methods, and WSN at the capacity that reaches most")
    for each in axes:
        counted(each, len(lines[0].end))
        each.set_ylabel("accuracy, %")
        each.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes[-1].set_xlabel("task")
    return drawing


def _plot(axes: Axes, line: Line, look: dict[str, Any]) -> None:
    tasks = range(1, len(line.end) + 1)
    end, spread = ([100 * value for value in values] for values in (line.end, line.spread))
    if line.method == SOFTNET:
        look = look | {
            "linestyle": "none",
            "markersize": 7.0,
            "markerfacecolor": "none",
            "markeredgewidth": 0.6,
        }
    elif line.method != WSN:
        look = look | {"linewidth": THIN, "markersize": 3.5}
    axes.plot(tasks, end, label=in_legend(line.label), **look)
    if line.method == WSN and any(spread):
        low, high = ([value + sign * by for value, by in zip(end, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(tasks, low, high, color=look["color"], alpha=0.15, linewidth=0)
    if line.first is not None:
        hollow = look | {"linestyle": "none", "markerfacecolor": "none"}
        axes.plot(tasks, [100 * value for value in line.first], **hollow)


def _best(lines: Sequence[Line]) -> Line:
    return max((line for line in lines if line.method == WSN), key=lambda line: mean(line.end))


def words(lines: tuple[Line, ...]) -> str:
    best = _best(lines)
    worst = min(range(len(best.end)), key=best.end.__getitem__)
    moved = [line for line in lines if line.first is not None]
    text = (
        f"Accuracy of each of {len(best.end)} tasks at the end; bands: deviation of WSN over seeds. {best.label} "
        f"reaches {100 * mean(best.end):.1f} % in the mean and {100 * best.end[worst]:.1f} % on task {worst + 1}, its "
        "lowest."
    )
    if not moved:
        return text + " No task changed after it was learned."
    most = max(moved, key=_lost)
    return text + (
        f" Hollow: right after learning, where that differs; {most.label} lost most, {100 * _lost(most):.1f} points of "
        "a task in the mean."
    )


def _lost(line: Line) -> float:
    return mean(line.first or line.end) - mean(line.end)
