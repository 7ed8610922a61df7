"""PackNet (Mallya and Lazebnik, 2018): train, prune by magnitude, retrain what is left; the next task gets the rest.

A task trains all free weights of the network with those of all earlier tasks in view. Then each layer keeps the largest
fraction c of its free weights, which are retrained and belong to the task; the others are free again.
"""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from forgetfree.authoring import Capacity, Context, Phase, Recipe, Session, Task, TaskLearner, TaskModel, Whole, learner
from forgetfree.masks import select
from forgetfree.network import SharedNetwork, TrainableView
from forgetfree.rng import layer_init
from forgetfree.views import SeenThrough


@learner
class PackNet(TaskLearner):
    """Every task trains what is free, keeps the largest of it and retrains that; later tasks see all earlier ones.

    `capacity` is the fraction of each layer's still free weights that a task keeps: T tasks use 1-(1-c)^T.
    Retraining takes half as many epochs as training, unless `retrain_epochs` says otherwise; each has an optimizer
    of its own. In a loop of your own nothing is retrained: `session.keep()` prunes. Freed weights are zero until a task
    trains them, as in the released code; `refill` draws them anew.
    """

    capacity: Capacity
    retrain_epochs: Annotated[int | None, Whole("how long what is kept is retrained", 1)] = None
    refill: bool = False

    forget_free = True

    def view(self, task: Task, context: Context) -> TaskModel:
        return Packing(self.network.trainable_view(), self.network, self.capacity, self.retrain_epochs)

    def keep(self, session: Session, context: Context) -> None:
        model = session.model
        assert isinstance(model, Packing)
        if not model.chosen:
            model.prune()
        self.network.keep(session.task.name, model.network, model.chosen)
        self.network.renew(self.free)

    def free(self, name: str, *words: int | str) -> Tensor:
        """What a free weight is between tasks; where no task is left it is drawn, as zeros alone could not learn."""
        value = self.network.weights[name]
        if self.network.tickets and not self.refill:
            return torch.zeros_like(value)
        return layer_init(value.shape, self.seed, "free", name)

    def forget(self, task: str) -> None:
        """Weights that it alone used are free; those that later tasks build on stay theirs."""
        self.network.remove(task, self.free)
        self.network.renew(self.free)


class Packing(SeenThrough):
    """A task that sees all weights until it is pruned, and then those that it keeps and all earlier ones."""

    def __init__(self, view: TrainableView, network: SharedNetwork, capacity: float, retrain_epochs: int | None):
        super().__init__(view, network.everything)
        self.used, self.capacity, self.retrain_epochs = dict(network.used), capacity, retrain_epochs
        self.chosen: dict[str, Tensor] = {}

    def prune(self, _: Session | None = None) -> None:
        weights, used = self.network.weights(), self.used
        self.chosen = {name: used[name] | self._largest(value, ~used[name]) for name, value in weights.items()}
        self.masks = {name: mask.to(weights[name].dtype) for name, mask in self.chosen.items()}

    def phases(self, recipe: Recipe) -> tuple[Phase, ...]:
        retraining = replace(recipe, epochs=self.retrain_epochs or max(1, recipe.epochs // 2))
        return Phase(recipe), Phase(retraining, "retrain", self.prune)

    def _largest(self, weight: Tensor, free: Tensor) -> Tensor:
        """True at the largest fraction c of the free weights, and at one at least; ties go to the lower flat index."""
        count = int(free.sum())
        if not count:
            return free
        return select(weight.abs().where(free, -1), max(1, round(self.capacity * count)))
