"""Sealing: a plain module that answers, and shows whether anybody wrote to it meanwhile.

A chain of torch's own layers needs no such care, since none of them writes in eval mode; it is answered layer by layer,
without the calls around each. Any other module may write to its inputs, so it gets a copy of them.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any, cast

import torch
from torch import Tensor, nn

from forgetfree.batches import convert
from forgetfree.contracts import Inputs
from forgetfree.heads import Whole
from forgetfree.locks import ProcessLock
from forgetfree.modules import as_call, is_watched, named_tensors
from forgetfree.python_state import Held, is_of_torch, untouched
from forgetfree.rng import agree_on_threads

PURE = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d,
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.ReLU6,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm,
)  # fmt: skip
"""Layers of torch that take one tensor, give one, and write to nothing in eval mode."""
CHAINS = (nn.Sequential, Whole)
_version_of = attrgetter("_version")
_END = object()


class Ready:
    """A module that is ready to answer."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.device = next(module.parameters()).device
        self.steps = steps(module)
        """What a chain of pure layers does; None for every other module."""

    def run(self, inputs: Inputs) -> Tensor:
        """The module's answer, without gradient and without autocast; the same in whichever thread it is asked."""
        agree_on_threads()
        if not torch.is_grad_enabled():
            return self._run(inputs)
        with torch.no_grad():
            return self._run(inputs)

    def _run(self, inputs: Inputs) -> Tensor:
        if torch.is_autocast_enabled(self.device.type):
            with torch.autocast(self.device.type, enabled=False):
                return self._run(inputs)
        if self.steps is not None and isinstance(inputs, Tensor) and not _watched_everywhere():
            for step in self.steps:
                inputs = step(inputs)
            return inputs
        args, kwargs = as_call(convert(inputs, torch.clone))
        answer: Tensor = self.module(*args, **kwargs)
        return answer


class Sealed(Ready):
    """A ready module that shows whether anybody wrote to its tensors or attributes, or put others in their place."""

    def __init__(self, module: nn.Module):
        super().__init__(module)
        self._registries: list[dict[str, Any]] = [
            registry for part in module.modules() for registry in (part._parameters, part._buffers, part._modules)
        ]
        self._registered = list(self._now())
        self._tensors = [tensor for _, tensor in named_tensors(module)]
        self._versions = list(map(_version_of, self._tensors))
        self._held = Held(part for part in module.modules() if not is_of_torch(part))
        self.nbytes = sum(tensor.nbytes for tensor in self._tensors)

    def ask(self, inputs: Inputs) -> Tensor | None:
        """The module's answer, or None if somebody wrote to it meanwhile."""
        answer = self.run(inputs)
        return answer if self.steps is not None or self.intact() else None

    def intact(self) -> bool:
        # asked after every answer, so without a loop in Python
        return (
            all(map(is_, self._now(), self._registered))
            and list(map(_version_of, self._tensors)) == self._versions
            and self._held.same()
        )

    def _now(self) -> Iterator[Any]:
        """Every tensor and module that is registered, and a mark at the end, so that one more or less is noticed."""
        return chain(chain.from_iterable(map(dict.values, self._registries)), (_END,))


class Undone(Sealed):
    """A module that writes to its plain attributes: one at a time asks it, and afterwards all of that is undone."""

    def __init__(self, module: nn.Module):
        super().__init__(module)
        self._turn = ProcessLock()

    def ask(self, inputs: Inputs) -> Tensor | None:
        with self._turn:
            with untouched(self.module):
                answer = self.run(inputs)
            return answer if self.intact() else None


def steps(module: nn.Module) -> list[Callable[[Tensor], Tensor]] | None:
    """What a chain of pure layers does, step by step; None for every other module."""
    if is_watched(module):
        return None
    if type(module) in PURE and not getattr(module, "inplace", False):
        return [module.forward]
    if type(module) not in CHAINS:
        return None
    parts = [steps(cast(nn.Module, part)) for part in module._modules.values()]  # children() leaves doubles out
    return None if None in parts else [step for part in parts if part is not None for step in part]


def _watched_everywhere() -> bool:
    """Whether somebody put a hook on all modules there are."""
    return bool(torch.nn.modules.module._global_forward_hooks or torch.nn.modules.module._global_forward_pre_hooks)
