"""Settings: each field of a learner says once what it may be and which sessions it reaches; the rest is derived.

Over all methods and all their fields: what is out of range is refused at any time, and a checkpoint or a base network
is shared if and only if all fields that reach it are equal.
"""

import copy
import inspect
import math
import typing
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from torch import nn

import few_shots
import forgetfree as ff
import snapshots
from forgetfree import settings
from forgetfree.dense import MovingNetwork
from forgetfree.few_shot.learner import FewShotLearner
from forgetfree.few_shot.subnetwork import Soft
from forgetfree.heads import HEADS, CosineClassifier
from forgetfree.masks import kept_count
from forgetfree.settings import FIXED, LOCAL, Fraction, Number, Reach, Setting, Whole, settings_of
from forgetfree.task_incremental import TaskLearner
from forgetfree.training import loop
from forgetfree.training.checkpoint import identity
from forgetfree.training.recipe import is_recipe
from forgetfree.views import Plain
from zoo import FSCIL, TIL

RECIPE = ff.Recipe(epochs=1, batch_size=16, lr=0.02, optimizer="sgd")
OF_MASKS = {"masked", "own_from", "sparse_answers"}
"""Fields that a method without masks refuses."""
EVERY_FIELD = [
    (method, name)
    for method in ff.METHODS
    for name in settings_of(ff.METHODS[method])
    if method in FSCIL or name not in OF_MASKS or ff.METHODS[method].network_kind is ff.SharedNetwork
]
fields = pytest.mark.parametrize(("method", "name"), EVERY_FIELD, ids=lambda word: word)
methods = pytest.mark.parametrize("method", ff.METHODS)
BASE, SECOND = few_shots.sessions(1, base=4, images=6, classes=2, shots=3)[0]
FIRST_TASK = {"til": snapshots.task("a"), "fscil": BASE}
NEXT_TASK = {"til": snapshots.task("b", 1), "fscil": SECOND}


def has_capacity(method: str) -> bool:
    return "capacity" in settings_of(ff.METHODS[method])


def make(method: str, **given: Any) -> Any:
    """A learner of this method with a small recipe, on a backbone that it can wrap."""
    kind = ff.METHODS[method]
    usual: dict[str, Any] = {"recipe": RECIPE} | ({"session": RECIPE} if kind.scenario == "fscil" else {})
    usual |= {"capacity": 0.5} if has_capacity(method) else {}
    backbone = snapshots.backbone() if kind.scenario == "til" else few_shots.backbone()
    return kind(backbone, **(usual | given))


def other_cosine(features: int, task: ff.Task) -> nn.Module:
    return CosineClassifier(features, task.width, scale=2.0)


OTHER = {
    "recipe": ff.Recipe(epochs=1, batch_size=16, lr=0.01, optimizer="sgd"),
    "session": ff.Recipe(epochs=1, batch_size=16, lr=0.01, optimizer="sgd"),
    "masked": ["0.*"],
    "seed": 8,
    "device": "cpu",
    "trainable_block": "0.weight",
    "samples_per_layer": (100, 90),
    "base_classifier": "cosine_base",
}
"""Another value of fields that no rule describes."""


def another(method: str, name: str) -> Any:
    """A value of a field that is not the one that `make` gives it."""
    setting, now = settings_of(ff.METHODS[method])[name], getattr(make(method), name)
    if name == "heads":
        others = {"bayes_means": "lda", "s3c": "cosine_base", "rebalance": None}
        chosen = others.get(method, "linear_without_bias" if _linear(method) else "cosine")
        return other_cosine if chosen is None else HEADS[chosen]
    if name in OTHER:
        return OTHER[name]
    if setting.choices:
        return next(choice for choice in setting.choices if choice != now)
    if setting.switch:
        return not now
    match setting.rules:
        case (Whole() as rule,):
            return rule.least + 1 if now is None else now - 1 if now > rule.least else now + 1
        case (Number() | Fraction(),):
            return 1.5 * now if now else 0.25
        case _:
            assert (method, name) == ("gpm", "threshold"), f"{name} of {method}: say another value of it in OTHER"
            return 0.9


def _linear(method: str) -> bool:
    return method in TIL or method in ("joint", "crt")


