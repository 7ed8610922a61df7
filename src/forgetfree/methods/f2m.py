"""F2M, finding flat minima: the first session looks for weights that may be shaken, later ones move no farther.

    base        the last `layers` convolutions are shaken within ±bound/2, in every step several times:
                mean of the losses + spread · their standard deviation; a loss is cross-entropy + moves of class means
    sessions    only these tensors move, in steps of bound/4, and never out of the box centre ± bound/2, by a
                cross-entropy over the Euclidean distances to all class means
    answers     the nearest class mean

In the paper class means that move have a gradient, in the released variant they are a mere number. Both draw batches
of the first session with as many images of each class; here batches are plain, as in all methods.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree import incremental, learners
from forgetfree.batches import Batch
from forgetfree.checks import check_number, check_one_of, check_whole
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.heads import HeadFactory, linear_head, nearest_mean
from forgetfree.incremental import Exemplars
from forgetfree.masks import Masks
from forgetfree.network import LentNetwork, Masked, SharedNetwork
from forgetfree.training import Recipe, Session, task_loss

SESSION = Recipe(epochs=6, batch_size=512, optimizer="sgd", lr=0.01, momentum=0.9, weight_decay=5e-4)
"""How the released code trains a session on CIFAR-100: six steps over all its images."""
SHAPES = (0.3, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
"""Both numbers of the Beta distribution that noise is drawn from are among these."""
STEPS = 4
"""The box is so many steps wide: noise and weights are on one of five levels."""
LEAST_VARIANCE = 1e-12
"""The standard deviation of equal losses would have an infinite slope."""


class F2M:
    """A flat place for the last layers, found in the first session; later sessions stay within it.

    `bound` is the width of the box around a weight: 0 is plain training, and sessions that only add class means. `fix`
    is the weight of the distance that class means move when shaken. With `exemplars`, so many images of every class of
    the later sessions are kept, learned again, and their means renewed.
    """

    scenario: Literal["fscil"] = "fscil"
    forget_free = False

    def __init__(
        self,
        backbone: nn.Module,
        *,
        variant: Literal["paper", "released"] = "paper",
        layers: int = 4,
        bound: float = 0.01,
        draws: int = 2,
        spread: float = 2.0,
        fix: float = 1.0,
        exemplars: int = 0,
        recipe: Recipe | None = None,
        session: Recipe | None = None,
        heads: HeadFactory = nearest_mean,
        masked: Masked = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        self.variant = check_one_of("variant", variant, "paper", "released")
        self.layers = check_whole("layers, how many convolutions are shaken,", layers, 1)
        self.bound = check_number("bound, the width of the box around a weight,", bound, 0)
        self.draws = check_whole("draws, how often a batch is shaken,", draws, 1)
        self.spread = check_number("spread, the weight of the losses' standard deviation,", spread, 0)
        self.fix = check_number("fix, the weight of class means that move,", fix, 0)
        self.exemplars = Exemplars(exemplars)
        self.session = session or SESSION
        self.network = SharedNetwork(backbone, masked=masked, device=device)
        self.shaken = last_layers(self.network.weights, self.layers) if self.bound else []
        """The tensors that are shaken in the first session and move in later ones."""
        self.centre: Mapping[str, Tensor] = {}
        """Of the box: these tensors as the first session left them."""
        self.lessons = incremental.lessons(self, recipe, incremental.by_means(heads), seed, cache_bytes)

    learn, predict, remove, classes = incremental.learn, incremental.predict, incremental.remove, incremental.classes
    verify, parts, tasks, layout = learners.verify, learners.parts, learners.tasks, learners.layout
    learning, _place, _answer = incremental.learning, learners.place, incremental.answer

    @property
    def base(self) -> str:
        """What its first session depends on, beside data, network and recipe: runs with the same share it."""
        numbers = [self.layers, self.bound, self.draws, self.spread, self.fix]
        return "-".join(["f2m", self.variant, *map(incremental.written, numbers)])

    @contextmanager
    def _base(self, task: Task) -> Iterator[Session]:
        lent, masks = self.network.lend(), incremental.everything(self.network)

        def features(inputs: Inputs) -> Any:
            return lent(inputs, masks)

        def loss(batch: Batch) -> Tensor:
            inputs, head = self._place().admit(batch.inputs), session.parts["head"]
            assert isinstance(head, nn.Module)
            calm = features(inputs) if self.shaken and self.fix else None
            losses = []
            for _ in range(self.draws):
                seen = lent.shifted(self._noise())(inputs, masks)
                value = task_loss(task, head(seen), batch.labels)
                if calm is not None:
                    moved = self.fix * means_moved(calm, seen, batch.labels.to(seen.device))
                    value = value + (moved if self.variant == "paper" else moved.detach())
                losses.append(value)
            return flat_loss(torch.stack(losses), self.spread)

        def keep() -> nn.Module:
            self.network.keep(task.name, lent, masks)
            self.centre = {name: self.network.weights[name] for name in self.shaken}
            return incremental.nearest(
                self, task, incremental.class_means(self, task, task.train, range(len(task.classes)))
            )

        with self.lessons.session(
            task, {"network": lent}, features, keep, holders=(self, self.network), head=linear_head, loss=loss,
            settings={"base": self.base},
        ) as session:  # fmt: skip
            yield session

    @contextmanager
    def _session(self, task: Task) -> Iterator[Session]:
        start, base = incremental.grown_means(self, task), incremental.base_count(self)
        task = incremental.rehearsing(task, self.exemplars)
        ticket, masks = incremental.ticket_of(self), incremental.everything(self.network)
        every = {name: torch.ones_like(centre, dtype=torch.bool) for name, centre in self.centre.items()}
        boxed = Boxed(self.network.lend_again(ticket, every), self.centre, self.bound)

        def features(inputs: Inputs) -> Any:
            return boxed(inputs, masks)

        def loss(batch: Batch) -> Tensor:
            seen = features(self._place().admit(batch.inputs))
            return incremental.metric_loss(seen, batch.labels.to(seen.device), start, base, metric="euclidean")

        def keep() -> nn.Module:
            self.network.move(ticket, boxed.settled())
            means = incremental.means_after(self, task, start, self.exemplars)
            self.exemplars = incremental.with_shots(self, task, self.exemplars)
            return incremental.nearest(self, task, means)

        with self.lessons.session(
            task, {"network": boxed}, features, keep, holders=(self, self.network), loss=loss,
            head=lambda _, wide: incremental.nearest(self, wide, start), settings=self._arguments(),
        ) as session:  # fmt: skip
            yield session

    def _noise(self) -> dict[str, Tensor]:
        """One shake: for every tensor another Beta distribution on the five levels of the box."""
        return {name: noise_like(self.network.weights[name], self.bound) for name in self.shaken}

    def memory(self) -> Memory:
        centre = {f"centre.{name}": value for name, value in self.centre.items()}
        return incremental.memory(self, training=centre)

    def stored(self, *, resumable: bool = False) -> LearnerState:
        training = {"centre": dict(self.centre)}
        return incremental.stored(self, resumable=resumable, arguments=self._arguments(), training=training)

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "F2M":
        """A learner made again from what was stored."""
        learner: F2M = incremental.revived(cls, backbone, stored, **others)
        learner.centre = stored.training["centre"]
        return learner

    def to(self, device: torch.device | str) -> "F2M":
        with self.lessons.moved(device):
            self.network.to(device)
            self.centre = {name: value.to(device) for name, value in self.centre.items()}
        return self

    def _arguments(self) -> dict[str, Any]:
        return {
            "variant": self.variant, "layers": self.layers, "bound": self.bound, "draws": self.draws,
            "spread": self.spread, "fix": self.fix, "exemplars": self.exemplars.count,
        }  # fmt: skip


class Boxed:
    """What was lent to a session, held in the box: whoever looks at it finds its last step rounded and within bounds.

    An optimizer moves the parameters as it likes. Before they are used, stored or kept, the move is rounded to steps of
    bound/4 and cut off at centre ± bound/2; so a weight is always on one of five levels.
    """

    def __init__(self, lent: LentNetwork, centre: Mapping[str, Tensor], bound: float):
        self._lent, self._centre, self._bound = lent, centre, bound
        self._note()

    def __call__(self, inputs: Inputs, masks: Masks) -> Any:
        return self.settled()(inputs, masks)

    def settled(self) -> LentNetwork:
        """What was lent, with the moves since the last look rounded and cut off."""
        step = self._bound / STEPS
        with torch.no_grad():
            for name, weight in self._lent.named_parameters():
                centre, before = self._centre[name], self._before[name]
                level = ((before - centre) / step).round() + ((weight - before) / step).round()
                weight.copy_(at_level(level.clamp(-STEPS / 2, STEPS / 2), centre, self._bound))
        self._note()
        return self._lent

    def _note(self) -> None:
        self._before = {name: weight.detach().clone() for name, weight in self._lent.named_parameters()}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self._lent.named_parameters()

    def state_dict(self) -> dict[str, Tensor]:
        return self.settled().state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._lent.load_state_dict(state)

    def train(self, mode: bool = True) -> None:
        self._lent.train(mode)


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


def flat_loss(losses: Tensor, spread: float) -> Tensor:
    """The mean of the losses, and `spread` times their standard deviation where there are several."""
    if len(losses) == 1:
        return losses[0]
    return losses.mean() + spread * (losses.var() + LEAST_VARIANCE).sqrt()


def last_layers(weights: Mapping[str, Tensor], count: int) -> list[str]:
    """The last `count` convolutions, without those of shortcuts (1×1); where there are none, any last tensors."""
    wide = [name for name, weight in weights.items() if weight.dim() > 2 and weight[0, 0].numel() > 1]
    return (wide or list(weights))[-count:]
