"""Training: what a recipe does, which state is kept, and that nothing is lost when something goes wrong."""

import copy
import logging
import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import forgetfree as ff
from forgetfree import engine
from forgetfree.batches import Batch
from forgetfree.contracts import Task
from forgetfree.files import load_tree
from forgetfree.heads import TaskHeads
from forgetfree.scores import Scores
from forgetfree.tickets import PackedMask
from forgetfree.training import loop
from forgetfree.training.checkpoint import CHECKPOINT
from forgetfree.training.loop import fit, quick_step
from snapshots import FEATURES, assert_same, backbone, learner, pair, random_state, snapshot, task

WRONG_RECIPES: list[dict[str, Any]] = [
    {"epochs": 0},
    {"epochs": 1.5},
    {"epochs": True},
    {"batch_size": 0},
    {"batch_size": "64"},
    {"accumulate": 0},
    {"eval_batch_size": -1},
    {"optimizer": "adagrad"},
    {"optimizer": None},
    {"lr": -1e-3},
    {"lr": math.nan},
    {"lr": "0.1"},
    {"lr": None},
    {"weight_decay": -1},
    {"momentum": -0.5},
    {"min_lr": -1},
    {"factor": 0},
    {"factor": 1},
    {"factor": None},
    {"patience": 0},
    {"patience": 2.5},
    {"clip": 0},
    {"clip": "1"},
    {"clip": math.nan},
    {"autocast": "float16"},
    {"loader": {"batch_size": 3}},
    {"loader": {"shuffle": True}},
]


@pytest.mark.parametrize("wrong", WRONG_RECIPES, ids=str)
def test_a_wrong_recipe_is_refused_by_the_name_of_its_field(wrong: dict[str, Any]) -> None:
    (field,) = wrong
    with pytest.raises(ff.InputError, match=rf"Recipe\({field}=…\)"):
        ff.Recipe(**wrong)


def scripted(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> list[dict[str, Tensor]]:
    """Let validation give these losses, one per epoch; the list fills with the state each of them judged."""
    states: list[dict[str, Tensor]] = []
    left = iter(losses)

    def evaluate(session: ff.Session, *_: Any) -> tuple[float, float]:
        states.append(session.state())
        return next(left), 0.5

    monkeypatch.setattr(loop, "evaluate", evaluate)
    return states


def test_patience_shrinks_the_learning_rate_and_ends_below_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    #        best  worse worse→½  best  equal worse→½ worse worse→½ and below min_lr
    losses = [1.0, 1.1, 1.1, 0.9, 0.9, 0.95, 1.0, 1.0, 0.1, 0.1]
    used = [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2]
    scripted(monkeypatch, losses)
    taught = learner(ff.Recipe(epochs=10, optimizer="sgd", lr=0.8, patience=2, factor=0.5, min_lr=0.15))
    reported: list[float] = []
    taught.learn(task("a"), progress=lambda event: reported.append(event.lr))
    curves = taught.tasks["a"].curves
    assert [entry["lr"] for entry in curves] == used
    assert [entry["valid_loss"] for entry in curves] == losses[: len(used)]
    assert reported == [*used[1:], 0.1]
    assert taught.tasks["a"].selection == "epoch 4 of 8, the best by validation loss (0.9)"


def test_without_patience_the_learning_rate_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [1.0, 2.0, 3.0])
    taught = learner()
    taught.learn(task("a"))
    assert [entry["lr"] for entry in taught.tasks["a"].curves] == [0.02] * 3


def test_all_parts_of_the_best_epoch_are_kept_and_the_ticket_is_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    taught = learner(ff.Recipe(epochs=5, batch_size=16, lr=0.05))
    for name, losses, best in (("a", [3.0, 1.0, 2.0, 1.0, 4.0], 2), ("b", [3.0, 4.0, 2.0, 3.0, 3.0], 3)):
        used = {key: value.clone() for key, value in taught.network.used.items()}
        kept = {key: value.clone() for key, value in taught.network.weights.items()}
        states = scripted(monkeypatch, losses)
        taught.learn(task(name))
        state, memory = states[best - 1], taught.memory()
        for key, value in memory.shared.items():
            assert torch.equal(value, torch.where(used[key], kept[key], state[f"network.{key}"]))
            assert torch.equal(taught.scores.state_dict()[key], state[f"scores.{key}"])
            mask = Scores({key: state[f"scores.{key}"]}).top(0.4)[key].mask()
            assert torch.equal(memory.tickets[name].mask(key), mask)
            assert torch.equal(memory.used[key].unpack(), used[key] | mask)
        own = memory.common | memory.tickets[name].own
        for key in taught.layout().of("owned"):
            assert torch.equal(own[key], state[f"network.{key}"])
        for key, value in memory.heads[name].items():
            assert torch.equal(value, state[f"head.{key}"])
        assert not torch.equal(state["head.weight"], states[-1]["head.weight"])


