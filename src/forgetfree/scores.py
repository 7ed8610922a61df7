"""Scores: one learnable number per masked weight, from which a task's mask is made; and minor weights of soft masks."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forgetfree.errors import InputError
from forgetfree.forms import mapping, numbers
from forgetfree.masked_weights import KernelCache
from forgetfree.masks import Masks, Rank, Selection, soft_mask, top_fraction
from forgetfree.modules import TensorTree
from forgetfree.rng import generator, layer_init, philox_uniform
from forgetfree.tickets import Ticket

log = logging.getLogger("forgetfree")

QUANTILES = 65
"""Numbers that say how the scores of a layer are spread."""
WORTH_KERNELS = 10_000
"""From this many weights on, importing and compiling kernels pays."""


class Scores(TensorTree):
    """One learnable score per masked weight. They carry over from task to task: `fork` starts the next one."""

    own_names = True

    def __init__(self, values: Mapping[str, Tensor], *, by: Rank = "magnitude"):
        if by not in ("magnitude", "value"):
            raise InputError(f"scores are ranked by 'magnitude' (|s|) or by 'value' (s); got {by!r}.")
        super().__init__({name: nn.Parameter(value.detach().clone()) for name, value in values.items()})
        self.by: Rank = by
        self._caches: dict[str, KernelCache] | None = None  # speed, not state

    @classmethod
    def random(cls, weights: Mapping[str, Tensor], seed: int, *, by: Rank = "magnitude") -> "Scores":
        """Scores for `weights`, drawn like PyTorch draws a linear layer: U(-1/√fan_in, 1/√fan_in)."""
        return cls({name: _uniform_like(weight, seed, name) for name, weight in weights.items()}, by=by)

    @classmethod
    def after(
        cls, masks: Mapping[str, Tensor], uses: Mapping[str, Tensor], quantiles: Mapping[str, Tensor], seed: int,
        *, by: Rank = "magnitude",
    ) -> "Scores":  # fmt: skip
        """Scores that select `masks` first, and next what has most `uses`; spread as their `quantiles` say.

        Scores drawn anew would select other weights for the next task, and the network would be full soon.
        """
        return cls(
            {name: _after(mask, uses[name], quantiles[name], seed, name, by) for name, mask in masks.items()}, by=by
        )

    def quantiles(self) -> dict[str, Tensor]:
        """How the ranked scores of each layer are spread, in QUANTILES numbers."""
        levels = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
        ranked = {name: value.abs() if self.by == "magnitude" else value for name, value in self.plain().items()}
        return {name: _quantiles(value.reshape(-1).cpu(), levels) for name, value in ranked.items() if value.numel()}

    def fork(self) -> "Scores":
        """A copy to learn with; nothing of it is shared with this one."""
        return Scores(self.plain(), by=self.by)

    def on(self, device: torch.device | str) -> "Scores":
        """A copy on another device."""
        return Scores({name: value.to(device) for name, value in self.plain().items()}, by=self.by)

    def redrawn(self, where: Mapping[str, Tensor], seed: int, *words: int | str) -> "Scores":
        """The same scores, drawn anew like those of a layer where a mask says so."""
        values = self.plain()
        fresh = {name: layer_init(value.shape, seed, *words, name).to(value) for name, value in values.items()}
        return Scores({name: value.where(~where[name], fresh[name]) for name, value in values.items()}, by=self.by)

    def top(self, fraction: float) -> dict[str, Selection]:
        """Of every layer, its top `fraction` of scores."""
        if self._caches is None:
            self._caches = _kernel_caches(self.plain(), self.by)
        found = self._caches.get
        return {name: Selection(value, fraction, self.by, found(name)) for name, value in self.items()}

    def soft(self, fraction: float, minor: "Minor") -> Masks:
        """Of every layer a soft mask: one on its top `fraction`, `minor` elsewhere."""
        if minor.draw == Minor.NONE:
            return self.top(fraction)
        return {
            name: soft_mask(top_fraction(value, fraction, by=self.by), minor.value(name).to(value))
            for name, value in self.items()
        }

    def to_state(self, *, resumable: bool) -> dict[str, Any]:
        """As an archive has them: whole, or where they need not go on to the same bits, how they are spread."""
        return {"scores": self.plain()} if resumable else {"quantiles": self.quantiles()}

    def from_state(self, state: Mapping[str, Any], tickets: Mapping[str, Ticket], seed: int) -> "Scores":
        """Scores that were stored; where only their spread was, such as select what the last of the tickets did."""
        shapes = {name: value.shape for name, value in self.items()}
        if "scores" in state:
            mapping(numbers)(state["scores"], "scores")
            if {name: value.shape for name, value in state["scores"].items()} != shapes:
                raise InputError("the stored scores are not of this backbone's weights.")
            return Scores(state["scores"], by=self.by)
        mapping(numbers)(state["quantiles"], "quantiles")
        if any(value.dim() != 1 or not value.numel() for value in state["quantiles"].values()):
            raise InputError("the stored quantiles of scores are not rows of numbers.")
        uses = {name: _uses(tickets, name, shape) for name, shape in shapes.items()}
        last = list(tickets.values())[-1:]
        masks = {name: last[0].mask(name) if last else uses[name] > 0 for name in shapes}
        return Scores.after(masks, uses, state["quantiles"], seed, by=self.by)

    def _apply(self, fn: Any, recurse: bool = True) -> "Scores":
        self._caches = None
        super()._apply(fn, recurse)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_caches": None}  # a copy finds its own memory


class Minor(nn.Module):
    """What stands where a soft mask has no one: U(0,1) for every weight, drawn by a number.

    The number alone is the state: a best epoch, a checkpoint or an archive gives the same values again.
    """

    NONE = -1
    """The number before the first draw: all zeros, so that the soft mask is the hard one."""

    def __init__(self, shapes: Mapping[str, torch.Size], seed: int, number: int = NONE):
        super().__init__()
        self._shapes, self._seed = dict(shapes), seed
        self.register_buffer("number", torch.tensor(number))
        self.number: Tensor
        self._drawn: tuple[int, dict[str, Tensor]] | None = None

    @property
    def draw(self) -> int:
        """The number of the draw that it has now."""
        return int(self.number)

    def resample(self, number: int) -> None:
        """Go on to the draw of this number."""
        self.number.fill_(number)

    def value(self, name: str) -> Tensor:
        """The values for one tensor."""
        if self._drawn is None or self._drawn[0] != self.draw:
            self._drawn = self.draw, {}
        drawn = self._drawn[1]
        if name not in drawn:
            shape = self._shapes[name]
            uniform = np.zeros(shape.numel(), np.float32)
            if self.draw != self.NONE:
                uniform = philox_uniform(shape.numel(), self._seed, "minor", self.draw, name)
            drawn[name] = torch.from_numpy(uniform).view(shape)
        return drawn[name]


def _kernel_caches(values: Mapping[str, Tensor], by: Rank) -> dict[str, KernelCache]:
    """A cache for every tensor that the kernels can take, if together they are large enough to be worth it."""
    able = [
        name
        for name, value in values.items()
        if value.device.type == "cpu" and value.dtype in (torch.float32, torch.float64) and value.is_contiguous()
    ]
    if by != "magnitude" or sum(values[name].numel() for name in able) < WORTH_KERNELS:
        return {}
    try:
        return {name: KernelCache(values[name].numel()) for name in able if values[name].numel()}
    except (ImportError, RuntimeError) as error:  # numba raises the latter where it finds no place for its cache
        log.info("numba cannot be used (%s): masks are made by plain torch, which is slower.", error)
        return {}


def _uses(tickets: Mapping[str, Ticket], name: str, shape: torch.Size) -> Tensor:
    """How many tasks use each weight."""
    uses = torch.zeros(shape, dtype=torch.int32)
    for ticket in tickets.values():
        uses += ticket.mask(name)
    return uses


def _quantiles(values: Tensor, levels: Tensor) -> Tensor:
    places = (levels * (values.numel() - 1)).round().long()
    return values.sort().values[places]


def _after(mask: Tensor, uses: Tensor, quantiles: Tensor, seed: int, name: str, by: Rank) -> Tensor:
    size = mask.numel()
    draw = philox_uniform(2 * size, seed, "scores", name)
    selected, used = mask.reshape(-1).numpy(), uses.reshape(-1).numpy()
    order = np.lexsort((draw[:size], used, selected))  # the last key counts most
    levels = np.linspace(0, 1, size) if size > 1 else np.ones(size)
    spread = np.interp(levels, np.linspace(0, 1, quantiles.numel()), quantiles.double().numpy())
    ranks: Any = np.empty(size, np.float32 if quantiles.dtype == torch.float32 else np.float64)
    ranks[order] = spread
    if selected.any() and not selected.all():  # a tie at the edge would let the lower index in
        edge = np.nextafter(ranks[~selected].max(), ranks.dtype.type(np.inf))
        ranks[selected] = np.maximum(ranks[selected], edge)
    if by == "magnitude":
        ranks[draw[size:] < 0.5] *= -1
    return torch.from_numpy(ranks).view(mask.shape)


def _uniform_like(weight: Tensor, seed: int, name: str) -> Tensor:
    fan_in = weight[0].numel() if weight.dim() > 1 else weight.numel()
    # scores of half-precision weights are float32: a step of 1e-3 would vanish in bfloat16
    dtype = torch.float64 if weight.dtype in (torch.float64, torch.complex128) else torch.float32
    bound = max(fan_in, 1) ** -0.5
    uniform = torch.rand(weight.shape, generator=generator(seed, "scores", name), dtype=dtype)
    return uniform.mul(2 * bound).sub(bound).to(weight.device)
