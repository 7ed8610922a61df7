"""References: what the functions of a module hold on to, where a copy of the module cannot follow.

A task works in a copy of the wrapped module. Methods and parts follow into a copy; a function does not: what a lambda,
a patched `forward` or a hook has closed over is still the caller's own module there. So the copy is searched for ways
back to the original, along attributes, containers, closures, defaults, partials and the globals that code names.
"""

import dis
import functools
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

LARGE = 10_000
"""Containers with more items are data and are not searched."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
UNUSED = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
PLAIN = (str, bytes, int, float, complex, type(None), ModuleType, BuiltinFunctionType)


@dataclass(frozen=True)
class Way:
    """One step of the search: how something was reached."""

    said: str
    """In words, from an attribute of a part on."""
    names: frozenset[str] | None = None
    """What code on the way names: of an object outside of the module nothing else is looked at. None: all of it."""
    own: bool = False
    """Whether it is of an attribute of the module; a hook or a class may use tensors of others."""


def way_back(twin: nn.Module, originals: Mapping[int, str]) -> tuple[str, str] | None:
    """How a copy reaches something of its original (in words by id), or a function of its own a tensor outside.

    The way and what is found at its end; None where there is no such way.
    """
    pending = deque(_attributes(twin))
    parts = {id(part) for part in twin.modules()}
    met: set[tuple[int, frozenset[str] | None]] = set()
    while pending:
        way, value = pending.popleft()
        if id(value) in originals:
            return way.said, originals[id(value)]
        if isinstance(value, PLAIN) or id(value) in parts or (id(value), way.names) in met:
            continue
        met.add((id(value), way.names))
        if way.own and way.names is not None and _has_tensors(value):
            return way.said, "a tensor that is neither a parameter nor a buffer"
        pending.extend(_next(way, value))
    return None


def _attributes(twin: nn.Module) -> Iterator[tuple[Way, Any]]:
    for path, part in twin.named_modules():
        yield Way(f"{path or 'the module'} ({type(part).__name__}): what its own __deepcopy__ gives"), part
        for name, value in vars(part).items():
            if name not in UNUSED:
                said = "a hook" if name in HOOKS else f"attribute {name!r}"
                yield Way(f"{path or 'the module'} ({type(part).__name__}): {said}", own=name not in HOOKS), value
        for kind in type(part).__mro__:
            if not _is_known(kind.__module__):
                yield Way(f"{path or 'the module'} ({type(part).__name__}): code of its class"), kind


def _next(way: Way, value: Any) -> Iterator[tuple[Way, Any]]:
    """Where the search goes on from here."""
    if isinstance(value, FunctionType):
        yield from _from_function(way, value)
    elif isinstance(value, MethodType):
        code = getattr(value.__func__, "__code__", None)
        yield way, value.__func__
        yield Way(way.said, _names(code)), value.__self__
    elif isinstance(value, functools.partial):
        yield from ((way, item) for item in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, weakref.ref):
        yield way, value()
    elif isinstance(value, Mapping):
        yield from ((way, item) for item in [*value.values()] if len(value) <= LARGE)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((way, item) for item in [*value] if len(value) <= LARGE)
    elif isinstance(value, staticmethod | classmethod):
        yield way, value.__func__
    elif isinstance(value, property | functools.cached_property):
        yield from ((way, getattr(value, name, None)) for name in ("fget", "func"))
    elif isinstance(value, type):
        if not _is_known(value.__module__):
            yield from ((Way(f"{way.said} ({name})", frozenset()), item) for name, item in [*vars(value).items()])
    elif not isinstance(value, Tensor):
        yield from _from_object(way, value)


def _from_function(way: Way, function: FunctionType) -> Iterator[tuple[Way, Any]]:
    if _is_known(function.__module__):
        return
    names = _names(function.__code__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Way(f"{way.said}, which closes over {name!r}", names, way.own), cell.cell_contents
        except ValueError:  # not filled yet
            continue
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    yield from ((Way(f"{way.said}, through a default", names, way.own), value) for value in defaults)
    yield from ((Way(f"{way.said}, through {name!r}", names), value) for name, value in vars(function).items())
    for name, value in _globals(function):
        yield Way(f"{way.said}, which uses the global {name!r}", names), value


def _globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Global variables that a function uses: values, and functions beside it, but no other code."""
    there = function.__globals__
    others = {name: there[name] for name in _names(function.__code__) & there.keys()}
    others = {name: value for name, value in others.items() if not isinstance(value, (*PLAIN, type))}
    used = _loaded(function.__code__) if others else frozenset()  # `self.net` names `net` too
    for name, value in others.items():
        elsewhere = isinstance(value, FunctionType) and value.__module__ != function.__module__
        if name in used and not elsewhere:
            yield name, value


def _from_object(way: Way, value: Any) -> Iterator[tuple[Way, Any]]:
    """Attributes of an object; of one outside of the module those that the code on the way names."""
    inside: Mapping[str, Any] = getattr(value, "__dict__", {})
    if way.names is None:
        yield from ((Way(f"{way.said}, through {name!r}"), item) for name, item in [*inside.items()])
    else:
        yield from ((Way(f"{way.said}, through {name!r}", way.names), inside[name]) for name in way.names & {*inside})
    if _is_known(type(value).__module__):
        return
    for name in {"__call__", *(way.names or ())} - {*inside}:
        method = getattr(type(value), name, None)
        if isinstance(method, FunctionType):
            yield way, MethodType(method, value)


@functools.lru_cache(1 << 12)
def _names(code: CodeType | None) -> frozenset[str]:
    """All names that code mentions, also code inside it."""
    if code is None:
        return frozenset()
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(code.co_names).union(*inner)


@functools.lru_cache(1 << 12)
def _loaded(code: CodeType) -> frozenset[str]:
    """The global variables that code reads, also code inside it."""
    inner = [_loaded(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    own = (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    return frozenset(own).union(*inner)


def _has_tensors(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return next(value.parameters(), None) is not None or next(value.buffers(), None) is not None
    return isinstance(value, Tensor)


def _is_known(module: str | None) -> bool:
    """Whether code is of torch, numpy or Python itself, which know nobody's modules."""
    root = (module or "").partition(".")[0]
    return root in ("torch", "numpy", "builtins") or root in sys.stdlib_module_names
