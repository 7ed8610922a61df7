"""The first weights of the few-shot backbones: drawn for ReLUs (kaiming normal, fan out), or read from a file.

Such a file is safetensors, tensors by name: no pickle. ImageNet weights of torchvision's ResNet-18 load once converted.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from forgetfree.errors import FileError, ModuleError
from forgetfree.modules import origin_of

log = logging.getLogger("forgetfree")

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])
CLASSIFIER = ("fc.weight", "fc.bias")
"""What a file may hold beside the features: it answers other classes than ours."""
COUNTER = ".num_batches_tracked"
"""What a file may lack: older ones do, and a norm with a momentum does not ask for it."""


def archived_without_file(build: Builder) -> Builder:
    """Let what `build` makes be built again without the file `init`: an archive has all weights it needs by itself."""

    @functools.wraps(build)
    def built(**arguments: Any) -> nn.Module:
        module = build(**arguments)
        if origin := origin_of(module):
            origin["arguments"].pop("init", None)
        return module

    return cast(Builder, built)


def starting_from(init: str | None, module: nn.Module) -> nn.Module:
    """`module` itself, its tensors overwritten by those in the file `init`; untouched, from scratch, without one."""
    if init is None:
        return module
    tensors = _read(Path(init))
    if ignored := [name for name in CLASSIFIER if name in tensors]:
        log.info("%s: the classifier is ignored (%s)", init, ", ".join(ignored))
    given = {name: tensor for name, tensor in tensors.items() if name not in ignored}
    there = module.state_dict()
    _check(given, there, f"{init} does not fit {type(module).__name__}")
    with torch.no_grad():
        for name, tensor in given.items():
            there[name].copy_(tensor)
    return module


def convolution(before: int, width: int, size: int, *, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """A convolution without bias that draws its weights, now and whenever they are drawn anew, kaiming normal."""
    layer = nn.Conv2d(before, width, size, stride, padding, bias=False)
    # not a subclass: whoever looks for convolutions by their type, as `units` does, still finds one
    layer.reset_parameters = MethodType(_draw, layer)  # type: ignore[method-assign]
    layer.reset_parameters()
    return layer


def _draw(layer: nn.Conv2d) -> None:
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise FileError(
            f"init is a safetensors file of weights by name; cannot read {path}: {error.strerror or error}."
        ) from error
    except SafetensorError as error:
        raise FileError(
            f"init is a safetensors file of weights by name; {path} is none, or damaged: {error}."
        ) from error


def _check(given: Mapping[str, Tensor], there: Mapping[str, Tensor], what: str) -> None:
    missing = [name for name in there if name not in given and not name.endswith(COUNTER)]
    unknown = [name for name in given if name not in there]
    shapes = [
        f"{name} (is {tuple(given[name].shape)}, should be {tuple(there[name].shape)})"
        for name in there
        if name in given and given[name].shape != there[name].shape
    ]
    faults = {"missing": missing, "unknown": unknown, "of another shape": shapes}
    if found := "; ".join(f"{fault}: {_few(names)}" for fault, names in faults.items() if names):
        raise ModuleError(f"{what}: {found}.")


def _few(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
