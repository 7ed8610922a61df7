"""Tickets: bit-packed masks come back as they went in, and the algebra over tickets is that of sets."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import forgetfree as ff
from forgetfree.tickets import PackedMask, Ticket, density, new_in, overlap, reused_by_all, reused_in, used

SHAPES = {"a": (3, 4), "b": (5,)}


def ticket(**chosen: set[int]) -> Ticket:
    """A ticket that uses these flat indices of each tensor in SHAPES."""
    masks = {}
    for name, shape in SHAPES.items():
        flat = torch.zeros(math.prod(shape), dtype=torch.bool)
        flat[sorted(chosen.get(name, set()))] = True
        masks[name] = PackedMask.pack(flat.reshape(shape))
    return Ticket(masks)


def indices(sets: dict[str, Tensor]) -> dict[str, set[int]]:
    return {name: set(mask.reshape(-1).nonzero().squeeze(1).tolist()) for name, mask in sets.items()}


@st.composite
def many_tickets(draw: st.DrawFn) -> dict[str, dict[str, set[int]]]:
    one = st.fixed_dictionaries({name: st.sets(st.integers(0, math.prod(shape) - 1)) for name, shape in SHAPES.items()})
    return {f"task {i}": chosen for i, chosen in enumerate(draw(st.lists(one, min_size=1, max_size=5)))}


@settings(deadline=None)
@given(
    shape=st.lists(st.integers(0, 6), max_size=4),
    data=st.data(),
    dtype=st.sampled_from([torch.bool, torch.float32, torch.bfloat16, torch.uint8]),
)
def test_a_packed_mask_comes_back_as_it_went_in(shape: list[int], data: st.DataObject, dtype: torch.dtype) -> None:
    size = math.prod(shape)
    bits = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    mask = torch.tensor(bits, dtype=torch.bool).reshape(shape)
    packed = PackedMask.pack(mask.to(dtype))
    assert packed.nbytes == math.ceil(size / 8)
    back = packed.unpack()
    assert back.dtype == torch.bool
    assert torch.equal(back, mask)


def test_a_mask_is_packed_in_logical_order_whatever_its_strides() -> None:
    mask = torch.tensor([[True, False, True], [False, False, True]])
    assert torch.equal(PackedMask.pack(mask.T).unpack(), mask.T)
    assert PackedMask.pack(mask.reshape(-1)).bits.tolist() == [0b10100100]


def test_a_packed_mask_shares_no_memory_with_the_mask() -> None:
    mask = torch.ones(8, dtype=torch.bool)
    packed = PackedMask.pack(mask)
    mask.zero_()
    packed.unpack().zero_()
    assert bool(packed.unpack().all())


def test_the_algebra_of_a_case_made_by_hand() -> None:
    tickets = {
        "one": ticket(a={0, 1, 2}, b={0}),
        "two": ticket(a={2, 3}, b={0, 1}),
        "three": ticket(a={2, 11}, b=set()),
    }
    assert indices(used(tickets)) == {"a": {0, 1, 2, 3, 11}, "b": {0, 1}}
    assert indices(reused_by_all(tickets)) == {"a": {2}, "b": set()}
    assert indices(new_in(tickets, "one")) == {"a": {0, 1, 2}, "b": {0}}
    assert indices(new_in(tickets, "two")) == {"a": {3}, "b": {1}}
    assert indices(new_in(tickets, "three")) == {"a": {11}, "b": set()}
    assert indices(reused_in(tickets, "one")) == {"a": set(), "b": set()}
    assert indices(reused_in(tickets, "two")) == {"a": {2}, "b": {0}}
    assert indices(reused_in(tickets, "three")) == {"a": {2}, "b": set()}
    assert indices(overlap(tickets["one"], tickets["two"])) == {"a": {2}, "b": {0}}
    assert density(used(tickets)) == 7 / 17
    assert density({}) == 0


@settings(deadline=None)
@given(chosen=many_tickets())
def test_the_algebra_is_that_of_sets(chosen: dict[str, dict[str, set[int]]]) -> None:
    tickets = {task: ticket(**sets) for task, sets in chosen.items()}
    for name in SHAPES:
        everyone = [sets[name] for sets in chosen.values()]
        assert indices(used(tickets))[name] == set().union(*everyone)
        assert indices(reused_by_all(tickets))[name] == set.intersection(*everyone)
        for i, task in enumerate(chosen):
            earlier = set().union(*everyone[:i])
            assert indices(new_in(tickets, task))[name] == everyone[i] - earlier
            assert indices(reused_in(tickets, task))[name] == everyone[i] & earlier
            other = everyone[i - 1]
            assert indices(overlap(tickets[task], tickets[list(chosen)[i - 1]]))[name] == everyone[i] & other
    total = sum(len(set().union(*(sets[name] for sets in chosen.values()))) for name in SHAPES)
    assert density(used(tickets)) == total / 17


@settings(deadline=None)
@given(chosen=many_tickets())
def test_what_is_new_in_each_task_makes_up_all_that_is_used(chosen: dict[str, dict[str, set[int]]]) -> None:
    tickets = {task: ticket(**sets) for task, sets in chosen.items()}
    parts = [density(new_in(tickets, task)) for task in tickets]
    assert sum(parts) == pytest.approx(density(used(tickets)))


def test_no_tickets_use_nothing() -> None:
    assert used({}) == {}
    assert reused_by_all({}) == {}


@pytest.mark.parametrize("question", [new_in, reused_in])
def test_an_unknown_task_is_an_error_that_lists_the_known_ones(question: object) -> None:
    with pytest.raises(ff.TaskError, match=r"'five'.*\['one'\]"):
        question({"one": ticket(a={1})}, "five")  # type: ignore[operator]


def test_a_ticket_unpacks_a_mask_by_name() -> None:
    assert ticket(b={4}).mask("b").tolist() == [False] * 4 + [True]
