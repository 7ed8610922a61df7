"""NCM: a dense network learns the first session and never moves again; later classes are their means, the nearest wins.

The plainest few-shot learner, and a strong one: what moves no feature forgets none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from forgetfree import incremental, learners
from forgetfree.contracts import LearnerState, Task
from forgetfree.heads import HeadFactory, nearest_mean
from forgetfree.network import Masked, SharedNetwork
from forgetfree.training import Recipe, Session


class NCM:
    """Features of the first session, and the mean of every class met."""

    scenario: Literal["fscil"] = "fscil"
    forget_free = False
    base = "dense"

    def __init__(
        self,
        backbone: nn.Module,
        *,
        recipe: Recipe | None = None,
        session: Recipe | None = None,
        heads: HeadFactory = nearest_mean,
        masked: Masked = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        self.session = session or Recipe()  # nothing is trained in a session
        self.network = SharedNetwork(backbone, masked=masked, device=device)
        self.lessons = incremental.lessons(self, recipe, incremental.by_means(heads), seed, cache_bytes)

    learn, predict, remove, classes = incremental.learn, incremental.predict, incremental.remove, incremental.classes
    verify, parts, tasks, layout = learners.verify, learners.parts, learners.tasks, learners.layout
    to, memory, _place, _answer = learners.to, incremental.memory, learners.place, incremental.answer
    learning, _base = incremental.learning, incremental.base_by_means

    @contextmanager
    def _session(self, task: Task) -> Iterator[Session]:
        means = incremental.grown_means(self, task)
        lent = self.network.lend_again(incremental.ticket_of(self), movable={})
        head = incremental.nearest(self, task, means)
        with incremental.later_session(self, task, lent, lambda _: head, head=lambda *_: head) as session:
            yield session

    def stored(self, *, resumable: bool = False) -> LearnerState:
        return incremental.stored(self, resumable=resumable, arguments={})

    revived = classmethod(incremental.revived)
