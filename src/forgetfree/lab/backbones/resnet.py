"""Residual networks, no biases: ResNet-18 with a third of the channels, of 5-Datasets (Table 1)."""

from torch import Tensor, nn
from torch.nn import functional as F

from forgetfree.lab.backbones.alexnet import Norm, norm_settings
from forgetfree.modules import named_backbone


@named_backbone
def resnet18_reduced(*, norm: Norm = "task") -> nn.Module:
    """Four stages of two blocks, 20/40/80/160 channels, on 3×32×32 pixels: 1 090 140 weights beside the batch norms."""
    return resnet((20, 40, 80, 160), blocks=2, pool=2, norm=norm)


def resnet(widths: tuple[int, ...], *, blocks: int, pool: int, norm: Norm = "task") -> nn.Module:
    """A stage of so many basic blocks for each width, all but the first of stride 2; then an average over pool×pool."""
    first = widths[0]
    layers = [nn.Conv2d(3, first, 3, padding=1, bias=False), nn.BatchNorm2d(first, **norm_settings(norm)), nn.ReLU()]
    before = first
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(Block(before, width, stride=2 if stage and not block else 1, norm=norm))
            before = width
    return nn.Sequential(*layers, nn.AvgPool2d(pool), nn.Flatten())


class Block(nn.Module):
    """The basic block: two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, before: int, width: int, *, stride: int, norm: Norm):
        super().__init__()
        kind = norm_settings(norm)
        self.first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width, **kind)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width, **kind)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != width:
            projection = nn.Conv2d(before, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(width, **kind))

    def forward(self, inputs: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(inputs)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(inputs))
