"""SupSup, supermasks in superposition (Wortsman et al., 2020), with the task given: masks over a random network.

Weights are never trained: each is +√(2/fan_in) or -√(2/fan_in), its sign drawn from the seed. A task learns scores,
and its mask is the top c of them in every layer, by the same rule and the same straight-through gradient as WSN.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from forgetfree.authoring import Capacity, Context, Selected, Session, Task, TaskLearner, TaskModel, learner
from forgetfree.rng import derive, philox_uniform
from forgetfree.scores import Scores


@learner
class SupSup(TaskLearner):
    """One random network that never moves; every task learns which of its weights to see.

    Scores are drawn anew for each task; with `transfer` they start at the mean of those of earlier tasks. As in
    all our methods heads, biases and norms are trained by each task; the released code has one random head for all,
    masked like any layer. A mask has n - round((1-c)(n-1)) ones of n, there n - int((1-c)n). Of the wrapped weights
    only the shapes matter.
    """

    capacity: Capacity
    transfer: bool = False

    forget_free = True
    resumable_state = ("mean_scores", "averaged")

    def start(self) -> None:
        self.mean_scores: Mapping[str, Tensor] = {}
        self.averaged = 0
        self.network.renew(self.free)

    def check(self) -> None:
        self.network.check_like("mean scores", self.mean_scores)

    def view(self, task: Task, context: Context) -> TaskModel:
        weights = self.network.weights
        random = Scores.random(weights, derive(context.seed, context.position, "scores"))
        scores = Scores(self.mean_scores) if self.mean_scores else random
        return Selected(self.network.trainable_view(frozen=True), scores, self.capacity)

    def keep(self, session: Session, context: Context) -> None:
        model = session.model
        assert isinstance(model, Selected)
        self.network.keep(session.task.name, model.network, model.masks())
        if self.transfer:
            before, count, learned = self.mean_scores, self.averaged, model.scores.plain()
            self.mean_scores = {name: (count * before.get(name, 0) + s) / (count + 1) for name, s in learned.items()}
            self.averaged = count + 1

    def free(self, name: str, *words: int | str) -> Tensor:
        """Every weight, used or not: a constant with the sign that the seed gives it."""
        weight = self.network.weights[name]
        fan_in = weight[0].numel() if weight.dim() > 1 else weight.numel()
        positive = torch.from_numpy(philox_uniform(weight.numel(), self.seed, "signs", name) < 0.5)
        constant = torch.full(weight.shape, (2 / max(1, fan_in)) ** 0.5, dtype=weight.dtype)
        return constant.where(positive.view(weight.shape), -constant)

    def forget(self, task: str) -> None:
        """Its scores are a part of their mean, so that begins anew; the weights were never its own."""
        self.network.remove(task, self.free)
        self.mean_scores, self.averaged = {}, 0
