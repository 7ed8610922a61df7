"""Scores become masks: the exact top fraction of each layer, with a straight-through gradient (Algorithm 1, line 4).

    scores s        rank by |s|, keep the top c            mask m
    0.3 -0.9 0.1    ─────────────────────────────►   0  1  0          forward
    sign(s)·∂m      ◄─────────────────────────────   ∂m               backward

With θ the weight and G the gradient of the effective weight θ·m, the chain rule then gives ∂θ = m·G and
∂s = sign(s)·θ·G: a weight that is not selected can still earn its place.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from forgetfree.chance import stream
from forgetfree.errors import InputError

if TYPE_CHECKING:
    from forgetfree.kernels import Cut, Search

log = logging.getLogger("forgetfree")

Rank = Literal["magnitude", "value"]
WORTH_KERNELS = 10_000
"""From this many weights on, importing and compiling kernels pays."""


def check_capacity(capacity: float) -> float:
    """`capacity` itself, if it is a fraction of weights that can be kept."""
    if isinstance(capacity, bool) or not isinstance(capacity, int | float) or not 0 < capacity <= 1:
        raise InputError(f"capacity is the fraction of weights kept, in (0, 1]; got {capacity!r}. For 5 % pass 0.05.")
    return float(capacity)


def kept_count(size: int, fraction: float) -> int:
    """How many of `size` weights a ticket keeps: n - round((1-c)(n-1)), in float64, at least one."""
    return size - round((1.0 - fraction) * (size - 1)) if size else 0


def top_fraction(scores: Tensor, fraction: float, *, by: Rank = "magnitude") -> Tensor:
    """One where a score is among the highest `fraction`, else zero; gradients pass straight through.

    Exact: `kept_count` ones, ties go to the lower flat index. `by="value"` ranks s itself, as the paper's text does.
    """
    mask: Tensor = _StraightThrough.apply(scores, fraction, by)  # type: ignore[no-untyped-call]
    return mask


def select(ranks: Tensor, count: int) -> Tensor:
    """True at the `count` largest entries, ties by lower flat index."""
    flat = ranks.detach().reshape(-1)
    size = flat.numel()
    _refuse_nan(flat)
    if count >= size:
        return torch.ones_like(flat, dtype=torch.bool).view_as(ranks)
    threshold = _kth_smallest(flat, size - count + 1)
    chosen = flat >= threshold
    surplus = int(chosen.sum()) - count
    if surplus:  # ties at the threshold: the last ones in flat order lose
        ties = (flat == threshold).nonzero().squeeze(1)
        chosen[ties[ties.numel() - surplus :]] = False
    return chosen.view_as(ranks)


class Selection:
    """The top fraction of one tensor's scores, ready for use: as a mask, or for a weight to be seen through."""

    def __init__(self, scores: Tensor, fraction: float, by: Rank, search: "Search | None" = None):
        self.scores, self.fraction, self.by = scores, fraction, by
        count = kept_count(scores.numel(), fraction)
        self._cut = search.cut(scores.detach().view(-1).numpy(), count) if search else None

    def mask(self) -> Tensor:
        """True where a weight is selected. A NaN score is an error."""
        ranks = self.scores.detach()
        return select(ranks.abs() if self.by == "magnitude" else ranks, kept_count(ranks.numel(), self.fraction))

    def through(self, free: Tensor, kept: Tensor | None = None, used: Tensor | None = None) -> Tensor:
        """The effective weight, where(used, kept, free)·mask, with gradients for `free` and for the scores."""
        if self._cut is not None and free.is_contiguous() and free.dtype == self.scores.dtype:
            seen: Tensor = _SeenThrough.apply(free, self.scores, kept, used, self._cut)  # type: ignore[no-untyped-call]
            return seen
        mask = top_fraction(self.scores, self.fraction, by=self.by).to(free.dtype)
        return (free if used is None or kept is None else torch.where(used, kept, free)) * mask


Masks = Mapping[str, Selection | Tensor]
"""What a task sees of every shared tensor: a selection, or any mask as a tensor."""


class Scores:
    """One learnable score per masked weight. They carry over from task to task: `fork` starts the next one."""

    def __init__(self, values: Mapping[str, Tensor], *, by: Rank = "magnitude"):
        if by not in ("magnitude", "value"):
            raise InputError(f"scores are ranked by 'magnitude' (|s|) or by 'value' (s); got {by!r}.")
        self.by = by
        self._values = {name: nn.Parameter(value.detach().clone()) for name, value in values.items()}
        self._searches: dict[str, Search] | None = None  # where thresholds were the last time; speed, not state

    @classmethod
    def random(cls, weights: Mapping[str, Tensor], seed: int, *, by: Rank = "magnitude") -> "Scores":
        """Scores for `weights`, drawn like PyTorch draws a linear layer: U(-1/√fan_in, 1/√fan_in)."""
        return cls({name: _uniform_like(weight, seed, name) for name, weight in weights.items()}, by=by)

    def fork(self) -> "Scores":
        """A copy to learn with; nothing of it is shared with this one."""
        return Scores(self._values, by=self.by)

    def to(self, device: torch.device) -> "Scores":
        return Scores({name: value.to(device) for name, value in self._values.items()}, by=self.by)

    def top(self, fraction: float) -> dict[str, Selection]:
        """Of every layer, its top `fraction` of scores."""
        if self._searches is None:
            self._searches = _searches(self._values, self.by)
        return {
            name: Selection(value, fraction, self.by, self._searches.get(name)) for name, value in self._values.items()
        }

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._values.items()

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self._values.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in self._values.items():
                value.copy_(state[name])

    def train(self, mode: bool = True) -> None:
        """Scores are the same in training and in use."""


