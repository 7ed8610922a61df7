"""The residual networks of few-shot class-incremental learning, parameters named as in torchvision.

ResNet-18 is the paper's network; ResNet-20 is that of the baselines on CIFAR-100, forty times smaller. The block of
`resnet.py` computes the same under other names: archives know those, and files of ImageNet weights know these.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forgetfree.errors import InputError
from forgetfree.lab.backbones.weights import archived_without_file, convolution, starting_from
from forgetfree.modules import named_backbone

Stem = Literal["cifar", "imagenet"]


@archived_without_file
@named_backbone
def resnet18(*, stem: Stem = "cifar", channels: int = 3, init: str | None = None) -> nn.Module:
    """Four stages of two blocks, 64/128/256/512 channels, 512 features: 11 159 232 weights beside the batch norms.

    The stem is 3×3 for images of 32×32, or that of ImageNet: 7×7 with stride 2, then a max-pool. The mean over all
    positions makes any size fit. `init` is a safetensors file of weights by name; without it they are drawn.
    """
    if stem not in ("cifar", "imagenet"):
        raise InputError(f"the stem of a ResNet-18 is 'cifar' or 'imagenet'; got {stem!r}.")
    return starting_from(init, ResNet((64, 128, 256, 512), blocks=2, channels=channels, stem=stem))


@archived_without_file
@named_backbone
def resnet20(*, channels: int = 3, init: str | None = None) -> nn.Module:
    """Three stages of three blocks, 16/32/64 channels, 64 features: 270 256 weights beside the batch norms.

    Shortcuts that change the shape are 1×1 convolutions (option B of the ResNet paper). `init` as for `resnet18`.
    """
    return starting_from(init, ResNet((16, 32, 64), blocks=3, channels=channels, stem="cifar"))


class ResNet(nn.Module):
    """A stem, a stage of basic blocks for each width, all but the first of stride 2, and the mean over positions."""

    def __init__(self, widths: tuple[int, ...], *, blocks: int, channels: int, stem: Stem):
        super().__init__()
        size, stride, padding = (3, 1, 1) if stem == "cifar" else (7, 2, 3)
        before = widths[0]
        self.conv1 = convolution(channels, before, size, stride=stride, padding=padding)
        self.bn1 = nn.BatchNorm2d(before)
        self.maxpool = nn.Identity() if stem == "cifar" else nn.MaxPool2d(3, 2, 1)
        self.stages = [f"layer{number}" for number in range(1, len(widths) + 1)]
        for stage, width in zip(self.stages, widths, strict=True):
            first = BasicBlock(before, width, stride=1 if stage == "layer1" else 2)
            rest = [BasicBlock(width, width, stride=1) for _ in range(blocks - 1)]
            self.add_module(stage, nn.Sequential(first, *rest))
            before = width

    def forward(self, images: Tensor) -> Tensor:
        # stored pixel by pixel: a CPU convolves these a fifth faster
        values = images.to(memory_format=torch.channels_last)
        values = self.maxpool(F.relu(self.bn1(self.conv1(values))))
        for stage in self.stages:
            values = self.get_submodule(stage)(values)
        return torch.flatten(F.adaptive_avg_pool2d(values, 1), 1)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, before: int, width: int, *, stride: int):
        super().__init__()
        self.conv1 = convolution(before, width, 3, stride=stride, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or before != width:
            self.downsample = nn.Sequential(convolution(before, width, 1, stride=stride), nn.BatchNorm2d(width))

    def forward(self, inputs: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(inputs)))
        return F.relu(self.bn2(self.conv2(inner)) + self.downsample(inputs))
