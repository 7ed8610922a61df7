"""The seams by which a method says how it learns: phases, criterion, groups, schedules, side modules, replay and more.

Two tiny methods, one for each scenario, use all of them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

import forgetfree as ff
from few_shots import backbone as few_shot_backbone
from few_shots import sessions
from forgetfree.batches import Batch
from forgetfree.contracts import Inputs, Task
from forgetfree.dense import MovingNetwork
from forgetfree.engine import Context
from forgetfree.features import cached
from forgetfree.few_shot.learner import FewShotLearner
from forgetfree.few_shot.prototypes import all_means, prototype_head
from forgetfree.functional import functional_forward, inner_step
from forgetfree.modules import clone, freeze, named_tensors, only_movable
from forgetfree.registry import MethodEntry
from forgetfree.replay import ReplayStore
from forgetfree.rng import generator
from forgetfree.settings import LATER, Whole, learner
from forgetfree.task_incremental import TaskLearner
from forgetfree.testing import small_tasks
from forgetfree.training.loop import fit
from forgetfree.training.recipe import Recipe
from forgetfree.training.schedules import factor_at
from forgetfree.training.session import Phase, Session, TaskModel
from forgetfree.views import Plain, SeenThrough
from forgetfree.virtual import mixed, real_scores, rotated

SGD = Recipe(epochs=3, batch_size=16, optimizer="sgd", lr=0.1, momentum=0.9)
AGAIN = Recipe(epochs=2, batch_size=32, optimizer="adam", lr=0.01)
TASKS = small_tasks(3, samples=64)


@learner
class Rehearsing(TaskLearner):
    """One network; a task trains all of it beside some samples of earlier tasks, and then its head alone."""

    size: Annotated[int, Whole("how many samples are kept")] = 12
    best: Annotated[int | None, Whole("the epoch that is best, whatever the losses are")] = None

    network_kind = partial(MovingNetwork, own_norms=True)
    state = ("memory_of_samples", "counts")

    def start(self) -> None:
        self.memory_of_samples = ReplayStore(size=self.size)
        self.counts: dict[str, Any] = {"tasks": 0, "labels": torch.zeros(8, dtype=torch.long)}

    def view(self, task: Task, context: Context) -> TaskModel:
        return Twice(self.network.trainable_view(), self.memory_of_samples, self.best, context)

    def keep(self, session: Session, context: Context) -> None:
        self.network.keep(session.task.name, session.model.network)
        chance = generator(context.seed, context.position, "reservoir")
        self.memory_of_samples = self.memory_of_samples.reservoir(*session.task.train, context.position, chance)
        found = torch.bincount(session.task.train[1], minlength=8)
        self.counts = {"tasks": self.counts["tasks"] + 1, "labels": self.counts["labels"] + found}
        if session.task.name == "fails":
            raise ff.LearningError("this task fails when everything is written.")


class Twice(Plain):
    """All of the network, held by samples of earlier tasks; then the head alone."""

    def __init__(self, network: nn.Module, samples: ReplayStore, best: int | None, context: Context):
        super().__init__(network)
        self._samples, self._best, self._context = samples, best, context

    def loss(self, batch: Batch, head: nn.Module) -> Tensor:
        value = functional.cross_entropy(head(self(batch.inputs)), batch.labels)
        if not self._samples:
            return value
        chance = generator(self._context.seed, self._context.position, "replay", self.epoch)
        return value + 0.01 * self(self._samples.sample(4, chance).inputs).square().mean()

    def criterion(self, batch: Batch, head: nn.Module) -> Tensor | None:
        return None if self._best is None else torch.tensor(float(abs(self.epoch - self._best)))

    def phases(self, recipe: Recipe) -> tuple[Phase, ...]:
        return Phase(recipe), Phase(AGAIN, "head", self._begin)

    def _begin(self, session: Session) -> None:
        only_movable(self.network.requires_grad_(False))


@learner
class Sided(FewShotLearner):
    """A dense network and a side module behind it; the classifier of a session learns from cached features."""

    exemplars: Annotated[int, Whole("how many images of a class are kept"), LATER] = 0

    side = ("gate",)
    default_session = Recipe(epochs=3, batch_size=20, optimizer="sgd", lr=0.1)

    def start(self) -> None:
        torch.manual_seed(self.seed)
        self.gate: nn.Module = nn.Linear(16, 16)

    def first(self, task: Task, context: Context) -> TaskModel:
        return Cached(self.network.trainable_view(), self.network.everything, clone(self.gate), context)

    def later(self, task: Task, context: Context) -> TaskModel:
        view = self.network.view_of(context.first, movable={})
        return Cached(view, self.network.everything, clone(self.gate), context)

    def answers(self, session: Session, context: Context) -> nn.Module:
        assert isinstance(session.model, Cached)
        self.gate = freeze(clone(session.model.gate))
        images = session.model.images or session.task
        head = prototype_head(self.heads, images, all_means(self.answer(context.first), images, context))
        if session.task.name == "fails":
            raise ff.LearningError("this task fails when everything is written.")
        return head

    def answer(self, task: str) -> nn.Module:
        return freeze(nn.Sequential(super().answer(task), clone(self.gate)))


class Cached(SeenThrough):
    """Network and gate together; then the gate alone, on what the network made of every image once."""

    def __init__(self, network: Any, masks: Any, gate: nn.Module, context: Context):
        super().__init__(network, masks)
        self.gate, self._context = gate.requires_grad_(True), context
        self.images: Task | None = None
        self.widths: list[int] = []

    def forward(self, inputs: Inputs) -> Any:
        self.widths.append(inputs.shape[1])
        return self.gate(inputs if self.images else self.network(inputs, self.masks))

    def phases(self, recipe: Recipe) -> tuple[Phase, ...]:
        alone = Phase(AGAIN, "gate", self._begin)
        return (alone,) if self._context.known else (Phase(recipe), alone)

    def _begin(self, session: Session) -> None:
        self.network.stand_still()
        self.images = session.task
        before = Seen(self.network, self.masks)
        session.task = cached(session.task, before, batch_size=16, cast=self._context.placement.cast)


class Seen(nn.Module):
    def __init__(self, network: Any, masks: Any):
        super().__init__()
        self.network, self.masks = network, masks

    def forward(self, inputs: Tensor) -> Any:
        return self.network(inputs, self.masks)


def rehearsing(recipe: Recipe = SGD, **fields: Any) -> Rehearsing:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 12), nn.ReLU()
    )
    return Rehearsing(module, recipe=recipe, **fields)


def sided(**fields: Any) -> Sided:
    return Sided(few_shot_backbone(), recipe=SGD, **fields)


FEW_SHOTS, TESTS = sessions(2, base=6, images=16, classes=3, shots=6)
MAKERS: dict[str, tuple[Callable[[], Any], list[Task]]] = {"til": (rehearsing, TASKS), "fscil": (sided, FEW_SHOTS)}


def bits(made: Any) -> dict[str, Tensor]:
    """All that a learner keeps, by name."""
    memory = made.memory()
    heads = {f"{task}/{name}": value for task, head in memory.heads.items() for name, value in head.items()}
    own = {f"{task}/own {name}": value for task, each in memory.tickets.items() for name, value in each.own.items()}
    return {**memory.shared, **memory.common, **memory.extras, **memory.training, **heads, **own}


def assert_same(one: Any, other: Any) -> None:
    one, other = bits(one), bits(other)
    assert list(one) == list(other)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


class Killed(Exception):
    """As if the process had ended."""


def kill_after(epochs: int) -> Callable[[Any], None]:
    done = 0

    def watch(event: Any) -> None:
        nonlocal done
        done += event.finished
        if done == epochs:
            raise Killed

    return watch


# phases


@pytest.mark.parametrize("scenario", MAKERS)
@pytest.mark.parametrize("epochs", [1, 3, 4])
def test_a_learning_that_was_killed_in_any_phase_goes_on_to_the_same_bits(scenario, epochs, tmp_path):
    make, tasks = MAKERS[scenario]
    whole, parts = make(), make()
    for task in tasks[:2]:
        whole.learn(task)
        path = tmp_path / f"{task.name}.checkpoint"
        phases = 1 if scenario == "fscil" and task is tasks[1] else 2  # a later session only has the second
        with pytest.raises(Killed):
            parts.learn(task, path, kill_after(epochs if phases == 2 else 1))
        parts.learn(task, path)
        assert len(list(tmp_path.glob(f"{task.name}*"))) == phases
    assert_same(whole, parts)


def test_each_phase_has_its_recipe_and_all_of_them_are_one_record():
    made = rehearsing()
    made.learn(TASKS[0])
    curves = made.tasks["task 0"].curves
    assert [entry["lr"] for entry in curves] == [0.1] * 3 + [0.01] * 2
    assert "of 2" in made.tasks["task 0"].selection  # the epoch was chosen in the last phase


def test_what_stands_still_in_the_second_phase_is_as_the_first_left_it():
    made, alone = rehearsing(), rehearsing()
    made.learn(TASKS[0])
    with alone.learning(TASKS[0]) as session:
        fit(session, SGD, seed=alone.seed, position=0)
        session.keep()
    weights, first = made.memory().shared, alone.memory().shared
    assert all(torch.equal(weights[name], first[name]) for name in weights)
    heads, before = made.memory().heads["task 0"], alone.memory().heads["task 0"]
    assert not torch.equal(heads["weight"], before["weight"])


# the criterion of an epoch


@pytest.mark.parametrize("best", [0, 1, 2])
def test_a_methods_own_criterion_chooses_the_epoch(best):
    made = rehearsing(best=best)
    with made.learning(TASKS[0]) as session:
        states: list[dict[str, Tensor]] = []
        fitted = fit(session, SGD, seed=0, position=0, progress=lambda event: states.append(session.state()))
        assert fitted.selection == f"epoch {best + 1} of 3, the best by validation loss (0)"
        now = session.state()
        assert all(torch.equal(value, states[best][name]) for name, value in now.items())
    assert [entry["valid_loss"] for entry in fitted.curves] == [abs(epoch - best) for epoch in range(3)]


# parameter groups


def moved(groups: dict[str, dict[str, float]] | None) -> dict[str, Tensor]:
    """How far one step of plain gradient descent moves every parameter."""
    recipe = Recipe(epochs=1, batch_size=64, optimizer="sgd", lr=0.125, groups=groups)
    made = rehearsing()
    with made.learning(replace(TASKS[0], valid=None)) as session:
        before = session.state()
        fit(session, recipe, seed=0, position=0)
        return {name: value.detach() - before[name] for name, value in session.moving().items()}


def test_a_part_moves_by_its_own_learning_rate_and_all_others_by_the_common_one():
    common, apart = moved(None), moved({"head": {"lr": 0.5}})
    assert list(common) == list(apart)
    for name, step in apart.items():
        torch.testing.assert_close(step, 4 * common[name] if name.startswith("head") else common[name])
        assert step.any() or name == "network.0.bias"  # a bias before a norm has no effect
    still = moved({"head": {"lr": 0.0}, "network.4": {"lr": 0.0}})
    assert not any(step.any() for name, step in still.items() if name.startswith(("head", "network.4")))
    assert still["network.0.weight"].any()


def test_the_most_particular_name_of_a_group_counts():
    both = moved({"network": {"lr": 0.0}, "network.4.weight": {"lr": 0.25}})
    torch.testing.assert_close(both["network.4.weight"], 2 * moved(None)["network.4.weight"])
    assert not both["network.0.weight"].any()


def test_a_part_that_is_not_there_is_refused_and_nothing_is_learned():
    made = rehearsing(replace(SGD, groups={"tail": {"lr": 0.1}}))
    with pytest.raises(ff.InputError, match="no parameter that moves is in 'tail'; there are network"):
        made.learn(TASKS[0])
    assert not made.tasks


# schedules


class Recording(torch.optim.SGD):
    """Writes down the learning rates of every step."""

    rates: list[float]

    def step(self, closure=None):
        self.rates.append(self.param_groups[0]["lr"])
        return super().step(closure)


def recording(parameters: Any, rates: list[float]) -> Recording:
    optimizer = Recording(parameters, lr=0.5, momentum=0.9)
    optimizer.rates = rates
    return optimizer


@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_a_schedule_by_name_goes_step_by_step_with_its_warm_up(name):
    rates: list[float] = []
    recipe = Recipe(epochs=3, batch_size=16, optimizer=partial(recording, rates=rates), schedule=name, warmup=0.25)
    made = rehearsing()
    with made.learning(TASKS[0]) as session:
        fitted = fit(session, recipe, seed=0, position=0)
    steps = 3 * 64 // 16
    assert rates == pytest.approx([0.5 * factor_at(name, step / steps, 0.25) for step in range(steps)])
    assert rates[0] == 0
    assert rates[steps // 4] == 0.5
    assert [entry["lr"] for entry in fitted.curves] == pytest.approx(rates[3::4])


def test_groups_and_schedule_go_together():
    recipe = replace(SGD, momentum=0.0, schedule="linear", groups={"head": {"lr": 0.4}})
    made = rehearsing()
    with made.learning(TASKS[0]) as session:
        fitted = fit(session, recipe, seed=0, position=0)
    assert [entry["lr"] for entry in fitted.curves] == pytest.approx([0.4 * (1 - (4 * e + 3) / 12) for e in range(3)])


TORCH: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "step": (partial(lr_scheduler.StepLR, step_size=1, gamma=0.5), [0.1, 0.05, 0.025, 0.0125]),
    "milestones": (partial(lr_scheduler.MultiStepLR, milestones=[1, 3], gamma=0.1), [0.1, 0.01, 0.01, 0.001]),
    "function": (lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)), [0.1, 0.05, 0.1 / 3, 0.025]),
    "cosine": (partial(lr_scheduler.CosineAnnealingLR, T_max=2), [0.1, 0.05, 0.0, 0.05]),
    "restarts": (partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=2), [0.1, 0.05, 0.1, 0.05]),
    "plateau": (partial(lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5), [0.1, 0.1, 0.05, 0.025]),
    "one after another": (
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o, 0.5, 9), lr_scheduler.ConstantLR(o, 0.25, 9)], [2]
        ),
        [0.05, 0.05, 0.025, 0.025],
    ),
}


@pytest.mark.parametrize("kind", TORCH)
def test_a_torch_scheduler_is_stepped_after_every_epoch_and_goes_on_after_a_kill(kind, tmp_path):
    make, expected = TORCH[kind]
    recipe = replace(SGD, epochs=4, schedule=make)
    # losses by the criterion: 0, 1, 2, 3, so that a plateau begins at once
    whole, parts = rehearsing(recipe, best=0), rehearsing(recipe, best=0)
    whole.learn(TASKS[0])
    assert [entry["lr"] for entry in whole.tasks["task 0"].curves[:4]] == pytest.approx(expected)
    for epochs in (1, 2):  # killed twice, after the first and the third epoch
        with pytest.raises(Killed):
            parts.learn(TASKS[0], tmp_path / "checkpoint", kill_after(epochs))
    parts.learn(TASKS[0], tmp_path / "checkpoint")
    assert parts.tasks["task 0"].curves == whole.tasks["task 0"].curves
    assert_same(whole, parts)


@pytest.mark.parametrize("schedule", ["cosine", TORCH["step"][0]])
@pytest.mark.parametrize("other", [{"patience": 2}, {"milestones": (3,)}])
def test_a_schedule_beside_patience_or_milestones_is_refused(schedule, other):
    with pytest.raises(ff.InputError, match="leave patience and milestones out"):
        Recipe(schedule=schedule, **other)


def test_a_schedule_of_wrong_kind_or_a_warm_up_without_one_is_refused():
    with pytest.raises(ff.InputError, match="schedule=…"):
        Recipe(schedule="exponential")
    for wrong in (
        {"warmup": 0.1},
        {"warmup": 1.0, "schedule": "cosine"},
        {"warmup": 0.1, "schedule": TORCH["step"][0]},
    ):
        with pytest.raises(ff.InputError, match="warmup=…"):
            Recipe(**wrong)


# what a method keeps: side modules, replay


@pytest.fixture
def plugged(monkeypatch):
    monkeypatch.setattr(ff.METHODS, "_plugged", {})
    entries = {
        "rehearsing": MethodEntry(f"{__name__}:Rehearsing", Rehearsing.__doc__.strip(), label="R", colour="#000000"),
        "sided": MethodEntry(f"{__name__}:Sided", Sided.__doc__.strip(), scenario="fscil", label="S", colour="#000000"),
    }
    ff.METHODS.plug(entries, __name__)


@pytest.mark.parametrize("scenario", MAKERS)
@pytest.mark.parametrize("resumable", [False, True])
def test_what_a_method_keeps_is_stored_and_learning_goes_on_from_it(plugged, scenario, resumable, tmp_path):
    make, tasks = MAKERS[scenario]
    made = make()
    for task in tasks[:2]:
        made.learn(task)
    ff.save(made, tmp_path / "one.ticket", resumable=resumable)
    again = ff.load(tmp_path / "one.ticket", clone(made.network.module) if scenario == "til" else few_shot_backbone())
    assert_same(made, again)
    for each in (made, again):
        each.learn(tasks[2])
    assert_same(made, again)


@pytest.mark.parametrize("scenario", MAKERS)
def test_what_a_method_keeps_is_rolled_back_with_a_task_that_fails(scenario):
    make, tasks = MAKERS[scenario]
    made = make()
    made.learn(tasks[0])
    before = bits(made)
    kept = made.memory_of_samples if scenario == "til" else made.gate
    with pytest.raises(ff.LearningError, match="when everything is written"):
        made.learn(replace(tasks[1], name="fails"))
    assert (made.memory_of_samples if scenario == "til" else made.gate) is kept
    assert all(torch.equal(value, before[name]) for name, value in bits(made).items())
    made.learn(tasks[1])


def test_samples_kept_by_a_task_incremental_method_are_counted_moved_and_used():
    made = rehearsing()
    assert not made.memory_of_samples
    for task in TASKS[:2]:
        made.learn(task)
    store = made.memory_of_samples
    assert (len(store), store.seen) == (12, 128)
    assert set(store.data()[1].tolist()) <= {0, 1, 2}
    counted = made.memory().training
    names = [f"memory_of_samples.{part}" for part in ("inputs", "labels", "tasks")]
    assert [name for name in counted if name.startswith("memory_of_samples")] == names
    assert sum(counted[name].nbytes for name in names) == store.nbytes > 0
    assert torch.equal(
        counted["counts.labels"], torch.bincount(torch.cat([task.train[1] for task in TASKS[:2]]), minlength=8)
    )
    with_none, with_some = rehearsing(size=0), rehearsing()
    for each in (with_none, with_some):
        each.learn(TASKS[0])
        each.learn(TASKS[1])
    assert not torch.equal(with_none.memory().shared["0.weight"], with_some.memory().shared["0.weight"])
    made.to("cpu")
    assert made.memory_of_samples is not store  # moved as a whole, like all that is kept
    assert all(
        torch.equal(one, other) for one, other in zip(made.memory_of_samples.sampled, store.sampled, strict=True)
    )


def test_a_side_module_is_learned_counted_and_part_of_every_answer():
    made = sided()
    start = {name: value.clone() for name, value in named_tensors(made.gate)}
    made.learn(FEW_SHOTS[0])
    extras = made.memory().extras
    assert list(extras) == ["gate.weight", "gate.bias"]
    assert not torch.equal(extras["gate.weight"], start["weight"])
    before = made.predict(TESTS[0][0])
    assert float((before.argmax(1) == TESTS[0][1]).float().mean()) > 0.8
    made.learn(FEW_SHOTS[1])
    assert not torch.equal(made.memory().extras["gate.weight"], extras["gate.weight"])
    assert not [name for name, value in named_tensors(made.gate) if value.requires_grad]


# functional steps


@pytest.mark.parametrize("method", ["wsn", "packnet", "finetune"])
def test_an_inner_step_on_a_session_reaches_all_that_moves_and_nothing_else(method):
    fields = {"capacity": 0.5} if method != "finetune" else {}
    torch.manual_seed(0)
    made = ff.METHODS[method](nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh()), **fields)
    made.learn(TASKS[0], recipe=SGD)
    before = made.predict(TASKS[0].train[0], "task 0")
    with made.learning(TASKS[1]) as session:
        state, (inputs, labels) = session.state(), TASKS[1].train
        gradients = {}
        for second_order in (False, True):
            theta = dict(session.named_parameters())
            inner = functional.cross_entropy(functional_forward(session, theta, inputs[:32]), labels[:32])
            fast = inner_step(inner, theta, 0.5, second_order=second_order)
            outer = functional.cross_entropy(functional_forward(session, fast, inputs[32:]), labels[32:])
            gradients[second_order] = torch.autograd.grad(outer, list(theta.values()))
            assert outer < functional.cross_entropy(session(inputs[32:]), labels[32:])
        assert all(torch.equal(value, state[name]) for name, value in session.state().items())
        assert all(gradient.isfinite().all() for gradient in gradients[True])
        unmoved = [name for name, gradient in zip(theta, gradients[True], strict=True) if not gradient.any()]
        assert unmoved == []
        assert any(not torch.equal(one, other) for one, other in zip(*gradients.values(), strict=True))
        if method != "finetune":
            for name, gradient in zip(theta, gradients[True], strict=True):
                _, found, weight = name.partition("shared_weights.")
                assert not found or not gradient[made.network.used[weight]].any()
        session.load_state_dict({**session.state_dict(), **{name: value.detach() for name, value in fast.items()}})
        session.keep()
    if made.forget_free:
        assert torch.equal(made.predict(TASKS[0].train[0], "task 0"), before)


# virtual classes


def images(name: str, seed: int, classes: int = 3) -> Task:
    """Images with a bright corner or edge, which a rotation moves elsewhere."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(48) % classes
    made = 0.3 * torch.randn(48, 1, 4, 4, generator=draw)
    for label, (row, column) in enumerate([(0, 0), (0, 1), (1, 1), (0, 2)][:classes]):
        made[labels == label, 0, row, column] += 4
    return Task(name, tuple(f"{name} {label}" for label in range(classes)), (made, labels), (made[:12], labels[:12]))


