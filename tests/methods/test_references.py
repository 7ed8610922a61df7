"""Finetune, single task and multitask: the references around WSN, and how they relate to each other."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import forgetfree as ff
from forgetfree.methods.multitask import mixed_task
from forgetfree.testing import small_tasks

Finetune, SingleTask, Multitask = (ff.METHODS[name] for name in ("finetune", "single_task", "multitask"))
RECIPE = ff.Recipe(epochs=4, batch_size=16, lr=0.02)


def backbone(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU())


def answers(learner, task):
    return learner.predict(task.valid[0], task.name)


def test_finetune_changes_the_answers_of_earlier_tasks():
    first, second, _ = small_tasks()
    learner = Finetune(backbone(), recipe=RECIPE)
    learner.learn(first)
    before = answers(learner, first)
    learner.learn(second)
    assert not torch.equal(before, answers(learner, first))


def test_single_task_nets_do_not_depend_on_the_tasks_before_them_except_for_their_seed():
    tasks = small_tasks()
    learner = SingleTask(backbone(), recipe=RECIPE)
    for task in tasks:
        learner.learn(task)
    weights = [network[0].weight for network in learner.network.networks.values()]
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(SingleTaskOf(tasks[:1]).network.networks[tasks[0].name][0].weight, weights[0])


def SingleTaskOf(tasks):
    learner = SingleTask(backbone(seed=5), recipe=RECIPE)  # fresh nets are drawn anew: the wrapped values do not matter
    for task in tasks:
        learner.learn(task)
    return learner


def test_multitask_on_one_task_learns_what_finetune_learns():
    (task,) = small_tasks(1)
    joint, alone = Multitask(backbone(), recipe=RECIPE), Finetune(backbone(), recipe=RECIPE)
    joint.learn(task)
    joint.finish()
    alone.learn(task)
    torch.testing.assert_close(answers(joint, task), answers(alone, task))


def test_multitask_takes_each_sample_to_the_head_of_its_own_task():
    tasks = small_tasks(3, samples=96)
    learner = Multitask(backbone(), recipe=ff.Recipe(epochs=30, batch_size=32, lr=0.01))
    for task in tasks:
        learner.learn(task)
    learner.finish()
    for task in tasks:
        accuracy = (answers(learner, task).argmax(1) == task.valid[1]).float().mean()
        assert accuracy > 0.95, (task.name, accuracy)


def test_multitask_augments_each_image_as_its_own_task_asks_for():
    first, second, _ = small_tasks()
    tasks = [replace(first, augment=lambda inputs, _: inputs + 1), second]
    mixed = mixed_task(tasks)
    images, owners = mixed.train[0]
    changed, same = mixed.augment((images, owners), torch.Generator())
    assert torch.equal(same, owners)
    assert torch.equal(changed, images + (owners == 0).float()[:, None])
    assert mixed_task([first, second]).augment is None


def test_multitask_answers_only_after_finish():
    (task,) = small_tasks(1)
    learner = Multitask(backbone(), recipe=RECIPE)
    with pytest.raises(ff.TaskError, match="nothing to finish"):
        learner.finish()
    learner.learn(task)
    with pytest.raises(ff.TaskError, match="call finish"):
        answers(learner, task)


def test_a_fresh_network_needs_layers_that_can_be_drawn_anew():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4))

        def forward(self, x):
            return x @ self.weight

    learner = SingleTask(Own(), recipe=RECIPE)
    with pytest.raises(ff.ModuleError, match="reset_parameters"):
        learner.learn(small_tasks(1)[0])
    assert not learner.tasks
