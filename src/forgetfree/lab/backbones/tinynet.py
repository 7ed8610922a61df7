"""The network of TinyImageNet (Table 2): no biases, no batch norms, 2 743 520 weights."""

from torch import nn

from forgetfree.modules import named_backbone


@named_backbone
def tinynet() -> nn.Module:
    """Four convolutions of 160 channels with stride 2 and two linear layers, on 3×64×64 pixels."""
    layers: list[nn.Module] = []
    for channels in (3, 160, 160, 160):
        layers += [nn.Conv2d(channels, 160, 3, stride=2, padding=1, bias=False), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(160 * 4 * 4, 640, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(640, 640, bias=False), nn.ReLU())
