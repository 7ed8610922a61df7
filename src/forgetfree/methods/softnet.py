"""SoftNet and HardNet (Algorithm 2): one subnetwork for few-shot class-incremental learning.

    base        effective weight θ·m_soft:   m_soft = 1 on the top c of the scores (major), U(0,1) elsewhere (minor)
    sessions    m_soft stays; of the weights only minor ones of one block move, by a metric loss over all class means
    answers     the nearest class mean

HardNet has no minor weights: its mask is zero there, and its sessions only add class means.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from forgetfree.authoring import BaseClassifier, Batch, Context, FewShotLearner, Recipe, Session, Task, TaskModel
from forgetfree.errors import InputError
from forgetfree.few_shot import prototypes
from forgetfree.few_shot.subnetwork import Resample, Soft, answering_network, minor_weights
from forgetfree.masks import Masks, Rank, soft_mask
from forgetfree.scores import Minor, Scores
from forgetfree.settings import FIRST, FIXED, LATER, Capacity, Exemplars, Number, Was, Whole, learner
from forgetfree.views import SeenThrough

SMALLEST = 1e-12


@learner
class SoftNet(FewShotLearner):
    """Learn a large first session, then classes from a few images each; one answer for all classes met.

    learner = SoftNet(backbone, capacity=0.8)
    learner.learn(Task("animals", names, (images, labels), valid))
    learner.learn(Task("birds", more, (few_images, few_labels)))
    learner.classes[learner.predict(images).argmax(1)[0]]
    """

    capacity: Annotated[Capacity, FIRST]
    by: Annotated[Rank, FIRST, FIXED] = "magnitude"
    resample: Annotated[Resample, FIRST, Was("draw")] = "epoch"
    """For how long minor weights stay as they are."""
    soft_from_epoch: Annotated[int, Whole("the first soft epoch"), FIRST] = 0
    trainable_block: Annotated[str | None, LATER, Was("block")] = None
    """The tensors that sessions move in, as a name pattern; the last block if not said."""
    temperature: Annotated[float, Number("by which distances are divided", SMALLEST), LATER] = 1.0
    feature_distillation: Annotated[float, Number("the weight of what holds features", 0), LATER, Was("pull")] = 0.0
    drift_compensation: Annotated[bool, LATER, Was("follow")] = False
    """Whether class means that are not seen again follow the features near them."""
    exemplars: Exemplars = 0
    base_classifier: BaseClassifier = "linear"

    soft: ClassVar[bool] = True
    base = "soft"
    default_session = Recipe(epochs=6, batch_size=512, optimizer="sgd", lr=0.02)  # as the paper: six steps
    state = ("drawn",)

    def start(self) -> None:
        self.scores = Scores.random(self.network.weights, self.seed, by=self.by)  # Algorithm 2, line 2
        self.drawn = Minor.NONE
        """The number of the draw of minor weights that was kept."""

    def check(self) -> None:
        moving_in(self.trainable_block, self.network.weights)  # a block that is not there is refused now

    def first(self, task: Task, context: Context) -> TaskModel:
        start = self.soft_from_epoch if self.soft else None
        minor = self.minor(Minor.NONE)
        return Soft(self.network, self.scores, self.capacity, minor, resample=self.resample, soft_from_epoch=start)

    def later(self, task: Task, context: Context) -> TaskModel:
        before = self.answer(context.first)
        start = prototypes.extend_prototypes(before, task, context)
        masks = {name: self.soft_mask(name) for name in self.network.weights}
        # without exemplars no class but the new ones has images here
        model = MinorMoving(self, before, masks, start, context.base if self.replay else context.known, context)
        model.head = prototypes.learning_head(self.heads, start)
        return model

    def answers(self, session: Session, context: Context) -> nn.Module:
        model, task = session.model, session.task
        if isinstance(model, Soft):
            self.drawn = model.minor.draw
            return prototypes.first_head(self.heads, self.answer(task.name), task, context)
        assert isinstance(model, MinorMoving)
        network, again = self.answer(context.first), list(self.replay.kept)
        means, self.replay = prototypes.rehearsed(model.start, network, task, self.replay, context)
        if self.drift_compensation:
            old, _ = prototypes.features_of(model.before, task, task.train, context)
            new, _ = prototypes.features_of(network, task, task.train, context)
            means[: model.fixed] = followed(model.start[: model.fixed], old, new - old)
        return prototypes.moved_head(self.heads, network, task, means, context, again)

    def answer(self, task: str) -> nn.Module:
        return answering_network(self.network, self.seed, self.drawn)

    def uses_all_weights(self) -> bool:
        return self.drawn != Minor.NONE

    def movable(self) -> dict[str, Tensor]:
        """The weights that sessions may move: minor ones of the chosen block. HardNet has none."""
        names = moving_in(self.trainable_block, self.network.weights) if self.soft else []
        return {name: ~self.network.used[name] for name in names}

    def minor(self, number: int) -> Minor:
        """Minor weights of the draw with this number."""
        return minor_weights(self.network, self.seed, number)

    def soft_mask(self, name: str) -> Tensor:
        """m_soft of one tensor: one on major weights, in [0, 1) elsewhere."""
        if name not in self.network.weights:
            raise InputError(f"there is no shared tensor {name!r}; there are {list(self.network.weights)}.")
        major = self.network.used[name].float()
        return soft_mask(major, self.minor(self.drawn).value(name).to(major.device))


@learner
class HardNet(SoftNet):
    """SoftNet without minor weights: a binary mask; later sessions add class means, and nothing moves."""

    soft: ClassVar[bool] = False
    base = "hard"


class MinorMoving(SeenThrough):
    """A later session: minor weights of one block move, by a metric loss over all class means."""

    def __init__(self, method: SoftNet, before: nn.Module, masks: Masks, start: Tensor, fixed: int, context: Context):
        super().__init__(method.network.view_of(context.first, method.movable()), masks)
        self._before, self.start, self.fixed = (before,), start, fixed
        self.temperature, self.feature_distillation = method.temperature, method.feature_distillation

    @property
    def before(self) -> nn.Module:
        """The network before the session; no child of the model: it does not learn."""
        return self._before[0]

    def loss(self, batch: Batch, head: nn.Module) -> Tensor:
        seen = self(batch.inputs)
        # line 16
        value = prototypes.metric_loss(seen, batch.labels, self.start, self.fixed, temperature=self.temperature)
        if self.feature_distillation:
            was = prototypes.without_gradient(self.before, batch.inputs)
            value = value + self.feature_distillation * (seen - was).square().sum(1).mean()
        return value


def moving_in(block: str | None, weights: Mapping[str, Any]) -> list[str]:
    """The tensors of the block that sessions move in: by a pattern, or the last block of the last stage."""
    if block is not None:
        names = [name for name in weights if fnmatchcase(name, str(block))]
        if not names:
            raise InputError(f"no shared tensor matches trainable_block={block!r}; there are {list(weights)}.")
        return names
    last = list(weights)[-1]
    within = ".".join(last.split(".")[:-2])  # the module that holds the last layer
    return [name for name in weights if name.startswith(f"{within}.")] if within else [last]


def followed(means: Tensor, features: Tensor, drift: Tensor) -> Tensor:
    """Class means moved as features near them moved: a mean of drifts, weighted by similarity to each class mean."""
    distance = torch.cdist(prototypes.wide(means), prototypes.wide(features)).square()
    width = distance.mean().clamp_min(SMALLEST)
    weights = torch.softmax(-distance / width, dim=1)
    return means + weights.to(drift) @ drift
