"""EWC, elastic weight consolidation: every task may move all weights, but is pulled back to where they were.

The pull on a weight is as strong as its Fisher information, which says how much the earlier tasks depend on it. Like
lambda, its scale belongs to the estimator: squared mean gradients of small batches, with the true labels. With a large
lambda times learning rate the pull overshoots: clip gradients (`Recipe(clip=…)`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree import learners
from forgetfree.batches import batches
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.errors import InputError
from forgetfree.heads import HeadFactory
from forgetfree.lessons import Lessons
from forgetfree.modules import as_call, clone, refuse, with_tensors
from forgetfree.rng import generator, seed_all
from forgetfree.training import Recipe, Session, task_loss


class EWC:
    """One network, one head per task; what earlier tasks need is held by a quadratic penalty of this `strength`."""

    scenario: Literal["til"] = "til"
    forget_free = False

    def __init__(
        self,
        backbone: nn.Module,
        *,
        strength: float = 5000.0,
        fisher_batch: int = 20,
        recipe: Recipe | None = None,
        heads: HeadFactory | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        refuse(backbone)
        self.strength = _check_strength(strength)
        self.fisher_batch = _check_batch(fisher_batch)
        self.backbone = clone(backbone).to(device)
        self.fisher: Mapping[str, Tensor] = {}
        """Of the backbone's weights, the mean over all tasks so far; empty before the first."""
        self._merged = 0
        self.lessons = Lessons(
            self._answer, self._place, recipe=recipe, heads=heads, seed=seed, cache_bytes=cache_bytes
        )

    learn, predict, guess = learners.learn, learners.predict, learners.guess
    verify, parts, tasks = learners.verify, learners.parts, learners.tasks
    remove, _answer, _place = learners.remove_head, learners.moving_answer, learners.moving_place

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Learn a task in your own loop: `session.loss(batch)` has the penalty in it; at the end `session.keep()`."""
        with self.lessons.turn(task):
            trained = clone(self.backbone)

            def features(inputs: Inputs) -> Any:
                args, kwargs = as_call(inputs)
                return trained(*args, **kwargs)

            def keep() -> None:
                fresh, t = self._fisher_of(session, trained), self._merged
                self.fisher = {name: (new + t * self.fisher.get(name, 0)) / (t + 1) for name, new in fresh.items()}
                self._merged = t + 1
                self.backbone = clone(trained)
                self.lessons.forget_answers()

            with self.lessons.session(
                task,
                {"network": trained},
                features,
                keep,
                holders=(self,),
                penalty=self._penalty(trained) if self.fisher else None,
                lasting=[f"network.{name}" for name, _ in trained.named_parameters()],
                settings={"strength": self.strength, "fisher_batch": self.fisher_batch},
            ) as session:
                yield session

    def _penalty(self, trained: nn.Module) -> Callable[[], Tensor]:
        """(lambda / 2) sum F (theta - theta*)^2. Theta* is the backbone: all weights as the last task left them."""
        anchors, weights = dict(self.backbone.named_parameters()), dict(trained.named_parameters())
        held = [
            (weights[name], anchors[name].detach(), self.strength / 2 * fisher) for name, fisher in self.fisher.items()
        ]

        def penalty() -> Tensor:
            return torch.stack([(pull * (weight - anchor).square()).sum() for weight, anchor, pull in held]).sum()

        return penalty

    def _fisher_of(self, session: Session, trained: nn.Module) -> dict[str, Tensor]:
        """The diagonal of the Fisher matrix: the mean over batches of the squared gradient of the task's loss."""
        task, lessons, device = session.task, self.lessons, self._place().device
        weights = {name: weight for name, weight in trained.named_parameters() if weight.requires_grad}
        if not weights:  # only heads learn
            return {}
        squares = {name: torch.zeros_like(weight, dtype=_fine(weight)) for name, weight in weights.items()}
        order = generator(lessons.seed, lessons.position, "fisher order")
        seed_all(device, lessons.seed, lessons.position, "fisher")
        before, count = session.state(), 0
        session.train()
        with torch.enable_grad():
            for batch in batches(task, task.train, self.fisher_batch, order=order, loader=lessons.recipe.loader):
                loss = task_loss(task, session(batch.inputs), batch.labels)
                gradients = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True, allow_unused=True)
                for square, gradient in zip(squares.values(), gradients, strict=True):
                    square.addcmul_(gradient, gradient)
                count += 1
        session.restore(before)  # norms have taken statistics meanwhile
        return {name: square / count for name, square in squares.items()}

    def memory(self) -> Memory:
        fisher = {f"fisher.{name}": value for name, value in self.fisher.items()}
        return learners.moving_memory(self, fisher)

    def stored(self, *, resumable: bool = False) -> LearnerState:
        arguments = {"strength": self.strength, "fisher_batch": self.fisher_batch}
        with self.lessons.still():
            training = {"fisher": dict(self.fisher), "merged": self._merged}
            return self.lessons.stored(
                self.backbone, self.memory(), resumable=resumable, arguments=arguments, training=training
            )

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "EWC":
        """A learner made again from what was stored."""
        learner = cls(backbone, **{**stored.arguments, **others})
        learner.backbone = with_tensors(learner.backbone, stored.memory.shared)
        learner.fisher, learner._merged = stored.training["fisher"], stored.training["merged"]
        weights = {name: weight.shape for name, weight in learner.backbone.named_parameters() if weight.requires_grad}
        if learner.fisher and {name: value.shape for name, value in learner.fisher.items()} != weights:
            raise InputError("the stored Fisher information is not of this backbone's weights.")
        learner.lessons.restore(stored)
        return learner

    def to(self, device: torch.device | str) -> "EWC":
        with self.lessons.moved(device):
            self.backbone = clone(self.backbone).to(device)
            self.fisher = {name: value.to(device) for name, value in self.fisher.items()}
        return self


def _check_strength(strength: float) -> float:
    if isinstance(strength, bool) or not isinstance(strength, int | float) or not 0 <= strength < float("inf"):
        raise InputError(
            f"strength is EWC's lambda, a number of at least 0 (0 is finetuning, 5000 is usual); got {strength!r}."
        )
    return float(strength)


def _check_batch(fisher_batch: int) -> int:
    if isinstance(fisher_batch, bool) or not isinstance(fisher_batch, int) or fisher_batch < 1:
        raise InputError(
            f"fisher_batch is how many samples' mean gradient is squared, a whole number of at least 1; got "
            f"{fisher_batch!r}. EWC's strength is tied to it: 20 is usual."
        )
    return fisher_batch


def _fine(weight: Tensor) -> torch.dtype:
    """The type to add up in: that of the weight, or finer where it is coarse."""
    return torch.promote_types(weight.dtype, torch.float32)
