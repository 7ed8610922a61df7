"""Scores become masks: the exact top fraction of each layer, with a straight-through gradient (Algorithm 1, line 4).

    scores s        rank by |s|, keep the top c            mask m
    0.3 -0.9 0.1    ─────────────────────────────►   0  1  0          forward
    sign(s)·∂m      ◄─────────────────────────────   ∂m               backward

With θ the weight and G the gradient of the effective weight θ·m, the chain rule then gives ∂θ = m·G and
∂s = sign(s)·θ·G: a weight that is not selected can still earn its place.
"""

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from forgetfree.buffers import Reused
from forgetfree.errors import InputError
from forgetfree.rng import generator, philox_uniform

if TYPE_CHECKING:
    from forgetfree.kernels import Cut

log = logging.getLogger("forgetfree")

Rank = Literal["magnitude", "value"]
QUANTILES = 65
"""Numbers that say how the scores of a layer are spread."""
STAYING = 8
"""Tensors whose memory a workplace knows: free and kept weights, which are used, and scores, with some to spare."""
WORTH_KERNELS = 10_000
"""From this many weights on, importing and compiling kernels pays."""


def check_capacity(capacity: float) -> float:
    """`capacity` itself, if it is a fraction of weights that can be kept."""
    if isinstance(capacity, bool) or not isinstance(capacity, int | float) or not 0 < capacity <= 1:
        raise InputError(f"capacity is the fraction of weights kept, in (0, 1]; got {capacity!r}. For 5 % pass 0.05.")
    return float(capacity)


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


def soften(mask: Tensor, minor: Tensor) -> Tensor:
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

    def __init__(self, scores: Tensor, fraction: float, by: Rank, workplace: "_Workplace | None" = None):
        self.scores, self.fraction, self.by = scores, fraction, by
        self.count = kept_count(scores.numel(), fraction)
        self.workplace = workplace

    def mask(self) -> Tensor:
        """True where a weight is selected. A NaN score is an error."""
        ranks = self.scores.detach()
        return select(ranks.abs() if self.by == "magnitude" else ranks, self.count)

    def cut(self) -> "Cut":
        """The same selection as a threshold and the ties below it; only where there are kernels."""
        assert self.workplace is not None
        return self.workplace.search.cut(self.workplace.array(self.scores), self.count)


Masks = Mapping[str, Selection | Tensor]
"""What a task sees of every shared tensor: a selection, or any mask as a tensor."""


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


def see_through(masks: Masks, weights: Mapping[str, Shared]) -> dict[str, Tensor]:
    """The effective weights, where(used, kept, free)·mask, with gradients for what is free and for the scores."""
    fast = [name for name, mask in masks.items() if _suits_kernels(mask, weights[name])]
    seen: dict[str, Tensor] = {}
    if fast:
        looks = [cast(Selection, masks[name]) for name in fast]
        tensors = [tensor for name, look in zip(fast, looks, strict=True) for tensor in (look.scores, *weights[name])]
        seen = dict(zip(fast, _seen_through(_Sight(looks), *tensors), strict=True))
    if len(seen) == len(masks):
        return seen
    return {name: seen[name] if name in seen else _plainly(mask, weights[name]) for name, mask in masks.items()}


