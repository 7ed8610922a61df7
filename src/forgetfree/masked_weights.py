"""Weights as a task sees them, where(used, kept, free)·mask, and the passes over all of them on a CPU.

The plain way is one line of torch. On a CPU the same bits come from two kernels (see `kernels`): one finds the cut in
the scores and writes the effective weights in the same pass, the other gives both gradients in one pass back. What they
need from step to step, the last threshold and memory to write to, is in a KernelCache for each tensor.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from forgetfree.buffers import Reused
from forgetfree.masks import Masks, Selection, sign, top_fraction, vmapped_rows

if TYPE_CHECKING:
    from forgetfree.kernels import Cut

STAYING = 8
"""Tensors whose memory a cache knows: free and kept weights, which are used, and scores, with some to spare."""


class Shared(NamedTuple):
    """One tensor that tasks share: values that may move, and where some are `used`, the values kept there."""

    free: Tensor
    kept: Tensor | None = None
    used: Tensor | None = None

    def values(self) -> Tensor:
        """where(used, kept, free)"""
        if self.used is None or self.kept is None:
            return self.free
        return torch.where(self.used, self.kept, self.free)


def masked_weights(masks: Masks, weights: Mapping[str, Shared]) -> dict[str, Tensor]:
    """The effective weights, where(used, kept, free)·mask, with gradients for what is free and for the scores."""
    fast = [name for name, mask in masks.items() if _suits_kernels(mask, weights[name])]
    seen: dict[str, Tensor] = {}
    if fast:
        looks = [cast(Selection, masks[name]) for name in fast]
        tensors = [tensor for name, look in zip(fast, looks, strict=True) for tensor in (look.scores, *weights[name])]
        seen = dict(zip(fast, _masked(MaskedWeights(looks), *tensors), strict=True))
    if len(seen) == len(masks):
        return seen
    return {name: seen[name] if name in seen else _plainly(mask, weights[name]) for name, mask in masks.items()}


def _plainly(mask: Selection | Tensor, shared: Shared) -> Tensor:
    values = shared.values()
    if isinstance(mask, Selection):
        mask = top_fraction(mask.scores, mask.fraction, by=mask.by)
    return values * mask.to(values.dtype)


def _suits_kernels(mask: Selection | Tensor, shared: Shared) -> bool:
    return (
        isinstance(mask, Selection)
        and mask.cache is not None
        and shared.free.dtype == mask.scores.dtype
        and shared.free.is_contiguous()
    )


class KernelCache:
    """What the kernels keep for one tensor from step to step: where its threshold was, and memory to write to."""

    def __init__(self, size: int):
        from forgetfree.kernels import Search

        self.search = Search(size)
        self.effective, self.free_gradient, self.score_gradient = Reused(), Reused(), Reused()
        self._arrays: dict[int, tuple[Tensor, int, Any]] = {}

    def array(self, tensor: Tensor | None) -> Any:
        """The memory of a tensor that stays, as a flat array; looked up, because asking torch takes longer."""
        known = self._arrays.get(id(tensor))
        if known is not None and known[1] == known[0].data_ptr():
            return known[2]
        if tensor is None:
            return None
        if len(self._arrays) >= STAYING:
            self._arrays.clear()
        array = _flat(tensor)
        self._arrays[id(tensor)] = tensor, tensor.data_ptr(), array
        return array


class MaskedWeights:
    """One look through selections: what the forward pass found and the backward pass needs."""

    def __init__(self, selections: list[Selection]):
        self.selections = selections
        self.found: list[tuple[KernelCache, tuple[Any, ...], Cut]] = []

    def look(self, selection: Selection, scores: Tensor, *shared: Tensor | None) -> Tensor:
        cache = cast(KernelCache, selection.cache)
        arrays = (*map(cache.array, shared), cache.array(scores))
        effective, seen = cache.effective.like(cast(Tensor, shared[0]))
        cut = cache.search.look(arrays, selection.count, seen)
        self.found.append((cache, arrays, cut))
        return effective


class _Masking(torch.autograd.Function):
    """All effective weights, each in one pass, and both gradients of each in one pass back (see `kernels`).

    One function for all tensors, because in a small network its calls take longer than the passes. Tensors come in
    fours: scores, free, kept, used.
    """

    @staticmethod
    def forward(sight: MaskedWeights, *tensors: Any) -> tuple[Tensor, ...]:
        return tuple(itertools.starmap(sight.look, zip(sight.selections, *_in_fours(tensors), strict=True)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.sight = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sight = ctx.sight
        tensors = zip(*_in_fours(ctx.saved_tensors), strict=True)  # torch complains if they were written to since
        by_rule = torch.is_grad_enabled() or any(map(torch._C._functorch.is_functorch_wrapped_tensor, gradients))
        results: list[Tensor | None] = [None]
        for number, (gradient, (scores, *shared)) in enumerate(zip(gradients, tensors, strict=True)):
            for_free: Tensor | None = None
            if by_rule:
                for_scores, for_free = _gradients(gradient, sight.selections[number], scores, Shared(*shared))
            else:
                cache, arrays, cut = sight.found[number]
                free_array = None
                if ctx.needs_input_grad[4 * number + 2]:
                    for_free, free_array = cache.free_gradient.like(shared[0])
                for_scores, score_array = cache.score_gradient.like(scores)
                arriving = _flat(gradient.contiguous())
                _back()(arriving, *arrays, cut.threshold, cut.losers, free_array, score_array)
            results += [for_scores, for_free, None, None]
        return tuple(results)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], sight: MaskedWeights, *tensors: Any) -> tuple[Any, Any]:
        rows = vmapped_rows(info.batch_size, in_dims[1:], tensors)
        seen = [
            [
                _plainly(Selection(scores, selection.fraction, selection.by), Shared(*shared))
                for selection, scores, *shared in zip(sight.selections, *_in_fours(row), strict=True)
            ]
            for row in rows
        ]
        return tuple(map(torch.stack, zip(*seen, strict=True))), (0,) * len(sight.selections)


def _masked(*inputs: Any) -> tuple[Tensor, ...]:
    # torch reads the signature of `forward` in every call, which takes longer than the passes over a small layer; it
    # is only needed inside transforms like vmap
    apply: Any = _Masking.apply
    if not torch._C._are_functorch_transforms_active():
        apply = super(torch.autograd.Function, _Masking).apply
    return cast(tuple[Tensor, ...], apply(*inputs))


@functools.cache
def _back() -> Callable[..., None]:
    from forgetfree.kernels import back

    return cast(Callable[..., None], back)


def _in_fours(tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    return tensors[0::4], tensors[1::4], tensors[2::4], tensors[3::4]


def _gradients(gradient: Tensor, selection: Selection, scores: Tensor, shared: Shared) -> tuple[Tensor, Tensor]:
    """What `kernels.back` computes, by operations that torch can follow: for second derivatives, and under vmap."""
    mask = top_fraction(scores.detach(), selection.fraction, by=selection.by)
    movable = mask if shared.used is None else mask * ~shared.used
    return gradient * shared.values() * sign(scores), gradient * movable


def _flat(tensor: Tensor) -> Any:
    return tensor.detach().view(-1).numpy()
