"""Views of an image: it is seen turned, mirrored or moved, and what the network gives for each stands in one row."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree.errors import InputError

Views = Literal["one", "mirrored", "upside_down", "rotations", "shifts"]
"""As it is; and its mirror image; and upside down; in four rotations; and moved by an eighth to every side."""
TURNED: dict[int, Views] = {1: "one", 2: "upside_down", 4: "rotations"}
"""Views by how many rotations they are."""


def seen_in(views: Views, network: nn.Module) -> nn.Module:
    """The network with the features of all views side by side, [images, views · features]."""
    return network if views == "one" else Viewed(network, views).eval()


class Viewed(nn.Module):
    """Features of an image in several views: as many forward passes."""

    def __init__(self, network: nn.Module, views: Views):
        super().__init__()
        self.network, self.views = network, views

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.network(view) for view in views_of(images, self.views)], 1)


def views_of(images: Any, views: Views) -> list[Tensor]:
    """The images in each view; the first is as they are."""
    if not isinstance(images, Tensor) or images.dim() != 4:
        raise InputError(f"views are of images, [batch, channels, height, width]; got {_shape(images)}.")
    if views == "mirrored":
        return [images, images.flip(3)]
    if views == "upside_down":
        return [images, torch.rot90(images, 2, (2, 3))]
    if views == "rotations":
        if images.shape[2] != images.shape[3]:
            raise InputError(f"rotations are of square images; got {_shape(images)}.")
        return [torch.rot90(images, turn, (2, 3)) for turn in range(4)]
    if views == "shifts":
        by = max(1, images.shape[2] // 8)
        return [images, *(images.roll(step, axis) for axis in (2, 3) for step in (-by, by))]
    return [images]


def _shape(images: Any) -> str:
    return str(tuple(images.shape)) if isinstance(images, Tensor) else type(images).__name__
