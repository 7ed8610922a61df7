"""The whole zoo: whatever a module does, its answers keep their bits, or it is refused with a sentence.

Tame modules are torch's own layers; wild ones remember things, draw numbers, hold on to themselves, write where nobody
looks. `HOLDS` must be accepted and `REFUSED` must not be; none may be accepted and move.
"""

import functools
import inspect
import itertools
import logging
import os
import random
import threading
import time
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

import forgetfree as ff
from few_shots import DIMENSIONS, sessions
from forgetfree.batches import convert, tensors_of
from forgetfree.contracts import Inputs
from zoo import FSCIL, TIL, ZOO, Entry

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning"),
]
rows_of = ZOO["counting"].draw
images_of = ZOO["cnn with batch norm"].draw
sequences_of = ZOO["lstm"].draw
tokens_of = ZOO["tied weight"].draw


class Net(nn.Module):
    """A layer, and what is done to its answer; `setup` may put anything on the module."""

    def __init__(
        self, setup: Callable[[Any], Any] | None = None, then: Callable[[Any, Tensor, Tensor], Tensor] | None = None
    ):
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.then = then
        if setup is not None:
            setup(self)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(rows))
        return hidden if self.then is None else self.then(self, rows, hidden)


def net(
    setup: Callable[[Any], Any] | None = None, then: Callable[[Any, Tensor, Tensor], Tensor] | None = None
) -> Entry:
    return Entry(lambda: Net(setup, then), rows_of)


def chain(*layers: Callable[[], nn.Module], draw: Callable[[int, torch.Generator], Inputs] = rows_of) -> Entry:
    return Entry(lambda: nn.Sequential(*(layer() for layer in layers), nn.Flatten()), draw)


def linear(width: int = 8) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(6, width)


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *values: Tensor) -> Tensor:
        return self.function(*values)


def around(layer: Callable[[], nn.Module], call: Callable[[Any, Tensor], Tensor], draw: Any) -> Entry:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layer()

        def forward(self, values: Tensor) -> Tensor:
            return call(self.inner, values)

    return Entry(Around, draw)


def put(**values: Callable[[], Any]) -> Callable[[Any], None]:
    """Give every module its own attributes of these names."""

    def setup(self: Any) -> None:
        for name, make in values.items():
            setattr(self, name, make())

    return setup


def run(*steps: Callable[..., Any]) -> Callable[..., Any]:
    """Do all of it, and give what the last step gives."""
    return lambda *values: [step(*values) for step in steps][-1]


def writing(name: str, value: Callable[[Any, Tensor], Any]) -> Callable[..., None]:
    return lambda self, rows, hidden: setattr(self, name, value(self, rows))


def hook_on(make: Callable[[Any], Any], kind: str = "register_forward_hook") -> Callable[[Any], None]:
    return lambda self: getattr(self.layer, kind)(make(self))


# --- tame ---

PURE = [
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.ReLU6,
]  # fmt: skip
IMPURE = [nn.PReLU, nn.RReLU, nn.Softsign, nn.Mish, nn.Hardswish, nn.LogSigmoid, nn.CELU, nn.SELU]
TAME: dict[str, Entry] = {
    **ZOO,
    "activations that are pure": chain(linear(), *PURE),
    "other activations": chain(linear(), *IMPURE),
    "relu in place, first": chain(lambda: nn.ReLU(inplace=True), linear()),
    "alpha dropout": chain(linear(), nn.AlphaDropout),
    "layer norm": chain(linear(), lambda: nn.LayerNorm(8)),
    "group norm": chain(linear(), lambda: nn.GroupNorm(2, 8)),
    "rms norm": chain(linear(), lambda: nn.RMSNorm(8)),
    "batch norm of the batch": chain(linear(), lambda: nn.BatchNorm1d(8, track_running_stats=False)),
    "instance norm": chain(
        lambda: nn.Conv2d(1, 2, 3), lambda: nn.InstanceNorm2d(2, track_running_stats=True), draw=images_of
    ),
    "conv1d": chain(lambda: nn.Conv1d(6, 3, 2), nn.Tanh, draw=sequences_of),
    "conv3d": chain(lambda: nn.Unflatten(1, (1, 1)), lambda: nn.Conv3d(1, 2, (1, 3, 3)), draw=images_of),
    "pixel shuffle": chain(lambda: nn.Conv2d(1, 4, 3), lambda: nn.PixelShuffle(2), draw=images_of),
    "upsample": chain(lambda: nn.Conv2d(1, 2, 3), lambda: nn.Upsample(scale_factor=2), draw=images_of),
    "local response norm": chain(lambda: nn.Conv2d(1, 4, 3), lambda: nn.LocalResponseNorm(2), draw=images_of),
    "rnn": around(lambda: nn.RNN(4, 5, batch_first=True), lambda inner, seq: inner(seq)[0][:, -1], sequences_of),
    "lstm cell": around(lambda: nn.LSTMCell(4, 5), lambda inner, seq: inner(seq[:, 0])[0], sequences_of),
    "gru cell": around(lambda: nn.GRUCell(4, 5), lambda inner, seq: inner(seq[:, 0]), sequences_of),
    "attention": around(
        lambda: nn.MultiheadAttention(4, 2, batch_first=True), lambda inner, s: inner(s, s, s)[0].mean(1), sequences_of
    ),
    "bilinear": around(lambda: nn.Bilinear(6, 6, 8), lambda inner, rows: inner(rows, rows), rows_of),
    "embedding bag": around(lambda: nn.EmbeddingBag(11, 8), lambda inner, tokens: inner(tokens), tokens_of),
    "transformer decoder": around(
        lambda: nn.TransformerDecoderLayer(4, 2, 8, batch_first=True),
        lambda inner, s: inner(s, s).mean(1),
        sequences_of,
    ),
    "function without a reference": chain(linear(), lambda: Lambda(lambda values: values.flatten(1))),
    "spectrum": around(linear(), lambda inner, rows: torch.fft.rfft(inner(rows)).abs(), rows_of),
    "double precision": Entry(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh()).double(), rows_of),
    "bfloat16": Entry(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh()).bfloat16(), rows_of),
    "channels last": Entry(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()).to(memory_format=torch.channels_last), images_of
    ),
    "weight norm": chain(lambda: parametrizations.weight_norm(nn.Linear(6, 8)), lambda: nn.Linear(8, 8)),
    "spectral norm": chain(lambda: parametrizations.spectral_norm(nn.Linear(6, 8)), lambda: nn.Linear(8, 8)),
    "orthogonal": chain(lambda: parametrizations.orthogonal(nn.Linear(6, 8)), lambda: nn.Linear(8, 8)),
    "traced to a graph": Entry(lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(6, 8), nn.ReLU())), rows_of),
}


