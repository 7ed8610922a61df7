"""A method of your own, outside the package, in about 30 lines: the contract is checked, nothing is registered.

LinearProbe never moves the backbone; each task trains a head of its own on the backbone's features. Nothing can be
forgotten, and only what the features already show can be learned. Run it with `python examples/own_method.py`.
"""

import torch
from torch import nn

import forgetfree as ff
from forgetfree.lessons import Lessons, Place
from forgetfree.modules import as_call, clone, freeze, named_tensors
from forgetfree.testing import check_learner, small_tasks
from forgetfree.tickets import Ticket


class LinearProbe:
    scenario = "til"
    forget_free = True

    def __init__(self, backbone: nn.Module, *, recipe: ff.Recipe | None = None, seed: int = 0):
        self.backbone = freeze(clone(backbone))
        self.lessons = Lessons(self._answer, self._place, recipe=recipe, heads=None, seed=seed, cache_bytes=1 << 28)

    @property
    def tasks(self):
        return self.lessons.tasks

    def learn(self, task, checkpoint=None, progress=None):
        frozen = freeze(clone(self.backbone))

        def features(inputs):
            args, kwargs = as_call(inputs)
            return frozen(*args, **kwargs)

        def keep():
            pass  # the lessons keep the head, and nothing else has moved

        with self.lessons.turn(task), self.lessons.session(task, {}, features, keep, holders=(self,)) as session:
            self.lessons.fit(session, checkpoint=checkpoint, progress=progress)

    def predict(self, inputs, task):
        return self.lessons.predict(inputs, task)

    def memory(self):
        tickets = {name: Ticket({}) for name in self.tasks}
        return ff.Memory(dict(named_tensors(self.backbone)), {}, {}, tickets, self.lessons.heads.tensors())

    def _answer(self, task):
        return freeze(clone(self.backbone))

    def _place(self):
        return Place.of(self.backbone.parameters())


def make():
    return LinearProbe(nn.Sequential(nn.Linear(8, 32), nn.ReLU()), recipe=ff.Recipe(epochs=20, lr=1e-2))


if __name__ == "__main__":
    check_learner(make)
    print("check_learner: LinearProbe keeps the contract of a learner")
    torch.manual_seed(0)
    learner = make()
    for task in small_tasks():
        learner.learn(task)
        inputs, labels = task.valid
        accuracy = float((learner.predict(inputs, task.name).argmax(1) == labels).float().mean())
        print(f"{task.name}: validation accuracy {accuracy:.2f}")
