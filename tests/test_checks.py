"""Settings that cannot be are refused in words, by every method."""

import math

import pytest
from torch import nn

import forgetfree as ff
from forgetfree.batches import batches
from forgetfree.checks import check_number, check_one_of, check_switch, check_whole
from forgetfree.testing import small_tasks

WRONG = [
    ("wsn", {"capacity": 0.3, "background_noise": "a"}, "background_noise"),
    ("hat", {"smax": "a"}, "smax"),
    ("hat", {"smax": None}, "smax"),
    ("hat", {"sparsity": -1}, "sparsity"),
    ("hat", {"hard": "no"}, "hard is True or False"),
    ("packnet", {"capacity": 0.3, "refill": "no"}, "refill is True or False"),
    ("supsup", {"capacity": 0.3, "transfer": 1}, "transfer is True or False"),
    ("piggyback", {"threshold": "a"}, "threshold"),
    ("piggyback", {"threshold": -math.inf}, "threshold"),
    ("piggyback", {"first_score": math.inf}, "first_score"),
    ("piggyback", {"first_score": 0.001}, "above the threshold"),
]


@pytest.mark.parametrize(("method", "settings", "words"), WRONG)
def test_a_setting_that_cannot_be_is_refused_by_name(method, settings, words):
    with pytest.raises(ff.InputError, match=words):
        ff.METHODS[method](nn.Linear(8, 4), **settings)


def test_numbers_and_switches():
    assert check_number("n", 3, 0) == 3.0
    assert check_switch("s", False) is False
    for value in (True, "3", None, math.nan, math.inf, -1, 5):
        with pytest.raises(ff.InputError, match=r"n is a number at least 0 and below 5; got"):
            check_number("n", value, 0, below=5)


def test_a_zero_shot_answer_explains_what_it_cannot_take():
    first, second, _ = small_tasks()
    learner = ff.WSN(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), capacity=0.5, recipe=ff.Recipe(epochs=1))
    learner.learn(first)
    with pytest.raises(ff.InputError, match="a Task that is not learned; got 'task 1'"):
        learner.zero_shot(second.train[0], second.name)
    with pytest.raises(ff.InputError, match="cannot take inputs"):
        learner.zero_shot(second.train[0][:, :5], second)
    with pytest.raises(ff.InputError, match="was learned on inputs"):
        learner.zero_shot(second.train[0][0], second)


def test_the_loss_of_hat_can_be_asked_in_eval_mode_before_any_step():
    (task,) = small_tasks(1)
    learner = ff.METHODS["hat"](nn.Sequential(nn.Linear(8, 16), nn.ReLU()))
    batch = next(batches(task, task.train, 16))
    with learner.learning(task) as session:
        session.eval()
        settled = session.loss(batch).detach()
        session.train()
        session.loss(batch)
        session.eval()
        assert session.loss(batch).detach() == settled


def test_whole_numbers_and_choices_are_taken_or_refused_by_name() -> None:
    assert check_whole("n", 3, 1) == 3
    for wrong in (0, -1, 1.0, True, "3", None):
        with pytest.raises(ff.InputError, match="n is a whole number of at least 1; got"):
            check_whole("n", wrong, 1)  # type: ignore[arg-type]
    assert check_one_of("colour", "red", "red", "blue") == "red"
    with pytest.raises(ff.InputError, match="colour is 'red' or 'blue'; got 'green'"):
        check_one_of("colour", "green", "red", "blue")
