"""Any nn.Module, handled with care: called, copied with other tensors, frozen, or refused."""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from forgetfree.contracts import Inputs
from forgetfree.errors import InputError, ModuleError
from forgetfree.recomputing import Again, in_backward
from forgetfree.references import way_back


def as_call(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Positional and keyword arguments for a module."""
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


@dataclass(frozen=True)
class Placement:
    """Where weights live and of which floating-point type they are (None where there are several)."""

    device: torch.device
    dtype: torch.dtype | None

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> "Placement":
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        if not floating:
            raise ModuleError("the backbone has no floating-point parameter, so there is nothing to learn in it.")
        kinds = {tensor.dtype for tensor in floating}
        return cls(floating[0].device, kinds.pop() if len(kinds) == 1 else None)

    def cast(self, inputs: Inputs) -> Inputs:
        """Inputs on this device and, where they are floating-point numbers, of this type."""
        if isinstance(inputs, dict):
            return {name: self._cast(value) for name, value in inputs.items()}
        if isinstance(inputs, tuple | list):
            return tuple(self._cast(value) for value in inputs)
        return self._cast(inputs)

    def _cast(self, value: Tensor) -> Tensor:
        if not isinstance(value, Tensor):
            raise InputError(f"inputs are a tensor, a tuple or a dict of tensors; got a {type(value).__name__}.")
        return value.to(self.device, self.dtype if value.is_floating_point() else None)


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, each once, a tied one under its first name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def full_name(function: Any) -> str:
    """Where a function lives; never a name of ours, as the bare word `adam` would be."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, type and values."""
    return (one.shape, one.dtype) == (other.shape, other.dtype) and torch.equal(one, other)


def laid_out(value: Tensor, like: Tensor) -> Tensor:
    """A copy of a tensor in the order in memory of another one: the bits of an answer depend on that too.

    A tensor that has grown lies in the usual order.
    """
    value = value.detach()
    if value.shape != like.shape or value.layout is not torch.strided:
        return value.clone(memory_format=torch.contiguous_format) if value.layout is torch.strided else value.clone()
    return torch.empty_like(like, dtype=value.dtype, device=value.device).copy_(value)


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""How the names of buffers end whose shape never changes: torch's own norms have them. Others may grow."""


def load_tensors(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Write `state` into the tensors of `module`, in place; a buffer of another shape or type is replaced."""
    with torch.no_grad():
        for name, tensor in list(named_tensors(module)):
            if (tensor.shape, tensor.dtype) == (state[name].shape, state[name].dtype):
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
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks):
            for hook in hooks.values():
                owner = getattr(hook, "__self__", hook)
                if id(owner) not in inside:
                    memo[id(owner)] = owner  # a hook of somebody else's object keeps reporting to that object
    try:
        return copy.deepcopy(module, memo)
    except (TypeError, RuntimeError) as error:  # the latter of torch, for a tensor with a history
        raise ModuleError(
            f"a task works in a copy of the module, and {type(module).__name__} cannot be copied: {error}. Keep that "
            "object outside the module, or give the class a __deepcopy__."
        ) from error


class TensorTree(nn.Module):
    """Tensors by the dotted names of another module: a child for every dot, so that torch finds them, and no forward.

    Parameters are what may move; anything else is a buffer, also where the other module has a parameter.
    """

    def __init__(self, tensors: Mapping[str, Tensor]):
        super().__init__()
        self._homes: dict[str, tuple[nn.Module, str]] = {}
        self._still: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            *path, leaf = name.split(".")
            branch: nn.Module = self
            for word in path:
                # not by add_module: a child may be called as a method of nn.Module is
                branch = cast(nn.Module, branch._modules.setdefault(word, nn.Module()))
            registry: dict[str, Any] = branch._parameters if isinstance(tensor, nn.Parameter) else branch._buffers
            registry[leaf] = tensor
            self._homes[name] = branch, leaf

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of this name as it is now: whoever put another in its place is heard."""
        branch, leaf = self._homes[name]
        tensor: Tensor | None = branch._parameters.get(leaf)
        if tensor is None:
            tensor = branch._buffers.get(leaf, self._still.get(name))
        if tensor is None:
            raise ModuleError(
                f"{name} is no longer where it was: a parametrisation or a pruning has taken its place. What a task "
                "learns in the shared network cannot be parametrised; put it into the module before wrapping."
            )
        return tensor

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        branch, leaf = self._homes[name]
        registry = branch._parameters if isinstance(tensor, nn.Parameter) else branch._buffers
        registry[leaf] = tensor  # type: ignore[assignment]

    def is_buffer(self, name: str) -> bool:
        """Whether a name is that of a buffer; in a functional call the tensor of a parameter may be of any class."""
        branch, leaf = self._homes[name]
        return leaf in branch._buffers

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def items(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self[name]) for name in self._homes)

    def plain(self) -> dict[str, Tensor]:
        """The tensors as they are, without their gradients."""
        return {name: tensor.detach() for name, tensor in self.items()}

    def stand_still(self) -> None:
        """Let no tensor move any more: they are neither parameters nor buffers from now on."""
        self._still = self.plain()
        for branch, leaf in self._homes.values():
            branch._parameters.pop(leaf, None)
            branch._buffers.pop(leaf, None)

    def leave_out_of_state_dict(self) -> None:
        """Buffers are not the session's to store or to load."""
        for branch, _ in self._homes.values():
            branch._non_persistent_buffers_set.update(branch._buffers)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TensorTree":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._still = {name: tensor.to(fn(tensor.new_empty(0)).device) for name, tensor in self._still.items()}
        return self


def only_movable(module: nn.Module) -> nn.Module:
    """The module itself, what asks for no gradient as a buffer: its parameters are what may move."""
    still = {id(value) for value in module.parameters() if not value.requires_grad}
    for part in module.modules():
        for name, value in list(part._parameters.items()):
            if id(value) in still:
                del part._parameters[name]
                part._buffers[name] = cast(Tensor, value)
                part._non_persistent_buffers_set.add(name)  # it is not the session's to store
    return module


class Lending:
    """A module without values of its own: tensors are lent to it for one call, under every name it has for them.

    `torch.func.functional_call` does the same and looks all names up in every call; here that is done once.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        for part in module.modules():
            part._parameters, part._buffers = _Lent(self, part._parameters), _Lent(self, part._buffers)
        registries = [registry for part in module.modules() for registry in (part._parameters, part._buffers)]
        homes: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for registry in registries:
            for key, tensor in registry.items():
                homes.setdefault(id(tensor), []).append((registry, key))
        self._slots = {name: (tensor, homes[id(tensor)]) for name, tensor in named_tensors(module)}
        self._again: Again | None = None
        self._left: Mapping[str, Tensor] = {}

    def __call__(self, lent: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the module gives with these tensors in it; where it puts another in place of one, `lent` has that."""
        self._put(lent)
        try:
            return self.module(*args, **kwargs)
        finally:
            for name in lent:
                placeholder, slots = self._slots[name]
                registry, key = slots[0]
                lent[name] = dict.__getitem__(registry, key)
                left = self._left.get(name, placeholder)
                for registry, key in slots:
                    registry[key] = left

    def may_ask(self, again: Again) -> None:
        """Let the module have these tensors if it is asked for one from now on: a part of a call is made again."""
        self.take_back()
        self._again = again

    def asked(self) -> None:
        """Put what may be asked for in place."""
        if self._again is not None and in_backward():
            self._left, self._again = self._again(), None
            self._put(self._left)

    def take_back(self) -> None:
        """Let nothing be in the module between calls."""
        left, self._left, self._again = self._left, {}, None
        self._put({name: self._slots[name][0] for name in left})

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_again": None}  # of a graph, which has no copy

    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            for registry, key in self._slots[name][1]:
                registry[key] = tensor


class _Lent(dict[str, Any]):
    """Parameters or buffers of a part of a lending's module; a tensor without values is asked for."""

    def __init__(self, lending: Lending, registered: Mapping[str, Any]):
        super().__init__(registered)
        self._lending = lending

    def __getitem__(self, key: str) -> Any:
        tensor = super().__getitem__(key)
        if tensor is None or not tensor.is_meta:
            return tensor
        self._lending.asked()
        return super().__getitem__(key)


class GradientHooks:
    """Hooks on the gradients of parameters, by name: also of a copy, and of what is put in a parameter's place.

    torch has a hook stay with the tensor, which a copy of the module, or a state that is assigned to it, replaces.
    """

    def __init__(self, hooks: Mapping[str, Callable[[Tensor], Tensor]]):
        self.hooks = hooks
        self._hooked = WeakIdKeyDictionary()

    def put_on(self, module: nn.Module) -> None:
        """Let every hook be on the tensor that is in its place now."""
        for name, hook in self.hooks.items():
            path, _, leaf = name.rpartition(".")
            tensor = module.get_submodule(path)._parameters.get(leaf)
            if tensor is not None and tensor.requires_grad and tensor not in self._hooked:
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]
                self._hooked[tensor] = True

    def __deepcopy__(self, memo: dict[int, Any]) -> "GradientHooks":
        return GradientHooks(copy.deepcopy(self.hooks, memo))


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The same module with these tensors in it; a `ModuleError` if it has others, by name or shape."""
    there = {name: tuple(tensor.shape) for name, tensor in named_tensors(module)}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    buffers = {name for name, _ in module.named_buffers()}  # which may grow
    wrong = [
        f"{name}: {there.get(name, 'not there')} in the module, {given.get(name, 'not there')} stored"
        for name in sorted({*there, *given})
        if name not in there or name not in given or (there[name] != given[name] and name not in buffers)
    ]
    if wrong:
        raise ModuleError(f"{type(module).__name__} is not the module that was stored: {'; '.join(wrong[:5])}.")
    return copy_module(module, lambda name, old: laid_out(tensors[name], old))


Builder = TypeVar("Builder", bound=Callable[..., nn.Module])
ORIGIN = "forgetfree_origin"


def named_backbone(build: Builder) -> Builder:
    """Let the modules that `build` makes remember its name and their arguments, so that they can be built again."""

    @functools.wraps(build)
    def built(**arguments: Any) -> nn.Module:
        module = build(**arguments)
        setattr(module, ORIGIN, {"name": build.__name__, "arguments": arguments})
        return module

    return cast(Builder, built)


def origin_of(module: nn.Module) -> dict[str, Any] | None:
    """Name and arguments of a backbone that was built by name."""
    return getattr(module, ORIGIN, None)


def clone(module: nn.Module) -> nn.Module:
    """The same module with tensors of its own."""
    return copy_module(module, lambda _, tensor: tensor.detach().clone())


def reset(module: nn.Module) -> None:
    """Draw all weights anew, each layer by its own `reset_parameters`."""
    for part in module.modules():
        draw = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if callable(draw):
            draw()
        elif any(parameter.requires_grad for parameter in part.parameters(recurse=False)):
            raise ModuleError(
                f"{type(part).__name__} holds parameters but has no reset_parameters(), so a fresh network cannot be "
                "drawn. Give it one."
            )


def is_watched(layer: nn.Module) -> bool:
    """Whether a hook or another `forward` was put on this very layer."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks) or "forward" in vars(layer)