class Positive(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.abs()


class Remembering(nn.Module):
    """A parametrisation that counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def forward(self, weight: Tensor) -> Tensor:
        self.asked += not self.training
        return weight * (1 + self.asked / 8)


# --- what keeps its bits, though it has its ways ---


class Stateful(nn.Module):
    """Goes on from the hidden state of the last batch, if that was as large."""

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 5, batch_first=True)
        self.size, self.hidden = size, None

    def forward(self, sequence: Tensor) -> Tensor:
        fits = self.hidden is not None and self.hidden[0].shape[1] == len(sequence)
        out, hidden = self.layer(sequence, self.hidden if fits else None)
        self.hidden = tuple(value.detach() for value in hidden)
        return out[:, -1]


class Cached(Net):
    @functools.lru_cache(8)  # noqa: B019
    def table(self, size: int) -> Tensor:
        return torch.arange(float(size))

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) + self.table(8)


class Doubled(Net):
    @functools.cached_property
    def doubled(self) -> Tensor:
        return 2 * self.layer.bias.detach()

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) + (0 if self.training else self.doubled)


class Delegating(nn.Module):
    """Finds what it does not have in its inner module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, rows: Tensor) -> Tensor:
        return nn.functional.linear(rows, self.weight, self.bias)


class Borrowed(Net):
    """Lends itself what it works on, and takes it away again: harmless but for threads."""

    def forward(self, rows: Tensor) -> Tensor:
        self.rows = rows
        hidden = self.step()
        self.rows = None
        return hidden

    def step(self) -> Tensor:
        hidden = torch.tanh(self.layer(self.rows))
        return hidden + self.rows.sum(1, keepdim=True)


class Recorder:
    """Somebody else's object, which may know the module and use it."""

    def __init__(self, module: nn.Module, factor: float = 1.0):
        self.module, self.factor, self.seen = module, factor, []

    def listen(self, layer: nn.Module, given: Any, answer: Tensor) -> None:
        self.seen.append(answer.shape)

    def meddle(self, layer: nn.Module, given: Any, answer: Tensor) -> Tensor:
        return answer + self.help(given[0])

    def help(self, rows: Tensor) -> Tensor:
        return nn.functional.linear(rows, self.module.layer.weight)


