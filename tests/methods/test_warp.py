"""WaRP: a rotated basis changes no answer; frozen coefficients stay, all others may move; with all frozen it is NCM."""

import pytest
import torch
from torch import nn

import forgetfree as ff
from few_shots import accuracies, assert_same, backbone, sessions
from forgetfree.batches import Batch
from forgetfree.errors import ForgetfreeError, InputError
from forgetfree.heads import HEADS
from forgetfree.layer_inputs import rows
from forgetfree.methods import NCM, WaRP
from forgetfree.methods.warp import importance_of

RECIPE = ff.Recipe(epochs=8, batch_size=32, lr=0.02)
TASKS, TESTS = sessions(2)
INPUTS = TESTS[0][0]


def images(count=2):
    """Sessions of small images, and a network with convolutions, in groups too, that takes them."""
    draw = torch.Generator().manual_seed(0)
    tasks = []
    for t, shots in enumerate([40, 9, 9][:count]):
        data = torch.randn(shots, 2, 5, 5, generator=draw), torch.arange(shots) % 3
        tasks.append(ff.Task(f"s{t}", tuple(f"{t}/{c}" for c in range(3)), data))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        grouped = nn.Conv2d(4, 6, 3, groups=2, padding=1)
        return tasks, nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), grouped, nn.Flatten())


def learned(count=3, kind=WaRP, tasks=TASKS, module=None, **settings):
    learner = kind(module or backbone(), **({"recipe": RECIPE} | settings))
    for task in tasks[:count]:
        learner.learn(task)
    return learner


def coefficients(learner, weights=None):
    """C = W Q of every layer."""
    weights = weights or learner.network.weights
    return {name: weights[name].flatten(1) @ basis for name, basis in learner.bases.items()}


def test_old_and_new_classes_are_known_after_all_sessions():
    learner = learned()
    assert learner.classes == tuple(name for task in TASKS for name in task.classes)
    assert min(accuracies(learner, TESTS)) > 0.7  # of 22 classes


@pytest.mark.parametrize("kind", ["rows", "images"])
def test_a_rotation_leaves_every_answer_as_it_was(kind):
    tasks, module = (TASKS, backbone()) if kind == "rows" else images()
    learner = learned(1, tasks=tasks, module=module)
    network, turned = learner.task_modules(tasks[0].name)["backbone"], dict(learner.network.weights)
    inputs = tasks[1].train[0]
    before = network(inputs)
    for name, c in coefficients(learner).items():
        basis = learner.bases[name]
        torch.testing.assert_close(basis.T @ basis, torch.eye(len(basis)), atol=1e-5, rtol=0)
        turned[name] = (c @ basis.T).view_as(turned[name])
        assert torch.allclose(turned[name], learner.network.weights[name], atol=1e-5)
        network.get_parameter(name).data.copy_(turned[name])
    assert list(learner.bases) == list(learner.network.weights)
    assert torch.allclose(network(inputs), before, atol=1e-5)


def test_a_basis_has_the_directions_of_what_its_layer_takes_in_the_strongest_first():
    tasks, module = images()
    learner = learned(1, tasks=tasks, module=module)
    inputs, network = tasks[0].train[0], learner.task_modules("s0")["backbone"]
    for name, at in {"0.weight": 0, "3.weight": 3}.items():
        seen = rows(network[at], network[:at](inputs)).double()
        along = (seen @ learner.bases[name].double()).square().sum(0)  # the energy of every direction
        assert bool((along.diff() <= 1e-4 * along.sum()).all())
        values = torch.linalg.eigvalsh(seen.T @ seen).flip(0)
        torch.testing.assert_close(along, values, rtol=1e-4, atol=1e-4 * float(values[0]))


@pytest.mark.parametrize("heads", ["euclidean", "lda"])
def test_when_all_is_frozen_it_is_the_nearest_class_mean_bit_for_bit(heads):
    ours, plain, moved = (
        learned(kind=kind, heads=HEADS[heads], **settings)
        for kind, settings in ((WaRP, {"keep": 1.0}), (NCM, {}), (WaRP, {"keep": 0.9}))
    )
    assert torch.equal(ours.predict(INPUTS), plain.predict(INPUTS))
    assert not torch.equal(moved.predict(INPUTS), plain.predict(INPUTS))


def test_frozen_coefficients_stay_where_they_are_and_others_move():
    tasks, module = images(3)
    learner = learned(1, tasks=tasks, module=module, keep=0.3, session=ff.Recipe(epochs=9, optimizer="adam", lr=0.05))
    own = dict(learner.network.tickets["s0"].own)
    for task in tasks[1:]:
        before, frozen = coefficients(learner), learner.frozen
        learner.learn(task)
        for name, c in coefficients(learner).items():
            still = frozen[name]
            assert torch.allclose(c[still], before[name][still], atol=1e-5)
            assert float((c - before[name])[~still].abs().max()) > 1e-2
    now = learner.network.tickets["s0"].own
    assert all(torch.equal(now[name], value) for name, value in own.items())


