"""BACKBONES: plain modules from inputs to features, by name; what builds one is imported when it is asked for."""

from forgetfree.registry import Entry, Table

_ENTRIES = {
    "mlp": Entry(
        "forgetfree.lab.backbones.mlp:mlp",
        "Linear layers with a ReLU after each; the last one's values are the features.",
    ),
    "lenet": Entry(
        "forgetfree.lab.backbones.lenet:lenet",
        "Two 5×5 convolutions and two linear layers, on 32×32 pixels.",
    ),
    "alexnet": Entry(
        "forgetfree.lab.backbones.alexnet:alexnet",
        "Three convolutions and two linear layers with batch norms and dropout, on 3×32×32 pixels.",
    ),
    "resnet18_reduced": Entry(
        "forgetfree.lab.backbones.resnet:resnet18_reduced",
        "Four stages of two blocks, 20/40/80/160 channels, on 3×32×32 pixels: 1 090 140 weights beside the "
        "batch norms.",
    ),
    "tinynet": Entry(
        "forgetfree.lab.backbones.tinynet:tinynet",
        "Four convolutions of 160 channels with stride 2 and two linear layers, on 3×64×64 pixels.",
    ),
    "resnet18": Entry(
        "forgetfree.lab.backbones.basic_resnet:resnet18",
        "Four stages of two blocks, 64/128/256/512 channels, 512 features: 11 159 232 weights beside the batch norms.",
    ),
    "resnet20": Entry(
        "forgetfree.lab.backbones.basic_resnet:resnet20",
        "Three stages of three blocks, 16/32/64 channels, 64 features: 270 256 weights beside the batch norms.",
    ),
    "conv4": Entry(
        "forgetfree.lab.backbones.conv4:conv4",
        "Four 3×3 convolutions with batch norms, each halving the image; width·2·2 features from 32×32 pixels.",
    ),
}

BACKBONES: Table[Entry] = Table("backbones", _ENTRIES)