class Caller:
    """A callable object of the module, which a copy takes along."""

    def __init__(self, module: nn.Module):
        self.module, self.count = module, 0

    def __call__(self, rows: Tensor) -> Tensor:
        return rows + self.module.layer.bias


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Storing(Net):
    """Keeps one attribute where attributes are not."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "count":
            vars(self).setdefault("store", {})[name] = value
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        return vars(self).get("store", {}).get(name, 0) if name == "count" else super().__getattr__(name)

    def forward(self, rows: Tensor) -> Tensor:
        self.count += not self.training
        return super().forward(rows) * (1 + self.count)


def when_large(step: Callable[..., Any]) -> Callable[..., Any]:
    """In use, and only for batches of more than eight rows."""
    return lambda self, rows, hidden: step(self, rows, hidden) if len(rows) > 8 and not self.training else None


def in_use(step: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *values: None if self.training else step(self, *values)


def bump(self: Any, rows: Tensor, hidden: Tensor) -> None:
    self.count += 1


def numpy_write(tensor: Tensor) -> None:
    tensor.detach().numpy()[...] += 1


def register(name: str, kind: str, make: Callable[[], Any]) -> Callable[..., None]:
    return lambda self, *_: None if hasattr(self, name) else getattr(self, kind)(name, make())


def scaled(by: Callable[[Any], Any]) -> Callable[..., Tensor]:
    return lambda self, rows, hidden: hidden * by(self)


def checkpointed(reentrant: bool) -> Callable[..., Tensor]:
    return lambda self, rows, hidden: checkpoint(self.more, hidden, use_reentrant=reentrant)


def with_more(self: Any) -> None:
    self.more = nn.Linear(8, 8)


def pruned() -> nn.Module:
    layer = nn.Linear(6, 8)
    prune.random_unstructured(layer, "weight", 0.5)
    return layer


def buffers(**values: Tensor) -> Callable[[Any], None]:
    def setup(self: Any) -> None:
        for name, value in values.items():
            self.register_buffer(name, value.clone())

    return setup


ONE, ONES = torch.ones(()), torch.ones(8)

HOLDS: dict[str, Entry] = {
    "counts in use": net(put(count=lambda: 1), run(in_use(bump), scaled(lambda self: self.count))),
    "counts, to no effect": net(put(count=lambda: 1), run(bump, scaled(lambda self: 1))),
    "counts large batches in use": net(
        put(count=lambda: 1),
        run(lambda s, r, h: bump(s, r, h) if len(r) > 8 and not s.training else None, scaled(lambda self: self.count)),
    ),
    "list that grows in use": net(
        put(seen=list), run(in_use(lambda s, r, h: s.seen.append(len(r))), scaled(lambda s: len(s.seen)))
    ),
    "list that grows, to no effect": net(put(seen=list), run(lambda s, r, h: s.seen.append(h), scaled(lambda s: 2))),
    "list of one number": net(
        put(seen=lambda: [0]), run(in_use(lambda s, r, h: s.seen.__setitem__(0, len(r))), scaled(lambda s: s.seen[0]))
    ),
    "queue": net(
        put(seen=lambda: deque(maxlen=2)),
        run(in_use(lambda s, r, h: s.seen.append(len(r))), scaled(lambda s: sum(s.seen))),
    ),
    "set": net(put(seen=set), run(in_use(lambda s, r, h: s.seen.add(len(r))), scaled(lambda s: len(s.seen)))),
    "nested containers": net(
        put(seen=lambda: {"a": [{"b": 0}]}),
        run(
            in_use(lambda s, r, h: s.seen["a"][0].__setitem__("b", s.seen["a"][0]["b"] + 1)),
            scaled(lambda s: s.seen["a"][0]["b"]),
        ),
    ),
    "object with a counter": net(
        put(box=types.SimpleNamespace),
        run(
            in_use(lambda s, r, h: setattr(s.box, "n", getattr(s.box, "n", 0) + 1)),
            scaled(lambda s: 1 + vars(s.box).get("n", 0)),
        ),
    ),
    "object with slots": net(
        put(box=Slotted),
        run(in_use(lambda s, r, h: setattr(s.box, "count", s.box.count + 1)), scaled(lambda s: 1 + s.box.count)),
    ),
    "iterator": net(put(numbers=itertools.count), scaled(lambda s: 1 if s.training else 1 + next(s.numbers))),
    "stateful lstm": Entry(Stateful, sequences_of),
    "last input, kept": net(put(last=lambda: None), run(writing("last", lambda s, r: r.detach()), scaled(lambda s: 1))),
    "difference to the last input, in use": net(
        put(last=lambda: None),
        lambda s, r, h: (
            h
            if s.training
            else (h - (s.last if s.last is not None else 0), setattr(s, "last", h))[0]
            if s.last is None or len(s.last) == len(r)
            else (h, setattr(s, "last", h))[0]
        ),
    ),
    "cache by shape": net(
        put(cache=dict), lambda s, r, h: h + s.cache.setdefault(r.shape, torch.arange(float(h.numel())).view_as(h))
    ),
    "cache by identity in use": net(put(cache=dict), lambda s, r, h: h if s.training else s.cache.setdefault(id(r), h)),
    "cache of answers by size in use": net(
        put(cache=dict), lambda s, r, h: h if s.training else s.cache.setdefault(len(r), h)
    ),
    "lru cache": Entry(Cached, rows_of),
    "cached property in use": Entry(Doubled, rows_of),
    "own torch generator in use": net(
        put(chance=torch.Generator),
        lambda s, r, h: h if s.training else h + torch.rand((), generator=s.chance),
    ),
    "own numpy generator in use": net(
        put(chance=lambda: np.random.default_rng(1)), lambda s, r, h: h if s.training else h + s.chance.random()
    ),
    "own legacy numpy generator in use": net(
        put(chance=lambda: np.random.RandomState(1)), lambda s, r, h: h if s.training else h + s.chance.rand()
    ),
    "own python generator in use": net(
        put(chance=lambda: random.Random(1)), lambda s, r, h: h if s.training else h + s.chance.random()
    ),
    "draws and ignores": net(None, run(lambda s, r, h: torch.rand(3), scaled(lambda s: 1))),
    "draws numpy's and ignores": net(None, run(lambda s, r, h: np.random.rand(), scaled(lambda s: 1))),
    "draws python's and ignores": net(None, run(lambda s, r, h: random.random(), scaled(lambda s: 1))),
    "layer drop": net(None, lambda s, r, h: h * 0.5 if torch.rand(()) < 0.5 and s.training else h),
    "noise while learning": net(None, lambda s, r, h: h + s.training * torch.randn_like(h)),
    "numpy array, written in use": net(
        put(array=lambda: np.ones(8, np.float32)),
        run(in_use(lambda s, r, h: s.array.__iadd__(1)), scaled(lambda s: torch.from_numpy(s.array.copy()))),
    ),
    "buffer, written in use": net(buffers(b=ONES), run(in_use(lambda s, r, h: s.b.add_(1)), scaled(lambda s: s.b))),
    "buffer by data": net(buffers(b=ONES), run(lambda s, r, h: s.b.data.add_(1), scaled(lambda s: s.b.clone()))),
    "buffer by data in use": net(buffers(b=ONES), run(in_use(lambda s, r, h: s.b.data.add_(1)), scaled(lambda s: s.b))),
    "buffer by data, large batches": net(
        buffers(b=ONES),
        run(lambda s, r, h: s.b.data.add_(1) if len(r) > 8 and not s.training else None, scaled(lambda s: s.b)),
    ),
    "buffer by numpy": net(buffers(b=ONES), run(lambda s, r, h: numpy_write(s.b), scaled(lambda s: s.b.clone()))),
    "buffer by set": net(buffers(b=ONES), run(in_use(lambda s, r, h: s.b.set_(s.b + 1)), scaled(lambda s: s.b))),
    "buffer by its memory": net(
        buffers(b=ONES),
        run(in_use(lambda s, r, h: torch.as_tensor(s.b.untyped_storage()).add_(1)), scaled(lambda s: s.b)),
    ),
    "large buffer by data": net(
        buffers(b=torch.ones(20_000)), run(in_use(lambda s, r, h: s.b.data.add_(1)), scaled(lambda s: s.b[7]))
    ),
    "weight by data in use": net(None, run(in_use(lambda s, r, h: s.layer.weight.data.mul_(1.5)), scaled(lambda s: 1))),
    "weight clamped by data": Entry(
        lambda: Net(None, run(lambda s, r, h: s.layer.weight.data.clamp_(-0.1, 0.1), lambda s, r, h: s.layer(r))),
        rows_of,
    ),
    "bias by numpy in use": net(None, run(in_use(lambda s, r, h: numpy_write(s.layer.bias)), scaled(lambda s: 1))),
    "non-persistent buffer": net(
        lambda self: self.register_buffer("b", ONES.clone(), persistent=False), scaled(lambda s: s.b)
    ),
    "buffer made in use": net(
        None, run(in_use(register("late", "register_buffer", lambda: ONES)), scaled(lambda s: 1))
    ),
    "buffer filled in use": net(
        lambda s: s.register_buffer("b", None),
        lambda s, r, h: h if s.training else (h + (0 if s.b is None else s.b), setattr(s, "b", ONES))[0],
    ),
    "parameter made in use": net(
        None,
        run(
            in_use(register("late", "register_parameter", lambda: nn.Parameter(ONES.clone()))),
            scaled(lambda s: sum(p.sum() for p in s.parameters())),
        ),
    ),
    "part swapped in use": net(
        put(act=nn.Tanh),
        run(in_use(lambda s, r, h: setattr(s, "act", nn.ReLU())), lambda s, r, h: s.act(h)),
    ),
    "part's attribute set in use": net(
        put(act=lambda: nn.Softplus(1)),
        lambda s, r, h: (s.act(h), None if s.training else setattr(s.act, "beta", s.act.beta + 1))[0],
    ),
    "writes to its inputs": net(None, lambda s, r, h: s.layer(r.sub_(0.5))),
    "writes to its inputs by data": net(None, lambda s, r, h: s.layer(r.data.mul_(2))),
    "writes to its inputs by numpy": net(None, run(lambda s, r, h: numpy_write(r), lambda s, r, h: s.layer(r))),
    "writes to large inputs only": net(None, lambda s, r, h: s.layer(r.sub_(0.5) if len(r) > 8 else r)),
    "gives a buffer away": net(buffers(b=torch.ones(99, 8)), lambda s, r, h: h if s.training else s.b[: len(r)]),
    "gives its buffer": net(
        buffers(b=torch.zeros(99, 8)),
        lambda s, r, h: h if s.training else (s.b[: len(r)].copy_(h), s.b[: len(r)])[1],
    ),
    "turns at every call": net(
        put(flip=lambda: False), run(in_use(writing("flip", lambda s, r: not s.flip)), scaled(lambda s: 1 + s.flip))
    ),
    "changes after many calls": net(
        put(count=lambda: [0]),
        run(in_use(lambda s, r, h: s.count.__setitem__(0, s.count[0] + 1)), scaled(lambda s: 1 + (s.count[0] > 30))),
    ),
    "own way with attributes": Entry(Storing, rows_of),
    "attribute of a weight": net(
        None,
        run(
            in_use(lambda s, r, h: setattr(s.layer.weight, "n", getattr(s.layer.weight, "n", 0) + 1)),
            scaled(lambda s: 1 + getattr(s.layer.weight, "n", 0)),
        ),
    ),
    "attribute of torch's layer, large batches": net(
        lambda self: setattr(self.layer, "n", 1),
        run(when_large(lambda s, r, h: setattr(s.layer, "n", s.layer.n + 1)), scaled(lambda s: s.layer.n)),
    ),
    "hooks for large batches": net(
        None,
        run(
            when_large(lambda s, r, h: s.layer.register_forward_hook(lambda *given: given[2] * 2)),
            lambda s, r, h: s.layer(r),
        ),
    ),
    "weight by data, large batches": net(
        None, run(when_large(lambda s, r, h: s.layer.weight.data.mul_(1.5)), lambda s, r, h: s.layer(r))
    ),
    "own generator, large batches": net(
        put(chance=lambda: torch.Generator().manual_seed(1)),
        run(
            when_large(lambda s, r, h: torch.rand((), generator=s.chance)),
            scaled(lambda s: 1 + float(s.chance.get_state().sum()) / 1e6),
        ),
    ),
    "borrows an attribute": Entry(Borrowed, rows_of),
    "method as an attribute": net(
        lambda self: setattr(self, "again", self.layer.forward), lambda s, r, h: h + s.again(r)
    ),
    "partial of a part": net(
        lambda self: setattr(self, "again", functools.partial(torch.Tensor.add, other=1)), lambda s, r, h: s.again(h)
    ),
    "partial over a method": net(
        lambda self: setattr(self, "again", functools.partial(self.layer.forward)), lambda s, r, h: h + s.again(r)
    ),
    "callable that holds the module": net(
        lambda self: setattr(self, "caller", Caller(self)), lambda s, r, h: s.caller(h)
    ),
    "parent in a list": net(lambda self: setattr(self, "up", [self]), lambda s, r, h: h + s.up[0].layer.bias),
    "parts in a dict": net(
        lambda self: setattr(self, "by_name", {"layer": self.layer}), lambda s, r, h: h + s.by_name["layer"](r)
    ),
    "forward patched by a method": net(
        lambda self: setattr(
            self.layer, "forward", types.MethodType(lambda layer, r: nn.Linear.forward(layer, r) + 1, self.layer)
        )
    ),
    "forward patched by a function": net(
        lambda self: setattr(self.layer, "forward", lambda rows: rows.repeat(1, 2)[:, :8])
    ),
    "hook without a reference": net(hook_on(lambda self: lambda layer, given, answer: answer * 2)),
    "hook that is a method": net(
        lambda self: (
            setattr(self, "heard", []),
            self.layer.register_forward_hook(types.MethodType(lambda s, layer, g, a: s.heard.append(len(a)), self)),
        )
    ),
    "hook of somebody who knows the module": net(hook_on(lambda self: Recorder(self).listen)),
    "hook of somebody, by a lambda": net(
        hook_on(lambda self: (lambda recorder: lambda *heard: recorder.listen(*heard))(Recorder(self)))
    ),
    "pre-hook that changes inputs": net(
        hook_on(lambda self: lambda layer, given: (given[0] * 2,), "register_forward_pre_hook")
    ),
    "listening list": net(hook_on(lambda self: (lambda heard: lambda *all_: heard.append(all_[2].shape))([]))),
    "finds attributes inside": Entry(Delegating, rows_of),
    "own parametrisation": chain(
        lambda: parametrize.register_parametrization(nn.Linear(6, 8), "weight", Positive()), lambda: nn.Linear(8, 8)
    ),
    "parametrisation that remembers": chain(
        lambda: parametrize.register_parametrization(nn.Linear(6, 8), "weight", Remembering()), lambda: nn.Linear(8, 8)
    ),
    "pruned for good": chain(lambda: prune.remove(pruned(), "weight")),
    "checkpointed": net(with_more, checkpointed(reentrant=False)),
    "checkpointed, reentrant": net(with_more, checkpointed(reentrant=True)),
    "part frozen": net(lambda self: (with_more(self), self.more.requires_grad_(False)), lambda s, r, h: s.more(h)),
    "list of parameters": net(
        lambda self: setattr(self, "ps", nn.ParameterList([nn.Parameter(ONES.clone())])), scaled(lambda s: s.ps[0])
    ),
    "dict of modules, by size": net(
        lambda self: setattr(self, "ways", nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})),
        lambda s, r, h: s.ways["a" if len(r) % 2 else "b"](h),
    ),
    "logger": net(
        put(log=lambda: logging.getLogger("zoo")), run(lambda s, r, h: s.log.debug("seen"), scaled(lambda s: 1))
    ),
    "ordered attributes": net(put(table=lambda: OrderedDict(a=1.0)), scaled(lambda s: s.table["a"])),
    "vmap inside": net(None, lambda s, r, h: torch.vmap(s.layer)(r)),
}


# --- what is refused ---

calls = itertools.count()
heard: list[float] = [0.0]


class Counted(Net):
    calls = 0

    def forward(self, rows: Tensor) -> Tensor:
        Counted.calls += 1
        return super().forward(rows) * Counted.calls


class Annealed(Net):
    scale = 1.0

    def forward(self, rows: Tensor) -> Tensor:
        Annealed.scale *= 1 - 0.1 * self.training
        return super().forward(rows) * Annealed.scale


class Averaging(Net):
    mean = torch.zeros(8)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = super().forward(rows)
        if self.training:
            Averaging.mean.mul_(0.9).add_(hidden.detach().mean(0))
        return hidden - Averaging.mean


class Anneal:
    """A hook of its own, which learns while the module does."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, layer: nn.Module, given: Any, answer: Tensor) -> Tensor:
        self.scale *= 1 - 0.1 * layer.training
        return answer * self.scale