def freeze(module: nn.Module) -> nn.Module:
    """In eval mode, with no tensor that asks for a gradient."""
    return module.eval().requires_grad_(False)


def refuse(module: nn.Module, what: str = "backbone") -> None:
    """Raise a `ModuleError` for a module that could leak between tasks, saying what to do instead."""
    if not isinstance(module, nn.Module):
        raise ModuleError(f"a {what} is an nn.Module; got {type(module).__name__}.")
    registered = {id(tensor) for _, tensor in named_tensors(module)}
    inside = {id(part) for part in module.modules()}
    for path, part in module.named_modules():
        where = f"{path or 'the module'} ({type(part).__name__})"
        if any(vars(kind).get("__slots__") for kind in type(part).__mro__):
            raise ModuleError(f"{where} has __slots__, which a copy of a module leaves behind. Use plain attributes.")
        if isinstance(part, torch.jit.ScriptModule):
            raise ModuleError(
                f"{where} was compiled by TorchScript, and no other weights can be put into it. Wrap the module it was "
                "made from."
            )
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if is_lazy(tensor):
                raise ModuleError(
                    f"{where} is lazy and {name} has no shape yet: run one batch through it before wrapping."
                )
            if tensor is not None:
                _refuse_kind(f"{path}.{name}".lstrip("."), tensor)
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
        for name, loose in _loose(part):
            if isinstance(loose, nn.Module):
                if id(loose) not in inside and next(named_tensors(loose), None):
                    raise ModuleError(
                        f"{where}: attribute {name!r} is a module that is not registered, so its tensors are neither "
                        "parameters nor buffers and could leak between tasks. Use nn.ModuleList or nn.ModuleDict."
                    )
            elif id(loose) not in registered:
                raise ModuleError(
                    f"{where}: attribute {name!r} is a tensor but neither a parameter nor a buffer, so it could leak "
                    f"between tasks. Use self.register_buffer({name.split('[')[0]!r}, …), or nn.Parameter."
                )
            elif not isinstance(part, nn.RNNBase):  # which looks its list of weights up anew in every call
                raise ModuleError(
                    f"{where}: attribute {name!r} is a second way to a parameter or buffer, and a task's own values "
                    "would not reach it. Look the tensor up under its own name where it is used."
                )
    _refuse_way_back(module)


