"""Steps that all protocols take: learn the next task, write down how it went, and ask an archive the same again."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from forgetfree.answering import where_rows_meet
from forgetfree.archive import load, save, sizes
from forgetfree.contracts import Learner, Task
from forgetfree.lab.metrics import footprint
from forgetfree.lab.protocols.contracts import Collecting, task_modules_of
from forgetfree.lab.records import Record

Say = Callable[[dict[str, Any]], None]
Ask = Callable[[Any, str], Tensor]
"""(learner, name of a task) → its answers to that task's test."""


def learn_next(
    record: Record, learner: Learner, task: Task, *, last: bool, checkpoint: Path | None,
    progress: Callable[[Any], None] | None,
) -> None:  # fmt: skip
    """Learn a task and note how long it took; after the `last` one, learners that only collected finish."""
    started = time.monotonic()
    learner.learn(task, checkpoint=checkpoint, progress=progress)
    if last and isinstance(learner, Collecting):
        learner.finish(checkpoint=checkpoint, progress=progress)
    took = time.monotonic() - started
    if task.name in learner.tasks:  # a task that came back from its checkpoint took longer, in an earlier life
        took = max(took, learner.tasks[task.name].seconds)
    record.seconds["learning"].append(took)


def note(record: Record, learner: Learner, task: Task, batch: int) -> None:
    """Write down how a task was learned, and whether its answers depend on their batch."""
    learned = learner.tasks.get(task.name)
    if learned is None:
        return
    record.curves[task.name] = [dict(epoch) for epoch in learned.curves]
    record.selections[task.name] = learned.selection
    modules = task_modules_of(learner)
    layer = where_rows_meet(modules(task.name)["backbone"]) if modules else None
    if layer:
        record.notes["answers"] = f"depend on their batch ({layer}): {batch} at a time, in the order of the test set"


def checkpoint_of(folder: Path | None, position: int) -> Path | None:
    return None if folder is None else folder / f"task-{position + 1:03}.safetensors"


def through_archive(
    record: Record, learner: Learner, path: Path, dense: int, ask: Ask, expected: Callable[[str], Tensor]
) -> dict[str, Tensor]:
    """Write the learner down, read it back, and compare what it answers then with what is `expected`, bit for bit."""
    save(learner, path)
    parts, again = sizes(path), load(path)
    nbytes = parts.pop("file")
    answers, compared, different = {}, 0, 0
    for name in record.tasks:
        answers[name] = ask(again, name)
        compared += len(answers[name])
        different += int((answers[name] != expected(name)).any(1).sum())
    record.archive = {
        "bytes": nbytes,
        "sections": parts,
        "compared": compared,
        "different": different,
        "verified": all(task.ok for task in again.verify()),
    }
    record.footprints[-1] = asdict(footprint(learner.memory(), dense, sections=parts, nbytes=nbytes))
    return answers


def compare(record: Record, first: dict[str, Tensor], name: str, answers: Tensor) -> None:
    """Count the answers that are others than at first; with one head for all sessions, of the classes known then."""
    if name not in first:
        first[name] = answers
        return
    record.compared += len(answers)
    record.different += int((answers[:, : first[name].shape[1]] != first[name]).any(1).sum())