class Forking(Net):
    def forward(self, rows: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return super().forward(rows) + torch.rand(8)


class Registered(Net):
    every: dict[str, nn.Module] = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        Registered.every["net"] = self

    def forward(self, rows: Tensor) -> Tensor:
        return Registered.every["net"].layer(rows)


class Unique(Net):
    def __deepcopy__(self, memo: Any) -> "Unique":
        return self


class Stingy(nn.Linear):
    """Copies of it share its weight."""

    def __deepcopy__(self, memo: Any) -> "Stingy":
        twin = Stingy(6, 8)
        twin.weight = self.weight
        return twin


class SharedBox:
    def __init__(self, module: nn.Module):
        self.module = module

    def __deepcopy__(self, memo: Any) -> "SharedBox":
        return self

    def __call__(self, rows: Tensor) -> Tensor:
        return self.module.layer(rows)


class Globally(Net):
    def forward(self, rows: Tensor) -> Tensor:
        return the_net.layer(rows)


class Locally(Net):
    def forward(self, rows: Tensor) -> Tensor:
        return by_a_helper(rows)


def by_a_helper(rows: Tensor) -> Tensor:
    return the_net.layer(rows)


the_net: nn.Module = Net()


def as_the_net(kind: type[Net]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        global the_net
        the_net = kind()
        return the_net

    return build


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


def closed_over(self: Any) -> Callable[[Tensor], Tensor]:
    return lambda values: torch.relu(self.layer(values))


def counter() -> Callable[[], int]:
    count = 0

    def more() -> int:
        nonlocal count
        count += 1
        return count

    return more


def outside(value: Any) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows * value


REFUSED: dict[str, Entry] = {
    "closure over self": net(lambda self: setattr(self, "act", closed_over(self)), lambda s, r, h: s.act(r)),
    "closure in a list": net(lambda self: setattr(self, "acts", [closed_over(self)]), lambda s, r, h: s.acts[0](r)),
    "closure in a dict": net(
        lambda self: setattr(self, "acts", {"a": (closed_over(self),)}), lambda s, r, h: s.acts["a"][0](r)
    ),
    "closure in a partial": net(
        lambda self: setattr(self, "act", functools.partial(closed_over(self))), lambda s, r, h: s.act(r)
    ),
    "closure in an object": net(
        lambda self: setattr(self, "box", types.SimpleNamespace(act=closed_over(self))), lambda s, r, h: s.box.act(r)
    ),
    "closure, wrapped": net(lambda self: setattr(self, "act", wrapped(closed_over(self))), lambda s, r, h: s.act(r)),
    "closure in a part": Entry(
        lambda: (lambda layer: nn.Sequential(layer, Lambda(lambda v: v + layer.bias)))(nn.Linear(6, 8)), rows_of
    ),
    "closure over a weight": net(lambda self: setattr(self, "act", outside(self.layer.bias)), lambda s, r, h: s.act(h)),
    "default that is a part": net(
        lambda self: setattr(self, "act", lambda r, layer=self.layer: layer(r)), lambda s, r, h: s.act(r)
    ),
    "closure over a tensor outside": net(lambda self: setattr(self, "act", outside(ONES)), lambda s, r, h: s.act(h)),
    "closure over a module outside": net(
        lambda self: setattr(self, "act", (lambda other: lambda r: other(r))(nn.Linear(8, 8))), lambda s, r, h: s.act(h)
    ),
    "patched forward": net(lambda self: setattr(self, "forward", lambda rows: self.layer(rows) + 1)),
    "patched forward of a part": net(
        lambda self: setattr(self.layer, "forward", (lambda old: lambda r: old(r) + 1)(self.layer.forward))
    ),
    "hook's closure": net(hook_on(lambda self: lambda layer, given, answer: answer + self.layer.bias)),
    "pre-hook's closure": net(
        hook_on(lambda self: lambda layer, given: (given[0] + self.layer.weight.mean(),), "register_forward_pre_hook")
    ),
    "hook that is a partial": net(
        hook_on(lambda self: functools.partial(lambda module, layer, g, a: a + module.layer.bias, self))
    ),
    "hook of somebody who uses the module": net(hook_on(lambda self: Recorder(self).meddle)),
    "hook of somebody who does so, by a lambda": net(
        hook_on(lambda self: (lambda recorder: lambda *heard: recorder.meddle(*heard))(Recorder(self)))
    ),
    "weak reference": net(lambda self: setattr(self, "up", weakref.ref(self)), lambda s, r, h: s.up().layer(r)),
    "weak references": net(
        lambda self: setattr(self, "up", weakref.WeakValueDictionary(me=self)), lambda s, r, h: s.up["me"].layer(r)
    ),
    "global variable": Entry(as_the_net(Globally), rows_of),
    "global variable of a helper": Entry(as_the_net(Locally), rows_of),
    "registry of the class": Entry(Registered, rows_of),
    "cannot be copied": Entry(Unique, rows_of),
    "copies share a weight": Entry(lambda: nn.Sequential(Stingy(6, 8)), rows_of),
    "object that is not copied": net(lambda self: setattr(self, "box", SharedBox(self)), lambda s, r, h: s.box(r)),
    "counts while learning": net(put(count=lambda: 1), run(bump, scaled(lambda self: self.count))),
    "attribute that is learned": net(
        put(scale=lambda: 1.0),
        run(lambda s, r, h: setattr(s, "scale", s.scale * 0.9) if s.training else None, scaled(lambda s: s.scale)),
    ),
    "attribute made while learning": net(
        None,
        run(
            lambda s, r, h: setattr(s, "mean", h.detach().mean(0)) if s.training else None,
            lambda s, r, h: h - getattr(s, "mean", 0),
        ),
    ),
    "attribute deleted while learning": net(
        put(fresh=lambda: True),
        lambda s, r, h: (vars(s).pop("fresh", None) if s.training else None, h * (1 + hasattr(s, "fresh")))[1],
    ),
    "list that is learned": net(
        put(seen=list), run(lambda s, r, h: s.seen.append(1) if s.training else None, scaled(lambda s: 1 + len(s.seen)))
    ),
    "array that is learned": net(
        put(array=lambda: np.ones(1)),
        run(lambda s, r, h: s.array.__iadd__(1) if s.training else None, scaled(lambda s: float(s.array[0]))),
    ),
    "iterator that goes on while learning": net(put(numbers=itertools.count), scaled(lambda s: 1 + next(s.numbers))),
    "slots that are learned": net(
        put(box=Slotted),
        run(lambda s, r, h: setattr(s.box, "count", s.box.count + 1), scaled(lambda s: 1 + s.box.count)),
    ),
    "own generator, always": net(put(chance=torch.Generator), lambda s, r, h: h + torch.rand((), generator=s.chance)),
    "own numpy generator, always": net(
        put(chance=lambda: np.random.default_rng(1)), lambda s, r, h: h + s.chance.random()
    ),
    "fixed parameter by data": net(
        lambda self: setattr(self, "fixed", nn.Parameter(ONES.clone(), requires_grad=False)),
        run(lambda s, r, h: s.fixed.data.add_(1), scaled(lambda s: s.fixed.clone())),
    ),
    "dropout in eval mode": net(None, lambda s, r, h: nn.functional.dropout(h, 0.5)),
    "random numbers": net(None, lambda s, r, h: h + torch.rand(())),
    "a coin": net(None, lambda s, r, h: h + float(torch.rand(()) < 0.5)),
    "numpy's random numbers": net(None, lambda s, r, h: h + np.random.rand()),
    "python's random numbers": net(None, lambda s, r, h: h + random.random()),
    "random numbers of nobody": net(None, lambda s, r, h: h + os.urandom(1)[0] + os.urandom(1)[0] / 256),
    "numpy's new generators": net(None, lambda s, r, h: h + np.random.default_rng().random()),
    "random numbers for large batches": net(
        None, lambda s, r, h: h + np.random.rand() if len(r) > 8 and not s.training else h
    ),
    "slots": Entry(type("Slots", (Net,), {"__slots__": ("count",)}), rows_of),
    "sets the seed": net(None, lambda s, r, h: h if s.training else h + (torch.manual_seed(3), torch.rand(()))[1]),
    "sets the seed and puts it back": Entry(Forking, rows_of),
    "sets numpy's seed": net(None, lambda s, r, h: h if s.training else h + (np.random.seed(3), np.random.rand())[1]),
    "the time": net(None, lambda s, r, h: h + time.perf_counter() % 1),
    "stateful hook": net(hook_on(lambda self: (lambda count: lambda layer, g, a: a * count())(counter()))),
    "stateful closure": net(lambda self: setattr(self, "more", counter()), lambda s, r, h: h * s.more()),
    "attribute of the class that is learned": Entry(Annealed, rows_of),
    "tensor of the class that is learned": Entry(Averaging, rows_of),
    "hook that learns": net(hook_on(lambda self: Anneal())),
    "closure that learns": net(hook_on(lambda self: (lambda other: lambda *heard: other(*heard))(Anneal()))),
    "global list that is learned": net(
        None, run(lambda s, r, h: heard.append(1.0) if s.training else None, lambda s, r, h: h * len(heard))
    ),
    "compiled by TorchScript": Entry(lambda: torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.ReLU())), rows_of),
    "part compiled by TorchScript": chain(linear(), lambda: torch.jit.script(nn.Linear(8, 8))),
    "traced by TorchScript": Entry(
        lambda: torch.jit.trace(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), torch.zeros(2, 6)), rows_of
    ),
    "counter of the class": Entry(Counted, rows_of),
    "global counter": net(None, lambda s, r, h: h * next(calls)),
    "global list": net(None, run(lambda s, r, h: heard.__setitem__(0, heard[0] + 1), lambda s, r, h: h * heard[0])),
    "default that remembers": net(
        lambda self: setattr(self, "more", lambda seen=[0]: (seen.append(0), len(seen))[1]),
        lambda s, r, h: h * s.more(),
    ),
    "buffer made while learning": net(
        None, lambda s, r, h: (register("late", "register_buffer", lambda: ONES)(s), h * s.late)[1]
    ),
    "lock": net(put(lock=threading.Lock)),
    "thread's own": net(put(local=threading.local)),
    "generator function": net(put(numbers=lambda: (n for n in range(9)))),
    "open file": net(put(file=lambda: Path(os.devnull).open())),  # noqa: SIM115
    "tensor as an attribute": net(put(scale=lambda: ONES.clone()), scaled(lambda s: s.scale)),
    "hidden module": net(lambda self: setattr(self, "hidden", (nn.Linear(8, 8),)), lambda s, r, h: s.hidden[0](h)),
    "old weight norm": chain(lambda: nn.utils.weight_norm(nn.Linear(6, 8))),
    "old spectral norm": chain(lambda: nn.utils.spectral_norm(nn.Linear(6, 8))),
    "pruned": chain(pruned),
    "lazy": chain(lambda: nn.LazyLinear(8)),
    "max norm": around(lambda: nn.Embedding(11, 8, max_norm=1.0), lambda inner, t: inner(t).mean(1), tokens_of),
}


