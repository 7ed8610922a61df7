"""Answering: one plain module per task, made once, used by many threads, kept within a byte budget.

A module may write to its tensors even in eval mode (a counter, say). The first answer is given by a module of its
own; if that wrote anything, every answer is, so that asking never changes what is asked. A module that writes only now
and then is found out when it does, and whoever used it at that moment asks again.

A chain of torch's own layers needs no such care, since none of them writes in eval mode; it is answered layer by layer,
without the calls around each.

A batch whose rows belong to several tasks is answered task by task (`in_groups`): the rows of a task, in their order,
are one batch.
"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any, cast

import torch
from torch import Tensor, nn

from forgetfree.batches import convert, plainly_like, tensors_of
from forgetfree.contracts import Inputs
from forgetfree.errors import InputError
from forgetfree.heads import Whole
from forgetfree.modules import as_call, is_watched, named_tensors


class Answers:
    """Plain modules by task name, built on demand; the least recently used leave when the budget is full."""

    def __init__(self, build: Callable[[str], nn.Module], budget: int):
        self._build = build
        self._budget = budget
        self._modules: OrderedDict[str, _Sealed] = OrderedDict()
        self._nbytes = 0
        self._meeting: dict[str, str | None] = {}
        self._lock = threading.Lock()
        self._writes: bool | None = None  # unknown until the first answer

    def __call__(self, name: str, inputs: Inputs) -> Tensor:
        """The answer of task `name`: eval mode, no gradient, no autocast."""
        if torch.is_inference_mode_enabled():  # where tensors are made that cannot tell that they were written to
            with torch.inference_mode(False):
                return self(name, inputs)
        if self._writes is False:
            shared = self._shared(name)
            answer = shared.run(inputs)
            if shared.steps is not None or shared.intact():
                return answer
            self._writes = True
            self.clear()
        alone = _Sealed(self._build(name))
        answer = alone.run(inputs)
        if self._writes is None:
            self._writes = not alone.intact()
        return answer

    def takes(self, name: str, inputs: Inputs, learned_on: Any) -> bool:
        """Whether the module of task `name` is at hand and these inputs, as they are, are like those it learned on."""
        shared = self._modules.get(name)
        return shared is not None and plainly_like(inputs, learned_on, shared.device)

    def has(self, name: str) -> bool:
        """Whether the module of task `name` is at hand."""
        return name in self._modules

    def where_rows_meet(self, name: str) -> str | None:
        """The layer of task `name` by which rows of one batch change each other's answers, if there is one."""
        if name not in self._meeting:
            with torch.inference_mode(False):
                module = self._shared(name).module if self._writes is False else self._build(name)
            self._meeting[name] = where_rows_meet(module)
        return self._meeting[name]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Answers":
        return Answers(copy.deepcopy(self._build, memo), self._budget)

    def clear(self) -> None:
        with self._lock:
            self._modules.clear()
            self._nbytes = 0
            self._meeting = {}

    def _shared(self, name: str) -> "_Sealed":
        with self._lock:
            shared = self._modules.get(name)
            if shared is None:
                shared = self._modules[name] = _Sealed(self._build(name))
                self._nbytes += shared.nbytes
                while len(self._modules) > 1 and self._nbytes > self._budget:
                    self._nbytes -= self._modules.popitem(last=False)[1].nbytes
            else:
                self._modules.move_to_end(name)
            return shared


def where_rows_meet(module: nn.Module) -> str | None:
    """The first batch norm that, even in eval mode, takes its statistics from the batch at hand."""
    for path, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
            return f"{path} ({type(part).__name__})"
    return None


