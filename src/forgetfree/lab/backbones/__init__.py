"""BACKBONES: plain modules from inputs to features, name → function of their sizes."""

from forgetfree.lab.backbones.mlp import mlp

BACKBONES = {
    "mlp": mlp,
}
