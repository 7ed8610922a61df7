"""Typesetting: a table of the paper for a terminal, as Markdown, as CSV and as LaTeX."""

import csv
import io

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from forgetfree.lab.report.paper_tables import PUBLISHED, Cell, PaperTable


def as_terminal(table: PaperTable) -> list[Table | Text]:
    """A table for each block, one below the other: side by side they would fit on no screen."""
    shown: list[Table | Text] = []
    for benchmark, title in table.blocks.items():
        columns = table.columns(benchmark)
        block = Table(
            title=f"Table {table.name}: {title}", title_justify="left", box=SIMPLE, padding=0, show_edge=False
        )
        lines = [line for line in table.lines if benchmark in line.cells]
        for heading in ("method", "source"):
            block.add_column(heading, overflow="fold")
        for column in columns:
            block.add_column(table.headings[column], justify="right", overflow="fold")
        for line in lines:
            cells = [line.method, line.source, *(_text(line.cell(benchmark, column)) for column in columns)]
            block.add_row(*map(Text, cells), style="dim" if line.source == PUBLISHED else None)
        shown.append(block)
    return [*shown, Text("\n".join([table.caption, *_remarks(table)]))]


def as_markdown(table: PaperTable) -> str:
    """One table with all blocks; what is to be known about it below."""
    columns = [(benchmark, column) for benchmark in table.blocks for column in table.columns(benchmark)]
    lines = [
        [
            "method",
            "source",
            *(f"{table.blocks[benchmark]}: {table.headings[column]}" for benchmark, column in columns),
        ],
        ["---"] * (2 + len(columns)),
        *([line.method, line.source, *(_text(line.cell(*place)) for place in columns)] for line in table.lines),
    ]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{text}\n\n{_starless(table.caption)}\n\n" + "".join(f"- {_starless(r)}\n" for r in _remarks(table))


def as_csv(table: PaperTable) -> str:
    """A row for each method, source and benchmark; numbers are not rounded, marks and slips have their own columns."""
    text = io.StringIO()
    numbers = [name for column in table.headings for name in (column, f"{column}_deviation")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "benchmark", "method", "source", "seeds", *numbers, "marks", "slips"])
    for benchmark in table.blocks:
        for line in table.lines:
            if benchmark in line.cells:
                cells = {column: line.cell(benchmark, column) for column in table.headings}
                found = {column: cell for column, cell in cells.items() if cell is not None}
                marks = "; ".join(f"{column} {cell.mark}" for column, cell in found.items() if cell.mark)
                slips = "; ".join(
                    f"{column}: {table.slips[n - 1]}" for column, cell in found.items() for n in cell.slips
                )
                values = [value for cell in cells.values() for value in _numbers(cell)]
                seeds = " ".join(map(str, line.seeds.get(benchmark, ())))
                writer.writerow([table.name, benchmark, line.method, line.source, seeds, *values, marks, slips])
    return text.getvalue()


def as_latex(table: PaperTable) -> str:
    """A table in the manner of the paper; needs the packages booktabs and graphicx."""
    blocks = {benchmark: table.columns(benchmark) for benchmark in table.blocks}
    heads, rules, at = [], [], 3
    for benchmark, columns in blocks.items():
        heads.append(rf"\multicolumn{{{len(columns)}}}{{c}}{{\textbf{{{latex(table.blocks[benchmark])}}}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + len(columns) - 1}}}")
        at += len(columns)
    headings = [latex(table.headings[column]) for columns in blocks.values() for column in columns]
    body, before = [], None
    for line in table.lines:
        if before is not None and line.method.split(",")[0] != before:
            body.append(r"\midrule")
        before = line.method.split(",")[0]
        cells = [_latex_cell(line.cell(benchmark, column)) for benchmark in blocks for column in blocks[benchmark]]
        body.append(" & ".join([latex(line.method), latex(line.source), *cells]) + r" \\")
    remarks = [latex(remark) + r" \\" for remark in _remarks(table)]
    return "\n".join(
        [
            r"% \usepackage{booktabs, graphicx}",
            r"\begin{table*}[ht]",
            r"\centering",
            rf"\caption{{{latex(table.caption)}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{ll{'r' * len(headings)}}}",
            r"\toprule",
            " & ".join(["", "", *heads]) + r" \\",
            "".join(rules),
            " & ".join(["Method", "Source", *headings]) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\par\raggedright\footnotesize",
            *remarks,
            r"\end{table*}",
            "",
        ]
    )


LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "%&_#${}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "*": r"$^\ast$",
    "<": r"$<$",
    ">": r"$>$",
}


def latex(text: str) -> str:
    """Text as LaTeX prints it, letter by letter."""
    return "".join(LATEX.get(letter, letter) for letter in text)


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    slips = rf"$^{{?{','.join(map(str, cell.slips))}}}$" if cell.slips else ""
    text = f"${cell.text}$".replace(" ± ", r" \pm ") if cell.mean is not None else "--"
    return f"{text}{latex(cell.mark)}{slips}"


def _text(cell: Cell | None) -> str:
    if cell is None:
        return ""
    slips = f"?{','.join(map(str, cell.slips))}" if cell.slips else ""
    return " ".join(part for part in (cell.text, cell.mark, slips) if part)


def _numbers(cell: Cell | None) -> tuple[float | None, float | None]:
    return (None, None) if cell is None else (cell.mean, cell.deviation)


def _remarks(table: PaperTable) -> list[str]:
    """What stands below: marks, slips, and how our rows were measured."""
    marks = [f"{mark} {meaning}" for mark, meaning in table.marks.items()]
    slips = [f"?{number} {text}" for number, text in enumerate(table.slips, start=1)]
    return [*marks, *slips, *table.notes]


def _starless(text: str) -> str:
    return text.replace("*", "\\*")
