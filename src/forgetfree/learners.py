"""What all task-incremental learners say in the same words. The class of a method takes these functions as its own:

class Finetune:
    learn, predict, guess = learners.learn, learners.predict, learners.guess
    verify, parts, tasks = learners.verify, learners.parts, learners.tasks
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar, overload

import torch
from torch import Tensor, nn

from forgetfree.certificate import Verified
from forgetfree.contracts import Inputs, Memory, Task, TaskRecord
from forgetfree.lessons import Lessons, Place, RowNames
from forgetfree.modules import clone, freeze, named_tensors
from forgetfree.network import Layout, SharedNetwork
from forgetfree.tickets import CapacityReport, Ticket
from forgetfree.training import Progress, Session


class Taught(Protocol):
    """A learner that keeps lessons."""

    lessons: Lessons


class Learning(Taught, Protocol):
    """One that learns a task as soon as it comes."""

    def learning(self, task: Task) -> AbstractContextManager[Session]: ...


class Sharing(Taught, Protocol):
    """One whose tasks share a network, each with a ticket of its own."""

    network: SharedNetwork


class Moving(Taught, Protocol):
    """One whose tasks all move one network."""

    backbone: nn.Module


Shares = TypeVar("Shares", bound=Sharing)


def learn(
    self: Learning,
    task: Task,
    checkpoint: Path | str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> None:
    """Learn one more task. `checkpoint` is a file that lets a killed `learn` go on, to the same bits."""
    with self.learning(task) as session:
        self.lessons.fit(session, checkpoint=checkpoint, progress=progress)


@overload
def predict(self: Taught, inputs: Inputs, task: str) -> Tensor: ...
@overload
def predict(self: Taught, inputs: Inputs, task: RowNames) -> Tensor | list[Tensor]: ...
def predict(self: Taught, inputs: Inputs, task: str | RowNames) -> Tensor | list[Tensor]:
    """Scores per class of `task`, in eval mode, without gradient; of a forget-free learner always the same bits.

    A list names the task of every row: one tensor if all answers have one shape, else a list with one per row.
    """
    return self.lessons.predict(inputs, task)


def guess(self: Taught, inputs: Inputs, task: Task) -> Tensor:
    """Scores per class of a task that is not learned: what the last task sees, through an untrained head."""
    return self.lessons.guess(inputs, task)


def verify(self: Taught) -> list[Verified]:
    """Every task beside the certificate it got when it was learned; a task that was forgotten since fails."""
    return self.lessons.verify()


def parts(self: Taught, task: str) -> dict[str, nn.Module]:
    """Backbone and head of a task as plain modules; they are the caller's."""
    return self.lessons.parts(task)


@property  # type: ignore[misc]
def tasks(self: Taught) -> Mapping[str, TaskRecord]:
    """What is learned, by name, in order."""
    return self.lessons.tasks


def layout(self: Sharing) -> Layout:
    """Every tensor of the backbone: shape, kind (masked, owned, fixed) and why. Print it."""
    return self.network.layout()


def room(self: Sharing) -> CapacityReport:
    """How much of each layer is used, and how many more tasks fit if they reuse as much as the last ones did."""
    return self.network.room()


def place(self: Sharing) -> Place:
    """Where the shared weights live."""
    return Place.of([*self.network.weights.values(), *self.network.fixed.values()])


def to(self: Shares, device: torch.device | str) -> Shares:
    """Move all that is kept between tasks."""
    with self.lessons.moved(device):
        self.network.to(device)
    return self


def moving_answer(self: Moving, _: str) -> nn.Module:
    """What any task sees of a network that all move: all of it, as it is now."""
    return freeze(clone(self.backbone))


def moving_place(self: Moving) -> Place:
    """Where that network lives."""
    return Place.of(self.backbone.parameters())


def moving_memory(self: Moving, training: Mapping[str, Tensor]) -> Memory:
    """That network, the heads, and what is kept for `training` only."""
    shared = {name: tensor.detach() for name, tensor in named_tensors(self.backbone)}
    tickets = {name: Ticket({}) for name in self.lessons.tasks}
    return Memory(shared, {}, {}, tickets, self.lessons.heads.tensors(), training=training)


def remove_head(self: Moving, task: str) -> None:
    """Forget a task: its head goes. What it did to the shared weights, and to what protects them, stays."""
    with self.lessons.removing(task, self):
        pass
