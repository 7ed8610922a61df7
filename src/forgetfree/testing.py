"""The contracts of learners and benchmarks as checks, for us and for authors of their own.

    from forgetfree.testing import check_benchmark, check_learner
    check_learner(lambda: MyMethod(torch.nn.Linear(8, 16), ...))
    check_benchmark(my_benchmark)

The learner is built again and again by the function, on a backbone that takes [batch, 8]; the benchmark with several
seeds. Each broken promise is an `AssertionError` whose text says which one.
"""

import hashlib
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from forgetfree.contracts import Data, Learner, Memory, Task
from forgetfree.errors import ForgetfreeError
from forgetfree.files import digest_of

FEATURES = 8


def check_learner(make: Callable[[], Learner], *, tasks: list[Task] | None = None) -> None:
    """Raise an `AssertionError` that names the promise a learner breaks; `tasks` replaces the small default ones."""
    tasks = tasks or small_tasks()
    learner = make()
    wanted = "scenario, forget_free, tasks, learn, predict and memory"
    assert isinstance(learner, Learner), f"a learner has {wanted}; {type(learner).__name__} lacks one of them"
    assert learner.scenario in ("til", "fscil"), f"scenario is 'til' or 'fscil', not {learner.scenario!r}"
    assert not learner.tasks, "a new learner already knows tasks"
    _check_learning(learner, tasks)
    _check_refusals(learner, tasks)
    _check_repeatable(make, tasks)


def small_tasks(count: int = 3, samples: int = 48, seed: int = 0) -> list[Task]:
    """Tasks of 2 to 4 well separated classes in 8 dimensions, with validation data; other classes in each."""
    draw = torch.Generator().manual_seed(seed)
    tasks = []
    for t in range(count):
        classes = 2 + t % 3
        centres = 3 * torch.randn(classes, FEATURES, generator=draw)
        labels = torch.arange(2 * samples) % classes
        inputs = centres[labels] + 0.5 * torch.randn(2 * samples, FEATURES, generator=draw)
        train, valid = (inputs[:samples], labels[:samples]), (inputs[samples:], labels[samples:])
        tasks.append(Task(f"task {t}", tuple(f"{t}/{c}" for c in range(classes)), train, valid))
    return tasks


