"""Answering: one plain module per task, made once, used by many threads, kept within a byte budget.

A module may write to its tensors and attributes even in eval mode (a counter, say, or a hidden state). Each task is
tried out before it shares its module. Where only attributes were written, one at a time asks and the writing is undone;
where anything else was, every answer gets a module of its own: asking never changes what is asked. A module that writes
only now and then is found out when it does, and whoever used it at that moment asks again.

A batch whose rows belong to several tasks is answered task by task (`in_groups`): the rows of a task, in their order,
are one batch.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from forgetfree.batches import convert, plainly_like, tensors_of
from forgetfree.contracts import Inputs
from forgetfree.errors import InputError
from forgetfree.locks import ProcessLock
from forgetfree.sealing import Ready, Sealed
from forgetfree.trials import tried_out


class Answers:
    """Plain modules by task name, built on demand; the least recently used leave when the budget is full."""

    def __init__(self, build: Callable[[str], nn.Module], budget: int):
        self._build = build
        self._budget = budget
        self._modules: OrderedDict[str, Sealed] = OrderedDict()
        self._nbytes = 0
        self._meeting: dict[str, str | None] = {}
        self._lock = ProcessLock()
        self._ways: dict[str, type[Sealed] | None] = {}
        """How each task that was tried out shares its module; None: every answer gets one of its own."""

    def __call__(self, name: str, inputs: Inputs) -> Tensor:
        """The answer of task `name`: eval mode, no gradient, no autocast."""
        if torch.is_inference_mode_enabled():  # where tensors are made that cannot tell that they were written to
            with torch.inference_mode(False):
                return self(name, inputs)
        if name not in self._ways:
            if any(value.numel() == 0 for value in tensors_of(inputs)):  # which nothing can be tried out on
                return Ready(self._build(name)).run(inputs)
            self.try_out(name, inputs)
        if self._ways[name] is not None:
            answer = self._shared(name).ask(inputs)
            if answer is not None:
                return answer
            self._gives_fresh(name)
        return Ready(self._build(name)).run(inputs)

    def try_out(self, name: str, inputs: Inputs, *, goes_on: bool = False) -> None:
        """See how task `name` is to be asked; a `ModuleError` if it does not give the same answer twice.

        Where learning `goes_on`, training is no reason for another answer either.
        """
        with torch.inference_mode(False):
            steady = tried_out(lambda: self._build(name), inputs, name, goes_on=goes_on)
        if steady is None:
            self._gives_fresh(name)
        else:
            self._ways[name] = type(steady)
            self._shared(name, steady)

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
                module = self._shared(name).module if self._ways.get(name) else self._build(name)
            self._meeting[name] = where_rows_meet(module)
        return self._meeting[name]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Answers":
        return Answers(copy.deepcopy(self._build, memo), self._budget)

    def forget(self, name: str) -> None:
        """Know nothing of task `name` any more."""
        self._ways.pop(name, None)
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._modules.clear()
            self._nbytes = 0
            self._meeting = {}

    def _gives_fresh(self, name: str) -> None:
        """Share no module of task `name` from now on."""
        self._ways[name] = None
        with self._lock:
            dropped = self._modules.pop(name, None)
            self._nbytes -= dropped.nbytes if dropped else 0

    def _shared(self, name: str, made: Sealed | None = None) -> Sealed:
        """The module of task `name`, where there is none yet the one that was `made`."""
        with self._lock:
            shared = self._modules.get(name)
            if shared is None:
                shared = self._modules[name] = made or (self._ways[name] or Sealed)(self._build(name))
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
