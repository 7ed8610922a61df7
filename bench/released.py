"""The released way to learn through a mask, written anew in plain PyTorch from its description: a rival, not a method.

In every forward pass each layer finds the k-th smallest |score| and builds its mask with `where` from two constant
tensors; after every backward pass the gradients of used weights are set to zero by a boolean index. The optimizer is
torch's Adam as the scripts call it, without `fused`. Two things are kinder here than in the released scripts: old heads
are not handed to the optimizer, and the state that is kept holds the mask that was validated with it.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Used = Mapping[str, Tensor]
"""By name of a weight: one where some learned task uses it."""


class MaskedLayer(nn.Module):
    """A convolution or linear layer seen through the top `capacity` of its scores."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, capacity: float):
        super().__init__()
        self.layer, self.capacity = [layer], capacity  # in a list: its weight is a parameter of this module only
        self.weight = layer.weight
        self.scores = nn.Parameter(torch.empty_like(layer.weight))
        nn.init.kaiming_uniform_(self.scores, a=5**0.5)
        self.zeros, self.ones = torch.zeros_like(self.scores), torch.ones_like(self.scores)
        self.register_buffer("mask", torch.ones_like(layer.weight).detach())

    def forward(self, inputs: Tensor) -> Tensor:
        mask = self.mask
        if self.training:
            mask = _Top.apply(self.scores.abs(), self.zeros, self.ones, self.capacity)
            self.mask = mask.detach()
        weight, (layer,) = mask * self.weight, self.layer
        if isinstance(layer, nn.Linear):
            return F.linear(inputs, weight)
        return F.conv2d(inputs, weight, None, layer.stride, layer.padding)


def through_masks(net: nn.Module, capacity: float) -> nn.Module:
    """A copy of `net` with every convolution and linear layer masked."""
    masked = copy.deepcopy(net)
    for parent in list(masked.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d | nn.Linear):
                setattr(parent, name, MaskedLayer(child, capacity))
    return masked


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer as the scripts build it, with their learning rate."""
    return torch.optim.Adam(parameters, lr=1e-3)


def zero_used(net: nn.Module, used: Used) -> None:
    """Set the gradient of every used weight to zero: after the backward pass, before the optimizer's step."""
    for name, weight in net.named_parameters():
        if name in used and weight.grad is not None:
            weight.grad[used[name] == 1] = 0


def with_masks_of(net: nn.Module, used: Used, kind: torch.dtype = torch.uint8) -> Used:
    """`used`, and what the masks of `net` use now; bytes, but 64-bit numbers in the script of Permuted MNIST."""
    masks = {f"{name}.weight": part.mask for name, part in net.named_modules() if isinstance(part, MaskedLayer)}
    return {name: ((mask == 1) | (used[name] == 1 if name in used else False)).to(kind) for name, mask in masks.items()}


def masks_of(net: nn.Module) -> dict[str, Tensor]:
    """The mask of every layer, as a task keeps it."""
    return {name: value.clone() for name, value in net.named_buffers() if name.endswith("mask")}


class _Top(torch.autograd.Function):
    """Forward: one at the k-th smallest and above, else zero. Backward: the gradient as it comes."""

    @staticmethod
    def forward(ctx: Any, magnitudes: Tensor, zeros: Tensor, ones: Tensor, capacity: float) -> Tensor:
        k = 1 + round((1 - capacity) * (magnitudes.numel() - 1))
        threshold = magnitudes.flatten().kthvalue(k).values.item()
        return torch.where(magnitudes < threshold, zeros, ones)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return gradients[0], None, None, None
