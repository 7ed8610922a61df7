"""Scores become masks: the exact top fraction of each layer, with a straight-through gradient (Algorithm 1, line 4).

    scores s        rank by |s|, keep the top c            mask m
    0.3 -0.9 0.1    ─────────────────────────────►   0  1  0          forward
    sign(s)·∂m      ◄─────────────────────────────   ∂m               backward

With θ the weight and G the gradient of the effective weight θ·m, the chain rule then gives ∂θ = m·G and
∂s = sign(s)·θ·G: a weight that is not selected can still earn its place.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from forgetfree.errors import InputError

if TYPE_CHECKING:
    from forgetfree.kernels import Cut

Rank = Literal["magnitude", "value"]


@functools.lru_cache
def kept_count(size: int, fraction: float) -> int:
    """How many of `size` weights a ticket keeps: n - round((1-c)(n-1)), in float64, at least one."""
    return size - round((1.0 - fraction) * (size - 1)) if size else 0


def top_fraction(scores: Tensor, fraction: float, *, by: Rank = "magnitude") -> Tensor:
    """One where a score is among the highest `fraction`, else zero; gradients pass straight through.

    Exact: `kept_count` ones, ties go to the lower flat index. `by="value"` ranks s itself, as the paper's text does.
    """
    mask: Tensor = _StraightThrough.apply(scores, fraction, by)  # type: ignore[no-untyped-call]
    return mask


def above(scores: Tensor, threshold: float) -> Tensor:
    """One where a score is above `threshold`, else zero; the gradient of the mask is the gradient of the scores."""
    mask: Tensor = _Above.apply(scores, threshold)  # type: ignore[no-untyped-call]
    return mask


def soft_mask(mask: Tensor, minor: Tensor) -> Tensor:
    """Ones stay, zeros become what `minor` has there; the gradient of the soft mask is the gradient of the mask."""
    return mask + (1 - mask.detach()) * minor


def select(ranks: Tensor, count: int) -> Tensor:
    """True at the `count` largest entries, ties by lower flat index."""
    flat = ranks.detach().reshape(-1)
    size = flat.numel()
    if flat.device.type != "cpu":
        return _select_without_waiting(flat, count).view_as(ranks)
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
    """The top fraction of one tensor's scores: as a mask, or for a weight to be seen through."""

    def __init__(self, scores: Tensor, fraction: float, by: Rank, cache: Any = None):
        self.scores, self.fraction, self.by = scores, fraction, by
        self.count = kept_count(scores.numel(), fraction)
        self.cache = cache

    def mask(self) -> Tensor:
        """True where a weight is selected. A NaN score is an error."""
        ranks = self.scores.detach()
        return select(ranks.abs() if self.by == "magnitude" else ranks, self.count)

    def cut(self) -> "Cut":
        """The same selection as a threshold and the ties below it; only where there are kernels."""
        assert self.cache is not None
        return cast("Cut", self.cache.search.cut(self.cache.array(self.scores), self.count))


Masks = Mapping[str, Selection | Tensor]
"""What a task sees of every shared tensor: a selection, or any mask as a tensor."""


def as_mask(selection: Selection | Tensor) -> Tensor:
    """True where a weight is selected."""
    return selection.mask() if isinstance(selection, Selection) else selection.detach() != 0


class _StraightThrough(torch.autograd.Function):
    """Forward: the indicator of the top fraction. Backward: as if the mask were |s| (or s)."""

    @staticmethod
    def forward(scores: Tensor, fraction: float, by: Rank) -> Tensor:
        ranks = scores.abs() if by == "magnitude" else scores
        return select(ranks, kept_count(scores.numel(), fraction)).to(scores.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.by = inputs[2]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        (scores,) = ctx.saved_tensors
        return gradient if ctx.by == "value" else gradient * sign(scores), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], scores: Tensor, fraction: float, by: Rank
    ) -> tuple[Tensor, int]:
        rows = vmapped_rows(info.batch_size, in_dims[:1], (scores,))
        return torch.stack([top_fraction(row, fraction, by=by) for (row,) in rows]), 0


class _Above(torch.autograd.Function):
    """Forward: the indicator of scores above a threshold. Backward: as if the mask were the scores."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, threshold: float) -> Tensor:
        return (scores > threshold).to(scores.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing of the forward pass is needed."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def sign(scores: Tensor) -> Tensor:
    """One with the sign of each score; adding +0 turns -0 into +0, so that sign(0) = +1: a zero score can grow."""
    return torch.copysign(torch.ones((), dtype=scores.dtype, device=scores.device), scores + 0.0)


def _select_without_waiting(ranks: Tensor, count: int) -> Tensor:
    """The same selection by operations that all stay on the device: the host never waits. NaN is never kept."""
    if count >= ranks.numel():
        return torch.ones_like(ranks, dtype=torch.bool)
    ranks = ranks.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    threshold = torch.kthvalue(ranks, ranks.numel() - count + 1).values
    above, tied = ranks > threshold, ranks == threshold
    return above | (tied & (tied.cumsum(0) <= count - above.sum()))


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


def vmapped_rows(
    size: int, dims: tuple[int | None, ...], tensors: tuple[Tensor | None, ...]
) -> Iterator[tuple[Any, ...]]:
    """The arguments of every row of a vmap."""
    apart = [
        [value] * size if dim is None or value is None else value.unbind(dim)
        for dim, value in zip(dims, tensors, strict=True)
    ]
    return zip(*apart, strict=True)
