"""Learning inside of learning: a step of gradient descent that gives new tensors and can be differentiated through.

    fast = dict(session.named_parameters())
    for inputs, labels in chunks:
        loss = cross_entropy(functional_forward(session, fast, inputs), labels)
        fast = inner_step(loss, fast, rates, second_order=True)
    cross_entropy(functional_forward(session, fast, others), their_labels).backward()   # reaches the first tensors

First order takes inner gradients as constants: the derivative of a step θ - α·g(θ) by θ is then 1, in second order
1 - α·g'(θ). By α it is -g in both.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from forgetfree.contracts import Inputs
from forgetfree.errors import InputError
from forgetfree.modules import as_call

Rates = float | Tensor | Mapping[str, float | Tensor]
"""One learning rate for all tensors, or one for each by name; a tensor has one for every entry, and gets a gradient."""


def inner_step(
    loss: Tensor,
    tensors: Mapping[str, Tensor],
    rates: Rates,
    *,
    second_order: bool = False,
    clip: float | None = None,
    change: Callable[[str, Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """The tensors after one step down the gradient of `loss`, which was computed from them; they stay as they are.

    `change(name, gradient)` makes another gradient of each, for example its part in a subspace; then entries are
    brought into [-clip, clip]. A negative rate goes uphill. A tensor that `loss` does not depend on stays the same.
    """
    rate_of = _rates_by_name(rates, tensors)
    gradients = torch.autograd.grad(loss, list(tensors.values()), create_graph=second_order, allow_unused=True)

    def stepped(name: str, value: Tensor, gradient: Tensor | None) -> Tensor:
        if gradient is None:
            return value
        changed = gradient if change is None else change(name, gradient)
        return value - rate_of[name] * (changed if clip is None else changed.clamp(-clip, clip))

    moved = zip(tensors.items(), gradients, strict=True)
    return {name: stepped(name, value, gradient) for (name, value), gradient in moved}


def functional_forward(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Inputs) -> Any:
    """What the module gives for these inputs with these tensors in place of its own of the same names.

    In training mode batch norm would still write its statistics to the module: call `module.eval()` first, or name
    its buffers among the tensors.
    """
    there = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    unknown = sorted(set(tensors) - there)
    if unknown:
        raise InputError(f"{type(module).__name__} has no tensors called {', '.join(unknown[:5])}.")
    args, kwargs = as_call(inputs)
    return functional_call(module, dict(tensors), args, kwargs)


def _rates_by_name(rates: Rates, tensors: Mapping[str, Tensor]) -> Mapping[str, float | Tensor]:
    if not isinstance(rates, Mapping):
        return dict.fromkeys(tensors, rates)
    missing = sorted(set(tensors) - set(rates))
    if missing:
        raise InputError(f"every tensor has a learning rate; there is none for {', '.join(missing[:5])}.")
    return rates
