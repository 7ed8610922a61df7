"""Several runs in one process: do steps of small networks get cheaper when their weights are stacked?

A prototype, because the library does not do it: the weights of R runs (one for each capacity) lie in one tensor, the
layers multiply batch by batch (`bmm`), the kernels go through run after run, and one fused Adam moves all. It is
compared with a step of a run alone. Two cores are busy either way: with two processes, or with two stacks.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.nets import MLP
from bench.rivals import Call, Effort, take_turns
from bench.step import fused_adam, ours
from bench.tables import Table
from forgetfree.kernels import Search, back
from forgetfree.masks import kept_count
from forgetfree.training.loop import quick_step, without_denormals

CAPACITIES = (0.03, 0.05, 0.1, 0.3, 0.5, 0.7)
STACKS, BATCH, USED = [2, 6], 10, 0.05
SHAPES = [(100, 784), (100, 100)]


def measure(effort: Effort) -> list[Table]:
    rows = []
    for runs in effort.chosen(STACKS):
        with ExitStack() as sessions, without_denormals():
            rivals = {"alone": ours(MLP, MLP.samples(BATCH), sessions), "stacked": stacked(CAPACITIES[:runs])}
            rounds = take_turns(rivals, effort)
        rows.append({
            "runs": runs,
            "alone ms": 1e3 * rounds.median("alone"),
            "stacked, ms for each": 1e3 * rounds.median("stacked") / runs,
            "alone / stacked": runs * rounds.ratio("alone", to="stacked"),
        })  # fmt: skip
    note = effort.said(f"{len(rounds)} rounds for the last row", f"{MLP.name}, batch {BATCH}")
    return [Table("stacked: a step of several runs at once, for each of them", rows, note)]


@dataclass(frozen=True)
class Layer:
    """One layer of all runs."""

    free: nn.Parameter
    scores: nn.Parameter
    kept: Tensor
    used: Tensor
    effective: Tensor
    searches: list[Search]
    counts: list[int]

    @classmethod
    def draw(cls, shape: tuple[int, int], capacities: tuple[float, ...], chance: torch.Generator) -> "Layer":
        size = (len(capacities), *shape)
        free, scores = (
            nn.Parameter(torch.rand(size, generator=chance).sub_(0.5).mul_(2 * shape[1] ** -0.5)) for _ in range(2)
        )
        free.grad, scores.grad = torch.empty(size), torch.empty(size)
        cells = shape[0] * shape[1]
        return cls(
            free, scores, free.detach().clone(), torch.rand(size, generator=chance) < USED,
            torch.empty(size).requires_grad_(), [Search(cells) for _ in capacities],
            [kept_count(cells, capacity) for capacity in capacities],
        )  # fmt: skip

    def rows(self, tensor: Tensor) -> np.ndarray:
        return tensor.detach().numpy().reshape(len(self.counts), -1)


def stacked(capacities: tuple[float, ...]) -> Call:
    """A step of one run for each capacity."""
    chance, runs = torch.Generator().manual_seed(0), len(capacities)
    layers = [Layer.draw(shape, capacities, chance) for shape in SHAPES]
    head = nn.Parameter(torch.rand(runs, MLP.classes, 100, generator=chance).sub_(0.5).mul_(0.2))
    inputs, labels = MLP.samples(BATCH)
    inputs, labels = inputs.expand(runs, *inputs.shape), labels.repeat(runs)
    take_step = quick_step(fused_adam([*(p for layer in layers for p in (layer.free, layer.scores)), head]))
    arrays = [[*map(layer.rows, (layer.free, layer.kept, layer.used, layer.scores))] for layer in layers]
    seen = [layer.rows(layer.effective) for layer in layers]
    gradients = [(layer.rows(layer.free.grad), layer.rows(layer.scores.grad)) for layer in layers]

    def step() -> None:
        cuts = [
            [layer.searches[r].look(tuple(a[r] for a in array), layer.counts[r], out[r]) for r in range(runs)]
            for layer, array, out in zip(layers, arrays, seen, strict=True)
        ]
        head.grad, hidden = None, inputs
        for layer in layers:
            layer.effective.grad = None
            hidden = torch.relu(torch.bmm(hidden, layer.effective.transpose(1, 2)))
        answers = torch.bmm(hidden, head.transpose(1, 2)).flatten(0, 1)
        (runs * F.cross_entropy(answers, labels)).backward()
        for layer, array, cut, (free, scores) in zip(layers, arrays, cuts, gradients, strict=True):
            arriving = layer.rows(layer.effective.grad)
            for r in range(runs):
                back(arriving[r], *(a[r] for a in array), cut[r].threshold, cut[r].losers, free[r], scores[r])
        take_step()

    return step
