"""Every method of the table keeps the contract of a learner, and the check itself can fail."""

import pytest
import torch
from torch import nn

import forgetfree as ff
from forgetfree.testing import check_learner, small_tasks
from zoo import FSCIL

SETTINGS = {
    "wsn": {"capacity": 0.3},
    "hat": {"recipe": ff.Recipe(epochs=3, batch_size=16, lr=0.05, optimizer="sgd")},
    "gpm": {"recipe": ff.Recipe(epochs=3, batch_size=16, lr=0.05, optimizer="sgd")},
    "packnet": {"capacity": 0.3},
    "supsup": {"capacity": 0.3},
    "softnet": {"capacity": 0.6},
    "hardnet": {"capacity": 0.6},
}
RECIPE = ff.Recipe(epochs=3, batch_size=16, lr=0.02)


def backbone():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 12), nn.ReLU())


@pytest.mark.parametrize("method", ff.METHODS)
def test_a_method_keeps_the_contract_of_a_learner(method):
    check_learner(lambda: ff.METHODS[method](backbone(), **({"recipe": RECIPE} | SETTINGS.get(method, {}))))


def test_the_table_has_the_methods_it_should():
    first = ["wsn", "finetune", "single_task", "multitask"]
    rivals = ["ewc", "hat", "gpm", "packnet", "supsup", "piggyback"]
    few_shots = ["softnet", "hardnet", "ncm", "joint", "crt", "icarl", "rebalance", "fsll", "f2m"]
    assert list(ff.METHODS) == [*first, *rivals, *few_shots]


def test_a_learner_that_forgets_cannot_call_itself_forget_free():
    class Liar(type(ff.METHODS["finetune"](backbone()))):
        forget_free = True

    with pytest.raises(AssertionError, match="changed after later tasks"):
        check_learner(lambda: Liar(backbone(), recipe=RECIPE))


def test_a_learner_that_draws_from_the_callers_random_state_is_caught():
    class Sloppy(ff.WSN):
        def learn(self, task, checkpoint=None, progress=None):
            super().learn(task, checkpoint, progress)
            torch.rand(1)

    with pytest.raises(AssertionError, match="random state"):
        check_learner(lambda: Sloppy(backbone(), capacity=0.3, recipe=RECIPE))


def test_a_learner_that_accepts_anything_is_caught():
    class Careless(ff.WSN):
        def predict(self, inputs, task):
            return super().predict(inputs, task if task in self.tasks else next(iter(self.tasks)))

    with pytest.raises(AssertionError, match="unknown task"):
        check_learner(lambda: Careless(backbone(), capacity=0.3, recipe=RECIPE))


@pytest.mark.parametrize("method", FSCIL)
def test_a_session_cannot_be_removed_and_the_error_says_so(method):
    learner = ff.METHODS[method](backbone(), **({"recipe": RECIPE} | SETTINGS.get(method, {})))
    first = small_tasks(1)[0]
    learner.learn(first)
    before = learner.predict(first.train[0])
    with pytest.raises(ff.TaskError, match="session 'task 0' cannot be removed"):
        learner.remove("task 0")
    assert torch.equal(learner.predict(first.train[0]), before)
