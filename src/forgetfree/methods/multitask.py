"""Multitask (MTL): all tasks at once, which continual learning may not do. `learn` collects, `finish` trains.

Every batch mixes all tasks; a sample's loss is taken on the head of its own task. The reference for a shared trunk.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from forgetfree import learners
from forgetfree.batches import check_data, signature, tensors_of
from forgetfree.certificate import ranges_of
from forgetfree.contracts import Data, Inputs, LearnerState, Memory, Task
from forgetfree.errors import InputError, TaskError
from forgetfree.heads import HeadFactory
from forgetfree.lessons import Lessons, Place, RowNames
from forgetfree.modules import clone, freeze, named_tensors, refuse, with_tensors
from forgetfree.rng import preserved_rng, seed_all
from forgetfree.tickets import Ticket
from forgetfree.training import Fitted, Progress, Recipe, Session, all_or_nothing, fit


class Multitask:
    """One network and a head per task, trained on everything together when `finish()` is called."""

    scenario: Literal["til"] = "til"
    forget_free = False

    def __init__(
        self,
        backbone: nn.Module,
        *,
        recipe: Recipe | None = None,
        heads: HeadFactory | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        refuse(backbone)
        self._wrapped = clone(backbone).to(device)
        self.backbone = self._wrapped
        self._collected: dict[str, Task] = {}
        self.lessons = Lessons(
            self._answer, self._place, recipe=recipe, heads=heads, seed=seed, cache_bytes=cache_bytes
        )

    guess, verify = learners.guess, learners.verify
    parts, tasks = learners.parts, learners.tasks

    def learn(
        self,
        task: Task,
        checkpoint: Path | str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Collect one more task; it can be asked after `finish()`, which takes the time and the checkpoint."""
        check_data(task)
        without_data = [name for name in self.tasks if name not in self._collected]
        if without_data:
            raise TaskError(
                f"this learner came from an archive, without the data of {', '.join(without_data)}, and multitask "
                "trains on all data at once: it can answer, not learn."
            )
        if task.name in self._collected:
            raise TaskError(f"task {task.name!r} is collected already; collected tasks are {list(self._collected)}.")
        if not task.classifies:
            raise InputError(f"multitask mixes classification tasks only; {task.name!r} has a loss of its own.")
        for data in (task.train, task.valid):
            if data is not None and not (isinstance(data, tuple | list) and isinstance(data[0], Tensor)):
                raise InputError(f"multitask mixes tasks given as pairs of tensors; {task.name!r} is not.")
        inputs = task.train[0]
        if not bool(torch.as_tensor(inputs).isfinite().all()):
            raise InputError(f"task {task.name!r}: some inputs are not finite numbers.")
        self._collected[task.name] = task

    def finish(
        self,
        checkpoint: Path | str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Train on all collected tasks together, from the wrapped weights, as one task with mixed batches."""
        if not self._collected:
            raise TaskError("there is nothing to finish: no task was collected. Call learn(task) first.")
        lessons, place, tasks = self.lessons, self._place(), list(self._collected.values())
        joint = _joint(tasks)
        with preserved_rng(place.device):
            trained = clone(self._wrapped)
            heads, width = self._new_heads(trained, tasks)

            def answer(inputs: Inputs) -> Tensor:
                images, owners = tensors_of(inputs)
                features: Tensor = trained(place.admit(images))
                answers = features.new_full((len(features), joint.width), -torch.inf)
                for t, head in enumerate(heads):
                    of_task = (owners == t).nonzero().squeeze(1).to(features.device)
                    if len(of_task):
                        own = head(features[of_task])
                        answers = answers.index_put(
                            (of_task[:, None], torch.arange(own.shape[1])), own.to(answers.dtype)
                        )
                return answers

            def keep(selection: str, fitted: Fitted | None) -> None:
                with lessons.still(), all_or_nothing(self, lessons, lessons.heads):
                    keep_all(selection, fitted)

            def keep_all(selection: str, fitted: Fitted | None) -> None:
                self.backbone = clone(trained)
                lessons.learned = {}  # all of them anew: finish() may be called again
                for task, head in zip(tasks, heads, strict=True):
                    lessons.heads.keep(task.name, head, width)
                    lessons.note(task, signature(place.admit(task.train[0])), selection, fitted)
                lessons.forget_answers()
                for task in tasks:
                    lessons.certify(task.name, ranges_of(task.train[0]))

            session = Session(joint, {"network": trained, "heads": heads}, answer, keep)
            fitted = fit(
                session, lessons.recipe, seed=lessons.seed, position=0, device=place.device,
                checkpoint=checkpoint, progress=progress,
            )  # fmt: skip
            session.keep(fitted.selection, fitted)

    @overload
    def predict(self, inputs: Inputs, task: str) -> Tensor: ...
    @overload
    def predict(self, inputs: Inputs, task: RowNames) -> Tensor | list[Tensor]: ...
    def predict(self, inputs: Inputs, task: str | RowNames) -> Tensor | list[Tensor]:
        """Scores per class of `task`, or of the task named for each row."""
        asked = task if isinstance(task, list | tuple) else (task,)
        for name in self._collected:
            if name in asked and name not in self.lessons.learned:
                raise TaskError(f"task {name!r} is collected but not trained: call finish() once, after the last task.")
        return self.lessons.predict(inputs, task)

    def memory(self) -> Memory:
        shared = {name: tensor.detach() for name, tensor in named_tensors(self.backbone)}
        return Memory(shared, {}, {}, {name: Ticket({}) for name in self.tasks}, self.lessons.heads.tensors())

    def remove(self, task: str) -> None:
        """Forget a task: its head goes. What it did to the shared weights stays in them."""
        with self.lessons.removing(task, self):
            self._collected = {name: other for name, other in self._collected.items() if name != task}

    def stored(self, *, resumable: bool = False) -> LearnerState:
        with self.lessons.still():
            return self.lessons.stored(self.backbone, self.memory(), resumable=resumable)

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "Multitask":
        """A learner made again from what was stored."""
        learner = cls(backbone, **{**stored.arguments, **others})
        learner.backbone = with_tensors(learner.backbone, stored.memory.shared)
        learner.lessons.restore(stored)
        return learner

    def to(self, device: torch.device | str) -> "Multitask":
        with self.lessons.moved(device):
            self._wrapped, self.backbone = clone(self._wrapped).to(device), clone(self.backbone).to(device)
        return self

    def _new_heads(self, trained: nn.Module, tasks: list[Task]) -> tuple[nn.ModuleList, int]:
        place = self._place()
        sample = place.admit(tasks[0].train[0][:2])  # type: ignore[index]
        with torch.no_grad():
            features = freeze(clone(trained))(sample)
        heads = []
        for position, task in enumerate(tasks):
            seed_all(place.device, self.lessons.seed, position, "head")
            heads.append(self.lessons.heads.new(task, features))
        return nn.ModuleList(heads), int(features.shape[-1])

    def _answer(self, _: str) -> nn.Module:
        return freeze(clone(self.backbone))

    def _place(self) -> Place:
        return Place.of(self._wrapped.parameters())


def _joint(tasks: list[Task]) -> Task:
    """One task whose inputs are (images, number of the task); labels stay local, the head is as wide as the widest."""

    def mixed(parts: list[Data | None]) -> Data | None:
        pairs = [part for part in parts if part is not None]
        if len(pairs) < len(tasks):
            return None  # without validation data of every task the choice of an epoch would be one-sided
        images = torch.cat([inputs for inputs, _ in pairs])  # type: ignore[misc]
        labels = torch.cat([labels for _, labels in pairs])  # type: ignore[misc]
        owners = torch.cat([torch.full((len(own),), t) for t, (_, own) in enumerate(pairs)])  # type: ignore[misc]
        return (images, owners), labels

    train = mixed([task.train for task in tasks])
    assert train is not None
    widest = max(task.width for task in tasks)
    return Task("all tasks", tuple(range(widest)), train, mixed([task.valid for task in tasks]))
