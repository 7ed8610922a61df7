"""Answering: one plain module per task, made once, used by many threads, kept within a byte budget.

A module may write to its tensors even in eval mode (a counter, say). The first answer is given by a module of its
own; if that wrote anything, every answer is, so that asking never changes what is asked. A module that writes only now
and then is found out when it does, and whoever used it at that moment asks again.
"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from forgetfree.contracts import Inputs
from forgetfree.modules import as_call, named_tensors


class Answers:
    """Plain modules by task name, built on demand; the least recently used leave when the budget is full."""

    def __init__(self, build: Callable[[str], nn.Module], budget: int):
        self._build = build
        self._budget = budget
        self._modules: OrderedDict[str, _Sealed] = OrderedDict()
        self._lock = threading.Lock()
        self._writes: bool | None = None  # unknown until the first answer

    def __call__(self, name: str, inputs: Inputs) -> Tensor:
        """The answer of task `name`: eval mode, no gradient, no autocast."""
        with torch.inference_mode(False):  # a tensor made in inference mode cannot tell that it was written to
            if self._writes is False:
                shared = self._shared(name)
                answer = _run(shared.module, inputs)
                if shared.intact:
                    return answer
                self._writes = True
                self.clear()
            alone = _Sealed(self._build(name))
            answer = _run(alone.module, inputs)
            if self._writes is None:
                self._writes = not alone.intact
            return answer

    def __deepcopy__(self, memo: dict[int, Any]) -> "Answers":
        return Answers(copy.deepcopy(self._build, memo), self._budget)

    def clear(self) -> None:
        with self._lock:
            self._modules.clear()

    def _shared(self, name: str) -> "_Sealed":
        with self._lock:
            if name not in self._modules:
                self._modules[name] = _Sealed(self._build(name))
            self._modules.move_to_end(name)
            shared = self._modules[name]
            while len(self._modules) > 1 and sum(other.nbytes for other in self._modules.values()) > self._budget:
                self._modules.popitem(last=False)
            return shared


class _Sealed:
    """A module that shows whether anybody wrote to its tensors."""

    def __init__(self, module: nn.Module):
        self.module = module
        self._versions = [(tensor, tensor._version) for _, tensor in named_tensors(module)]
        self.nbytes = sum(tensor.nbytes for tensor, _ in self._versions)

    @property
    def intact(self) -> bool:
        now = [tensor for _, tensor in named_tensors(self.module)]
        return len(now) == len(self._versions) and all(
            tensor is before and tensor._version == version
            for tensor, (before, version) in zip(now, self._versions, strict=True)
        )


@torch.no_grad()
def _run(module: nn.Module, inputs: Inputs) -> Tensor:
    args, kwargs = as_call(inputs)
    device = next(module.parameters()).device.type
    with torch.autocast(device, enabled=False):
        answer: Tensor = module(*args, **kwargs)
    return answer
