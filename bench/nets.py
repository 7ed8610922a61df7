"""The networks of the paper's six task-incremental benchmarks, and ResNet-20: plain modules from inputs to features.

No biases, as in the paper's experiments; batch norms are PyTorch's ordinary ones. Every weight of a convolution or
linear layer is masked; the heads are not part of the networks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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


def mlp() -> nn.Module:
    """784-100-100 of Permuted MNIST."""
    return nn.Sequential(_linear(784, 100), nn.ReLU(), _linear(100, 100), nn.ReLU())


def lenet(channels: int, first: int, second: int, third: int, features: int) -> nn.Module:
    """Two 5×5 convolutions, two linear layers, on 32×32 pixels: small for CIFAR-100 Superclass, large for Omniglot."""
    return nn.Sequential(
        _conv(channels, first, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        _conv(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Flatten(),
        _linear(second * 8 * 8, third), nn.ReLU(),
        _linear(third, features), nn.ReLU(),
    )  # fmt: skip


def linear_part(inputs: int, third: int, features: int) -> nn.Module:
    """The two linear layers of a LeNet alone: where masks weigh most."""
    return nn.Sequential(_linear(inputs, third), nn.ReLU(), _linear(third, features), nn.ReLU())


def alexnet() -> nn.Module:
    """Three convolutions and two linear layers with batch norm and dropout, of CIFAR-100 Split."""
    return nn.Sequential(
        _conv(3, 64, 4), nn.BatchNorm2d(64), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2),
        _conv(64, 128, 3), nn.BatchNorm2d(128), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2),
        _conv(128, 256, 2), nn.BatchNorm2d(256), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2),
        nn.Flatten(),
        _linear(1024, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Dropout(0.5),
        _linear(2048, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Dropout(0.5),
    )  # fmt: skip


def resnet(widths: tuple[int, ...], blocks: int, pool: int) -> nn.Module:
    """Stages of basic blocks: 20/40/80/160 with two each for 5-Datasets; 16/32/64 with three each is ResNet-20."""
    layers: list[nn.Module] = [_conv(3, widths[0], 3, padding=1), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    before = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(Block(before, width, stride=2 if stage and not block else 1))
            before = width
    return nn.Sequential(*layers, nn.AvgPool2d(pool), nn.Flatten())


def tinynet() -> nn.Module:
    """Four convolutions of 160 channels with stride 2, two linear layers, on 64×64 pixels, of TinyImageNet."""
    layers: list[nn.Module] = []
    for channels in (3, 160, 160, 160):
        layers += [_conv(channels, 160, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.Flatten(), _linear(160 * 4 * 4, 640), nn.ReLU(), _linear(640, 640), nn.ReLU()
    )  # fmt: skip


class Block(nn.Module):
    """The basic block: two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        self.first, self.second = _conv(before, width, 3, stride, 1), _conv(width, width, 3, 1, 1)
        self.first_norm, self.second_norm = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != width:
            self.shortcut = nn.Sequential(_conv(before, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, inputs: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(inputs)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(inputs))


MLP = Net("MLP 784-100-100", mlp, (784,), 10, 88_400)
LENET_SMALL = Net("LeNet small", partial(lenet, 3, 20, 50, 800, 500), (3, 32, 32), 64, 2_986_500, classes=5)
LENET_LARGE = Net("LeNet large", partial(lenet, 1, 64, 128, 2500, 1500), (1, 32, 32), 64, 24_436_400, classes=12)
ALEXNET = Net("AlexNet", alexnet, (3, 32, 32), 64, 6_499_328)
RESNET18 = Net("ResNet-18 reduced", partial(resnet, (20, 40, 80, 160), 2, 2), (3, 32, 32), 64, 1_090_140)
TINYNET = Net("TinyNet", tinynet, (3, 64, 64), 10, 2_743_520, classes=5)
RESNET20 = Net("ResNet-20", partial(resnet, (16, 32, 64), 3, 8), (3, 32, 32), 64, 270_256)
SMALL_LINEAR = Net("  its linear layers", partial(linear_part, 3200, 800, 500), (3200,), 64, 2_960_000, classes=5)
LARGE_LINEAR = Net("  its linear layers", partial(linear_part, 8192, 2500, 1500), (8192,), 64, 24_230_000, classes=12)
NETS = [MLP, LENET_SMALL, LENET_LARGE, ALEXNET, RESNET18, TINYNET, RESNET20, SMALL_LINEAR, LARGE_LINEAR]


def _conv(before: int, after: int, size: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    return nn.Conv2d(before, after, size, stride, padding, bias=False)


def _linear(before: int, after: int) -> nn.Linear:
    return nn.Linear(before, after, bias=False)