def in_groups(inputs: Inputs, names: Sequence[str], answer: Callable[[str, Inputs], Tensor]) -> Tensor | list[Tensor]:
    """The answer to every row by the task named for it, in the order of the rows.

    Answers of one shape come as one tensor, of several shapes (tasks with more classes than others) as a list with a
    tensor per row.
    """
    places: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        places.setdefault(name, []).append(row)
    answers = {name: answer(name, _take(inputs, rows, len(names))) for name, rows in places.items()}
    for name, given in answers.items():
        if given.dim() == 0 or len(given) != len(places[name]):
            raise InputError(
                f"task {name!r} answers {len(places[name])} rows with shape {tuple(given.shape)}, not row by row, so "
                "it cannot be asked in a batch with other tasks. Ask it alone."
            )
    return _in_order(answers, places, len(names))


def check_rows(inputs: Inputs, names: Sequence[str]) -> None:
    """Refuse a batch that does not have one row for every name."""
    if not names:
        raise InputError("the list of tasks is empty: name one task for every row of the batch.")
    for value in tensors_of(inputs):
        if value.dim() == 0 or len(value) != len(names):
            raise InputError(
                f"a list of tasks has one name for every row; got {len(names)} names and inputs of shape "
                f"{tuple(value.shape)} (batch first)."
            )


def _take(inputs: Inputs, rows: list[int], total: int) -> Inputs:
    if len(rows) == total:
        return inputs
    at = torch.tensor(rows)
    return convert(inputs, lambda value: value.index_select(0, at.to(value.device)))


def _in_order(answers: Mapping[str, Tensor], places: Mapping[str, list[int]], total: int) -> Tensor | list[Tensor]:
    if len({(given.shape[1:], given.dtype) for given in answers.values()}) == 1:
        every = torch.cat(list(answers.values()))
        back = torch.tensor(list(chain.from_iterable(places.values()))).argsort()
        return every if len(answers) == 1 else every.index_select(0, back.to(every.device))
    by_row = {row: one for name, given in answers.items() for row, one in zip(places[name], given, strict=True)}
    return [by_row[row] for row in range(total)]


_version_of = attrgetter("_version")
_END = object()


class _Sealed:
    """A module that shows whether anybody wrote to its tensors, or put others in their place."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.device = next(module.parameters()).device
        self._registries: list[dict[str, Any]] = [
            registry for part in module.modules() for registry in (part._parameters, part._buffers, part._modules)
        ]
        self._registered = list(self._now())
        self._tensors = [tensor for _, tensor in named_tensors(module)]
        self._versions = list(map(_version_of, self._tensors))
        self.nbytes = sum(tensor.nbytes for tensor in self._tensors)
        self.steps = _steps(module)

    def intact(self) -> bool:
        # asked after every answer, so without a loop in Python
        return all(map(is_, self._now(), self._registered)) and list(map(_version_of, self._tensors)) == self._versions

    def run(self, inputs: Inputs) -> Tensor:
        """The module's answer, without gradient and without autocast."""
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
        args, kwargs = as_call(inputs)
        answer: Tensor = self.module(*args, **kwargs)
        return answer

    def _now(self) -> Iterator[Any]:
        """Every tensor and module that is registered, and a mark at the end, so that one more or less is noticed."""
        return chain(chain.from_iterable(map(dict.values, self._registries)), (_END,))


PURE = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d,
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.ReLU6,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm,
)  # fmt: skip
"""Layers of torch that take one tensor, give one, and write to nothing in eval mode."""
CHAINS = (nn.Sequential, Whole)


def _steps(module: nn.Module) -> list[Callable[[Tensor], Tensor]] | None:
    """What a chain of pure layers does, step by step; None for every other module."""
    if is_watched(module):
        return None
    if type(module) in PURE and not getattr(module, "inplace", False):
        return [module.forward]
    if type(module) not in CHAINS:
        return None
    parts = [_steps(cast(nn.Module, part)) for part in module._modules.values()]  # children() leaves doubles out
    return None if None in parts else [step for part in parts if part is not None for step in part]


def _watched_everywhere() -> bool:
    """Whether somebody put a hook on all modules there are."""
    return bool(torch.nn.modules.module._global_forward_hooks or torch.nn.modules.module._global_forward_pre_hooks)
