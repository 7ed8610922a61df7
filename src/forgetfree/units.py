"""Units: the outputs of linear and convolution layers, where a gate on them belongs, and which layers they feed.

A gate is a factor per unit. It sits on the layer's output; where a batch or instance norm takes that output and nothing
else does, it sits on the norm's, since such a norm would undo a factor before it. A layer norm mixes units, so what is
gated out must be gone before it.

Zero is what counts: a unit behind a closed gate is exactly zero, and `feeds` follows it to the next layers as long as
it surely stays zero and in its place: through activations with f(0) = 0, dropout, pooling, flattening and additions.
What is not followed (the network's input, concatenations, a norm or a sigmoid behind a gate, a forward that torch.fx
cannot trace) is unknown, and unknown inputs count as used by everybody. Without a trace, every gate sits on its layer.
"""

import inspect
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from forgetfree.modules import copy_module

Layer = nn.Linear | nn.modules.conv._ConvNd
TRANSPOSED: dict[type[nn.Module], int] = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}
POSITIONS: dict[type[nn.Module], int] = {nn.Linear: 0, nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3, **TRANSPOSED}
"""Layers with units, and how many axes of positions lie behind the axis of their units."""
UNIT_BY_UNIT = nn.modules.batchnorm._NormBase
"""Batch and instance norms: every unit by itself."""


@dataclass(frozen=True)
class Feed:
    """Whose units a layer takes: several layers where they are added up, each unit `repeat` times in a row."""

    layers: tuple[str, ...]
    repeat: int


@dataclass(frozen=True)
class Wiring:
    """The layers of a module that have units, by name."""

    units: Mapping[str, int]
    hosts: Mapping[str, str]
    """The module on whose output the gate of each layer sits: the layer itself, or the norm behind it."""
    feeds: Mapping[str, Feed | None]

    def into(self, layer: str, of_units: Mapping[str, Tensor]) -> Tensor | None:
        """A value for each input of `layer`, the largest of the units that feed it; None where they are unknown."""
        feed = self.feeds[layer]
        if feed is None:
            return None
        largest = torch.stack([of_units[other] for other in feed.layers]).amax(0)
        return largest.repeat_interleave(feed.repeat)


def wiring(module: nn.Module) -> Wiring:
    """How the units of `module` hang together; a layer whose weight is tied to another has none."""
    homes: dict[int, int] = {}
    for part in module.modules():
        for parameter in part._parameters.values():
            homes[id(parameter)] = homes.get(id(parameter), 0) + 1
    units = {
        path: part.out_features if isinstance(part, nn.Linear) else cast(int, part.out_channels)
        for path, part in module.named_modules()
        if type(part) in POSITIONS and all(homes[id(value)] == 1 for value in part.parameters(recurse=False))
    }
    graph = _traced(module)
    hosts = {path: path for path in units}
    if graph is not None:
        hosts |= _norms_behind(graph, module, units)
    return Wiring(units, hosts, _feeds(graph, module, units, hosts))


def along(layer: Layer, values: Tensor) -> Tensor:
    """One value per unit, in the shape that multiplies the output of `layer`."""
    return values.view(-1, *[1] * POSITIONS[type(layer)])


