"""Finding the top fraction of scores while they move as Adam moves them, as a multiple of one `abs` pass over them.

Before every call a real step of Adam moves the scores: gradients are noise around a direction that stays. That step is
not timed. The search (`Selection.cut`) is timed apart from making a mask of what it found, which training never needs.
"""

import numpy as np
import torch
from torch import Tensor

from bench.rivals import Effort, Rival, take_turns
from bench.tables import Table
from forgetfree.masks import kept_count
from forgetfree.scores import Scores

FRACTION, LEARNING_RATE = 0.05, 1e-3
SIZES = [(100, 784), (800, 3200), (2500, 8192)]
WARM_UP = 30
DRIFT = 0.1
"""The part of a gradient that stays from step to step, where the noise is 1."""
SHIFTS = 10_000


def measure(effort: Effort) -> list[Table]:
    rows, counts = [], []
    for shape in effort.chosen(SIZES):
        walk = Walk(shape)
        rounds = take_turns(
            {
                "abs": Rival(walk.one_pass, walk.settle),
                "search": Rival(walk.search, walk.move),
                "mask": Rival(walk.mask, walk.settle),
                "partition": Rival(walk.partition, walk.settle),
                "kthvalue": Rival(walk.kthvalue, walk.settle),
            },
            effort,
        )
        counts.append(len(rounds))
        rows.append({
            "scores": walk.size,
            "abs ms": 1e3 * rounds.median("abs"),
            "search / abs": rounds.ratio("search", to="abs"),
            "mask / abs": rounds.ratio("mask", to="abs"),
            "np.partition / abs": rounds.ratio("partition", to="abs"),
            "kthvalue / abs": rounds.ratio("kthvalue", to="abs"),
        })  # fmt: skip
    note = effort.said(
        f"{min(counts)} to {max(counts)} rounds",
        f"top {FRACTION:.0%}, Adam with lr {LEARNING_RATE}",
        "np.partition and kthvalue include the abs pass",
    )
    return [Table("select: exact selection in steady state, as a multiple of one abs pass", rows, note)]


class Walk:
    """Scores of one layer that Adam moves before every call, and the rival ways to select among them."""

    def __init__(self, shape: tuple[int, int], seed: int = 0):
        self._chance = torch.Generator().manual_seed(seed)
        bound = shape[1] ** -0.5
        self._scores = Scores({"weight": torch.rand(shape, generator=self._chance).mul_(2 * bound).sub_(bound)})
        self._values = dict(self._scores.named_parameters())["weight"]
        self.size = self._values.numel()
        self._place = self.size - kept_count(self.size, FRACTION)
        self._buffer = torch.empty_like(self._values)
        self._direction = torch.randn(shape, generator=self._chance).mul_(DRIFT)
        self._noise = torch.randn(self.size + SHIFTS, generator=self._chance)
        self._values.grad = torch.empty_like(self._values)
        self._adam = torch.optim.Adam([self._values], lr=LEARNING_RATE, fused=True)
        for _ in range(WARM_UP):
            self.settle()

    @torch.no_grad()
    def move(self) -> None:
        # another stretch of one long noise is new noise for every score, without drawing it
        shift = int(torch.randint(SHIFTS, (), generator=self._chance))
        noise = self._noise[shift : shift + self.size].view_as(self._values)
        torch.add(self._direction, noise, out=self._values.grad)
        self._adam.step()

    @torch.no_grad()
    def search(self) -> None:
        self.selection = self._scores.top(FRACTION)["weight"]
        self.selection.cut()

    def settle(self) -> None:
        """Move and search, so that no search ever sees more than one step at once, whoever's turn it is."""
        self.move()
        self.search()

    @torch.no_grad()
    def mask(self) -> Tensor:
        return self.selection.mask()

    @torch.no_grad()
    def one_pass(self) -> Tensor:
        return torch.abs(self._values, out=self._buffer)

    @torch.no_grad()
    def partition(self) -> np.float32:
        magnitudes = self.one_pass().numpy().reshape(-1)
        return np.partition(magnitudes, self._place)[self._place]

    @torch.no_grad()
    def kthvalue(self) -> float:
        return self.one_pass().flatten().kthvalue(self._place + 1).values.item()