def test_the_best_epoch_is_what_learning_only_so_long_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = (learner(ff.Recipe(epochs=epochs, batch_size=16, lr=0.05)) for epochs in (5, 2))
    scripted(monkeypatch, [2.0, 1.0, 3.0, 3.0, 3.0])
    long.learn(task("a"))
    short.learn(task("a", valid=False))
    bits = [{key: value for key, value in snapshot(one).items() if key != "task/a"} for one in (long, short)]
    assert_same(*bits)


def test_without_validation_the_last_epoch_is_kept_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    taught = learner()
    with caplog.at_level(logging.INFO, logger="forgetfree"):
        taught.learn(task("a", valid=False))
    assert "no validation set: the last epoch is kept" in caplog.text
    assert taught.tasks["a"].selection == "the last epoch (3): there was no validation set"
    assert all("valid_loss" not in entry for entry in taught.tasks["a"].curves)


def test_validation_gives_the_mean_loss_and_accuracy_of_what_predict_would_answer() -> None:
    valid = pair(1, 21)
    recipe = ff.Recipe(epochs=1, batch_size=16, eval_batch_size=8)
    taught = learner(recipe)
    taught.learn(ff.Task("a", (0, 1, 2), pair(0), valid))
    (entry,) = taught.tasks["a"].curves
    answers = taught.predict(valid[0], "a")
    assert entry["valid_loss"] == pytest.approx(float(functional.cross_entropy(answers, valid[1])), rel=1e-5)
    assert entry["valid_accuracy"] == pytest.approx(float((answers.argmax(1) == valid[1]).float().mean()))


def weighted(outputs: Tensor, labels: Tensor) -> Tensor:
    return ((outputs.sum(1) - labels) ** 2).mean() * 3


inputs, places = pair(0, 12)
LOSSES: list[tuple[ff.Task, Callable[[Tensor], Tensor]]] = [
    (ff.Task("a", (0, 1, 2), (inputs, places)), lambda out: functional.cross_entropy(out, places)),
    (ff.Task("a", (0, 1, 2), (inputs, places), outputs=5), lambda out: functional.cross_entropy(out, places)),
    (
        ff.Task("a", (0, 1, 2), (inputs, places.int()), loss="cross_entropy"),
        lambda out: functional.cross_entropy(out, places),
    ),
    (
        ff.Task("a", (), (inputs, inputs[:, :2].double()), loss="mse", outputs=2),
        lambda out: functional.mse_loss(out, inputs[:, :2]),
    ),
    (
        ff.Task("a", (), (inputs, inputs[:, 0]), loss="mse", outputs=1),
        lambda out: functional.mse_loss(out.squeeze(1), inputs[:, 0]),
    ),
    (
        ff.Task("a", ("x", "y", "z"), (inputs, functional.one_hot(places)), loss="bce_with_logits"),
        lambda out: functional.binary_cross_entropy_with_logits(out, functional.one_hot(places).float()),
    ),
    (ff.Task("a", (), (inputs, inputs[:, 0]), loss=weighted, outputs=4), lambda out: weighted(out, inputs[:, 0])),
]


@pytest.mark.parametrize(("one", "formula"), LOSSES)
def test_every_loss_is_the_formula_of_its_name(one: ff.Task, formula: Callable[[Tensor], Tensor]) -> None:
    taught = learner(ff.Recipe(epochs=2))
    with taught.learning(one) as session:
        session.eval()
        outputs = session(one.train[0])
        assert outputs.shape == (12, one.width)
        torch.testing.assert_close(session.loss(Batch(*one.train)), formula(outputs))
    taught.learn(ff.Task(one.name, one.classes, one.train, one.train, one.loss, one.outputs))
    assert taught.predict(inputs, "a").shape == (12, one.width)
    assert ("valid_accuracy" in taught.tasks["a"].curves[0]) == one.classifies


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"classes": (), "loss": "mse"}, "how many outputs"),
        ({"classes": (), "outputs": 2}, "which loss"),
        ({"classes": (0, 1), "loss": "hinge"}, "no loss is called 'hinge'"),
        ({"classes": (0, 1), "outputs": 1}, "need at least 2"),
        ({"classes": (0, 1, 0)}, "names a class twice"),
        ({"classes": (0, 1), "name": ""}, "name is a non-empty text"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused_in_words(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ff.InputError, match=words):
        ff.Task(**({"name": "a", "train": pair(0)} | wrong))


def test_targets_of_another_shape_are_refused_in_words() -> None:
    with pytest.raises(ff.InputError, match=r"outputs have shape \(12, 3\), labels \(12, 2\)"):
        learner().learn(ff.Task("a", (), (inputs, inputs[:, :2]), loss="mse", outputs=3))


def plain_backbone() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 10), nn.Tanh(), nn.Linear(10, 8)).double()


def test_accumulation_equals_a_big_batch_even_in_a_short_last_group() -> None:
    results = []
    for size, accumulate in ((8, 1), (4, 2), (2, 4)):
        recipe = ff.Recipe(
            epochs=3, batch_size=size, accumulate=accumulate, optimizer="sgd", lr=0.1, momentum=0.9, clip=0.5
        )
        taught = ff.WSN(plain_backbone(), capacity=0.5, recipe=recipe)
        taught.learn(ff.Task("a", (0, 1), pair(0, 20, 2)))  # 8 + 8 + 4: the last group is half full
        results.append(taught)
    first, *others = results
    for other in others:
        for key, value in first.memory().shared.items():
            torch.testing.assert_close(other.memory().shared[key], value, rtol=0, atol=1e-12)
            torch.testing.assert_close(
                other.scores.state_dict()[key], first.scores.state_dict()[key], rtol=0, atol=1e-12
            )


