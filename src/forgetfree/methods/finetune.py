"""Finetune: train on, task after task, with nothing to protect the old ones. The floor every method must beat."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from forgetfree import learners
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.heads import HeadFactory
from forgetfree.lessons import Lessons
from forgetfree.modules import as_call, clone, refuse, with_tensors
from forgetfree.training import Recipe, Session


class Finetune:
    """One network, one head per task; every task moves all weights, so earlier ones are forgotten."""

    scenario: Literal["til"] = "til"
    forget_free = False

    def __init__(
        self,
        backbone: nn.Module,
        *,
        recipe: Recipe | None = None,
        heads: HeadFactory | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        refuse(backbone)
        self.backbone = clone(backbone).to(device)
        self.lessons = Lessons(
            self._answer, self._place, recipe=recipe, heads=heads, seed=seed, cache_bytes=cache_bytes
        )

    learn, predict, guess = learners.learn, learners.predict, learners.guess
    verify, parts, tasks = learners.verify, learners.parts, learners.tasks
    remove, _answer, _place = learners.remove_head, learners.moving_answer, learners.moving_place

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Learn a task in your own loop: `session.parameters()`, `session(inputs)`, and at the end `session.keep()`."""
        with self.lessons.turn(task):
            trained = clone(self.backbone)

            def features(inputs: Inputs) -> Any:
                args, kwargs = as_call(inputs)
                return trained(*args, **kwargs)

            def keep() -> None:
                self.backbone = clone(trained)
                self.lessons.forget_answers()

            lasting = [f"network.{name}" for name, _ in trained.named_parameters()]
            parts = {"network": trained}
            with self.lessons.session(task, parts, features, keep, holders=(self,), lasting=lasting) as session:
                yield session

    def memory(self) -> Memory:
        return learners.moving_memory(self, {})

    def stored(self, *, resumable: bool = False) -> LearnerState:
        with self.lessons.still():
            return self.lessons.stored(self.backbone, self.memory(), resumable=resumable)

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "Finetune":
        """A learner made again from what was stored."""
        learner = cls(backbone, **{**stored.arguments, **others})
        learner.backbone = with_tensors(learner.backbone, stored.memory.shared)
        learner.lessons.restore(stored)
        return learner

    def to(self, device: torch.device | str) -> "Finetune":
        with self.lessons.moved(device):
            self.backbone = clone(self.backbone).to(device)
        return self