def as_mask(selection: Selection | Tensor) -> Tensor:
    """True where a weight is selected."""
    return selection.mask() if isinstance(selection, Selection) else selection.detach() != 0


class _SeenThrough(torch.autograd.Function):
    """The effective weight in one pass, and both gradients in one pass back (see `kernels`)."""

    @staticmethod
    def forward(ctx: Any, free: Tensor, scores: Tensor, kept: Tensor | None, used: Tensor | None, cut: "Cut") -> Tensor:
        from forgetfree import kernels

        ctx.cut = cut
        ctx.save_for_backward(free, scores, kept, used)
        effective = torch.empty_like(free)
        out = _flat(effective)
        if kept is None or used is None:
            kernels.see_alone(_flat(free), _flat(scores), cut.threshold, out)
        else:
            kernels.see(_flat(free), _flat(kept), _flat(used), _flat(scores), cut.threshold, out)
        if cut.losers.size:
            out[cut.losers] = 0
        return effective

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        from forgetfree import kernels

        cut, (free, scores, kept, used) = ctx.cut, ctx.saved_tensors
        arriving = _flat(gradients[0].contiguous())
        free_gradient, score_gradient = torch.empty_like(free), torch.empty_like(scores)
        out = _flat(free_gradient), _flat(score_gradient)
        if used is None:
            kernels.back_alone(arriving, _flat(free), _flat(scores), cut.threshold, *out)
        else:
            kernels.back(arriving, _flat(free), _flat(kept), _flat(used), _flat(scores), cut.threshold, *out)
        if cut.losers.size:
            out[0][cut.losers] = 0
        return free_gradient, score_gradient, None, None, None


def _flat(tensor: Tensor) -> Any:
    return tensor.detach().view(-1).numpy()


def _searches(values: Mapping[str, Tensor], by: Rank) -> "dict[str, Search]":
    """A fast search for every tensor that can have one, if together they are large enough to be worth it."""
    able = [
        name
        for name, value in values.items()
        if value.device.type == "cpu" and value.dtype in (torch.float32, torch.float64) and value.is_contiguous()
    ]
    if by != "magnitude" or sum(values[name].numel() for name in able) < WORTH_KERNELS:
        return {}
    try:
        from forgetfree.kernels import Search
    except (ImportError, RuntimeError) as error:  # numba raises the latter where it finds no place for its cache
        log.info("numba cannot be used (%s): masks are made by plain torch, which is slower.", error)
        return {}
    return {name: Search(values[name].numel()) for name in able if values[name].numel()}


class _StraightThrough(torch.autograd.Function):
    """Forward: the indicator of the top fraction. Backward: as if the mask were |s| (or s)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, fraction: float, by: Rank) -> Tensor:
        ctx.by = by
        ctx.save_for_backward(scores)
        ranks = scores.abs() if by == "magnitude" else scores
        return select(ranks, kept_count(scores.numel(), fraction)).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        if ctx.by == "value":
            return gradient, None, None
        (scores,) = ctx.saved_tensors
        # adding +0 turns -0 into +0, so that sign(0) = +1: a zero score can still grow
        one = torch.ones((), dtype=scores.dtype, device=scores.device)
        return gradient * torch.copysign(one, scores + 0.0), None, None


def _kth_smallest(values: Tensor, k: int) -> Tensor:
    # numpy's introselect is five times faster than torch.kthvalue on a CPU; it knows no bfloat16
    if values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.partition(values.numpy(), k - 1)[k - 1 : k])
    kth: Tensor = torch.kthvalue(values, k).values
    return kth


def _refuse_nan(ranks: Tensor) -> None:
    # one pass over good scores: a sum without NaN has no NaN in it (infinities of both signs are looked at again)
    if bool(ranks.sum().isnan()) and bool(ranks.isnan().any()):
        raise InputError("a weight score is NaN: learning diverged. Lower the learning rate, or clip gradients.")


def _uniform_like(weight: Tensor, seed: int, name: str) -> Tensor:
    fan_in = weight[0].numel() if weight.dim() > 1 else weight.numel()
    # scores of half-precision weights are float32: a step of 1e-3 would vanish in bfloat16
    dtype = torch.float64 if weight.dtype in (torch.float64, torch.complex128) else torch.float32
    bound = max(fan_in, 1) ** -0.5
    uniform = torch.rand(weight.shape, generator=stream(seed, "scores", name), dtype=dtype)
    return uniform.mul(2 * bound).sub(bound).to(weight.device)