def _refuse_way_back(module: nn.Module) -> None:
    """Refuse a module whose copies would still use it."""
    originals = {
        id(part): f"its part {path!r}" if path else "the module itself" for path, part in module.named_modules()
    }
    originals |= {id(tensor): f"its tensor {name!r}" for name, tensor in named_tensors(module)}
    found = way_back(copy_module(module, lambda _, tensor: torch.empty_like(tensor, device="meta")), originals)
    if found:
        way, end = found
        raise ModuleError(
            f"{way}: that is {end}, and stays so in every copy of the module, so that all tasks would use the caller's "
            "own. Make a function a method of the class or a submodule, and a tensor a buffer."
        )


def _refuse_kind(name: str, tensor: Tensor) -> None:
    """Refuse a tensor whose values cannot be masked, compared and stored one by one."""
    if tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.").replace("_", " ")
        raise ModuleError(f"{name} is a tensor of layout {kind}, which cannot be kept. Use a dense one, to_dense().")
    if tensor.is_quantized:
        raise ModuleError(f"{name} is quantised, which cannot be kept. Use a plain one, dequantize().")
    if isinstance(tensor, nn.Parameter) and not tensor.numel():
        raise ModuleError(
            f"{name} has shape {tuple(tensor.shape)}, so no value, and nothing can be learned in it. Give its layer at "
            "least one input and one output."
        )


def _loose(part: nn.Module) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """Tensors and modules among the plain attributes, also inside lists, tuples and dicts."""
    registries = ("_parameters", "_buffers", "_modules")
    pending = [(name, value) for name, value in vars(part).items() if name not in registries]
    met = set()
    while pending:
        name, value = pending.pop()
        if isinstance(value, Tensor | nn.Module):
            yield name, value
        elif isinstance(value, list | tuple | dict) and id(value) not in met:
            met.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            pending += [(f"{name}[{key!r}]", item) for key, item in items]
