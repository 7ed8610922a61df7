"""EWC: what its Fisher information and its penalty are, and that it is finetuning with nothing else changed."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import forgetfree as ff
from forgetfree.batches import Batch, batches
from forgetfree.rng import generator
from forgetfree.testing import small_tasks

EWC, Finetune = ff.METHODS["ewc"], ff.METHODS["finetune"]
RECIPE = ff.Recipe(epochs=4, batch_size=16, lr=0.02, optimizer="sgd", momentum=0.9)


def backbone(*, norm=True):
    """Dropout draws and batch norm takes statistics: an extra pass over the data would be seen in both."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)] if norm else [nn.ReLU()]
        return nn.Sequential(nn.Linear(8, 16), *layers, nn.Linear(16, 12))


def taught(tasks, module=None, recipe=RECIPE, method=EWC, **settings):
    learner = method(module or backbone(), recipe=recipe, seed=3, **settings)
    for task in tasks:
        learner.learn(task)
    return learner


def kept(learner):
    memory = learner.memory()
    heads = {f"{task} {name}": value for task, head in memory.heads.items() for name, value in head.items()}
    return {**memory.shared, **heads, **memory.training}


def assert_same(one, other):
    one, other = kept(one), kept(other)
    assert list(one) == list(other)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_strength_it_is_finetuning_bit_for_bit(optimizer):
    recipe, tasks = replace(RECIPE, optimizer=optimizer), small_tasks()
    plain = taught(tasks, recipe=recipe, method=Finetune)
    loose, tight = (taught(tasks, recipe=recipe, reg_weight=strength) for strength in (0.0, 100.0))
    for name, value in kept(plain).items():
        assert torch.equal(value, kept(loose)[name]), name
    assert not torch.equal(kept(plain)["0.weight"], kept(tight)["0.weight"])


def test_the_fisher_information_is_the_mean_of_squared_batch_gradients():
    """Of a linear model with squared loss, worked out by hand."""
    draw = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(10, 3, generator=draw), torch.randn(10, 2, generator=draw)
    task = ff.Task("line", (), (inputs, labels), loss="mse", outputs=2)
    learner = taught([task], nn.Linear(3, 4), fisher_batch=4)
    layer, head = learner.network.module, learner.task_modules("line")["head"]
    expected, count = torch.zeros(4, 3), 0
    for batch in batches(task, task.train, 4, order=generator(3, 0, "fisher order")):
        answer = head(layer(batch.inputs))
        error = 2 * (answer - batch.labels) / answer.numel()
        expected, count = expected + ((error @ head.weight).T @ batch.inputs).square(), count + 1
    assert count == 3
    torch.testing.assert_close(learner.fisher["weight"], (expected / count).detach())


def test_the_fisher_information_is_never_negative_and_only_of_weights_that_learn():
    module = backbone()
    module[4].bias.requires_grad_(False)
    learner = taught(small_tasks(), module)
    assert list(learner.fisher) == ["0.weight", "0.bias", "1.weight", "1.bias", "4.weight"]
    for value in learner.fisher.values():
        assert value.min() >= 0
        assert value.max() > 0
    assert list(learner.memory().training) == [f"fisher.{name}" for name in learner.fisher]


def test_every_task_counts_the_same_in_the_merged_fisher_information(monkeypatch):
    fresh = iter([6.0, 2.0, 1.0])
    monkeypatch.setattr("forgetfree.methods.ewc.fisher_of", lambda *_: {"0.weight": torch.full((16, 8), next(fresh))})
    learner = EWC(backbone(), recipe=RECIPE, reg_weight=0.0)
    for task, mean in zip(small_tasks(), [6.0, 4.0, 3.0], strict=True):
        learner.learn(task)
        assert learner.fisher["0.weight"].unique().tolist() == [mean]


