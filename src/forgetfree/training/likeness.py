"""Whether a checkpoint goes on with the same functions and the same data: what tells two of them apart, in words.

A function that can be imported is what its name says. A lambda, a function made inside another, a partial one or an
object that is called is told from others of its name by its code and by the values that it holds.

Of a Dataset a few samples are looked at, twice: where some are not equal to themselves, as with a random augmentation,
only what stays equal is compared. A stream is compared by its kind: reading it could take samples away.
"""

import hashlib
import types
from collections.abc import Mapping, Sized
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from forgetfree.batches import tensors_of
from forgetfree.contracts import Data
from forgetfree.files import digest_of
from forgetfree.modules import full_name, named_tensors
from forgetfree.rng import preserved_rng

SAMPLES = 16
"""Of a Dataset, spread over its length."""
MARK = " #"
"""Stands between the name of a function and what tells it from others of that name."""


def identified(value: Any) -> Any:
    """A setting as plain values; a function by its name and, where that is not enough, by what it does."""
    if isinstance(value, Mapping):
        return {str(key): identified(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [identified(item) for item in value]
    if callable(value):
        name = full_name(value)
        return name if _is_found_by_name(value) else f"{name}{MARK}{_digest(_essence(value, {}))}"
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__qualname__


def fingerprint(data: Data) -> Any:
    """A digest of tensors; of a Dataset its kind, its length and some of its samples."""
    if isinstance(data, tuple | list):
        return digest_of({"labels": data[1]} | {str(i): value for i, value in enumerate(tensors_of(data[0]))})
    kind = type(data).__name__
    if isinstance(data, IterableDataset) or not isinstance(data, Sized):
        return kind
    with preserved_rng(torch.device("cpu")):
        once, twice = _read(data), _read(data)
    inputs, labels = (one if one == other else None for one, other in zip(once, twice, strict=True))
    return {"kind": kind, "length": len(data), "inputs": inputs, "labels": labels}


def alike(known: Any, here: Any) -> bool:
    """Whether what a checkpoint says and what is here can be the same; older ones say less of both."""
    if isinstance(here, dict) and set(here) == {"kind", "length", "inputs", "labels"}:
        if isinstance(known, dict):
            return all(known.get(key) == value or None in (known.get(key), value) for key, value in here.items())
        return bool(known == here["kind"])
    if isinstance(here, dict) and isinstance(known, dict):
        return known.keys() == here.keys() and all(alike(known[key], value) for key, value in here.items())
    if isinstance(here, str) and isinstance(known, str) and MARK in here and MARK not in known:
        return here.partition(MARK)[0] == known
    return bool(known == here)


def _read(data: Any) -> tuple[str, str]:
    """Digests of the inputs and of the labels of some samples."""
    places = sorted({round(at) for at in torch.linspace(0, len(data) - 1, SAMPLES).tolist()})
    samples = [data[at] for at in places]
    parts = [sample if isinstance(sample, tuple | list) and len(sample) == 2 else (sample, None) for sample in samples]
    inputs, labels = zip(*parts, strict=True)
    return _digest([_essence(one, {}) for one in inputs]), _digest([_essence(label, {}) for label in labels])


def _is_found_by_name(value: Any) -> bool:
    """Whether a name leads to one function or class: not inside of another function, and holding no values."""
    plain = isinstance(value, type | types.FunctionType | types.BuiltinFunctionType)
    return plain and "<" not in value.__qualname__ and not getattr(value, "__closure__", None)


def _essence(value: Any, met: dict[int, Any]) -> Any:
    """What a value is, as lists of texts: equal for equal values, without addresses; what was `met` is said once."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return [type(value).__name__, repr(value)]
    if isinstance(value, Tensor):
        return ["tensor", digest_of({"": value})]
    if id(value) in met:
        return ["met before", list(met).index(id(value))]
    met[id(value)] = value
    inside = partial(_essence, met=met)
    if isinstance(value, Mapping):
        return [type(value).__name__, *([str(key), inside(item)] for key, item in value.items())]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(inside, value)]
    if isinstance(value, types.CodeType):
        return [value.co_code.hex(), list(value.co_names), *map(inside, value.co_consts)]
    if isinstance(value, types.MethodType):
        return [inside(value.__func__), inside(value.__self__)]
    if isinstance(value, partial):
        return [inside(value.func), inside(value.args), inside(value.keywords)]
    if isinstance(value, type | types.BuiltinFunctionType | types.ModuleType) or _is_found_by_name(value):
        return full_name(value) if not isinstance(value, types.ModuleType) else value.__name__
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return [inside(value.__code__), inside(value.__defaults__), inside(value.__kwdefaults__), inside(cells)]
    return [full_name(type(value)), *_held(value, met)]


def _held(value: Any, met: dict[int, Any]) -> list[Any]:
    """What an object holds: its tensors, or its bytes, and its plain attributes."""
    if isinstance(value, nn.Module):
        simple = {name: item for name, item in vars(value).items() if not name.startswith("_")}
        children = {name: _essence(child, met) for name, child in value.named_children()}
        return [digest_of(dict(named_tensors(value))), _essence(simple, met), children]
    if hasattr(value, "tobytes"):  # arrays and images
        return [str(getattr(value, "shape", "")), hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()]
    return [_essence(vars(value), met)] if hasattr(value, "__dict__") else []


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # of a function that is still being made
        return False
    return True


def _digest(essence: Any) -> str:
    return hashlib.blake2b(repr(essence).encode(), digest_size=8).hexdigest()
