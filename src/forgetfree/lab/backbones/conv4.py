"""Conv-4, the small network of few-shot learning: four equal blocks, for quick experiments on grey images."""

from torch import nn

from forgetfree.lab.backbones.channels_last import ChannelsLast
from forgetfree.lab.backbones.weights import archived_without_file, convolution, starting_from
from forgetfree.modules import named_backbone


@archived_without_file
@named_backbone
def conv4(*, channels: int = 1, width: int = 64, init: str | None = None) -> nn.Module:
    """Four 3×3 convolutions with batch norms, each halving the image; width·2·2 features from 32×32 pixels.

    What is left of the image is flattened, not averaged: other sizes give other numbers of features. 111 168 weights
    beside the batch norms with one channel. `init` is a safetensors file of weights by name; without it they are drawn.
    """
    layers: list[nn.Module] = []
    for before in (channels, width, width, width):
        layers += [convolution(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    return starting_from(init, ChannelsLast(*layers, nn.Flatten()))
