"""Task-incremental learning: learn the tasks in order; after each, test every task met, by name.

Every cell of the accuracy matrix is measured; none is copied from the row above. Beside accuracy, the answers
themselves are compared, bit for bit, with those given right after learning. At the end the learner is written to an
archive, read back, and asked once more: the last row is what the archive answers.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree.contracts import Learner
from forgetfree.lab.benchmarks.stream import Benchmark, TestSet
from forgetfree.lab.metrics import footprint
from forgetfree.lab.protocols.contracts import Collecting, as_transferable
from forgetfree.lab.protocols.steps import Say, checkpoint_of, compare, learn_next, note, through_archive
from forgetfree.lab.protocols.transfer import transfer, zero_shot_accuracy
from forgetfree.lab.records import Record

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
    wrapped, and a learner that can be asked about a task before it learns it.
    """
    record = Record(tasks=list(benchmark.names), notes=dict(benchmark.notes))
    last = len(record.tasks) - 1
    first_answers: dict[str, Tensor] = {}
    guesses: list[float | None] = []
    transferable = as_transferable(learner) if forward and backbone is not None else None
    at_the_end = isinstance(learner, Collecting)
    classes = []
    for t, task in enumerate(benchmark.tasks):
        classes.append(len(task.classes) if task.classifies else 0)
        say({"event": "task", "task": task.name, "position": t, "tasks": last + 1, "done": t / (last + 1)})
        if transferable is not None:
            asked = zero_shot_accuracy(transferable, task, benchmark.tests[task.name], batch) if t else None
            guesses.append(asked)
        learn_next(
            record, learner, task, last=t == last, checkpoint=checkpoint_of(checkpoints, t), progress=progress
        )  # fmt: skip
        row: list[float | None] = [None] * (last + 1)
        if not at_the_end or t == last:
            started = time.monotonic()
            for i, name in enumerate(record.tasks[: t + 1]):
                if evaluate == "all" or t in (i, last):
                    test_set = benchmark.tests[name]
                    answers = _answers(learner, test_set, name, batch)
                    row[i] = _accuracy(answers, test_set.labels)
                    compare(record, first_answers, name, answers)
            record.seconds["testing"].append(time.monotonic() - started)
            record.footprints.append(asdict(footprint(learner.memory(), dense)))
        if archive is not None and t == last:
            row = _through_archive(record, learner, benchmark, archive, dense, batch, first_answers)
        record.accuracy.append(row)
        note(record, learner, task, batch)
        cost = record.footprints[-1] if record.footprints else None
        say({"event": "tested", "task": task.name, "accuracy": row, "footprint": cost, "done": (t + 1) / (last + 1)})
    record.note_chance(classes)
    if transferable is not None and backbone is not None:
        record.transfer = transfer(transferable, backbone, benchmark, guesses, batch)
    return record


def _through_archive(
    record: Record, learner: Learner, benchmark: Benchmark, path: Path, dense: int, batch: int,
    first_answers: dict[str, Tensor],
) -> list[float | None]:  # fmt: skip
    """Write the learner down, read it back, and measure the last row again with what was read."""

    def ask(asked: Any, name: str) -> Tensor:
        return _answers(asked, benchmark.tests[name], name, batch)

    def expected(name: str) -> Tensor:
        return first_answers[name] if learner.forget_free else ask(learner, name)

    answers = through_archive(record, learner, path, dense, ask, expected)
    return [_accuracy(given, benchmark.tests[name].labels) for name, given in answers.items()]


def _answers(learner: Learner, test_set: TestSet, name: str, batch: int) -> Tensor:
    return torch.cat([learner.predict(inputs, task=name).cpu() for inputs, _ in test_set.batches(batch)])


def _accuracy(answers: Tensor, labels: Tensor) -> float:
    return int((answers.argmax(1) == labels).sum()) / len(labels)
