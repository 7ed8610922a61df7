"""A hundred tasks in one network: what each adds to the memory, and whether the last learns as fast as the first.

    FORGETFREE_DATA=… python -m bench.hundred --json results/bench/hundred.json

Omniglot Rotation at scale `smoke` (small LeNet, one epoch a task), 24 test images of a task. A task may add its packed
masks, its own tensors and its head, and nothing else: that is compared with what `memory()` holds and with what Linux
says of the process. Ready answers are cached within a budget, so the process is looked at once that is full; and the
allocator keeps freed memory between what still lives, so it is asked to return it before each look (`held`). What the
process has without that (`kept by the allocator` on top) depends on the allocator, not on the learner.
"""

import argparse
import ctypes
import gc
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from bench.rivals import Call, Effort, take_turns
from bench.step import resident
from bench.tables import WIDTH, Table, store
from forgetfree import METHODS, Recipe, Task
from forgetfree.heads import linear_head_without_bias
from forgetfree.lab.experiment import build, plan
from forgetfree.training.loop import quick_step
from forgetfree.training.session import task_loss

EXPERIMENT, CAPACITY, IMAGES, CACHE = "til/omniglot_rotation", 0.05, 24, 64 << 20
FULL_AFTER = 20
"""Tasks after which the cache of answers is full."""
LOOKS = 10
"""How often the process is looked at, evenly over the tasks."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hundred", description="A hundred tasks in one network.")
    parser.add_argument("--tasks", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the comparison of steps (default: 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    words = parser.parse_args()
    tasks, effort = words.tasks, Effort(seconds=words.seconds)
    torch.set_num_threads(effort.threads)
    (run,) = plan(
        EXPERIMENT,
        methods=["wsn"],
        scale="smoke",
        seeds=[1],
        overrides={"benchmark.tasks": tasks, "capacity": CAPACITY},
    )
    benchmark, _, backbone = build(run)
    recipe = Recipe(**run.settings["recipe"])

    def new() -> Any:
        return METHODS["wsn"](
            backbone, capacity=CAPACITY, recipe=recipe, heads=linear_head_without_bias, cache_bytes=CACHE, seed=1
        )

    learner, first_answers, sizes, kept = new(), {}, {}, {}
    for t, task in enumerate(track(list(benchmark.tasks), "learning"), 1):
        learner.learn(task)
        exam = benchmark.tests[task.name].some(IMAGES)
        first_answers[task.name] = learner.predict(exam.inputs, task.name)
        if t % max(1, tasks // LOOKS) == 0:
            gc.collect()
            before = resident("VmRSS")
            ctypes.CDLL(None).malloc_trim(0)
            sizes[t] = resident("VmRSS")
            kept[t] = before - sizes[t]
    different = sum(
        not torch.equal(answers, learner.predict(benchmark.tests[name].some(IMAGES).inputs, name))
        for name, answers in first_answers.items()
    )
    console = Console(width=WIDTH)
    note = f"{EXPERIMENT}, small LeNet, {tasks} tasks, c = {CAPACITY:.0%}, one epoch, {IMAGES} test images of each"
    full = {t: size for t, size in sizes.items() if t >= min(FULL_AFTER, tasks // 2)}
    added = Table(
        "what a task adds, KB",
        [
            {
                **_pieces(learner),
                "held": _slope(full) / 1024,
                "kept by the allocator, MB": max(kept.values()) / 1024**2,
                "changed answers": different,
            }
        ],
        f"{note}; held: slope of the resident memory from task {min(full)} on; kept by the allocator: at most",
    )
    added.show(console)
    last = benchmark.tasks[0]
    with ExitStack() as sessions:
        again = Task("one more", last.classes, last.train)
        rivals = {name: _step(which, again, recipe, sessions) for name, which in (("first", new()), ("last", learner))}
        rounds = take_turns(rivals, effort)
    steps = Table(
        "a step of learning",
        [
            {f"task {t}, ms": 1000 * rounds.median(name) for t, name in ((1, "first"), (tasks + 1, "last"))}
            | {"ratio": rounds.ratio("last", to="first")}
        ],
        effort.said(note),
    )
    steps.show(console)
    if words.json:
        store([added, steps], words.json)


def _pieces(learner: Any) -> dict[str, float]:
    """Bytes of masks, own tensors and head, as the mean over tasks, in KB."""
    memory = learner.memory()
    count = len(memory.tickets)

    def mean(nbytes: int) -> float:
        return nbytes / count / 1024

    masks = mean(sum(len(mask.bits) for ticket in memory.tickets.values() for mask in ticket.masks.values()))
    own = mean(_nbytes([value for ticket in memory.tickets.values() for value in ticket.own.values()]))
    heads = mean(_nbytes([value for head in memory.heads.values() for value in head.values()]))
    return {"masks": masks, "own tensors": own, "head": heads, "together": masks + own + heads}


def _nbytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _slope(sizes: dict[int, int]) -> float:
    """Bytes a task, by least squares."""
    return statistics.linear_regression(list(sizes), list(sizes.values())).slope


def _step(learner: Any, task: Task, recipe: Recipe, sessions: ExitStack) -> Call:
    session = sessions.enter_context(learner.learning(task))
    session.train()
    inputs, labels = task.train[0][: recipe.batch_size], task.train[1][: recipe.batch_size]  # type: ignore[index]
    parameters = session.moving()
    take = quick_step(recipe.build(parameters))

    def step() -> None:
        for parameter in parameters.values():
            parameter.grad = None
        task_loss(task, session(inputs), labels).backward()
        take()

    return step


if __name__ == "__main__":
    main()
