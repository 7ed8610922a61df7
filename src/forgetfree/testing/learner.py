"""check_learner: what everything that learns tasks and answers promises, whoever wrote it and however it is built."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forgetfree.batches import convert, rows, tensors_of
from forgetfree.contracts import Inputs, Learner, Memory, Task
from forgetfree.errors import ForgetfreeError
from forgetfree.files import digest_of
from forgetfree.modules import as_call

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


def _check_learning(learner: Learner, tasks: list[Task]) -> None:
    right_after: dict[str, Tensor] = {}
    at_once = not hasattr(learner, "finish")  # a learner with finish() only collects tasks until then
    for t, task in enumerate(tasks):
        state = random_state()
        learner.learn(task)
        assert random_state() == state, f"learn({task.name!r}) moved the caller's random state"
        if at_once:
            assert list(learner.tasks)[-1] == task.name, f"tasks does not end with {task.name!r} after it was learned"
            right_after[task.name] = _checked_answer(learner, tasks[: t + 1])
    if not at_once:
        state = random_state()
        learner.finish()  # type: ignore[attr-defined]
        assert random_state() == state, "finish() moved the caller's random state"
        right_after = {tasks[t].name: _checked_answer(learner, tasks, t) for t in range(len(tasks))}
    if learner.forget_free:
        for task in tasks:
            for now in (ask(learner, task), _ask_anew(learner, task)):
                before = right_after[task.name]
                now = now[:, : before.shape[1]] if learner.scenario == "fscil" else now  # of the classes known then
                assert torch.equal(now, before), (
                    f"the answers of {task.name!r} changed after later tasks, by up to "
                    f"{float((now - before).abs().max()):.3g}: not forget-free"
                )
    memory = learner.memory()
    assert isinstance(memory, Memory), f"memory() gives a {type(memory).__name__}, not a Memory"
    headed = {task.name for task in tasks} if learner.scenario == "til" else {tasks[-1].name}
    assert set(memory.heads) == headed or not memory.heads, "memory() lacks the head of a task"


def ask(learner: Any, task: Task) -> Tensor:
    """What a learner answers to the inputs of a task; in few-shot sessions it is not told which task."""
    inputs = inputs_of(task)
    answer: Tensor = learner.predict(inputs, task.name) if learner.scenario == "til" else learner.predict(inputs)
    return answer


def _ask_anew(learner: Any, task: Task) -> Tensor:
    """The same from modules made now, where a learner gives any: it may have answers of before at hand."""
    if learner.scenario != "til" or not hasattr(learner, "task_modules"):
        return ask(learner, task)
    modules = learner.task_modules(task.name)
    answer: Tensor = called(modules["head"], called(modules["backbone"], inputs_of(task)))
    return answer


def called(module: nn.Module, inputs: Inputs) -> Any:
    """What a module makes of one tensor or several."""
    args, kwargs = as_call(inputs)
    with torch.no_grad():
        return module(*args, **kwargs)


def _checked_answer(learner: Learner, learned: list[Task], at: int = -1) -> Tensor:
    """The answer of one of the learned tasks, the last if nothing else is said."""
    task = learned[at]
    answer = ask(learner, task)
    width = task.width if learner.scenario == "til" else sum(len(each.classes) for each in learned)
    expected = (rows(inputs_of(task)), width)
    assert tuple(answer.shape) == expected, f"predict gives shape {tuple(answer.shape)}, not {expected}"
    assert not answer.requires_grad, "predict gives an answer with a gradient"
    assert bool(answer.isfinite().all()), "predict gives an answer that is not finite"
    assert torch.equal(answer, ask(learner, task)), "predict gives two answers to the same question"
    return answer


def _check_refusals(learner: Learner, tasks: list[Task]) -> None:
    before = {task.name: ask(learner, task) for task in tasks}
    known = list(learner.tasks)
    some = inputs_of(tasks[0])
    count = rows(some)
    wrong = Task("wrong labels", ("a", "b"), (some, torch.full((count,), 7)))
    broken = convert(some, lambda each: torch.full_like(each, torch.nan) if each.is_floating_point() else each)
    not_finite = Task("not finite", ("a", "b"), (broken, torch.arange(count) % 2))
    refused: dict[str, Callable[[], object]] = {
        "a task name used twice": lambda: learner.learn(tasks[0]),
        "labels out of range": lambda: learner.learn(wrong),
    }
    if any(each.is_floating_point() for each in tensors_of(some)):
        refused["inputs that are not numbers"] = lambda: learner.learn(not_finite)
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
            assert torch.equal(ask(learner, task), before[task.name]), f"{what} changed the answers of {task.name!r}"


def _check_repeatable(make: Callable[[], Learner], tasks: list[Task]) -> None:
    state, digests = torch.get_rng_state(), set()
    for elsewhere in (1, 2):
        torch.manual_seed(0)  # the backbone that `make` builds
        learner = make()
        torch.manual_seed(elsewhere)  # the caller's random state must not matter
        for task in tasks:
            learner.learn(task)
        getattr(learner, "finish", lambda: None)()
        digests.add(digest_of({task.name: ask(learner, task) for task in tasks}))
    torch.set_rng_state(state)
    assert len(digests) == 1, "the same calls gave other answers: something depends on the caller's random state"


def inputs_of(task: Task) -> Inputs:
    """What is asked of a task: its validation data, or else what it was trained on."""
    data = task.valid or task.train
    assert isinstance(data, tuple), "tasks to check with are pairs of tensors"
    return data[0]


def random_state() -> tuple[bytes, str, str]:
    """That of torch, numpy and Python."""
    return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), str(random.getstate())
