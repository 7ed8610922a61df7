"""Forward transfer in all its readings: which head answers, with or without noise, and by how many tasks is divided.

The paper does not say which of them it prints.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from forgetfree.errors import InputError
from forgetfree.lab.metrics import forward_transfer
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.tables import by_setting

READINGS = {
    "untrained": "guesses",
    "untrained, noise": "noisy_guesses",
    "own head": "trained",
    "own head, noise": "trained, noisy",
}
"""Heading → where a record has the accuracies."""
CAPTION = (
    "FWT in percent, divided by T - 1, and in brackets by T as the paper prints it. untrained: the network before a "
    "task is learned, through a head that has learned nothing. own head: the ticket of the task before, through the "
    "head that the task itself trained later. noise: with small noise on the zeros of the ticket, times the weights as "
    "they are before the task (untrained) or at the end (own head). R: accuracy of random networks."
)


def transfers(folders: Sequence[RunFolder]) -> list[dict[str, str]]:
    """A row for every setting whose runs measured forward transfer: means over seeds, with their deviation."""
    rows = []
    for (experiment, method, settings, scale), runs in by_setting(folders).items():
        found = [run.record.transfer for run in runs if run.record.transfer]
        if not found:
            continue
        seeds = " ".join(str(run.plan["run"]["seed"]) for run in runs if run.record.transfer)
        row = {"experiment": experiment, "method": method, "settings": settings, "scale": scale, "seeds": seeds}
        row |= {heading: _reading([_before(each, key) for each in found], found) for heading, key in READINGS.items()}
        rows.append({**row, "R": f"{100 * statistics.mean(statistics.mean(each['random']) for each in found):.2f}"})
    if not rows:
        raise InputError("none of these runs measured forward transfer; new runs do, unless protocol.forward is false.")
    return rows


def as_table(rows: Sequence[Mapping[str, str]]) -> Table:
    used = _used(rows)
    table = Table(box=SIMPLE, padding=0, show_edge=False, caption=CAPTION, caption_justify="left")
    for heading in used:
        table.add_column(heading, overflow="fold", min_width=min(9, max(len(row[heading]) for row in rows)))
    for row in rows:
        table.add_row(*(row[heading] for heading in used))
    return table


def as_markdown(rows: Sequence[Mapping[str, str]]) -> str:
    used = _used(rows)
    lines = [used, ["---"] * len(used), *([row[heading] for heading in used] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _used(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return [heading for heading in rows[0] if any(row[heading] for row in rows)]


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


def _mean(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    deviation = f" ± {statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.2f}{deviation}"
