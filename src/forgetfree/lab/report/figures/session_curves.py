"""Few-shot sessions (Figures 10, 12 and 13 of the paper): SoftNet by capacity, and HardNet against SoftNet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from forgetfree.lab.paper import HARDNET, SOFTNET, options
from forgetfree.lab.report.figures.comparison import command, counted, in_legend, of_sessions, over_sessions
from forgetfree.lab.report.figures.figure import Drawing, Run, Series, having, series
from forgetfree.lab.report.figures.ink import INK, canvas, method_styles

TITLE = "Sessions of SoftNet and HardNet"
DASHES: dict[str, Any] = {"overall": "-", "base": "--", "novel": "-."}
COLUMNS = {1: 1, 2: 2, 4: 2}
"""Of so many panels; three of more."""

Curve = tuple[float | None, ...]


@dataclass(frozen=True)
class Sessions:
    """One setting after each session, means over runs; None where nothing was measured."""

    label: str
    method: str
    overall: Curve
    base: Curve
    novel: Curve
    spread: Curve
    """The deviation of the overall accuracy over runs."""


@dataclass(frozen=True)
class Panel:
    """Settings to be compared."""

    title: str
    curves: tuple[Sessions, ...]


def measure(runs: Sequence[Run]) -> tuple[Panel, ...]:
    """All capacities of SoftNet where there are several, then every capacity that HardNet has as well."""
    ask = command(of_sessions(runs)[0], options((SOFTNET, HARDNET)), "--set capacity=0.5,0.8")
    soft = series(having(runs, lambda run: run.method == SOFTNET, f"this figure needs SoftNet; make it with: {ask}"))
    hard = series([run for run in runs if run.method == HARDNET])
    shared = sorted({one.capacity or 1.0 for one in soft} & {one.capacity or 1.0 for one in hard})
    panels = []
    if len(soft) > 1 or not shared:
        panels.append(Panel("SoftNet by capacity" if len(soft) > 1 else "SoftNet", tuple(map(_sessions, soft))))
    for capacity in shared:
        both = [one for one in [*hard, *soft] if one.capacity == capacity]
        panels.append(Panel(f"HardNet and SoftNet, c = {100 * capacity:g} %", tuple(map(_sessions, both))))
    return tuple(panels)


def _sessions(one: Series) -> Sessions:
    overall = over_sessions(one, "overall")
    return Sessions(
        one.label,
        one.method,
        _means(overall),
        _means(over_sessions(one, "base")),
        _means(over_sessions(one, "novel")),
        tuple(None if entry is None else entry[1] for entry in overall),
    )


def _means(found: Sequence[tuple[float, float] | None]) -> Curve:
    return tuple(None if entry is None else entry[0] for entry in found)


def draw(panels: tuple[Panel, ...]) -> Drawing:
    columns = COLUMNS.get(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    drawing, axes = canvas(rows, columns, width=max(6.4, 3.4 * columns), height=3.0 * rows + 0.8)
    every = {one.label: one.method for panel in panels for one in panel.curves}
    looks = dict(zip(every, method_styles(list(every.values())), strict=True))
    for each, panel in zip(axes, panels, strict=False):
        for one in panel.curves:
            _plot(each, one, looks[one.label])
        each.set_title(panel.title)
        each.set_xlabel("session")
        counted(each, len(panel.curves[0].overall))
    for each in axes[::columns]:
        each.set_ylabel("accuracy, %")
    for empty in axes[len(panels) :]:
        empty.set_visible(False)
    limits = [each.get_ylim() for each in axes[: len(panels)]]
    for each in axes:
        each.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    whose = [Line2D([], [], label=in_legend(label), **(look | {"linestyle": "-"})) for label, look in looks.items()]
    what = [Line2D([], [], label=part, color=INK, linestyle=dashes) for part, dashes in DASHES.items()]
    drawing.legend(handles=[*what, *whose], loc="outside lower center", ncols=1 + math.ceil(len(whose) / len(what)))
    return drawing


def _plot(axes: Axes, one: Sessions, look: dict[str, Any]) -> None:
    for part, dashes in DASHES.items():
        shown = [(t + 1, 100 * value) for t, value in enumerate(getattr(one, part)) if value is not None]
        width = 1.6 if part == "overall" else 1.0
        axes.plot(*zip(*shown, strict=True), **(look | {"linestyle": dashes, "linewidth": width}))
    known = [
        (t + 1, 100 * (value - by), 100 * (value + by))
        for t, (value, by) in enumerate(zip(one.overall, one.spread, strict=True))
        if value is not None and by is not None
    ]
    if any(one.spread):
        sessions, low, high = zip(*known, strict=True)
        axes.fill_between(sessions, low, high, color=look["color"], alpha=0.15, linewidth=0)


def words(panels: tuple[Panel, ...]) -> str:
    settings = {one.label: one for panel in panels for one in panel.curves}
    ranked = sorted(settings.values(), key=lambda one: one.overall[-1] or 0.0)
    text = f"Highest at the end is {_ends(ranked[-1])}"
    if len(ranked) > 1:
        text += f", lowest {_ends(ranked[0])}"
    return (
        f"Accuracy over {len(ranked[0].overall)} few-shot sessions: solid on all classes met, dashed on base classes, "
        f"dash-dotted on novel ones; bands: deviation over runs. {text}."
    )


def _ends(one: Sessions) -> str:
    return (
        f"{one.label} ({_percent(one.overall[0])} first, {_percent(one.overall[-1])} last: "
        f"base {_percent(one.base[-1])}, novel {_percent(one.novel[-1])})"
    )


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{100 * value:.1f} %"
