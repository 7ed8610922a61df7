"""Heads that a first few-shot session learns with, for networks whose features serve classes that come later.

A classifier of directions with one temperature; on top of it, each by a setting: every image in four rotations, which
are classes of their own; rows that are noisy while they learn; labels that leave something to the other classes.
Answers are given by other heads: what is learned here is the network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forgetfree.batches import Batch
from forgetfree.class_heads import Chosen
from forgetfree.contracts import Inputs, Task
from forgetfree.errors import InputError

QUIET = 4.0
"""Noise begins at softplus(-4) = 0.018."""


class BaseHead(nn.Module):
    """temperature · cos(features, row), with a row for every class, in every rotation."""

    def __init__(self, features: int, classes: int, settings: "CosineBase"):
        super().__init__()
        self.settings = settings
        rows = classes * settings.rotations
        self.weight = nn.Parameter(torch.empty(rows, features))
        nn.init.uniform_(self.weight, -(features**-0.5), features**-0.5)
        self.noise = nn.Parameter(torch.zeros(rows, features)) if settings.noise else None

    def forward(self, features: Tensor) -> Tensor:
        """Scores of the classes, the image being upright; or of features in all rotations, side by side, their mean."""
        turns, width = self.settings.rotations, self.weight.shape[1]
        if features.shape[1] == width:
            return self.joint(features)[:, ::turns]
        views = features.view(len(features), turns, width).unbind(1)
        return torch.stack([self.joint(view)[:, turn::turns] for turn, view in enumerate(views)]).mean(0)

    def with_rows(self, rows: Tensor) -> "BaseHead":
        """The same head with these rows; those that it did not have are as noisy as rows are at first."""
        turns = self.settings.rotations
        made = BaseHead(rows.shape[1], len(rows) // turns, self.settings).to(rows)
        with torch.no_grad():
            made.weight.copy_(rows)
            if made.noise is not None and self.noise is not None:
                made.noise[: len(self.noise)] = self.noise
        return made

    def joint(self, features: Tensor) -> Tensor:
        """Scores of every class in every rotation, [images, classes · rotations]."""
        rows: Tensor = self.weight
        if self.noise is not None and self.training:
            rows = rows + F.softplus(self.noise - QUIET) * torch.randn_like(rows)
        return self.settings.temperature * F.normalize(features, dim=1) @ F.normalize(rows, dim=1).T

    def session_loss(self, model: Callable[[Inputs], Any], batch: Batch) -> Tensor:
        """Cross-entropy over classes and rotations, of every image in every rotation."""
        turns = self.settings.rotations
        inputs, labels = turned(batch.inputs, turns), batch.labels.long()
        joint = torch.cat([labels * turns + turn for turn in range(turns)])
        return F.cross_entropy(self.joint(model(inputs)), joint, label_smoothing=self.settings.smoothing)


@dataclass(frozen=True)
class CosineBase(Chosen):
    """`rotations` is 1, 2 (upright and upside down) or 4."""

    temperature: float = 16.0
    rotations: int = 1
    noise: bool = False
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.rotations not in (1, 2, 4):
            raise InputError(f"rotations is 1, 2 or 4; got {self.rotations!r}.")

    def __call__(self, features: int, task: Task) -> nn.Module:
        return BaseHead(features, task.width, self)


def turned(inputs: Inputs, turns: int) -> Inputs:
    """All images in each of so many rotations, one rotation after another."""
    if turns == 1:
        return inputs
    if not isinstance(inputs, Tensor) or inputs.dim() != 4 or inputs.shape[2] != inputs.shape[3]:
        shape = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise InputError(f"rotations are of square images, [batch, channels, size, size]; got {shape}.")
    return torch.cat([torch.rot90(inputs, 4 // turns * turn, (2, 3)) for turn in range(turns)])
