"""check_benchmark: what a stream of tasks with their tests apart promises."""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import default_collate

from forgetfree.contracts import Data, Task
from forgetfree.files import digest_of
from forgetfree.testing.learner import random_state


class _TestSet(Protocol):
    """Inputs and labels of a test: what `check_benchmark` needs of it."""

    @property
    def inputs(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...


class Benchmark(Protocol):
    """A stream of tasks, and their tests apart from them: what `check_benchmark` needs of it."""

    @property
    def tasks(self) -> Sequence[Task]: ...
    @property
    def tests(self) -> Mapping[str, _TestSet]: ...


def check_benchmark(
    make: Callable[..., Benchmark], *, duplicates: float = 0.0, data_root: Path | str | None = None
) -> None:
    """Raise an `AssertionError` that names the promise a benchmark breaks; `make` builds it from a seed.

    It is called as the laboratory calls it: `make(seed=…)`, with `data_root` too where it takes one; a function of one
    argument of any other name gets the seed. `duplicates` is the fraction of a part's samples that may also lie in
    another part, for data sets that hold a few images twice.
    """
    make = _called_by_the_laboratory(make, data_root)
    benchmark = make(0)
    names = [task.name for task in benchmark.tasks]
    assert names, "a benchmark has at least one task"
    assert len(set(names)) == len(names) == len(benchmark.tasks), f"task names are not unique: {names}"
    assert list(benchmark.tests) == names, f"tests are for {list(benchmark.tests)}, tasks are {names}"
    kinds: dict[str, object] = {}
    for task in benchmark.tasks:
        parts = _parts(task, benchmark.tests[task.name])
        kinds |= {f"{part} of {task.name!r}": _kind(inputs) for part, (inputs, _) in parts.items()}
        _check_parts(task, parts)
        _check_disjoint(task, parts, duplicates)
    assert len(set(kinds.values())) == 1, f"inputs are not of one shape and type: {kinds}"
    _check_seeds(make, benchmark)


def _called_by_the_laboratory(
    make: Callable[..., Benchmark], data_root: Path | str | None
) -> Callable[[int], Benchmark]:
    taken = inspect.signature(make).parameters
    known = {"data_root": Path(data_root) if data_root else None} if "data_root" in taken else {}
    return (lambda seed: make(seed=seed, **known)) if "seed" in taken else (lambda seed: make(seed, **known))


def _parts(task: Task, test_set: _TestSet) -> dict[str, tuple[Tensor, Tensor]]:
    """Inputs and labels of train, valid (where there is one) and test."""
    assert isinstance(task, Task), f"a task is a Task, not a {type(task).__name__}"
    assert not hasattr(task, "test"), f"task {task.name!r} carries a test: a learner could see it"
    parts: dict[str, Data] = {"train": task.train, "test": (test_set.inputs, test_set.labels)}
    if task.valid is not None:
        parts["valid"] = task.valid
    return {part: _as_pair(data) for part, data in parts.items()}


def _as_pair(data: Any) -> tuple[Tensor, Tensor]:
    inputs, labels = data if isinstance(data, tuple) else default_collate([data[i] for i in range(len(data))])
    assert isinstance(inputs, Tensor), f"check_benchmark needs one tensor of inputs, not a {type(inputs).__name__}"
    return inputs, labels


def _kind(inputs: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(inputs.shape[1:]), inputs.dtype


def _check_parts(task: Task, parts: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    for part, (inputs, labels) in parts.items():
        what = f"{part} of {task.name!r}"
        assert len(inputs) == len(labels) > 0, f"{what} has {len(inputs)} inputs and {len(labels)} labels"
        assert bool(inputs.isfinite().all()), f"{what} has inputs that are not finite"
        if not task.classifies:
            continue
        whole = labels.dim() == 1 and not labels.is_floating_point()
        assert whole, f"{what}: labels are whole numbers, one each, not {tuple(labels.shape)} of {labels.dtype}"
        found, expected = set(labels.tolist()), set(range(len(task.classes)))
        assert found <= expected, f"{what}: labels {sorted(found - expected)} are out of range"
        assert part == "valid" or found == expected, f"{what} lacks the classes {sorted(expected - found)}"


def _check_disjoint(task: Task, parts: Mapping[str, tuple[Tensor, Tensor]], duplicates: float) -> None:
    samples = {part: _fingerprints(inputs) for part, (inputs, _) in parts.items()}
    for one, other in combinations(samples, 2):
        common, fewest = len(samples[one] & samples[other]), min(len(samples[one]), len(samples[other]))
        assert common <= duplicates * fewest, (
            f"{one} and {other} of {task.name!r} are not disjoint: {common} samples of {fewest} lie in both"
        )


def _fingerprints(inputs: Tensor) -> set[bytes]:
    rows = inputs.detach().cpu().contiguous().reshape(len(inputs), -1).view(torch.uint8).numpy()
    return {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows}


def _check_seeds(make: Callable[[int], Benchmark], benchmark: Benchmark) -> None:
    state, first = torch.get_rng_state(), random_state()
    bits = _bits(benchmark)
    assert bits == _bits(benchmark), "a task asked for twice is not the same twice"
    assert random_state() == first, "asking for a task moved the caller's random state"
    torch.manual_seed(1)  # the caller's random state must not matter
    moved = random_state()
    again, other = make(0), make(1)
    assert random_state() == moved, "building a benchmark moved the caller's random state"
    assert _bits(again) == bits, "the same seed gave another benchmark"
    assert _bits(other) != bits, "another seed gave the same benchmark"
    torch.set_rng_state(state)


def _bits(benchmark: Benchmark) -> list[str]:
    """A digest per task of all it holds, and of its test."""
    digests = []
    for task in benchmark.tasks:
        parts = _parts(task, benchmark.tests[task.name])
        tensors = {f"{part} {i}": tensor for part, pair in parts.items() for i, tensor in enumerate(pair)}
        digests.append(f"{task.name} {task.classes} {digest_of(tensors)}")
    return digests
