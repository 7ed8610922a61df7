"""F2M: weights shaken on five levels, moved in steps, and never out of their box; a box without width is plain NCM."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import forgetfree as ff
from forgetfree.batches import Batch
from forgetfree.errors import InputError
from forgetfree.methods import F2M, NCM
from forgetfree.methods.f2m import Boxed, at_level, flat_loss, last_layers, means_moved, noise_like
from forgetfree.network import SharedNetwork
from forgetfree.testing import small_tasks

RECIPE = ff.Recipe(epochs=6, batch_size=32, lr=0.02)
QUICK = ff.Recipe(epochs=3, batch_size=512, optimizer="sgd", lr=0.05, momentum=0.9)
BOUND = 0.1
TASKS = small_tasks(3)
FEW = [TASKS[0], *(replace(task, train=(task.train[0][:12], task.train[1][:12]), valid=None) for task in TASKS[1:])]
SHAKEN, STILL = "4.weight", "0.weight"


def backbone(dropout=0.0):
    torch.manual_seed(0)
    first = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(dropout)
    return nn.Sequential(*first, nn.Linear(32, 16), nn.ReLU())


def learned(count=3, kind=F2M, network=None, **settings):
    ours = {"bound": BOUND, "layers": 1} if kind is F2M else {}
    learner = kind(network or backbone(), **({"recipe": RECIPE, "session": QUICK} | ours | settings))
    for task in FEW[:count]:
        learner.learn(task)
    return learner


@pytest.mark.parametrize("settings", [{}, {"variant": "released", "exemplars": 5}])
def test_old_and_new_classes_are_known_after_all_sessions(settings):
    learner, before = learned(seed=5, **settings), 0  # with some seeds the noise shakes so small a network too much
    assert learner.classes == tuple(name for task in TASKS for name in task.classes)
    for task in TASKS:
        inputs, labels = task.valid
        assert float((learner.predict(inputs).argmax(1) == labels + before).float().mean()) > 0.5  # of nine classes
        before += len(task.classes)


def test_a_box_without_width_and_one_draw_is_the_dense_base_bit_for_bit():
    shaken, dense = (
        learned(1, kind, backbone(0.2), **settings) for kind, settings in ((F2M, {"bound": 0.0, "draws": 1}), (NCM, {}))
    )
    for name, weight in dense.network.weights.items():
        assert torch.equal(shaken.network.weights[name], weight)
    own = dense.network.tickets[TASKS[0].name].own
    assert all(torch.equal(shaken.network.tickets[TASKS[0].name].own[name], value) for name, value in own.items())
    for learner in (shaken, dense):
        learner.learn(FEW[1])  # and its sessions only add class means
    assert torch.equal(shaken.predict(TASKS[1].valid[0]), dense.predict(TASKS[1].valid[0]))
    assert not torch.equal(learned(1, draws=1).network.weights[STILL], dense.network.weights[STILL])


@pytest.mark.parametrize("lr", [0.05, 5.0])
def test_no_weight_leaves_its_box_and_each_is_on_one_of_five_levels(lr):
    learner = learned(1, session=replace(QUICK, lr=lr))
    centre = {name: value.clone() for name, value in learner.network.weights.items()}
    for task in FEW[1:]:
        learner.learn(task)
    away = learner.network.weights[SHAKEN].double() - centre[SHAKEN].double()
    assert float(away.abs().max()) <= BOUND / 2
    assert torch.allclose(away / (BOUND / 4), (away / (BOUND / 4)).round(), atol=1e-5)
    assert bool((away != 0).any())
    if lr > 1:
        assert float(away.abs().max()) > 0.49 * BOUND  # the edge was reached


def test_the_edge_of_the_box_is_never_crossed_by_rounding():
    torch.manual_seed(1)
    centre = torch.cat([torch.randn(20_000) * 10.0**power for power in range(-9, 3)] + [torch.full((4,), -0.005)])
    for bound in (0.01, 0.016, 0.0002, 1 / 3):
        crossed = 0
        for level in (-2.0, 2.0):
            there = at_level(torch.full_like(centre, level), centre, bound)
            assert bool(((there.double() - centre.double()).abs() <= bound / 2).all())
            assert bool(
                ((there.double() - centre.double()).abs() >= bound / 2 - 2e-7 * there.abs().clamp_min(bound)).all()
            )
            plain = centre + level * bound / 4
            crossed += int(((plain.double() - centre.double()).abs() > bound / 2).sum())
        assert crossed  # plain addition does cross it
    assert torch.equal(at_level(torch.zeros_like(centre), centre, 0.01), centre)


def test_steps_are_rounded_to_a_quarter_of_the_box():
    network = SharedNetwork(backbone())
    network.keep("base", network.trainable_view(), network.everything)
    centre = {SHAKEN: network.weights[SHAKEN]}
    every = {SHAKEN: torch.ones_like(centre[SHAKEN], dtype=torch.bool)}
    boxed = Boxed(network.view_of("base", every), network.everything, centre, 0.4)
    (weight,) = boxed.parameters()

    def level_after(move):
        with torch.no_grad():
            weight.add_(move)
        found = ((boxed.settled().weights()[SHAKEN] - centre[SHAKEN]) / 0.1).round().unique()
        assert len(found) == 1
        return int(found)

    assert level_after(0.04) == 0
    assert level_after(0.04) == 0  # less than half a step is lost, it does not add up
    assert level_after(0.06) == 1
    assert level_after(0.0) == 1
    assert level_after(5.0) == 2
    assert level_after(-0.34) == -1
    kept = {name: value.clone() for name, value in boxed.state_dict().items()}
    assert level_after(-1.0) == -2
    boxed.load_state_dict(kept)
    assert level_after(0.0) == -1


def test_sessions_move_nothing_but_the_last_layers():
    learner = learned(1)
    weights, own = dict(learner.network.weights), dict(learner.network.tickets[TASKS[0].name].own)
    learner.learn(FEW[1])
    assert torch.equal(learner.network.weights[STILL], weights[STILL])
    assert not torch.equal(learner.network.weights[SHAKEN], weights[SHAKEN])
    assert torch.equal(learner.centre[SHAKEN], weights[SHAKEN])
    still = learner.network.tickets[TASKS[0].name].own
    assert own.keys() == still.keys()
    assert all(torch.equal(still[name], own[name]) for name in own)


def test_noise_has_five_levels_and_is_added_to_what_learns():
    torch.manual_seed(5)
    weight = torch.zeros(2000)
    levels = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]) * (0.01 / 4)
    several = [noise_like(weight, 0.01) for _ in range(20)]
    assert torch.equal(torch.cat(several).unique(), levels)
    means = [float(noise.mean()) for noise in several]
    assert max(means) - min(means) > 0.01 / 4  # of several distributions
    network = SharedNetwork(nn.Linear(3, 2, bias=False))
    view, masks, inputs = network.trainable_view(), network.everything, torch.randn(4, 3)
    noise = {"weight": torch.full((2, 3), 0.5)}
    assert torch.allclose(view(inputs, masks, noise), inputs @ (network.weights["weight"] + 0.5).T)
    assert torch.allclose(view(inputs, masks), inputs @ network.weights["weight"].T)
    view(inputs, masks, noise).sum().backward()
    (parameter,) = view.parameters()
    assert torch.allclose(parameter.grad, inputs.sum(0).expand(2, 3))


def test_the_loss_is_the_mean_and_twice_the_standard_deviation():
    losses = torch.tensor([1.0, 3.0], requires_grad=True)
    assert float(flat_loss(losses, 2.0).detach()) == pytest.approx(2 + 2 * 2**0.5)
    equal = torch.ones(2, requires_grad=True)
    flat_loss(equal, 2.0).backward()
    assert torch.allclose(equal.grad, torch.full((2,), 0.5))
    assert float(flat_loss(torch.tensor([4.0]), 2.0)) == 4
    calm, moved = torch.zeros(3, 2), torch.tensor([[1.0, 1.0], [3.0, 1.0], [0.0, 5.0]])
    assert float(means_moved(calm, moved, torch.tensor([0, 0, 1]))) == pytest.approx(((4 + 1) + 25) / 2)


def test_class_means_that_move_have_a_gradient_in_the_papers_variant_only():
    def base(**settings):
        return learned(1, std_weight=0.0, **settings).network.weights[SHAKEN]

    without = base(prototype_fixing=0.0)
    assert torch.equal(base(variant="released"), without)
    assert not torch.equal(base(variant="paper"), without)


def test_a_session_learns_by_euclidean_distances_to_all_class_means():
    learner = learned(1)
    old = next(iter(learner.engine.heads.kept.values())).means
    inputs, labels = FEW[1].train
    features = learner.task_modules(TASKS[0].name)["backbone"](inputs)
    new = torch.stack([features[labels == label].mean(0) for label in range(len(TASKS[1].classes))])
    distance = (features[:, None] - torch.cat([old, new])).square().sum(2)
    expected = nn.functional.cross_entropy(-distance, labels + len(old))
    with learner.learning(FEW[1]) as session:
        found = session.loss(Batch(inputs, labels + len(old)))
    assert float(found.detach()) == pytest.approx(float(expected), rel=1e-4)


def test_shortcuts_and_linear_layers_are_not_among_the_last_convolutions():
    shapes = {"a": (4, 3, 3, 3), "b": (4, 4, 3, 3), "shortcut": (4, 4, 1, 1), "c": (4, 4, 3, 3), "fc": (5, 4)}
    weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
    assert last_layers(weights, 2) == ["b", "c"]
    assert last_layers(weights, 9) == ["a", "b", "c"]
    assert last_layers({"one": torch.zeros(2, 2), "two": torch.zeros(2, 2)}, 1) == ["two"]


def test_the_centre_and_exemplars_are_counted():
    learner = learned(2, exemplars=3)
    training = learner.memory().training
    new = range(len(TASKS[0].classes), len(learner.classes))
    assert set(training) == {f"centre.{SHAKEN}", *(f"exemplars.{label}" for label in new)}
    assert not learned(1, bound=0.0).memory().training


@pytest.mark.parametrize(
    "settings",
    [{"variant": "mine"}, {"layers": 0}, {"layers": 1.5}, {"bound": -0.1}, {"draws": 0}, {"std_weight": -1.0},
     {"prototype_fixing": "1"}, {"exemplars": -1}],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        F2M(backbone(), **settings)