def impossible(setting: Setting) -> list[Any]:
    """Values that a field cannot have."""
    values: list[Any] = [] if setting.optional else [None]
    if setting.choices:
        values += ["nonsense", 3]
    if setting.switch:
        values += ["yes", 1]
    for rule in setting.rules:
        match rule:
            case Whole():
                values += [rule.least - 1, rule.least + 0.5, True, "many"]
            case Number():
                values += [math.nan, math.inf, "much", True]
                values += [rule.least - 1] if math.isfinite(rule.least) else []
                values += [rule.below] if math.isfinite(rule.below) else []
            case Fraction():
                values += [-0.1, 1.5, math.nan, "half", True] + ([] if rule.zero else [0.0])
            case _:
                values += ["nonsense"]
    return values


# --- what a field says ---


@methods
def test_the_fields_are_the_keywords_of_the_constructor_and_what_an_archive_stores(method: str) -> None:
    known = settings_of(ff.METHODS[method])
    arguments = list(inspect.signature(ff.METHODS[method]).parameters)
    assert arguments == ["backbone", *known]
    stored = make(method).to_state(resumable=False).arguments
    assert set(stored) == {name for name, setting in known.items() if LOCAL not in setting.markers}


@methods
def test_a_field_reaches_what_it_declares_and_an_undeclared_one_all_sessions(method: str) -> None:
    hints = typing.get_type_hints(ff.METHODS[method], include_extras=True)
    for name, setting in settings_of(ff.METHODS[method]).items():
        declared = [word for word in getattr(hints[name], "__metadata__", ()) if isinstance(word, Reach)]
        assert len(declared) <= 1, f"what {name} reaches is said once"
        assert setting.reach == (declared[0] if declared else Reach.BOTH), name


def test_an_undeclared_field_of_a_new_method_is_in_every_identity() -> None:
    @settings.learner
    class New(ff.WSN):
        undeclared: int = 0
        told: Annotated[int, settings.NEITHER] = 0
        first_only: Annotated[int, settings.FIRST] = 0

    made = New(snapshots.backbone(), capacity=0.5)
    both = [settings.identity(made, first=first) for first in (True, False)]
    assert [[name in found for name in ("undeclared", "told", "first_only")] for found in both] == [
        [True, False, True],
        [True, False, False],
    ]


def test_every_field_can_be_refused_or_is_no_plain_value() -> None:
    """A field without a rule would let anything in."""
    free = {name for method, name in EVERY_FIELD if not impossible(settings_of(ff.METHODS[method])[name])}
    assert free <= {"heads", "masked", "device", "trainable_block"}, "these are checked where they are used"


# --- a checkpoint or a base network is shared if and only if all fields that reach it are equal ---


def checkpoint_of(learner: Any, task: ff.Task) -> dict[str, Any]:
    """What a checkpoint of this task would say of itself: it is taken up only where all of that is equal."""
    recipe = learner.session if learner.scenario == "fscil" and learner.tasks else learner.recipe
    with learner.learning(task) as session:
        return identity(session, recipe, learner.seed, learner.engine.position)


def reaches_first(method: str, name: str) -> bool:
    if method in FSCIL and name == "heads":  # where the first session learns with the head that answers
        made = make(method)
        return made.first_head() is made.heads
    return settings_of(ff.METHODS[method])[name].reach in (Reach.FIRST, Reach.BOTH)


@fields
def test_a_checkpoint_of_the_first_session_is_shared_iff_the_fields_that_reach_it_are_equal(
    method: str, name: str
) -> None:
    changed, same, plain = make(method, **{name: another(method, name)}), make(method), make(method)
    if method == "multitask":  # has no sessions of one task
        found = [settings.identity(made, first=True) for made in (plain, same, changed)]
    else:
        task = FIRST_TASK[plain.scenario]
        found = [checkpoint_of(made, task) for made in (plain, same, changed)]
    assert found[1] == found[0]
    assert (found[2] != found[0]) == reaches_first(method, name)


@pytest.fixture(scope="module")
def taught() -> dict[str, Any]:
    """Every method after its first session."""
    made = {method: make(method) for method in ff.METHODS}
    for method, one in made.items():
        if method != "multitask":
            one.learn(FIRST_TASK[one.scenario])
    return made


