"""Few-shot class-incremental learning: after each session all classes met are told apart, without a task name.

Row t of the accuracy matrix has, for the classes of every session so far, the accuracy among all classes met; overall,
base and novel accuracy follow from it and from how many images test each session. No test image is looked at before the
measurement of its session. At the end the learner is written to an archive, read back, and asked once more: the last
row is what the archive answers.
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forgetfree.contracts import Learner
from forgetfree.lab.benchmarks.stream import Benchmark
from forgetfree.lab.metrics import footprint
from forgetfree.lab.protocols.steps import Say, checkpoint_of, compare, learn_next, note, through_archive
from forgetfree.lab.records import Record, one_at_a_time
from forgetfree.training.team import team


def run(
    learner: Learner,
    benchmark: Benchmark,
    *,
    dense: int,
    batch: int = 256,
    checkpoints: Path | None = None,
    archive: Path | None = None,
    base: Path | None = None,
    progress: Callable[[Any], None] | None = None,
    say: Say = lambda event: None,
) -> Record:
    """Learn and test everything. `dense` is the number of weights of one network.

    `base` is where the network of the first session is kept for all runs that start with the very same one: the first
    of them learns it, the others read it. With `checkpoints`, a killed run replays finished sessions from there and
    goes on with the next. `archive` is where the learner is written at the end.
    """
    record = Record(tasks=list(benchmark.names), notes=dict(benchmark.notes))
    record.sessions = {"tested": [], "classes": [], "confusion": [], "mistakes": []}
    if base is not None:
        record.notes["base"] = base.stem
    last = len(record.tasks) - 1
    seen: list[int | str] = []
    first_answers: dict[str, Tensor] = {}

    def ask(asked: Any, name: str) -> Tensor:
        return torch.cat([asked.predict(inputs).cpu() for inputs, _ in benchmark.tests[name].batches(batch)])

    for t, task in enumerate(benchmark.tasks):
        say({"event": "task", "task": task.name, "position": t, "tasks": last + 1, "done": t / (last + 1)})
        shared = base if t == 0 else None
        checkpoint = shared or checkpoint_of(checkpoints, t)
        with one_at_a_time(shared) if shared and team().leads else nullcontext():
            learn_next(record, learner, task, last=t == last, checkpoint=checkpoint, progress=progress)
        seen += task.classes
        record.sessions["classes"].append(len(task.classes))
        record.sessions["tested"].append(len(benchmark.tests[task.name].labels))
        row: list[float | None] = [None] * (last + 1)
        confusion = None
        if task.name in learner.tasks:  # some learn only at the end
            started = time.monotonic()
            names = record.tasks[: t + 1]
            answers = {name: ask(learner, name) for name in names}
            record.footprints.append(asdict(footprint(learner.memory(), dense)))
            if t == last and archive is not None:
                answers = through_archive(record, learner, archive, dense, ask, answers.__getitem__)
            for name in names if learner.forget_free else ():
                compare(record, first_answers, name, answers[name])
            predictions = _Predictions(benchmark, record.sessions["classes"], answers)
            row[: t + 1], confusion = predictions.accuracies(), predictions.confusion()
            if t == last:
                record.sessions["mistakes"] = predictions.mistakes(seen)
            record.seconds["testing"].append(time.monotonic() - started)
        record.sessions["confusion"].append(confusion)
        record.accuracy.append(row)
        note(record, learner, task, batch)
        cost, now = record.footprints[-1] if record.footprints else None, record.by_session[-1]
        say(
            {"event": "tested", "task": task.name, "accuracy": row, "overall": now and now.overall,
             "footprint": cost, "done": (t + 1) / (last + 1)}
        )  # fmt: skip
    return record


class _Predictions:
    """The class that was predicted for each test image, session by session."""

    def __init__(self, benchmark: Benchmark, classes: list[int], answers: dict[str, Tensor]):
        starts = [sum(classes[:t]) for t in range(len(classes))]
        self._session_of = torch.arange(len(classes)).repeat_interleave(torch.tensor(classes))
        self._true = [benchmark.tests[name].labels + start for name, start in zip(answers, starts, strict=True)]
        self._predicted = [scores.argmax(1) for scores in answers.values()]

    def accuracies(self) -> list[float | None]:
        """Of the classes of each session, among all classes seen."""
        return [
            int((predicted == true).sum()) / len(true)
            for predicted, true in zip(self._predicted, self._true, strict=True)
        ]

    def confusion(self) -> list[list[int]]:
        """Row i, column j: images of session i's classes for which one of session j's was predicted."""
        return [torch.bincount(self._session_of[each], minlength=len(self._true)).tolist() for each in self._predicted]

    def mistakes(self, names: list[int | str]) -> list[list[Any]]:
        """[class, class that was predicted, images], the most frequent first."""
        wrong: Counter[tuple[int, int]] = Counter()
        for predicted, true in zip(self._predicted, self._true, strict=True):
            pairs = zip(true[predicted != true].tolist(), predicted[predicted != true].tolist(), strict=True)
            wrong.update(pairs)
        ordered = sorted(wrong.items(), key=lambda entry: (-entry[1], entry[0]))
        return [[names[true], names[predicted], count] for (true, predicted), count in ordered]
