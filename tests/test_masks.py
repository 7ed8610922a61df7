"""Scores become masks: how many weights are kept, which ones, and what gradients weights and scores receive."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.masks import _select_without_waiting, kept_count, select, soft_mask, top_fraction
from forgetfree.scores import Scores
from forgetfree.settings import settings_of

CAPACITIES = st.one_of(st.sampled_from([1.0, 1e-9, 0.5, 0.05, 0.1, 0.3, 0.7]), st.floats(1e-9, 1.0))
MANY_TIES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, math.inf, -math.inf])
VALUES = st.one_of(MANY_TIES, st.floats(-3, 3, width=32))
TYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def slow_kept_count(size: int, capacity: float) -> int:
    """The same number by exact fractions: the product is taken in float64, then rounded half to even by hand."""
    product = Fraction((1.0 - capacity) * float(size - 1))
    below = product.numerator // product.denominator
    rest = product - below
    up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1)
    return size - (below + up)


def slow_selection(ranks: Tensor, count: int) -> Tensor:
    """The first `count` of a stable sort by (highest rank, lower flat index)."""
    flat = [float(value) for value in ranks.reshape(-1)]
    first = sorted(range(len(flat)), key=lambda i: (-flat[i], i))[:count]
    chosen = torch.zeros(len(flat), dtype=torch.bool)
    chosen[first] = True
    return chosen.reshape(ranks.shape)


def slow_sign(scores: Tensor) -> Tensor:
    return torch.tensor([1.0 if float(s) >= 0 else -1.0 for s in scores.detach().reshape(-1)]).reshape(scores.shape)


@st.composite
def score_tensors(draw: st.DrawFn) -> Tensor:
    """Any shape of up to 4 dimensions, any of our types, contiguous or not, with many ties."""
    shape = draw(st.lists(st.integers(1, 5), min_size=0, max_size=4))
    size = math.prod(shape)
    values = draw(st.lists(VALUES, min_size=size, max_size=size))
    scores = torch.tensor(values, dtype=torch.float64).to(draw(TYPES)).reshape(shape)
    if scores.dim() > 1 and draw(st.booleans()):
        scores = scores.transpose(0, -1)
    if scores.dim() and draw(st.booleans()):
        scores = scores.repeat_interleave(2, dim=0)[::2]
    return scores


@settings(deadline=None)
@given(size=st.integers(1, 10**7), capacity=CAPACITIES)
def test_the_number_kept_is_the_formula_in_float64(size: int, capacity: float) -> None:
    assert kept_count(size, capacity) == slow_kept_count(size, capacity)
    assert 1 <= kept_count(size, capacity) <= size


def test_kept_counts_of_known_cases() -> None:
    assert [kept_count(n, 1.0) for n in (0, 1, 2, 1000)] == [0, 1, 2, 1000]
    assert [kept_count(n, 1e-9) for n in (0, 1, 2, 1000)] == [0, 1, 1, 1]
    assert kept_count(101, 0.05) == 101 - 95
    assert kept_count(2, 0.5) == 2  # half rounds to even: round(0.5) = 0
    assert kept_count(4, 0.5) == 2  # and round(1.5) = 2


@settings(max_examples=300, deadline=None)
@given(scores=score_tensors(), capacity=CAPACITIES, by=st.sampled_from(["magnitude", "value"]))
def test_the_selection_is_that_of_a_stable_sort(scores: Tensor, capacity: float, by: str) -> None:
    mask = top_fraction(scores, capacity, by=by)
    ranks = scores.abs() if by == "magnitude" else scores
    expected = slow_selection(ranks, slow_kept_count(scores.numel(), capacity))
    assert mask.shape == scores.shape
    assert mask.dtype == scores.dtype
    assert torch.equal(mask != 0, expected)
    assert set(mask.reshape(-1).tolist()) <= {0.0, 1.0}


@settings(deadline=None)
@given(values=st.lists(VALUES, max_size=30), data=st.data())
def test_select_takes_any_count(values: list[float], data: st.DataObject) -> None:
    ranks = torch.tensor(values, dtype=torch.float32)
    count = data.draw(st.integers(1 if values else 0, len(values)))
    assert torch.equal(select(ranks, count), slow_selection(ranks, count))


def test_an_empty_layer_has_an_empty_mask() -> None:
    assert top_fraction(torch.zeros(0, 3), 0.5).shape == (0, 3)


def test_equal_scores_are_taken_in_flat_order() -> None:
    assert top_fraction(torch.zeros(2, 4), 0.5).reshape(-1).tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert top_fraction(torch.tensor([-0.0, 0.0, -0.0]), 1e-9).tolist() == [1, 0, 0]


@settings(deadline=None)
@given(
    values=st.lists(MANY_TIES, max_size=12),
    at=st.integers(0, 12),
    capacity=CAPACITIES,
    dtype=TYPES,
    by=st.sampled_from(["magnitude", "value"]),
)
def test_a_nan_score_is_an_error_wherever_it_is(
    values: list[float], at: int, capacity: float, dtype: torch.dtype, by: str
) -> None:
    scores = torch.tensor([*values[:at], math.nan, *values[at:]], dtype=dtype)
    with pytest.raises(ff.ForgetfreeError, match="NaN"):
        top_fraction(scores, capacity, by=by)


@pytest.mark.parametrize("capacity", [0, 0.0, -0.1, 1.0001, 5, math.nan, math.inf, "0.5", None, True])
def test_a_capacity_outside_its_range_is_refused(capacity: object) -> None:
    with pytest.raises(ff.ForgetfreeError, match=r"in \(0, 1\]"):
        settings_of(ff.WSN)["capacity"].checked(capacity)
    with pytest.raises(ff.ForgetfreeError, match=r"in \(0, 1\]"):
        ff.WSN(nn.Linear(3, 3), capacity=capacity)  # type: ignore[arg-type]


def test_an_unknown_way_to_rank_is_refused() -> None:
    with pytest.raises(ff.ForgetfreeError, match="'magnitude'"):
        ff.WSN(nn.Linear(3, 3), capacity=0.5, by="size")  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.one_of(MANY_TIES.filter(math.isfinite), st.floats(-3, 3, width=32)), min_size=1, max_size=24),
    capacity=CAPACITIES,
    by=st.sampled_from(["magnitude", "value"]),
    seed=st.integers(0, 1000),
)
def test_gradients_of_weights_and_scores_are_the_formulas(
    values: list[float], capacity: float, by: str, seed: int
) -> None:
    chance = torch.Generator().manual_seed(seed)
    scores = torch.tensor(values, requires_grad=True)
    size = len(values)
    free = torch.randn(size, generator=chance).requires_grad_()
    kept = torch.randn(size, generator=chance)
    used = torch.rand(size, generator=chance) < 0.5
    outer = torch.randn(size, generator=chance)  # G, the gradient of the effective weight

    mask = top_fraction(scores, capacity, by=by)
    (torch.where(used, kept, free) * mask).backward(outer)

    theta = torch.where(used, kept, free).detach()
    sign = slow_sign(scores) if by == "magnitude" else torch.ones(size)
    assert torch.equal(free.grad, torch.where(used, 0.0, mask.detach() * outer))
    assert torch.equal(scores.grad, sign * theta * outer)


def test_the_sign_of_zero_and_of_minus_zero_is_plus_one() -> None:
    scores = torch.tensor([0.0, -0.0, 1.0, -1.0], requires_grad=True)
    top_fraction(scores, 0.5).backward(torch.ones(4))
    assert scores.grad.tolist() == [1, 1, 1, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_trainable_view_has_the_gradients_of_the_formulas(dtype: torch.dtype) -> None:
    """x -> W x with known x: the gradient of the effective weight is an outer product, known without autograd."""
    torch.manual_seed(0)
    network = ff.SharedNetwork(nn.Linear(6, 5, bias=False).to(dtype))
    scores = Scores.random(network.weights, seed=1)
    _, learned = next(iter(scores.named_parameters()))
    with torch.no_grad():
        learned[0, :2] = torch.tensor([0.0, -0.0])
        learned[1] = 1.0  # ties
    first = network.trainable_view()
    network.keep("first", first, scores.top(0.3))
    used, kept = network.used["weight"].clone(), network.weights["weight"].clone()
    assert 0 < int(used.sum()) < used.numel()

    view = network.trainable_view()
    (free,) = [parameter for _, parameter in view.named_parameters()]
    with torch.no_grad():
        free.add_(1.0)  # also where it is used: nothing of that may be seen
    masks = scores.top(0.6)
    inputs, outer = torch.randn(3, 6).to(dtype), torch.randn(3, 5).to(dtype)
    outputs = view(inputs, masks)
    theta, mask = torch.where(used, kept, free).detach(), masks["weight"].mask().to(dtype)
    assert torch.equal(outputs, inputs @ (theta * mask).T)

    outputs.backward(outer)
    gradient = outer.T @ inputs  # G
    assert torch.equal(free.grad, torch.where(used, torch.zeros((), dtype=dtype), mask * gradient))
    assert torch.equal(learned.grad, slow_sign(learned) * (theta * gradient).to(learned.dtype))
    assert bool((learned.grad != 0).all())  # weights that are not selected can earn their place


def test_what_is_used_never_moves_even_when_its_free_value_does() -> None:
    network = ff.SharedNetwork(nn.Linear(6, 5, bias=False))
    scores = Scores.random(network.weights, seed=1)
    network.keep("first", network.trainable_view(), scores.top(0.3))
    used, kept = network.used["weight"].clone(), network.weights["weight"].clone()
    view = network.trainable_view()
    with torch.no_grad():
        for _, parameter in view.named_parameters():
            parameter.fill_(7.0)
    network.keep("second", view, scores.top(0.9))
    assert torch.equal(network.weights["weight"], torch.where(used, kept, torch.tensor(7.0)))


def test_the_ticket_is_the_mask_of_the_scores_that_were_kept() -> None:
    torch.manual_seed(0)
    learner = ff.WSN(nn.Linear(6, 8), capacity=0.3, recipe=ff.Recipe(epochs=2, batch_size=8, lr=0.05))
    learner.learn(ff.Task("one", (0, 1), (torch.randn(16, 6), torch.arange(16) % 2)))
    scores = learner.scores.state_dict()["weight"]
    expected = slow_selection(scores.abs(), slow_kept_count(scores.numel(), 0.3))
    assert torch.equal(learner.memory().tickets["one"].mask("weight"), expected)


@settings(max_examples=60)
@given(scores=score_tensors(), capacity=CAPACITIES)
def test_the_selection_that_never_waits_for_the_device_is_the_same(scores: Tensor, capacity: float) -> None:
    ranks, count = scores.detach().abs().reshape(-1), kept_count(scores.numel(), capacity)
    assert torch.equal(_select_without_waiting(ranks, count), select(ranks, count))


def test_a_selection_off_the_cpu_never_asks_the_device_for_a_value() -> None:
    # a meta tensor has no values: asking it for one is an error
    ranks = torch.empty(300, device="meta")
    assert select(ranks, 20).shape == (300,)
    with pytest.raises((RuntimeError, NotImplementedError)):
        ranks.sum().item()


def test_the_selection_that_never_waits_does_not_keep_nan() -> None:
    ranks = torch.tensor([1.0, math.nan, 3.0, 2.0])
    assert _select_without_waiting(ranks, 2).tolist() == [False, False, True, True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@settings(max_examples=30)
@given(scores=score_tensors(), capacity=CAPACITIES)
def test_a_selection_on_a_cuda_device_is_that_of_the_cpu(scores: Tensor, capacity: float) -> None:
    assert torch.equal(top_fraction(scores.detach().cuda(), capacity).cpu(), top_fraction(scores.detach(), capacity))


def test_a_soft_mask_has_ones_on_the_majors_and_lets_the_gradient_of_the_mask_through() -> None:
    scores = torch.tensor([0.3, -0.9, 0.1, 0.5], requires_grad=True)
    minor = torch.tensor([0.2, 0.4, 0.6, 0.8])
    mask = soft_mask(top_fraction(scores, 0.5), minor)
    assert torch.equal(mask, torch.tensor([0.2, 1.0, 0.6, 1.0]))
    mask.backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert scores.grad is not None
    assert torch.equal(scores.grad, torch.tensor([1.0, -2.0, 3.0, 4.0]))  # sign(s), on all entries