@fields
def test_a_checkpoint_of_a_later_session_is_shared_iff_the_fields_that_reach_it_are_equal(
    method: str, name: str, taught: dict[str, Any]
) -> None:
    plain, setting = copy.deepcopy(taught[method]), settings_of(ff.METHODS[method])[name]
    changed = copy.deepcopy(plain)
    reached = setting.reach in (Reach.LATER, Reach.BOTH)
    if FIXED in setting.markers or method == "multitask":
        object.__setattr__(changed, name, getattr(make(method, **{name: another(method, name)}), name))
        found = [settings.identity(made, first=False) for made in (plain, changed)]
    else:
        setattr(changed, name, another(method, name))
        found = [checkpoint_of(made, NEXT_TASK[made.scenario]) for made in (plain, changed)]
    assert (found[1] != found[0]) == reached


@pytest.mark.parametrize(("method", "name"), [pair for pair in EVERY_FIELD if pair[0] in FSCIL], ids=lambda word: word)
def test_a_base_network_has_another_name_iff_a_field_of_the_method_that_reaches_it_differs(
    method: str, name: str
) -> None:
    """Data, recipe and seed are no part of the name: who stores it adds them."""
    changed, plain = make(method, **{name: another(method, name)}), make(method)
    own = name in settings.own_fields(type(plain), FewShotLearner) or name == "heads"
    assert (changed.base_name != plain.base_name) == (own and reaches_first(method, name))
    own = own or name == "masked"
    assert (changed._first_identity() != plain._first_identity()) == (own and reaches_first(method, name))


def test_values_that_differ_in_the_last_bit_have_names_of_their_own() -> None:
    for method, name, value in (("f2m", "bound", 0.01), ("softnet", "capacity", 0.3), ("f2m", "std_weight", 2.0)):
        one, other = make(method, **{name: value}), make(method, **{name: math.nextafter(value, 1)})
        assert one.base_name != other.base_name


def dense_bases() -> dict[str, Any]:
    learners = {method: make(method) for method in ("ncm", "fsll", "warp", "icarl", "joint", "crt")}
    return learners | {"rebalance": make("rebalance", first_classifier="dense")}


def test_methods_that_start_from_a_dense_network_share_one_name() -> None:
    assert {made.base_name for made in dense_bases().values()} == {"dense"}
    assert len({repr(made._first_identity()) for made in dense_bases().values()}) == 1
    others = [make("softnet"), make("hardnet"), make("rebalance"), make("f2m")]
    assert len({made.base_name for made in (*others, make("ncm"))}) == 5


def test_a_dense_base_network_is_trained_once_for_all_that_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, (first, *others) = tmp_path / "base", dense_bases().values()
    first.learn(BASE, checkpoint=path)

    def trained_again(*_: Any) -> None:
        raise AssertionError("it trained again")

    monkeypatch.setattr(loop, "_epoch", trained_again)
    for made in [one for one in others if type(one).__name__ != "CRT"]:  # whose classifier is trained in a second phase
        made.learn(BASE, checkpoint=path)
        for name, weight in first.network.weights.items():
            assert torch.equal(made.network.weights[name], weight), type(made).__name__


@pytest.mark.parametrize("method", [method for method in ff.METHODS if method != "multitask"])
def test_a_learner_from_an_archive_takes_up_the_checkpoints_of_the_one_that_was_saved(
    method: str, taught: dict[str, Any], tmp_path: Path
) -> None:
    learner = copy.deepcopy(taught[method])
    ff.save(learner, tmp_path / "file", resumable=True)
    again = ff.load(tmp_path / "file", snapshots.backbone() if method in TIL else few_shots.backbone())
    task = NEXT_TASK[learner.scenario]
    assert checkpoint_of(again, task) == checkpoint_of(learner, task)


@pytest.mark.parametrize(
    ("method", "name", "value"), [("softnet", "capacity", 0.25), ("f2m", "draws", 3), ("wsn", "capacity", 0.25)]
)
def test_a_checkpoint_of_other_settings_is_refused_by_the_name_of_the_field(
    method: str, name: str, value: Any, tmp_path: Path
) -> None:
    task, path = FIRST_TASK[ff.METHODS[method].scenario], tmp_path / "checkpoint"
    make(method).learn(task, checkpoint=path)
    other, before = make(method, **{name: value}), path.read_bytes()
    with pytest.raises(ff.InputError, match=rf"{name}: .* there, {value} here.*Nothing was changed"):
        other.learn(task, checkpoint=path)
    assert not other.tasks
    assert path.read_bytes() == before


# --- what a field may be, at any time ---