class Watched(torch.optim.Adam):
    """Adam that tells what it sees; a class so that its tape outlives the optimizer."""

    norms: list[float]
    before_first_step: list[list[dict[str, Any]]]
    after_last_step: list[list[dict[str, Any]]]

    def step(self, closure: Any = None) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        squares = [p.grad.double().square().sum() for p in parameters if p.grad is not None]
        Watched.norms.append(float(torch.stack(squares).sum().sqrt()))
        if not hasattr(self, "started"):
            self.started = True
            Watched.before_first_step.append([copy.deepcopy(dict(self.state.get(p, {}))) for p in parameters])
            Watched.after_last_step.append([])
        super().step(closure)
        Watched.after_last_step[-1] = [copy.deepcopy(dict(self.state.get(p, {}))) for p in parameters]


@pytest.fixture
def watched() -> Callable[[Any], torch.optim.Optimizer]:
    Watched.norms, Watched.before_first_step, Watched.after_last_step = [], [], []
    return lambda parameters: Watched(parameters, lr=0.02)


def test_clipping_bounds_the_norm_of_all_gradients_together(watched: Any) -> None:
    task_ = task("a")
    learner(ff.Recipe(epochs=2, batch_size=16, optimizer=watched)).learn(task_)
    free = list(Watched.norms)
    assert max(free) > 0.05
    Watched.norms = []
    learner(ff.Recipe(epochs=2, batch_size=16, optimizer=watched, clip=0.05)).learn(task_)
    assert len(Watched.norms) == len(free)
    assert max(Watched.norms) <= 0.05 * (1 + 1e-5)


def test_a_carried_optimizer_starts_where_the_last_task_ended(watched: Any) -> None:
    taught = learner(ff.Recipe(epochs=2, batch_size=16, optimizer=watched, carry_optimizer=True))
    taught.learn(task("a"))
    taught.learn(task("b", 1))
    with taught.learning(task("c")) as session:
        lasting = [name in session.carried for name in session.moving()]
    assert 0 < sum(lasting) < len(lasting)
    fresh, start = Watched.before_first_step
    assert fresh == [{}] * len(lasting)
    for lasts, carried, ended in zip(lasting, start, Watched.after_last_step[0], strict=True):
        assert set(carried) == ({"step", "exp_avg", "exp_avg_sq"} if lasts else set())
        for key, value in carried.items():
            assert torch.equal(value, ended[key])


def test_a_carried_optimizer_changes_what_is_learned_and_none_is_carried_unasked(watched: Any) -> None:
    results = {}
    for carry in (True, False):
        taught = learner(ff.Recipe(epochs=2, batch_size=16, carry_optimizer=carry))
        taught.learn(task("a"))
        first = snapshot(taught)
        taught.learn(task("b", 1))
        results[carry] = (first, snapshot(taught))
    assert_same(results[True][0], results[False][0])
    assert results[True][1]["scores/0.weight"] != results[False][1]["scores/0.weight"]
    unasked = learner(ff.Recipe(epochs=1, optimizer=watched))
    unasked.learn(task("a"))
    unasked.learn(task("b", 1))
    assert all(not state for states in Watched.before_first_step for state in states)


SEEN: list[tuple[bool, torch.dtype]] = []


