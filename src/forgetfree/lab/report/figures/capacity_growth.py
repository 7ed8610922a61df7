"""Capacity growth (Figure 5 b of the paper): what weights and masks take as tasks are added, by every code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from forgetfree.lab.metrics import BYTES
from forgetfree.lab.paper import WSN
from forgetfree.lab.report.columns import dense_weights
from forgetfree.lab.report.figures.figure import Drawing, Run, Series, analysed, deviation
from forgetfree.lab.report.figures.ink import DASHES, canvas, line_style, whole_ticks
from forgetfree.lab.report.figures.of_tickets import series_of

TITLE = "Capacity growth"

WEIGHTS, RAW, FILE = "used weights alone", "+ raw masks", "archive, without heads"
IN_A_ROW = 3


@dataclass(frozen=True)
class Growth:
    """One setting, mean over seeds; where one dense float32 network is 1."""

    label: str
    seeds: int
    tasks: Mapping[str, tuple[int, ...]]
    """Curve → numbers of tasks."""
    curves: Mapping[str, tuple[float, ...]]
    spread: Mapping[str, tuple[float, ...]]
    """The deviation over seeds."""


def measure(runs: Sequence[Run]) -> tuple[Growth, ...]:
    """WSN at every capacity."""
    return tuple(_growth(one) for one in series_of(runs, lambda method, _: method == WSN, "codes"))


def _growth(one: Series) -> Growth:
    found = [(analysed(run, "codes"), BYTES * dense_weights(run.record.footprints[-1])) for run in one.runs]
    each = [_curves(values, dense) for values, dense in found]
    names = list(each[0])
    columns = {name: list(zip(*(curves[name] for curves in each), strict=True)) for name in names}
    return Growth(
        one.label,
        len(found),
        {name: tuple(found[0][0]["archived" if name == FILE else "tasks"]) for name in names},
        {name: tuple(mean(values) for values in columns[name]) for name in names},
        {name: tuple(deviation(values) for values in columns[name]) for name in names},
    )


def _curves(found: Mapping[str, Any], dense: float) -> dict[str, list[float]]:
    """Curve → part of a dense network for each number of tasks: bytes of weights, and of masks by one code on top."""
    curves = {WEIGHTS: list(found["weights"])}
    for code, masks in found["masks"].items():
        curves[_title(code)] = [a + b for a, b in zip(found["weights"], masks, strict=True)]
    archive = found["archive"]
    curves[FILE] = [whole - heads for whole, heads in zip(archive["file"], archive["heads"], strict=True)]
    return {name: [nbytes / dense for nbytes in values] for name, values in curves.items()}


def _title(code: str) -> str:
    """A code as the legend names it."""
    name, _, bits = code.partition(" ")
    named = {"raw": RAW, "huffman": f"+ {bits}-bit Huffman", "ans": f"+ {bits}-bit ANS", "context": "+ context code"}
    return named[name]


def draw(settings: tuple[Growth, ...]) -> Drawing:
    columns = min(IN_A_ROW, len(settings))
    rows = -(-len(settings) // columns)
    drawing, axes = canvas(rows, columns, width=max(6.4, 3.0 * columns), height=1.1 + 2.7 * rows)
    for panel, growth in zip(axes, settings, strict=False):
        for number, (name, values) in enumerate(growth.curves.items()):
            middle = [100 * value for value in values]
            around = [100 * value for value in growth.spread[name]]
            # dashes, as some lie on each other
            style = line_style(number) | {"linestyle": DASHES[number % len(DASHES)]}
            every = max(1, len(middle) // 8)
            panel.plot(growth.tasks[name], middle, label=name, markevery=(number % every, every), **style)
            if growth.seeds > 1:
                low, high = ([m + sign * s for m, s in zip(middle, around, strict=True)] for sign in (-1, 1))
                panel.fill_between(growth.tasks[name], low, high, color=style["color"], alpha=0.2, linewidth=0)
        panel.set_title(growth.label)
        panel.set_xlabel("tasks learned")
        panel.set_ylabel("% of a dense network")
        panel.set_xlim(left=0.5)
        panel.set_ylim(bottom=0)
        whole_ticks(panel)
    for empty in axes[len(settings) :]:
        empty.set_axis_off()
    handles, labels = axes[0].get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda number: -settings[0].curves[labels[number]][-1])
    drawing.legend(
        [handles[number] for number in order], [labels[number] for number in order], loc="outside lower center",
        ncols=4 if columns > 1 else 3,
    )  # fmt: skip
    return drawing


def words(settings: tuple[Growth, ...]) -> str:
    seeds = sorted({growth.seeds for growth in settings})
    several = " (bands: deviation over seeds)" if seeds[-1] > 1 else ""
    parts = []
    for growth in settings:
        ends = {name: 100 * values[-1] for name, values in growth.curves.items()}
        parts.append(
            f"{growth.label}: {ends[WEIGHTS]:.1f} % for weights alone, {ends[RAW]:.1f} % with raw masks, "
            f"{ends['+ 7-bit Huffman']:.1f} % with 7-bit Huffman, {ends['+ context code']:.1f} % with the context "
            f"code, {ends[FILE]:.1f} % in the file"
        )
    return (
        f"What the first tasks take, in % of one dense float32 network, against their number{several}. After "
        f"{settings[0].tasks[WEIGHTS][-1]} tasks, {'; '.join(parts)}."
    )