@fields
def test_a_value_out_of_range_is_refused_at_any_time_and_nothing_changes(
    method: str, name: str, taught: dict[str, Any]
) -> None:
    setting = settings_of(ff.METHODS[method])[name]
    for value in impossible(setting):
        with pytest.raises(ff.InputError, match=rf"\b{name}\b"):
            make(method, **{name: value})
        for learner in (make(method), taught[method]):
            before = settings.stored_fields(learner)
            with pytest.raises(ff.InputError, match=rf"\b{name}\b"):
                setattr(learner, name, value)
            assert settings.stored_fields(learner) == before
            now = getattr(learner, name)
            assert (type(now), now) != (type(value), value)


@pytest.mark.parametrize(
    ("method", "name", "value", "words"),
    [
        ("piggyback", "first_score", 0.001, "scores start above the threshold 0.005"),
        ("piggyback", "threshold", 0.5, "scores start above the threshold 0.5"),
        ("softnet", "trainable_block", "nowhere", "no shared tensor matches trainable_block='nowhere'"),
        ("gpm", "recipe", ff.Recipe(optimizer="adam"), "GPM needs Recipe"),
        ("gpm", "threshold", (0.9, 0.9, 0.9), "threshold has 3 values for the 2 layers"),
        ("gpm", "samples_per_layer", (1000, 1000), "samples_per_layer are whole numbers from 1 to samples=125"),
        ("hat", "recipe", ff.Recipe(optimizer="adam"), "HAT"),
    ],
)
def test_fields_that_do_not_go_together_are_refused_and_the_old_value_stays(
    method: str, name: str, value: Any, words: str
) -> None:
    learner = make(method)
    before = getattr(learner, name)
    with pytest.raises(ff.InputError, match=words):
        setattr(learner, name, value)
    assert getattr(learner, name) == before
    learner.learn(FIRST_TASK[learner.scenario])
    with pytest.raises(ff.InputError, match=words):
        make(method, **{name: value})


@pytest.mark.parametrize(("method", "name"), [("wsn", "recipe"), ("gpm", "recipe"), ("icarl", "session")])
def test_a_recipe_that_is_taken_back_is_the_usual_one_of_the_method(method: str, name: str) -> None:
    learner = make(method)
    setattr(learner, name, None)
    usual = getattr(type(learner), f"default_{name}")
    assert getattr(learner, name) == usual == getattr(make(method, **{name: None}), name)


@methods
def test_what_is_fixed_cannot_be_changed_and_all_else_can(method: str) -> None:
    for name, setting in settings_of(ff.METHODS[method]).items():
        learner, value = make(method), another(method, name)
        before = getattr(learner, name)
        setattr(learner, name, before)  # saying the same again is no change
        if FIXED in setting.markers:
            with pytest.raises(ff.InputError, match=f"{name} is chosen when the learner is built"):
                setattr(learner, name, value)
            assert getattr(learner, name) == before
        else:
            setattr(learner, name, value)
            assert getattr(learner, name) == value


def test_a_field_that_is_set_inside_of_a_session_is_checked_too() -> None:
    learner = make("wsn")
    with learner.learning(snapshots.task("a")) as session:
        with pytest.raises(ff.InputError, match=r"capacity is the fraction"):
            learner.capacity = 7
        session.keep()
    assert learner.capacity == 0.5
    kept = learner.memory().tickets["a"].mask("0.weight")
    assert int(kept.sum()) == kept_count(kept.numel(), 0.5)


@pytest.mark.parametrize("method", [method for method in FSCIL if "exemplars" in settings_of(ff.METHODS[method])])
def test_the_number_of_exemplars_that_is_set_later_is_the_number_kept(method: str) -> None:
    learner, built = make(method), make(method, exemplars=1)
    if method != "icarl":  # whose number is fixed
        learner.learn(BASE)
        learner.exemplars = 1
        learner.learn(SECOND)
        kept = [len(learner.replay.kept[label]) for label in (4, 5)]
        assert kept == [1, 1]
    built.learn(BASE)
    built.learn(SECOND)
    assert [len(built.replay.kept[label]) for label in (4, 5)] == [1, 1]


# --- other values for one task ---


