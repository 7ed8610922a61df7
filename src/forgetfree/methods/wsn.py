"""WSN, winning subnetworks (Algorithm 1): weights and scores are learned together, each task keeps its top c.

A task sees the shared weights through the mask of the c highest scores in every layer. Weights that learned tasks use
enter as constants, so only the rest can move; scores of all weights move, so a used weight can be reused.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forgetfree.answering import Answers
from forgetfree.batches import check_data, explained, first_batch, signature
from forgetfree.chance import borrowed, reseed
from forgetfree.contracts import Inputs, Learned, Memory, Task
from forgetfree.errors import TaskError
from forgetfree.heads import HeadFactory, TaskHeads, Whole
from forgetfree.masks import Rank, Scores, check_capacity
from forgetfree.network import Layout, Masked, SharedNetwork
from forgetfree.tickets import PackedMask
from forgetfree.training import Fitted, Progress, Recipe, Session, Turn, all_or_nothing, fit

log = logging.getLogger("forgetfree")


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
    ):
        self.capacity = check_capacity(capacity)
        self.recipe = recipe or Recipe()
        self.seed = seed
        self.network = SharedNetwork(backbone, masked=masked, own_from=own_from, device=device)
        self.scores = Scores.random(self.network.weights, seed, by=by)                     # Algorithm 1, line 1
        self.heads = TaskHeads(heads)
        self._learned: Mapping[str, Learned] = {}
        self._optimizer: Mapping[str, dict[str, Any]] = {}
        self._turn = Turn()
        self._answers = Answers(self._whole, cache_bytes)

    def learn(
        self,
        task: Task,
        checkpoint: Path | str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Learn one more task. `checkpoint` is a file that lets a killed `learn` go on, to the same bits."""
        with self.learning(task) as session:
            fitted = fit(                                                                   # lines 3-8
                session, self.recipe, seed=self.seed, position=len(self._learned), device=self.network.device,
                carried=self._optimizer, checkpoint=checkpoint, progress=progress,
            )
            session.keep(fitted.selection, fitted)

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Learn a task in your own loop: `session.parameters()`, `session(inputs)`, and at the end `session.keep()`."""
        check_data(task)
        with self._turn.taken_for(task.name), borrowed(self.network.device):
            if task.name in self._learned:
                raise TaskError(f"task {task.name!r} is learned already; learned tasks are {list(self._learned)}.")
            session = self._session(task)
            try:
                yield session
            finally:
                session.open = False
            if not session.kept:
                log.info("task %r was left without keep(): everything is as it was before.", task.name)

    def predict(self, inputs: Inputs, task: str) -> Tensor:
        """Scores per class of `task`, in eval mode: bit-identical on the same batch, whatever was learned since."""
        if task not in self._learned:
            raise TaskError(f"no task {task!r} is learned; learned tasks are {list(self._learned)}.")
        admitted = self.network.admit(inputs)
        with explained(admitted, self._learned[task].inputs, task):
            return self._answers(task, admitted)

    def memory(self) -> Memory:
        network = self.network
        used = {name: PackedMask.pack(mask) for name, mask in network.used.items()}
        return Memory(network.weights, used, network.common, network.tickets, self.heads.tensors())

    @property
    def tasks(self) -> Mapping[str, Learned]:
        """What is learned, by name, in order."""
        return MappingProxyType(dict(self._learned))

    def layout(self) -> Layout:
        """Every tensor of the backbone: shape, kind (masked, owned, fixed) and why. Print it."""
        return self.network.layout()

    def to(self, device: torch.device | str) -> "WSN":
        with self._turn.taken_for("moving to another device"):
            self.network.to(device)
            self.heads.to(device)
            self.scores = self.scores.to(torch.device(device))
            self._answers.clear()
        return self

    def _session(self, task: Task) -> Session:
        position = len(self._learned)
        reseed(self.network.device, self.seed, position, "head")
        lent, scores = self.network.lend(), self.scores.fork()
        sample = self.network.admit(first_batch(task, 2, self.recipe.loader).inputs)
        seen = signature(sample)

        def features(inputs: Inputs) -> Tensor:
            masks = scores.top(self.capacity)                                              # line 4
            return lent(inputs, masks)                                                     # line 5

        def answer(inputs: Inputs) -> Tensor:
            admitted = self.network.admit(inputs)
            with explained(admitted, seen, task.name):
                return head(features(admitted))

        lent.train(False)
        with torch.no_grad(), explained(sample, None, task.name):
            head = self.heads.new(task, features(sample))
        lent.train(True)

        def keep(selection: str, fitted: Fitted | None) -> None:
            with torch.no_grad(), all_or_nothing(self, self.network, self.heads):
                self.network.keep(task.name, lent, scores.top(self.capacity))              # line 9
                self.heads.keep(task.name, head)
                self.scores = scores.fork()
                self._optimizer = fitted.optimizer if fitted else {}
                learned = Learned(
                    task.name, task.classes, task.width, position, seen, torch.get_num_threads(), selection,
                    fitted.curves if fitted else (),
                )
                self._learned = {**self._learned, task.name: learned}

        lasting = [f"{part}.{name}" for part in ("network", "scores") for name in self.network.weights]
        reseed(self.network.device, self.seed, position, "session")
        return Session(
            task, {"network": lent, "scores": scores, "head": head},
            answer, keep, lasting=lasting,
        )

    def _whole(self, name: str) -> nn.Module:
        return Whole(self.network.answer(name), self.heads.kept[name]).eval()
