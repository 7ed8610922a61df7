"""Estimating: what a plan will cost, from rehearsals of it with few samples.

The learner goes through its stream as in a run, but a task has a few samples of every class, and where `fit` would
train, a stand-in notes what was asked of it and times a few steps. So all that a method does is counted: retraining,
exemplars, all sessions together, a pass for Fisher information. Samples to train on, and seconds outside of `fit`, grow
linearly with the samples of a task: two rehearsals of different size show how, up to the true number.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset

from forgetfree.batches import batches, count_samples, repeated
from forgetfree.contracts import Data, Learner, Task
from forgetfree.lab.benchmarks.stream import Benchmark
from forgetfree.lab.experiment.performing import build, build_learner
from forgetfree.lab.experiment.planning import Plan
from forgetfree.lab.protocols.contracts import Collecting, KeepsExemplars
from forgetfree.rng import threads
from forgetfree.training import Fitted, Recipe, Session, evaluate, fit, standing_in

Clock = Callable[[], float]
FEW, MORE = 128, 384
"""Samples of a task in the rehearsals; more where every class is to have some."""
ALIKE_AFTER = 2
"""Task-incremental methods are rehearsed with so many tasks: later ones learn as the last of these."""
ASKED_TASKS = 200
"""So many tasks are asked how large they are; others are taken to be as large on average."""
SHORT, STEPS, FEWER_STEPS = 2, 20, 4
"""Batches of a short epoch, and how many more a longer one has; fewer where a short one takes long."""
MOST_SAMPLES = 1 << 15
"""Of an epoch that is timed, where its batches are large."""
PATIENCE = 5.0
"""Seconds of timing: sessions after that are taken to be as fast as the last that was timed."""


@dataclass(frozen=True)
class Cost:
    """What a plan will cost: training steps, and seconds of learning; testing and start-up apart."""

    tasks: int
    steps: int
    seconds: float
    at_most: bool
    """Whether training may end before its last epoch."""


@dataclass(frozen=True)
class Asked:
    """What was asked of `fit`: a recipe, and on how many samples."""

    recipe: Recipe
    samples: float
    valid: float

    @property
    def steps(self) -> int:
        return self.recipe.epochs * _batches(round(self.samples), self.recipe.batch_size)


@dataclass(frozen=True)
class Lesson:
    """What learning one task asked of `fit`, and its seconds outside of that."""

    asked: list[Asked]
    rest: float


@dataclass(frozen=True)
class Pace:
    """Seconds of a training once, of an epoch with one batch to validate and no step, of a step, of another batch."""

    once: float
    epoch: float
    step: float
    validation: float

    def seconds(self, asked: Asked) -> float:
        others = max(0, _batches(round(asked.valid), asked.recipe.eval_batch_size) - 1)
        return self.once + asked.recipe.epochs * (self.epoch + others * self.validation) + asked.steps * self.step


class Size(NamedTuple):
    """How many samples a task has."""

    train: int
    valid: int

    @classmethod
    def of(cls, task: Task) -> "Size":
        return cls(_count(task.train), 0 if task.valid is None else _count(task.valid))


class Walk(NamedTuple):
    """One rehearsal: how large its tasks were, and what learning them asked for."""

    sizes: list[Size]
    lessons: list[Lesson]


def estimate(plan: Plan, data_root: Path | None = None) -> Cost:
    """What a plan will cost; in CPU time where it has one thread, so that other processes do not count."""
    benchmark, learner, _ = build(plan, data_root)
    rehearsal = Rehearsal(plan, benchmark, learner)
    with threads(plan.threads):
        first, more = rehearsal.walk(FEW), rehearsal.walk(MORE)
        timing = Timing(rehearsal.clock, [rehearsal.true(first, more, t).asked for t in range(len(more.lessons))])
        few = rehearsal.walk(FEW, timing)  # once more: what is loaded or compiled at first does not count
    lessons = [rehearsal.true(few, more, t) for t in range(len(rehearsal.sizes))]
    trained = [pair for t, lesson in enumerate(lessons) for pair in zip(lesson.asked, timing.paces(t), strict=True)]
    seconds = sum(lesson.rest for lesson in lessons) + sum(pace.seconds(asked) for asked, pace in trained)
    tasks = len(benchmark.names)
    return Cost(
        tasks,
        round(sum(asked.steps for asked, _ in trained) * tasks / len(lessons)),
        seconds * tasks / len(lessons),
        any(asked.recipe.patience is not None and asked.recipe.min_lr > 0 for asked, _ in trained),
    )


class Rehearsal:
    """The stream of a plan with few samples, to be walked through by a fresh learner."""

    def __init__(self, plan: Plan, benchmark: Benchmark, learner: Learner):
        self.plan = plan
        self.clock: Clock = time.thread_time if plan.threads == 1 else time.perf_counter
        self._few_shot, self._together = "session" in plan.settings, isinstance(learner, Collecting)
        tasks = list(benchmark.tasks[:ASKED_TASKS])
        self.sizes = [Size.of(task) for task in tasks]
        self._tasks = tasks if self._few_shot or self._together else tasks[:ALIKE_AFTER]
        # of a class of the first session there are more than of any other, and enough to keep exemplars, as in the run
        shots = [size.train // len(task.classes) for size, task in zip(self.sizes, tasks, strict=True)][1:]
        exemplars = (learner.replay.per_class or 0) if isinstance(learner, KeepsExemplars) else 0
        self._of_a_class = 1 + max(exemplars, *shots) if self._few_shot and shots else 1

    def walk(self, samples: int, timing: "Timing | None" = None) -> Walk:
        """Learn all tasks with about so many samples each."""
        tasks = [self._thin(task, samples) for task in self._tasks]
        learner, _ = build_learner(self.plan)
        lessons = [self._lesson(learner, task, timing, last=task is tasks[-1]) for task in tasks]
        return Walk([Size.of(task) for task in tasks], lessons)

    def true(self, few: Walk, more: Walk, t: int) -> Lesson:
        """What learning task t asks for with all its samples."""
        at = min(t, len(more.lessons) - 1)
        one, other, true = self._load(few.sizes, at), self._load(more.sizes, at), self._load(self.sizes, t)

        def line(small: float, large: float, part: int = 0) -> float:
            if one[part] == other[part]:
                return large
            return large + max(0.0, large - small) / (other[part] - one[part]) * (true[part] - other[part])

        pairs = zip(few.lessons[at].asked, more.lessons[at].asked, strict=True)
        asked = [Asked(b.recipe, line(a.samples, b.samples), line(a.valid, b.valid, 1)) for a, b in pairs]
        return Lesson(asked, line(few.lessons[at].rest, more.lessons[at].rest))

    def _load(self, sizes: Sequence[Size], t: int) -> tuple[float, float]:
        """What the cost of learning task t grows with: its own samples, those of the first session, or all."""
        counted = sizes[:1] if self._few_shot else sizes if self._together else [sizes[t]]
        train, valid = (sum(part) / len(counted) for part in zip(*counted, strict=True))
        return train, valid

    def _thin(self, task: Task, samples: int) -> Task:
        count = len(task.classes) * max(self._of_a_class, -(-samples // len(task.classes)))
        valid = None if task.valid is None else _some(task, task.valid, count)
        return replace(task, train=_some(task, task.train, count), valid=valid)

    def _lesson(self, learner: Learner, task: Task, timing: "Timing | None", *, last: bool) -> Lesson:
        asked: list[Asked] = []
        elsewhere = 0.0

        def stand_in(session: Session, recipe: Recipe) -> Fitted:
            nonlocal elsewhere
            started, given = self.clock(), session.task
            asked.append(Asked(recipe, _count(given.train), 0 if given.valid is None else _count(given.valid)))
            if timing is not None:
                timing.take(session, recipe, at=len(asked) - 1)
            elsewhere += self.clock() - started
            return Fitted("rehearsed", (), {}, 0.0)

        started = self.clock()
        if timing is not None:
            timing.next_task()
        with standing_in(stand_in):
            learner.learn(task)
            if last and isinstance(learner, Collecting):
                learner.finish()
        return Lesson(asked, self.clock() - started - elsewhere)


class Timing:
    """How fast the trainings of each task are, as far as patience goes."""

    def __init__(self, clock: Clock, expected: Sequence[Sequence[Asked]]):
        self._clock, self._expected = clock, expected
        self._paces: list[list[Pace]] = []
        self._spent = 0.0

    def next_task(self) -> None:
        self._paces.append([])

    def take(self, session: Session, recipe: Recipe, at: int) -> None:
        """Time a few steps of a training that was asked for, the session being in place."""
        t = len(self._paces) - 1
        if t > 1 and self._spent > PATIENCE and at < len(self._paces[t - 1]):
            self._paces[t].append(self._paces[t - 1][at])
            return
        started = time.monotonic()
        self._paces[t].append(_pace(session, recipe, self._expected[t][at], self._clock))
        self._spent += time.monotonic() - started

    def paces(self, t: int) -> list[Pace]:
        return self._paces[min(t, len(self._paces) - 1)]


def _pace(session: Session, recipe: Recipe, expected: Asked, clock: Clock) -> Pace:
    """Seconds by three trainings, each the faster of two: a short epoch, two of them, and a longer one."""
    task, size = session.task, max(1, min(recipe.batch_size, round(expected.samples)))
    valid = None if task.valid is None else _some(task, task.valid, recipe.eval_batch_size)

    def seconds(count: int, epochs: int) -> float:
        session.task = replace(task, train=_over_again(task.train, count * size), valid=valid)
        with tempfile.TemporaryDirectory() as folder, standing_in(None):
            started = clock()
            fit(
                session, replace(recipe, epochs=epochs, batch_size=size), seed=0, position=0,
                checkpoint=Path(folder) / "rehearsal.safetensors",
            )  # fmt: skip
            return clock() - started

    slow = seconds(SHORT, 1) > PATIENCE / STEPS
    steps = max(1, min(FEWER_STEPS if slow else STEPS, MOST_SAMPLES // size - SHORT))
    short, twice, longer = (
        min(seconds(count, epochs) for _ in range(2)) for count, epochs in ((SHORT, 1), (SHORT, 2), (SHORT + steps, 1))
    )
    validation = 0.0 if valid is None else min(_timed(clock, evaluate, session, valid, recipe) for _ in range(2))
    session.task = task
    step = max(0.0, longer - short) / steps
    epoch = max(0.0, twice - short - SHORT * step)
    return Pace(max(0.0, short - epoch - SHORT * step), epoch, step, validation)


def _timed(clock: Clock, call: Callable[..., Any], *given: Any) -> float:
    started = clock()
    call(*given)
    return clock() - started


def _some(task: Task, data: Data, count: int) -> Data:
    """The first samples, with labels of all classes in turn; all of them where there are no more."""
    if _count(data) <= count:
        return data
    batch = next(batches(task, data, count))
    labels = torch.arange(count) % len(task.classes) if task.classifies else batch.labels[:count]
    return batch.inputs, labels


def _over_again(data: Data, count: int) -> Data:
    return _Cycle(data, count) if isinstance(data, IterableDataset) else repeated(data, count)


class _Cycle(IterableDataset[Any]):
    """So many samples of a stream, which begins again after its last."""

    def __init__(self, data: IterableDataset[Any], count: int):
        self._data, self._count = data, count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(itertools.chain.from_iterable(itertools.repeat(self._data)), self._count)


def _count(data: Data) -> int:
    return len(data) if isinstance(data, Sized) and isinstance(data, IterableDataset) else count_samples(data)


def _batches(samples: int, size: int) -> int:
    """How many batches an epoch has; a last one of a single sample joins the one before."""
    count = -(-samples // size)
    return count - 1 if count > 1 and size > 1 and samples % size == 1 else count
