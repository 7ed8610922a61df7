"""The paper's tables: its layout, its numbers and ours, each in rows of their own and labelled.

A row per method (WSN and SoftNet: per capacity) and source, a block of columns per benchmark. Lines below the table say
at what scale, with which seeds and on how much of a benchmark our rows were measured.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forgetfree.errors import InputError
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.columns import TABLES, Column, Seen, views
from forgetfree.lab.report.published import (
    PublishedBenchmark,
    PublishedRow,
    PublishedTable,
    methods,
    published,
    rules,
)
from forgetfree.lab.report.tables import finished

PUBLISHED = "published"
BY_CAPACITY = ("wsn", "softnet")
"""Methods that have a row for each capacity."""


@dataclass(frozen=True)
class Cell:
    """One number: percent or hours, with the deviation over seeds or runs; None where there is none."""

    mean: float | None
    deviation: float | None
    text: str
    mark: str = ""
    slips: tuple[int, ...] = ()


@dataclass(frozen=True)
class Line:
    """One row: a method from one source. What was not run is not in `cells`."""

    method: str
    source: str
    seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By benchmark; none for what is published."""
    cells: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    """Benchmark → column → cell."""

    def cell(self, benchmark: str, column: str) -> Cell | None:
        return self.cells.get(benchmark, {}).get(column)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper with our rows beside its own."""

    name: str
    title: str
    blocks: Mapping[str, str]
    """Benchmark → title."""
    headings: Mapping[str, str]
    """Column → heading."""
    lines: Sequence[Line]
    caption: str
    marks: Mapping[str, str]
    slips: Sequence[str]
    notes: Sequence[str]
    """How our rows were measured, a line for each group of runs."""

    def columns(self, benchmark: str) -> list[str]:
        """The columns of a block; those that are empty in it are left out."""
        return [column for column in self.headings if any(line.cell(benchmark, column) for line in self.lines)]


def paper_table(name: str, folders: Sequence[RunFolder]) -> PaperTable:
    """The table of this name, with all finished runs that belong to it."""
    if name not in TABLES:
        raise InputError(f"there is no table {name!r}. There are: {', '.join(TABLES)}, transfer.")
    table, columns = published(name), TABLES[name]
    runs = _belonging(name, table, finished(folders))
    groups: dict[tuple[str, float | None, str], dict[str, list[Seen]]] = {}
    for run in runs:
        group = groups.setdefault((run.method, _capacity(run), _source(run)), {})
        group.setdefault(run.plan["benchmark"]["name"], []).append(run)
    lines = [((row.method, row.capacity), _printed(row)) for row in table.rows]
    for (method, capacity, source), blocks in groups.items():
        _check_seeds(blocks)
        lines.append(((method, capacity), _measured(_label(method, capacity), source, blocks, columns)))
    order = [*methods(), *dict.fromkeys(run.method for run in runs)]
    lines.sort(key=lambda entry: (order.index(entry[0][0]), entry[0][1] or 0.0))  # stable: published comes first
    return PaperTable(
        name=name,
        title=table.title,
        blocks={key: benchmark.title for key, benchmark in table.benchmarks.items()},
        headings={key: column.heading for key, column in columns.items()},
        lines=[line for _, line in lines],
        caption=_caption(name, table, columns),
        marks=table.marks,
        slips=table.slips,
        notes=_notes(table, groups, timed="time" in columns),
    )


def _belonging(name: str, table: PublishedTable, folders: Sequence[RunFolder]) -> list[Seen]:
    found = [run for folder in folders for run in views(folder)]
    belonging = [run for run in found if run.plan["benchmark"]["name"] in table.benchmarks]
    if not belonging:
        there = sorted({run.plan["benchmark"]["name"] for run in found})
        raise InputError(
            f"table {name} is of {', '.join(table.benchmarks)}; these runs are of {', '.join(there)}. "
            "Without --table they are reported as they are."
        )
    return belonging


def _capacity(run: Seen) -> float | None:
    return float(run.plan["method"]["capacity"]) if run.method in BY_CAPACITY else None


def _source(run: Seen) -> str:
    """Ours, and what sets these runs apart: scale, overrides, another experiment on the same benchmark."""
    settings = run.plan["run"]
    usual = settings["experiment"].partition("/")[2] == run.plan["benchmark"]["name"]
    overrides = [
        f"{key}={value}"
        for key, value in sorted(run.plan.get("overrides", {}).items())
        if not (key == "capacity" and run.method in BY_CAPACITY)
    ]
    return ", ".join(["ours", *([] if usual else [settings["experiment"]]), f"scale {settings['scale']}", *overrides])


def _check_seeds(blocks: Mapping[str, Sequence[Seen]]) -> None:
    for runs in blocks.values():
        first: dict[int, Seen] = {}
        for run in runs:
            seed = run.plan["run"]["seed"]
            if seed in first:
                raise InputError(
                    f"{first[seed].folder.path} and {run.folder.path} are runs of the same plan and seed, which would "
                    "count twice. Name one of them."
                )
            first[seed] = run


def _label(method: str, capacity: float | None) -> str:
    known = methods().get(method)
    title = known.title if known else method
    return title if capacity is None else f"{title}, c = {100 * capacity:g} %"


def _printed(row: PublishedRow) -> Line:
    cells = {
        benchmark: {
            column: Cell(cell.mean, cell.deviation, cell.text, cell.mark, cell.slips) for column, cell in block.items()
        }
        for benchmark, block in row.cells.items()
    }
    return Line(row.label or _label(row.method, row.capacity), PUBLISHED, cells=cells)


def _measured(label: str, source: str, blocks: Mapping[str, Sequence[Seen]], columns: Mapping[str, Column]) -> Line:
    cells: dict[str, dict[str, Cell]] = {}
    for benchmark, runs in blocks.items():
        found = {key: _cell([column.measured(run) for run in runs], column.unit) for key, column in columns.items()}
        cells[benchmark] = {key: cell for key, cell in found.items() if cell is not None}
    seeds = {key: tuple(sorted(run.plan["run"]["seed"] for run in runs)) for key, runs in blocks.items()}
    return Line(label, source, seeds, cells)


def _cell(values: Sequence[float | None], unit: float) -> Cell | None:
    """Mean and deviation over seeds, if all of them have a value."""
    known = [unit * value for value in values if value is not None]
    if len(known) < len(values):
        return None
    mean, deviation = statistics.mean(known), statistics.stdev(known) if len(known) > 1 else None
    digits = 2 if unit > 1 else 4  # hours of small runs are small
    shown = f"{mean:.{digits}f}" if deviation is None else f"{mean:.{digits}f} ± {deviation:.{digits}f}"
    return Cell(mean, deviation, shown)


def _caption(name: str, table: PublishedTable, columns: Mapping[str, Column]) -> str:
    by_rule = {rule: [method.title for method in methods().values() if method.charged == rule] for rule in rules()}
    charged = "; ".join(f"{', '.join(by_rule[rule])}: {text}" for rule, text in rules().items())
    runs = f" (means of {table.runs} runs)" if table.runs else ""
    meanings = ". ".join(f"{column.heading}: {column.meaning}" for column in columns.values())
    return (
        f"Table {name} of the paper: {table.title}. Rows marked {PUBLISHED} are what the paper prints{runs}; all "
        "others are ours, mean ± deviation over seeds. In percent, time apart. Blank: not run or not measured; a dash: "
        f"the paper prints no number; ?1: see the remark of that number. {meanings}. The paper's rule of CAP: "
        f"{charged}." + (f" {table.remark}" if table.remark else "")
    )


def _notes(
    table: PublishedTable, groups: Mapping[tuple[str, float | None, str], Mapping[str, Sequence[Seen]]], *, timed: bool
) -> list[str]:
    """A line for all rows of a benchmark and source that were measured alike."""
    alike: dict[tuple[str, str, str], dict[str, list[float | None]]] = {}
    for (method, capacity, source), blocks in groups.items():
        for benchmark, runs in blocks.items():
            text = _measured_how(table.benchmarks[benchmark], runs, timed=timed)
            rows = alike.setdefault((benchmark, source, text), {})
            rows.setdefault(method, []).append(capacity)
    order = list(table.benchmarks)
    return [
        f"{table.benchmarks[benchmark].title}, {source}: {'; '.join(_rows_named(rows))}: {text}."
        for (benchmark, source, text), rows in sorted(alike.items(), key=lambda entry: order.index(entry[0][0]))
    ]


def _rows_named(rows: Mapping[str, Sequence[float | None]]) -> list[str]:
    return [
        _label(method, None)
        + (f" at c = {', '.join(f'{100 * c:g}' for c in capacities if c)} %" if any(capacities) else "")
        for method, capacities in rows.items()
    ]


def _measured_how(paper: PublishedBenchmark, runs: Sequence[Seen], *, timed: bool) -> str:
    """What one must know before putting these numbers beside the published ones."""
    epochs, batches = ({run.plan["recipe"][key] for run in runs} for key in ("epochs", "batch_size"))
    tasks = {len(run.record.tasks) for run in runs}
    said = [
        f"seeds {_all(run.plan['run']['seed'] for run in runs)}",
        f"{_all(tasks)} tasks" if tasks == {paper.tasks} else f"only {_all(tasks)} of {paper.tasks} tasks",
        f"epochs {_all(epochs)}" + ("" if epochs == {paper.epochs} else f" instead of {paper.epochs}"),
        f"batches of {_all(batches)}" + ("" if batches == {paper.batch_size} else f" instead of {paper.batch_size}"),
    ]
    for run in runs:
        backbone, benchmark = (_settings(run.plan[section]) for section in ("backbone", "benchmark"))
        images = run.record.transfer.get("images")
        said += [
            run.plan["backbone"]["name"] + (f" ({backbone})" if backbone else ""),
            *([f"benchmark with {benchmark}"] if benchmark else []),
            *(f"{key}: {value}" for key, value in run.record.notes.items()),
            *([f"transfer between tickets on {images} images a task"] if images else []),
            *([f"threads {run.plan['run']['threads']}"] if timed else []),
        ]
    return "; ".join(dict.fromkeys(said))


def _all(values: Iterable[Any]) -> str:
    return " ".join(map(str, sorted(values)))


def _settings(section: Mapping[str, Any]) -> str:
    """What was set for a backbone or a benchmark, apart from its name and what is said elsewhere."""
    told = {key: value for key, value in section.items() if key not in ("name", "tasks")}
    told = {key: value for key, value in told.items() if value != "none" and value is not False}
    words = {key: " ".join(map(str, value)) if isinstance(value, list) else str(value) for key, value in told.items()}
    return ", ".join(key if word == "True" else f"{key} {word}" for key, word in words.items())
