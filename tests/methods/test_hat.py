"""HAT: gates open and close units, what used units share keeps still, and hard gates forget nothing at all."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import forgetfree as ff
from forgetfree.batches import Batch
from forgetfree.lab.backbones.mlp import mlp
from forgetfree.lab.backbones.resnet import resnet
from forgetfree.methods.hat import HAT, Gates
from forgetfree.rng import generator
from forgetfree.testing import small_tasks
from forgetfree.units import wiring
from snapshots import backbone, pair, task
from test_archive import raw, same_bits
from zoo import ZOO

RECIPE = ff.Recipe(epochs=4, batch_size=16, lr=0.05, optimizer="sgd")
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(6, 8, 3, bias=False), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 2 * 2, 10), nn.ReLU(),
    )  # fmt: skip


BACKBONES: dict[str, Any] = {
    "mlp": (lambda: mlp(inputs=8, hidden=(12, 12), bias=True), (8,)),
    "lenet": (lenet, (1, 8, 8)),
    "resnet": (lambda: resnet((6, 8), blocks=2, pool=2), (3, 8, 8)),
    "resnet with norms of the batch": (lambda: resnet((6, 8), blocks=1, pool=2, norm="batch"), (3, 8, 8)),
}


def built(kind: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BACKBONES[kind][0]()


def images(kind: str, seed: int, name: str | None = None) -> ff.Task:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(48) % 3
    centres = torch.randn(3, *BACKBONES[kind][1], generator=draw)
    inputs = centres[labels] + 0.5 * torch.randn(48, *BACKBONES[kind][1], generator=draw)
    return ff.Task(name or f"task {seed}", (0, 1, 2), (inputs, labels))


def mean_gate(learner: HAT, name: str) -> float:
    return float(torch.cat(list(learner.gates(name).values())).mean())


# ---- what keeps still


@pytest.mark.parametrize("kind", BACKBONES)
def test_with_hard_gates_old_answers_keep_their_bits(kind: str) -> None:
    learner = HAT(built(kind), recipe=RECIPE, hard=True, sparsity=0.1)
    tasks = [images(kind, seed) for seed in range(3)]
    right: dict[str, Tensor] = {}
    for one in tasks:
        before = {name: value.clone() for name, value in learner.memory().shared.items()}
        learner.learn(one)
        assert any(not torch.equal(value, before[name]) for name, value in learner.memory().shared.items())
        right[one.name] = learner.predict(one.train[0], one.name)
    for one in tasks:
        assert same_bits(learner.predict(one.train[0], one.name), right[one.name])
    assert all(found.ok for found in learner.verify())
    assert not torch.equal(right[tasks[0].name], right[tasks[1].name])


@pytest.mark.parametrize("kind", ZOO)
def test_any_module_keeps_the_bits_of_old_answers_with_hard_gates(kind: str) -> None:
    entry = ZOO[kind]
    learner = HAT(entry.build(), recipe=RECIPE, hard=True, sparsity=0.1)
    batch, right = entry.inputs(7, seed=99), {}
    for seed, name in enumerate("abc"):
        learner.learn(entry.task(name, seed=seed))
        right[name] = learner.predict(batch, name)
    for name in "abc":
        assert same_bits(learner.predict(batch, name), right[name])


@pytest.mark.parametrize("kind", BACKBONES)
def test_gradients_between_used_units_are_exactly_zero_and_others_are_not(kind: str) -> None:
    learner = HAT(built(kind), recipe=RECIPE, hard=True, sparsity=0.1)
    learner.learn(images(kind, 0))
    used, wired = learner.used(), learner.wiring
    free = 0
    with learner.learning(images(kind, 1)) as session:
        session.through = 0.0  # all gates half open: every weight would move
        F.cross_entropy(session(images(kind, 1).train[0]), images(kind, 1).train[1]).backward()
        gradients = {name: value.grad for name, value in session.moving().items()}
    for layer in wired.units:
        gradient, into = gradients[f"network.{layer}.weight"], wired.into(layer, used)
        sources = torch.ones(gradient.shape[1]) if into is None else into
        both = torch.outer(used[layer], sources) == 1
        assert (gradient.flatten(2).abs().amax(2) if gradient.dim() > 2 else gradient.abs())[both].eq(0).all()
        free += int((gradient != 0).sum())
        if f"network.{layer}.bias" in gradients:
            assert gradients[f"network.{layer}.bias"][used[layer] == 1].eq(0).all()
    assert free > 0


def test_soft_gates_scale_gradients_by_what_is_left() -> None:
    learner = HAT(built("mlp"), recipe=RECIPE)
    learner.learn(images("mlp", 0))
    ticket = learner.network.tickets["task 0"]
    half = {name: torch.full_like(value, 0.25) if name == "gates.3" else value for name, value in ticket.own.items()}
    half["gates.1"] = torch.linspace(0, 1, 12)
    grown = []
    for own in ({name: torch.zeros_like(value) for name, value in half.items()}, half):
        learner.network._tickets = {"task 0": replace(ticket, own=own)}
        with learner.learning(images("mlp", 1)) as session:
            session.through = 0.5
            session(images("mlp", 1).train[0]).sum().backward()
            grown.append(session.moving()["network.3.weight"].grad)
    torch.testing.assert_close(grown[1], grown[0] * (1 - torch.linspace(0, 1, 12).clamp_max(0.25)))


def test_gates_norms_and_head_of_a_task_stay_as_they_are() -> None:
    learner = HAT(backbone(), recipe=RECIPE)
    learner.learn(task("a"))
    own = {name: raw(value) for name, value in learner.network.tickets["a"].own.items()}
    assert {"gates.0", "gates.4", "1.weight", "1.running_mean"} <= own.keys()
    learner.learn(task("b", 1))
    assert {name: raw(value) for name, value in learner.network.tickets["a"].own.items()} == own
    assert not torch.equal(learner.gates("a")["0"], learner.gates("b")["0"])


def test_embeddings_of_old_tasks_are_no_parameters() -> None:
    learner = HAT(backbone(), recipe=RECIPE)
    learner.learn(task("a"))
    with learner.learning(task("b", 1)) as session:
        names = set(session.moving())
    assert {name for name in names if name.startswith("gates")} == {"gates.embedding"}


def test_what_has_no_gate_is_learned_once() -> None:
    entry = ZOO["tied weight"]
    learner = HAT(entry.build(), recipe=RECIPE)
    start = learner.network.module.embedding.weight.clone()
    learner.learn(entry.task("a"))
    kept = learner.network.module.embedding.weight.clone()
    assert not torch.equal(kept, start)
    with learner.learning(entry.task("b", seed=1)) as session:
        assert not [name for name in session.moving() if "embedding.weight" in name]
    learner.learn(entry.task("b", seed=1))
    assert torch.equal(learner.network.module.embedding.weight, kept)


def test_every_task_starts_from_the_wrapped_norms() -> None:
    learner = HAT(backbone(), recipe=RECIPE)
    learner.learn(task("a"))
    with learner.learning(task("b", 1)) as session:
        state = session.state()
    assert torch.equal(state["network.1.running_mean"], torch.zeros(12))
    assert torch.equal(state["network.1.weight"], torch.ones(12))


# ---- gates


def test_without_a_penalty_more_units_are_used() -> None:
    tasks = small_tasks(2)
    learners = {}
    for sparsity in (0.0, 0.75):
        learners[sparsity] = HAT(mlp(inputs=8, hidden=(50, 50)), recipe=replace(RECIPE, epochs=20), sparsity=sparsity)
        for one in tasks:
            learners[sparsity].learn(one)
    for one in tasks:
        assert mean_gate(learners[0.0], one.name) > mean_gate(learners[0.75], one.name) + 0.1


def test_the_penalty_is_that_of_the_paper() -> None:
    learner = HAT(mlp(inputs=8, hidden=(5, 4)), recipe=RECIPE, sparsity=0.5)
    first, second, _ = small_tasks()
    for one in (first, second):
        used = torch.cat(list(learner.used().values()))
        with learner.learning(one) as session:
            session.through = 0.3
            outputs = session(one.train[0])
            penalty = session.loss(ff.batches.Batch(*one.train)) - F.cross_entropy(outputs, one.train[1])
            s = 1 / 400 + (400 - 1 / 400) * 0.3
            gates = torch.sigmoid(s * session.moving()["gates.embedding"])
        torch.testing.assert_close(penalty, 0.5 * (gates * (1 - used)).sum() / (1 - used).sum())
        if one is first:
            torch.testing.assert_close(penalty, 0.5 * gates.mean())
        learner.learn(one)


def test_where_all_units_are_used_nothing_is_to_be_paid() -> None:
    learner = HAT(mlp(inputs=8, hidden=(5, 4)), recipe=RECIPE)
    first, second, _ = small_tasks()
    learner.learn(first)
    full = {name: torch.ones_like(value) for name, value in learner.network.tickets[first.name].own.items()}
    learner.network._tickets = {first.name: replace(learner.network.tickets[first.name], own=full)}
    learner.learn(second)
    assert list(learner.tasks) == [first.name, second.name]


def test_steepness_grows_within_an_epoch_to_its_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    forward = Gates.forward
    monkeypatch.setattr(Gates, "forward", lambda self, s: (seen.append(s), forward(self, s))[1])
    HAT(backbone(), recipe=replace(RECIPE, epochs=2), smax=100).learn(task("a"))
    assert seen == pytest.approx(2 * [0.01, 0.01 + 99.99 / 2, 100])  # 40 samples in batches of 16


def test_the_gradient_of_an_embedding_is_compensated_for_its_steepness() -> None:
    """By autograd: d/de sigmoid(e) smax dL/da, whatever s was."""
    for s in (1 / 400, 1.0, 20.0):
        gates = Gates({"layer": 5}, 400.0, generator(0, "test"))
        with torch.no_grad():
            gates.embedding.copy_(torch.tensor([-0.4, -0.1, 0.0, 0.1, 0.4]))
        weights = torch.arange(1.0, 6)
        (gates(s)["layer"] * weights).sum().backward()
        plain = gates.embedding.detach().clone().requires_grad_()
        (torch.sigmoid(plain) * weights).sum().backward()
        torch.testing.assert_close(gates.embedding.grad, 400 * plain.grad, rtol=1e-3, atol=1e-3)


def test_embeddings_stay_within_their_bounds() -> None:
    gates = Gates({"layer": 3}, 400.0, generator(0, "test"))
    with torch.no_grad():
        gates.embedding.copy_(torch.tensor([-70.0, 0.0, 70.0]))
    gates(1.0)
    assert gates.embedding.tolist() == [-6.0, 0.0, 6.0]


def test_hard_gates_are_steps_and_soft_ones_are_steep() -> None:
    for hard in (False, True):
        learner = HAT(backbone(), recipe=RECIPE, hard=hard)
        with learner.learning(task("a")) as session:
            embedding = session.moving()["gates.embedding"]
            with torch.no_grad():
                embedding.copy_(torch.linspace(-0.01, 0.01, 20))
            session.keep()
        gates = torch.cat(list(learner.gates("a").values()))
        right = (torch.arange(20) >= 10).float() if hard else torch.sigmoid(400 * torch.linspace(-0.01, 0.01, 20))
        torch.testing.assert_close(gates, right)


def test_every_task_draws_gates_of_its_own_and_the_seed_repeats_them() -> None:
    drawn = {}
    for seed in (0, 0, 1):
        learner = HAT(backbone(), recipe=RECIPE, seed=seed)
        for position, name in enumerate("ab"):
            with learner.learning(task(name, position)) as session:
                drawn.setdefault((seed, name), []).append(session.state()["gates.embedding"])
                session.keep()
    assert torch.equal(*drawn[0, "a"])
    assert torch.equal(*drawn[0, "b"])
    assert not torch.equal(drawn[0, "a"][0], drawn[0, "b"][0])
    assert not torch.equal(drawn[0, "a"][0], drawn[1, "a"][0])


@pytest.mark.parametrize("kind", [name for name in ZOO if name != "counting"])  # whose answer is another every time
def test_an_answer_is_what_the_session_gave(kind: str) -> None:
    entry = ZOO[kind]
    learner = HAT(entry.build(), recipe=RECIPE)
    learner.learn(entry.task("a"))
    with learner.learning(entry.task("b", seed=1)) as session:
        session.eval()
        with torch.no_grad():
            given = session(entry.inputs(9, seed=5))
        session.keep()
    torch.testing.assert_close(learner.predict(entry.inputs(9, seed=5), "b"), given)


@pytest.mark.parametrize("kind", BACKBONES)
def test_an_answer_does_not_depend_on_weights_at_closed_gates(kind: str) -> None:
    learner, one = HAT(built(kind), recipe=RECIPE, hard=True), images(kind, 0)
    learner.learn(one)
    right = learner.predict(one.train[0], one.name)
    gates, changed = learner.gates(one.name), 0
    with torch.no_grad():
        for layer in learner.wiring.units:
            closed = gates[layer] == 0
            learner.network._module.get_submodule(layer).weight[closed] = torch.inf
            changed += int(closed.sum())
    learner.engine.forget_answers()
    assert changed
    assert same_bits(learner.predict(one.train[0], one.name), right)


def test_where_gates_are_half_open_old_answers_move_and_are_not_kept_from_before() -> None:
    learner, inputs = HAT(backbone(), recipe=RECIPE), pair(9)[0]
    learner.learn(task("a"))
    ticket = learner.network.tickets["a"]
    half = {name: torch.full_like(value, 0.5) for name, value in ticket.own.items() if name.startswith("gates.")}
    learner.network._tickets = {"a": replace(ticket, own={**ticket.own, **half})}
    learner.engine.forget_answers()
    before = learner.predict(inputs, "a")
    assert torch.equal(learner.predict(inputs, "a"), before)
    learner.learn(task("b", 1))
    parts = learner.task_modules("a")
    assert not torch.equal(learner.predict(inputs, "a"), before)
    assert torch.equal(learner.predict(inputs, "a"), parts["head"](parts["backbone"](inputs)))


def test_a_weight_that_is_used_without_its_layer_is_refused() -> None:
    class Sideways(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)

        def forward(self, rows: Tensor) -> Tensor:
            return F.linear(rows, self.layer.weight)

    learner = HAT(Sideways(), recipe=RECIPE)
    with pytest.raises(ff.ModuleError, match="weight of layer is used, but the layer is not called"):
        learner.learn(task("a"))
    assert not learner.tasks


def test_a_norm_over_something_else_than_units_is_refused() -> None:
    module = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Flatten())
    assert wiring(module).hosts == {"1": "2"}
    with pytest.raises(ff.ModuleError, match="the norm behind 1"):
        HAT(module, recipe=RECIPE).learn(task("a"))


# ---- recipes, forgetting, and life


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": "adam"}, {"optimizer": "rmsprop"}, {"momentum": 0.9}, {"weight_decay": 1e-4},
        {"carry_optimizer": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_recipe_that_moves_weights_without_a_gradient_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ff.InputError, match=f"{next(iter(wrong))}=.*moves weights without one"):
        HAT(backbone(), recipe=replace(RECIPE, **wrong))


def test_an_optimizer_of_ones_own_is_ones_own_affair() -> None:
    HAT(backbone(), recipe=ff.Recipe(optimizer=lambda values: torch.optim.SGD(values, 0.1, momentum=0.9)))
    assert HAT(backbone()).recipe.optimizer == "sgd"


@pytest.mark.parametrize("wrong", [{"smax": 0.5}, {"smax": float("inf")}, {"sparsity": -1}, {"smax": float("nan")}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ff.InputError, match=next(iter(wrong))):
        HAT(backbone(), recipe=RECIPE, **wrong)


def test_it_learns_and_forgets_less_than_finetune() -> None:
    tasks = small_tasks(3, samples=96)
    losses = {}
    for name, made in (
        ("hat", HAT(mlp(inputs=8, hidden=(50, 50)), recipe=replace(RECIPE, epochs=20))),
        ("finetune", ff.METHODS["finetune"](mlp(inputs=8, hidden=(50, 50)), recipe=replace(RECIPE, epochs=20))),
    ):
        after = {}
        for one in tasks:
            made.learn(one)
            after[one.name] = made.predict(one.valid[0], one.name)
            assert float((after[one.name].argmax(1) == one.valid[1]).float().mean()) > 0.9
        losses[name] = max(float((made.predict(t.valid[0], t.name) - after[t.name]).abs().max()) for t in tasks)
    assert losses["hat"] < 0.1 * losses["finetune"]


def test_memory_tells_all_that_is_kept() -> None:
    learner = HAT(backbone(), recipe=RECIPE)
    for position, name in enumerate("ab"):
        learner.learn(task(name, position))
    memory = learner.memory()
    assert set(memory.shared) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    norms = {f"1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert set(memory.tickets["a"].own) == {"gates.0", "gates.4", *norms}
    assert set(memory.training) == {f"start.{name}" for name in norms}
    assert not memory.common
    assert not memory.used


def test_a_removed_task_gives_its_units_back() -> None:
    learner = HAT(backbone(), recipe=RECIPE)
    for position, name in enumerate("ab"):
        learner.learn(task(name, position))
    gates = learner.gates("a")
    learner.remove("b")
    assert all(torch.equal(value, gates[layer]) for layer, value in learner.used().items())
    learner.remove("a")
    assert all(not value.any() for value in learner.used().values())


@pytest.mark.parametrize("counted", [True, False])
def test_an_epoch_is_chosen_with_the_penalty_or_without(counted: bool) -> None:
    (first,) = small_tasks(1)
    with HAT(mlp(inputs=8, hidden=(12,)), seed=1, validate_penalty=counted).learning(first) as session:
        session.train(False)
        (inputs, labels), model = first.valid, session.model
        scores = session(inputs)
        plain, penalty = F.cross_entropy(scores, labels), model.penalty()
        assert penalty > 0
        assert torch.equal(session.criterion(Batch(inputs, labels), scores), plain + penalty if counted else plain)


@pytest.mark.parametrize("method", ["hat", "gpm"])
def test_gradients_are_protected_also_where_moving_a_module_makes_new_parameters(method: str) -> None:
    """As on devices whose tensors cannot take the place of a CPU's: `to` puts other parameters into the module."""
    first, second, _ = small_tasks()
    found = []
    for replaces in (False, True):
        learner = ff.METHODS[method](built("mlp"), recipe=RECIPE)
        learner.learn(first)
        with learner.learning(second) as session:
            session.train()
            session.loss(Batch(*second.train)).backward()
            before = dict(session.named_parameters())
            torch.__future__.set_overwrite_module_params_on_conversion(replaces)
            try:
                session.double().float()
            finally:
                torch.__future__.set_overwrite_module_params_on_conversion(False)
            assert any(before[name] is not value for name, value in session.named_parameters()) is replaces
            session.zero_grad()
            session.loss(Batch(*second.train)).backward()
            found.append({name: value.grad for name, value in session.named_parameters()})
    assert all(torch.equal(found[0][name], value) for name, value in found[1].items())
