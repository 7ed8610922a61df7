"""Forward transfer in all its readings: which head answers, with or without noise, and by how many tasks is divided.

The paper does not say which of them it prints. Beside them, what a task gains by learning after others.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from forgetfree.errors import InputError
from forgetfree.lab import legend
from forgetfree.lab.metrics import forward_transfer
from forgetfree.lab.paper import STL
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report import grid
from forgetfree.lab.report.columns import Run
from forgetfree.lab.report.tables import APART, by_setting

READINGS = {
    "untrained": "guesses",
    "untrained, noise": "noisy_guesses",
    "own head": "trained",
    "own head, noise": "trained, noisy",
}
"""Heading → where a record has the accuracies."""
CAPTION = (
    "In percent. learned - STL: accuracy of a task right after it is learned, less that of a network of its own with "
    "the same seed, mean over all tasks. Others: FWT divided by T - 1, and in brackets by T as the paper prints it. "
    "untrained: the network before a task is learned, through a head that has learned nothing. own head: the ticket of "
    "the task before, through the head that the task itself trained later. noise: with small noise on the zeros of the "
    "ticket, times the weights as they are before the task (untrained) or at the end (own head). R: accuracy of random "
    "networks."
)
BEYOND = "learned - STL"
"""Heading: right after learning, minus a network of its own."""


def transfers(folders: Sequence[RunFolder], methods: Sequence[str] = ()) -> list[dict[str, str]]:
    """A row for every setting whose runs measured forward transfer: means over seeds, with their deviation.

    Where `methods` are named, their rows alone.
    """
    rows, groups = [], by_setting(folders)
    for (experiment, method, settings, scale), runs in groups.items():
        found = [run.record.transfer for run in runs if run.record.transfer]
        if not found or (methods and method not in methods):
            continue
        seeds = " ".join(str(run.plan["run"]["seed"]) for run in runs if run.record.transfer)
        row = {
            "experiment": experiment,
            "method": method,
            "settings": settings,
            "scale": scale,
            "seeds": seeds,
        }
        alone = groups.get((experiment, STL, "", scale), []) if method != STL else []
        row[BEYOND] = _beyond([run for run in runs if run.record.transfer], alone)
        row |= {heading: _reading([_before(each, key) for each in found], found) for heading, key in READINGS.items()}
        rows.append({**row, "R": f"{100 * statistics.mean(statistics.mean(each['random']) for each in found):.2f}"})
    if not rows:
        raise InputError("none of these runs measured forward transfer; new runs do, unless protocol.forward is false.")
    return rows


def as_table(rows: Sequence[Mapping[str, str]], chosen: Sequence[str] = ()) -> Table:
    alike = [heading for heading in APART if heading != "method" and len({row[heading] for row in rows}) == 1]
    used = [heading for heading in columns_of(rows, chosen) if heading not in alike]
    title = ", ".join(f"{heading} {rows[0][heading]}" for heading in alike if rows[0][heading])
    table = Table(title=title, box=SIMPLE, padding=0, show_edge=False, caption=CAPTION, caption_justify="left")
    for heading in used:
        table.add_column(heading, overflow="fold", min_width=min(9, max(len(row[heading]) for row in rows)))
    for row in rows:
        table.add_row(*(legend.named(row["method"]) if heading == "method" else row[heading] for heading in used))
    return table


def as_markdown(rows: Sequence[Mapping[str, str]], chosen: Sequence[str] = ()) -> str:
    used = columns_of(rows, chosen)
    return grid.as_markdown(used, [_cells(row, used) for row in rows])


def as_latex(rows: Sequence[Mapping[str, str]], chosen: Sequence[str] = ()) -> str:
    used = columns_of(rows, chosen)
    return grid.as_latex([grid.Grid("", used, [_cells(row, used) for row in rows])], CAPTION)


def _cells(row: Mapping[str, str], columns: Sequence[str]) -> list[str]:
    shown = {**row, "method": legend.entry(row["method"]).label}
    return [shown[heading] for heading in columns]


def columns_of(rows: Sequence[Mapping[str, str]], chosen: Sequence[str] = ()) -> list[str]:
    """Columns that say something; where some are chosen, those in their order, behind what sets rows apart."""
    if not chosen:
        return [heading for heading in rows[0] if any(row[heading] for row in rows)]
    telling = [heading for heading in APART if heading == "method" or len({row[heading] for row in rows}) > 1]
    return list(dict.fromkeys([*telling, *chosen]))


def _before(found: Mapping[str, Any], key: str) -> list[float | None] | None:
    """Accuracy on each task before it is learned."""
    matrix = found.get("matrix", {}).get(key)
    if matrix is not None:
        return [None, *(matrix[i - 1][i] for i in range(1, len(matrix)))]
    accuracies: list[float | None] | None = found.get(key)
    return accuracies


def _reading(before: Sequence[list[float | None] | None], found: Sequence[Mapping[str, Any]]) -> str:
    measured = [(each, run["random"]) for each, run in zip(before, found, strict=True) if each is not None]
    by_less = [forward_transfer(each, random) for each, random in measured]
    by_all = [forward_transfer(each, random, over="T") for each, random in measured]
    if not measured or any(value is None for value in by_less):
        return ""
    return f"{_mean(by_less)} ({_mean(by_all)})"


def _beyond(runs: Sequence[Run], alone: Sequence[Run]) -> str:
    """What tasks reach right after learning beyond what each reaches alone, with the same seed."""
    single = {run.plan["run"]["seed"]: _right_after(run) for run in alone}
    pairs = [(_right_after(run), single.get(run.plan["run"]["seed"])) for run in runs]
    alike = [(own, others) for own, others in pairs if others and len(own) == len(others)]
    gains = [statistics.mean(a - b for a, b in zip(own, others, strict=True)) for own, others in alike]
    return _mean(gains) if gains else ""


def _right_after(run: Run) -> list[float]:
    """Accuracy of each task right after it is learned; those that were not measured are missing."""
    found = [row[t] for t, row in enumerate(run.record.accuracy)]
    return [accuracy for accuracy in found if accuracy is not None]


def _mean(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    deviation = f" ± {statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.2f}{deviation}"
