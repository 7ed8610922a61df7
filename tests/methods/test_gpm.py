"""GPM: which directions it keeps, that gradients and weights stay away from them, and what it freezes."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import forgetfree as ff
from forgetfree.batches import Batch, batches
from forgetfree.engine import Context
from forgetfree.layer_inputs import layers
from forgetfree.methods import gpm
from forgetfree.rng import generator
from forgetfree.testing import small_tasks
from zoo import ZOO

GPM, Finetune = ff.METHODS["gpm"], ff.METHODS["finetune"]
RECIPE = ff.Recipe(epochs=4, batch_size=16, lr=0.05, optimizer="sgd", momentum=0.9)


def backbone(*, bias=False):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16, bias=bias), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 12, bias=bias))


def with_norm():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 12), nn.LayerNorm(12))


def taught(tasks, module=None, recipe=RECIPE, method=GPM, **settings):
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


def assert_orthonormal(bases):
    for name, basis in bases.items():
        torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]), atol=1e-5, rtol=0, msg=name)


def span(basis):
    return basis @ basis.T


def test_gradients_have_no_part_in_the_bases_in_anybodys_loop():
    first, second, _ = small_tasks()
    learner = taught([first], threshold=0.9)
    with learner.learning(second) as session:
        session.loss(Batch(*second.train)).backward()
        for name, weight in session.moving().items():
            if name.startswith("network."):
                basis = learner.bases[name.removeprefix("network.")]
                assert 0 < basis.shape[1] < len(basis)
                assert float((weight.grad @ basis).norm()) < 1e-5 < 1e-3 < float(weight.grad.norm())


@pytest.mark.parametrize("many", [False, True], ids=["M", "M M^T"])
def test_both_ways_to_project_give_the_same(many):
    directions = torch.linalg.qr(torch.randn(9, 9))[0]
    basis = directions[:, :6] if many else directions[:, :3]
    gradient = torch.randn(4, 1, 3, 3)
    project = gpm._Projection(basis)
    assert (project.kept is not None) is many
    flat = gradient.flatten(1)
    torch.testing.assert_close(project(gradient).flatten(1), flat - flat @ basis @ basis.T)


def test_bases_are_orthonormal_and_grow_by_whole_directions():
    learner, widths = GPM(backbone(), recipe=RECIPE, threshold=0.9, seed=3), []
    for task in small_tasks(4):
        before = learner.bases or {}
        learner.learn(task)
        for name, basis in before.items():
            assert torch.equal(learner.bases[name][:, : basis.shape[1]], basis)
        assert_orthonormal(learner.bases)
        widths.append([basis.shape[1] for basis in learner.bases.values()])
    assert widths[0] < widths[-1]
    assert list(learner.memory().training) == ["bases.0.weight", "bases.3.weight"]


def test_a_layer_does_to_what_its_bases_span_what_it_did_before():
    tasks = small_tasks(3)
    learner = taught(tasks[:1], threshold=0.9)
    bases, before = learner.bases, dict(learner.memory().shared)
    for task in tasks[1:]:
        learner.learn(task)
    after = learner.memory().shared
    for name, basis in bases.items():
        moved = after[name] - before[name]
        assert float((moved @ basis).abs().max()) < 1e-5 < 1e-2 < float(moved.abs().max())


def test_without_bases_it_is_finetuning_bit_for_bit():
    tasks = small_tasks()
    loose = taught(tasks, threshold=0.0, threshold_step=0.0)
    assert [basis.shape[1] for basis in loose.bases.values()] == [0, 0]
    plain, tight = taught(tasks, method=Finetune), taught(tasks)
    for name, value in kept(plain).items():
        assert torch.equal(value, kept(loose)[name]), name
    assert not torch.equal(kept(plain)["0.weight"], kept(tight)["0.weight"])


def test_bases_of_all_inputs_freeze_the_trunk():
    tasks = small_tasks()
    learner = taught(tasks[:1], nn.Linear(8, 12), threshold=1.0)
    assert learner.bases["weight"].shape == (8, 8)
    before = dict(learner.memory().shared)
    answers = learner.predict(tasks[0].valid[0], tasks[0].name)
    for task in tasks[1:]:
        learner.learn(task)
    assert all(torch.equal(value, before[name]) for name, value in learner.memory().shared.items())
    assert torch.equal(learner.predict(tasks[0].valid[0], tasks[0].name), answers)


def diagonal(*energies):
    """Inputs whose directions are the axes, with these energies."""
    return torch.diag(torch.tensor(energies).sqrt())


def test_the_first_task_keeps_directions_below_the_threshold_and_later_ones_reach_it():
    """0.5, 0.75, 0.9 and 1 of the energy in one, two, three and four directions."""
    inputs = diagonal(50.0, 25.0, 15.0, 10.0)
    first = {threshold: gpm._first(inputs, threshold).shape[1] for threshold in (0.0, 0.4, 0.6, 0.8, 0.95, 1.0)}
    assert first == {0.0: 0, 0.4: 0, 0.6: 1, 0.8: 2, 0.95: 3, 1.0: 4}
    assert gpm._first(torch.eye(4), 0.5).shape[1] == 1  # not the second, which reaches it
    none = torch.empty(4, 0)
    later = {threshold: gpm._grown(none, inputs, threshold).shape[1] for threshold in (0.0, 0.4, 0.6, 0.8, 1.1)}
    assert later == {0.0: 0, 0.4: 1, 0.6: 2, 0.8: 3, 1.1: 4}
    third = torch.eye(4)[:, 2:3]  # holds 0.15 already
    grown = {threshold: gpm._grown(third, inputs, threshold).shape[1] for threshold in (0.1, 0.2, 0.64, 0.66, 1.0)}
    assert grown == {0.1: 1, 0.2: 2, 0.64: 2, 0.66: 3, 1.0: 4}
    torch.testing.assert_close(span(gpm._grown(third, inputs, 0.64)), torch.diag(torch.tensor([1.0, 0, 1, 0])))


def test_few_samples_and_many_give_the_same_directions():
    few = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    many = torch.cat([few, few, few])  # more rows than columns
    torch.testing.assert_close(span(gpm._first(few, 0.9)), span(gpm._first(many, 0.9)), atol=1e-5, rtol=0)


def test_inputs_that_span_little_fill_no_more_than_they_span():
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) @ torch.eye(8)[:3]
    basis = gpm._first(inputs, 1.0)
    assert basis.shape == (8, 3)
    assert torch.equal(gpm._grown(basis, inputs, 1.5), basis)


def test_the_bases_of_a_convolution_are_those_of_its_unfolded_patches():
    draw = torch.Generator().manual_seed(0)
    task = ff.Task("images", (0, 1), (torch.randn(30, 2, 7, 7, generator=draw), torch.arange(30) % 2))
    module = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
    learner = taught([task], module, threshold=0.8, samples=20, samples_per_layer=(12,))
    drawn = next(batches(task, task.train, 20, order=generator(3, 0, "representation"))).inputs[:12]
    patches = nn.functional.unfold(drawn, 3, stride=2, padding=1).transpose(1, 2).reshape(-1, 18)
    values, directions = torch.linalg.eigh((patches.T @ patches).double())
    count = int((values.flip(0).cumsum(0) < 0.8 * values.sum()).sum())
    expected = directions.flip(1)[:, :count].float()
    assert learner.bases["0.weight"].shape == (18, count)
    torch.testing.assert_close(span(learner.bases["0.weight"]), span(expected), atol=1e-4, rtol=0)
    with learner.learning(replace(task, name="more")) as session:
        session.loss(Batch(*task.train)).backward()
        gradient = session.moving()["network.0.weight"].grad.flatten(1)
        assert float((gradient @ expected).norm()) < 1e-5 < float(gradient.norm())


def test_biases_and_norms_with_their_statistics_are_frozen_after_the_first_task():
    tasks = small_tasks()
    learner = GPM(with_norm(), recipe=RECIPE)
    untouched = dict(learner.memory().shared)
    learner.learn(tasks[0])
    first = {name: value.clone() for name, value in learner.memory().shared.items()}
    assert not any(torch.equal(value, untouched[name]) for name, value in first.items())
    learner.learn(tasks[1])
    second = learner.memory().shared
    assert {name for name in first if not torch.equal(first[name], second[name])} == {"0.weight", "3.weight"}
    assert all(parameter.requires_grad for parameter in learner.network.module.parameters()), "the module's own flags"


class Bounded(nn.Linear):
    """Multiplies its weight by something else than its inputs."""

    def forward(self, rows):
        return super().forward(torch.tanh(rows))


PROJECTED = {
    "residual, a module twice": {"stem.weight", "block.0.weight"},
    "grouped and transposed convolution": {"0.weight", "2.weight"},
    "lstm": set(),
    "transformer encoder": {f"encoder.layers.{n}.linear{m}.weight" for n in (0, 1) for m in (1, 2)},
    "tied weight": {"mix.weight"},
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("kind", PROJECTED)
def test_only_weights_of_layers_that_are_called_move_on(kind):
    entry = ZOO[kind]
    learner = GPM(entry.build(), recipe=RECIPE, threshold=0.5)
    assert set(layers(learner.network.module)) == PROJECTED[kind], "for which thresholds are given one by one"
    learner.learn(entry.task("a"))
    assert set(learner.bases) == PROJECTED[kind]
    before = {name: value.clone() for name, value in learner.network.module.named_parameters()}
    learner.learn(entry.task("b", seed=1))
    moved = {name for name, value in learner.network.module.named_parameters() if not torch.equal(value, before[name])}
    assert moved == PROJECTED[kind]


def test_a_layer_with_a_forward_of_its_own_is_frozen():
    learner = taught(small_tasks(1), nn.Sequential(Bounded(8, 6), nn.Linear(6, 6)))
    assert list(learner.bases) == ["1.weight"]


def test_layers_that_share_a_weight_share_its_bases():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.other.weight = self.one.weight

        def forward(self, inputs):
            return self.other(input=torch.tanh(self.one(inputs)))

    (task,) = small_tasks(1)
    module = Shared()
    learner = taught([task], module, threshold=1.0)
    assert list(learner.bases) == ["one.weight"]
    drawn = next(batches(task, task.train, 125, order=generator(3, 0, "representation"))).inputs
    rows = torch.cat([drawn, torch.tanh(drawn @ learner.network.module.one.weight.T)]).detach()
    learner.threshold = 0.7
    seen = learner._representation(task, Context(3, 0, learner.network.placement, RECIPE))["one.weight"]
    torch.testing.assert_close(seen.T @ seen, rows.T @ rows)


def test_thresholds_and_samples_may_differ_from_layer_to_layer_and_thresholds_grow():
    tasks = small_tasks(2)
    none_first = taught(tasks[:1], threshold=(0.0, 0.9), threshold_step=0.5)
    assert [basis.shape[1] > 0 for basis in none_first.bases.values()] == [False, True]
    none_first.learn(tasks[1])
    assert none_first.bases["0.weight"].shape[1] > 0
    few = taught(tasks[:1], threshold=1.0, samples=40, samples_per_layer=(40, 2))
    assert few.bases["3.weight"].shape[1] <= 2 < few.bases["0.weight"].shape[1]


def test_a_dataset_gives_what_its_tensors_give():
    tasks = small_tasks(2)
    wrapped = [replace(task, train=TensorDataset(*task.train)) for task in tasks]
    assert_same(taught(tasks), taught(wrapped))


def test_a_removed_task_leaves_its_bases():
    tasks = small_tasks(2)
    learner = taught(tasks)
    bases = learner.bases
    for task in tasks:
        learner.remove(task.name)
    assert learner.bases is bases
    with learner.learning(tasks[0]) as session:
        assert "network.3.weight" in session.moving()
        session.loss(Batch(*tasks[0].train)).backward()
        gradient = session.moving()["network.3.weight"].grad
        assert float((gradient @ bases["3.weight"]).norm()) < 1e-5


def test_the_recipe_of_its_own_is_one_that_it_takes():
    assert GPM(backbone()).recipe == ff.Recipe(optimizer="sgd", lr=0.01)
    GPM(backbone(), recipe=ff.Recipe(optimizer=lambda parameters: torch.optim.Adam(parameters)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recipe": ff.Recipe()}, "optimizer='sgd'.*got 'adam'"),
        ({"recipe": ff.Recipe(optimizer="rmsprop")}, "got 'rmsprop'"),
        ({"recipe": replace(RECIPE, weight_decay=0.1)}, "weight_decay=0.*got 0.1"),
        ({"recipe": replace(RECIPE, carry_optimizer=True)}, "carry_optimizer=False"),
        ({"threshold": 97}, r"in \[0, 1\].*got 97. For 97% pass 0.97"),
        ({"threshold": "much"}, "got 'much'"),
        ({"threshold": (0.9, 0.9, 0.9)}, r"3 values for the 2 layers \['0.weight', '3.weight'\]"),
        ({"threshold_step": -0.1}, "got -0.1"),
        ({"samples": 0}, "at least 1; got 0"),
        ({"samples": 50, "samples_per_layer": (20, 60)}, r"from 1 to samples=50; got \(20, 60\)"),
        ({"samples_per_layer": (20,)}, "1 values for the 2 layers"),
    ],
)
def test_values_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ff.InputError, match=said):
        GPM(backbone(), **settings)
