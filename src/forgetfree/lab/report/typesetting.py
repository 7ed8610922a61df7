"""Typesetting: a table that is laid out, for a terminal, as Markdown, as CSV and as LaTeX."""

import csv
import io
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from forgetfree.lab import legend
from forgetfree.lab.report.escapes import latex, markdown
from forgetfree.lab.report.grid import PACKAGES, TO_FIT
from forgetfree.lab.report.layout import Layout, Line
from forgetfree.lab.report.published import Cell


def as_terminal(table: Layout) -> list[Table | Text]:
    """A table for each block, one below the other: side by side they would fit on no screen."""
    shown: list[Table | Text] = []
    for benchmark, title in table.blocks.items():
        columns = table.columns(benchmark)
        block = Table(
            title=f"Table {table.name}: {title}", title_justify="left", box=SIMPLE, padding=0, show_edge=False
        )
        for heading in ("method", "source"):
            block.add_column(heading, overflow="fold")
        for column in columns:
            block.add_column(table.headings[column], justify="right", overflow="fold")
        for line in table.lines_of([benchmark]):
            cells = [line.source, *(_text(line.cell(benchmark, column)) for column in columns)]
            name = legend.named(line.key, _named(line)) if line.ours else Text(f"  {_named(line)}")
            block.add_row(name, *map(Text, cells), style=None if line.ours else "dim")
        shown.append(block)
    return [*shown, Text("\n".join([table.caption, *_remarks(table)]))]


def as_markdown(table: Layout) -> str:
    """One table with all blocks side by side, or one for each; what is to be known about it below."""
    sheets = [_markdown_sheet(table, blocks) for blocks in table.sheets]
    below = "".join(f"- {_starless(remark)}\n" for remark in _remarks(table))
    return "\n\n".join([*sheets, _starless(table.caption), below])


def _markdown_sheet(table: Layout, blocks: Sequence[str]) -> str:
    columns = [(block, column) for block in blocks for column in table.columns(block)]
    named = {block: f"{table.blocks[block]}: " if len(blocks) > 1 else "" for block in blocks}
    lines = [
        ["method", "source", *(f"{named[block]}{table.headings[column]}" for block, column in columns)],
        ["---"] * (2 + len(columns)),
        *(
            [_named(line), line.source, *(_text(line.cell(*place)) for place in columns)]
            for line in table.lines_of(blocks)
        ),
    ]
    text = "\n".join("| " + " | ".join(markdown(cell) for cell in line) + " |" for line in lines)
    return f"{table.blocks[blocks[0]]}\n\n{text}" if len(table.sheets) > 1 else text


def as_csv(table: Layout) -> str:
    """A row for each method, source and benchmark; numbers are not rounded, marks and slips have their own columns."""
    text = io.StringIO()
    numbers = [name for column in table.headings for name in (column, f"{column}_deviation")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "benchmark", "method", "source", "seeds", *numbers, "marks", "slips"])
    for benchmark in table.blocks:
        for line in table.lines_of([benchmark]):
            cells = {column: line.cell(benchmark, column) for column in table.headings}
            found = {column: cell for column, cell in cells.items() if cell is not None}
            noted: dict[str, Cell | Line] = {"row": line, **found}
            marks = "; ".join(f"{place} {entry.mark}" for place, entry in noted.items() if entry.mark)
            slips = "; ".join(f"{place}: {table.slips[n - 1]}" for place, entry in noted.items() for n in entry.slips)
            values = [value for cell in cells.values() for value in _numbers(cell)]
            seeds = " ".join(map(str, line.seeds.get(benchmark, ())))
            writer.writerow([table.name, benchmark, line.method, line.source, seeds, *values, marks, slips])
    return text.getvalue()


def as_latex(table: Layout) -> str:
    """A table in the manner of the paper; needs the packages booktabs and graphicx."""
    remarks = [latex(remark) + r" \\" for remark in _remarks(table)]
    return "\n".join(
        [
            PACKAGES,
            r"\begin{table*}[ht]",
            r"\centering",
            rf"\caption{{{latex(table.caption)}}}",
            *(line for blocks in table.sheets for line in _latex_sheet(table, blocks)),
            r"\par\raggedright\footnotesize",
            *remarks,
            r"\end{table*}",
            "",
        ]
    )


def _latex_sheet(table: Layout, blocks: Sequence[str]) -> list[str]:
    columns = {block: table.columns(block) for block in blocks}
    heads, rules, at = [], [], 3
    for block, keys in columns.items():
        heads.append(rf"\multicolumn{{{len(keys)}}}{{c}}{{\textbf{{{latex(table.blocks[block])}}}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + len(keys) - 1}}}")
        at += len(keys)
    headings = [latex(table.headings[column]) for keys in columns.values() for column in keys]
    body, before = [], None
    for line in table.lines_of(blocks):
        if before is not None and line.method.split(",")[0] != before:
            body.append(r"\midrule")
        before = line.method.split(",")[0]
        cells = [_latex_cell(line.cell(block, column)) for block in blocks for column in columns[block]]
        body.append(" & ".join([latex(line.method) + _latex_flags(line), latex(line.source), *cells]) + r" \\")
    return [
        TO_FIT,
        rf"\begin{{tabular}}{{ll{'r' * len(headings)}}}",
        r"\toprule",
        " & ".join(["", "", *heads]) + r" \\",
        "".join(rules),
        " & ".join(["Method", "Source", *headings]) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
    ]


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = f"${cell.text}$".replace(" ± ", r" \pm ") if cell.mean is not None else "--"
    return text + _latex_flags(cell)


def _latex_flags(flagged: Cell | Line) -> str:
    slips = rf"$^{{?{','.join(map(str, flagged.slips))}}}$" if flagged.slips else ""
    return latex(flagged.mark) + slips


def _text(cell: Cell | None) -> str:
    return "" if cell is None else cell.text + _flags(cell)


def _named(line: Line) -> str:
    return line.method + _flags(line)


def _flags(flagged: Cell | Line) -> str:
    slips = f"?{','.join(map(str, flagged.slips))}" if flagged.slips else ""
    return "".join(f" {part}" for part in (flagged.mark, slips) if part)


def _numbers(cell: Cell | None) -> tuple[float | None, float | None]:
    return (None, None) if cell is None else (cell.mean, cell.deviation)


def _remarks(table: Layout) -> list[str]:
    """What stands below: marks, slips, and how our rows were measured."""
    marks = [f"{mark} {meaning}" for mark, meaning in table.marks.items()]
    slips = [f"?{number} {text}" for number, text in enumerate(table.slips, start=1)]
    return [*marks, *slips, *table.notes]


def _starless(text: str) -> str:
    return text.replace("*", "\\*")
