"""Python state: what a module holds beside its registered tensors, and whether it is still what it was.

Counters, lists, hidden states, generators, caches: plain attributes of parts, and what these hold in turn. `Held` tells
after every answer whether something was put in the place of something else; `differing` compares two modules of one
make value by value; `take_over` gives one the values of the other; `untouched` undoes what a call has done.
"""

import copy
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LARGE = 10_000
"""Of containers with more items the number of items is watched; tensors with more values only when tried out."""
REGISTRIES = frozenset({
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_forward_hooks", "_forward_pre_hooks",
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_backward_hooks",
    "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks", "training",
})  # fmt: skip
"""What nn.Module itself keeps in the attributes of a part."""
OF_TORCH = frozenset({"forward", "_flat_weights", "_flat_weight_refs"})
PLAIN = (str, bytes, int, float, complex, type(None), type, torch.dtype, torch.device, ModuleType)
CONTAINERS = (dict, list, tuple, set, frozenset, deque)
CODE = (FunctionType, BuiltinFunctionType, MethodType)
_END = object()


class Held:
    """All that some parts hold in plain attributes, by identity: fast enough to be asked after every answer."""

    def __init__(self, parts: Iterable[nn.Module]):
        self._dicts: list[dict[Any, Any]] = []
        self._others: list[Iterable[Any]] = []
        self._large: list[Any] = []
        self._read: list[tuple[Callable[[], Any], Any]] = []
        self._search(parts)
        self._values = [*self._now()]
        self._sizes = [*map(len, self._large)]

    def same(self) -> bool:
        """Whether nothing was put in the place of anything, added or taken away."""
        try:
            return (
                all(map(is_, self._now(), self._values))
                and (not self._large or [*map(len, self._large)] == self._sizes)
                and (not self._read or all(read() == before for read, before in self._read))
            )
        except RuntimeError:  # another thread is changing it at this moment
            return False

    def _now(self) -> Iterator[Any]:
        return chain(chain.from_iterable(map(dict.values, self._dicts)), chain.from_iterable(self._others), (_END,))

    def _search(self, parts: Iterable[nn.Module]) -> None:
        pending: list[Any] = []
        for part in parts:
            self._dicts.append(vars(part))
            pending += [value for name, value in vars(part).items() if name not in REGISTRIES]
            pending += [buffer for buffer in part._buffers.values() if buffer is not None]
        met = set()
        while pending:
            value = pending.pop()
            if isinstance(value, (*PLAIN, *CODE, nn.Module)) or id(value) in met:
                continue
            met.add(id(value))
            reader = _reader(value)
            if reader is not None:
                self._read.append((reader, reader()))
            else:
                pending += self._watch(value)

    def _watch(self, value: Any) -> list[Any]:
        """Watch a container or an object; what it holds."""
        if not isinstance(value, CONTAINERS):
            value = getattr(value, "__dict__", ())
        if len(value) > LARGE:
            self._large.append(value)
            return []
        if isinstance(value, dict):
            self._dicts.append(value)
            return [*value.values()]
        if not isinstance(value, tuple | frozenset):
            self._others.append(value)
        return [*value]


def differing(one: nn.Module, other: nn.Module) -> list[str]:
    """The attributes, by their full names, of which two modules of one make hold other values."""
    twins = dict(other.named_modules())
    names = []
    for path, part in one.named_modules():
        twin = twins.get(path)
        if type(part) is not type(twin):
            continue
        ours, theirs = _attributes(part), _attributes(twin)
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            if name not in ours or name not in theirs or not alike(ours[name], theirs[name]):
                names.append(f"{path}.{name}" if path else name)
    return names


def take_over(module: nn.Module, names: Iterable[str], source: nn.Module) -> None:
    """Give the attributes of these names copies of the values that they have in `source`, or none."""
    for name in names:
        path, _, leaf = name.rpartition(".")
        values = vars(source.get_submodule(path))
        if leaf in values:
            vars(module.get_submodule(path))[leaf] = _copied(values[leaf])
        else:
            vars(module.get_submodule(path)).pop(leaf, None)


@contextmanager
def untouched(module: nn.Module | None) -> Iterator[None]:
    """Undo whatever the code inside does to plain attributes, as far as these can be looked into, and to the parts."""
    if module is None or all(map(is_of_torch, module.modules())):
        yield
        return
    undo = [*_undoing(module)]
    try:
        yield
    finally:
        for back in undo:
            back()


