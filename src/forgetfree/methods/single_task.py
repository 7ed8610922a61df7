"""Single task (STL): a fresh network for every task. Nothing is shared, so nothing is forgotten or saved."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree import learners
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.heads import HeadFactory
from forgetfree.lessons import Lessons, Place
from forgetfree.modules import as_call, clone, freeze, named_tensors, refuse, reset, with_tensors
from forgetfree.rng import seed_all
from forgetfree.tickets import Ticket
from forgetfree.training import Recipe, Session


class SingleTask:
    """T tasks, T networks: the reference for what a task can reach alone, at T times the capacity."""

    scenario: Literal["til"] = "til"
    forget_free = True

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
        self.networks: Mapping[str, nn.Module] = {}
        self.lessons = Lessons(
            self._answer, self._place, recipe=recipe, heads=heads, seed=seed, cache_bytes=cache_bytes
        )

    learn, predict, guess = learners.learn, learners.predict, learners.guess
    verify, parts, tasks = learners.verify, learners.parts, learners.tasks

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Learn a task in your own loop: `session.parameters()`, `session(inputs)`, and at the end `session.keep()`."""
        with self.lessons.turn(task):
            fresh = clone(self.backbone)
            seed_all(self._place().device, self.lessons.seed, self.lessons.position, "fresh network")
            reset(fresh)

            def features(inputs: Inputs) -> Any:
                args, kwargs = as_call(inputs)
                return fresh(*args, **kwargs)

            def keep() -> None:
                self.networks = {**self.networks, task.name: freeze(clone(fresh))}

            with self.lessons.session(task, {"network": fresh}, features, keep, holders=(self,)) as session:
                yield session

    def memory(self) -> Memory:
        shared = {
            f"{task}/{name}": tensor.detach()
            for task, network in self.networks.items()
            for name, tensor in named_tensors(network)
        }
        return Memory(shared, {}, {}, {name: Ticket({}) for name in self.tasks}, self.lessons.heads.tensors())

    def remove(self, task: str) -> None:
        """Forget a task: its network and its head go."""
        with self.lessons.removing(task, self):
            self.networks = {name: network for name, network in self.networks.items() if name != task}

    def stored(self, *, resumable: bool = False) -> LearnerState:
        with self.lessons.still():
            return self.lessons.stored(self.backbone, self.memory(), resumable=resumable)

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "SingleTask":
        """A learner made again from what was stored."""
        learner = cls(backbone, **{**stored.arguments, **others})
        learner.networks = {name: _network(learner.backbone, name, stored.memory.shared) for name in stored.learned}
        learner.lessons.restore(stored)
        return learner

    def to(self, device: torch.device | str) -> "SingleTask":
        with self.lessons.moved(device):
            self.backbone = clone(self.backbone).to(device)
            self.networks = {name: clone(network).to(device) for name, network in self.networks.items()}
        return self

    def _answer(self, name: str) -> nn.Module:
        return freeze(clone(self.networks[name]))

    def _place(self) -> Place:
        return Place.of(self.backbone.parameters())


def _network(backbone: nn.Module, task: str, shared: Mapping[str, Tensor]) -> nn.Module:
    names = [name for name, _ in named_tensors(backbone)]
    return freeze(with_tensors(backbone, {name: shared[f"{task}/{name}"] for name in names}))