@pytest.mark.parametrize("method", [method for method in TIL if has_capacity(method)])
def test_capacity_and_recipe_given_for_one_task_are_those_of_that_task_alone(method: str, tmp_path: Path) -> None:
    given, by_hand = make(method), make(method)
    recipe = ff.Recipe(epochs=2, batch_size=8, lr=0.05)
    given.learn(snapshots.task("a"))
    given.learn(snapshots.task("b", 1), capacity=0.25, recipe=recipe)
    given.learn(snapshots.task("c", 2))
    assert (given.capacity, given.recipe) == (0.5, RECIPE)
    assert given.tasks["a"].given == given.tasks["c"].given == {}
    assert given.tasks["b"].given == {"capacity": 0.25, "recipe": recipe.described()}
    for name, other in (("a", {}), ("b", {"capacity": 0.25, "recipe": recipe}), ("c", {})):
        for field, value in ({"capacity": 0.5, "recipe": RECIPE} | other).items():
            setattr(by_hand, field, value)
        by_hand.learn(snapshots.task(name, "abc".index(name)))
    for name, weight in given.network.weights.items():
        assert torch.equal(weight, by_hand.network.weights[name])
    inputs = snapshots.pair(9)[0]
    for name in given.tasks:
        assert torch.equal(given.predict(inputs, name), by_hand.predict(inputs, name))
    assert by_hand.tasks["b"].given == {}
    ff.save(given, tmp_path / "file")
    assert ff.load(tmp_path / "file", snapshots.backbone()).tasks["b"].given == given.tasks["b"].given


def test_a_recipe_given_for_a_session_is_that_of_the_session(tmp_path: Path) -> None:
    learner, long = make("icarl"), ff.Recipe(epochs=3, batch_size=16, lr=0.01)
    learner.learn(BASE, recipe=long)
    assert len(learner.tasks[BASE.name].curves) == 3
    assert learner.tasks[BASE.name].given == {"recipe": long.described()}
    learner.learn(SECOND, recipe=long)
    assert len(learner.tasks[SECOND.name].curves) == 3
    assert learner.tasks[SECOND.name].given == {"session": long.described()}
    assert learner.recipe == learner.session == RECIPE


def test_the_capacity_of_few_shot_sessions_is_given_for_the_first_one() -> None:
    learner = make("softnet")
    learner.learn(BASE, capacity=0.25)
    mask = learner.memory().tickets[BASE.name].mask("0.weight")
    assert int(mask.sum()) == kept_count(mask.numel(), 0.25)
    assert learner.capacity == 0.5
    assert learner.tasks[BASE.name].given == {"capacity": 0.25}
    with pytest.raises(ff.InputError, match="capacity is that of the first session"):
        learner.learn(SECOND, capacity=0.25)
    assert list(learner.tasks) == [BASE.name]


@pytest.mark.parametrize("method", [method for method in ff.METHODS if not has_capacity(method)])
def test_a_method_without_a_capacity_takes_none_for_a_task(method: str) -> None:
    learner = make(method)
    words = "by one recipe" if method == "multitask" else f"{type(learner).__name__} has no capacity; it has recipe"
    with pytest.raises(ff.InputError, match=words):
        learner.learn(FIRST_TASK[learner.scenario], capacity=0.5)
    assert not learner.tasks


@pytest.mark.parametrize(("field", "value"), [("capacity", 7), ("capacity", "0.5"), ("recipe", "fast")])
def test_what_is_given_for_one_task_is_checked_and_the_learner_stays_as_it_was(field: str, value: Any) -> None:
    learner, untouched = make("wsn"), make("wsn")
    with pytest.raises(ff.InputError, match=rf"\b{field} is "):
        learner.learn(snapshots.task("a"), **{field: value})

    def fail(_: ff.Progress) -> None:
        assert learner.capacity == 0.1
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        learner.learn(snapshots.task("a"), progress=fail, capacity=0.1)
    assert (learner.capacity, learner.recipe, dict(learner.tasks)) == (0.5, RECIPE, {})
    for one in (learner, untouched):
        one.learn(snapshots.task("a"))
    snapshots.assert_same(snapshots.snapshot(learner), snapshots.snapshot(untouched))


# --- names of before ---

RENAMED = [(method, old, new) for method in ff.METHODS for old, new in ff.METHODS[method].renamed.items()]
renamed = pytest.mark.parametrize(("method", "old", "new"), RENAMED, ids=lambda word: word)


