"""A table of measured rows: as it is printed, as it is stored in JSON, as a document shows it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as Grid

WIDTH = 100
Cell = str | int | float


@dataclass(frozen=True)
class Table:
    """Rows with the same headings; `note` says under which circumstances they were measured."""

    title: str
    rows: list[Mapping[str, Cell]]
    note: str

    def show(self, console: Console) -> None:
        """Print it, at most 100 columns wide."""
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading, cell in self.rows[0].items():
            text = isinstance(cell, str)
            grid.add_column(heading, justify="left" if text else "right", no_wrap=text)
        for row in self.rows:
            grid.add_row(*map(_shown, row.values()))
        width = min(console.width, WIDTH)
        console.print(f"[bold]{self.title}[/bold]", highlight=False, width=width)
        console.print(grid, width=width)
        console.print(f"[dim]{self.note}[/dim]\n", highlight=False, width=width)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def as_markdown(self) -> str:
        """Title, rows, and below them the note."""
        headings = list(self.rows[0])
        lines = [headings, ["---"] * len(headings), *([_shown(cell) for cell in row.values()] for row in self.rows)]
        rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"**{self.title}**\n\n{rows}\n\n{self.note}\n"


def store(tables: Sequence[Table], path: Path) -> None:
    """Write the rows of tables, for documents and programs to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([table.as_json() for table in tables], indent=1) + "\n")


def stored(path: Path) -> dict[str, Table]:
    """The tables of a file that `store` wrote, by their titles."""
    return {content["title"]: Table(**content) for content in json.loads(path.read_text())}


def _shown(cell: Cell) -> str:
    """A number as one reads it: whole ones in groups of three, others with three digits."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}".replace(",", " ")
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.1f}" if abs(cell) >= 20 else f"{cell:.2f}"
