"""Grid: rows of texts under headings, as Markdown and as LaTeX."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from forgetfree.lab.report.escapes import latex, markdown

_MEAN = r"[-+]?\d[\d.]*(?: ± \d[\d.]*)?"
NUMBERS = re.compile(rf"{_MEAN}(?: \({_MEAN}\))?(?: †)?")
"""A cell of numbers: perhaps with a deviation, another reading in brackets, a mark."""
PACKAGES = r"% \usepackage{booktabs, graphicx}"
"""What a document needs to read the LaTeX of a table."""
TO_FIT = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"
"""A table as it is, or as wide as the text where it is wider."""


@dataclass(frozen=True)
class Grid:
    """A plain table."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def as_markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[*map(markdown, headings)], ["---"] * len(headings), *([*map(markdown, row)] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def as_latex(grids: Sequence[Grid], caption: str) -> str:
    """One table of LaTeX with all grids, one below the other."""
    several = len(grids) > 1
    return "\n".join(
        [
            PACKAGES,
            r"\begin{table*}[ht]",
            r"\centering",
            rf"\caption{{{latex(caption)}}}",
            *(line for grid in grids for line in _latex_grid(grid, titled=several)),
            r"\end{table*}",
            "",
        ]
    )


def in_latex(text: str) -> str:
    """A cell: numbers are set as such, with a minus and not a hyphen."""
    if not NUMBERS.fullmatch(text):
        return latex(text)
    return "$" + text.replace(" ± ", r" \pm ").replace(" (", r"\ (").replace(" †", r"^\dagger") + "$"


def _latex_grid(grid: Grid, *, titled: bool) -> list[str]:
    numeric = [all(not row[at] or NUMBERS.fullmatch(row[at]) for row in grid.rows) for at in range(len(grid.headings))]
    return [
        *([rf"\par\smallskip\textbf{{{latex(grid.title)}}}\par\smallskip"] if titled else []),
        TO_FIT,
        rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"\toprule",
        " & ".join(latex(heading[:1].upper() + heading[1:]) for heading in grid.headings) + r" \\",
        r"\midrule",
        *(" & ".join(map(in_latex, row)) + r" \\" for row in grid.rows),
        r"\bottomrule",
        r"\end{tabular}}",
    ]
