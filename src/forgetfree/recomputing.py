"""Gradient checkpointing: where backward() makes a part of a call again, that part finds what the call was lent.

A module is lent tensors for one call, effective weights or gates, and has none of its own. torch.utils.checkpoint calls
parts of it once more in backward(), when they were taken back long ago. So what a call gave announces that backward()
has come to it; whoever is asked for a tensor from then on has that of this call.

What is lent again are copies that end the graph. A reentrant checkpoint runs a backward() of its own for every part,
and the first would free the graph behind the tensors that all parts share; here its gradients stay in the copies, and
go on from there when all of them are known.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
Again = Callable[[], Tensors]
"""Gives what a call was lent once more, until backward() ends."""


def lend_again(
    given: Any,
    lent: Tensors,
    put: Callable[[Again], None],
    take_back: Callable[[], None],
    anew: Callable[[], Tensors],
    written: Collection[str] = (),
) -> None:
    """When backward() comes to what a call has `given`, `put` in place what it was `lent`, and `take_back` at the end.

    `anew` makes what was lent once more, with its graph. What is `written` to by the call (statistics, counters) is a
    copy for once: its second writing is dropped, so that everything ends as without a checkpoint.
    """
    if not isinstance(given, Tensor) or given.grad_fn is None:
        return
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():  # which have no hooks
        return
    given.grad_fn.register_prehook(_Announcement(lent, put, take_back, anew, written))


def in_backward() -> bool:
    """Whether a backward() is going on in this thread."""
    return torch._C._current_graph_task_id() >= 0


class _Announcement:
    """Tells that backward() has come to a call; the tensors are held until it does so for the last time."""

    def __init__(
        self,
        lent: Tensors,
        put: Callable[[Again], None],
        take_back: Callable[[], None],
        anew: Callable[[], Tensors],
        written: Collection[str],
    ):
        self._lent: Tensors | None = lent
        self._put, self._how = put, (take_back, anew, written)

    def __call__(self, gradients: Any) -> None:
        if self._lent is not None:
            self._put(partial(_copies, self._lent, *self._how))
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            self._lent = None  # it is large, and whoever keeps the loss would keep it


def _copies(
    lent: Tensors, take_back: Callable[[], None], anew: Callable[[], Tensors], written: Collection[str]
) -> Tensors:
    """What was lent, for one backward(); at its end gradients that stayed here go on."""
    copied = {name: lent[name].clone() for name in written}
    ends = {name: value.detach().requires_grad_() for name, value in lent.items() if not value.is_leaf}
    torch.autograd.Variable._execution_engine.queue_callback(partial(_finish, ends, take_back, anew))
    return {**lent, **ends, **copied}


def _finish(ends: Tensors, take_back: Callable[[], None], anew: Callable[[], Tensors]) -> None:
    take_back()
    reached = {name: end.grad for name, end in ends.items() if end.grad is not None}
    if reached:
        with torch.enable_grad():
            made = anew()
            torch.autograd.backward([made[name] for name in reached], list(reached.values()))
