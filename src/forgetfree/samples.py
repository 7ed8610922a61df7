"""Data sample by sample: several parts as one, and the inputs and labels of some samples of any data."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, TensorDataset

from forgetfree.batches import signature
from forgetfree.contracts import Data
from forgetfree.errors import InputError


class Samples(Dataset[tuple[Any, int]]):
    """Any data sample by sample; labels are plain numbers, so that parts of several kinds make one batch."""

    def __init__(self, data: Data):
        if isinstance(data, tuple | list):
            inputs, labels = data
            if not isinstance(inputs, Tensor):
                raise InputError("sessions are joined where their inputs are one tensor, or a Dataset.")
            self._data: Any = TensorDataset(inputs, labels)
        elif isinstance(data, IterableDataset):
            raise InputError("sessions are joined in any order: as tensors or as a Dataset, not as a stream.")
        else:
            self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        inputs, label = self._data[at]
        return torch.as_tensor(inputs) if hasattr(inputs, "__array__") else inputs, int(label)


def joined_data(parts: Sequence[Data]) -> Data:
    """Several parts of data as one."""
    if all(isinstance(part, tuple) and isinstance(part[0], Tensor) for part in parts):
        inputs, labels = zip(*parts, strict=True)
        kinds = [signature(each) for each in inputs]
        if any(kind != kinds[0] for kind in kinds):
            raise InputError(f"sessions are trained together where their inputs are alike; got {kinds} (batch apart).")
        return torch.cat(inputs), torch.cat([each.long() for each in labels])
    return ConcatDataset([Samples(part) for part in parts])


def samples_of(data: Data, label: int) -> Tensor:
    """The inputs of one class, in their order."""
    if isinstance(data, tuple | list):
        inputs, labels = data
        if not isinstance(inputs, Tensor):
            raise InputError("exemplars are kept of inputs that are one tensor.")
        return inputs[(labels == label).to(inputs.device)]
    pairs = [data[at] for at in range(len(data))]  # type: ignore[arg-type]
    return torch.stack([torch.as_tensor(inputs) for inputs, given in pairs if int(given) == label])


def samples_at(data: Data, positions: Sequence[int]) -> Tensor:
    """The inputs at these positions."""
    if isinstance(data, tuple | list):
        inputs, _ = data
        assert isinstance(inputs, Tensor)
        return inputs[torch.as_tensor(positions, dtype=torch.long)]
    return torch.stack([torch.as_tensor(data[at][0]) for at in positions])


def labels_of(data: Data) -> Tensor:
    """The labels of all samples, in their order; of a Dataset every sample is read."""
    if isinstance(data, tuple | list):
        return data[1].long().cpu()
    return torch.tensor([int(data[at][1]) for at in range(len(data))])  # type: ignore[arg-type]


def sized(data: Any) -> tuple[Tensor, Tensor]:
    """Inputs and labels, to be counted; of a Dataset, which is not read for this, its first sample in place of all."""
    if isinstance(data, tuple | list):
        return data[0], data[1]
    inputs, label = data[0]
    count = len(data)
    parts = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple | list) else [inputs]
    sample = torch.cat([torch.as_tensor(part).flatten() for part in parts])
    return sample.expand(count, len(sample)), torch.as_tensor(label).expand(count)
