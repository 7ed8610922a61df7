"""Tables of few-shot sessions: accuracy on all classes met after each session, the gap with cRT, and the drop.

A row per method (HardNet and SoftNet: per capacity) and source, what the paper prints and what is ours in rows of their
own. Streams and splits that the paper does not have are laid out alike, with our rows only.
"""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from forgetfree.errors import InputError
from forgetfree.lab.metrics import performance_drop
from forgetfree.lab.paper import CRT
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.columns import Column, Run, stream, views
from forgetfree.lab.report.layout import PUBLISHED, Layout
from forgetfree.lab.report.our_rows import (
    Groups,
    benchmark_of,
    counted,
    grouped,
    lined_up,
    listed,
    notes,
    of_run,
    trained,
)
from forgetfree.lab.report.published import PublishedTable, published_sessions, renamed, session_methods
from forgetfree.lab.report.tables import finished

SPLITS = {"topic": "TOPIC's split", "drawn_shots": "shots drawn", "random": "classes and shots drawn"}
"""Split → what a title says of it."""


@dataclass(frozen=True)
class Stream:
    """A stream of few-shot sessions that has a table."""

    benchmark: str
    title: str
    has_splits: bool = True


STREAMS = {
    "cifar100": Stream("fscil_cifar100", "CIFAR-100"),
    "mini_imagenet": Stream("fscil_mini_imagenet", "miniImageNet"),
    "cub200": Stream("fscil_cub200", "CUB-200-2011"),
    "omniglot": Stream("fscil_omniglot", "Omniglot", has_splits=False),
    "digits": Stream("fscil_digits", "digits", has_splits=False),
}
"""Name of a table → its stream."""


def session_table(name: str, split: str | None, folders: Sequence[RunFolder]) -> Layout:
    """The table of this stream and split, with all finished runs that belong to it.

    Without a split it is the one that all runs have, or TOPIC's if they have several. Some streams have none.
    """
    stream, found = STREAMS[name], finished(folders)
    runs = [run for run in few_shot(found) if benchmark_of(run) == stream.benchmark]
    if not runs:
        there = sorted({folder.plan()["benchmark"]["name"] for folder in found})
        raise InputError(
            f"table {name} is of {stream.benchmark}; these runs are of {', '.join(there)}. "
            "Without --table they are reported as they are."
        )
    split = _chosen_split(stream, split, runs)
    groups = grouped(run for run in runs if split_of(run) == split)
    table = published_sessions(stream.benchmark, split)
    columns = _columns(table, groups)
    blocks = {stream.benchmark: block_title(stream.benchmark, split)}
    title = f"Few-shot {blocks[stream.benchmark]}"
    return Layout(
        name=table.name if table else name,
        file="-".join(["table", name, *([split] if split else [])]),
        title=title,
        blocks=blocks,
        headings={key: column.heading for key, column in columns.items()},
        lines=lined_up(table.rows if table else [], groups, columns, session_methods()),
        caption=_caption(title, table, columns),
        marks=table.marks if table else {},
        slips=table.slips if table else [],
        notes=notes(groups, blocks, lambda _, runs: measured_how(runs)),
    )


def few_shot(folders: Sequence[RunFolder]) -> list[Run]:
    """The runs among these that learned few-shot sessions."""
    return [run for folder in folders for run in views(folder) if run.record.sessions]


def split_of(run: Run) -> str | None:
    """Where a stream's classes and shots come from, if there is a choice."""
    split: str | None = run.plan["benchmark"].get("split")
    return split


def block_title(benchmark: str, split: str | None) -> str:
    title = next((stream.title for stream in STREAMS.values() if stream.benchmark == benchmark), benchmark)
    return title if split is None else f"{title}, {SPLITS.get(split, split)}"


def _drop(run: Run) -> float | None:
    return performance_drop(run.record.by_session)


DROP = Column("drop", "accuracy after the first session less that after the last", _drop)


def measured_how(runs: Sequence[Run]) -> str:
    """What one must know before putting these numbers beside others."""
    first = runs[0]
    table = published_sessions(benchmark_of(first), split_of(first))
    draws = {run.plan["benchmark"]["draw"] for run in runs if "draw" in run.plan["benchmark"]}
    later = {run.plan["session"]["epochs"] for run in runs if "epochs" in run.plan.get("session", {})}
    parts = [
        f"seeds {listed({run.plan['run']['seed'] for run in runs})}",
        *([f"draws {listed(draws)}"] if draws else []),
        counted(runs, table.benchmarks[benchmark_of(first)].tasks if table else None, "sessions"),
        *trained(runs, None, None),
        *([f"epochs of later sessions {listed(later)}"] if later else []),
    ]
    for run in runs:
        split, exemplars = split_of(run), run.plan["method"].get("exemplars")
        parts += [
            *([f"split {split}"] if split else []),
            *([] if exemplars is None else [f"{exemplars} exemplars a class" if exemplars else "no exemplars"]),
            *_selected(run),
            *of_run(run, without=("split", "draw", "init")),
        ]
    return "; ".join(dict.fromkeys(parts))


