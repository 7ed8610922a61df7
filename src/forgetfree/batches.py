"""Data becomes batches: pairs of tensors by index, any Dataset through a DataLoader, labels checked on the way.

A last batch of one joins the batch before it: batch norm cannot learn from a single sample.
"""

from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from forgetfree.contracts import Data, Inputs, Task
from forgetfree.errors import ForgetfreeError, InputError

OURS = frozenset({"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "generator", "drop_last"})


@dataclass(frozen=True)
class Batch:
    inputs: Inputs
    labels: Tensor

    def __len__(self) -> int:
        return rows(self.inputs)


def batches(
    task: Task,
    data: Data,
    size: int,
    *,
    order: torch.Generator | None = None,
    loader: Mapping[str, Any] | None = None,
) -> Iterator[Batch]:
    """Batches of `data`, shuffled by `order` or in their own order. An IterableDataset always gives its own order.

    Labels of a Dataset are checked here, batch by batch; those of a pair of tensors by `check_data`, all at once.
    """
    raw = _raw_batches(data, size, order, loader or {})
    if isinstance(data, tuple | list):
        yield from raw
    for batch in raw:
        check_labels(task, batch)
        yield batch


def first_batch(task: Task, size: int, loader: Mapping[str, Any] | None = None) -> Batch:
    """A few samples to see what a task looks like, without starting workers."""
    alone = {key: value for key, value in (loader or {}).items() if key == "collate_fn"}
    for batch in batches(task, task.train, size, loader=alone):
        return batch
    raise InputError(f"task {task.name!r} is empty: its training data gave no batch.")


def sampled(task: Task, loader: Mapping[str, Any] | None = None) -> Inputs:
    """The training inputs, or where a Dataset would have to be read to see them, its first few."""
    data = task.train
    return _as_inputs(data[0]) if isinstance(data, tuple | list) else first_batch(task, 64, loader).inputs


def count_batches(data: Data, size: int) -> int | None:
    """How many batches an epoch has, where that can be known."""
    length = _length(data)
    return None if length is None else len(_cut(length, size))


def count_samples(data: Data) -> int:
    """How many samples there are; of an IterableDataset none can be counted."""
    return _length(data) or 0


def repeated(data: Data, count: int) -> Data:
    """`count` samples, over and over the same where there are fewer."""
    at = [i % count_samples(data) for i in range(count)]
    if isinstance(data, tuple | list):
        pick = partial(_pick, at=torch.tensor(at))
        return convert(_as_inputs(data[0]), pick), pick(data[1])
    return Subset(data, at)


def check_data(task: Task) -> None:
    """Refuse what can be seen to be wrong without reading a Dataset."""
    if not isinstance(task, Task):
        raise InputError(f"what is learned is a Task(name, classes, train); got {task!r}.")
    for part, data in (("train", task.train), ("valid", task.valid)):
        if data is None and part == "valid":
            continue
        if _length(data) == 0:
            raise InputError(f"task {task.name!r} is empty: its {part} data has no sample.")
        if isinstance(data, tuple | list):
            if len(data) != 2 or not _is_batch(data[1]):
                raise InputError(
                    f"task {task.name!r}: {part} data is a pair (inputs, labels) of tensors, or a Dataset; got "
                    f"{type(data).__name__} of {[type(part).__name__ for part in data]}."
                )
            inputs, labels = _as_inputs(data[0]), data[1]
            lengths = {len(tensor) for tensor in tensors_of(inputs)} | {len(labels)}
            if len(lengths) != 1:
                raise InputError(
                    f"task {task.name!r}: {part} inputs and labels differ in length: "
                    f"{[len(tensor) for tensor in tensors_of(inputs)]} inputs, {len(labels)} labels."
                )
            check_labels(task, Batch(inputs, labels))
        elif not isinstance(data, Dataset):
            raise InputError(
                f"task {task.name!r}: {part} data is a pair (inputs, labels) of tensors, or a torch Dataset; got "
                f"{type(data).__name__}."
            )
        elif _length(data) is None and not isinstance(data, IterableDataset):
            raise InputError(f"task {task.name!r}: its {part} Dataset has no length; give it __len__.")


def check_labels(task: Task, batch: Batch) -> None:
    """Labels of a classification are positions in `task.classes`; the error shows both ways to read them."""
    labels = batch.labels
    if len(labels) != len(batch):
        raise InputError(f"task {task.name!r}: a batch has {len(batch)} inputs and {len(labels)} labels.")
    if not task.classifies:
        return
    if labels.dim() != 1 or labels.is_floating_point():
        raise InputError(
            f"task {task.name!r}: labels are whole numbers, one per sample; got shape {tuple(labels.shape)} of "
            f"{labels.dtype}. Where they are no classes, leave these out: Task(name, (), data, loss=…, outputs=…)."
        )
    if not len(labels):
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= task.width:
        values = torch.unique(labels).tolist()
        shown = f"{values[:8]}{' …' if len(values) > 8 else ''}"
        are_global = set(values) <= set(task.classes)
        raise InputError(
            f"task {task.name!r}: labels {shown} are out of range. Read as local positions they must lie in "
            f"0..{task.width - 1}, one for each of its {len(task.classes)} classes {_short(task.classes)}. Read as "
            f"global classes they {'all are' if are_global else 'are not all'} among them"
            + (
                ": pass positions instead, label = classes.index(global_class)."
                if are_global
                else ": the data does not belong to these classes."
            )
        )


def shifted(data: Data, by: int) -> Data:
    """The same data with all labels moved by a number of classes."""
    if isinstance(data, tuple | list):
        return data[0], data[1].long() + by
    return _ShiftedStream(data, by) if isinstance(data, IterableDataset) else _Shifted(data, by)


class _Shifted(Dataset[Any]):
    """A Dataset whose labels come after those of other classes."""

    def __init__(self, data: Dataset[Any], by: int):
        self.data, self.by = data, by

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def __getitem__(self, at: int) -> Any:
        inputs, label = self.data[at]
        return inputs, label + self.by


class _ShiftedStream(IterableDataset[Any]):
    def __init__(self, data: IterableDataset[Any], by: int):
        self.data, self.by = data, by

    def __iter__(self) -> Iterator[Any]:
        return ((inputs, label + self.by) for inputs, label in self.data)


def tensors_of(inputs: Inputs) -> Iterator[Tensor]:
    """The tensors of an input, in order."""
    if isinstance(inputs, Tensor):
        yield inputs
    else:
        yield from inputs.values() if isinstance(inputs, dict) else inputs


def convert(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The same kind of input with every tensor changed."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, dict):
        return {name: change(value) for name, value in inputs.items()}
    return tuple(change(value) for value in inputs)


def rows(inputs: Inputs) -> int:
    """The size of the batch."""
    return next(tensors_of(inputs)).shape[0]


def signature(inputs: Inputs) -> Any:
    """Shape without the batch and dtype of every tensor, in the form of the input."""

    def of(value: Tensor) -> tuple[tuple[int, ...], str]:
        return tuple(value.shape[1:]), str(value.dtype).removeprefix("torch.")

    if isinstance(inputs, dict):
        return {name: of(value) for name, value in inputs.items()}
    return of(inputs) if isinstance(inputs, Tensor) else tuple(of(value) for value in inputs)


def plainly_like(inputs: Inputs, expected: Any, device: torch.device) -> bool:
    """Whether these inputs are one tensor of the shape, type and device that is `expected`, batch size apart.

    A glance, for every call: False may also mean that a closer look is needed.
    """
    return (
        isinstance(inputs, Tensor)
        and isinstance(expected, tuple)
        and inputs.shape[1:] == expected[0]
        and inputs.dtype is getattr(torch, expected[1])
        and inputs.device == device
    )


@contextmanager
def explained(inputs: Inputs, expected: Any, task: str) -> Iterator[None]:
    """Say what was given and what was expected when a module cannot take its inputs.

    Lengths may differ from what a task was learned on (sequences, images); the number of dimensions may not.
    """
    given = signature(inputs)
    if expected is not None and _dimensions(given) != _dimensions(expected):
        raise InputError(f"task {task!r} was learned on inputs {_words(expected)}; got {_words(given)} (batch first).")
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if isinstance(error, ForgetfreeError | torch.OutOfMemoryError) or given == expected:
            raise
        learned = f"; task {task!r} was learned on {_words(expected)}" if expected is not None else ""
        raise InputError(f"the backbone cannot take inputs {_words(given)}{learned}. It says: {error}") from error


def _raw_batches(data: Data, size: int, order: torch.Generator | None, loader: Mapping[str, Any]) -> Iterator[Batch]:
    if isinstance(data, tuple | list):
        inputs, labels = _as_inputs(data[0]), data[1]
        indices = torch.arange(len(labels)) if order is None else torch.randperm(len(labels), generator=order)
        for start, stop in _cut(len(labels), size):
            pick = partial(_pick, at=slice(start, stop) if order is None else indices[start:stop])
            yield Batch(convert(inputs, pick), pick(labels))
    elif isinstance(data, IterableDataset):
        stream = map(_as_batch, DataLoader(data, batch_size=size, generator=order, **loader))
        yield from _joined(stream) if size > 1 else stream
    else:
        length = len(data)  # type: ignore[arg-type]
        indices = torch.arange(length) if order is None else torch.randperm(length, generator=order)
        chunks = [indices[start:stop].tolist() for start, stop in _cut(length, size)]
        yield from map(_as_batch, DataLoader(data, batch_sampler=chunks, generator=order, **loader))


def _pick(tensor: Tensor, at: slice | Tensor) -> Tensor:
    # always a copy: a module may write to its inputs
    return tensor[at].clone() if isinstance(at, slice) else tensor[at.to(tensor.device)]


def _cut(length: int, size: int) -> list[tuple[int, int]]:
    starts = list(range(0, length, size))
    if size > 1 and len(starts) > 1 and length - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], length], strict=True))


