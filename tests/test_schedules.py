"""The learning rate rises in the warm-up and falls by its schedule, to exact values at both ends."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from forgetfree.errors import InputError
from forgetfree.training.schedules import SCHEDULES, constant, cosine, factor_at, linear

FALLING = ["cosine", "linear"]


@given(name=st.sampled_from(FALLING), warmup=st.floats(1e-3, 0.99), floor=st.floats(0, 0.99))
def test_it_starts_at_nothing_is_whole_after_the_warm_up_and_ends_at_the_floor(name, warmup, floor):
    factor = SCHEDULES[name](warmup, floor)
    assert factor(0) == 0
    assert factor(warmup) == 1
    assert factor(1) == floor
    assert factor(warmup / 2) == 0.5


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_warm_up_it_starts_whole(name):
    assert factor_at(name, 0.0) == 1
    assert factor_at(name, 1.0) == (1 if name == "constant" else 0)


@given(name=st.sampled_from(FALLING), warmup=st.floats(0, 0.9), floor=st.floats(0, 0.9))
def test_after_the_warm_up_it_never_rises_and_never_falls_below_the_floor(name, warmup, floor):
    factor = SCHEDULES[name](warmup, floor)
    values = [factor(warmup + (1 - warmup) * step / 50) for step in range(50)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(values))
    assert all(floor - 1e-12 <= value <= 1 + 1e-12 for value in values)


def test_half_way_down_it_is_half_way_to_the_floor():
    assert cosine(0.2, 0.1)(0.6) == pytest.approx(0.55)
    assert linear(0.2, 0.1)(0.6) == pytest.approx(0.55)
    assert cosine()(0.25) == pytest.approx((1 + 0.5**0.5) / 2)
    assert linear()(0.25) == 0.75
    assert [constant(0.5)(progress) for progress in (0, 0.25, 0.5, 0.9, 1)] == [0, 0.5, 1, 1, 1]


def test_the_cosine_is_that_of_torch():
    parameter = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20, eta_min=0.1)
    for step in range(20):
        assert factor_at("cosine", step / 20, 0.0, 0.1) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()


def test_what_cannot_be_a_schedule_is_told():
    with pytest.raises(InputError, match="no schedule 'step'; there are constant, cosine, linear"):
        factor_at("step", 0.5)
    with pytest.raises(InputError, match="warmup, the part of the training"):
        cosine(warmup=1.0)
    with pytest.raises(InputError, match="floor, the part of the learning rate"):
        linear(floor=-0.1)
    with pytest.raises(InputError, match="has no floor"):
        constant(floor=0.1)
    with pytest.raises(InputError, match=r"in \[0, 1\]; got 1.5"):
        cosine()(1.5)
