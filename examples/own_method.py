"""A method of your own, outside the package, in a dozen lines: a dataclass that says what is learned.

LinearProbe never moves the backbone; each task trains a head of its own on the backbone's features. Nothing can be
forgotten, and only what the features already show can be learned. Run it with `python examples/own_method.py`.
"""

from functools import partial

import torch
from torch import nn

import forgetfree as ff
from forgetfree.authoring import Context, Session, Task, TaskLearner, TaskModel
from forgetfree.dense import MovingNetwork
from forgetfree.settings import learner
from forgetfree.testing import check_method, small_tasks
from forgetfree.views import Plain


@learner
class LinearProbe(TaskLearner):
    """The network stays as it is; every task trains a head on its features."""

    forget_free = True
    network_kind = partial(MovingNetwork, own_norms=True)

    def view(self, task: Task, context: Context) -> TaskModel:
        names = frozenset(name for name, _ in self.network.module.named_parameters())
        return Plain(self.network.trainable_view(still=names))

    def keep(self, session: Session, context: Context) -> None:
        self.network.keep(session.task.name, session.model.network)


def make() -> LinearProbe:
    return LinearProbe(nn.Sequential(nn.Linear(8, 32), nn.ReLU()), recipe=ff.Recipe(epochs=20, lr=1e-2))


def main() -> None:
    check_method(LinearProbe)
    print("LinearProbe keeps every promise of a learner.")
    torch.manual_seed(0)
    learner, tasks = make(), small_tasks()
    answers = {}
    for task in tasks:
        learner.learn(task)
        answers[task.name] = learner.predict(task.train[0], task.name)
    for task in tasks:
        same = torch.equal(answers[task.name], learner.predict(task.train[0], task.name))
        right = (answers[task.name].argmax(1) == task.train[1]).float().mean()
        print(f"{task.name}: {right:.0%} of its training data, answers unchanged: {same}")


if __name__ == "__main__":
    main()