@pytest.mark.parametrize("kind", ["rotated", "mixed"])
def test_a_task_with_virtual_classes_is_learned_and_its_real_ones_are_asked(kind):
    task = images("shapes", 0)
    virtual = rotated(task) if kind == "rotated" else mixed(task, chance=generator(0, "mixed"))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU())
    made = ff.WSN(clone(module), capacity=0.5, recipe=Recipe(epochs=25, batch_size=32, lr=0.02))
    made.learn(virtual)
    assert len(made.tasks["shapes"].classes) == len(virtual.classes) > 3
    scores = real_scores(made.predict(task.valid[0], "shapes"), virtual)
    assert scores.shape == (12, 3)
    assert float((scores.argmax(1) == task.valid[1]).float().mean()) > 0.9


def test_a_first_session_with_virtual_classes_leaves_room_for_later_ones():
    first, later = images("shapes", 0), replace(images("others", 1), valid=None)
    later = replace(later, train=(later.train[0].flip(2), later.train[1]))
    virtual = rotated(first, (0, 180))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU())
    made = ff.METHODS["ncm"](module, recipe=Recipe(epochs=25, batch_size=32, lr=0.02))
    made.learn(virtual)
    made.learn(later)
    assert made.classes == (*virtual.classes, *later.classes)
    scores = real_scores(made.predict(first.valid[0]), virtual)
    assert float((scores.argmax(1) == first.valid[1]).float().mean()) > 0.9