def learner_of(module: nn.Module) -> ff.WSN:
    return ff.WSN(module, capacity=0.6, recipe=ff.Recipe(epochs=1, batch_size=12, lr=0.03))


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    )


def moved(entry: Entry, folder: Path) -> list[str]:
    """On which occasions the answers of an accepted module move; a `ForgetfreeError` if it is refused."""
    module = entry.build()
    learner = learner_of(module)
    learner.learn(entry.task("first", count=12))
    batch, wrong = entry.inputs(5, seed=9), []
    given = convert(batch, torch.clone)
    before = learner.predict(batch, "first")
    large = learner.predict(entry.inputs(9, seed=9), "first")

    def look(occasion: str, asked: Any = learner) -> None:
        same_answers = same(asked.predict(batch, "first"), before)
        if not same_answers or not same(asked.predict(entry.inputs(9, seed=9), "first"), large):
            wrong.append(occasion)

    for number in range(2):
        look(f"asked again ({number})")
    learner.predict(entry.inputs(5, seed=10), "first")
    look("after another batch")
    learner.predict(entry.inputs(2, seed=10), "first")
    look("after two rows")
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    look("in another random state")
    threads = [threading.Thread(target=look, args=("in threads",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not all(torch.equal(*pair) for pair in zip(tensors_of(batch), tensors_of(given), strict=True)):
        wrong.append("the caller's batch was changed")
    learner.learn(entry.task("second", count=12, seed=1))
    look("after another task")
    ff.save(learner, folder / "learner.ff")
    look("through an archive", ff.load(folder / "learner.ff", backbone=entry.build()))
    if any(parameter.grad is not None for parameter in module.parameters()):
        wrong.append("gradients were written to the caller's module")
    change(module)
    look("after the caller changed the module")
    return wrong


def change(module: nn.Module) -> None:
    """What a caller may do to a module of his own."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.mul_(2)
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, list | dict) and not name.startswith("_") and value:
                value.clear()
            elif type(value) is float:
                setattr(part, name, value + 1)


@pytest.mark.parametrize("kind", [*TAME, *HOLDS])
def test_a_module_that_is_accepted_keeps_its_bits(kind: str, tmp_path: Path) -> None:
    assert moved({**TAME, **HOLDS}[kind], tmp_path) == []


@pytest.mark.parametrize("kind", REFUSED)
def test_a_module_that_would_move_is_refused_with_a_sentence_and_nothing_is_lost(kind: str) -> None:
    entry = REFUSED[kind]
    learners: list[ff.WSN] = []

    def learn() -> None:
        learners.append(learner_of(entry.build()))
        learners[0].learn(entry.task("first"))

    with pytest.raises(ff.ForgetfreeError, match=r"^.{60,}\.$"):
        learn()
    assert not any(learner.tasks for learner in learners)


def test_the_zoo_is_large() -> None:
    assert len(TAME) + len(HOLDS) + len(REFUSED) >= 113


# --- not only backbones, not only one method ---

SOME_HOLD = ["counts in use", "buffer by data in use", "draws and ignores"]
SOME_REFUSED = ["attribute that is learned", "numpy's random numbers", "stateful hook"]


def learned_by(method: str, entry: Entry) -> Callable[[], Tensor]:
    """What a method answers when it has learned a task or two with this backbone."""
    recipe = ff.Recipe(epochs=1, batch_size=12, lr=0.03, optimizer="sgd")
    settings: dict[str, Any] = (
        {"capacity": 0.5} if "capacity" in inspect.signature(ff.METHODS[method]).parameters else {}
    )
    if method in FSCIL:
        tasks, tests = sessions(1, base=3, images=8, classes=2, shots=4)
        backbone = nn.Sequential(nn.Linear(DIMENSIONS, 6), entry.build())
        learner = ff.METHODS[method](backbone, recipe=recipe, session=recipe, **settings)
        asked = functools.partial(learner.predict, tests[0][0])
    else:
        tasks = [entry.task("first")]
        learner = ff.METHODS[method](entry.build(), recipe=recipe, **settings)
        asked = functools.partial(learner.predict, entry.inputs(5, seed=9), "first")
    for task in tasks:
        learner.learn(task)
    if hasattr(learner, "finish"):
        learner.finish()
    return asked


@pytest.mark.parametrize("method", [*TIL, *FSCIL])
def test_every_method_gives_the_same_answer_twice_or_refuses(method: str) -> None:
    for kind in SOME_HOLD:
        asked = learned_by(method, HOLDS[kind])
        before = asked()
        assert all(same(asked(), before) for _ in range(2)), kind
    for kind in SOME_REFUSED:
        with pytest.raises(ff.ForgetfreeError):
            learned_by(method, REFUSED[kind])


class Head(nn.Module):
    """A linear layer, and something that is done to its answer."""

    def __init__(self, then: Callable[[Any, Tensor], Tensor], width: int, task: ff.Task):
        super().__init__()
        self.layer = nn.Linear(width, task.width)
        self.then, self.count, self.kept = then, 1, 0.0

    def forward(self, features: Tensor) -> Tensor:
        return self.then(self, self.layer(features))


HEADS: dict[str, tuple[Callable[[Any, Tensor], Tensor], bool]] = {
    "counts in use": (lambda s, a: (a * s.count, None if s.training else setattr(s, "count", s.count + 1))[0], True),
    "counts, to no effect": (lambda s, a: (a, setattr(s, "count", s.count + 1))[0], True),
    "attribute that is learned": (lambda s, a: (a + s.kept, setattr(s, "kept", s.kept + s.training))[0], False),
    "bias by data": (lambda s, a: (a.clone(), None if s.training else s.layer.bias.data.add_(1))[0], True),
    "random numbers": (lambda s, a: a + np.random.rand(), False),
}


@pytest.mark.parametrize("kind", HEADS)
def test_heads_are_held_to_the_same(kind: str, tmp_path: Path) -> None:
    then, holds = HEADS[kind]
    entry, factory = ZOO["mlp with dropout"], functools.partial(Head, then)
    learner = ff.WSN(entry.build(), capacity=0.5, recipe=ff.Recipe(epochs=1, batch_size=12), heads=factory)
    if not holds:
        with pytest.raises(ff.ForgetfreeError, match=r"^task 'first': "):
            learner.learn(entry.task("first"))
        assert not learner.tasks
        return
    learner.learn(entry.task("first"))
    batch = entry.inputs(5, seed=9)
    before = learner.predict(batch, "first")
    ff.save(learner, tmp_path / "learner.ff")
    loaded = ff.load(tmp_path / "learner.ff", backbone=entry.build(), heads=factory)
    for asked in (learner, learner, loaded, loaded):
        assert same(asked.predict(batch, "first"), before)


def test_an_archived_task_is_tried_out_when_it_is_first_asked(tmp_path: Path) -> None:
    steady, restless = net(), REFUSED["numpy's random numbers"]
    learner = learner_of(steady.build())
    learner.learn(steady.task("first"))
    ff.save(learner, tmp_path / "learner.ff")
    loaded = ff.load(tmp_path / "learner.ff", backbone=restless.build())
    assert loaded.predict(torch.zeros(0, 6), "first").shape == (0, 3)
    for _ in range(2):
        with pytest.raises(ff.ModuleError, match="asked twice on one batch"):
            loaded.predict(steady.inputs(5), "first")


def test_a_refusal_names_what_was_found_and_how() -> None:
    with pytest.raises(
        ff.ModuleError, match=r"\(Net\): attribute 'act', which closes over 'self': that is the module itself"
    ):
        learner_of(REFUSED["closure over self"].build())
    with pytest.raises(ff.ModuleError, match=r"attribute 'act', through a default: that is its part 'layer'"):
        learner_of(REFUSED["default that is a part"].build())
    entry = REFUSED["attribute that is learned"]
    with pytest.raises(ff.LearningError, match=r"^task 'first': scale changed while it was learned.*register_buffer"):
        learner_of(entry.build()).learn(entry.task("first"))


def test_validation_and_looks_at_a_session_leave_nothing_in_plain_attributes() -> None:
    """Only what is learned may be left behind; a count of the looks in eval mode is none of it."""
    entry = HOLDS["counts in use"]
    train = entry.task("first").train
    learner = learner_of(entry.build())
    with learner.learning(ff.Task("first", (0, 1, 2), train, valid=train)) as session:
        session.eval()
        looks = [session(train[0]).detach() for _ in range(3)]
        session.keep()
    assert all(torch.equal(look, looks[0]) for look in looks)
    torch.testing.assert_close(learner.predict(train[0], "first"), looks[0])


def test_zero_shot_answers_do_not_change_the_callers_batch() -> None:
    entry = HOLDS["writes to its inputs"]
    learner, batch = learner_of(entry.build()), entry.inputs(5)
    learner.learn(entry.task("first"))
    given = batch.clone()
    learner.zero_shot(batch, entry.task("second"))
    assert torch.equal(batch, given)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wav2vec2", "bert", "bert, checkpointed"])
def test_models_of_transformers_are_no_strangers(kind: str) -> None:
    """Wav2Vec2 draws a number for every layer in eval mode and ignores it."""
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    }  # fmt: skip

    class Hearing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = transformers.Wav2Vec2Model(
                transformers.Wav2Vec2Config(
                    **sizes, conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=4,
                    num_conv_pos_embedding_groups=2, mask_time_length=2,
                )
            )  # fmt: skip

        def forward(self, sound: Tensor) -> Tensor:
            return self.inner(sound).last_hidden_state.mean(1)

    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = transformers.BertModel(transformers.BertConfig(vocab_size=11, **sizes))
            if kind == "bert, checkpointed":
                self.inner.gradient_checkpointing_enable()

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner(tokens).last_hidden_state.mean(1)

    entry = (
        Entry(Hearing, lambda count, chance: torch.randn(count, 120, generator=chance))
        if kind == "wav2vec2"
        else Entry(Reading, tokens_of)
    )
    learner = learner_of(entry.build())
    learner.learn(entry.task("first"))
    batch = entry.inputs(5, seed=9)
    before = learner.predict(batch, "first")
    learner.learn(entry.task("second", seed=1))
    assert all(same(learner.predict(batch, "first"), before) for _ in range(3))
