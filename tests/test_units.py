"""Units: what is said of the flow of units is what a probe of the module finds."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.backbones.resnet import Block, resnet
from forgetfree.units import Feed, Wiring, along, ends, layer_at, wiring


class Net(nn.Module):
    """A module by its layers and a function of them and the inputs."""

    def __init__(self, run: Callable[..., Tensor], **layers: nn.Module):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.run(self, inputs)


def conv(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, padding=1)


def chain(*behind: nn.Module, width: int = 6) -> nn.Module:
    """Two convolutions with something between them."""
    return nn.Sequential(conv(2, width), *behind, conv(width, 3))


def functional(net: nn.Module, images: Tensor) -> Tensor:
    hidden = F.max_pool2d(F.relu(net.one(images)), 2)
    hidden = hidden + F.dropout(torch.tanh(net.two(hidden)), 0.3, net.training) / 2
    return net.three(hidden.view(hidden.size(0), -1))


def averaged(net: nn.Module, images: Tensor) -> Tensor:
    return net.two(F.gelu(net.one(images)).mean(dim=(2, 3)))


def flattened_late(net: nn.Module, images: Tensor) -> Tensor:
    return net.two(torch.relu(net.one(images)).flatten(2).sum(-1))


IMAGES = (2, 8, 8)
KNOWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Feed | None]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 4)),
        (5,),
        {"0": None, "3": Feed(("0",), 1)},
    ),
    "lenet": (
        lambda: nn.Sequential(
            conv(2, 4), nn.ReLU(), nn.MaxPool2d(3, 2, 1), conv(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3)
        ),
        IMAGES,
        {"0": None, "3": Feed(("0",), 1), "6": Feed(("3",), 16)},
    ),
    "residual": (
        lambda: resnet((3, 4), blocks=1, pool=2),
        (3, 8, 8),
        {
            "0": None,
            "3.first": Feed(("0",), 1),
            "3.second": Feed(("3.first",), 1),
            "4.first": Feed(("3.second", "0"), 1),
            "4.second": Feed(("4.first",), 1),
            "4.shortcut.0": Feed(("3.second", "0"), 1),
        },
    ),
    "functional": (
        lambda: Net(functional, one=conv(2, 4), two=conv(4, 4), three=nn.Linear(64, 3)),
        IMAGES,
        {"one": None, "two": Feed(("one",), 1), "three": Feed(("one", "two"), 16)},
    ),
    "averaged": (
        lambda: Net(averaged, one=conv(2, 4), two=nn.Linear(4, 3)),
        IMAGES,
        {"one": None, "two": Feed(("one",), 1)},
    ),
    "flattened late": (
        lambda: Net(flattened_late, one=conv(2, 4), two=nn.Linear(4, 3)),
        IMAGES,
        {"one": None, "two": Feed(("one",), 1)},
    ),
    "grouped": (
        lambda: nn.Sequential(conv(2, 4), nn.ReLU(), nn.Conv2d(4, 6, 1, groups=2)),
        IMAGES,
        {"0": None, "2": Feed(("0",), 1)},
    ),
    "batch norm without weights": (
        lambda: chain(nn.BatchNorm2d(6, affine=False), nn.ReLU()),
        IMAGES,
        {"0": None, "3": Feed(("0",), 1)},
    ),
}


def given_to(module: nn.Module, wired: Wiring, gates: dict[str, Tensor], inputs: Tensor) -> dict[str, Tensor]:
    """What each layer is given, [inputs, everything else], when these gates are where they belong."""
    module, given = copy.deepcopy(module), {}
    for layer, host in wired.hosts.items():
        part = layer_at(module, layer)

        factor = along(part, gates[layer])

        def multiply(_: nn.Module, __: object, out: Tensor, factor: Tensor = factor) -> Tensor:
            return out * factor

        def listen(_: nn.Module, args: tuple[Tensor, ...], layer: str = layer) -> None:
            given[layer] = args[0].transpose(0, 1).flatten(1)

        module.get_submodule(host).register_forward_hook(multiply)
        part.register_forward_pre_hook(listen)
    with torch.no_grad():
        module(inputs)
    return given


@pytest.mark.parametrize("kind", KNOWN)
def test_feeds_are_known_and_a_probe_finds_the_same(kind: str) -> None:
    """With some units closed, the inputs of a layer that are zero are those that only closed units feed."""
    build, shape, feeds = KNOWN[kind]
    torch.manual_seed(0)
    module = build().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d) and part.affine:
            nn.init.normal_(part.bias)  # zero would hide a gate on the wrong side
    wired, inputs = wiring(module), torch.randn(9, *shape)
    assert wired.feeds == feeds
    for layer, feed in feeds.items():
        closed = opened = 0
        for _ in range(9 if feed is not None else 0):
            gates = {name: torch.ones(count) for name, count in wired.units.items()}
            for source in feed.layers:
                gates[source] = (torch.rand(wired.units[source]) > 0.7).float()
            found, claimed = (given_to(module, wired, gates, inputs)[layer] != 0).any(1), wired.into(layer, gates) != 0
            assert not (found & ~claimed).any(), layer
            closed, opened = closed + int((~claimed).sum()), opened + int((found & claimed).sum())
        assert feed is None or (closed and opened), "nothing was put to the test"


UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "sigmoid of zero is a half": lambda: chain(nn.Sigmoid()),
    "a norm behind an activation": lambda: chain(nn.ReLU(), nn.BatchNorm2d(6)),
    "a norm of fewer channels": lambda: chain(nn.Flatten(2), nn.Linear(64, 64), nn.Unflatten(2, (8, 8))),
    "a layer norm": lambda: chain(nn.LayerNorm([6, 8, 8])),
    "a number added": lambda: Net(lambda net, x: net.two(net.one(x) + 1), one=conv(2, 6), two=conv(6, 3)),
    "concatenated": lambda: Net(
        lambda net, x: net.two(torch.cat([net.one(x), net.one(x)], 1)), one=conv(2, 6), two=conv(12, 3)
    ),
    "permuted": lambda: Net(
        lambda net, x: net.two(net.one(x).permute(0, 2, 3, 1)), one=conv(2, 6), two=nn.Linear(6, 3)
    ),
    "mean over channels": lambda: Net(
        lambda net, x: net.two(net.one(x).mean(1).flatten(1)), one=conv(2, 8), two=nn.Linear(64, 3)
    ),
    "last axis of an image": lambda: Net(lambda net, x: net.two(net.one(x)), one=conv(2, 8), two=nn.Linear(8, 3)),
    "the input beside it": lambda: Net(lambda net, x: net.two(net.one(x) + x), one=conv(2, 2), two=conv(2, 3)),
    "a branch by values": lambda: Net(
        lambda net, x: net.two(net.one(x)) if x.sum() > 0 else net.two(x), one=conv(2, 2), two=conv(2, 3)
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_is_not_surely_zero_is_unknown(kind: str) -> None:
    wired = wiring(UNKNOWN[kind]())
    assert list(wired.feeds.values())[-1] is None
    assert len(wired.units) >= 2


def test_a_gate_sits_behind_a_norm_of_single_units_and_before_one_that_mixes_them() -> None:
    layers = [conv(2, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 4), nn.GroupNorm(2, 4), nn.Flatten()]
    last = [nn.Linear(256, 6), nn.InstanceNorm1d(6), nn.LayerNorm(6)]
    assert wiring(nn.Sequential(*layers, *last)).hosts == {"0": "1", "3": "3", "6": "7"}
    block = wiring(Block(3, 4, stride=2, norm="task"))
    assert block.hosts == {"first": "first_norm", "second": "second_norm", "shortcut.0": "shortcut.1"}


def test_a_gate_stays_on_a_layer_whose_output_goes_elsewhere_too() -> None:
    def run(net: nn.Module, x: Tensor) -> Tensor:
        hidden = net.one(x)
        return net.norm(hidden) + hidden

    assert wiring(Net(run, one=conv(2, 4), norm=nn.BatchNorm2d(4))).hosts == {"one": "one"}


def test_one_norm_of_two_layers_hosts_neither() -> None:
    def run(net: nn.Module, x: Tensor) -> Tensor:
        return net.norm(net.one(x)) + net.norm(net.two(x))

    wired = wiring(Net(run, one=conv(2, 4), two=conv(2, 4), norm=nn.BatchNorm2d(4)))
    assert wired.hosts == {"one": "one", "two": "two"}


def test_a_tied_weight_and_a_subclass_have_no_units() -> None:
    class Own(nn.Linear):
        pass

    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    two.weight = one.weight
    assert wiring(nn.Sequential(one, two, Own(4, 4), nn.Linear(4, 2))).units == {"3": 2}


def test_a_forward_with_defaults_is_not_followed() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, rows: Tensor, gate: Tensor | None = None) -> Tensor:
            return self.two(rows if gate is None else self.one(rows))

    assert wiring(Optional()).feeds == {"one": None, "two": None}


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(4, 6), nn.Conv2d(4, 6, 3), nn.Conv2d(4, 6, 3, groups=2), nn.Conv1d(6, 6, 1, groups=6),
        nn.ConvTranspose2d(4, 6, 2), nn.ConvTranspose2d(4, 6, 2, groups=2),
    ],
    ids=str,
)  # fmt: skip
def test_both_ends_of_a_weight_are_the_unit_and_the_input_that_it_connects(layer: nn.Module) -> None:
    """By the gradient: a weight moves output o when input i is given exactly where both ends say so."""
    inputs = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
    outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    positions = layer.weight.dim() - 2
    for i in range(inputs):
        for o in range(outputs):
            given = torch.zeros(1, inputs, *[4] * positions)
            given[:, i] = 1
            layer.zero_grad()
            layer(given)[:, o].sum().backward()
            out, into = ends(layer, torch.eye(outputs)[o], torch.eye(inputs)[i])
            claimed = torch.minimum(out, into).expand_as(layer.weight) != 0
            assert torch.equal(layer.weight.grad != 0, claimed)


def test_unknown_inputs_count_as_one() -> None:
    layer = nn.Conv2d(4, 6, 3, groups=2)
    out, into = ends(layer, torch.arange(6.0), None)
    assert torch.equal(torch.minimum(out, into).flatten(), torch.tensor([0.0, 1, 1, 1, 1, 1]))


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_of_the_laboratory_is_followed_from_the_second_layer_on(name: str) -> None:
    wired: Wiring = wiring(BACKBONES[name]())
    assert [layer for layer, feed in wired.feeds.items() if feed is None] == [next(iter(wired.units))]
