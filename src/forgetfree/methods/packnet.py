"""PackNet (Mallya and Lazebnik, 2018): train, prune by magnitude, retrain what is left; the next task gets the rest.

A task trains all free weights of the network with those of all earlier tasks in view. Then each layer keeps the largest
fraction c of its free weights, which are retrained and belong to the task; the others are free again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree import learners
from forgetfree.checks import check_switch
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.errors import InputError
from forgetfree.heads import HeadFactory
from forgetfree.lessons import Lessons
from forgetfree.masks import Masks, check_capacity, select
from forgetfree.network import Masked, SharedNetwork
from forgetfree.rng import layer_init
from forgetfree.training import Progress, Recipe, Session


class PackNet:
    """Every task trains what is free, keeps the largest of it and retrains that; later tasks see all earlier ones.

    `capacity` is the fraction of each layer's still free weights that a task keeps: T tasks use 1-(1-c)^T.
    Retraining takes half as many epochs as training, unless `retrain_epochs` says otherwise; each has an optimizer
    of its own. Freed weights are zero until a task trains them, as in the released code; `refill` draws them anew.
    """

    scenario: Literal["til"] = "til"
    forget_free = True

    def __init__(
        self,
        backbone: nn.Module,
        *,
        capacity: float,
        retrain_epochs: int | None = None,
        refill: bool = False,
        recipe: Recipe | None = None,
        heads: HeadFactory | None = None,
        masked: Masked = None,
        own_from: Literal["wrapped", "previous"] = "wrapped",
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        if retrain_epochs is not None and (type(retrain_epochs) is not int or retrain_epochs < 1):
            raise InputError(f"retrain_epochs is None or a whole number of at least 1; got {retrain_epochs!r}.")
        self.capacity = check_capacity(capacity)
        self.retrain_epochs = retrain_epochs
        self.refill = check_switch("refill", refill)
        self.network = SharedNetwork(backbone, masked=masked, own_from=own_from, device=device)
        self.lessons = Lessons(
            self.network.answer, self._place, recipe=recipe, heads=heads, seed=seed, cache_bytes=cache_bytes
        )

    predict, guess, verify = learners.predict, learners.guess, learners.verify
    parts, tasks, layout, room = learners.parts, learners.tasks, learners.layout, learners.room
    to, _place = learners.to, learners.place

    def learn(
        self,
        task: Task,
        checkpoint: Path | str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Learn one more task. `checkpoint` is a file that lets a killed `learn` go on, to the same bits.

        Retraining has a file of its own beside it.
        """
        train, recipe = self.lessons.train, self.lessons.recipe
        retraining = replace(recipe, epochs=self.retrain_epochs or max(1, recipe.epochs // 2))
        with self._pruning(task) as (session, prune):
            trained = train(session, recipe, checkpoint=checkpoint, progress=progress)
            prune()
            retrained = train(session, retraining, checkpoint=checkpoint, progress=progress, phase="retrain")
            session.keep(retrained.selection, retrained.after(trained))

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Learn a task in your own loop, which ends with `session.keep()`: that prunes, and nothing is retrained."""
        with self._pruning(task) as (session, _):
            yield session

    @contextmanager
    def _pruning(self, task: Task) -> Iterator[tuple[Session, Callable[[], None]]]:
        """A session that sees all weights until it is pruned, and then those that it keeps and all earlier ones."""
        with self.lessons.turn(task):
            lent, used = self.network.lend(), self.network.used
            chosen: dict[str, Tensor] = {}
            seen: Masks = {name: torch.ones((), dtype=value.dtype) for name, value in self.network.weights.items()}

            def prune() -> None:
                nonlocal chosen, seen
                weights = lent.weights()
                chosen = {name: used[name] | self._largest(value, ~used[name]) for name, value in weights.items()}
                seen = {name: mask.to(weights[name].dtype) for name, mask in chosen.items()}

            def features(inputs: Inputs) -> Any:
                return lent(inputs, seen)

            def keep() -> None:
                if not chosen:
                    prune()
                self.network.keep(task.name, lent, chosen)
                self.network.renew(self._free)

            settings = {"capacity": self.capacity, "refill": self.refill}
            with self.lessons.session(
                task, {"network": lent}, features, keep, holders=(self.network,), settings=settings
            ) as session:
                yield session, prune

    def _largest(self, weight: Tensor, free: Tensor) -> Tensor:
        """True at the largest fraction c of the free weights, and at one at least; ties go to the lower flat index."""
        count = int(free.sum())
        if not count:
            return free
        return select(weight.abs().where(free, -1), max(1, round(self.capacity * count)))

    def _free(self, name: str) -> Tensor:
        """What a free weight is between tasks; where no task is left it is drawn, as zeros alone could not learn."""
        value = self.network.weights[name]
        if self.network.tickets and not self.refill:
            return torch.zeros_like(value)
        return layer_init(value.shape, self.lessons.seed, "free", name)

    def memory(self) -> Memory:
        return self.network.memory(self.lessons.heads.tensors(), {})

    def remove(self, task: str) -> None:
        """Forget a task. Weights that it alone used are free; those that later tasks build on stay theirs."""
        with self.lessons.removing(task, self.network):
            self.network.remove(task, self._free)
            self.network.renew(self._free)

    def stored(self, *, resumable: bool = False) -> LearnerState:
        arguments = {
            "capacity": self.capacity,
            "retrain_epochs": self.retrain_epochs,
            "refill": self.refill,
            "own_from": self.network.own_from,
        }
        with self.lessons.still():
            training = {"start": dict(self.network.start), "fixed": dict(self.network.fixed)}
            return self.lessons.stored(
                self.network.module, self.memory(), resumable=resumable, arguments=arguments, training=training
            )

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "PackNet":
        """A learner made again from what was stored; what free weights are, it knows by itself."""
        memory, training = stored.memory, stored.training
        learner = cls(backbone, masked=lambda name, *_: name in memory.shared, **{**stored.arguments, **others})
        learner.network.restore(memory.shared, memory.tickets, training["start"], training["fixed"])
        if memory.tickets:
            learner.network.renew(learner._free)
        learner.lessons.restore(stored)
        return learner
