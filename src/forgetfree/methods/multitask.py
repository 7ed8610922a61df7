"""Multitask (MTL): all tasks at once, which continual learning may not do. `learn` collects, `finish` trains.

Every batch mixes all tasks; a sample's loss is taken on the head of its own task. The reference for a shared trunk.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forgetfree.authoring import Context, Inputs, Recipe, Session, Task, TaskLearner, TaskModel, learner
from forgetfree.batches import check_data
from forgetfree.contracts import Augment, Data
from forgetfree.dense import MovingNetwork
from forgetfree.engine import ProgressCallback, RowNames
from forgetfree.errors import InputError, TaskError
from forgetfree.modules import clone, freeze
from forgetfree.rng import preserved_rng, seed_all


@learner
class Multitask(TaskLearner):
    """One network and a head per task, trained on everything together when `finish()` is called."""

    network_kind = MovingNetwork

    def start(self) -> None:
        self.initial = self.network.module
        self.collected: Mapping[str, Task] = {}

    def learn(
        self, task: Task, checkpoint: Path | str | None = None, progress: ProgressCallback | None = None, *,
        recipe: Recipe | None = None, capacity: float | None = None,
    ) -> None:  # fmt: skip
        """Collect one more task; it can be asked after `finish()`, which takes the time, the checkpoint, the recipe."""
        check_data(task)
        if recipe is not None or capacity is not None:
            raise InputError("multitask trains all tasks by one recipe: set learner.recipe before finish().")
        without_data = [name for name in self.tasks if name not in self.collected]
        if without_data:
            raise TaskError(
                f"this learner came from an archive, without the data of {', '.join(without_data)}, and multitask "
                "trains on all data at once: it can answer, not learn."
            )
        check_mixable(task, self.collected)
        self.collected = {**self.collected, task.name: task}

    def finish(self, checkpoint: Path | str | None = None, progress: ProgressCallback | None = None) -> None:
        """Train on all collected tasks together, from the wrapped weights, as one task with mixed batches."""
        if not self.collected:
            raise TaskError("there is nothing to finish: no task was collected. Call learn(task) first.")
        tasks, recipe = list(self.collected.values()), self.recipe or Recipe()
        with preserved_rng(self.network.placement.device):
            mixed = mixed_task(tasks)
            model = self._with_heads(mixed)
            self.engine.fit_together(
                tasks, mixed, model, self._take, model.features, recipe, checkpoint, progress,
                rollback=(self, self.network),
            )  # fmt: skip

    def view(self, task: Task, context: Context) -> TaskModel:
        raise TaskError("multitask trains all tasks at once: learn(task) collects each of them, finish() trains.")

    def _with_heads(self, task: Task) -> "ManyHeads":
        """The wrapped network and an untrained head for each collected task."""
        placement, tasks = self.network.placement, list(self.collected.values())
        network = clone(self.initial).to(placement.device)
        images: Any = tasks[0].train[0]
        sample = placement.cast(images[:2])
        with torch.no_grad():
            features = freeze(clone(network))(sample)
        heads = []
        for position, each in enumerate(tasks):
            seed_all(placement.device, self.seed, position, "head")
            heads.append(self.engine.heads.new(each, features))
        return ManyHeads(network, nn.ModuleList(heads), task.width, int(features.shape[-1]))

    def predict(self, inputs: Inputs, task: str | RowNames | None = None) -> Any:
        """Scores per class of `task`, or of the task named for each row."""
        asked = task if isinstance(task, list | tuple) else (task,)
        for name in self.collected:
            if name in asked and name not in self.tasks:
                raise TaskError(f"task {name!r} is collected but not trained: call finish() once, after the last task.")
        return self.engine.predict(inputs, self.engine.said(task))

    def forget(self, task: str) -> None:
        """Its head goes. What it did to the shared weights stays in them."""
        self.network.remove(task)
        self.collected = {name: other for name, other in self.collected.items() if name != task}

    def _take(self, session: Session) -> dict[str, nn.Module]:
        model = session.model
        assert isinstance(model, ManyHeads)
        for name in self.collected:
            self.network.keep(name, model.network)
        return dict(zip(self.collected, model.heads, strict=True))


class ManyHeads(TaskModel):
    """One network with the heads of all tasks: inputs are (images, number of the task), scores those of its head."""

    def __init__(self, network: nn.Module, heads: nn.ModuleList, width: int, features: int):
        super().__init__()
        self.network, self.heads, self.width, self.features = network, heads, width, features

    def forward(self, inputs: Inputs) -> Tensor:
        assert isinstance(inputs, tuple)
        images, owners = inputs
        features: Tensor = self.network(images)
        scores = features.new_full((len(features), self.width), -torch.inf)
        for t, head in enumerate(self.heads):
            of_task = (owners == t).nonzero().squeeze(1).to(features.device)
            if len(of_task):
                own = head(features[of_task])
                scores = scores.index_put((of_task[:, None], torch.arange(own.shape[1])), own.to(scores.dtype))
        return scores


def check_mixable(task: Task, collected: Mapping[str, Task]) -> None:
    """Refuse a task that cannot be mixed with others."""
    if task.name in collected:
        raise TaskError(f"task {task.name!r} is collected already; collected tasks are {list(collected)}.")
    if not task.classifies or callable(task.loss):
        raise InputError(f"multitask mixes classification tasks only; {task.name!r} has a loss of its own.")
    for data in (task.train, task.valid):
        if data is not None and not (isinstance(data, tuple | list) and isinstance(data[0], Tensor)):
            raise InputError(f"multitask mixes tasks given as pairs of tensors; {task.name!r} is not.")
    if not bool(torch.as_tensor(task.train[0]).isfinite().all()):
        raise InputError(f"task {task.name!r}: some inputs are not finite numbers.")


def mixed_task(tasks: list[Task]) -> Task:
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
    valid = mixed([task.valid for task in tasks])
    return Task("all tasks", tuple(range(widest)), train, valid, augment=each_by_its_own(tasks))


def each_by_its_own(tasks: list[Task]) -> Augment | None:
    """Images of a mixed batch, each augmented as its own task asks for; None where no task does."""
    if not any(task.augment for task in tasks):
        return None

    def augment(inputs: Inputs, chance: torch.Generator) -> Inputs:
        assert isinstance(inputs, tuple)
        images, owners = inputs
        changed = images.clone()
        for t, task in enumerate(tasks):
            own = owners == t
            if task.augment is not None and bool(own.any()):
                augmented = task.augment(images[own], chance)
                assert isinstance(augmented, Tensor)
                changed[own] = augmented
        return changed, owners

    return augment
