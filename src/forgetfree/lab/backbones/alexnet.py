"""The AlexNet of CIFAR-100 Split (Table 2): no biases, 6 499 328 weights beside the batch norms.

Here also stands what `norm` means, for all backbones with batch norms.
"""

from typing import Literal

from torch import nn

from forgetfree.errors import InputError
from forgetfree.modules import named_backbone

Norm = Literal["task", "batch"]
NORMS: dict[Norm, dict[str, bool]] = {
    "task": {"affine": True, "track_running_stats": True},
    "batch": {"affine": False, "track_running_stats": False},
}
"""Weights and running statistics, which become each task's own; or, as released, neither: a row's answer then depends
on the rows beside it, and a batch has two at least."""


@named_backbone
def alexnet(*, norm: Norm = "task") -> nn.Module:
    """Three convolutions and two linear layers with batch norms and dropout, on 3×32×32 pixels."""
    kind = norm_settings(norm)
    return nn.Sequential(
        nn.Conv2d(3, 64, 4, bias=False), nn.BatchNorm2d(64, **kind), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, bias=False), nn.BatchNorm2d(128, **kind), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2),
        nn.Conv2d(128, 256, 2, bias=False), nn.BatchNorm2d(256, **kind), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256 * 2 * 2, 2048, bias=False), nn.BatchNorm1d(2048, **kind), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(2048, 2048, bias=False), nn.BatchNorm1d(2048, **kind), nn.ReLU(), nn.Dropout(0.5),
    )  # fmt: skip


def norm_settings(norm: Norm) -> dict[str, bool]:
    """The arguments of PyTorch's batch norms that `norm` stands for."""
    if norm not in NORMS:
        raise InputError(
            f"norm is one of {', '.join(map(repr, NORMS))}: each task's own, or the batch's; got {norm!r}."
        )
    return NORMS[norm]
