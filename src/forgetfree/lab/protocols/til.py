"""Task-incremental learning: learn the tasks in order; after each, test every task met, by name.

Every cell of the accuracy matrix is measured; none is copied from the row above. Beside accuracy, the answers
themselves are compared, bit for bit, with those given right after learning. At the end the learner is written to an
archive, read back, and asked once more: the last row is what the archive answers.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from forgetfree.answering import where_rows_meet
from forgetfree.archive import load, save, sizes
from forgetfree.contracts import Learner, Task
from forgetfree.lab.benchmarks.stream import Benchmark, Exam
from forgetfree.lab.metrics import footprint
from forgetfree.lab.protocols.transfer import Guesser, guessed, transfer
from forgetfree.lab.records import Record

Say = Callable[[dict[str, Any]], None]
Evaluate = Literal["all", "first-and-last"]


def run(
    learner: Learner,
    benchmark: Benchmark,
    *,
    dense: int,
    evaluate: Evaluate = "all",
    batch: int = 256,
    checkpoints: Path | None = None,
    archive: Path | None = None,
    backbone: nn.Module | None = None,
    forward: bool = True,
    progress: Callable[[Any], None] | None = None,
    say: Say = lambda event: None,
) -> Record:
    """Learn and test everything. `dense` is the number of weights of one network.

    `evaluate="first-and-last"` tests a task right after it is learned and at the end only, for long streams.
    With `checkpoints`, a killed run replays finished tasks from there and goes on with the next. `archive` is where the
    learner is written at the end. `forward` measures forward transfer too; it needs `backbone`, the network as it was
    wrapped, and a learner that guesses.
    """
    record = Record(tasks=list(benchmark.names), notes=dict(benchmark.notes))
    last = len(record.tasks) - 1
    first_answers: dict[str, Tensor] = {}
    guesses: list[float | None] = []
    forward = forward and backbone is not None and hasattr(learner, "guess") and not hasattr(learner, "finish")
    finish = getattr(learner, "finish", None)  # learners that only collect until the end have one
    for t, task in enumerate(benchmark.tasks):
        say({"event": "task", "task": task.name, "position": t, "tasks": last + 1, "done": t / (last + 1)})
        if forward:
            guesses.append(guessed(cast(Guesser, learner), task, benchmark.tests[task.name], batch) if t else None)
        started = time.monotonic()
        learner.learn(task, checkpoint=_checkpoint(checkpoints, t), progress=progress)
        if finish and t == last:
            finish(checkpoint=_checkpoint(checkpoints, t), progress=progress)
        took = time.monotonic() - started
        if task.name in learner.tasks:  # a task that came back from its checkpoint took longer, in an earlier life
            took = max(took, learner.tasks[task.name].seconds)
        record.seconds["learning"].append(took)
        row: list[float | None] = [None] * (last + 1)
        if not finish or t == last:
            started = time.monotonic()
            for i, name in enumerate(record.tasks[: t + 1]):
                if evaluate == "all" or t in (i, last):
                    exam = benchmark.tests[name]
                    answers = _answers(learner, exam, name, batch)
                    row[i] = _accuracy(answers, exam.labels)
                    _compare(record, first_answers, name, answers)
            record.seconds["testing"].append(time.monotonic() - started)
            record.footprints.append(asdict(footprint(learner.memory(), dense)))
        if archive is not None and t == last:
            row = _through_archive(record, learner, benchmark, archive, dense, batch, row, first_answers)
        record.accuracy.append(row)
        _note(record, learner, task, batch)
        say({"event": "tested", "task": task.name, "accuracy": row, "done": (t + 1) / (last + 1)})
    if forward and backbone is not None:
        record.transfer = transfer(cast(Guesser, learner), backbone, benchmark, guesses, batch)
    return record


def _through_archive(
    record: Record, learner: Learner, benchmark: Benchmark, path: Path, dense: int, batch: int,
    row: list[float | None], first_answers: dict[str, Tensor],
) -> list[float | None]:  # fmt: skip
    """Write the learner down, read it back, and measure the last row again with what was read."""
    save(learner, path)
    parts, again = sizes(path), load(path)
    nbytes = parts.pop("file")
    compared = different = 0
    measured: list[float | None] = [None] * len(row)
    for i, name in enumerate(record.tasks):
        exam = benchmark.tests[name]
        answers = _answers(again, exam, name, batch)
        measured[i] = _accuracy(answers, exam.labels)
        expected = first_answers[name] if learner.forget_free else _answers(learner, exam, name, batch)
        compared += len(answers)
        different += int((answers != expected).any(1).sum())
    record.archive = {
        "bytes": nbytes,
        "sections": parts,
        "compared": compared,
        "different": different,
        "verified": all(task.ok for task in again.verify()),
    }
    record.footprints[-1] = asdict(footprint(learner.memory(), dense, sections=parts, nbytes=nbytes))
    return measured


def _answers(learner: Learner, exam: Exam, name: str, batch: int) -> Tensor:
    return torch.cat([learner.predict(inputs, task=name).cpu() for inputs, _ in exam.batches(batch)])


def _accuracy(answers: Tensor, labels: Tensor) -> float:
    return int((answers.argmax(1) == labels).sum()) / len(labels)


def _compare(record: Record, first: dict[str, Tensor], name: str, answers: Tensor) -> None:
    if name not in first:
        first[name] = answers
        return
    record.compared += len(answers)
    record.different += int((answers != first[name]).any(1).sum())


def _note(record: Record, learner: Learner, task: Task, batch: int) -> None:
    learned = learner.tasks.get(task.name)
    if learned is None:
        return
    record.curves[task.name] = [dict(epoch) for epoch in learned.curves]
    record.selections[task.name] = learned.selection
    layer = where_rows_meet(learner.parts(task.name)["backbone"]) if hasattr(learner, "parts") else None
    if layer:
        record.notes["answers"] = f"depend on their batch ({layer}): {batch} at a time, in the order of the test set"


def _checkpoint(folder: Path | None, position: int) -> Path | None:
    return None if folder is None else folder / f"task-{position + 1:03}.safetensors"
