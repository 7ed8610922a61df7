"""Memory is handed out again when nobody holds it any more, and never before."""

import copy

import pytest
import torch
from torch import nn

from forgetfree.buffers import ALIGNED, Reused

SHAPE = (7, 30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_is_of_the_asked_shape_and_type_and_shares_its_array(dtype):
    given, flat = Reused().like(torch.zeros(SHAPE, dtype=dtype))
    flat[:] = range(flat.size)
    assert (given.shape, given.dtype) == (SHAPE, dtype)
    assert given.is_contiguous()
    assert given.data_ptr() % ALIGNED == 0
    assert given.view(-1).tolist() == list(range(210))


def test_memory_comes_back_when_nobody_holds_it():
    reused, like = Reused(), torch.zeros(SHAPE)
    first, _ = reused.like(like)
    place = first.data_ptr()
    del first
    assert reused.like(like)[0].data_ptr() == place


@pytest.mark.parametrize(
    "hold",
    [
        lambda given: given,
        lambda given: given.view(-1)[3:4],
        lambda given: given.detach(),
        lambda given: given.numpy(),
        lambda given: given.untyped_storage(),
        lambda given: nn.Parameter(given),
    ],
    ids=["tensor", "view", "detached", "array", "storage", "parameter"],
)
def test_memory_that_somebody_holds_is_never_given_away(hold):
    reused, like = Reused(), torch.zeros(SHAPE)
    given, _ = reused.like(like)
    place, held = given.data_ptr(), hold(given)
    del given
    other, _ = reused.like(like)
    assert other.data_ptr() != place
    del held


def test_a_gradient_graph_holds_what_it_needs():
    reused = Reused()
    weight, _ = reused.like(torch.zeros(SHAPE))
    place = weight.data_ptr()
    x = torch.ones(SHAPE, requires_grad=True)
    loss = (x * weight.fill_(2.0)).sum()
    del weight
    other, flat = reused.like(torch.zeros(SHAPE))
    flat[:] = 5
    assert other.data_ptr() != place
    loss.backward()
    assert bool((x.grad == 2).all())


def test_another_shape_gets_other_memory_and_a_copy_shares_none():
    reused = Reused()
    place = reused.like(torch.zeros(SHAPE))[0].data_ptr()
    assert copy.deepcopy(reused).like(torch.zeros(SHAPE))[0].data_ptr() != place
    assert reused.like(torch.zeros(30, 7))[0].shape == (30, 7)
