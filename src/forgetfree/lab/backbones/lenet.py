"""The LeNets, no biases: small for CIFAR-100 Superclass (Table 2), large for Omniglot Rotation (Table 1).

The paper's text gives Superclass the large one; its numbers came from the small one (docs/deviations.md).
"""

from typing import Literal

from torch import nn

from forgetfree.errors import InputError
from forgetfree.lab.backbones.channels_last import ChannelsLast
from forgetfree.modules import named_backbone

SIZES = {"small": (20, 50, 800, 500), "large": (64, 128, 2500, 1500)}
"""Channels of the two convolutions, widths of the two linear layers."""


@named_backbone
def lenet(*, size: Literal["small", "large"] = "small", channels: int = 3) -> nn.Module:
    """Two 5×5 convolutions and two linear layers, on 32×32 pixels.

    Small has 2 986 500 weights with three channels, large 24 436 400 with one, which is what Omniglot takes.
    """
    if size not in SIZES:
        raise InputError(f"a LeNet is of size {' or '.join(map(repr, SIZES))}; got {size!r}.")
    first, second, third, features = SIZES[size]
    return ChannelsLast(
        nn.Conv2d(channels, first, 5, padding=2, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(first, second, 5, padding=2, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Flatten(),
        nn.Linear(second * 8 * 8, third, bias=False), nn.ReLU(),
        nn.Linear(third, features, bias=False), nn.ReLU(),
    )  # fmt: skip