class Telling(nn.Module):
    """Tells the type it computes in, and whether it is learning."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 20)

    def forward(self, x: Tensor) -> Tensor:
        answer = self.layer(x)
        SEEN.append((self.training, answer.dtype))
        return answer


def test_autocast_is_for_training_only() -> None:
    SEEN.clear()
    taught = ff.WSN(Telling(), capacity=0.5, recipe=ff.Recipe(epochs=1, autocast="bfloat16"))
    taught.learn(task("a"))
    *training, _ = [kind for learning, kind in SEEN if learning]  # the last is a trial of what was kept
    assert set(training) == {torch.bfloat16}
    assert {kind for learning, kind in SEEN if not learning} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        assert taught.predict(inputs, "a").dtype == torch.float32
    assert all(value.dtype == torch.float32 for value in taught.memory().shared.values())


def test_the_autocast_of_the_caller_does_not_reach_into_learning() -> None:
    inside, outside = learner(), learner()
    with torch.autocast("cpu", torch.bfloat16):
        inside.learn(task("a"))
    outside.learn(task("a"))
    assert_same(snapshot(inside), snapshot(outside))


def test_progress_tells_of_every_epoch() -> None:
    events: list[ff.Progress] = []
    taught = learner()
    taught.learn(task("a"), progress=events.append)
    finished = [event for event in events if event.finished]
    assert [(event.task, event.epoch, event.epochs) for event in finished] == [("a", i, 3) for i in (1, 2, 3)]
    for event, entry in zip(finished, taught.tasks["a"].curves, strict=True):
        assert (event.loss, event.valid_loss, event.valid_accuracy) == (
            entry["loss"],
            entry["valid_loss"],
            entry["valid_accuracy"],
        )
    assert all(one.seconds <= other.seconds for one, other in pairwise(events))


def test_progress_tells_of_steps_when_an_epoch_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    events: list[ff.Progress] = []
    learner(ff.Recipe(epochs=1, batch_size=13)).learn(task("a", valid=False), progress=events.append)
    assert [(event.step, event.steps) for event in events if not event.finished] == [(1, 3), (2, 3), (3, 3)]


def own_loop(session: ff.Session, data: tuple[Tensor, Tensor], steps: int = 5) -> None:
    optimizer = torch.optim.SGD(session.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(session(data[0]), data[1]).backward()
        optimizer.step()


def test_an_own_loop_learns_what_it_keeps() -> None:
    taught, again = learner(), learner()
    data = pair(0)
    for one in (taught, again):
        with one.learning(task("a")) as session:
            own_loop(session, data)
            session.eval()
            answer = session(data[0])
            session.keep()
        torch.testing.assert_close(one.predict(data[0], "a"), answer.detach())
    assert taught.tasks["a"].selection == "as kept by the caller's own loop"
    assert_same(snapshot(taught), snapshot(again))


def test_an_optimizer_of_an_own_loop_cannot_move_what_was_kept() -> None:
    taught = learner()
    with taught.learning(task("a")) as session:
        parameters = session.parameters()
        own_loop(session, pair(0))
        session.keep()
    before = snapshot(taught)
    with torch.no_grad():
        for parameter in parameters:
            parameter.fill_(9.0)
    assert_same(snapshot(taught), before)


@pytest.mark.parametrize("leave", ["quietly", "by an exception", "by Ctrl-C"])
def test_leaving_an_own_loop_without_keep_rolls_everything_back(leave: str) -> None:
    taught, untouched = learner(), learner()
    for one in (taught, untouched):
        one.learn(task("a"))
    before, chance = snapshot(taught), random_state()
    error = {"quietly": None, "by an exception": ZeroDivisionError, "by Ctrl-C": KeyboardInterrupt}[leave]
    try:
        with taught.learning(task("b", 1)) as session:
            own_loop(session, pair(2))
            if error:
                raise error
    except (ZeroDivisionError, KeyboardInterrupt) as caught:
        assert type(caught) is error  # noqa: PT017 - the same path with and without an error
    assert_same(snapshot(taught), before)
    assert random_state() == chance
    for one in (taught, untouched):
        one.learn(task("b", 1))
    assert_same(snapshot(taught), snapshot(untouched))


def test_keep_works_once() -> None:
    taught = learner()
    with taught.learning(task("a")) as session:
        session.keep()
        kept = snapshot(taught)
        with pytest.raises(ff.LearningError, match="session of task 'a' is over"):
            session.keep()
        with pytest.raises(ff.LearningError, match="is over"):
            session(inputs)
    assert_same(snapshot(taught), kept)


def test_a_session_that_was_left_cannot_be_used() -> None:
    taught = learner()
    with taught.learning(task("a")) as session:
        pass
    for use in (session.keep, lambda: session(inputs), lambda: session.loss(Batch(inputs, places))):
        with pytest.raises(ff.LearningError, match="is over"):
            use()
    assert not taught.tasks


def test_values_that_are_not_finite_are_not_kept() -> None:
    taught = learner()
    before = snapshot(taught)
    with taught.learning(task("a")) as session:
        with torch.no_grad():
            session.moving()["head.bias"].fill_(math.inf)
        with pytest.raises(ff.LearningError, match=r"head\.bias holds values that are not finite"):
            session.keep()
    assert_same(snapshot(taught), before)


def test_learning_inside_of_learning_is_refused_and_the_outer_one_goes_on() -> None:
    taught = learner()
    with taught.learning(task("a")) as session:
        with pytest.raises(ff.TaskError, match=r"'b'.*'a' is still being learned"):
            taught.learn(task("b"))
        with pytest.raises(ff.TaskError, match="'a' is still being learned"), taught.learning(task("b")):
            pass
        with pytest.raises(ff.TaskError, match="'a' is still being learned"):
            taught.to("cpu")
        session.keep()
    taught.learn(task("b", 1))
    assert list(taught.tasks) == ["a", "b"]


def test_another_learner_may_learn_inside_of_learning() -> None:
    outer, inner, alone = learner(), learner(), learner()
    alone.learn(task("a"))
    with outer.learning(task("x")) as session:
        inner.learn(task("a"))
        session.keep()
    assert_same(snapshot(inner), snapshot(alone))


def test_two_threads_learn_one_after_the_other() -> None:
    taught, serial = learner(), learner()
    serial.learn(task("a"))
    serial.learn(task("b", 1))
    inside, waiting, errors = threading.Event(), threading.Event(), []

    def second() -> None:
        try:
            inside.wait(10)
            waiting.set()
            taught.learn(task("b", 1))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=second)
    thread.start()

    def first_epoch(event: ff.Progress) -> None:
        inside.set()
        waiting.wait(10)
        thread.join(0.05)
        assert thread.is_alive()

    taught.learn(task("a"), progress=first_epoch)
    thread.join(30)
    assert not errors
    assert list(taught.tasks) == ["a", "b"]
    assert_same(snapshot(taught), snapshot(serial))


def test_two_threads_that_learn_the_same_task_learn_it_once() -> None:
    taught, errors = learner(), []

    def learn() -> None:
        try:
            taught.learn(task("a"))
        except ff.TaskError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=learn) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert list(taught.tasks) == ["a"]
    assert len(errors) == 2
    assert all("learned already" in error for error in errors)


def test_two_learners_in_two_threads_do_not_share_chance() -> None:
    alone = learner()
    alone.learn(task("a"))
    many, chance = [learner() for _ in range(3)], random_state()
    threads = [threading.Thread(target=one.learn, args=(task("a"),)) for one in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for one in many:
        assert_same(snapshot(one), snapshot(alone))
    assert random_state() == chance


class Failing:
    """Cross-entropy until some call, then an error, or a loss that is not a number."""

    def __init__(self, at: int | None = None, error: type[BaseException] | None = None):
        self.left, self.error = at, error

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        loss = functional.cross_entropy(outputs, labels)
        if self.left is None:
            return loss
        self.left -= 1
        if self.left >= 0:
            return loss
        if self.error:
            raise self.error("on purpose")
        return loss * math.nan


FAILURES = [RuntimeError, KeyboardInterrupt, MemoryError, SystemExit, None]
LAST_CALL = 3 * (3 + 1) - 1  # three epochs of three batches and a validation


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.__name__ if error else "NaN loss")
def test_a_failure_at_any_step_leaves_the_learner_exactly_as_before(error: type[BaseException] | None) -> None:
    steps = [0, *random.Random(str(error)).sample(range(1, LAST_CALL), 3), LAST_CALL]
    recipe = ff.Recipe(epochs=3, batch_size=16, lr=0.02, carry_optimizer=True, patience=1)
    taught, untouched = learner(recipe), learner(recipe)
    for one in (taught, untouched):
        one.learn(task("a"))
    before, chance = snapshot(taught), random_state()
    for step in steps:
        failing = task("b", 1, loss=Failing(step, error))
        with pytest.raises(error or ff.LearningError, match="on purpose" if error else "loss became nan"):
            taught.learn(failing)
        assert_same(snapshot(taught), before)
        assert random_state() == chance
        assert list(taught.tasks) == ["a"]
    for one in (taught, untouched):
        one.learn(task("b", 1, loss=Failing()))
        one.learn(task("c", 2))
    assert_same(snapshot(taught), snapshot(untouched))


def nth_call_fails(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, number: int) -> None:
    """Let the `number`-th call from now fail, after having done its work."""
    original, calls = getattr(place, name), iter(range(1, 1000))

    def failing(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        if next(calls) == number:
            raise KeyboardInterrupt("on purpose")
        return result

    monkeypatch.setattr(place, name, failing)


@pytest.mark.parametrize(
    ("place", "name", "number"),
    [
        (ff.SharedNetwork, "keep", 1),
        (TaskHeads, "keep", 1),
        (Scores, "fork", 2),  # the first begins the session
        (PackedMask, "pack", 1),
        (PackedMask, "pack", 2),
        (engine, "TaskRecord", 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_failure_inside_of_keep_leaves_the_learner_exactly_as_before(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, number: int
) -> None:
    recipe = ff.Recipe(epochs=2, batch_size=16, carry_optimizer=True)
    taught, untouched = learner(recipe), learner(recipe)
    for one in (taught, untouched):
        one.learn(task("a"))
    before = snapshot(taught)
    answer = taught.predict(inputs, "a")
    nth_call_fails(monkeypatch, place, name, number)
    with pytest.raises(KeyboardInterrupt, match="on purpose"):
        taught.learn(task("b", 1))
    monkeypatch.undo()
    assert_same(snapshot(taught), before)
    assert torch.equal(taught.predict(inputs, "a"), answer)
    with pytest.raises(ff.TaskError):
        taught.predict(inputs, "b")
    for one in (taught, untouched):
        one.learn(task("b", 1))
    assert_same(snapshot(taught), snapshot(untouched))


def test_a_keep_that_failed_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    taught, untouched = learner(), learner()
    for one in (taught, untouched):
        with one.learning(task("a")) as session:
            own_loop(session, pair(0))
            if one is taught:
                nth_call_fails(monkeypatch, TaskHeads, "keep", 1)
                with pytest.raises(KeyboardInterrupt):
                    session.keep()
                monkeypatch.undo()
            session.keep()
    assert_same(snapshot(taught), snapshot(untouched))


@pytest.fixture
def ctrl_c_after() -> Iterator[Callable[[float], None]]:
    """Press Ctrl-C after some seconds, wherever the program then is."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that interrupt")
