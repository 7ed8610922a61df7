"""Published: what the paper prints, cell by cell, with marks, slips and its rules of capacity.

Task-incremental tables are in published.toml, those of few-shot sessions in published_fscil.toml.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any, Literal

from forgetfree.lab import legend

NOT_PRINTED = "-"
CELL = re.compile(r"(?P<mean>[+-]?[\d.]+)(?: ± (?P<deviation>[\d.]+))?(?: (?P<mark>[†*]))?")

Rule = Literal["coded", "raw", "dense"]


@dataclass(frozen=True)
class Cell:
    """One number, in percent or hours, with the deviation over seeds or runs; no `mean` where a dash is printed."""

    mean: float | None
    deviation: float | None
    text: str
    """As it is shown; of the paper with its own digits."""
    mark: str = ""
    """Of a number that the paper takes from elsewhere."""
    slips: tuple[int, ...] = ()
    """What is wrong with it or doubtful, counted from one as in `PublishedTable.slips`."""


@dataclass(frozen=True)
class PublishedMethod:
    """A method as the tables name it, and the rule by which the paper charges its capacity."""

    title: str
    charged: Rule


@dataclass(frozen=True)
class PublishedBenchmark:
    """A benchmark as the paper ran it."""

    title: str
    tasks: int
    epochs: int | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class PublishedRow:
    """A row of a table: benchmark → column → cell."""

    method: str
    capacity: float | None
    label: str | None
    cells: Mapping[str, Mapping[str, Cell]]
    mark: str = ""
    """Beside the name of the method."""
    slips: tuple[int, ...] = ()
    """Of the row as a whole."""


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper."""

    name: str
    """Its number."""
    title: str
    runs: int | None
    """Of which the numbers are means, if the paper says so."""
    remark: str
    benchmarks: Mapping[str, PublishedBenchmark]
    columns: tuple[str, ...]
    marks: Mapping[str, str]
    rows: Sequence[PublishedRow]
    slips: Sequence[str]


def published(name: str) -> PublishedTable:
    """The table of this number, fractions turned into percent."""
    content = _content("published.toml")
    return _table(name, content["tables"][name], content)


def published_sessions(benchmark: str, split: str | None) -> PublishedTable | None:
    """The table of few-shot sessions of this benchmark and split, if the paper has one.

    Its columns are session_1, session_2, … and gap. Tables of drawn shots stand beside ours whether or not we draw the
    classes too.
    """
    content = _content("published_fscil.toml")
    for name, table in content["tables"].items():
        if (table["benchmark"], table["split"]) == (benchmark, "drawn_shots" if split == "random" else split):
            columns = [f"session_{t + 1}" for t in range(content["benchmarks"][benchmark]["tasks"])]
            rows = [
                {**row, benchmark: {**dict(zip(columns, row["sessions"].split(), strict=True)), "gap": row["gap"]}}
                for row in table["rows"]
            ]
            shaped = {**table, "benchmarks": [benchmark], "columns": [*columns, "gap"], "rows": rows}
            return _table(name, shaped, content)
    return None


def methods() -> dict[str, PublishedMethod]:
    """Every method of the tables, in their order."""
    return {name: PublishedMethod(**entry) for name, entry in _content("published.toml")["methods"].items()}


def session_methods() -> dict[str, str]:
    """Every method of the tables of few-shot sessions, name → title, in the order of rows."""
    return dict(_content("published_fscil.toml")["methods"])


def title(method: str) -> str:
    """A method by its label; one that is not ours as the paper's tables name it."""
    return legend.entry(method).label if legend.installed(method) else printed_title(method) or method


def printed_title(method: str) -> str | None:
    """A method as the paper's tables name it, if it is in one."""
    known = methods().get(method)
    return known.title if known else session_methods().get(method)


def renamed(names: Iterable[str]) -> str:
    """A sentence on those of these methods that have another name in the paper; nothing where none has."""
    others = {title(name): printed_title(name) for name in names if printed_title(name) not in (None, title(name))}
    return f" The paper calls {', '.join(f'{ours} {theirs}' for ours, theirs in others.items())}." if others else ""


def rules() -> dict[Rule, str]:
    """How the paper charges capacity, in words."""
    return dict(_content("published.toml")["charged"])


def _table(name: str, table: Mapping[str, Any], content: Mapping[str, Any]) -> PublishedTable:
    slips = [slip for slip in content["slips"] if slip["table"] == name]
    return PublishedTable(
        name=name,
        title=table["title"],
        runs=table.get("runs"),
        remark=table.get("remark", ""),
        benchmarks={key: PublishedBenchmark(**content["benchmarks"][key]) for key in table["benchmarks"]},
        columns=tuple(table["columns"]),
        marks=table["marks"],
        rows=[_row(row, table, slips) for row in table["rows"]],
        slips=[slip["text"] for slip in slips],
    )


def _row(row: Mapping[str, Any], table: Mapping[str, Any], slips: Sequence[Mapping[str, Any]]) -> PublishedRow:
    capacity, mark = row.get("capacity"), row.get("mark", "")
    of_row = {
        number: slip
        for number, slip in enumerate(slips, start=1)
        if row["method"] in slip["methods"]
        and capacity == slip.get("capacity", capacity)
        and mark == slip.get("mark", mark)
    }

    def cell(benchmark: str, column: str) -> Cell:
        found = tuple(
            number
            for number, slip in of_row.items()
            if slip.get("column") == column and benchmark in slip.get("benchmarks", [benchmark])
        )
        return _printed(row[benchmark][column], fraction=column in table.get("fractions", []), slips=found)

    cells = {
        benchmark: {column: cell(benchmark, column) for column in table["columns"]} for benchmark in table["benchmarks"]
    }
    whole = tuple(number for number, slip in of_row.items() if "column" not in slip)
    return PublishedRow(row["method"], capacity, row.get("label"), cells, mark, whole)


def _printed(text: str, *, fraction: bool, slips: tuple[int, ...]) -> Cell:
    if text == NOT_PRINTED:
        return Cell(None, None, NOT_PRINTED)
    parts = CELL.fullmatch(text)
    if parts is None:
        raise ValueError(f"published: {text!r} is no cell such as '88.64 ± 0.26 †' or '-'.")
    # decimals, so that -0.21 becomes -21 with the digits the paper has, no more
    mean, deviation = (_scaled(part, fraction) if part else None for part in parts.group("mean", "deviation"))
    sign = "+" if text.startswith("+") else ""
    shown = f"{sign}{mean:f}" if deviation is None else f"{sign}{mean:f} ± {deviation:f}"
    spread = None if deviation is None else float(deviation)
    return Cell(None if mean is None else float(mean), spread, shown, parts["mark"] or "", slips)


def _scaled(text: str, fraction: bool) -> Decimal:
    return Decimal(text).scaleb(2) if fraction else Decimal(text)


@cache
def _content(file: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("forgetfree.lab.report") / file).read_text(encoding="utf-8"))
