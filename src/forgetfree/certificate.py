"""The certificate of a task: that its tensors are still the same, and that it still gives the same answers.

When a task is kept, its effective tensors get a digest, and it answers a small probe, drawn from a recorded seed.
Tensors must be equal everywhere and for ever. Answers must be equal bit for bit where torch, processor, threads, device
and type are those of that day; elsewhere the same tensors may add up in another order, and 1e-4 is allowed.
"""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forgetfree.contracts import Certificate, Inputs, TaskRecord
from forgetfree.errors import InputError
from forgetfree.files import digest_of
from forgetfree.modules import named_tensors
from forgetfree.rng import philox_uniform

ROWS = 4
LARGEST_PROBE = 1 << 26
"""A task whose samples hold more values is certified by its tensors only."""
TOLERANCE = 1e-4
"""The largest difference, relative to the largest answer, under other circumstances."""
Predict = Callable[[Inputs, str], Tensor]


@dataclass(frozen=True)
class Verified:
    """How one task stands beside its certificate."""

    task: str
    tensors: bool
    """Whether its tensors are those that were certified."""
    rule: str
    """Which rule applied to its answers."""
    difference: float | None
    """Between its answers and the certified ones, relative to the largest; None if there were none to compare."""
    ok: bool


def certify(
    learned: TaskRecord, ranges: Any, seed: int, parts: Mapping[str, nn.Module], predict: Predict
) -> Certificate:
    """Look at a task as it is now: `parts` are its backbone and head, `predict` asks it."""
    try:
        answers = predict(_probe(learned.inputs, ranges, seed), learned.name).detach().cpu().clone()
    except (
        RuntimeError, ValueError, LookupError, TypeError, ArithmeticError, AssertionError,
    ):  # a module may want more of its inputs  # fmt: skip
        answers = None
    return Certificate(tensors_digest(parts), seed, ranges, answers, fingerprint(parts))


def check(learned: TaskRecord, parts: Mapping[str, nn.Module], predict: Predict) -> Verified:
    """Look at a task again, and compare."""
    certificate = learned.certificate
    if certificate is None:
        return Verified(learned.name, False, "it has no certificate", None, False)
    same = tensors_digest(parts) == certificate.digest
    if certificate.answers is None:
        return Verified(learned.name, same, "tensors only: it could not answer its probe", None, same)
    answers = predict(_probe(learned.inputs, certificate.ranges, certificate.probe), learned.name).detach().cpu()
    apart = difference(answers, certificate.answers)
    if fingerprint(parts) == certificate.fingerprint:
        equal = _same_bits(answers, certificate.answers)
        return Verified(learned.name, same, "bit for bit", apart, same and equal)
    return Verified(learned.name, same, f"within {TOLERANCE:g}", apart, same and apart <= TOLERANCE)


def tensors_digest(parts: Mapping[str, nn.Module]) -> str:
    return digest_of(
        {f"{part}.{name}": value for part, module in parts.items() for name, value in named_tensors(module)}
    )


def fingerprint(parts: Mapping[str, nn.Module]) -> dict[str, Any]:
    """What the last bits of an answer may depend on, beside the tensors."""
    tensors = [tensor for module in parts.values() for _, tensor in named_tensors(module)]
    device = tensors[0].device.type if tensors else "cpu"
    return {
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": device if device == "cpu" else _device_name(device),
        "dtypes": sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}),
    }


def _device_name(kind: str) -> str:
    """What a device is called; by its kind where its backend knows no names."""
    named = getattr(torch.get_device_module(kind), "get_device_name", None)
    return str(named()) if named is not None else kind


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference relative to the largest value; infinite where only one of the two is a number."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return float("inf")
    one, other = one.double(), other.double()
    numbers = one.isfinite() & other.isfinite()
    if not torch.equal(one[~numbers].nan_to_num(0.5), other[~numbers].nan_to_num(0.5)):
        return float("inf")
    apart, largest = (one - other)[numbers].abs(), other[numbers].abs()
    return float(apart.max() / largest.max().clamp_min(1e-30)) if apart.numel() else 0.0


def ranges_of(inputs: Inputs) -> Any:
    """Smallest and largest whole number of every tensor that holds whole numbers, in the form of the inputs."""

    def of(value: Tensor) -> tuple[int, int] | None:
        if value.is_floating_point() or value.is_complex() or not value.numel():
            return None
        return int(value.min()), int(value.max())

    if isinstance(inputs, dict):
        return {name: of(value) for name, value in inputs.items()}
    return of(inputs) if isinstance(inputs, Tensor) else tuple(of(value) for value in inputs)


def _probe(signature: Any, ranges: Any, seed: int) -> Inputs:
    """A few rows of the shapes, types and ranges that a task was learned on."""
    if isinstance(signature, dict):
        return {name: _drawn(of, ranges[name], seed, name) for name, of in signature.items()}
    if signature and isinstance(signature[0], tuple) and len(signature) == 2 and isinstance(signature[1], str):
        return _drawn(signature, ranges, seed, "")
    return tuple(_drawn(of, ranges[i], seed, str(i)) for i, of in enumerate(signature))


def _drawn(signature: tuple[tuple[int, ...], str], range_: tuple[int, int] | None, seed: int, name: str) -> Tensor:
    shape, kind = (ROWS, *signature[0]), getattr(torch, signature[1])
    if prod(shape) > LARGEST_PROBE:
        raise InputError(f"a probe of shape {shape} is too large.")
    uniform = philox_uniform(prod(shape), seed, "probe", name).reshape(shape)
    if range_ is None:
        return torch.from_numpy(2 * uniform - 1).to(kind)
    low, high = range_
    whole = np.minimum(np.floor(uniform.astype(np.float64) * (high - low + 1)), high - low)
    return torch.from_numpy(whole).to(torch.int64).add(low).to(kind)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype) and digest_of({"": one}) == digest_of({"": other})