def test_ctrl_c_at_random_moments_leaves_all_or_nothing(ctrl_c_after: Callable[[float], None]) -> None:
    taught, untouched = learner(), learner()
    for one in (taught, untouched):
        one.learn(task("a"))
    before = snapshot(taught)
    started = time.perf_counter()
    untouched.learn(task("b", 1))
    duration, after = time.perf_counter() - started, snapshot(untouched)
    landed, moments = 0, random.Random(5)
    for _ in range(100):
        one = copy.deepcopy(taught)
        try:
            ctrl_c_after(moments.uniform(0.01, 1.0) * duration)
            one.learn(task("b", 1))
            ctrl_c_after(0)
        except KeyboardInterrupt:
            landed += 1
        assert_same(snapshot(one), after if "b" in one.tasks else before)
        if landed == 12:
            break
    assert landed >= 5
    taught.learn(task("b", 1))
    assert_same(snapshot(taught), after)


def test_the_random_state_of_the_caller_is_neither_moved_nor_read() -> None:
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        chance = random_state()
        taught = learner()
        assert random_state() == chance
        taught.learn(task("a"))
        taught.learn(task("b", 1))
        assert random_state() == chance
        taught.predict(inputs, "a")
        assert random_state() == chance
        with taught.learning(task("c", 2)) as session:
            own_loop(session, pair(4))
            session.keep()
        assert random_state() == chance
        results.append(snapshot(taught))
    assert_same(*results)


