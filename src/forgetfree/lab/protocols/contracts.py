"""What the protocols ask of a learner beyond the Learner contract; each a Protocol that any method may have.

A learner that lacks one of them is run all the same: what would have been measured by it is left out.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from torch import Tensor, nn

from forgetfree.contracts import Inputs, Task, TaskRecord
from forgetfree.replay import ReplayStore

Modules = Callable[[str], Mapping[str, nn.Module]]
"""Name of a task → its `backbone` and its `head`."""


@runtime_checkable
class Collecting(Protocol):
    """A learner whose `learn` only collects tasks; `finish` trains on all of them, and they can be asked then."""

    def finish(self, checkpoint: Path | str | None = None, progress: Callable[[Any], None] | None = None) -> None: ...


@runtime_checkable
class ZeroShot(Protocol):
    """A learner that can be asked about a task before it learns it."""

    def zero_shot(self, inputs: Inputs, task: Task) -> Tensor: ...


@runtime_checkable
class HasTaskModules(Protocol):
    """A learner that shows what a task sees: its `backbone` and its `head`."""

    def task_modules(self, task: str) -> Mapping[str, nn.Module]: ...


@runtime_checkable
class SharesBase(Protocol):
    """A few-shot learner whose first session is learned once for all runs that name it alike and start alike."""

    @property
    def base_name(self) -> str: ...


@runtime_checkable
class KeepsExemplars(Protocol):
    """A few-shot learner that may keep images of earlier classes."""

    replay: ReplayStore


@runtime_checkable
class Noisy(Protocol):
    """A learner that can add noise behind a task's mask, which `predict` never uses."""

    background_noise: float

    def zero_shot_modules(self, task: str) -> Mapping[str, nn.Module]: ...


@runtime_checkable
class MakesHeads(Protocol):
    """A learner that makes, for any task, the head that learning would start from."""

    seed: int

    def untrained_head(self, task: Task, features: Tensor, position: int, *words: int | str) -> nn.Module: ...


class Transferable(ZeroShot, HasTaskModules, MakesHeads, Protocol):
    """A learner whose forward transfer can be measured."""

    forget_free: bool

    @property
    def tasks(self) -> Mapping[str, TaskRecord]: ...


def as_transferable(learner: Any) -> Transferable | None:
    """The learner, if its forward transfer can be measured."""
    if isinstance(learner, Collecting):  # it has learned nothing until the end
        return None
    can = isinstance(learner, ZeroShot) and isinstance(learner, HasTaskModules) and isinstance(learner, MakesHeads)
    return cast(Transferable, learner) if can else None


def task_modules_of(learner: Any) -> Modules | None:
    """What shows the modules of a task, where a learner can."""
    return learner.task_modules if isinstance(learner, HasTaskModules) else None


def base_name_of(learner: Any) -> str | None:
    """The name under which the network of the first session is shared, where it may be."""
    return learner.base_name if isinstance(learner, SharesBase) else None
