"""Our rows: runs that differ in seed and draw alone become one row; words below the table say how it was measured."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from forgetfree.errors import InputError
from forgetfree.lab import legend
from forgetfree.lab.report.columns import Column, Run
from forgetfree.lab.report.layout import Line, label, printed
from forgetfree.lab.report.published import Cell, PublishedRow

Key = tuple[str, float | None, str]
"""Of a row: method, capacity, source."""
Groups = Mapping[Key, Mapping[str, Sequence[Run]]]
"""Row → block → runs."""


def benchmark_of(run: Run) -> str:
    return str(run.plan["benchmark"]["name"])


def grouped(runs: Iterable[Run], block: Callable[[Run], str] = benchmark_of) -> Groups:
    """Runs by row and block; a seed, or for few shots a seed and a draw, counts once."""
    groups: dict[Key, dict[str, list[Run]]] = {}
    for run in runs:
        groups.setdefault((run.method, capacity(run), source(run)), {}).setdefault(block(run), []).append(run)
    for blocks in groups.values():
        for members in blocks.values():
            _check_repetitions(members)
    return groups


def capacity(run: Run) -> float | None:
    """The capacity of a run whose method has a row for each."""
    value = run.plan["method"].get("capacity") if legend.entry(run.method).capacity else None
    return float(value) if isinstance(value, int | float) else None


def source(run: Run) -> str:
    """Ours, and what sets these runs apart: scale, overrides, another experiment on the same benchmark."""
    settings = run.plan["run"]
    experiment, benchmark = settings["experiment"], benchmark_of(run)
    usual = benchmark in (experiment.partition("/")[2], experiment.replace("/", "_"))
    # the table itself says the split of few-shot classes, and draws are repetitions like seeds
    shown = {"benchmark.split", "benchmark.draw"} if run.record.sessions else set()
    shown |= set() if capacity(run) is None else {"capacity"}
    overrides = [f"{key}={value}" for key, value in sorted(run.plan.get("overrides", {}).items()) if key not in shown]
    return ", ".join(["ours", *([] if usual else [experiment]), f"scale {settings['scale']}", *overrides])


def lined_up(
    published: Sequence[PublishedRow], groups: Groups, columns: Mapping[str, Column], order: Iterable[str]
) -> list[Line]:
    """All rows in this order of methods, then by capacity; what is published stands before what is ours."""
    lines = [((row.method, row.capacity), printed(row)) for row in published]
    for (method, part, where), blocks in groups.items():
        lines.append(((method, part), _measured(method, label(method, part), where, blocks, columns)))
    places = list(dict.fromkeys([*order, *(method for method, _, _ in groups)]))
    lines.sort(key=lambda entry: (places.index(entry[0][0]), entry[0][1] or 0.0))  # stable
    return [line for _, line in lines]


def notes(
    groups: Groups,
    blocks: Mapping[str, str],
    how: Callable[[str, Sequence[Run]], str],
) -> list[str]:
    """A line for all rows of a block and source that were measured alike; `how` says it for a block's runs."""
    alike: dict[tuple[str, str, str], dict[str, list[float | None]]] = {}
    for (method, part, where), members in groups.items():
        for block, runs in members.items():
            rows = alike.setdefault((block, where, how(block, runs)), {})
            rows.setdefault(method, []).append(part)
    order = list(blocks)
    return [
        f"{blocks[block]}, {where}: {'; '.join(_rows_named(rows))}: {text}."
        for (block, where, text), rows in sorted(alike.items(), key=lambda entry: order.index(entry[0][0]))
    ]


def of_run(run: Run, *, without: Iterable[str] = ()) -> list[str]:
    """Backbone, settings of the benchmark `without` those that stand elsewhere, and what the record notes."""
    backbone, benchmark = (_settings(run.plan[section], without) for section in ("backbone", "benchmark"))
    return [
        run.plan["backbone"]["name"] + (f" ({backbone})" if backbone else ""),
        *([f"benchmark with {benchmark}"] if benchmark else []),
        *(f"{key}: {value}" for key, value in run.record.notes.items()),
    ]


def counted(runs: Sequence[Run], most: int | None, unit: str) -> str:
    """How many tasks were learned, of how many."""
    found = {len(run.record.tasks) for run in runs}
    unit = unit.removesuffix("s") if found == {1} and most is None else unit
    return f"{listed(found)} {unit}" if most is None or found == {most} else f"only {listed(found)} of {most} {unit}"


def trained(runs: Sequence[Run], epochs: int | None, batch_size: int | None) -> list[str]:
    """Epochs and batch sizes, and those of the paper where they are known and others."""
    parts = []
    for word, key, usual in (("epochs", "epochs", epochs), ("batches of", "batch_size", batch_size)):
        found = {run.plan["recipe"][key] for run in runs}
        parts.append(f"{word} {listed(found)}" + ("" if usual is None or found == {usual} else f" instead of {usual}"))
    return parts


def listed(values: Iterable[Any]) -> str:
    return " ".join(map(str, sorted(values)))


def _check_repetitions(runs: Sequence[Run]) -> None:
    first: dict[tuple[int, int | None], Run] = {}
    for run in runs:
        repetition = run.plan["run"]["seed"], run.plan["benchmark"].get("draw") if run.record.sessions else None
        if repetition in first:
            raise InputError(
                f"{first[repetition].folder.path} and {run.folder.path} are runs of the same plan and seed, which "
                "would count twice. Name one of them."
            )
        first[repetition] = run


def _measured(
    method: str, name: str, where: str, blocks: Mapping[str, Sequence[Run]], columns: Mapping[str, Column]
) -> Line:
    cells: dict[str, dict[str, Cell]] = {}
    for block, runs in blocks.items():
        found = {key: _cell([column.measured(run) for run in runs], column) for key, column in columns.items()}
        cells[block] = {key: cell for key, cell in found.items() if cell is not None}
    seeds = {block: tuple(sorted({run.plan["run"]["seed"] for run in runs})) for block, runs in blocks.items()}
    return Line(name, where, seeds, cells, key=method)


def _cell(values: Sequence[float | None], column: Column) -> Cell | None:
    """Mean and deviation over the runs, if all of them have a value."""
    known = [column.unit * value for value in values if value is not None]
    if len(known) < len(values):
        return None
    mean, deviation = statistics.mean(known), statistics.stdev(known) if len(known) > 1 else None
    shown = f"{mean:{column.sign}.{column.digits}f}"
    return Cell(mean, deviation, shown if deviation is None else f"{shown} ± {deviation:.{column.digits}f}")


def _rows_named(rows: Mapping[str, Sequence[float | None]]) -> list[str]:
    return [
        label(method, None)
        + (f" at c = {', '.join(f'{100 * c:g}' for c in capacities if c)} %" if any(capacities) else "")
        for method, capacities in rows.items()
    ]


def _settings(section: Mapping[str, Any], without: Iterable[str]) -> str:
    """What was set for a backbone or a benchmark, apart from its name and what stands elsewhere."""
    left = {key: value for key, value in section.items() if key not in ("name", "tasks", *without)}
    left = {key: value for key, value in left.items() if value != "none" and value is not False}
    words = {key: " ".join(map(str, value)) if isinstance(value, list) else str(value) for key, value in left.items()}
    return ", ".join(key if word == "True" else f"{key} {word}" for key, word in words.items())
