"""BACKBONES: plain modules from inputs to features, name → function of their sizes."""

from collections.abc import Callable

from torch import nn

from forgetfree.lab.backbones.alexnet import alexnet
from forgetfree.lab.backbones.basic_resnet import resnet18, resnet20
from forgetfree.lab.backbones.conv4 import conv4
from forgetfree.lab.backbones.lenet import lenet
from forgetfree.lab.backbones.mlp import mlp
from forgetfree.lab.backbones.resnet import resnet18_reduced
from forgetfree.lab.backbones.tinynet import tinynet

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "lenet": lenet,
    "alexnet": alexnet,
    "resnet18_reduced": resnet18_reduced,
    "tinynet": tinynet,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "conv4": conv4,
}
