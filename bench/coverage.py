"""docs/coverage.md: which methods and benchmarks of the paper are here, which were run, and which were not.

    python -m bench.coverage

From what the paper's tables print and from the run folders that are stored; nothing in it is written by hand.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.lab.records import find_runs
from forgetfree.lab.report.columns import Run, views
from forgetfree.lab.report.grid import as_markdown
from forgetfree.lab.report.published import (
    PublishedTable,
    methods,
    printed_title,
    published,
    published_sessions,
    session_methods,
)
from forgetfree.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
PAGE, STORED = ROOT / "docs" / "coverage.md", ROOT / "results"
TIL = ("1", "2")
"""Table 3 prints times of the same."""
SESSIONS = [(name, split) for split in ("random", "topic") for name in ("cifar100", "mini_imagenet", "cub200")]


@dataclass(frozen=True)
class Column:
    """A benchmark of the paper, in one of its tables."""

    title: str
    benchmark: str
    tasks: int
    split: str | None
    printed: frozenset[str]
    """Methods that the paper prints a number for."""

    def runs(self, every: Iterable[Run]) -> list[Run]:
        asked = [run for run in every if run.plan["benchmark"]["name"] == self.benchmark]
        topic = self.split == "topic"
        return [run for run in asked if self.split is None or (run.plan["benchmark"].get("split") == "topic") == topic]


def page() -> str:
    """The whole document."""
    runs = [run for folder in find_runs([STORED]) for run in views(folder)]
    task_incremental = [column for name in TIL for column in _columns(published(name))]
    found = [(split, published_sessions(f"fscil_{name}", split)) for name, split in SESSIONS]
    few_shot = [column for split, table in found if table is not None for column in _columns(table, split)]
    columns = [*task_incremental, *few_shot]
    absent = [name for name in {**methods(), **session_methods()} if name not in METHODS and _is_printed(name, columns)]
    never = [column for column in columns if not column.runs(runs)]
    ours = {run.plan["benchmark"]["name"] for run in runs} - {column.benchmark for column in columns}
    without = [name for name in BENCHMARKS if not any(name == column.benchmark for column in columns)]
    return TEXT.format(
        til=_table(list(methods()), task_incremental, runs),
        fscil=_table(list(session_methods()), few_shot, runs),
        absent=", ".join(_title(name) for name in absent).rstrip("."),
        never=", ".join(column.title for column in never),
        partly="; ".join(_partly(column, runs) for column in columns if column.runs(runs)),
        paper=", ".join(column.title for column in columns if "paper" in _seeds(column.runs(runs))),
        others=", ".join(f"`{name}`{' (run)' if name in ours else ''}" for name in without),
    )


TEXT = """# What of the paper is here, and what is not

Made by `python -m bench.coverage` from what the paper's tables print and from the runs stored under `results/`. A cell
says at which scale and with which seeds a method was run. **Absent**: there is no such method here. **Not run**: it is
here, the paper prints a number, and no run is stored. A dash: the paper prints none, and we have none.

- Methods of the paper's tables that are absent: {absent}.
- Benchmarks of its tables on which nothing was run: {never}.
- Run so far: {partly}. At the paper's scale (see the cells): {paper}.
- Benchmarks here that are in no table of the paper: {others}.

## Task-incremental learning (Tables 1 and 2; Table 3 prints times of the same)

{til}
## Few-shot class-incremental learning (Tables 4, 5, 7, 8 and 9)

{fscil}
"""


def _columns(table: PublishedTable, split: str | None = None) -> list[Column]:
    words = f" (Table {table.name}{', TOPIC' if split == 'topic' else ', shots drawn' if split else ''})"
    return [
        Column(known.title + words, key, known.tasks, split, _printed(table, key))
        for key, known in table.benchmarks.items()
    ]


def _printed(table: PublishedTable, benchmark: str) -> frozenset[str]:
    rows = [(row.method, row.cells[benchmark].values()) for row in table.rows]
    return frozenset(method for method, cells in rows if any(cell.mean is not None for cell in cells))


def _table(names: Sequence[str], columns: Sequence[Column], runs: Sequence[Run]) -> str:
    rows = [
        [_title(name), *(_cell(name, column, runs) for column in columns)]
        for name in names
        if _is_printed(name, columns) or any(run.method == name for column in columns for run in column.runs(runs))
    ]
    return as_markdown(["method", *(column.title for column in columns)], rows)


def _cell(method: str, column: Column, runs: Sequence[Run]) -> str:
    own = [run for run in column.runs(runs) if run.method == method]
    if own:
        return "; ".join(f"{scale}: seeds {seeds}" for scale, seeds in _seeds(own).items())
    if method not in column.printed:
        return "–"
    return "not run" if method in METHODS else "absent"


def _seeds(runs: Sequence[Run]) -> Mapping[str, str]:
    scales = sorted({run.plan["run"]["scale"] for run in runs}, reverse=True)
    by_scale = {
        scale: {run.plan["run"]["seed"] for run in runs if run.plan["run"]["scale"] == scale} for scale in scales
    }
    return {scale: " ".join(map(str, sorted(seeds))) for scale, seeds in by_scale.items()}


def _partly(column: Column, runs: Sequence[Run]) -> str:
    own = column.runs(runs)
    epochs = sorted({run.plan["recipe"]["epochs"] for run in own})
    tasks = sorted({len(run.record.tasks) for run in own})
    words = " or ".join(str(count) for count in tasks)
    return f"{column.title} with {words} of {column.tasks} tasks, {' or '.join(map(str, epochs))} epochs"


def _is_printed(method: str, columns: Sequence[Column]) -> bool:
    return any(method in column.printed for column in columns)


def _title(method: str) -> str:
    return printed_title(method) or method


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
