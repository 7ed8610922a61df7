"""Trials: a task's module is asked again and again before anybody relies on it.

Asked twice on one batch, with other batches in between and with random numbers drawn meanwhile, a module must answer
with the same bits, and so it must when another copy of it is trained meanwhile. If it does, and holds what it held
before, all who ask may share one module. If it is so when its writing to plain attributes is undone, one at a time may
ask it. If only a fresh copy gives the same answer, every answer gets a fresh copy. If not even fresh copies agree, the
module is refused.
"""

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import eq
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from forgetfree.batches import convert, tensors_of
from forgetfree.certificate import TOLERANCE, difference
from forgetfree.contracts import Inputs
from forgetfree.errors import LearningError, ModuleError
from forgetfree.modules import copy_module, named_tensors
from forgetfree.python_state import alike, differing, is_of_torch, take_over
from forgetfree.sealing import Ready, Sealed, Undone
from forgetfree.training.session import TaskModel

ROWS = 2
"""So many rows of a batch are asked about."""
OTHERS = (1, 7, 33)
"""Sizes of the batches in between."""
LARGEST = 1 << 24
"""Batches with more values are not asked about in between."""
DRAWS = 16
"""How often a module that draws random numbers is asked: whatever hangs on one of them shows."""
FAILURES = (RuntimeError, ValueError, LookupError, TypeError, ArithmeticError, AssertionError)
"""What a module may raise that cannot take so few rows, or so many."""


def tried_out(build: Callable[[], nn.Module], inputs: Inputs, task: str, *, goes_on: bool = False) -> Sealed | None:
    """A module of a task that all who ask may share, or None if every answer needs a fresh one.

    A `ModuleError` if not even fresh ones give the same answer; where learning `goes_on`, also with training between.
    """
    used = Sealed(build())
    if used.steps is not None:
        return used
    fresh = build()
    chance = _random_states(used.device)
    try:
        few = _rows(inputs, ROWS)
        answer = used.run(few)
    except FAILURES:
        few = inputs
        answer = used.run(few)
    draws = _random_states(used.device) != chance
    others = [batch for batch in (_rows(few, size) for size in OTHERS) if _runs(used, batch)]
    shared = _is_steady(used, few, answer, others) and _alike(used.module, fresh)
    if goes_on:
        with suppress(*FAILURES):
            Ready(build().train()).run(few)
    _refuse_restless([Ready(fresh)], few, answer, task)
    again = (used if shared else Ready(build()) for _ in range(DRAWS if draws else 0))
    _refuse_restless(again, few, answer, task)
    if goes_on:
        _refuse_seeding(lambda: used if shared else Ready(build()), few, task)
    if shared:
        return used
    right = [answer, *(Ready(build()).run(batch) for batch in others)]
    batches = [few, *others]
    for batch, known in zip(batches, right, strict=True):
        _refuse_restless([Ready(build())], batch, known, task)
    undone = Undone(build())
    as_before = all(_same(undone.ask(b), known) for _ in range(2) for b, known in zip(batches, right, strict=True))
    return undone if as_before and _alike(undone.module, build()) else None


def _runs(used: Ready, batch: Inputs) -> bool:
    """Whether a module takes a batch of this size, which is not too large for a trial."""
    if sum(value.numel() for value in tensors_of(batch)) > LARGEST:
        return False
    try:
        used.run(batch)
    except FAILURES:
        return False
    return True


def _is_steady(used: Sealed, few: Inputs, answer: Tensor, others: list[Inputs]) -> bool:
    """Whether a module that was asked stands as it was, in the middle of a call too, and answers as it did."""
    watch = Watch(used)
    with suppress(*FAILURES), watch:
        used.run(few)
    same = all(_same(used.run(batch), used.run(batch)) for batch in others)
    return watch.intact and same and used.intact() and _same(used.run(few), answer)


def _refuse_restless(asked: Iterable[Ready], batch: Inputs, answer: Tensor, task: str) -> None:
    """Refuse a module that gives other answers, though it is a fresh one or has not changed."""
    for module in asked:
        if not _same(module.run(batch), answer):
            raise ModuleError(
                f"task {task!r}: asked twice on one batch, the module gives two answers. It draws random numbers in "
                "eval mode, or what it remembers from call to call is outside of it (in a hook, a closure, a global "
                "variable, a class). Draw only while self.training, as nn.Dropout does; let what is remembered be an "
                "attribute, or better a buffer, of the module."
            )


