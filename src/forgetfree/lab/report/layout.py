"""Layout: a table before it is set. Rows of the paper and rows of ours, each labelled, in blocks of columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from forgetfree.errors import InputError
from forgetfree.lab.report.published import Cell, PublishedRow, title

PUBLISHED = "published"


@dataclass(frozen=True)
class Line:
    """One row: a method from one source. What was not run is not in `cells`."""

    method: str
    source: str
    seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By block; none for what is published."""
    cells: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    """Block → column → cell."""
    mark: str = ""
    slips: tuple[int, ...] = ()
    """Mark and slips of the whole row."""
    key: str = ""
    """The method, as one names it to --method."""

    @property
    def ours(self) -> bool:
        """Whether we measured it; else the paper prints it."""
        return self.source != PUBLISHED

    def cell(self, block: str, column: str) -> Cell | None:
        return self.cells.get(block, {}).get(column)


@dataclass(frozen=True)
class Layout:
    """A table with all that stands around it."""

    name: str
    """The number of a table of the paper, or what it is of."""
    file: str
    """What its files are called, without an ending."""
    title: str
    blocks: Mapping[str, str]
    """Block → title; a block is a benchmark, or a benchmark and its split."""
    headings: Mapping[str, str]
    """Column → heading."""
    lines: Sequence[Line]
    caption: str
    notes: Sequence[str]
    """How our rows were measured, a line for each group of runs."""
    marks: Mapping[str, str] = field(default_factory=dict)
    slips: Sequence[str] = ()
    side_by_side: bool = True
    """Whether blocks stand side by side where there is room; else each is a table of its own."""

    @property
    def sheets(self) -> list[list[str]]:
        """The blocks of each table that it is set in on paper."""
        return [list(self.blocks)] if self.side_by_side else [[block] for block in self.blocks]

    def chosen(self, methods: Sequence[str], columns: Sequence[str]) -> "Layout":
        """The rows of these methods and these columns, in their order; where none is named, all."""
        lines = [line for line in self.lines if not methods or line.key in methods]
        headings = {key: self.headings[key] for key in columns} or self.headings
        left = replace(self, lines=lines, headings=headings)
        blocks = {block: title for block, title in self.blocks.items() if left.columns(block)}
        if not blocks:
            raise InputError(
                f"table {self.name} has nothing in these columns for {', '.join(methods) or 'any method'}."
            )
        return replace(left, blocks=blocks)

    def columns(self, block: str) -> list[str]:
        """The columns of a block; those that are empty in it are left out."""
        return [column for column in self.headings if any(line.cell(block, column) for line in self.lines)]

    def lines_of(self, blocks: Sequence[str]) -> list[Line]:
        """The rows that say something about one of these blocks."""
        return [line for line in self.lines if any(block in line.cells for block in blocks)]


def label(method: str, capacity: float | None) -> str:
    """A method as its row is named."""
    return title(method) if capacity is None else f"{title(method)}, c = {100 * capacity:g} %"


def printed(row: PublishedRow) -> Line:
    """A row as the paper prints it."""
    name = row.label or label(row.method, row.capacity)
    return Line(name, PUBLISHED, cells=row.cells, mark=row.mark, slips=row.slips, key=row.method)