def _undoing(module: nn.Module) -> Iterator[Callable[[], Any]]:
    """What puts back everything that is now in the plain attributes of a module, one step for each thing."""
    pending: list[Any] = []
    for part in module.modules():
        yield partial(_refill, part._modules, dict(part._modules))
        yield from (partial(_drop_new, names, dict(names)) for names in (part._parameters, part._buffers))
        yield partial(_refill, vars(part), dict(vars(part)))
        if not is_of_torch(part):
            pending += [value for name, value in vars(part).items() if name not in REGISTRIES]
    met = set()
    while pending:
        value = pending.pop()
        if isinstance(value, (*PLAIN, *CODE, nn.Module)) or id(value) in met:
            continue
        met.add(id(value))
        back = _putting_back(value)
        if back is not None:
            yield back
            continue
        inside = value if isinstance(value, CONTAINERS) else getattr(value, "__dict__", ())
        if isinstance(inside, dict | list | set | deque):
            yield partial(_refill, inside, copy.copy(inside))
        if len(inside) <= LARGE:
            pending += inside.values() if isinstance(inside, dict) else inside


def _refill(container: Any, before: Any) -> None:
    changed = len(container) != len(before) or not all(map(is_, _values(container), _values(before)))
    if changed:
        container.clear()
        container.update(before) if isinstance(container, dict | set) else container.extend(before)


def _drop_new(registry: dict[str, Any], before: dict[str, Any]) -> None:
    for name in registry.keys() - before.keys():
        del registry[name]
    registry.update({name: None for name, value in before.items() if value is None})


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _putting_back(value: Any) -> Callable[[], Any] | None:
    """What gives a thing that changes in place its state of this moment again; None for containers and objects."""
    if isinstance(value, Tensor):
        return partial(_write, value, value.detach().clone()) if _has_bits(value) else lambda: None
    if isinstance(value, np.ndarray):
        return partial(np.copyto, value, value.copy())
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return partial(value.set_state, value.get_state()) if isinstance(value, np.random.RandomState) else None


def _write(tensor: Tensor, before: Tensor) -> None:
    if tensor.shape == before.shape and not same_bits(tensor, before):
        tensor.data.copy_(before)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit, NaN and the sign of zero included."""
    if (one.shape, one.dtype, one.layout, one.is_meta) != (other.shape, other.dtype, other.layout, other.is_meta):
        return False
    if one.is_meta:
        return True
    return torch.equal(_bits(one), _bits(other)) if _has_bits(one) else torch.equal(one, other)


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same, tensors to their bits, as far as they can be looked into."""
    return _equal(one, other, set())


def is_of_torch(part: nn.Module) -> bool:
    return type(part).__module__.partition(".")[0] == "torch"


def _attributes(part: nn.Module | None) -> dict[str, Any]:
    """Plain attributes; of torch's own parts not those by which they find their weights, nor a `forward` put before."""
    left_out = REGISTRIES | OF_TORCH if part is not None and is_of_torch(part) else REGISTRIES
    return {name: value for name, value in vars(part).items() if name not in left_out}


def _reader(value: Any) -> Callable[[], Any] | None:
    """What reads a value that changes in place; None for what is compared by identity."""
    if isinstance(value, Tensor):
        small = value.numel() <= LARGE and value.device.type == "cpu" and _has_bits(value)
        return (lambda: _bits(value).numpy().tobytes()) if small else (lambda: value._version)
    if isinstance(value, np.ndarray):
        return value.tobytes if value.size <= LARGE else (lambda: value.shape)
    if isinstance(value, torch.Generator):
        return lambda: value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate
    if isinstance(value, np.random.Generator):
        return lambda: repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return lambda: repr(value.get_state())
    return None


def _has_bits(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized and not tensor.is_conj()


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _equal(one: Any, other: Any, met: set[tuple[int, int]]) -> bool:
    if one is other or (id(one), id(other)) in met:
        return True
    met.add((id(one), id(other)))
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return same_bits(one, other)
    if isinstance(one, np.ndarray):
        return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())
    if isinstance(one, PLAIN):
        return bool(one == other) or (one != one and other != other)
    if isinstance(one, (*CODE, nn.Module)):
        return True  # code is not a value, and parts are compared on their own
    reader, others = _reader(one), _reader(other)
    if reader is not None and others is not None:
        return bool(reader() == others())
    if isinstance(one, set | frozenset):
        return bool(one == other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key], met) for key in one)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(_equal(*pair, met) for pair in zip(one, other, strict=True))
    if hasattr(one, "__dict__"):
        return _equal(vars(one), vars(other), met)
    try:
        return _equal(one.__reduce_ex__(4), other.__reduce_ex__(4), met)
    except TypeError:  # nothing can be known of it
        return True


def _copied(value: Any) -> Any:
    """A copy, with tensors that have no history; what cannot be copied is taken as it is."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple, set, deque):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError):
        return value