# cached features


def test_a_phase_on_cached_features_never_runs_the_network_and_leaves_it_as_it_was():
    made = sided()
    with made.learning(FEW_SHOTS[0]) as session:
        one, two = session.model.phases(SGD)
        fit(session, one.recipe, seed=0, position=0)
        weights = session.model.network.weights()
        assert set(session.model.widths) == {8}
        two.begin(session)
        session.settle()
        session.model.widths.clear()
        fit(session, two.recipe, seed=1, position=0)
        assert set(session.model.widths) == {16}  # features, not images
        assert session.task.train[0].shape == (len(FEW_SHOTS[0].train[0]), 16)
        after = session.model.network.weights()
        assert all(torch.equal(weights[name], after[name]) for name in weights)
        assert {name.split(".")[0] for name in session.moving()} == {"gate", "head"}
        session.keep()


def test_cached_features_are_those_of_the_network_that_stands_still():
    made = sided()
    made.learn(FEW_SHOTS[0])
    network = made.network.answer("session 0")
    task = cached(FEW_SHOTS[1], network, batch_size=7)
    assert torch.equal(task.train[0], torch.cat([network(part) for part in FEW_SHOTS[1].train[0].split(7)]))
    assert torch.equal(task.train[1], FEW_SHOTS[1].train[1])


