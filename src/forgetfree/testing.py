"""The contract of a learner as a check, for us and for authors of their own methods.

    from forgetfree.testing import check_learner
    check_learner(lambda: MyMethod(torch.nn.Linear(8, 16), ...))

The learner is built again and again by the function, on a backbone that takes [batch, 8]. Each broken promise is an
`AssertionError` whose text says which one.
"""

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from forgetfree.contracts import Learner, Memory, Task
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


def _check_learning(learner: Learner, tasks: list[Task]) -> None:
    right_after: dict[str, Tensor] = {}
    for task in tasks:
        state = _random_state()
        learner.learn(task)
        assert _random_state() == state, f"learn({task.name!r}) moved the caller's random state"
        assert list(learner.tasks)[-1] == task.name, f"tasks does not end with {task.name!r} after it was learned"
        answer = learner.predict(_inputs(task), task.name)
        expected = (len(_inputs(task)), task.width)
        assert tuple(answer.shape) == expected, f"predict gives shape {tuple(answer.shape)}, not {expected}"
        assert not answer.requires_grad, "predict gives an answer with a gradient"
        assert bool(answer.isfinite().all()), "predict gives an answer that is not finite"
        again = learner.predict(_inputs(task), task.name)
        assert torch.equal(answer, again), "predict gives two answers to the same question"
        right_after[task.name] = answer
    if learner.forget_free:
        for task in tasks:
            now = learner.predict(_inputs(task), task.name)
            assert torch.equal(now, right_after[task.name]), (
                f"the answers of {task.name!r} changed after later tasks, by up to "
                f"{float((now - right_after[task.name]).abs().max()):.3g}: not forget-free"
            )
    memory = learner.memory()
    assert isinstance(memory, Memory), f"memory() gives a {type(memory).__name__}, not a Memory"
    assert set(memory.heads) == {task.name for task in tasks} or not memory.heads, "memory() lacks the head of a task"


def _check_refusals(learner: Learner, tasks: list[Task]) -> None:
    before = {task.name: learner.predict(_inputs(task), task.name) for task in tasks}
    known = list(learner.tasks)
    wrong = Task("wrong labels", ("a", "b"), (_inputs(tasks[0]), torch.full((len(_inputs(tasks[0])),), 7)))
    not_finite = Task("not finite", ("a", "b"), (torch.full((8, FEATURES), torch.nan), torch.arange(8) % 2))
    refused: dict[str, Callable[[], object]] = {
        "a task name used twice": lambda: learner.learn(tasks[0]),
        "labels out of range": lambda: learner.learn(wrong),
        "a loss that is not a number": lambda: learner.learn(not_finite),
        "an unknown task": lambda: learner.predict(_inputs(tasks[0]), "never learned"),
    }
    for what, call in refused.items():
        try:
            call()
        except ForgetfreeError:
            pass
        else:
            raise AssertionError(f"{what} is not refused with a ForgetfreeError")
        assert list(learner.tasks) == known, f"{what} changed which tasks are known"
        for task in tasks:
            now = learner.predict(_inputs(task), task.name)
            assert torch.equal(now, before[task.name]), f"{what} changed the answers of {task.name!r}"


def _check_repeatable(make: Callable[[], Learner], tasks: list[Task]) -> None:
    state, digests = torch.get_rng_state(), set()
    for elsewhere in (1, 2):
        torch.manual_seed(0)  # the backbone that `make` builds
        learner = make()
        torch.manual_seed(elsewhere)  # the caller's random state must not matter
        for task in tasks:
            learner.learn(task)
        digests.add(digest_of({task.name: learner.predict(_inputs(task), task.name) for task in tasks}))
    torch.set_rng_state(state)
    assert len(digests) == 1, "the same calls gave other answers: something depends on the caller's random state"


def _inputs(task: Task) -> Tensor:
    assert isinstance(task.valid or task.train, tuple), "check_learner needs tasks given as pairs of tensors"
    inputs = (task.valid or task.train)[0]
    assert isinstance(inputs, Tensor)
    return inputs


def _random_state() -> tuple[bytes, str, str]:
    return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), str(random.getstate())
