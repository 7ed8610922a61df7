"""WSN, winning subnetworks (Algorithm 1): weights and scores are learned together, each task keeps its top c.

A task sees the shared weights through the mask of the c highest scores in every layer. Weights that learned tasks use
enter as constants, so only the rest can move; scores of all weights move, so a used weight can be reused.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree import learners
from forgetfree.checks import check_number
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.heads import HeadFactory, TaskHeads
from forgetfree.lessons import Lessons
from forgetfree.masks import Rank, Scores, check_capacity
from forgetfree.network import Masked, SharedNetwork
from forgetfree.rng import layer_init, philox_uniform
from forgetfree.sparse import compress
from forgetfree.tickets import Ticket
from forgetfree.training import Recipe, Session, Trainable


class WSN:
    """Learn tasks one after another in one network; a learned task's answers stay bit-identical on the same batch.

    learner = WSN(backbone, capacity=0.05)
    learner.learn(Task("digits", classes, (images, labels)))
    logits = learner.predict(images, task="digits")
    """

    scenario: Literal["til"] = "til"
    forget_free = True

    def __init__(
        self,
        backbone: nn.Module,
        *,
        capacity: float,
        recipe: Recipe | None = None,
        heads: HeadFactory | None = None,
        masked: Masked = None,
        own_from: Literal["wrapped", "previous"] = "wrapped",
        by: Rank = "magnitude",
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
        sparse_answers: bool = False,
        background_noise: float = 0.0,
    ):
        self.capacity = check_capacity(capacity)
        self.background_noise = check_number("background_noise, a fraction of a weight,", background_noise, 0, below=1)
        self._removals = 0
        self.sparse_answers = sparse_answers
        self.network = SharedNetwork(backbone, masked=masked, own_from=own_from, device=device)
        self.scores = Scores.random(self.network.weights, seed, by=by)  # Algorithm 1, line 1
        self.lessons = Lessons(
            self._answer, self._place, recipe=recipe, heads=heads, seed=seed, cache_bytes=cache_bytes,
            lighter=self._lighter,
        )  # fmt: skip

    learn, predict, verify = learners.learn, learners.predict, learners.verify
    parts, tasks, layout, room = learners.parts, learners.tasks, learners.layout, learners.room
    _place = learners.place

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Learn a task in your own loop: `session.parameters()`, `session(inputs)`, and at the end `session.keep()`."""
        with self.lessons.turn(task):
            lent, scores = self.network.lend(), self.scores.fork()

            def features(inputs: Inputs) -> Any:
                masks = scores.top(self.capacity)  # line 4
                return lent(inputs, masks)  # line 5; lines 6-7 are the optimizer's

            def keep() -> None:
                self.network.keep(task.name, lent, scores.top(self.capacity))  # line 9
                self.scores = scores.fork()

            parts: dict[str, Trainable] = {"network": lent, "scores": scores}
            lasting = [f"{part}.{name}" for part in parts for name in self.network.weights]
            holders = (self, self.network)
            settings = {"capacity": self.capacity, "ranked by": self.scores.by}
            with self.lessons.session(
                task, parts, features, keep, holders=holders, lasting=lasting, settings=settings
            ) as session:
                yield session

    def guess(self, inputs: Inputs, task: Task) -> Tensor:
        """Scores per class of a task that is not learned: the last ticket, with its background noise, on a new head."""
        last = list(self.tasks)[-1:]
        return self.lessons.guess(inputs, task, self.soft_parts(last[0])["backbone"] if last else None)

    def soft_parts(self, task: str) -> dict[str, nn.Module]:
        """Backbone and head of a task with noise U(0, background_noise) where its mask has zeros: SoftNet.

        The noise multiplies weights that later tasks move, so these answers change: `predict` never uses it.
        """
        self.lessons.refuse_unknown([task])

        def noise(tensor: str) -> Tensor:
            weight, position = self.network.weights[tensor], self.tasks[task].position
            drawn = philox_uniform(weight.numel(), self.seed, "background", position, tensor)
            return torch.from_numpy(self.background_noise * drawn).view(weight.shape)

        return self.parts(task) | {"backbone": self.network.answer(task, background=noise)}

    def memory(self) -> Memory:
        scores = {f"scores.{name}": value for name, value in self.scores.state_dict().items()}
        return self.network.memory(self.heads.tensors(), scores)

    def remove(self, task: str) -> None:
        """Forget a task: nothing that only it used stays; all other tasks keep their bits."""
        with self.lessons.removing(task, self, self.network):
            self._removals += 1
            shapes = {name: value.shape for name, value in self.network.weights.items()}

            def fresh(name: str, what: str = "removal") -> Tensor:
                return layer_init(shapes[name], self.seed, what, self._removals, name)

            alone = self.network.remove(task, fresh)
            self.scores = Scores(
                {
                    name: value.where(~alone[name], fresh(name, "scores of removal").to(value))
                    for name, value in self.scores.state_dict().items()
                },
                by=self.scores.by,
            )

    def stored(self, *, resumable: bool = False) -> LearnerState:
        arguments = {
            "capacity": self.capacity,
            "own_from": self.network.own_from,
            "by": self.scores.by,
            "sparse_answers": self.sparse_answers,
            "background_noise": self.background_noise,
        }
        with self.lessons.still():
            training = {
                "start": dict(self.network.start),
                "fixed": dict(self.network.fixed),
                "removals": self._removals,
                **({"scores": self.scores.state_dict()} if resumable else {"quantiles": self.scores.quantiles()}),
            }
            return self.lessons.stored(
                self.network.module, self.memory(), resumable=resumable, arguments=arguments, training=training
            )

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "WSN":
        """A learner made again from what was stored; without all of it, free weights and scores are drawn anew."""
        memory, training = stored.memory, stored.training
        learner = cls(backbone, masked=lambda name, *_: name in memory.shared, **{**stored.arguments, **others})
        weights = dict(memory.shared)
        if not stored.resumable:
            for name, used in memory.used.items():
                fresh = layer_init(weights[name].shape, learner.seed, "free", name).to(weights[name])
                weights[name] = weights[name].where(used.unpack(), fresh)
        learner.network.restore(weights, memory.tickets, training["start"], training["fixed"])
        learner._removals = training["removals"]
        by = learner.scores.by
        if "scores" in training:
            learner.scores = Scores(training["scores"], by=by)
        else:
            uses = {name: _uses(memory.tickets, name, value) for name, value in weights.items()}
            last = list(memory.tickets.values())[-1:]
            masks = {name: last[0].mask(name) if last else uses[name] > 0 for name in weights}
            learner.scores = Scores.after(masks, uses, training["quantiles"], learner.seed, by=by)
        learner.lessons.restore(stored)
        return learner

    @property
    def heads(self) -> TaskHeads:
        return self.lessons.heads

    @property
    def recipe(self) -> Recipe:
        return self.lessons.recipe

    @property
    def seed(self) -> int:
        return self.lessons.seed

    def to(self, device: torch.device | str) -> "WSN":
        with self.lessons.moved(device):
            self.network.to(device)
            self.scores = self.scores.to(torch.device(device))
        return self

    def _answer(self, name: str) -> nn.Module:
        return self.network.answer(name)

    def _lighter(self, module: nn.Module) -> nn.Module:
        names = {f"backbone.{name}" for name in self.network.weights}
        return compress(module, names) if self.sparse_answers else module


def _uses(tickets: Mapping[str, Ticket], name: str, value: Tensor) -> Tensor:
    """How many tasks use each weight."""
    uses = torch.zeros(value.shape, dtype=torch.int32)
    for ticket in tickets.values():
        uses += ticket.mask(name)
    return uses