# augmentation


@pytest.mark.parametrize(
    ("method", "fields"), [("softnet", {"capacity": 0.7}), ("icarl", {}), ("fsll", {}), ("f2m", {}), ("warp", {})]
)
def test_the_augmentation_of_a_later_session_is_applied_where_it_is_given(method, fields):
    calls: list[int] = []

    def louder(inputs: Tensor, chance: torch.Generator) -> Tensor:
        calls.append(len(inputs))
        return inputs * (1 + 0.5 * torch.rand(len(inputs), 1, generator=chance))

    session = Recipe(epochs=2, batch_size=100, optimizer="sgd", lr=0.05)
    answers = []
    for augment in (None, louder):
        made = ff.METHODS[method](few_shot_backbone(), recipe=SGD, session=session, **fields)
        made.learn(FEW_SHOTS[0])
        assert not calls
        made.learn(replace(FEW_SHOTS[1], augment=augment))
        answers.append(made.memory().shared)
    kept = 0 if method != "icarl" else 2 * len(FEW_SHOTS[0].classes)
    assert calls == [len(FEW_SHOTS[1].train[0]) + kept] * 2  # exemplars are augmented with the new images
    if method != "f2m":  # whose steps are rounded to a grid
        assert any(not torch.equal(answers[0][name], answers[1][name]) for name in answers[0])
