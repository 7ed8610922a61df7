"""One task learned by us and one through another framework; what must be true after the second, whoever trained it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.testing import small_tasks

FIRST, SECOND = small_tasks(2, samples=64)
CHANCE = 1 / len(SECOND.classes)


def backbone() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())


class Started:
    """A learner of one task that learns a second one; `learned` looks at what came of it."""

    def __init__(self) -> None:
        self.learner = ff.WSN(backbone(), capacity=0.3, recipe=ff.Recipe(epochs=3, batch_size=16, lr=0.02))
        self.learner.learn(FIRST)
        self.before = self.learner.predict(FIRST.train[0], FIRST.name)

    @contextmanager
    def session(self) -> Iterator[ff.Session]:
        with self.learner.learning(SECOND) as session:
            yield session
            assert session.kept
        self.check()

    def check(self) -> None:
        assert torch.equal(self.learner.predict(FIRST.train[0], FIRST.name), self.before)
        assert all(verified.ok for verified in self.learner.verify())
        inputs, labels = SECOND.valid
        right = self.learner.predict(inputs, SECOND.name).argmax(1) == labels
        assert float(right.float().mean()) > CHANCE + 0.25


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