class Scores:
    """One learnable score per masked weight. They carry over from task to task: `fork` starts the next one."""

    def __init__(self, values: Mapping[str, Tensor], *, by: Rank = "magnitude"):
        if by not in ("magnitude", "value"):
            raise InputError(f"scores are ranked by 'magnitude' (|s|) or by 'value' (s); got {by!r}.")
        self.by = by
        self._values = {name: nn.Parameter(value.detach().clone()) for name, value in values.items()}
        self._workplaces: dict[str, _Workplace] | None = None  # speed, not state

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
        ranked = {name: value.abs() if self.by == "magnitude" else value for name, value in self.state_dict().items()}
        return {name: _quantiles(value.reshape(-1).cpu(), levels) for name, value in ranked.items() if value.numel()}

    def fork(self) -> "Scores":
        """A copy to learn with; nothing of it is shared with this one."""
        return Scores(self._values, by=self.by)

    def to(self, device: torch.device) -> "Scores":
        return Scores({name: value.to(device) for name, value in self._values.items()}, by=self.by)

    def top(self, fraction: float) -> dict[str, Selection]:
        """Of every layer, its top `fraction` of scores."""
        if self._workplaces is None:
            self._workplaces = _workplaces(self._values, self.by)
        found = self._workplaces.get
        return {name: Selection(value, fraction, self.by, found(name)) for name, value in self._values.items()}

    def soft(self, fraction: float, minor: "Minor") -> Masks:
        """Of every layer a soft mask: one on its top `fraction`, `minor` elsewhere."""
        if minor.number == Minor.NONE:
            return self.top(fraction)
        return {
            name: soften(top_fraction(value, fraction, by=self.by), minor.value(name).to(value))
            for name, value in self._values.items()
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


class Minor:
    """What stands where a soft mask has no one: U(0,1) for every weight, drawn by a number.

    The number alone is the state: a best epoch, a checkpoint or an archive gives the same values again.
    """

    NONE = -1
    """The number before the first draw: all zeros, so that the soft mask is the hard one."""

    def __init__(self, shapes: Mapping[str, torch.Size], seed: int, number: int = NONE):
        self.training = False
        self._shapes, self._seed = dict(shapes), seed
        self._number = torch.tensor(number)
        self._drawn: tuple[int, dict[str, Tensor]] | None = None

    @property
    def number(self) -> int:
        return int(self._number)

    def draw(self, number: int) -> None:
        """Go on to the draw of this number."""
        self._number.fill_(number)

    def value(self, name: str) -> Tensor:
        """The values for one tensor."""
        if self._drawn is None or self._drawn[0] != self.number:
            self._drawn = self.number, {}
        drawn = self._drawn[1]
        if name not in drawn:
            shape = self._shapes[name]
            uniform = np.zeros(shape.numel(), np.float32)
            if self.number != self.NONE:
                uniform = philox_uniform(shape.numel(), self._seed, "minor", self.number, name)
            drawn[name] = torch.from_numpy(uniform).view(shape)
        return drawn[name]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Nothing of it is learned."""
        return iter(())

    def state_dict(self) -> dict[str, Tensor]:
        return {"number": self._number}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._number.copy_(state["number"])

    def train(self, mode: bool = True) -> None:
        self.training = mode


def as_mask(selection: Selection | Tensor) -> Tensor:
    """True where a weight is selected."""
    return selection.mask() if isinstance(selection, Selection) else selection.detach() != 0


def _plainly(mask: Selection | Tensor, shared: Shared) -> Tensor:
    values = shared.values()
    if isinstance(mask, Selection):
        mask = top_fraction(mask.scores, mask.fraction, by=mask.by)
    return values * mask.to(values.dtype)


def _suits_kernels(mask: Selection | Tensor, shared: Shared) -> bool:
    return (
        isinstance(mask, Selection)
        and mask.workplace is not None
        and shared.free.dtype == mask.scores.dtype
        and shared.free.is_contiguous()
    )


class _Workplace:
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


class _Sight:
    """One look through selections: what the forward pass found and the backward pass needs."""

    def __init__(self, selections: list[Selection]):
        self.selections = selections
        self.found: list[tuple[_Workplace, tuple[Any, ...], Cut]] = []

    def look(self, selection: Selection, scores: Tensor, *shared: Tensor | None) -> Tensor:
        workplace = cast(_Workplace, selection.workplace)
        arrays = (*map(workplace.array, shared), workplace.array(scores))
        effective, seen = workplace.effective.like(cast(Tensor, shared[0]))
        cut = workplace.search.look(arrays, selection.count, seen)
        self.found.append((workplace, arrays, cut))
        return effective


class _SeenThrough(torch.autograd.Function):
    """All effective weights, each in one pass, and both gradients of each in one pass back (see `kernels`).

    One function for all tensors, because in a small network its calls take longer than the passes. Tensors come in
    fours: scores, free, kept, used.
    """

    @staticmethod
    def forward(sight: _Sight, *tensors: Any) -> tuple[Tensor, ...]:
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
                workplace, arrays, cut = sight.found[number]
                free_array = None
                if ctx.needs_input_grad[4 * number + 2]:
                    for_free, free_array = workplace.free_gradient.like(shared[0])
                for_scores, score_array = workplace.score_gradient.like(scores)
                arriving = _flat(gradient.contiguous())
                _back()(arriving, *arrays, cut.threshold, cut.losers, free_array, score_array)
            results += [for_scores, for_free, None, None]
        return tuple(results)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], sight: _Sight, *tensors: Any) -> tuple[Any, Any]:
        rows = _rows(info.batch_size, in_dims[1:], tensors)
        seen = [
            [
                _plainly(Selection(scores, selection.fraction, selection.by), Shared(*shared))
                for selection, scores, *shared in zip(sight.selections, *_in_fours(row), strict=True)
            ]
            for row in rows
        ]
        return tuple(map(torch.stack, zip(*seen, strict=True))), (0,) * len(sight.selections)


def _seen_through(*inputs: Any) -> tuple[Tensor, ...]:
    # torch reads the signature of `forward` in every call, which takes longer than the passes over a small layer; it
    # is only needed inside transforms like vmap
    apply: Any = _SeenThrough.apply
    if not torch._C._are_functorch_transforms_active():
        apply = super(torch.autograd.Function, _SeenThrough).apply
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
    return gradient * shared.values() * _sign(scores), gradient * movable


def _rows(size: int, dims: tuple[int | None, ...], tensors: tuple[Tensor | None, ...]) -> Iterator[tuple[Any, ...]]:
    """The arguments of every row of a vmap."""
    apart = [
        [value] * size if dim is None or value is None else value.unbind(dim)
        for dim, value in zip(dims, tensors, strict=True)
    ]
    return zip(*apart, strict=True)


def _flat(tensor: Tensor) -> Any:
    return tensor.detach().view(-1).numpy()


def _workplaces(values: Mapping[str, Tensor], by: Rank) -> dict[str, _Workplace]:
    """A workplace for every tensor that the kernels can take, if together they are large enough to be worth it."""
    able = [
        name
        for name, value in values.items()
        if value.device.type == "cpu" and value.dtype in (torch.float32, torch.float64) and value.is_contiguous()
    ]
    if by != "magnitude" or sum(values[name].numel() for name in able) < WORTH_KERNELS:
        return {}
    try:
        return {name: _Workplace(values[name].numel()) for name in able if values[name].numel()}
    except (ImportError, RuntimeError) as error:  # numba raises the latter where it finds no place for its cache
        log.info("numba cannot be used (%s): masks are made by plain torch, which is slower.", error)
        return {}


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
        return gradient if ctx.by == "value" else gradient * _sign(scores), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], scores: Tensor, fraction: float, by: Rank
    ) -> tuple[Tensor, int]:
        rows = _rows(info.batch_size, in_dims[:1], (scores,))
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


def _sign(scores: Tensor) -> Tensor:
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
