"""Every method of the table keeps every promise of `check_method`, and a promise that is broken is named."""

import itertools
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import forgetfree as ff
from forgetfree.dense import MovingNetwork
from forgetfree.heads import HEADS
from forgetfree.settings import learner
from forgetfree.task_incremental import TaskLearner
from forgetfree.testing import METHOD_CHECKS, check_learner, check_method, small_backbone, small_tasks
from forgetfree.testing.method import QUICK, Trial, learn
from forgetfree.views import Plain
from zoo import ZOO

SETTINGS = {
    "wsn": {"capacity": 0.3, "background_noise": 0.2},
    "hat": {"smax": 200.0},
    "gpm": {"threshold": (0.9, 0.95), "samples": 30, "samples_per_layer": (20, 30)},
    "packnet": {"capacity": 0.3, "retrain_epochs": 1},
    "supsup": {"capacity": 0.3, "transfer": True},
    "softnet": {"capacity": 0.6, "exemplars": 2, "drift_compensation": True, "resample": "forward"},
    "hardnet": {"capacity": 0.6},
    "icarl": {"exemplars": 3},
    "rebalance": {"choose": "herding", "margin": 0.4, "closest": 3, "ranking": 0.5, "less_forget": 2.0},
    "fsll": {"exemplars": 3, "fraction": 0.25, "reg_weight": 1.5, "margin": 0.2, "threshold": 0.7},
    "f2m": {"exemplars": 3, "bound": 0.1, "prototype_fixing": 0.5, "std_weight": 1.0, "draws": 3},
    "warp": {"keep": 0.2, "samples": 40, "temperature": 0.1},
}
"""Away from the defaults where a method keeps more then, or an archive could lose a value."""


def make(name, **others):
    kind = ff.METHODS[name]
    sessions = {"session": QUICK} if kind.scenario == "fscil" else {}
    return lambda backbone, recipe: kind(backbone, recipe=recipe, **(sessions | SETTINGS.get(name, {}) | others))


@cache
def trial(name):
    """What all checks of a method are made with: a learner that one of them has taught serves the others."""
    return Trial(make(name), small_backbone, small_tasks(), QUICK)


@pytest.mark.parametrize("promise", METHOD_CHECKS)
@pytest.mark.parametrize("method", ff.METHODS)
def test_a_method_keeps_its_promises(method, promise):
    METHOD_CHECKS[promise](trial(method))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("kind", ZOO)
def test_one_method_keeps_them_on_every_backbone(kind):
    entry = ZOO[kind]
    tasks = [entry.task(name, seed=seed) for seed, name in enumerate("abc")]
    check_method(make("wsn"), backbone=entry.build, tasks=tasks)


LEARN_ON = [
    ("finetune", {}), ("single_task", {}), ("ewc", {"reg_weight": 50.0}), ("hat", {}), ("hat", {"hard": True}),
    ("gpm", {}), ("gpm", {"threshold": 0.9}), ("packnet", {}), ("packnet", {"refill": True}),
    ("supsup", {"transfer": False}), ("piggyback", {}), ("softnet", {}), ("softnet", {"heads": HEADS["cosine"]}),
    ("hardnet", {"exemplars": 2, "heads": HEADS["cosine"]}), ("ncm", {}), ("icarl", {}), ("rebalance", {}),
    ("rebalance", {"first_classifier": "dense"}), ("fsll", {}), ("f2m", {"variant": "released"}),
    ("warp", {}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "settings"), LEARN_ON, ids=lambda value: str(value)[:40])
def test_also_an_archive_without_free_weights_learns_on_to_the_same_bits_where_none_are_needed(
    method, settings, tmp_path
):
    own = Trial(make(method, **settings), small_backbone, small_tasks(), QUICK)
    ff.save(own.taught(2), tmp_path / "file.ticket")
    loaded = ff.load(tmp_path / "file.ticket", small_backbone())
    learn(loaded, own.tasks[2])
    expected, found = own.answers(own.taught(3)), own.answers(loaded)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], answer) for name, answer in expected.items())


def test_the_table_has_the_methods_it_should():
    first = ["wsn", "finetune", "single_task", "multitask"]
    rivals = ["ewc", "hat", "gpm", "packnet", "supsup", "piggyback"]
    few_shots = [
        "bayes_means",
        "softnet",
        "hardnet",
        "ncm",
        "joint",
        "crt",
        "icarl",
        "rebalance",
        "fsll",
        "f2m",
        "warp",
        "s3c",
    ]
    assert list(ff.METHODS) == [*first, *rivals, *few_shots]


# ---- the checks can fail


