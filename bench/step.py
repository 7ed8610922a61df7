"""One training step: gradients cleared, forward through the head, cross-entropy, backward, the optimizer's step.

Against the same network without masks and with the same optimizer (fused Adam), which is the limit; against the
released way, with Adam as its scripts call it; and against its layer alone, with fused Adam. Ours steps as `fit` does,
and in all rivals numbers too small to matter are taken for zero, as there. Then: does a step cost more after a hundred
tasks, and how much memory does it take?
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.nets import (
    ALEXNET,
    LARGE_LINEAR,
    LENET_LARGE,
    LENET_SMALL,
    MLP,
    RESNET18,
    RESNET20,
    SMALL_LINEAR,
    TINYNET,
    Net,
)
from bench.released import Used, adam, through_masks, with_masks_of, zero_used
from bench.rivals import Call, Effort, take_turns
from bench.tables import Table
from forgetfree import WSN, Recipe, Task
from forgetfree.heads import linear_head_without_bias
from forgetfree.training.loop import quick_step, without_denormals

CAPACITY, LEARNING_RATE = 0.05, 1e-3
ROWS = [
    (MLP, 10), (MLP, 64), (LENET_SMALL, 64), (SMALL_LINEAR, 64), (LENET_LARGE, 64), (LARGE_LINEAR, 64),
    (ALEXNET, 64), (RESNET18, 64), (TINYNET, 10), (RESNET20, 64),
]  # fmt: skip
MANY_TASKS = 100
STEPS_FOR_MEMORY = 3
Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def measure(effort: Effort) -> list[Table]:
    tables = [steps(effort), tasks(effort)]
    return tables if effort.quick else [*tables, memory(effort)]


def steps(effort: Effort) -> Table:
    """Every network: our step and the released one as multiples of the dense one."""
    rows, counts = [], []
    for net, batch in effort.chosen(ROWS):
        with ExitStack() as sessions:
            samples = net.samples(batch)
            rivals = {name: make(net, samples, sessions) for name, make in RIVALS.items()}
            with without_denormals():
                rounds = take_turns(rivals, effort)
        counts.append(len(rounds))
        rows.append({
            "network": net.name,
            "weights": net.masked_weights,
            "batch": batch,
            "dense ms": 1e3 * rounds.median("dense"),
            "ours / dense": rounds.ratio("ours", to="dense"),
            "released / dense": rounds.ratio("released", to="dense"),
            "released / ours": rounds.ratio("released", to="ours"),
            "its layer / ours": rounds.ratio("its layer", to="ours"),
        })  # fmt: skip
    note = effort.said(
        f"{min(counts)} to {max(counts)} rounds", f"capacity {CAPACITY:.0%}, second task", "fused Adam but for released"
    )
    return Table("step: one training step, as a multiple of the dense network's", rows, note)


def tasks(effort: Effort) -> Table:
    """The perceptron's step after no task, one task, and ninety-nine."""
    many = 3 if effort.quick else MANY_TASKS
    with ExitStack() as sessions:
        samples = MLP.samples(MLP.batch)
        rivals = {f"task {t}": ours(MLP, samples, sessions, learned=t - 1) for t in (1, 2, many)}
        with without_denormals():
            rounds = take_turns(rivals, effort)
    row = {
        "network": MLP.name,
        "batch": MLP.batch,
        "task 1 ms": 1e3 * rounds.median("task 1"),
        "task 2 / task 1": rounds.ratio("task 2", to="task 1"),
        f"task {many} / task 1": rounds.ratio(f"task {many}", to="task 1"),
        f"task {many} / task 2": rounds.ratio(f"task {many}", to="task 2"),
    }
    return Table("step: does it grow with the tasks learned before?", [row], effort.said(f"{len(rounds)} rounds"))


