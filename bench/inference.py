"""Answering: `predict` through a ticket against a plain module that holds the same weights; switching; sparse layers.

The sparse table says where a linear layer in CSR form is faster than the dense one, by density and batch.
"""

import copy
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.nets import LENET_LARGE, MLP, RESNET20, Net
from bench.rivals import Call, Effort, take_turns
from bench.tables import Table
from forgetfree import WSN, Recipe, Task
from forgetfree.heads import linear_head_without_bias
from forgetfree.sparse import compress

CAPACITY = 0.3
NETS, BATCHES = [MLP, LENET_LARGE, RESNET20], [1, 10, 256]
SWITCH_BATCH = 64
LINEAR_LAYERS = [(2500, 1500), (8192, 2500)]  # of LeNet large
DENSITIES, SPARSE_BATCHES = [0.05, 0.1, 0.3], [1, 10, 64, 256]


def measure(effort: Effort) -> list[Table]:
    return [tickets(effort), switches(effort), sparse(effort)]


def tickets(effort: Effort) -> Table:
    """`predict` as a multiple of the plain module, under `no_grad`."""
    rows, counts = [], []
    for net in effort.chosen(NETS):
        learner = learned(net)
        plain = plain_module(learner, net, "task 1")
        for batch in effort.chosen(BATCHES):
            inputs, _ = net.samples(batch)
            learner.predict(inputs, task="task 1")
            rounds = take_turns(
                {
                    "plain": partial(_without_gradient, plain, inputs),
                    "ticket": partial(learner.predict, inputs, task="task 1"),
                },
                effort,
            )
            counts.append(len(rounds))
            plain_time, ticket_time = rounds.median("plain"), rounds.median("ticket")
            rows.append({
                "network": net.name,
                "batch": batch,
                "plain µs": 1e6 * plain_time,
                "ticket / plain": rounds.ratio("ticket", to="plain"),
                "difference µs": 1e6 * (ticket_time - plain_time),
            })  # fmt: skip
    note = effort.said(f"{min(counts)} to {max(counts)} rounds", f"capacity {CAPACITY:.0%}")
    return Table("inference: through a ticket, as a multiple of the plain module", rows, note)


def switches(effort: Effort) -> Table:
    """What changing the task costs once both are cached, and what the first answer of a task costs."""
    rows = []
    for net in effort.chosen(NETS):
        learner = learned(net)
        inputs, _ = net.samples(SWITCH_BATCH)

        def ask(*names: str, inputs: Tensor = inputs, learner: WSN = learner) -> None:
            for name in names:
                learner.predict(inputs, task=name)

        ask("task 1", "task 2")
        rivals: dict[str, Call] = {
            "same": partial(ask, "task 1", "task 1"),
            "switching": partial(ask, "task 1", "task 2"),
            "making": partial(learner.network.answer, "task 1"),
        }
        rounds = take_turns(rivals, effort)
        rows.append({
            "network": net.name,
            "one forward ms": 1e3 * rounds.median("same") / 2,
            "cached switch, forwards": rounds.ratio("switching", to="same") - 1,
            "making the copy, forwards": 2 * rounds.ratio("making", to="same"),
        })  # fmt: skip
    note = effort.said(f"{len(rounds)} rounds for the last row", f"batch {SWITCH_BATCH}", f"capacity {CAPACITY:.0%}")
    return Table("inference: switching between two tasks, in forwards of batch 64", rows, note)


def sparse(effort: Effort) -> Table:
    """How many times faster the linear layers of LeNet large answer with `sparse_answers=True`."""
    rows, counts = [], []
    short = Effort(effort.threads, effort.rounds, effort.seconds / 4, effort.quick)
    for before, after in effort.chosen(LINEAR_LAYERS):
        for density in effort.chosen(DENSITIES):
            dense, compressed = linear_layers(before, after, density)
            row: dict[str, Any] = {"layer": f"{before}-{after}", "density": f"{density:.0%}"}
            for batch in effort.chosen(SPARSE_BATCHES):
                inputs = torch.randn(batch, before, generator=torch.Generator().manual_seed(batch))
                rounds = take_turns(
                    {
                        "dense": partial(_without_gradient, dense, inputs),
                        "sparse": partial(_without_gradient, compressed, inputs),
                    },
                    short,
                )
                counts.append(len(rounds))
                row[f"batch {batch}"] = rounds.ratio("dense", to="sparse")
            rows.append(row)
            gc.collect()
    note = effort.said(f"{min(counts)} to {max(counts)} rounds", "above 1: faster than dense; 1: the rule says dense")
    return Table("inference: dense time / time with sparse_answers=True, of a linear layer", rows, note)


def linear_layers(before: int, after: int, density: float) -> tuple[nn.Module, nn.Module]:
    """A linear layer with so many of its weights, and the same as a ticket would answer through it."""
    chance = torch.Generator().manual_seed(0)
    dense = nn.Linear(before, after, bias=False).eval().requires_grad_(False)
    dense.weight.copy_(torch.randn(after, before, generator=chance))
    dense.weight[torch.rand(after, before, generator=chance) >= density] = 0
    return dense, compress(nn.Sequential(copy.deepcopy(dense)), {"0.weight"})[0]


def learned(net: Net) -> WSN:
    """A learner with two tiny tasks learned."""
    samples = net.samples(4)
    recipe = Recipe(epochs=1, batch_size=4)
    learner = WSN(net.build(), capacity=CAPACITY, recipe=recipe, heads=linear_head_without_bias)
    for name in ("task 1", "task 2"):
        learner.learn(Task(name, tuple(range(net.classes)), samples))
    return learner


def plain_module(learner: WSN, net: Net, task: str) -> nn.Module:
    """The same network with a task's weights written in, as somebody without the library would hold it."""
    memory, module = learner.memory(), net.build()
    ticket = memory.tickets[task]
    shared = {name: value.where(ticket.mask(name), 0) for name, value in memory.shared.items()}
    module.load_state_dict({**module.state_dict(), **shared, **ticket.own})
    head = copy.deepcopy(learner.engine.heads.kept[task])
    return nn.Sequential(module, head).eval().requires_grad_(False)


@torch.no_grad()
def _without_gradient(call: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return call(*args)