def ends(layer: Layer, out: Tensor, into: Tensor | None) -> tuple[Tensor, Tensor]:
    """A value per unit and one per input (None: one), in shapes that meet at the weight of `layer`."""
    weight, groups = layer.weight, getattr(layer, "groups", 1)
    behind = [1] * (weight.dim() - 2)

    def rows(values: Tensor) -> Tensor:
        return values.view(-1, 1, *behind)

    def columns(values: Tensor) -> Tensor:
        each = values.view(groups, -1).repeat_interleave(len(weight) // groups if groups > 1 else 1, 0)
        return each.view(*each.shape, *behind)

    outward, inward = (columns, rows) if type(layer) in TRANSPOSED else (rows, columns)
    return outward(out), inward(into) if into is not None else out.new_ones([1] * weight.dim())


def layer_at(module: nn.Module, path: str) -> Layer:
    """The layer of a `Wiring`, in a module of that structure."""
    return cast(Layer, module.get_submodule(path))


def _traced(module: nn.Module) -> fx.Graph | None:
    """What an answer computes, step by step; None where that depends on more than torch.fx can see."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(parameter.default is not parameter.empty for parameter in parameters):
        return None  # which branch a call takes is not known here
    shadow = copy_module(module, lambda _, tensor: torch.empty_like(tensor, device="meta")).eval()
    try:
        return fx.Tracer().trace(shadow)
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError):
        return None  # control flow, writing to itself: whatever a forward may do


def _norms_behind(graph: fx.Graph, module: nn.Module, units: Mapping[str, int]) -> dict[str, str]:
    """The norm of each layer whose output goes to that norm and nowhere else."""
    takers: dict[str, set[str | None]] = {}
    givers: dict[str, set[str | None]] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            takers.setdefault(node.target, set()).update(_module_of(user) for user in node.users)
            givers.setdefault(node.target, set()).add(_module_of(node.args[0]) if node.args else None)
    behind = {}
    for layer, count in units.items():
        norm = next(iter(takers.get(layer, {None})))
        fits = norm is not None and takers[layer] == {norm} and givers[norm] == {layer}
        part = module.get_submodule(norm) if fits and norm else None
        if norm and isinstance(part, UNIT_BY_UNIT) and part.num_features == count:
            behind[layer] = norm
    return behind


def _module_of(node: Any) -> str | None:
    return cast(str, node.target) if isinstance(node, fx.Node) and node.op == "call_module" else None


@dataclass(frozen=True)
class _Flow:
    """A value in the graph that is zero where the units of some layers are."""

    layers: tuple[str, ...]
    positions: int
    """Axes behind that of the units; with none, the units lie on the last axis."""
    flat: bool = False
    """Whether positions were flattened into the axis of the units."""


def _feeds(
    graph: fx.Graph | None, module: nn.Module, units: Mapping[str, int], hosts: Mapping[str, str]
) -> dict[str, Feed | None]:
    owner = {host: layer for layer, host in hosts.items()}
    flows: dict[Any, _Flow | None] = {}
    seen: dict[str, list[Feed | None]] = {}
    for node in graph.nodes if graph is not None else ():
        given = flows.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
        path = _module_of(node)
        if path is not None and path in units:
            seen.setdefault(path, []).append(_taken(layer_at(module, path), given, units))
        if path in owner:
            flows[node] = _Flow((owner[path],), POSITIONS[type(module.get_submodule(owner[path]))])
        elif path is not None:
            flows[node] = _through_module(module.get_submodule(path), given)
        elif node.target in ADDITIONS:
            flows[node] = _added([flows.get(arg) for arg in node.args[:2]], units, node)
            if node.target == "add_":
                flows[node.args[0]] = flows[node]
        else:
            flows[node] = _through_function(node, given)
    return {layer: _joined(seen.get(layer, [])) for layer in units}


def _taken(layer: Layer, flow: _Flow | None, units: Mapping[str, int]) -> Feed | None:
    """What `layer` takes if it is given this."""
    if flow is None or flow.positions != POSITIONS[type(layer)]:
        return None
    inputs = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
    repeat, rest = divmod(inputs, units[flow.layers[0]])
    return Feed(flow.layers, repeat) if repeat and not rest and (flow.flat or repeat == 1) else None


def _joined(feeds: list[Feed | None]) -> Feed | None:
    """The feed of a layer that is called at several places."""
    known = [feed for feed in feeds if feed is not None]
    if not known or len(known) < len(feeds) or len({feed.repeat for feed in known}) > 1:
        return None
    return Feed(tuple(dict.fromkeys(layer for feed in known for layer in feed.layers)), known[0].repeat)


KEEP_ZERO = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Tanh, nn.Softsign, nn.Hardswish, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
)  # fmt: skip
FUNCTIONS_KEEP_ZERO: set[Any] = {
    F.relu, F.relu_, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.tanh, F.softsign,
    F.hardswish, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.relu, torch.relu_, torch.tanh, torch.neg,
    operator.neg, "relu", "relu_", "tanh", "neg", "contiguous", "clone",
}  # fmt: skip
POOLS: dict[Any, int] = {
    kind: dims
    for dims in (1, 2, 3)
    for prefix in ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool")
    for kind in (
        getattr(nn, f"{prefix}{dims}d"),
        getattr(F, f"{prefix.replace('Pool', '_pool').replace('Adaptive', 'adaptive_').lower()}{dims}d"),
    )
}
ADDITIONS = {operator.add, operator.sub, torch.add, torch.sub, "add", "add_", "sub"}
SCALINGS = {operator.mul, operator.truediv, torch.mul, torch.div, "mul", "div"}
REDUCTIONS = {torch.mean, torch.sum, torch.amax, "mean", "sum", "amax"}
FLATTENINGS = {torch.flatten, "flatten"}
RESHAPINGS = {torch.reshape, "view", "reshape"}


def _through_module(part: nn.Module, flow: _Flow | None) -> _Flow | None:
    if flow is None:
        return None
    if type(part) is nn.Flatten:
        return _flattened(flow, part.start_dim, part.end_dim)
    fits = type(part) in KEEP_ZERO or POOLS.get(type(part)) == flow.positions
    return flow if fits else None


def _through_function(node: fx.Node, flow: _Flow | None) -> _Flow | None:
    target, rest = node.target, node.args[1:]
    if flow is None or node.op not in ("call_function", "call_method"):
        return None
    if target in FUNCTIONS_KEEP_ZERO or POOLS.get(target) == flow.positions:
        return flow
    if target in SCALINGS and len(rest) == 1 and isinstance(rest[0], int | float):
        return flow
    if target in FLATTENINGS:
        start, end = _arguments(node, start_dim=0, end_dim=-1)
        return _flattened(flow, start, end)
    if target in RESHAPINGS and len(rest) == 2 and rest[1] == -1 and _is_batch_size(rest[0]):
        return _flattened(flow, 1, -1)
    if target in REDUCTIONS:
        axes, kept = _arguments(node, dim=None, keepdim=False)
        return _reduced(flow, axes, kept)
    return None


def _arguments(node: fx.Node, **defaults: Any) -> list[Any]:
    """The arguments of a call after its tensor."""
    by_position = dict(zip(defaults, node.args[1:], strict=False))
    return [node.kwargs.get(name, by_position.get(name, default)) for name, default in defaults.items()]


def _added(flows: list[_Flow | None], units: Mapping[str, int], node: fx.Node) -> _Flow | None:
    known = [flow for flow in flows if flow is not None]
    alike = {(flow.positions, flow.flat, units[flow.layers[0]]) for flow in known}
    if len(known) < 2 or len(alike) > 1 or node.kwargs.keys() - {"alpha"}:
        return None
    return replace(known[0], layers=tuple(dict.fromkeys(layer for flow in known for layer in flow.layers)))


def _flattened(flow: _Flow, start: Any, end: Any) -> _Flow | None:
    if end != -1 or start not in (1, 2):
        return None
    if start == 1:
        return replace(flow, positions=0, flat=flow.flat or flow.positions > 0)
    return replace(flow, positions=1) if flow.positions else None


def _reduced(flow: _Flow, axes: Any, kept: Any) -> _Flow | None:
    """After a sum or mean over positions; over units or rows nothing is known."""
    listed = [axes] if isinstance(axes, int) else list(axes) if isinstance(axes, tuple | list) else []
    if not listed or not all(isinstance(axis, int) for axis in listed):
        return None
    over = {axis % (2 + flow.positions) for axis in listed if -2 - flow.positions <= axis < 2 + flow.positions}
    if not flow.positions or over & {0, 1} or len(over) != len(listed):
        return None
    return flow if kept else replace(flow, positions=flow.positions - len(over))


def _is_batch_size(value: Any) -> bool:
    """x.size(0) or x.shape[0]."""
    if not isinstance(value, fx.Node):
        return False
    if value.target == "size":
        return value.args[1:] == (0,)
    whole = value.args[0] if value.target is operator.getitem and value.args[1:] == (0,) else None
    return isinstance(whole, fx.Node) and whole.target is getattr and whole.args[1:] == ("shape",)
