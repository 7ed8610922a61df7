"""Tables of documents that are made of stored runs and of what the paper prints.

`few_shot_cifar100` puts our runs beside both tables of the paper; `saved_by_codes` is what codes save of the masks of
stored runs, as `forgetfree analyse` found it.
"""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.tables import Cell, Table
from forgetfree.lab.records import RunFolder, find_runs
from forgetfree.lab.report.columns import Run, views
from forgetfree.lab.report.published import PublishedRow, printed_title, published_sessions

RESULTS = Path(__file__).resolve().parents[1] / "results"
CIFAR = "fscil_cifar100"
COUNTS = (7, 10, 14, 20)
"""Numbers of tasks: full blocks of seven, and the ends of the streams."""


def few_shot_cifar100(folder: Path = RESULTS / "fscil-cifar100") -> Table:
    """First and last session of every method in its usual form, ours and the paper's, and how far sessions differ."""
    rows = [_row(method, runs) for method, runs in _usual(find_runs([folder]))]
    note = (
        "Accuracy in percent after the first session → after the last; in brackets the largest difference in a session "
        "that we measured. Of several published rows of a method that of F2M's authors is taken."
    )
    return Table("few-shot CIFAR-100 beside the paper", rows, note)


def saved_by_codes(folder: Path = RESULTS) -> Table:
    """What the paper's 7-bit Huffman code and ANS save of raw masks, after some numbers of tasks; mean over seeds."""
    found: dict[tuple[str, float, str], dict[int, list[float]]] = {}
    seeds: dict[tuple[str, float, str], set[int]] = {}
    for run in find_runs([folder]):
        codes, plan = run.analysis("codes"), run.plan()
        for code in ("huffman 7", "ans 7") if codes else ():
            key = (plan["run"]["experiment"], plan["method"]["capacity"], code)
            seeds.setdefault(key, set()).add(plan["run"]["seed"])
            for tasks, coded, raw in zip(codes["tasks"], codes["masks"][code], codes["masks"]["raw"], strict=True):
                found.setdefault(key, {}).setdefault(tasks, []).append(1 - coded / raw)
    rows: list[dict[str, Cell]] = [
        {
            "benchmark": key[0],
            "capacity": f"{key[1]:.0%}",
            "code": key[2],
            "seeds": " ".join(map(str, sorted(seeds[key]))),
            **{f"after {count}": f"{statistics.mean(by[count]):.3f}" if count in by else "" for count in COUNTS},
        }
        for key, by in sorted(found.items())
    ]
    note = "The part of the raw mask bits that is saved, scale `cpu`; the paper's formula takes 0.78 for all."
    return Table("saved by codes", rows, note)


def _usual(folders: Sequence[RunFolder]) -> Iterator[tuple[str, list[Run]]]:
    """Runs by method, without those that change how sessions are trained."""
    runs = [run for folder in folders for run in views(folder)]
    usual = [run for run in runs if {*run.plan["overrides"]} <= {"benchmark.split", "capacity"}]
    topic = [run for run in usual if run.plan["benchmark"]["split"] == "topic"]
    for method in dict.fromkeys(run.method for run in topic):
        yield method, [run for run in topic if run.method == method]


def _row(method: str, runs: Sequence[Run]) -> dict[str, Cell]:
    capacity = runs[0].plan["method"].get("capacity")
    sessions = [
        [None if entry is None else 100 * entry.overall for entry in at]
        for at in zip(*(run.record.by_session for run in runs), strict=True)
    ]
    ours = [statistics.mean(v for v in at if v is not None) if any(at) else None for at in sessions]
    said = printed_title(method) or method
    row: dict[str, Cell] = {
        "method": f"{said}, c = {100 * capacity:g} %" if capacity else said,
        "ours": f"{ours[0]:.2f} → {ours[-1]:.2f}",
    }
    for name, split in (("Table 4", "random"), ("Table 7", "topic")):
        row[name] = _printed(method, capacity, split, ours)
    return row


def _printed(method: str, capacity: float | None, split: str, ours: Sequence[float | None]) -> str:
    table = published_sessions(CIFAR, split)
    assert table is not None
    rows = [row for row in table.rows if row.method == method and row.capacity == capacity]
    if not rows:
        return ""
    cells = _sessions(next((row for row in rows if row.mark == "*"), rows[0]))
    apart = [a - b for a, b in zip(ours, cells, strict=True) if a is not None]
    return f"{cells[0]:.2f} → {cells[-1]:.2f} ({max(apart, key=abs):+.1f})"


def _sessions(row: PublishedRow) -> list[float]:
    return [
        cell.mean for name, cell in row.cells[CIFAR].items() if name.startswith("session") and cell.mean is not None
    ]
