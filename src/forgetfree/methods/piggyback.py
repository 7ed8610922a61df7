"""Piggyback (Mallya et al., 2018): tasks ride on a network that never changes, each through its own binary mask.

    mask = 1[score > threshold]          backward: the gradient of the mask is the gradient of the score

Scores start above the threshold, so a task starts from the whole network and learns what to leave out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree import learners
from forgetfree.checks import check_number
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.errors import InputError
from forgetfree.heads import HeadFactory
from forgetfree.lessons import Lessons
from forgetfree.masks import Scores, above
from forgetfree.network import Masked, SharedNetwork
from forgetfree.training import Recipe, Session, Trainable


class Piggyback:
    """Your network, which never moves; every task starts from all of it and learns which weights to leave out.

    Made for a pretrained one, whose weights are taken as they are; on a random one it is piggyback-random. A bit
    flips once its score has fallen from `start` to the `threshold`: with Adam, (start - threshold) / lr steps at
    least. Heads, biases and norms are trained by each task; the released code leaves the norms as they are.
    """

    scenario: Literal["til"] = "til"
    forget_free = True

    def __init__(
        self,
        backbone: nn.Module,
        *,
        threshold: float = 5e-3,
        start: float = 1e-2,
        recipe: Recipe | None = None,
        heads: HeadFactory | None = None,
        masked: Masked = None,
        own_from: Literal["wrapped", "previous"] = "wrapped",
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        check_number("threshold", threshold)
        if not check_number("start", start) > threshold:
            raise InputError(f"scores start above the threshold {threshold!r}, else nothing is seen; got {start!r}.")
        self.threshold, self.start = threshold, start
        self.network = SharedNetwork(backbone, masked=masked, own_from=own_from, device=device)
        self.lessons = Lessons(
            self.network.answer, self._place, recipe=recipe, heads=heads, seed=seed, cache_bytes=cache_bytes
        )

    learn, predict, guess, verify = learners.learn, learners.predict, learners.guess, learners.verify
    parts, tasks, layout = learners.parts, learners.tasks, learners.layout
    to, _place = learners.to, learners.place

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Learn a task in your own loop: `session.parameters()`, `session(inputs)`, and at the end `session.keep()`."""
        with self.lessons.turn(task):
            lent, scores = self.network.lend(frozen=True), self._first_scores()

            def masks() -> dict[str, Tensor]:
                return {name: above(score, self.threshold) for name, score in scores.named_parameters()}

            def features(inputs: Inputs) -> Any:
                return lent(inputs, masks())

            def keep() -> None:
                self.network.keep(task.name, lent, masks())

            parts: dict[str, Trainable] = {"network": lent, "scores": scores}
            settings = {"threshold": self.threshold, "start of scores": self.start}
            with self.lessons.session(
                task, parts, features, keep, holders=(self.network,), settings=settings
            ) as session:
                yield session

    def _first_scores(self) -> Scores:
        def alike(weight: Tensor) -> Tensor:
            # never bfloat16, in which a small step would vanish
            return torch.full_like(weight, self.start, dtype=torch.promote_types(weight.dtype, torch.float32))

        return Scores({name: alike(weight) for name, weight in self.network.weights.items()})

    def _unused(self) -> dict[str, Tensor]:
        """Weights that no task uses yet: not needed to answer, but the next task starts from all weights."""
        return {name: value[~self.network.used[name]] for name, value in self.network.weights.items()}

    def memory(self) -> Memory:
        unused = {f"unused.{name}": value for name, value in self._unused().items()}
        return self.network.memory(self.lessons.heads.tensors(), unused)

    def remove(self, task: str) -> None:
        """Forget a task; the weights were never its own."""
        with self.lessons.removing(task, self.network):
            self.network.remove(task, self.network.weights.__getitem__)

    def stored(self, *, resumable: bool = False) -> LearnerState:
        arguments = {"threshold": self.threshold, "start": self.start, "own_from": self.network.own_from}
        with self.lessons.still():
            training = {
                "start": dict(self.network.start),
                "fixed": dict(self.network.fixed),
                "unused": {} if resumable else self._unused(),  # a resumable archive has them among the free weights
            }
            return self.lessons.stored(
                self.network.module, self.memory(), resumable=resumable, arguments=arguments, training=training
            )

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "Piggyback":
        """A learner made again from what was stored."""
        memory, training = stored.memory, stored.training
        learner = cls(backbone, masked=lambda name, *_: name in memory.shared, **{**stored.arguments, **others})
        learner.network.restore(memory.shared, memory.tickets, training["start"], training["fixed"])
        if not stored.resumable:
            used, unused = learner.network.used, training["unused"]
            learner.network.renew(lambda name: memory.shared[name].masked_scatter(~used[name], unused[name]))
        learner.lessons.restore(stored)
        return learner