@renamed
def test_an_old_keyword_is_taken_with_a_warning_that_says_the_new_one(method: str, old: str, new: str) -> None:
    value = another(method, new)
    with pytest.warns(DeprecationWarning, match=f"{old}=….* is called {new} now") as told:
        learner = make(method, **{old: value})
    assert told[0].filename.endswith("test_settings.py")
    assert getattr(learner, new) == value
    with pytest.raises(ff.InputError, match=f"{old} is called {new} now: give one of the two"):
        make(method, **{old: value, new: value})


@renamed
def test_an_old_attribute_sets_and_reads_the_field_of_today(method: str, old: str, new: str) -> None:
    learner, value = make(method), another(method, new)
    with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now"):
        setattr(learner, old, value)
    assert getattr(learner, new) == value
    assert old not in vars(learner)
    if not hasattr(type(learner), old):  # some old names are hooks of the host today
        with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now"):
            assert getattr(learner, old) == value


def test_stored_arguments_of_before_are_read_by_the_names_of_today() -> None:
    old = {"strength": 3.0, "seed": 1, "gone": "a field that there is no more"}
    assert settings.current_names(ff.METHODS["ewc"], old) == {"reg_weight": 3.0, "seed": 1}


# --- what load would refuse is not saved ---


@methods
def test_an_archive_with_a_field_out_of_range_is_not_written(
    method: str, taught: dict[str, Any], tmp_path: Path
) -> None:
    for name, setting in settings_of(ff.METHODS[method]).items():
        for value in impossible(setting)[:2]:
            learner = copy.copy(taught[method])
            object.__setattr__(learner, name, value)
            with pytest.raises(ff.InputError, match=rf"\b{name}\b"):
                ff.save(learner, tmp_path / "file")
    assert not any(tmp_path.iterdir())


def test_what_save_refuses_load_refuses_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, path = make("wsn"), tmp_path / "file"
    learner.learn(snapshots.task("a"))
    object.__setattr__(learner, "capacity", 7.0)
    with pytest.raises(ff.InputError, match=r"capacity is the fraction of weights kept, in \(0, 1\]; got 7.0"):
        ff.save(learner, path)
    with monkeypatch.context() as careless:
        careless.setattr(settings, "check_all", lambda _: None)
        ff.save(learner, path)
    with pytest.raises(ff.ForgetfreeError, match=r"capacity is the fraction"):
        ff.load(path, snapshots.backbone())


def test_the_hosts_themselves_are_described_by_their_fields() -> None:
    common = set(settings_of(TaskLearner)) & set(settings_of(FewShotLearner))
    assert common == {"recipe", "heads", "masked", "seed", "device", "cache_bytes"}
    assert settings.own_fields(ff.WSN, TaskLearner) == ["capacity", "by", "background_noise"]


@settings.learner
class Outside(TaskLearner):
    """A method with fields of kinds that none of ours has."""

    second: Annotated[ff.Recipe | None, is_recipe] = None
    sizes: tuple[int, ...] = (3, 4)
    measure: Any = "norm"

    network_kind = MovingNetwork

    def view(self, task, context):
        return Plain(self.network.trainable_view())

    def keep(self, session, context):
        self.network.keep(session.task.name, session.model.network)


def test_fields_of_any_kind_come_back_as_they_were():
    made = Outside(nn.Linear(6, 4), second=ff.Recipe(epochs=3), sizes=(1, 2))
    again = Outside.from_state(nn.Linear(6, 4), made.to_state(), recipe=None, heads=None)
    assert (again.second, again.sizes, again.measure) == (made.second, (1, 2), "norm")


def test_a_function_in_a_field_is_refused_when_it_is_stored():
    with pytest.raises(ff.InputError, match="measure is a function"):
        Outside(nn.Linear(6, 4), measure=torch.relu).to_state()


@pytest.mark.parametrize("ignored", [{"masked": ["*"]}, {"own_from": "previous"}, {"sparse_answers": True}])
def test_what_a_method_without_masks_would_ignore_is_refused(ignored):
    with pytest.raises(ff.InputError, match="does nothing"):
        ff.METHODS["finetune"](nn.Linear(6, 4), **ignored)


def test_scores_that_no_session_has_learned_follow_to_a_device(monkeypatch):
    moved = ff.SoftNet(nn.Linear(6, 4), capacity=0.5).to("meta")
    monkeypatch.setattr(moved.network, "trainable_view", nn.Identity)  # which would look at values
    model = moved.first(BASE, moved._context("first"))
    assert isinstance(model, Soft)
    assert {score.device.type for _, score in model.scores.items()} == {"meta"}
