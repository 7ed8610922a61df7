"""Published: what the paper prints (published.toml), cell by cell, with marks, slips and its rules of capacity."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from typing import Any, Literal

NOT_PRINTED = "-"
CELL = re.compile(r"(?P<mean>-?[\d.]+)(?: ± (?P<deviation>[\d.]+))?(?: (?P<mark>[†*]))?")

Rule = Literal["coded", "raw", "dense"]


@dataclass(frozen=True)
class Printed:
    """One cell of the paper, in percent or hours; `mean` is None where the paper prints a dash."""

    mean: float | None
    deviation: float | None
    text: str
    """With the paper's own digits."""
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
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class PublishedRow:
    """A row of a table: benchmark → column → cell."""

    method: str
    capacity: float | None
    label: str | None
    cells: Mapping[str, Mapping[str, Printed]]


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper."""

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
    content = _content()
    table = content["tables"][name]
    slips = [slip for slip in content["slips"] if slip["table"] == name]
    return PublishedTable(
        title=table["title"],
        runs=table.get("runs"),
        remark=table.get("remark", ""),
        benchmarks={key: PublishedBenchmark(**content["benchmarks"][key]) for key in table["benchmarks"]},
        columns=tuple(table["columns"]),
        marks=table["marks"],
        rows=[_row(row, table, slips) for row in table["rows"]],
        slips=[slip["text"] for slip in slips],
    )


def methods() -> dict[str, PublishedMethod]:
    """Every method of the tables, in their order."""
    return {name: PublishedMethod(**entry) for name, entry in _content()["methods"].items()}


def rules() -> dict[Rule, str]:
    """How the paper charges capacity, in words."""
    return dict(_content()["charged"])


def _row(row: Mapping[str, Any], table: Mapping[str, Any], slips: Sequence[Mapping[str, Any]]) -> PublishedRow:
    def cell(benchmark: str, column: str) -> Printed:
        found = tuple(
            number
            for number, slip in enumerate(slips, start=1)
            if slip["column"] == column
            and row["method"] in slip["methods"]
            and benchmark in slip.get("benchmarks", [benchmark])
            and row.get("capacity") == slip.get("capacity", row.get("capacity"))
        )
        return _printed(row[benchmark][column], fraction=column in table.get("fractions", []), slips=found)

    cells = {
        benchmark: {column: cell(benchmark, column) for column in table["columns"]} for benchmark in table["benchmarks"]
    }
    return PublishedRow(row["method"], row.get("capacity"), row.get("label"), cells)


def _printed(text: str, *, fraction: bool, slips: tuple[int, ...]) -> Printed:
    if text == NOT_PRINTED:
        return Printed(None, None, NOT_PRINTED)
    parts = CELL.fullmatch(text)
    if parts is None:
        raise ValueError(f"published.toml: {text!r} is no cell such as '88.64 ± 0.26 †' or '-'.")
    # decimals, so that -0.21 becomes -21 with the digits the paper has, no more
    mean, deviation = (_scaled(part, fraction) if part else None for part in parts.group("mean", "deviation"))
    shown = f"{mean:f}" if deviation is None else f"{mean:f} ± {deviation:f}"
    spread = None if deviation is None else float(deviation)
    return Printed(None if mean is None else float(mean), spread, shown, parts["mark"] or "", slips)


def _scaled(text: str, fraction: bool) -> Decimal:
    return Decimal(text).scaleb(2) if fraction else Decimal(text)


def _content() -> dict[str, Any]:
    return tomllib.loads((resources.files("forgetfree.lab.report") / "published.toml").read_text(encoding="utf-8"))