class _TestSet(Protocol):
    """Inputs and labels of a test: what `check_benchmark` needs of it."""

    @property
    def inputs(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...


class Benchmark(Protocol):
    """A stream of tasks, and their tests apart from them: what `check_benchmark` needs of it."""

    @property
    def tasks(self) -> Sequence[Task]: ...
    @property
    def tests(self) -> Mapping[str, _TestSet]: ...


def check_benchmark(
    make: Callable[..., Benchmark], *, duplicates: float = 0.0, data_root: Path | str | None = None
) -> None:
    """Raise an `AssertionError` that names the promise a benchmark breaks; `make` builds it from a seed.

    It is called as the laboratory calls it: `make(seed=…)`, with `data_root` too where it takes one; a function of one
    argument of any other name gets the seed. `duplicates` is the fraction of a part's samples that may also lie in
    another part, for data sets that hold a few images twice.
    """
    make = _called_by_the_laboratory(make, data_root)
    benchmark = make(0)
    names = [task.name for task in benchmark.tasks]
    assert names, "a benchmark has at least one task"
    assert len(set(names)) == len(names) == len(benchmark.tasks), f"task names are not unique: {names}"
    assert list(benchmark.tests) == names, f"tests are for {list(benchmark.tests)}, tasks are {names}"
    kinds: dict[str, object] = {}
    for task in benchmark.tasks:
        parts = _parts(task, benchmark.tests[task.name])
        kinds |= {f"{part} of {task.name!r}": _kind(inputs) for part, (inputs, _) in parts.items()}
        _check_parts(task, parts)
        _check_disjoint(task, parts, duplicates)
    assert len(set(kinds.values())) == 1, f"inputs are not of one shape and type: {kinds}"
    _check_seeds(make, benchmark)


def _called_by_the_laboratory(
    make: Callable[..., Benchmark], data_root: Path | str | None
) -> Callable[[int], Benchmark]:
    taken = inspect.signature(make).parameters
    known = {"data_root": Path(data_root) if data_root else None} if "data_root" in taken else {}
    return (lambda seed: make(seed=seed, **known)) if "seed" in taken else (lambda seed: make(seed, **known))


def _parts(task: Task, test_set: _TestSet) -> dict[str, tuple[Tensor, Tensor]]:
    """Inputs and labels of train, valid (where there is one) and test."""
    assert isinstance(task, Task), f"a task is a Task, not a {type(task).__name__}"
    assert not hasattr(task, "test"), f"task {task.name!r} carries a test: a learner could see it"
    parts: dict[str, Data] = {"train": task.train, "test": (test_set.inputs, test_set.labels)}
    if task.valid is not None:
        parts["valid"] = task.valid
    return {part: _as_pair(data) for part, data in parts.items()}


def _as_pair(data: Any) -> tuple[Tensor, Tensor]:
    inputs, labels = data if isinstance(data, tuple) else default_collate([data[i] for i in range(len(data))])
    assert isinstance(inputs, Tensor), f"check_benchmark needs one tensor of inputs, not a {type(inputs).__name__}"
    return inputs, labels


def _kind(inputs: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(inputs.shape[1:]), inputs.dtype


def _check_parts(task: Task, parts: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    for part, (inputs, labels) in parts.items():
        what = f"{part} of {task.name!r}"
        assert len(inputs) == len(labels) > 0, f"{what} has {len(inputs)} inputs and {len(labels)} labels"
        assert bool(inputs.isfinite().all()), f"{what} has inputs that are not finite"
        if not task.classifies:
            continue
        whole = labels.dim() == 1 and not labels.is_floating_point()
        assert whole, f"{what}: labels are whole numbers, one each, not {tuple(labels.shape)} of {labels.dtype}"
        found, expected = set(labels.tolist()), set(range(len(task.classes)))
        assert found <= expected, f"{what}: labels {sorted(found - expected)} are out of range"
        assert part == "valid" or found == expected, f"{what} lacks the classes {sorted(expected - found)}"


def _check_disjoint(task: Task, parts: Mapping[str, tuple[Tensor, Tensor]], duplicates: float) -> None:
    samples = {part: _fingerprints(inputs) for part, (inputs, _) in parts.items()}
    for one, other in combinations(samples, 2):
        common, fewest = len(samples[one] & samples[other]), min(len(samples[one]), len(samples[other]))
        assert common <= duplicates * fewest, (
            f"{one} and {other} of {task.name!r} are not disjoint: {common} samples of {fewest} lie in both"
        )


def _fingerprints(inputs: Tensor) -> set[bytes]:
    rows = inputs.detach().cpu().contiguous().reshape(len(inputs), -1).view(torch.uint8).numpy()
    return {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows}


def _check_seeds(make: Callable[[int], Benchmark], benchmark: Benchmark) -> None:
    state, first = torch.get_rng_state(), _random_state()
    bits = _bits(benchmark)
    assert bits == _bits(benchmark), "a task asked for twice is not the same twice"
    assert _random_state() == first, "asking for a task moved the caller's random state"
    torch.manual_seed(1)  # the caller's random state must not matter
    moved = _random_state()
    again, other = make(0), make(1)
    assert _random_state() == moved, "building a benchmark moved the caller's random state"
    assert _bits(again) == bits, "the same seed gave another benchmark"
    assert _bits(other) != bits, "another seed gave the same benchmark"
    torch.set_rng_state(state)


def _bits(benchmark: Benchmark) -> list[str]:
    """A digest per task of all it holds, and of its test."""
    digests = []
    for task in benchmark.tasks:
        parts = _parts(task, benchmark.tests[task.name])
        tensors = {f"{part} {i}": tensor for part, pair in parts.items() for i, tensor in enumerate(pair)}
        digests.append(f"{task.name} {task.classes} {digest_of(tensors)}")
    return digests


def _check_learning(learner: Learner, tasks: list[Task]) -> None:
    right_after: dict[str, Tensor] = {}
    at_once = not hasattr(learner, "finish")  # a learner with finish() only collects tasks until then
    for t, task in enumerate(tasks):
        state = _random_state()
        learner.learn(task)
        assert _random_state() == state, f"learn({task.name!r}) moved the caller's random state"
        if at_once:
            assert list(learner.tasks)[-1] == task.name, f"tasks does not end with {task.name!r} after it was learned"
            right_after[task.name] = _checked_answer(learner, tasks[: t + 1])
    if not at_once:
        state = _random_state()
        learner.finish()  # type: ignore[attr-defined]
        assert _random_state() == state, "finish() moved the caller's random state"
        right_after = {tasks[t].name: _checked_answer(learner, tasks, t) for t in range(len(tasks))}
    if learner.forget_free:
        for task in tasks:
            now = _ask(learner, task)
            assert torch.equal(now, right_after[task.name]), (
                f"the answers of {task.name!r} changed after later tasks, by up to "
                f"{float((now - right_after[task.name]).abs().max()):.3g}: not forget-free"
            )
    memory = learner.memory()
    assert isinstance(memory, Memory), f"memory() gives a {type(memory).__name__}, not a Memory"
    headed = {task.name for task in tasks} if learner.scenario == "til" else {tasks[-1].name}
    assert set(memory.heads) == headed or not memory.heads, "memory() lacks the head of a task"


def _ask(learner: Learner, task: Task) -> Tensor:
    """What a learner answers to the inputs of a task; in few-shot sessions it is not told which task."""
    return learner.predict(_inputs(task), task.name) if learner.scenario == "til" else learner.predict(_inputs(task))


def _checked_answer(learner: Learner, learned: list[Task], at: int = -1) -> Tensor:
    """The answer of one of the learned tasks, the last if nothing else is said."""
    task = learned[at]
    answer = _ask(learner, task)
    width = task.width if learner.scenario == "til" else sum(len(each.classes) for each in learned)
    expected = (len(_inputs(task)), width)
    assert tuple(answer.shape) == expected, f"predict gives shape {tuple(answer.shape)}, not {expected}"
    assert not answer.requires_grad, "predict gives an answer with a gradient"
    assert bool(answer.isfinite().all()), "predict gives an answer that is not finite"
    assert torch.equal(answer, _ask(learner, task)), "predict gives two answers to the same question"
    return answer


def _check_refusals(learner: Learner, tasks: list[Task]) -> None:
    before = {task.name: _ask(learner, task) for task in tasks}
    known = list(learner.tasks)
    some = _inputs(tasks[0])
    wrong = Task("wrong labels", ("a", "b"), (some, torch.full((len(some),), 7)))
    not_finite = Task("not finite", ("a", "b"), (torch.full((8, FEATURES), torch.nan), torch.arange(8) % 2))
    refused: dict[str, Callable[[], object]] = {
        "a task name used twice": lambda: learner.learn(tasks[0]),
        "labels out of range": lambda: learner.learn(wrong),
        "inputs that are not numbers": lambda: learner.learn(not_finite),
    }
    if learner.scenario == "til":
        refused["an unknown task"] = lambda: learner.predict(some, "never learned")
    else:
        again = replace(tasks[0], name="the same classes again")
        refused["a class that was met before"] = lambda: learner.learn(again)
        refused["a question with a task name"] = lambda: learner.predict(some, tasks[0].name)
    for what, call in refused.items():
        try:
            call()
        except ForgetfreeError:
            pass
        else:
            raise AssertionError(f"{what} is not refused with a ForgetfreeError")
        assert list(learner.tasks) == known, f"{what} changed which tasks are known"
        for task in tasks:
            assert torch.equal(_ask(learner, task), before[task.name]), f"{what} changed the answers of {task.name!r}"


def _check_repeatable(make: Callable[[], Learner], tasks: list[Task]) -> None:
    state, digests = torch.get_rng_state(), set()
    for elsewhere in (1, 2):
        torch.manual_seed(0)  # the backbone that `make` builds
        learner = make()
        torch.manual_seed(elsewhere)  # the caller's random state must not matter
        for task in tasks:
            learner.learn(task)
        getattr(learner, "finish", lambda: None)()
        digests.add(digest_of({task.name: _ask(learner, task) for task in tasks}))
    torch.set_rng_state(state)
    assert len(digests) == 1, "the same calls gave other answers: something depends on the caller's random state"


def _inputs(task: Task) -> Tensor:
    assert isinstance(task.valid or task.train, tuple), "check_learner needs tasks given as pairs of tensors"
    inputs = (task.valid or task.train)[0]
    assert isinstance(inputs, Tensor)
    return inputs


def _random_state() -> tuple[bytes, str, str]:
    return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), str(random.getstate())