def _refuse_seeding(ask: Callable[[], Ready], few: Inputs, task: str) -> None:
    """Refuse a module that sets the random state which all threads share: others draw from it at the same time."""

    def asked(drawing: bool) -> tuple[Tensor | None, list[Any]]:
        _draw()
        module, answer = ask(), None
        with suppress(*FAILURES), Disturbance(drawing):
            answer = module.run(few)
        return answer, _random_states(module.device)

    (calm, one), (_, other), (disturbed, _) = asked(False), asked(False), asked(True)
    if any(map(eq, one, other)) or (calm is not None and disturbed is not None and not _same(calm, disturbed)):
        raise ModuleError(
            f"task {task!r}: the module sets the global random seed in eval mode, so that its answer changes when "
            "another thread draws a number at that moment. Let it draw from a torch.Generator of its own, made where "
            "it is used, or keep the numbers in a buffer."
        )


def features_of(model: TaskModel, inputs: Inputs) -> Any:
    """What a model gives for `inputs` in eval mode; a `ModuleError` if that hangs on random numbers."""

    def ask(asked: TaskModel) -> Any:
        return asked(convert(inputs, torch.clone))

    device = next(tensors_of(inputs)).device
    chance = _random_states(device)
    features = ask(model)
    if _random_states(device) != chance:
        # drawing is not enough, since some draw and make no use of it; and what a module remembers is no chance
        again = _all_alike(ask(model) for _ in range(DRAWS))
        if not again and not _all_alike(ask(copy.deepcopy(model)) for _ in range(DRAWS)):
            raise ModuleError(
                "the backbone draws random numbers in eval mode, so that it can never give the same answer twice. Use "
                "nn.Dropout, or torch.nn.functional.dropout(x, training=self.training)."
            )
    return features


def without_values(module: nn.Module | None) -> nn.Module | None:
    """A copy that holds the plain attributes of this moment; None where torch's own parts have nothing to remember."""
    if module is None or all(map(is_of_torch, module.modules())):
        return None
    return copy_module(module, lambda _, tensor: torch.empty_like(tensor, device="meta"))


def refuse_left_behind(
    task: str, before: nn.Module, after: nn.Module, build: Callable[[], nn.Module], inputs: Inputs
) -> None:
    """Refuse a task that has learned something in plain attributes, which are not kept, and answers by it.

    `before` and `after` learning, the module that learned; `build` makes the one that is kept.
    """
    names = differing(after, before)
    if not names:
        return
    kept, carried = build(), build()
    take_over(carried, names, after)
    try:
        same = alike(Ready(kept).run(inputs), Ready(carried).run(inputs))
    except FAILURES:  # what is remembered of one batch may not fit another; it is not kept
        return
    if not same:
        raise LearningError(
            f"task {task!r}: {', '.join(names)} changed while it was learned, and the answers depend on it; but of a "
            "module tensors are kept, no other attributes. The learner is as it was before. Make it a buffer "
            "(self.register_buffer), or let it decide nothing in eval mode."
        )


class Watch(TorchFunctionMode):
    """Looks at a module at every call of torch inside it: whether it is the same in the middle of an answer too."""

    def __init__(self, sealed: Sealed):
        super().__init__()
        self._sealed = sealed
        self.intact = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        self.intact = self.intact and self._sealed.intact()
        return answer


class Disturbance(TorchFunctionMode):
    """Draws random numbers at every call of torch, as another thread may; or does not, for comparison."""

    def __init__(self, drawing: bool):
        super().__init__()
        self._drawing = drawing

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._drawing:
            _draw()
        return func(*args, **(kwargs or {}))


def _rows(inputs: Inputs, count: int) -> Inputs:
    """So many rows: the first ones, over and over where there are fewer."""
    return convert(inputs, lambda value: value[[row % len(value) for row in range(count)]] if value.dim() else value)


def _alike(used: nn.Module, fresh: nn.Module) -> bool:
    """Whether a module that was asked holds what a fresh one holds."""
    return alike(dict(named_tensors(used)), dict(named_tensors(fresh))) and not differing(used, fresh)


def _same(one: Tensor | None, other: Tensor) -> bool:
    """Whether two answers to one batch are the same; sums of other devices may come in another order."""
    return alike(one, other) or (one is not None and one.device.type != "cpu" and difference(one, other) <= TOLERANCE)


def _all_alike(answers: Iterator[Any]) -> bool:
    first = next(answers)
    return all(alike(first, answer) for answer in answers)


def _random_states(device: torch.device) -> list[Any]:
    """Of the generators that code without one of its own draws from, one state for each."""
    legacy: Any = np.random.get_state()
    states = [torch.get_rng_state().numpy().tobytes(), random.getstate(), (legacy[1].tobytes(), legacy[2:])]
    others = [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state().cpu().numpy().tobytes()]
    return states + others


def _draw() -> None:
    """Move these states, as another thread may at any time."""
    random.random(), np.random.rand(), torch.rand(())
