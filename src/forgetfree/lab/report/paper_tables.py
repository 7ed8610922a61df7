"""The paper's tables of task-incremental learning: its layout, its numbers and ours, each in rows of their own.

A row per method (WSN and SoftNet: per capacity) and source, a block of columns per benchmark. Lines below the table say
at what scale, with which seeds and on how much of a benchmark our rows were measured.
"""

from collections.abc import Mapping, Sequence

from forgetfree.errors import InputError
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.columns import TABLES, Column, Run, views
from forgetfree.lab.report.layout import PUBLISHED, Layout
from forgetfree.lab.report.our_rows import benchmark_of, counted, grouped, lined_up, listed, notes, of_run, trained
from forgetfree.lab.report.published import (
    PublishedBenchmark,
    PublishedTable,
    methods,
    published,
    renamed,
    rules,
    title,
)
from forgetfree.lab.report.tables import finished


def paper_table(name: str, folders: Sequence[RunFolder]) -> Layout:
    """The table of this name, with all finished runs that belong to it."""
    table, columns = published(name), TABLES[name]
    blocks = {key: benchmark.title for key, benchmark in table.benchmarks.items()}
    groups = grouped(_belonging(table, finished(folders)))

    def how(benchmark: str, runs: Sequence[Run]) -> str:
        return _measured_how(table.benchmarks[benchmark], runs, timed="time" in columns)

    return Layout(
        name=name,
        file=f"table-{name}",
        title=table.title,
        blocks=blocks,
        headings={key: column.heading for key, column in columns.items()},
        lines=lined_up(table.rows, groups, columns, methods()),
        caption=_caption(table, columns),
        marks=table.marks,
        slips=table.slips,
        notes=notes(groups, blocks, how),
    )


def _belonging(table: PublishedTable, folders: Sequence[RunFolder]) -> list[Run]:
    found = [run for folder in folders for run in views(folder)]
    belonging = [run for run in found if benchmark_of(run) in table.benchmarks]
    if not belonging:
        there = sorted({benchmark_of(run) for run in found})
        raise InputError(
            f"table {table.name} is of {', '.join(table.benchmarks)}; these runs are of {', '.join(there)}. "
            "Without --table they are reported as they are."
        )
    return belonging


def _caption(table: PublishedTable, columns: Mapping[str, Column]) -> str:
    by_rule = {rule: [title(name) for name, known in methods().items() if known.charged == rule] for rule in rules()}
    charged = "; ".join(f"{', '.join(by_rule[rule])}: {text}" for rule, text in rules().items())
    runs = f" (means of {table.runs} runs)" if table.runs else ""
    meanings = ". ".join(f"{column.heading}: {column.meaning}" for column in columns.values())
    return (
        f"Table {table.name} of the paper: {table.title}. Rows marked {PUBLISHED} are what the paper prints{runs}; all "
        "others are ours, mean ± deviation over seeds. In percent, time apart. Blank: not run or not measured; a dash: "
        f"the paper prints no number; ?1: see the remark of that number. {meanings}. The paper's rule of CAP: "
        f"{charged}.{renamed(row.method for row in table.rows)}" + (f" {table.remark}" if table.remark else "")
    )


def _measured_how(paper: PublishedBenchmark, runs: Sequence[Run], *, timed: bool) -> str:
    """What one must know before putting these numbers beside the published ones."""
    parts = [
        f"seeds {listed(run.plan['run']['seed'] for run in runs)}",
        counted(runs, paper.tasks, "tasks"),
        *trained(runs, paper.epochs, paper.batch_size),
    ]
    for run in runs:
        images = run.record.transfer.get("images")
        parts += [
            *of_run(run),
            *([f"transfer between tickets on {images} images a task"] if images else []),
            *([f"threads {run.plan['run']['threads']}"] if timed else []),
        ]
    return "; ".join(dict.fromkeys(parts))
