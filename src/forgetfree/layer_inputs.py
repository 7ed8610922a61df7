"""What a layer takes in: the vectors that linear and convolutional layers multiply by their weight.

W x     x is an input of a linear layer, or the patch of an image that a convolution looks at, [rows, width]

with watched(module, note):         # note(name of the weight, layer, inputs), whenever such a layer is called
    module(images)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from forgetfree.errors import LearningError

FORWARDS = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
"""Of layers that multiply their inputs, or patches of them, by their weight."""
AT_ONCE = 1 << 22
"""How many numbers of patches are held in float64 at a time."""

Note = Callable[[str, nn.Module, Tensor], None]
"""Told the name of a weight, a layer that has it, and what this layer is given."""


def layers(module: nn.Module) -> dict[str, list[nn.Module]]:
    """The weights that may move and do nothing but multiply rows, each with its layer, or with all that share it."""
    parts = list(module.modules())
    # attention uses the weights of the layers inside it without calling them
    hidden = {
        id(part) for attention in parts if isinstance(attention, nn.MultiheadAttention) for part in attention.modules()
    }
    found = {}
    for name, weight in module.named_parameters():
        owners = [part for part in parts if any(own is weight for own in part._parameters.values())]
        plain = all(type(owner).forward in FORWARDS and owner.weight is weight for owner in owners)
        if plain and weight.requires_grad and not any(id(owner) in hidden for owner in owners):
            found[name] = owners
    return found


def width(layer: nn.Module) -> int:
    """How many inputs each output of a layer multiplies."""
    return cast(Tensor, layer.weight)[0].numel()


@contextmanager
def watched(module: nn.Module, note: Note) -> Iterator[None]:
    """Have `note` told of every call of a layer of the module."""

    def told(name: str, layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        note(name, layer, (args[0] if args else kwargs["input"]).detach())

    hooks = [
        layer.register_forward_pre_hook(partial(told, name), with_kwargs=True)
        for name, sharing in layers(module).items()
        for layer in sharing
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def rows(layer: nn.Module, inputs: Tensor, fraction: float = 1.0) -> Tensor:
    """The vectors that a layer multiplies by its weight, [rows, width], from the first fraction of its inputs."""
    batch = _batched(layer, inputs)
    return _rows(layer, batch[: max(1, round(len(batch) * fraction))])


def gram(layer: nn.Module, inputs: Tensor) -> Tensor:
    """X^T X of the rows X of a layer, [width, width], in float64; never are all rows in memory."""
    total = torch.zeros(width(layer), width(layer), dtype=torch.float64, device=inputs.device)
    batch = _batched(layer, inputs)
    step = max(1, AT_ONCE // max(1, _rows(layer, batch[:1]).numel()))
    for start in range(0, len(batch), step):
        some = _rows(layer, batch[start : start + step]).double()
        total.addmm_(some.T, some)
    return total


def refuse_infinite(task: str, name: str, seen: Tensor) -> None:
    """Refuse a layer that took in, at the end of a task, what is no number."""
    if not bool(seen.isfinite().all()):
        raise LearningError(
            f"task {task!r}: what the layer of {name} takes in is not finite, so that it has no bases. "
            "The learner is as it was before. Check the inputs for NaN, or lower the learning rate."
        )


def _batched(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Inputs with one axis before those of a row, or of an image."""
    if inputs.is_nested:  # a transformer leaves padding out; rows of zeros have no energy
        inputs = inputs.to_padded_tensor(0.0)
    if isinstance(layer, nn.Linear):
        return inputs.reshape(-1, inputs.shape[-1])
    return inputs if inputs.dim() == cast(Tensor, layer.weight).dim() else inputs.unsqueeze(0)


def _rows(layer: nn.Module, batch: Tensor) -> Tensor:
    return batch if isinstance(layer, nn.Linear) else _patches(cast(nn.Conv2d, layer), batch)


def _patches(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """[batch, channels, *size] -> [patches, channels * kernel]; groups have the same patches, of fewer channels."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    windows = nn.functional.pad(images, layer._reversed_padding_repeated_twice, mode=mode)
    for axis, size in enumerate(layer.kernel_size):
        reach = layer.dilation[axis] * (size - 1) + 1
        windows = windows.unfold(axis + 2, reach, layer.stride[axis])
    apart = [slice(None, None, step) for step in layer.dilation]
    windows = windows[(slice(None),) * images.dim() + tuple(apart)]
    by_group = windows.reshape(len(windows), layer.groups, -1, *windows.shape[2:])
    # [batch, groups, channels, *places, *kernel] -> [batch, groups, *places, channels, *kernel]
    return by_group.movedim(2, -len(apart) - 1).reshape(-1, width(layer))
