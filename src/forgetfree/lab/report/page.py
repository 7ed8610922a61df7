"""Page: finished runs as one HTML file that needs nothing else. Summary, tables, figures, and every run.

What is shown is gathered here; how it looks is in web/: page.html, page.css and page.js. The same runs give the same
page, apart from the line that names versions.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata, resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from matplotlib.colors import to_hex

from forgetfree.lab import legend
from forgetfree.lab.legend import COLOURS
from forgetfree.lab.records import Record, RunFolder
from forgetfree.lab.report import summary
from forgetfree.lab.report.columns import TABLES, Run
from forgetfree.lab.report.contents import ENDS, laid_out
from forgetfree.lab.report.drawing import Drawn, Group, allowed, groups
from forgetfree.lab.report.figures.figure import series
from forgetfree.lab.report.figures.ink import FAINT, INK, SHADES, readable_on
from forgetfree.lab.report.inline_svg import css_colour, inline_svg
from forgetfree.lab.report.layout import PUBLISHED, Layout, Line
from forgetfree.lab.report.our_rows import benchmark_of
from forgetfree.lab.report.published import Cell, published
from forgetfree.lab.report.session_tables import SPLITS, STREAMS, split_of
from forgetfree.lab.report.tables import HEADINGS, Row, caption, cells_of, columns_of, rows

DARK_INK, DARK_FAINT = "#e4e7eb", "#868e97"
DARK_COLOURS = (
    "#62b0f0",
    "#f08a4b",
    "#3fc49f",
    "#e07fbd",
    "#cdb14a",
    "#a79ef5",
    "#a9b1ba",
    "#5cc3d8",
    "#f08080",
    "#8fc95a",
    "#d98ae6",
    "#d0a06c",
    "#9fb8d0",
)
"""INK, FAINT and COLOURS on a dark ground, one for one."""
LEVELS = 50
"""Shades of a matrix that the page tells apart."""
WRITTEN_OUT = 10
"""Matrices of so many tasks have their numbers written on them; in larger ones a number is shown when asked for."""


@dataclass(frozen=True)
class Heading:
    """Of a column that can be sorted."""

    text: str
    numbers: bool


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    text: str
    number: float | None = None
    """What it is sorted by, where the text alone does not say it."""
    mark: str = ""
    slips: tuple[int, ...] = ()
    colour: str = ""
    """Of the method that it names, as figures have it."""
    glyph: str = ""
    """Its marker, likewise."""


@dataclass(frozen=True)
class Sheet:
    """A table as it stands on the page."""

    title: str
    headings: Sequence[Heading]
    lines: Sequence[tuple[str, Sequence[Entry]]]
    """(ours or published, cells)."""
    has_ours: bool = True


@dataclass(frozen=True)
class PaperTable:
    """A laid out table and the remarks below it."""

    key: str
    table: Layout
    sheets: Sequence[Sheet]

    @property
    def title(self) -> str:
        """With its number, where the paper has it."""
        quotes = any(line.source == PUBLISHED for line in self.table.lines)
        return f"Table {self.table.name}: {self.table.title}" if quotes else self.table.title


@dataclass(frozen=True)
class Picture:
    """A figure with its caption and the command that makes it alone."""

    key: str
    drawn: Drawn
    svg: str
    command: str


@dataclass(frozen=True)
class Matrix:
    """Accuracy on each task after each task; a shade and a text for each, both empty where not measured."""

    unit: str
    tasks: Sequence[str]
    lines: Sequence[Sequence[tuple[int, str] | None]]
    written_out: bool


@dataclass(frozen=True)
class OneRun:
    """A finished run in full."""

    key: str
    name: str
    label: str
    run: Run
    results: Mapping[str, str]
    certificate: Mapping[str, str]
    sections: Mapping[str, int]
    """Part of the archive → bytes."""
    settings: Mapping[str, Mapping[str, str]]
    matrix: Matrix
    sessions: Sheet | None


@dataclass(frozen=True)
class Part:
    """All about one group of runs that may be compared."""

    key: str
    group: Group
    sheet: Sheet
    caption: str
    pictures: Sequence[Picture]
    runs: Sequence[OneRun]


def page(folders: Sequence[RunFolder], *, command: str, made_by: str | None = None) -> str:
    """All that finished runs have to show; `command` reports on these runs. The page says what it was `made_by`."""
    found = groups(folders)
    parts = [_part(number, group, command) for number, group in enumerate(found, start=1)]
    waiting = [str(folder.path) for folder in folders if not folder.finished]
    template = _environment().from_string(_file("page.html"))
    text = template.render(
        made_by=made_by or command,
        parts=parts,
        pictured=[part for part in parts if part.pictures],
        tables=list(_paper_tables(found)),
        answers=summary.answers(found, folders),
        first=summary.first_numbers(found),
        waiting=waiting,
        go_on=shlex.join(["forgetfree", "resume", *waiting]),
        versions=", ".join(f"{name} {metadata.version(name)}" for name in ("forgetfree", "matplotlib", "jinja2")),
        style=_file("page.css") + _palette(),
        script=_file("page.js"),
        published=PUBLISHED,
    )
    return text.strip() + "\n"


def _environment() -> Environment:
    made = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    made.filters["kept"] = _kept
    return made


def _kept(text: str) -> str:
    """Text in which a number stays on one line with its unit, its deviation and what it is the value of."""
    return re.sub(r"(?<=\d) (?=%|±|[kM]B)|(?<=[±=]) (?=\d)|(?<=\bc) (?==)", "\N{NO-BREAK SPACE}", text)


def _file(name: str) -> str:
    return (resources.files("forgetfree.lab.report") / "web" / name).read_text(encoding="utf-8")


def _palette() -> str:
    """Colours of figures in both themes, and the shades of matrices, which are the same in both."""
    pairs = {"ink": (INK, DARK_INK), "faint": (FAINT, DARK_FAINT)}
    pairs |= {f"series-{n}": pair for n, pair in enumerate(zip(COLOURS, DARK_COLOURS, strict=True), start=1)}
    variables = "".join(f"--{name}:light-dark({light},{dark});" for name, (light, dark) in pairs.items())
    shades = [to_hex(SHADES(level / LEVELS)) for level in range(LEVELS + 1)]
    classes = "".join(
        f".s{level}{{background:{shade};color:{readable_on(shade)}}}" for level, shade in enumerate(shades)
    )
    return f":root{{{variables}}}\n{classes}\n"


def _part(number: int, group: Group, command: str) -> Part:
    key = f"group-{number}"
    own = [run for run in group.runs if run.method == run.plan["run"]["method"]]
    sheet, below = _plain(rows([run.folder for run in own]))
    labels = {run.folder.path: one.label for one in series(own) for run in one.runs}
    return Part(
        key=key,
        group=group,
        sheet=sheet,
        caption=below,
        pictures=[_picture(f"{key}-{drawn.name}", drawn, command) for drawn in allowed(group)],
        runs=[_one(f"{key}-run-{n}", run, labels[run.folder.path]) for n, run in enumerate(own, start=1)],
    )


def _plain(table: Sequence[Row]) -> tuple[Sheet, str]:
    """One row per setting, as the report prints them in a terminal; columns that are empty are left out."""
    texts = [cells_of(row) for row in table]
    used = [key for key in columns_of(table) if key not in ("experiment", "scale")]
    words = ("method", "settings", "seeds", "notes")
    lines = [
        ("ours", [_plain_entry(key, line[key], row) for key in used]) for row, line in zip(table, texts, strict=True)
    ]
    return Sheet("", [Heading(HEADINGS[key], key not in words) for key in used], lines), caption(table, used)


def _plain_entry(key: str, text: str, row: Row) -> Entry:
    if key == "method":
        return _named(row.method, text)
    return Entry(text, row.seconds if key == "seconds" else None)


def _named(method: str, text: str) -> Entry:
    """The name of a method of ours, with its colour and marker."""
    known = legend.entry(method)
    return Entry(text, colour=css_colour(known.colour), glyph=legend.GLYPHS[known.marker])


def _paper_tables(found: Sequence[Group]) -> Iterable[PaperTable]:
    """Every table that these runs belong to, those of the paper first."""
    runs = [run for group in found for run in group.runs if run.method == run.plan["run"]["method"]]
    there = {benchmark_of(run) for run in runs}
    folders = [run.folder for run in runs]
    asked: list[tuple[str, str | None]] = [(name, None) for name in TABLES if there & set(published(name).benchmarks)]
    for name, stream in STREAMS.items():
        members = [run for run in runs if benchmark_of(run) == stream.benchmark]
        known = {split_of(run) for run in members} & set(SPLITS)
        asked += [(name, split) for split in sorted(filter(None, known))] if stream.has_splits else []
        asked += [(name, None)] if members and not stream.has_splits else []
    asked += [(ENDS, None)] if any(run.record.sessions for run in runs) else []
    for number, (name, split) in enumerate(asked, start=1):
        table = laid_out(name, split, folders)
        yield PaperTable(f"table-{number}", table, [_sheet(table, block) for block in table.blocks])


def _sheet(table: Layout, block: str) -> Sheet:
    columns, lines = table.columns(block), table.lines_of([block])
    headings = [Heading("method", False), Heading("source", False)]
    headings += [Heading(table.headings[column], True) for column in columns]
    shown = [
        (
            _kind(line),
            [
                replace(
                    _named(line.key, line.method) if line.ours else Entry(line.method), mark=line.mark, slips=line.slips
                ),
                Entry(line.source),
                *(_entry(line.cell(block, column)) for column in columns),
            ],
        )
        for line in lines
    ]
    return Sheet(table.blocks[block], headings, shown, any(_kind(line) != PUBLISHED for line in lines))


def _kind(line: Line) -> str:
    return "ours" if line.ours else PUBLISHED


def _entry(cell: Cell | None) -> Entry:
    return Entry("") if cell is None else Entry(cell.text, None, cell.mark, cell.slips)


def _picture(key: str, drawn: Drawn, command: str) -> Picture:
    colours = {legend.entry(run.method).colour for run in drawn.group.runs}
    svg = inline_svg(drawn.drawing, key, drawn.title, drawn.words, colours=colours)
    return Picture(key, drawn, svg, f"{command} --figure {drawn.name}")


def _one(key: str, run: Run, label: str) -> OneRun:
    record, archive = run.record, run.record.archive
    return OneRun(
        key=key,
        name=run.folder.path.name,
        label=label,
        run=run,
        results=_results(record),
        certificate=_certificate(record),
        sections={name: size for name, size in archive.get("sections", {}).items() if size},
        settings=_settings(run),
        matrix=_matrix(record),
        sessions=_sessions(record),
    )


def _results(record: Record) -> dict[str, str]:
    cost = record.footprints[-1]
    measured = {
        "ACC": record.acc,
        "BWT": None if record.sessions else record.bwt,
        "FWT": record.fwt,
        "CAP by formula": cost["formula"],
        "archive": cost.get("written"),
        "archive without heads": cost.get("written_without_heads"),
        "weights used": cost["density"],
    }
    times = {name: sum(spent) for name, spent in record.seconds.items()}
    return {
        **{name: f"{100 * value:.2f} %" for name, value in measured.items() if value is not None},
        **{f"time {name}": _time(seconds) for name, seconds in times.items()},
    }


def _certificate(record: Record) -> dict[str, str]:
    """What was checked of this run: its answers along the way, and its archive."""
    checks = {"earlier answers compared": f"{record.compared:,}"}
    if record.compared:
        checks["of them changed"] = f"{record.different:,}"
    if not record.archive:
        return {**checks, "archive": "none was written"}
    return {
        **checks,
        "archive": f"{record.archive['bytes']:,} bytes",
        "every task verified": "yes" if record.archive["verified"] else "no",
        "answers after reading it": f"{record.archive['compared']:,}",
        "of these changed": f"{record.archive['different']:,}",
    }


def _settings(run: Run) -> dict[str, dict[str, str]]:
    """run.toml, section by section."""
    sections: dict[str, Any] = {**run.plan, "versions": run.folder.versions()}
    return {
        name: {key: _written(value) for key, value in section.items()}
        for name, section in sections.items()
        if isinstance(section, Mapping) and section
    }


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _matrix(record: Record) -> Matrix:
    lines = [
        [None if value is None else (round(LEVELS * min(1.0, max(0.0, value))), f"{100 * value:.2f}") for value in row]
        for row in record.accuracy
    ]
    return Matrix("session" if record.sessions else "task", record.tasks, lines, len(record.tasks) <= WRITTEN_OUT)


def _sessions(record: Record) -> Sheet | None:
    if not record.sessions:
        return None
    headings = ("session", "new classes", "test images", "overall", "base", "novel", "harmonic")
    lines = []
    for t, measured in enumerate(record.by_session):
        parts = [None if measured is None else getattr(measured, name) for name in headings[3:]]
        counts = [t + 1, record.sessions["classes"][t], sum(record.sessions["tested"][: t + 1])]
        shown = [*map(str, counts), *("" if part is None else f"{100 * part:.2f}" for part in parts)]
        lines.append(("ours", [Entry(text) for text in shown]))
    return Sheet("Sessions", [Heading(text, True) for text in headings], lines)


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
