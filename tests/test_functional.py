"""A step of gradient descent as a function of its tensors and rates, in first and in second order."""

import pytest
import torch
from torch import nn

from forgetfree.errors import InputError
from forgetfree.functional import functional_forward, inner_step
from forgetfree.rng import generator

INPUTS = torch.randn(12, 4, generator=generator(0, "inputs"))
LABELS = torch.arange(12) % 3


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
        module(INPUTS)
    return module.eval()


def loss_of(module, tensors):
    return nn.functional.cross_entropy(functional_forward(module, tensors, INPUTS), LABELS)


def test_at_rate_zero_the_tensors_are_the_same_bit_for_bit():
    module = network()
    theta = dict(module.named_parameters())
    for rates in (0.0, dict.fromkeys(theta, 0.0), {name: torch.zeros_like(value) for name, value in theta.items()}):
        for second_order in (False, True):
            fast = inner_step(loss_of(module, theta), theta, rates, second_order=second_order)
            assert list(fast) == list(theta)
            assert all(torch.equal(fast[name].view(torch.int32), theta[name].view(torch.int32)) for name in theta)


def test_a_step_is_that_of_plain_gradient_descent_and_changes_nothing_in_place():
    module = network()
    theta = dict(module.named_parameters())
    before = {name: value.detach().clone() for name, value in theta.items()}
    fast = inner_step(loss_of(module, theta), theta, 0.1)
    assert all(torch.equal(theta[name], before[name]) for name in theta)
    assert all(value.grad is None for value in theta.values())
    nn.functional.cross_entropy(module(INPUTS), LABELS).backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    assert all(torch.allclose(fast[name], value) for name, value in module.named_parameters())
    assert loss_of(module, fast) < loss_of(module, before)


def test_first_and_second_order_differ_by_the_curvature_of_a_quadratic():
    """After a step on h/2·θ² the outer loss θ'^2/2 has slope θ' in first order and (1 - α·h)·θ' in second."""
    curvature, rate = 3.0, 0.125
    slopes = {}
    for second_order in (False, True):
        theta = torch.tensor(2.0, requires_grad=True)
        fast = inner_step(curvature / 2 * theta**2, {"theta": theta}, rate, second_order=second_order)["theta"]
        (slopes[second_order],) = torch.autograd.grad(fast**2 / 2, theta)
    assert slopes[False] == (1 - rate * curvature) * 2.0
    assert slopes[True] == (1 - rate * curvature) * slopes[False]


@pytest.mark.parametrize("second_order", [False, True])
def test_the_gradient_reaches_the_rates(second_order):
    module = network()
    theta = dict(module.named_parameters())
    rates = {name: torch.full_like(value, 0.1, requires_grad=True) for name, value in theta.items()}
    inner = loss_of(module, theta)
    gradients = dict(zip(theta, torch.autograd.grad(inner, list(theta.values()), retain_graph=True), strict=True))
    fast = inner_step(inner, theta, rates, second_order=second_order)
    outer = loss_of(module, fast)
    by_fast = torch.autograd.grad(outer, list(fast.values()), retain_graph=True)
    by_rate = torch.autograd.grad(outer, list(rates.values()))
    for name, of_fast, of_rate in zip(theta, by_fast, by_rate, strict=True):
        assert torch.allclose(of_rate, -gradients[name] * of_fast, atol=1e-7)
        assert of_rate.any()


def test_several_steps_can_be_taken_and_the_gradient_reaches_the_first_tensors():
    module = network()
    theta = dict(module.named_parameters())
    rate = torch.tensor(0.1, requires_grad=True)
    fast = theta
    for _ in range(3):
        fast = inner_step(loss_of(module, fast), fast, rate, second_order=True)
    loss_of(module, fast).backward()
    assert all(value.grad is not None and value.grad.any() for value in theta.values())
    assert rate.grad


def test_entries_of_the_gradient_are_clipped_after_it_was_changed():
    theta = torch.tensor([1.0, -3.0, 0.1], requires_grad=True)
    loss = (theta**2).sum() / 2
    assert inner_step(loss, {"t": theta}, 1.0, clip=0.5)["t"].tolist() == pytest.approx([0.5, -2.5, 0.0])
    loss = (theta**2).sum() / 2
    changed = inner_step(loss, {"t": theta}, 1.0, clip=1.0, change=lambda name, value: value * {"t": 0.5}[name])
    assert changed["t"].tolist() == pytest.approx([0.5, -2.0, 0.05])


def test_a_negative_rate_goes_uphill():
    module = network()
    theta = dict(module.named_parameters())
    assert loss_of(module, inner_step(loss_of(module, theta), theta, -0.1)) > loss_of(module, theta)


def test_a_tensor_that_the_loss_does_not_depend_on_stays_the_same():
    theta, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    assert inner_step(theta.sum(), {"theta": theta, "other": other}, 0.1)["other"] is other


def test_a_module_answers_with_the_tensors_it_is_given_and_keeps_its_own():
    module = network()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    zeros = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    assert not functional_forward(module, zeros, INPUTS).any()
    assert torch.equal(functional_forward(module, {}, INPUTS), module(INPUTS))
    own_bias = functional_forward(module, {"3.weight": zeros["3.weight"]}, INPUTS)
    assert torch.equal(own_bias, module[3].bias.expand(12, 3))
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


def test_inputs_by_name_reach_the_module():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, *, left, right):
            return self.weight * (left - right)

    found = functional_forward(Weighted(), {"weight": torch.full((4,), 2.0)}, {"left": INPUTS, "right": -INPUTS})
    assert torch.equal(found, 4 * INPUTS)


def test_names_that_do_not_fit_are_told():
    module = network()
    theta = dict(module.named_parameters())
    with pytest.raises(InputError, match="has no tensors called weight"):
        functional_forward(module, {"weight": INPUTS}, INPUTS)
    with pytest.raises(InputError, match=r"there is none for 0\.weight"):
        inner_step(loss_of(module, theta), theta, {name: 0.1 for name in theta if name != "0.weight"})
