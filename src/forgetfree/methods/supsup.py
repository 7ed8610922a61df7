"""SupSup, supermasks in superposition (Wortsman et al., 2020), with the task given: masks over a random network.

Weights are never trained: each is +√(2/fan_in) or -√(2/fan_in), its sign drawn from the seed. A task learns scores,
and its mask is the top c of them in every layer, by the same rule and the same straight-through gradient as WSN.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree import learners
from forgetfree.checks import check_switch
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.heads import HeadFactory
from forgetfree.lessons import Lessons
from forgetfree.masks import Scores, check_capacity
from forgetfree.network import Masked, SharedNetwork
from forgetfree.rng import derive, philox_uniform
from forgetfree.training import Recipe, Session, Trainable


class SupSup:
    """One random network that never moves; every task learns which of its weights to see.

    Scores are drawn anew for each task; with `transfer` they start at the mean of those of earlier tasks. As in all
    our methods heads, biases and norms are trained by each task; the released code has one random head for all,
    masked like any layer. A mask has n - round((1-c)(n-1)) ones of n, there n - int((1-c)n). Of the wrapped weights
    only the shapes matter.
    """

    scenario: Literal["til"] = "til"
    forget_free = True

    def __init__(
        self,
        backbone: nn.Module,
        *,
        capacity: float,
        transfer: bool = False,
        recipe: Recipe | None = None,
        heads: HeadFactory | None = None,
        masked: Masked = None,
        own_from: Literal["wrapped", "previous"] = "wrapped",
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        self.capacity = check_capacity(capacity)
        self.transfer = check_switch("transfer", transfer)
        self.mean_scores: Mapping[str, Tensor] = {}
        self._averaged = 0
        self.network = SharedNetwork(backbone, masked=masked, own_from=own_from, device=device)
        self.lessons = Lessons(
            self.network.answer, self._place, recipe=recipe, heads=heads, seed=seed, cache_bytes=cache_bytes
        )
        self.network.renew(self._signed_constants)

    learn, predict, guess, verify = learners.learn, learners.predict, learners.guess, learners.verify
    parts, tasks, layout, room = learners.parts, learners.tasks, learners.layout, learners.room
    _place = learners.place

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Learn a task in your own loop: `session.parameters()`, `session(inputs)`, and at the end `session.keep()`."""
        with self.lessons.turn(task):
            lent, scores = self.network.lend(frozen=True), self._first_scores()

            def features(inputs: Inputs) -> Any:
                return lent(inputs, scores.top(self.capacity))

            def keep() -> None:
                self.network.keep(task.name, lent, scores.top(self.capacity))
                if self.transfer:
                    self._average(scores.state_dict())

            parts: dict[str, Trainable] = {"network": lent, "scores": scores}
            settings = {"capacity": self.capacity, "transfer": self.transfer}
            with self.lessons.session(
                task, parts, features, keep, holders=(self, self.network), settings=settings
            ) as session:
                yield session

    def _first_scores(self) -> Scores:
        if self.mean_scores:
            return Scores(self.mean_scores)
        return Scores.random(self.network.weights, derive(self.lessons.seed, self.lessons.position, "scores"))

    def _average(self, scores: Mapping[str, Tensor]) -> None:
        before, count = self.mean_scores, self._averaged
        self.mean_scores = {name: (count * before.get(name, 0) + new) / (count + 1) for name, new in scores.items()}
        self._averaged = count + 1

    def _signed_constants(self, name: str) -> Tensor:
        weight = self.network.weights[name]
        fan_in = weight[0].numel() if weight.dim() > 1 else weight.numel()
        positive = torch.from_numpy(philox_uniform(weight.numel(), self.lessons.seed, "signs", name) < 0.5)
        constant = torch.full(weight.shape, (2 / max(1, fan_in)) ** 0.5, dtype=weight.dtype)
        return constant.where(positive.view(weight.shape), -constant)

    def memory(self) -> Memory:
        mean = {f"mean scores.{name}": value for name, value in self.mean_scores.items()}
        return self.network.memory(self.lessons.heads.tensors(), mean)

    def remove(self, task: str) -> None:
        """Forget a task. Its scores are a part of their mean, so that begins anew; the weights were never its own."""
        with self.lessons.removing(task, self, self.network):
            self.network.remove(task, self._signed_constants)
            self.mean_scores, self._averaged = {}, 0

    def stored(self, *, resumable: bool = False) -> LearnerState:
        arguments = {"capacity": self.capacity, "transfer": self.transfer, "own_from": self.network.own_from}
        with self.lessons.still():
            training: dict[str, Any] = {"start": dict(self.network.start), "fixed": dict(self.network.fixed)}
            if resumable:
                training |= {"mean_scores": dict(self.mean_scores), "averaged": self._averaged}
            return self.lessons.stored(
                self.network.module, self.memory(), resumable=resumable, arguments=arguments, training=training
            )

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "SupSup":
        """A learner made again from what was stored; without all of it, the mean of the scores begins anew."""
        memory, training = stored.memory, stored.training
        learner = cls(backbone, masked=lambda name, *_: name in memory.shared, **{**stored.arguments, **others})
        learner.network.restore(memory.shared, memory.tickets, training["start"], training["fixed"])
        learner.network.renew(learner._signed_constants)
        if stored.resumable:
            learner.mean_scores, learner._averaged = training["mean_scores"], training["averaged"]
        learner.lessons.restore(stored)
        return learner

    def to(self, device: torch.device | str) -> "SupSup":
        with self.lessons.moved(device):
            self.network.to(device)
            self.mean_scores = {name: value.to(device) for name, value in self.mean_scores.items()}
        return self