def memory(effort: Effort, net: Net = LENET_LARGE) -> Table:
    """Peak memory of a step in floats per masked weight, each rival in a process of its own."""
    rows = []
    for name in RIVALS:
        command = [sys.executable, "-m", "bench.step", name]
        told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1]).stdout
        before, peak = (int(word) / 4 / net.masked_weights for word in told.split())
        rows.append({"network": net.name, "rival": name, "held before a step": before, "peak of a step": peak})
    how = f"resident memory above a process that has trained another network; batch {net.samples(2)[0].shape[0]}"
    return Table("step: memory in floats per masked weight", rows, effort.said(how))


def dense(net: Net, samples: tuple[Tensor, Tensor], sessions: ExitStack) -> Call:
    """A step of the network as it is."""
    backbone = net.build().train()
    whole = nn.Sequential(backbone, _head(backbone, net, samples[0]))
    return _step(whole, list(whole.parameters()), samples)


def ours(net: Net, samples: tuple[Tensor, Tensor], sessions: ExitStack, *, learned: int = 1) -> Call:
    """A step of ours, in a session that stays open as long as `sessions`, after so many `learned` tasks."""
    recipe = Recipe(epochs=1, batch_size=len(samples[0]), lr=LEARNING_RATE)
    learner = WSN(net.build(), capacity=CAPACITY, recipe=recipe, heads=linear_head_without_bias)
    classes = tuple(range(net.classes))
    for number in range(learned):
        learner.learn(Task(f"task {number + 1}", classes, samples))
    session = sessions.enter_context(learner.learning(Task("the next task", classes, samples)))
    session.train()
    moving = session.moving()
    return _step(session, list(moving.values()), samples, build=lambda _: recipe.build(moving), step_of=quick_step)


def released(net: Net, samples: tuple[Tensor, Tensor], sessions: ExitStack, *, build: Build = adam) -> Call:
    """A step of the released way, with the weights of one task used."""
    backbone = net.build().train()
    masked = through_masks(backbone, CAPACITY)
    whole = nn.Sequential(masked, _head(backbone, net, samples[0]))
    whole(samples[0])
    used: Used = {f"0.{name}": mask for name, mask in with_masks_of(masked, {}).items()}
    return _step(whole, list(whole.parameters()), samples, build=build, after_backward=lambda: zero_used(whole, used))


def fused_adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)


RIVALS: dict[str, Callable[[Net, tuple[Tensor, Tensor], ExitStack], Call]] = {
    "dense": dense,
    "ours": ours,
    "released": released,
    "its layer": partial(released, build=fused_adam),
}


def _step(
    model: Callable[[Tensor], Tensor],
    parameters: list[nn.Parameter],
    samples: tuple[Tensor, Tensor],
    *,
    build: Build = fused_adam,
    after_backward: Call = lambda: None,
    step_of: Callable[[torch.optim.Optimizer], Call] = attrgetter("step"),
) -> Call:
    inputs, labels = samples
    optimizer = build(parameters)
    take_step = step_of(optimizer)

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        F.cross_entropy(model(inputs), labels).backward()
        after_backward()
        take_step()

    return step


def _head(backbone: nn.Module, net: Net, inputs: Tensor) -> nn.Module:
    with torch.no_grad():
        width = backbone(inputs[:2]).shape[1]
    return nn.Linear(width, net.classes, bias=False)


def _tell_memory(name: str) -> None:
    """Print how many bytes a rival holds between steps, and at the peak of one; in a process of its own."""
    torch.set_num_threads(1)
    with ExitStack() as sessions:  # libraries load and threads start before the count begins
        RIVALS[name](LENET_SMALL, LENET_SMALL.samples(2), sessions)()
    before = resident("VmRSS")
    with ExitStack() as sessions:
        step = RIVALS[name](LENET_LARGE, LENET_LARGE.samples(2), sessions)
        step()
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        held = resident("VmRSS")
        for _ in range(STEPS_FOR_MEMORY):
            step()
        sys.stdout.write(f"{held - before} {resident('VmHWM') - before}\n")


def resident(what: str) -> int:
    """Bytes of this process in memory now (VmRSS) or at most (VmHWM), as Linux counts them."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{os.getpid()}/status").read_text())
    assert found, f"this system does not tell {what}"
    return 1024 * int(found[1])


if __name__ == "__main__":
    _tell_memory(sys.argv[1])
