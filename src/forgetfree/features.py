"""Cached features: where the backbone stands still, images go through it once and a head learns from what came out.

    features, labels = extract_features(backbone, task.train, batch_size=256)
    fit the head on cached(task, backbone, batch_size=256)

They are what the backbone gives batch by batch in eval mode, equal bit for bit for batches of the same size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from forgetfree.batches import batches, count_samples, explained, tensors_of
from forgetfree.contracts import Data, Inputs, Task
from forgetfree.errors import InputError
from forgetfree.modules import as_call

Cast = Callable[[Inputs], Inputs]
"""Inputs brought to the device and floating-point type of the backbone."""


def extract_features(module: nn.Module, data: Data, *, batch_size: int, **others: Any) -> tuple[Tensor, Tensor]:
    """Features of all samples, in their order, and their labels; `others` as in `feature_batches`."""
    found = list(feature_batches(module, data, batch_size=batch_size, **others))
    if not found:
        raise InputError("there is no sample to take features of.")
    features, labels = zip(*found, strict=True)
    return torch.cat(features), torch.cat(labels)


def feature_batches(
    module: nn.Module,
    data: Data,
    *,
    batch_size: int,
    cast: Cast | None = None,
    loader: Mapping[str, Any] | None = None,
    task: Task | None = None,
    learned_on: Any = None,
    learned: str = "",
    change: Callable[[Inputs], Inputs] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Features and labels batch by batch, in the order of the samples; in eval mode, without gradient and autocast.

    Labels are checked against the classes of `task`, where there is one. Inputs that do not fit are explained by those
    that a task, `learned`, was `learned_on`. `change` is what becomes of a batch of inputs first.
    """
    unchecked = Task("features", (), data, loss="mse", outputs=1)
    there = isinstance(data, IterableDataset) or count_samples(data) > 0
    for batch in batches(task or unchecked, data, batch_size, loader=loader) if there else ():
        changed = change(batch.inputs) if change is not None else batch.inputs
        inputs = cast(changed) if cast is not None else changed
        device = next(tensors_of(inputs)).device
        args, kwargs = as_call(inputs)
        plain = torch.autocast(device.type, enabled=False)
        with evaluated(module), torch.no_grad(), explained(inputs, learned_on, learned), plain:
            features = module(*args, **kwargs)
        if not isinstance(features, Tensor):
            raise InputError(f"a backbone gives one tensor of features; got a {type(features).__name__}.")
        yield features, batch.labels.to(features.device)


def cached(
    task: Task,
    module: nn.Module,
    *,
    batch_size: int,
    cast: Cast | None = None,
    loader: Mapping[str, Any] | None = None,
) -> Task:
    """The task with features in place of its images, for training and validation.

    Each image is seen once, as it is: `augment` is left out. To train on several views of an image, put them into the
    task first.
    """

    def seen(data: Data) -> tuple[Tensor, Tensor]:
        return extract_features(module, data, batch_size=batch_size, cast=cast, loader=loader)

    valid = None if task.valid is None else seen(task.valid)
    return replace(task, train=seen(task.train), valid=valid, augment=None)


@contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """The module in eval mode; on leaving, each of its parts is in the mode it was in."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
