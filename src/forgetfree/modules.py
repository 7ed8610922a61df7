"""Any nn.Module, handled with care: called, copied with other tensors, frozen, or refused."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from forgetfree.contracts import Inputs
from forgetfree.errors import ModuleError


def as_call(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Positional and keyword arguments for a module."""
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, each once, a tied one under its first name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def load_tensors(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Write `state` into the tensors of `module`, in place; a buffer that changed its shape is replaced."""
    with torch.no_grad():
        for name, tensor in list(named_tensors(module)):
            if tensor.shape == state[name].shape:
                tensor.copy_(state[name])
            else:
                path, _, leaf = name.rpartition(".")
                module.get_submodule(path)._buffers[leaf] = state[name].to(tensor.device, copy=True)


def copy_module(module: nn.Module, tensor_for: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """The same module with other tensors: class, structure, tied weights and hooks stay.

    `tensor_for(name, old)` gives the tensor to put in place of each parameter and buffer.
    """
    memo: dict[int, Any] = {}
    for name, old in named_tensors(module):
        new = tensor_for(name, old)
        if isinstance(old, nn.Parameter) and not isinstance(new, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        memo[id(old)] = new
    inside = {id(part) for part in module.modules()}
    for part in module.modules():
        for hook in [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]:
            owner = getattr(hook, "__self__", None)
            if owner is not None and id(owner) not in inside:
                memo[id(owner)] = owner  # a hook of somebody else's object keeps reporting to that object
    return copy.deepcopy(module, memo)


def freeze(module: nn.Module) -> nn.Module:
    """In eval mode, with no tensor that asks for a gradient."""
    return module.eval().requires_grad_(False)


def refuse(module: nn.Module) -> None:
    """Raise a `ModuleError` for a module that could leak between tasks, saying what to do instead."""
    if not isinstance(module, nn.Module):
        raise ModuleError(f"a backbone is an nn.Module; got {type(module).__name__}.")
    registered = {id(tensor) for _, tensor in named_tensors(module)}
    for path, part in module.named_modules():
        where = f"{path or 'the module'} ({type(part).__name__})"
        for name, parameter in part._parameters.items():
            if isinstance(parameter, UninitializedParameter):
                raise ModuleError(
                    f"{where} is lazy and {name} has no shape yet: run one batch through it before wrapping."
                )
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and (part.max_norm is not None or part.sparse):
            which = (
                "max_norm rescales weights in place, even those of learned tasks"
                if part.max_norm is not None
                else "sparse gradients cannot be masked"
            )
            raise ModuleError(f"{where}: {which}. Build it with max_norm=None and sparse=False.")
        for hook in part._forward_pre_hooks.values():
            if type(hook).__module__ == "torch.nn.utils.weight_norm":
                raise ModuleError(
                    f"{where} uses the old torch.nn.utils.weight_norm, which keeps a weight outside the parameters. "
                    "Use torch.nn.utils.parametrizations.weight_norm."
                )
        for name, tensor in _loose_tensors(vars(part)):
            if id(tensor) not in registered:
                raise ModuleError(
                    f"{where}: attribute {name!r} is a tensor but neither a parameter nor a buffer, so it could leak "
                    f"between tasks. Use self.register_buffer({name.split('[')[0]!r}, …), or nn.Parameter."
                )


def _loose_tensors(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    registries = ("_parameters", "_buffers", "_modules")
    pending = [(name, value) for name, value in attributes.items() if name not in registries]
    while pending:
        name, value = pending.pop()
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, list | tuple):
            pending += [(f"{name}[{i}]", item) for i, item in enumerate(value)]
        elif isinstance(value, dict):
            pending += [(f"{name}[{key!r}]", item) for key, item in value.items()]