def test_a_session_freezes_the_coefficients_that_matter_most_to_it_and_frees_none():
    learner = learned(1, keep=0.2)
    for task in TASKS[1:]:
        before = learner.frozen
        learner.learn(task)
        for name, frozen in learner.frozen.items():
            size = frozen.numel()
            assert bool((frozen | ~before[name]).all())
            assert round(0.2 * size) <= int(frozen.sum()) <= int(before[name].sum()) + round(0.2 * size)
    first = learned(1, keep=0.2).frozen
    assert all(int(mask.sum()) == round(0.2 * mask.numel()) for mask in first.values())
    assert any(int(mask.sum()) > int(first[name].sum()) for name, mask in learner.frozen.items())


def test_importance_is_the_size_of_the_slope_along_a_coefficient():
    learner = learned(1)
    network, (inputs, labels) = learner.learnable(TASKS[0].name), TASKS[0].train

    def loss(features, labels):
        return nn.functional.cross_entropy(features, labels)

    batches = [Batch(*part) for part in zip(inputs.split(60), labels.split(60), strict=True)]
    found = importance_of(network, learner.bases, loss, iter(batches))["3.weight"]
    basis, weight = learner.bases["3.weight"].double(), network.double().get_parameter("3.weight")
    for output, direction in ((0, 0), (2, 1), (2, 5), (7, 3)):
        step, slopes = 1e-6 * basis[:, direction], []
        for batch in batches:
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    weight[output] += sign * step
                    values.append(float(loss(network(batch.inputs.double()), batch.labels)))
                    weight[output] -= sign * step
            slopes.append((values[0] - values[1]) / 2e-6)
        assert float(found[output, direction]) == pytest.approx(sum(map(abs, slopes)), rel=1e-3)


def test_bases_come_from_as_many_samples_as_said_and_from_all_if_not_said():
    few, more, every = learned(1, samples=5), learned(1, samples=48), learned(1)
    for learner, count in ((few, 5), (more, 48), (every, len(TASKS[0].train[0]))):
        context = learner._context(TASKS[0].name)
        assert sum(len(batch) for batch in learner.looked_at(TASKS[0], context)) == count
    assert not torch.allclose(few.bases["0.weight"], every.bases["0.weight"], atol=1e-2)
    assert torch.equal(few.network.weights["0.weight"], every.network.weights["0.weight"])


def test_the_network_that_is_kept_is_the_one_that_was_trained():
    learner = learned(1)
    with learner.learning(TASKS[1]) as session:
        for move in session.parameters():
            move.data.normal_(0, 0.01)
        expected = session.model.eval()(INPUTS)
        session.state()  # which settles what there is, once more
        session.keep()
    assert torch.equal(learner.task_modules(TASKS[1].name)["backbone"](INPUTS), expected)


def test_its_base_network_is_that_of_frozen_class_means(tmp_path):
    plain, ours = NCM(backbone(), recipe=RECIPE), WaRP(backbone(), recipe=RECIPE, keep=0.4)
    assert ours.base_name == plain.base_name == "dense"
    plain.learn(TASKS[0], checkpoint=tmp_path / "base")
    ours.learn(TASKS[0], checkpoint=tmp_path / "base")
    assert all(torch.equal(ours.network.weights[name], weight) for name, weight in plain.network.weights.items())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_sessions_are_learned_in_other_types_too(kind):
    learner = learned(2, module=backbone().to(kind))
    assert bool(learner.predict(INPUTS).isfinite().all())
    assert {basis.dtype for basis in learner.bases.values()} == {torch.promote_types(kind, torch.float32)}


def test_what_cannot_be_rotated_stands_still():
    class Bounded(nn.Linear):
        def forward(self, given):
            return super().forward(torch.tanh(given))

    torch.manual_seed(0)
    learner = learned(1, module=nn.Sequential(Bounded(8, 12), nn.ReLU(), nn.Linear(12, 8)))
    before = dict(learner.network.weights)
    learner.learn(TASKS[1])
    assert list(learner.bases) == ["2.weight"]
    assert torch.equal(learner.network.weights["0.weight"], before["0.weight"])
    assert not torch.equal(learner.network.weights["2.weight"], before["2.weight"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kept: kept.update(frozen={}),
        lambda kept: kept.update(bases=3),
        lambda kept: kept["bases"].update({"0.weight": torch.eye(7)}),
        lambda kept: kept["bases"].update({"0.weight": "none"}),
        lambda kept: kept["bases"].update({"nowhere": torch.eye(8)}),
        lambda kept: kept["frozen"].update({"3.weight": kept["frozen"]["3.weight"].float()}),
        lambda kept: kept["frozen"].update({"3.weight": kept["frozen"]["3.weight"].T.contiguous()}),
    ],
)
def test_stored_bases_that_do_not_fit_are_refused(spoil):
    learner = learned(2)
    stored = learner.to_state()
    assert_same(WaRP.from_state(backbone(), stored, heads=learner.heads), learner)
    spoil(stored.training)
    with pytest.raises(ForgetfreeError):
        WaRP.from_state(backbone(), stored, heads=learner.heads)


@pytest.mark.parametrize("settings", [{"keep": 1.5}, {"keep": -0.1}, {"samples": 0}, {"temperature": 0.0}])
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        WaRP(backbone(), **settings)