def test_a_dataset_that_draws_numbers_is_repeatable_and_leaves_the_caller_alone() -> None:
    class Noisy(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            noise = float(torch.rand(())) + float(np.random.rand()) + random.random()
            return inputs[index % 12] + noise, index % 3

    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        chance = random_state()
        taught = learner()
        taught.learn(ff.Task("a", (0, 1, 2), Noisy(), Noisy()))
        assert random_state() == chance
        results.append(snapshot(taught))
    assert_same(*results)


def test_another_seed_learns_something_else() -> None:
    one, other = learner(seed=1), learner(seed=2)
    for taught in (one, other):
        taught.learn(task("a"))
    assert snapshot(one)["scores/0.weight"] != snapshot(other)["scores/0.weight"]
    assert snapshot(one)["head/a/weight"] != snapshot(other)["head/a/weight"]


def test_a_copy_of_a_learner_learns_on_its_own() -> None:
    taught, plain = learner(), learner()
    for one in (taught, plain):
        one.learn(task("a"))
    copied = copy.deepcopy(taught)
    copied.learn(task("b", 1))
    assert list(taught.tasks) == ["a"]
    assert_same(snapshot(taught), snapshot(plain))
    taught.learn(task("b", 1))
    assert_same(snapshot(taught), snapshot(copied))


SHAPES: list[tuple[Any, str]] = [
    (torch.zeros(4, FEATURES - 1), r"\[batch, 5\]"),
    (torch.zeros(4, FEATURES, 2), r"\[batch, 6, 2\]"),
    (torch.zeros(4), r"\[batch\]"),
    (torch.zeros(4, FEATURES, dtype=torch.long), "int64"),
    ((torch.zeros(4, FEATURES), torch.zeros(4, FEATURES)), r"\[batch, 6\] of float32, \[batch, 6\] of float32"),
    ({"x": torch.zeros(4, FEATURES)}, "x: "),
]


@pytest.mark.parametrize(("wrong", "words"), SHAPES)
def test_inputs_of_another_shape_are_refused_in_words(wrong: Any, words: str) -> None:
    taught = learner()
    taught.learn(task("a"))
    before = snapshot(taught)
    with pytest.raises(ff.InputError, match=words):
        taught.learn(ff.Task("b", (0, 1), (wrong, torch.tensor([0, 1, 0, 1]))))
    with pytest.raises(ff.InputError, match=words) as caught:
        taught.predict(wrong, "a")
    assert "[batch, 6] of float32" in str(caught.value)
    assert_same(snapshot(taught), before)


@pytest.mark.parametrize("wrong", ["text", None, [1.0, 2.0], (1, 2)])
def test_inputs_that_are_no_tensors_are_refused_in_words(wrong: Any) -> None:
    taught = learner()
    taught.learn(task("a"))
    with pytest.raises(ff.InputError, match="inputs are a tensor"):
        taught.predict(wrong, "a")


def test_names_that_are_taken_or_unknown_are_refused_in_words() -> None:
    taught = learner()
    with pytest.raises(ff.TaskError, match=r"no task 'a' is learned"):
        taught.predict(inputs, "a")
    taught.learn(task("a"))
    before = snapshot(taught)
    with pytest.raises(ff.TaskError, match=r"'a' is learned already.*\['a'\]"):
        taught.learn(task("a", 5))
    with pytest.raises(ff.TaskError, match=r"no task 'b' is learned.*\['a'\]"):
        taught.predict(inputs, "b")
    assert_same(snapshot(taught), before)


def test_validation_that_is_not_finite_is_refused_in_words() -> None:
    taught = learner()
    before = snapshot(taught)
    spoiled = (torch.full((4, FEATURES), math.nan), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ff.LearningError, match="validation loss became nan in epoch 1"):
        taught.learn(ff.Task("a", (0, 1, 2), pair(0), spoiled))
    assert_same(snapshot(taught), before)


def test_learning_that_diverges_leaves_the_learner_as_it_was() -> None:
    taught = learner(ff.Recipe(epochs=20, optimizer="sgd", lr=1e30))
    before = snapshot(taught)
    with pytest.raises(ff.ForgetfreeError):
        taught.learn(task("a", valid=False))
    assert_same(snapshot(taught), before)


def test_the_wrapped_module_is_never_written() -> None:
    module = backbone()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    taught = ff.WSN(module, capacity=0.4, recipe=ff.Recipe(epochs=1, batch_size=16))
    taught.learn(task("a"))
    taught.predict(inputs, "a")
    assert list(module.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training


@pytest.mark.parametrize("seed", [np.int64(3), torch.tensor(3)], ids=["numpy", "torch"])
def test_seeds_and_classes_may_be_numbers_of_numpy_and_torch(tmp_path: Path, seed: Any) -> None:
    def learned(seed: Any, classes: Any) -> ff.WSN:
        one = ff.WSN(torch.nn.Linear(4, 8, bias=False), capacity=0.5, recipe=ff.Recipe(epochs=1), seed=seed)
        one.learn(ff.Task("a", classes, (torch.ones(6, 4), torch.arange(6) % 2)), checkpoint=tmp_path / str(type(seed)))
        return one

    torch.manual_seed(0)
    other = learned(seed, np.arange(2))
    assert other.seed == 3
    assert other.tasks["a"].classes == (0, 1)


def test_a_seed_or_a_class_that_is_no_name_is_a_clear_error() -> None:
    with pytest.raises(ff.InputError, match="a seed is a whole number"):
        ff.WSN(torch.nn.Linear(4, 8), capacity=0.5, seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(ff.InputError, match="a class is named by"):
        ff.Task("a", (0.5, 1.5), (torch.ones(6, 4), torch.arange(6) % 2))  # type: ignore[arg-type]
    with pytest.raises(ff.InputError, match="several names"):
        ff.Task("a", "ab", (torch.ones(6, 4), torch.arange(6) % 2))  # type: ignore[arg-type]


def test_a_head_of_the_wrong_width_is_a_clear_error_and_nothing_is_lost() -> None:
    def learn(heads: Any) -> None:
        ff.WSN(torch.nn.Linear(4, 8), capacity=0.5, heads=heads).learn(
            ff.Task("a", (0, 1, 2), (torch.ones(6, 4), torch.arange(6) % 3))
        )

    with pytest.raises(ff.InputError, match="3 outputs"):
        learn(lambda width, task: torch.nn.Linear(width, 2))
    with pytest.raises(ff.InputError, match="cannot take features"):
        learn(lambda width, task: torch.nn.Linear(width + 1, 3))
    with pytest.raises(ff.ModuleError, match=r"a head is an nn\.Module"):
        learn(lambda width, task: None)


def test_learning_works_where_the_caller_wants_no_gradients() -> None:
    plain, quiet = learner(), learner()
    plain.learn(task("a"))
    with torch.inference_mode():
        quiet.learn(task("a"))
    assert_same(snapshot(quiet), snapshot(plain))


def test_numbers_too_small_to_matter_are_taken_for_zero_while_training_and_only_then() -> None:
    def denormal() -> bool:
        return bool(torch.tensor(1e-38) * 0.1)

    seen: list[bool] = []
    given = learner()
    assert denormal()
    with given.learning(task("first")) as session:
        fit(
            session,
            ff.Recipe(epochs=1, batch_size=8),
            seed=0,
            position=0,
            progress=lambda _: seen.append(denormal()),
        )
    assert seen == [False]
    assert denormal()
    torch.set_flush_denormal(True)
    try:
        given.learn(task("second"))
        assert not denormal(), "what the caller had set is not undone"
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_quick_step_is_the_optimizers_own_to_the_last_bit(kind: Any, decay: float) -> None:
    results = []
    for quick in (True, False):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
        optimizer = kind(module.parameters(), lr=0.01, weight_decay=decay, fused=True)
        take_step = quick_step(optimizer) if quick else optimizer.step
        assert (take_step == optimizer.step) is not quick
        for number in range(6):
            optimizer.zero_grad()
            module[:1](torch.ones(2, 5)).sum().backward() if number == 2 else module(torch.ones(2, 5)).sum().backward()
            if number == 4:
                optimizer.param_groups[0]["lr"] = 0.003
            take_step()
        results.append([*module.parameters(), *(v for s in optimizer.state.values() for v in s.values())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, fused=True, amsgrad=True),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), fused=True),
    ],
    ids=["sgd", "not fused", "amsgrad", "tensor lr"],
)
def test_other_optimizers_step_by_themselves(make: Any) -> None:
    optimizer = make(list(nn.Linear(2, 2).parameters()))
    assert quick_step(optimizer) == optimizer.step


