"""Analysing: what figures need beyond the record, computed from the archives of finished runs and kept beside them."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from forgetfree.errors import FileError, InputError
from forgetfree.lab import legend
from forgetfree.lab.analyses import ANALYSES
from forgetfree.lab.analyses.subject import Advance, Subject
from forgetfree.lab.records import RunFolder
from forgetfree.rng import threads


def analyse_all(
    folders: Sequence[RunFolder],
    console: Console,
    *,
    only: Sequence[str] = (),
    again: bool = False,
    data_root: Path | None = None,
) -> list[tuple[RunFolder, str]]:
    """Make every analysis that applies and is not there; those that were made, in order.

    `only` names some analyses; `again` makes those that are there anew. Each is written as soon as it is made, so that
    an interrupted call goes on where it stopped.
    """
    names = _known(only)
    waiting = []
    for subject in [Subject(folder, data_root) for folder in folders if folder.finished]:
        method = subject.folder.plan()["run"]["method"]
        if not legend.installed(method):
            console.print(f"method {method!r} is not installed, so no analysis: {subject.folder.path}", highlight=False)
            continue
        try:
            fitting = [name for name in names if ANALYSES[name].applies(subject.plan)]
            missing = [name for name in fitting if again or subject.folder.analysis(name) is None]
        except FileError as error:
            console.print(f"{error} The run is left out.", highlight=False)
            continue
        if missing and not subject.folder.archive.is_file():
            console.print(f"no archive, so no analysis: {subject.folder.path}", highlight=False)
            continue
        waiting += [(subject, name) for name in missing]
    bars = Progress(
        BarColumn(bar_width=12),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    made = []
    with bars:
        whole = bars.add_task("all", total=max(1, len(waiting)))
        for number, (subject, name) in enumerate(waiting):
            bars.update(whole, description=f"{number + 1} of {len(waiting)}: {name}, {subject.folder.path.name}")
            _analyse(subject, name, partial(_advanced, bars, whole, number))
            made.append((subject.folder, name))
            if not console.is_terminal:
                console.print(f"{name}: {subject.folder.path}", highlight=False)
    return made


def _advanced(bars: Progress, bar: TaskID, done: int, part: float) -> None:
    bars.update(bar, completed=done + part)


def _analyse(subject: Subject, name: str, advance: Advance) -> None:
    with threads(subject.plan.threads):  # answers are those of the run
        subject.folder.keep_analysis(name, ANALYSES[name].analyse(subject, advance))


def _known(only: Sequence[str]) -> list[str]:
    for name in only:
        if name not in ANALYSES:
            raise InputError(f"there is no analysis {name!r}. There are: {', '.join(ANALYSES)}.")
    return list(only or ANALYSES)