def _joined(stream: Iterator[Batch]) -> Iterator[Batch]:
    waiting: Batch | None = None
    for batch in stream:
        if waiting is not None and 1 in (len(batch), len(waiting)):
            waiting = _concatenate(waiting, batch)
            continue
        if waiting is not None:
            yield waiting
        waiting = batch
    if waiting is not None:
        yield waiting


def _concatenate(one: Batch, other: Batch) -> Batch:
    tails = iter(tensors_of(other.inputs))
    return Batch(
        convert(one.inputs, lambda value: torch.cat([value, next(tails)])), torch.cat([one.labels, other.labels])
    )


def _as_batch(collated: Any) -> Batch:
    if not isinstance(collated, list | tuple) or len(collated) != 2 or not _is_batch(collated[1]):
        raise InputError(
            "a Dataset gives pairs (inputs, label), collated to a pair of batches; got "
            f"{type(collated).__name__}. A collate function can be passed as Recipe(loader={{'collate_fn': …}})."
        )
    return Batch(_as_inputs(collated[0]), collated[1])


def _as_inputs(value: Any) -> Inputs:
    if isinstance(value, list | tuple):
        value = tuple(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
    if not parts or not all(map(_is_batch, parts)):
        raise InputError(
            "inputs are a tensor, a tuple or a dict of tensors, batch first; got "
            f"{type(value).__name__} of {sorted({type(part).__name__ for part in parts})}."
        )
    return value  # type: ignore[no-any-return]


def _is_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _length(data: Data | None) -> int | None:
    if isinstance(data, tuple | list):
        return len(data[1]) if len(data) == 2 and _is_batch(data[1]) else None
    return len(data) if isinstance(data, Sized) and not isinstance(data, IterableDataset) else None


def _short(classes: tuple[int | str, ...]) -> str:
    return str(list(classes[:8]))[:-1] + (", …]" if len(classes) > 8 else "]")


def _dimensions(kind: Any) -> Any:
    if isinstance(kind, dict):
        return {name: len(shape) for name, (shape, _) in kind.items()}
    return len(kind[0]) if isinstance(kind[-1], str) else tuple(len(shape) for shape, _ in kind)


def _words(kind: Any) -> str:
    if isinstance(kind, dict):
        return "{" + ", ".join(f"{name}: {_words(value)}" for name, value in kind.items()) + "}"
    if isinstance(kind[-1], str):
        return "[" + ", ".join(["batch", *map(str, kind[0])]) + f"] of {kind[1]}"
    return "(" + ", ".join(map(_words, kind)) + ")"