def test_hooks_on_an_optimizer_are_called() -> None:
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters(), fused=True)
    optimizer.register_step_post_hook(lambda *_: None)
    assert quick_step(optimizer) == optimizer.step


def test_the_learning_rate_falls_after_every_milestone() -> None:
    one = learner(recipe=ff.Recipe(epochs=5, lr=0.1, milestones=(2, 4), factor=0.5))
    one.learn(task("a"))
    assert [entry["lr"] for entry in one.tasks["a"].curves] == [0.1, 0.1, 0.05, 0.05, 0.025]


def test_augmentation_changes_training_batches_only_and_is_drawn_anew_in_every_epoch() -> None:
    trained: list[Tensor] = []

    def noisy(inputs: Tensor, generator: torch.Generator) -> Tensor:
        changed = inputs + torch.rand(inputs.shape, generator=generator)
        trained.append(changed)
        return changed

    seen: list[Tensor] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(FEATURES, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            seen.append(inputs.detach().clone())
            return self.layer(inputs)  # type: ignore[no-any-return]

    data, valid = pair(0, 12, 2), pair(1, 6, 2)
    one = ff.WSN(Watching(), capacity=0.5, recipe=ff.Recipe(epochs=2, batch_size=12), seed=1)
    one.learn(ff.Task("a", ("x", "y"), data, valid, augment=noisy))
    first, second = trained
    assert not torch.equal(first.sum(), second.sum())
    plain = {tuple(row) for row in torch.cat([data[0], valid[0]]).tolist()}
    changed = {tuple(row) for row in torch.cat(trained).tolist()}
    rows = {tuple(row) for batch in seen for row in batch.tolist()}
    assert rows & changed == changed
    assert {tuple(row) for row in valid[0].tolist()} <= rows & plain
    trained.clear()
    two = ff.WSN(Watching(), capacity=0.5, recipe=ff.Recipe(epochs=2, batch_size=12), seed=1)
    torch.manual_seed(99)  # the caller's random state does not matter
    two.learn(ff.Task("a", ("x", "y"), data, valid, augment=noisy))
    assert torch.equal(trained[0], first)
    assert torch.equal(trained[1], second)


# a running mean of the states


def averaging(average: float | None = 0.8, **settings: object) -> ff.Recipe:
    return ff.Recipe(epochs=4, batch_size=16, lr=0.05, average=average, **settings)  # type: ignore[arg-type]


def small_task(valid: bool) -> Task:
    draw = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(48, 6, generator=draw), torch.arange(48) % 2
    return Task("a", (0, 1), (inputs, labels), (inputs[:16] + 0.1, labels[:16]) if valid else None)


def learned(recipe: ff.Recipe, valid: bool, **options: object) -> tuple[ff.WSN, list[dict[str, Tensor]]]:
    """A learner of one task, and the state of its session after every epoch, before it was judged."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    states: list[dict[str, Tensor]] = []
    learner = ff.WSN(module, capacity=0.5, recipe=recipe)
    with learner.learning(small_task(valid)) as session:
        fitted = fit(
            session, recipe, seed=0, position=0,
            progress=lambda step: states.append(session.state()) if step.finished else None, **options,  # type: ignore[arg-type]
        )  # fmt: skip
        states.append(session.state())
        session.keep(fitted.selection, fitted)
    return learner, states


def test_a_running_mean_is_kept_and_training_goes_on_from_the_state_itself() -> None:
    _, plain = learned(averaging(None), valid=False)
    _, found = learned(averaging(0.8), valid=False)
    for one, other in zip(plain[:-1], found[:-1], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    mean = dict(plain[0])
    for state in plain[1:-1]:
        mean = {
            name: 0.8 * mean[name] + 0.2 * value if value.is_floating_point() else value
            for name, value in state.items()
        }
    for name, value in found[-1].items():
        assert torch.allclose(value, mean[name], atol=1e-6)


def test_an_epoch_is_chosen_by_the_mean(tmp_path: Path) -> None:
    learner, found = learned(averaging(0.5), valid=True, checkpoint=tmp_path / "some.safetensors")
    saved = load_tree(tmp_path / "some.safetensors", CHECKPOINT)
    assert all(torch.equal(found[-1][name], value) for name, value in saved["best"].items())
    if saved["best_epoch"] == len(saved["curves"]):
        assert all(torch.equal(saved["mean"][name], value) for name, value in saved["best"].items())
    assert "best by validation loss" in learner.tasks["a"].selection


@pytest.mark.parametrize("valid", [False, True])
def test_a_training_with_a_mean_goes_on_where_it_was_killed(valid: bool, tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    learners = [ff.WSN(copy.deepcopy(module), capacity=0.5, recipe=averaging()) for _ in range(3)]

    def stop(step: ff.Progress) -> None:
        if step.finished and step.epoch == 2:
            raise KeyboardInterrupt

    learners[0].learn(small_task(valid))
    with pytest.raises(KeyboardInterrupt):
        learners[1].learn(small_task(valid), checkpoint=path, progress=stop)
    learners[2].learn(small_task(valid), checkpoint=path)
    asked = torch.randn(5, 6)
    assert torch.equal(learners[0].predict(asked, "a"), learners[2].predict(asked, "a"))


def test_a_mean_that_cannot_be_is_refused() -> None:
    for wrong in (0.0, 1.0, 2, "0.5", True):
        with pytest.raises(ff.InputError, match="average"):
            averaging(wrong)  # type: ignore[arg-type]