def _chosen_split(stream: Stream, split: str | None, runs: Sequence[Run]) -> str | None:
    if not stream.has_splits:
        return None
    there = sorted({split_of(run) or "unknown" for run in runs})
    chosen = split or (there[0] if len(there) == 1 else "topic")
    if chosen not in SPLITS:
        raise InputError(f"there is no split {chosen!r}. There are: {', '.join(SPLITS)}.")
    if chosen not in there:
        raise InputError(f"these runs of {stream.benchmark} are of the split {' and '.join(there)}, not of {chosen}.")
    return chosen


def _columns(table: PublishedTable | None, groups: Groups) -> dict[str, Column]:
    """A column per session, as many as the paper or one of the runs has; then the gap and the drop."""
    longest = max(len(run.record.tasks) for blocks in groups.values() for runs in blocks.values() for run in runs)
    count = max(longest, len(table.columns) - 1 if table else 0)
    met = "accuracy on the test images of all classes met after session 1, and so on"
    sessions = {f"session_{t + 1}": Column(f"after {t + 1}", met, partial(_overall, t)) for t in range(count)}
    gap = Column(
        "gap with cRT",
        "accuracy after the last session less that of cRT; ours, less the mean of our cRT with the same settings of "
        "benchmark, backbone and scale, blank unless exactly one row of cRT has them",
        partial(_gap, _references(groups)),
        sign="+",
    )
    return {**sessions, "gap": gap, "drop": DROP}


def _overall(session: int, run: Run) -> float | None:
    measured = run.record.by_session[session] if session < len(run.record.tasks) else None
    return None if measured is None else measured.overall


def _gap(references: Mapping[str, float], run: Run) -> float | None:
    upper = references.get(_conditions(run))
    return None if run.method == CRT or upper is None else run.record.acc - upper


def _references(groups: Groups) -> dict[str, float]:
    """Conditions → what our cRT reaches under them at the end, where one row of cRT has them."""
    rows: dict[str, dict[str, list[float]]] = {}
    for (method, _, source), blocks in groups.items():
        for run in (run for runs in blocks.values() for run in runs if method == CRT):
            rows.setdefault(_conditions(run), {}).setdefault(source, []).append(run.record.acc)
    return {
        conditions: statistics.mean(ends)
        for conditions, by_source in rows.items()
        if len(by_source) == 1
        for ends in by_source.values()
    }


def _conditions(run: Run) -> str:
    """What must be equal for two methods to be compared; seeds and draws are averaged over."""
    return json.dumps([run.plan["run"]["scale"], stream(run), run.plan["backbone"]], sort_keys=True)


def _caption(title: str, table: PublishedTable | None, columns: Mapping[str, Column]) -> str:
    rows = f"Table {table.name} of the paper: {title}." if table else f"{title}: the paper has no such table."
    if table:
        runs = f" (HardNet and SoftNet: means of {table.runs} runs)" if table.runs else ""
        rows += f" Rows marked {PUBLISHED} are what the paper prints{runs}; all others are ours,"
    else:
        rows += " All rows are ours,"
    meanings: dict[str, str] = {}
    for column in columns.values():
        meanings.setdefault(column.meaning, f"{column.heading}: {column.meaning}")
    return (
        f"{rows} mean ± deviation over seeds and draws. In percent. Blank: not run or not measured"
        + ("; a dash: the paper prints no number; ?1: see the remark of that number or row" if table else "")
        + f". {'. '.join(meanings.values())}."
        + (renamed(row.method for row in table.rows) if table else "")
        + (f" {table.remark}" if table and table.remark else "")
    )


def _selected(run: Run) -> list[str]:
    """Which epoch was kept after each session, without the numbers that differ from run to run."""
    sessions: dict[str, list[int]] = {}
    for number, task in enumerate(run.record.tasks, start=1):
        if task in run.record.selections:
            text = re.sub(r"^epoch \d+ of \d+, | \([^)]*\d[^)]*\)", "", run.record.selections[task])
            sessions.setdefault(text, []).append(number)
    return [f"epoch kept after session {_span(numbers)}: {text}" for text, numbers in sessions.items()]


def _span(numbers: Sequence[int]) -> str:
    whole = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if whole else listed(numbers).replace(" ", ", ")
