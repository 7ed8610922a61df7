"""The multi-layer perceptron of Permuted MNIST: 784-100-100, no biases (88 400 weights)."""

from itertools import pairwise

from torch import nn

from forgetfree.modules import named_backbone


@named_backbone
def mlp(*, inputs: int = 784, hidden: tuple[int, ...] = (100, 100), bias: bool = False) -> nn.Module:
    """Linear layers with a ReLU after each; the last one's values are the features."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width, next_width in pairwise((inputs, *hidden)):
        layers += [nn.Linear(width, next_width, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers)
