"""Mask correlation (Figures 9, 15 and 16 of the paper): how far the tickets of two tasks are alike, task by task."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from forgetfree.lab import legend
from forgetfree.lab.report.figures.figure import Drawing, Run, Series, analysed
from forgetfree.lab.report.figures.ink import SHADES, canvas, matrix
from forgetfree.lab.report.figures.of_tickets import series_of
from forgetfree.lab.report.published import title

TITLE = "Mask correlation"

IN_A_ROW = 3


@dataclass(frozen=True)
class Alike:
    """The tickets of one setting, mean over seeds."""

    label: str
    method: str
    seeds: int
    correlation: tuple[tuple[float | None, ...], ...]
    """Pearson's, of two masks as maps of zeros and ones; None where a mask has no contrast."""
    agreement: float
    """Of the weights of a task, the part that the task before it uses too; mean over tasks."""
    density: float
    """The part of all weights that the task before uses: what masks drawn at random would agree in; mean over tasks."""


def measure(runs: Sequence[Run]) -> tuple[Alike, ...]:
    """Every method with a mask for each task that was run, at every capacity."""
    return tuple(_alike(one) for one in series_of(runs, lambda _, method: method.tickets, "tickets"))


def _alike(one: Series) -> Alike:
    found = [analysed(run, "tickets") for run in one.runs]
    tasks = range(len(found[0]["tasks"]))
    matrices = [each["correlation"] for each in found]
    values = tuple(tuple(_mean([matrix[i][j] for matrix in matrices]) for j in tasks) for i in tasks)
    agreement = mean(each["agreement"][t][t - 1] for each in found for t in tasks[1:])
    return Alike(one.label, one.method, len(found), values, agreement, mean(_density(each) for each in found))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None


def _density(found: Any) -> float:
    """How full the tickets are that a later one is compared with."""
    used = [sum(counts) for counts in zip(*found["sets"]["per task"].values(), strict=True)]
    return float(mean(used[:-1]) / sum(found["weights"].values()))


def draw(settings: tuple[Alike, ...]) -> Drawing:
    columns = min(IN_A_ROW, len(settings))
    rows = -(-len(settings) // columns)
    numbered = len(settings[0].correlation) <= 10  # more squares have no room for numbers on them
    drawing, axes = canvas(
        rows, columns, width=(0.6 if numbered else 1.4) + 2.9 * columns, height=0.3 + (3.1 if numbered else 2.8) * rows
    )
    for number, alike in enumerate(settings):
        matrix(axes[number], alike.correlation, least=0.0, most=1.0, name=f"correlation{number + 1}")
        axes[number].set_title(alike.label)
        axes[number].set_xlabel("task")
        axes[number].set_ylabel("task")
    for empty in axes[len(settings) :]:
        empty.set_axis_off()
    if not numbered:
        scale = drawing.colorbar(
            ScalarMappable(Normalize(0, 100), SHADES), ax=axes, shrink=0.6, label="correlation of masks, %"
        )
        scale.outline.set_visible(False)
    return drawing


def words(settings: tuple[Alike, ...]) -> str:
    parts = "; ".join(
        f"{alike.label}: {_percent(_neighbours(alike))} (shares {100 * alike.agreement:.0f} % of its weights, "
        f"by chance {100 * alike.density:.0f} %)"
        for alike in settings
    )
    seeds = sorted({alike.seeds for alike in settings})
    text = (
        "Pearson's correlation, in %, of the masks of two tasks, "
        f"mean over {_range(seeds)}; 0: as by chance, 100: the same. "
        f"A task and the one before it, mean over tasks: {parts}."
    )
    nested = dict.fromkeys(title(alike.method) for alike in settings if legend.entry(alike.method).nested)
    return text + "".join(
        f" {name}'s tickets contain all earlier ones, so its masks are correlated too; the weights that a task of "
        f"{name} adds are new by construction."
        for name in nested
    )


def _range(seeds: Sequence[int]) -> str:
    few, many = seeds[0], seeds[-1]
    return f"{f'{few} to ' if few < many else ''}{many} seed{'s' if many > 1 else ''}"


def _neighbours(alike: Alike) -> float | None:
    """The correlation of a task with the one before it, mean over tasks."""
    return _mean([row[t - 1] for t, row in enumerate(alike.correlation) if t])


def _percent(value: float | None) -> str:
    return "not defined" if value is None else f"{100 * value:.0f} %"
