"""Piggyback (Mallya et al., 2018): tasks ride on a network that never changes, each through its own binary mask.

    mask = 1[score > threshold]          backward: the gradient of the mask is the gradient of the score

Scores start above the threshold, so a task starts from the whole network and learns what to leave out.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from forgetfree.authoring import Context, Inputs, Number, Session, Task, TaskLearner, TaskModel, Was, learner
from forgetfree.errors import InputError
from forgetfree.masks import above
from forgetfree.network import TrainableView
from forgetfree.scores import Scores


@learner
class Piggyback(TaskLearner):
    """Your network, which never moves; every task starts from all of it and learns which weights to leave out.

    Made for a pretrained one, whose weights are taken as they are; on a random one it is piggyback-random. A bit
    flips once its score has fallen from `first_score` to the `threshold`: with Adam, (first_score - threshold) / lr
    steps at least. Heads, biases and norms are trained by each task; the released code leaves the norms as they are.
    """

    threshold: Annotated[float, Number("above which a score keeps its weight")] = 5e-3
    first_score: Annotated[float, Number("where scores start"), Was("start")] = 1e-2

    forget_free = True
    keeps_free_weights = True

    def check(self) -> None:
        if not self.first_score > self.threshold:
            raise InputError(
                f"scores start above the threshold {self.threshold!r}, else nothing is seen; got {self.first_score!r}."
            )

    def view(self, task: Task, context: Context) -> TaskModel:
        def alike(weight: Tensor) -> Tensor:
            # never bfloat16, in which a small step would vanish
            return torch.full_like(weight, self.first_score, dtype=torch.promote_types(weight.dtype, torch.float32))

        scores = Scores({name: alike(weight) for name, weight in self.network.weights.items()})
        return Riding(self.network.trainable_view(frozen=True), scores, self.threshold)

    def keep(self, session: Session, context: Context) -> None:
        model = session.model
        assert isinstance(model, Riding)
        self.network.keep(session.task.name, model.network, model.masks())

    def forget(self, task: str) -> None:
        """The weights were never its own."""
        self.network.remove(task, self.network.weights.__getitem__)


class Riding(TaskModel):
    """The network through the scores above a threshold."""

    def __init__(self, network: TrainableView, scores: Scores, threshold: float):
        super().__init__()
        self.network, self.scores, self.threshold = network, scores, threshold

    def masks(self) -> dict[str, Tensor]:
        return {name: above(score, self.threshold) for name, score in self.scores.items()}

    def forward(self, inputs: Inputs) -> Any:
        return self.network(inputs, self.masks())
