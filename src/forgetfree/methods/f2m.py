"""F2M, finding flat minima: the first session looks for weights that may be shaken, later ones move no farther.

    base        the last `layers` convolutions are shaken within ±bound/2, in every step several times:
                mean of the losses + std_weight · their deviation; a loss is cross-entropy + moves of class means
    sessions    only these tensors move, in steps of bound/4, and never out of the box centre ± bound/2, by a
                cross-entropy over the Euclidean distances to all class means
    answers     the nearest class mean

In the paper class means that move have a gradient, in the released variant they are a mere number. Both draw batches
of the first session with as many images of each class; here batches are plain, as in all methods.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from forgetfree.authoring import Batch, Context, FewShotLearner, Inputs, Recipe, Session, Task, TaskModel, task_loss
from forgetfree.few_shot import prototypes
from forgetfree.masks import Masks
from forgetfree.network import TrainableView
from forgetfree.settings import FIRST, Exemplars, Number, Was, Whole, learner
from forgetfree.views import SeenThrough

SHAPES = (0.3, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
"""Both numbers of the Beta distribution that noise is drawn from are among these."""
STEPS = 4
"""The box is so many steps wide: noise and weights are on one of five levels."""
LEAST_VARIANCE = 1e-12
"""The standard deviation of equal losses would have an infinite slope."""


@learner
class F2M(FewShotLearner):
    """A flat place for the last layers, found in the first session; later sessions stay within it.

    `bound` is the width of the box around a weight: 0 is plain training, and sessions that only add class means.
    `prototype_fixing` is the weight of the distance that class means move when shaken. With `exemplars`, so many images
    of every class of the later sessions are kept, learned again, and their means renewed.
    """

    variant: Literal["paper", "released"] = "paper"
    layers: Annotated[int, Whole("how many convolutions are shaken", 1)] = 4
    bound: Annotated[float, Number("the width of the box around a weight", 0)] = 0.01
    draws: Annotated[int, Whole("how often a batch is shaken", 1), FIRST] = 2
    std_weight: Annotated[float, Number("the weight of the losses' standard deviation", 0), FIRST, Was("spread")] = 2.0
    prototype_fixing: Annotated[float, Number("the weight of class means that move", 0), FIRST, Was("fix")] = 1.0
    exemplars: Exemplars = 0

    # how the released code trains a session on CIFAR-100: six steps over all its images
    default_session = Recipe(epochs=6, batch_size=512, optimizer="sgd", lr=0.01, momentum=0.9, weight_decay=5e-4)
    base = "f2m"
    state = ("centre",)

    def start(self) -> None:
        self.centre: Mapping[str, Tensor] = {}
        """Of the box: the shaken tensors as the first session left them."""

    def check(self) -> None:
        self.network.check_like("centres of boxes", self.centre)

    @property
    def shaken(self) -> list[str]:
        """The tensors that are shaken in the first session and move in later ones."""
        return last_layers(self.network.weights, self.layers) if self.bound else []

    def first(self, task: Task, context: Context) -> TaskModel:
        return Shaken(self, task)

    def later(self, task: Task, context: Context) -> TaskModel:
        start = prototypes.extend_prototypes(self.network.answer(context.first), task, context)
        every = {name: torch.ones_like(centre, dtype=torch.bool) for name, centre in self.centre.items()}
        model = Boxed(self.network.view_of(context.first, every), self.network.everything, self.centre, self.bound)
        model.start, model.base = start, context.base
        model.head = prototypes.learning_head(self.heads, start)
        return model

    def answers(self, session: Session, context: Context) -> nn.Module:
        network, task = self.network.answer(context.first), session.task
        if not context.known:
            self.centre = {name: self.network.weights[name] for name in self.shaken}
            return prototypes.first_head(self.heads, network, task, context)
        assert isinstance(session.model, Boxed)
        again = list(self.replay.kept)
        means, self.replay = prototypes.rehearsed(session.model.start, network, task, self.replay, context)
        return prototypes.moved_head(self.heads, network, task, means, context, again)


class Shaken(SeenThrough):
    """A first session whose last layers are shaken in every step, several times."""

    def __init__(self, method: F2M, task: Task):
        super().__init__(method.network.trainable_view(), method.network.everything)
        self.task, self.weights, self.shaken = task, dict(method.network.weights), method.shaken
        self.bound, self.draws, self.variant = method.bound, method.draws, method.variant
        self.std_weight, self.prototype_fixing = method.std_weight, method.prototype_fixing

    def loss(self, batch: Batch, head: nn.Module) -> Tensor:
        calm = self(batch.inputs) if self.shaken and self.prototype_fixing else None
        losses = []
        for _ in range(self.draws):
            seen = self.network(batch.inputs, self.masks, self._noise())
            value = task_loss(self.task, head(seen), batch.labels)
            if calm is not None:
                moved = self.prototype_fixing * means_moved(calm, seen, batch.labels)
                value = value + (moved if self.variant == "paper" else moved.detach())
            losses.append(value)
        return flat_loss(torch.stack(losses), self.std_weight)

    def _noise(self) -> dict[str, Tensor]:
        """One shake: for every tensor another Beta distribution on the five levels of the box."""
        return {name: noise_like(self.weights[name], self.bound) for name in self.shaken}


class Boxed(SeenThrough):
    """A later session, held in the box: whoever looks at it finds its last step rounded and within bounds.

    An optimizer moves the parameters as it likes. Before they are used, stored or kept, the move is rounded to steps of
    bound/4 and cut off at centre ± bound/2; so a weight is always on one of five levels.
    """

    start: Tensor
    base: int

    def __init__(self, network: TrainableView, masks: Masks, centre: Mapping[str, Tensor], bound: float):
        super().__init__(network, masks)
        self._centre, self._bound = centre, bound
        self._note()

    def forward(self, inputs: Inputs) -> Any:
        return self.settled()(inputs, self.masks)

    def loss(self, batch: Batch, head: nn.Module) -> Tensor:
        return prototypes.metric_loss(self(batch.inputs), batch.labels, self.start, self.base, metric="euclidean")

    def settled(self) -> TrainableView:
        """The network with the moves since the last look rounded and cut off."""
        step = self._bound / STEPS
        with torch.no_grad():
            for name, weight in self.network.shared_weights.items():
                centre, before = self._centre[name], self._before[name]
                level = ((before - centre) / step).round() + ((weight - before) / step).round()
                weight.copy_(at_level(level.clamp(-STEPS / 2, STEPS / 2), centre, self._bound))
        self._note()
        network: TrainableView = self.network
        return network

    def _note(self) -> None:
        self._before = {name: weight.detach().clone() for name, weight in self.network.shared_weights.items()}


def at_level(level: Tensor, centre: Tensor, bound: float) -> Tensor:
    """centre + level · bound/4, and where its rounding would lie outside of centre ± bound/2, the number before it."""
    moved = (centre.double() + level.double() * (bound / STEPS)).to(centre.dtype)
    outside = (moved.double() - centre.double()).abs() > bound / 2
    return torch.where(outside, torch.nextafter(moved, centre), moved)


def noise_like(weight: Tensor, bound: float) -> Tensor:
    """Noise on the five levels -bound/2 … bound/2, from a Beta distribution that is itself drawn."""
    one, other = torch.randint(len(SHAPES), (2,)).tolist()
    drawn = torch.distributions.Beta(SHAPES[one], SHAPES[other]).sample(weight.shape)
    return ((drawn * STEPS).round() - STEPS / 2).to(weight) * (bound / STEPS)


def means_moved(calm: Tensor, shaken: Tensor, labels: Tensor) -> Tensor:
    """The squared distance by which a class mean of the batch moves, its mean over the classes."""
    apart = [(calm[labels == label] - shaken[labels == label]).mean(0) for label in torch.unique(labels)]
    return torch.stack(apart).square().sum(1).mean()


def flat_loss(losses: Tensor, std_weight: float) -> Tensor:
    """The mean of the losses, and `std_weight` times their standard deviation where there are several."""
    if len(losses) == 1:
        return losses[0]
    return losses.mean() + std_weight * (losses.var() + LEAST_VARIANCE).sqrt()


def last_layers(weights: Mapping[str, Tensor], count: int) -> list[str]:
    """The last `count` convolutions, without those of shortcuts (1×1); where there are none, any last tensors."""
    wide = [name for name, weight in weights.items() if weight.dim() > 2 and weight[0, 0].numel() > 1]
    return (wide or list(weights))[-count:]
