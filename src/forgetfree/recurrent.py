"""Recurrent layers under autocast, where a CPU has no low-precision kernel for them.

torch raises an error instead of falling back, so the layers that lack a kernel compute in the type of their weights;
everything around them stays in low precision.
"""

import functools
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

log = logging.getLogger("forgetfree")


def without_autocast(module: nn.Module) -> None:
    """Let the recurrent layers of `module` leave autocast by themselves where they must (writes into `module`)."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase | nn.RNNCellBase):
            part.forward = functools.partial(_forward, type(part).forward, part)


def _forward(forward: Any, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    weight = next(layer.parameters())
    device = weight.device.type
    if not torch.is_autocast_enabled(device) or _has_kernel(_kind(layer), device, torch.get_autocast_dtype(device)):
        return forward(layer, *args, **kwargs)
    with torch.autocast(device, enabled=False):
        cast = {name: _cast(value, weight.dtype) for name, value in kwargs.items()}
        return forward(layer, *(_cast(value, weight.dtype) for value in args), **cast)


def _kind(layer: nn.Module) -> Any:
    return next(kind for kind in type(layer).__mro__ if kind.__module__ == nn.RNNBase.__module__)


@functools.cache
def _has_kernel(kind: Any, device: str, dtype: torch.dtype) -> bool:
    try:
        with torch.random.fork_rng(devices=[]), torch.autocast(device, dtype=dtype), torch.enable_grad():
            kind(2, 2).to(device)(torch.zeros(2, 2, device=device))
        return True
    except RuntimeError:
        log.warning(
            "%s has no %s kernel on this %s: it computes in the type of its weights.", kind.__name__, dtype, device
        )
        return False


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, PackedSequence) or (isinstance(value, Tensor) and value.is_floating_point()):
        return value.to(dtype)
    if isinstance(value, tuple):
        return tuple(_cast(item, dtype) for item in value)
    return value
