"""Where few-shot runs end: accuracy after the last session on all, base and novel classes, and what it cost."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from forgetfree.errors import InputError
from forgetfree.lab.metrics import SessionAccuracy
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.columns import TIME, Column, Run, coded, to_learn
from forgetfree.lab.report.layout import Layout
from forgetfree.lab.report.our_rows import benchmark_of, grouped, lined_up, notes
from forgetfree.lab.report.published import session_methods
from forgetfree.lab.report.session_tables import (
    DROP,
    block_title,
    few_shot,
    measured_how,
    split_of,
)
from forgetfree.lab.report.tables import finished


def session_ends(folders: Sequence[RunFolder]) -> Layout:
    """All finished few-shot runs among these, a block for each stream and split."""
    found = finished(folders)
    runs = few_shot(found)
    if not runs:
        there = sorted({folder.plan()["benchmark"]["name"] for folder in found})
        raise InputError(f"none of these runs is of few-shot sessions; they are of {', '.join(there)}.")
    blocks = {_block(run): block_title(benchmark_of(run), split_of(run)) for run in runs}
    groups = grouped(runs, _block)
    meanings = ". ".join(f"{column.heading}: {column.meaning}" for column in COLUMNS.values())
    return Layout(
        name="sessions",
        file="table-sessions",
        title="After the last few-shot session",
        blocks=blocks,
        headings={key: column.heading for key, column in COLUMNS.items()},
        lines=lined_up([], groups, COLUMNS, session_methods()),
        caption="After the last few-shot session; all rows are ours, mean ± deviation over seeds and draws, in "
        f"percent, time apart. Blank: not run or not measured. {meanings}.",
        notes=notes(groups, blocks, lambda _, runs: measured_how(runs)),
        side_by_side=False,
    )


def _block(run: Run) -> str:
    return " ".join([benchmark_of(run), *filter(None, [split_of(run)])])


def _of_last(part: Callable[[SessionAccuracy], float | None]) -> Callable[[Run], float | None]:
    def measured(run: Run) -> float | None:
        last = run.record.by_session[-1]
        return None if last is None else part(last)

    return measured


def _exemplars(run: Run) -> float | None:
    count: float | None = run.plan["method"].get("exemplars")
    return count


COLUMNS = {
    "overall": Column("overall", "accuracy on the test images of all classes", lambda run: run.record.acc),
    "base": Column(
        "base",
        "on those of the first session's classes, answered among all classes",
        _of_last(lambda last: last.base),
    ),
    "novel": Column("novel", "on those of all later classes", _of_last(lambda last: last.novel)),
    "harmonic": Column("harmonic", "harmonic mean of base and novel", _of_last(lambda last: last.harmonic)),
    "drop": DROP,
    "exemplars": Column("exemplars", "images kept of a class", _exemplars, unit=1.0, digits=0),
    "cap": Column("CAP", "weights and masks by the paper's formula, where one dense network is 100", coded),
    "cap_written": Column(
        "file",
        "bytes of the archive really written, where one dense float32 network is 100",
        lambda run: run.record.footprints[-1].get("written"),
    ),
    "to_learn": Column("to learn", "what is kept only to learn on, where one dense network is 100", to_learn),
    "time": replace(TIME, meaning="hours of learning on the machine of the run"),
}