@learner
class Counted(TaskLearner):
    """A method of an outside author, as plain as can be: it counts what it keeps."""

    step: float = 1.0

    network_kind = MovingNetwork
    state = ("total",)

    def start(self):
        self.total = {"weights": torch.zeros(())}

    def check(self):
        if not isinstance(self.step, float):
            raise ff.InputError(f"step is a number; got {self.step!r}.")

    def view(self, task, context):
        return Plain(self.network.trainable_view())

    def keep(self, session, context):
        moved = sum(parameter.detach().sum() for parameter in session.parameters())
        self.total = {"weights": self.total["weights"] + self.step * moved}
        self.network.keep(session.task.name, session.model.network)


def test_a_method_of_an_outside_author_is_checked_by_its_class():
    check_method(Counted)
    with pytest.raises(ff.InputError, match="no check is called 'nope'"):
        check_method(Counted, checks=["nope"])


class Forgetful(Counted):
    """Does not say what it keeps."""

    state = ()


class InPlace(Counted):
    """Writes into what it keeps, where nothing can put it back."""

    def keep(self, session, context):
        self.total["weights"] += 1
        super().keep(session, context)


class Leaky(Counted):
    """Trains the learner's own network."""

    def view(self, task, context):
        return Plain(self.network._module)


class Sloppy(Counted):
    """Draws from the caller's random state."""

    def learn(self, task, checkpoint=None, progress=None, **given):
        super().learn(task, checkpoint, progress, **given)
        torch.rand(1)


CHANCE = itertools.count()


class Chancy(Counted):
    """Learns by chance that no seed decides."""

    def keep(self, session, context):
        super().keep(session, context)
        self.total = {"weights": torch.tensor(float(next(CHANCE)))}


class Liar(Counted):
    """Forgets."""

    forget_free = True


class Careless(Counted):
    """Answers for tasks that it never met."""

    def predict(self, inputs, task):
        return super().predict(inputs, task if task in self.tasks else next(iter(self.tasks)))


class Open(Counted):
    """Takes anything for a step."""

    def check(self):
        pass


class Slow(Counted):
    """Begins anew whatever the checkpoint says."""

    def learn(self, task, checkpoint=None, progress=None, **given):
        super().learn(task, None, progress, **given)


class Vandal(Counted):
    """Writes to the module it was given."""

    def __post_init__(self, backbone):
        super().__post_init__(backbone)
        with torch.no_grad():
            next(backbone.parameters()).zero_()


class Clingy(Counted):
    """Keeps what a removed task left."""

    def forget(self, task):
        pass


class Early(Counted):
    """Writes down what it learns before it is kept."""

    def view(self, task, context):
        self.total = {"weights": self.total["weights"] + 1}
        return super().view(task, context)


class Mixer(Counted):
    """Gives its own modules away."""

    def task_modules(self, task):
        return super().task_modules(task) | {"head": self.engine.heads._kept[task]}


class Slippery(Counted):
    """Loses something on the way to another device."""

    def to(self, device):
        moved = super().to(device)
        self.total = {"weights": self.total["weights"] * 0}
        return moved


BROKEN = [
    (Liar, "keeps the contract of a learner", "changed after later tasks"),
    (Sloppy, "keeps the contract of a learner", "random state"),
    (Careless, "keeps the contract of a learner", "unknown task"),
    (Chancy, "two learners of one seed are equal", "training/total/weights"),
    (Vandal, "never writes to the module it is given", "wrote to 0.weight"),
    (Slow, "a killed learn goes on to the same bits", "began anew"),
    (InPlace, "an error leaves everything as it was", "an error while a task is kept changed what is kept"),
    (Early, "a session without keep() leaves everything as it was", "left without keep"),
    (Leaky, "a session has exactly what may move", "the very memory|changed what is kept"),
    (Forgetful, "memory counts all that is kept", "total is kept from task to task, but not named in `state`"),
    (Slippery, "moving to another device changes no bit", "total"),
    (Open, "settings that cannot be are refused", "step takes anything"),
    (Mixer, "task_modules answer as predict does", "not the caller's own"),
    (Clingy, "removal takes one task and leaves the others", "ticket of a removed task is kept"),
]


@pytest.mark.parametrize(("kind", "promise", "said"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_promise_is_named(kind, promise, said):
    with pytest.raises(AssertionError, match=said) as found:
        check_method(learner(kind), checks=[promise])
    assert str(found.value).startswith(f"{kind.__name__}, {promise!r}: ")


def test_a_learner_on_no_host_is_told_so():
    with pytest.raises(AssertionError, match="built on TaskLearner or FewShotLearner; Linear is not"):
        check_method(lambda backbone, recipe: nn.Linear(2, 2), checks=["two learners of one seed are equal"])


def test_a_learner_of_any_kind_is_checked_by_what_it_does():
    check_learner(lambda: Counted(small_backbone(), recipe=QUICK))


def test_nothing_of_the_checks_is_private_to_this_package():
    for file in (Path(ff.__file__).parent / "testing").glob("*.py"):
        assert "learner._" not in file.read_text(), file