def test_at_the_first_step_of_a_task_nothing_pulls_and_later_it_pulls_by_the_formula():
    first, second, _ = small_tasks()
    learner = taught([first], backbone(norm=False), reg_weight=7.0)
    with learner.learning(second) as session:
        batch = Batch(*second.train)
        plain = nn.functional.cross_entropy(session(batch.inputs), batch.labels)
        assert torch.equal(session.loss(batch), plain)
        weights = {name: weight for name, weight in session.moving().items() if name.startswith("network.")}
        with_penalty = torch.autograd.grad(session.loss(batch), list(weights.values()))
        without = torch.autograd.grad(plain, list(weights.values()))
        assert all(map(torch.equal, with_penalty, without))
        with torch.no_grad():
            for weight in weights.values():
                weight += 0.5
        penalty = session.loss(batch) - nn.functional.cross_entropy(session(batch.inputs), batch.labels)
        expected = 7.0 / 2 * sum(float(value.sum()) for value in learner.fisher.values()) * 0.5**2
        assert penalty.item() == pytest.approx(expected, rel=1e-3)


def test_a_huge_strength_holds_the_weights_that_matter_and_the_first_task():
    tasks = small_tasks(3, samples=96)
    recipe = replace(RECIPE, epochs=8, lr=1e-3, clip=1.0)
    held, free = (taught(tasks[:1], backbone(norm=False), recipe, reg_weight=strength) for strength in (1e6, 0.0))
    before, inputs = held.predict(tasks[0].valid[0], tasks[0].name), tasks[0].valid[0]
    for learner in (held, free):
        for task in tasks[1:]:
            learner.learn(task)
    moved = [float((learner.predict(inputs, tasks[0].name) - before).abs().max()) for learner in (held, free)]
    assert moved[0] < 0.3 * moved[1]
    assert torch.equal(held.predict(inputs, tasks[0].name).argmax(1), before.argmax(1))


def test_a_dataset_gives_what_its_tensors_give():
    tasks = small_tasks(2)
    wrapped = [replace(task, train=TensorDataset(*task.train)) for task in tasks]
    assert_same(taught(tasks), taught(wrapped))


def test_a_backbone_that_does_not_learn_has_no_fisher_information():
    learner = taught(small_tasks(), backbone().requires_grad_(False))
    assert learner.fisher == {}


class Stop(Exception):
    pass


def test_a_checkpoint_of_another_pull_is_refused(tmp_path):
    first, second, _ = small_tasks()

    def stop(event):
        raise Stop

    with pytest.raises(Stop):
        taught([first]).learn(second, checkpoint=tmp_path / "second", progress=stop)
    with pytest.raises(ff.InputError, match=r"reg_weight: 5000\.0 there, 1\.0 here"):
        taught([first], reg_weight=1.0).learn(second, checkpoint=tmp_path / "second")


def test_a_removed_task_leaves_its_fisher_information_and_its_weight_in_the_mean():
    tasks = small_tasks()
    learner, whole = taught(tasks[:2]), taught(tasks[:2])
    learner.remove(tasks[1].name)
    assert torch.equal(learner.fisher["0.weight"], whole.fisher["0.weight"])
    learner.learn(replace(tasks[2], name="another"))
    assert learner.merged == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"reg_weight": -1.0}, "at least 0.*got -1.0"),
        ({"reg_weight": float("nan")}, "got nan"),
        ({"reg_weight": float("inf")}, "got inf"),
        ({"reg_weight": "high"}, "got 'high'"),
        ({"fisher_batch": 0}, "at least 1; got 0"),
        ({"fisher_batch": 2.5}, "got 2.5"),
    ],
)
def test_values_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ff.InputError, match=said):
        EWC(backbone(), **settings)


@pytest.mark.parametrize("counted", [True, False])
def test_an_epoch_is_chosen_with_the_penalty_or_without(counted):
    first, second, _ = small_tasks()
    learner = taught([first], backbone(norm=False), reg_weight=7.0, validate_penalty=counted)
    with learner.learning(second) as session:
        with torch.no_grad():
            for weight in session.model.network.parameters():
                weight += 0.5
        batch = Batch(*second.valid)
        session.train(False)
        scores = session(batch.inputs)
        plain, penalty = nn.functional.cross_entropy(scores, batch.labels), session.model.penalty()
        assert penalty > 0
        assert torch.equal(session.criterion(batch, scores), plain + penalty if counted else plain)
