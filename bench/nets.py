"""The networks of the paper's six task-incremental benchmarks, and ResNet-20: plain modules from inputs to features.

No biases, as in the paper's experiments; batch norms are PyTorch's ordinary ones. Every weight of a convolution or
linear layer is masked; the heads are not part of the networks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from forgetfree.lab.backbones.alexnet import alexnet
from forgetfree.lab.backbones.lenet import lenet
from forgetfree.lab.backbones.resnet import resnet, resnet18_reduced
from forgetfree.lab.backbones.tinynet import tinynet


@dataclass(frozen=True)
class Net:
    """A network with what it is fed."""

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    """Shape of one sample."""
    batch: int
    """The batch size of the paper's experiments."""
    masked_weights: int
    classes: int = 10

    def samples(self, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Random inputs and labels."""
        chance = torch.Generator().manual_seed(seed)
        images = torch.randn(count, *self.inputs, generator=chance)
        return images, torch.randint(self.classes, (count,), generator=chance)


def perceptron(*widths: int) -> nn.Module:
    """On flat inputs: 784-100-100 of Permuted MNIST, and a LeNet's linear layers alone, where masks weigh most."""
    layers: list[nn.Module] = []
    for width, next_width in pairwise(widths):
        layers += [nn.Linear(width, next_width, bias=False), nn.ReLU()]
    return nn.Sequential(*layers)


MLP = Net("MLP 784-100-100", partial(perceptron, 784, 100, 100), (784,), 10, 88_400)
LENET_SMALL = Net("LeNet small", lenet, (3, 32, 32), 64, 2_986_500, classes=5)
LENET_LARGE = Net("LeNet large", partial(lenet, size="large", channels=1), (1, 32, 32), 64, 24_436_400, classes=12)
ALEXNET = Net("AlexNet", alexnet, (3, 32, 32), 64, 6_499_328)
RESNET18 = Net("ResNet-18 reduced", resnet18_reduced, (3, 32, 32), 64, 1_090_140)
TINYNET = Net("TinyNet", tinynet, (3, 64, 64), 10, 2_743_520, classes=5)
RESNET20 = Net("ResNet-20", partial(resnet, (16, 32, 64), blocks=3, pool=8), (3, 32, 32), 64, 270_256)
SMALL_LINEAR = Net("  its linear layers", partial(perceptron, 3200, 800, 500), (3200,), 64, 2_960_000, classes=5)
LARGE_LINEAR = Net("  its linear layers", partial(perceptron, 8192, 2500, 1500), (8192,), 64, 24_230_000, classes=12)
NETS = [MLP, LENET_SMALL, LENET_LARGE, ALEXNET, RESNET18, TINYNET, RESNET20, SMALL_LINEAR, LARGE_LINEAR]
