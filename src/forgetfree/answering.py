"""Answering: one plain module per task, made once, used by many threads, kept within a byte budget.

A module may write to its tensors even in eval mode (a counter, say). The first answer is given by a trial copy; if
that wrote anything, every answer comes from a fresh copy, so that asking never changes what is asked.
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
        self._modules: OrderedDict[str, nn.Module] = OrderedDict()
        self._lock = threading.Lock()
        self._writes: bool | None = None  # unknown until the first answer

    def __call__(self, name: str, inputs: Inputs) -> Tensor:
        """The answer of task `name`: eval mode, no gradient, no autocast."""
        module = self._module(name)
        if self._writes is None or self._writes:
            module = copy.deepcopy(module)
        before = _versions(module)
        answer = _run(module, inputs)
        if _versions(module) != before:
            self._writes = True
            self.clear()
        elif self._writes is None:
            self._writes = False
        return answer

    def __deepcopy__(self, memo: dict[int, Any]) -> "Answers":
        return Answers(copy.deepcopy(self._build, memo), self._budget)

    def clear(self) -> None:
        with self._lock:
            self._modules.clear()

    def _module(self, name: str) -> nn.Module:
        with self._lock:
            if name not in self._modules:
                self._modules[name] = self._build(name)
            self._modules.move_to_end(name)
            module = self._modules[name]
            while len(self._modules) > 1 and sum(map(_nbytes, self._modules.values())) > self._budget:
                self._modules.popitem(last=False)
            return module


@torch.no_grad()
def _run(module: nn.Module, inputs: Inputs) -> Tensor:
    args, kwargs = as_call(inputs)
    device = next(module.parameters()).device.type
    with torch.autocast(device, enabled=False):
        answer: Tensor = module(*args, **kwargs)
    return answer


def _versions(module: nn.Module) -> list[tuple[int, int]]:
    """Identity and version of every tensor: both change when somebody writes."""
    return [(id(tensor), tensor._version) for _, tensor in named_tensors(module)]


def _nbytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for _, tensor in named_tensors(module))
