"""WSN, winning subnetworks (Algorithm 1): weights and scores are learned together, each task keeps its top c.

A task sees the shared weights through the mask of the c highest scores in every layer. Weights that learned tasks use
enter as constants, so only the rest can move; scores of all weights move, so a used weight can be reused.
"""

from typing import Annotated

import torch
from torch import Tensor, nn

from forgetfree.authoring import Context, Selected, Session, Task, TaskLearner, TaskModel
from forgetfree.masks import Rank
from forgetfree.rng import layer_init, philox_uniform
from forgetfree.scores import Scores
from forgetfree.settings import FIXED, NEITHER, Capacity, Number, learner


@learner
class WSN(TaskLearner):
    """Learn tasks one after another in one network; a learned task's answers stay bit-identical on the same batch.

    learner = WSN(backbone, capacity=0.05)
    learner.learn(Task("digits", classes, (images, labels)))
    logits = learner.predict(images, task="digits")
    """

    capacity: Capacity
    by: Annotated[Rank, FIXED] = "magnitude"
    background_noise: Annotated[float, Number("a fraction of a weight", 0, below=1), NEITHER] = 0.0

    forget_free = True
    state = ("scores", "removals")

    def start(self) -> None:
        self.scores = Scores.random(self.network.weights, self.seed, by=self.by)  # line 1
        self.removals = 0

    def view(self, task: Task, context: Context) -> TaskModel:
        return Selected(self.network.trainable_view(), self.scores.fork(), self.capacity)  # lines 4-7

    def keep(self, session: Session, context: Context) -> None:
        model = session.model
        assert isinstance(model, Selected)
        self.network.keep(session.task.name, model.network, model.masks())  # line 9
        self.scores = model.scores.fork()

    def forget(self, task: str) -> None:
        self.removals += 1
        alone = self.network.remove(
            task, lambda name: layer_init(self.network.shapes[name], self.seed, "removal", self.removals, name)
        )
        self.scores = self.scores.redrawn(alone, self.seed, "scores of removal", self.removals)

    def zero_shot_backbone(self, task: str, position: int) -> nn.Module:
        """The ticket of the last task with noise U(0, background_noise) where its mask has zeros: SoftNet.

        The noise multiplies weights that later tasks move, so these answers change: `predict` never uses it.
        """

        def noise(tensor: str) -> Tensor:
            weight = self.network.weights[tensor]
            drawn = philox_uniform(weight.numel(), self.seed, "background", position, tensor)
            return torch.from_numpy(self.background_noise * drawn).view(weight.shape)

        module: nn.Module = self.network.answer(task, background=noise)
        return module
