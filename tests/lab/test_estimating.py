"""What --dry-run says of a plan is what its run does."""

import time

import pytest
from torch.utils.data import IterableDataset

from forgetfree.errors import InputError
from forgetfree.lab.experiment import build, estimate, estimating, plan
from forgetfree.lab.protocols.contracts import Collecting
from forgetfree.methods import METHODS
from forgetfree.training import Session

WORDS = {"til": "til/digits_split", "fscil": "fscil/digits"}
PLANS = [(name, {}) for name in METHODS] + [("joint", {"every": True}), ("crt", {"every": True})]


@pytest.fixture(autouse=True)
def _without_repeats(monkeypatch):
    monkeypatch.setattr(estimating, "STEPS", 1)
    monkeypatch.setattr(estimating, "SHORT", 1)


@pytest.fixture
def _untimed(monkeypatch):
    """A second for every step: of true time other tests speak."""
    monkeypatch.setattr(estimating, "_pace", lambda *_: estimating.Pace(0, 0, 1, 0))


def steps_of(made):
    """How many batches are trained on when the plan is run."""
    count = 0

    def loss(session, batch):
        nonlocal count
        count += 1
        return loss_of(session, batch)

    loss_of, Session.loss = Session.loss, loss
    try:
        benchmark, learner, _ = build(made)
        for task in benchmark.tasks:
            learner.learn(task)
        if isinstance(learner, Collecting):
            learner.finish()
    finally:
        Session.loss = loss_of
    return count


@pytest.mark.usefixtures("_untimed")
@pytest.mark.parametrize(("method", "settings"), PLANS, ids=lambda value: str(value))
def test_the_steps_of_an_estimate_are_those_of_the_run(method, settings):
    (made,) = plan(WORDS[METHODS.entry(method).scenario], methods=[method], scale="smoke", overrides=settings)
    cost = estimate(made)
    assert cost.steps == steps_of(made)
    assert cost.seconds >= cost.steps
    assert not cost.at_most


def test_rehearsal_times_steps_and_leaves_no_stand_in_behind():
    (made,) = plan("til/digits_split", scale="smoke")
    assert estimate(made).seconds > 0
    assert steps_of(made) > 0


def test_a_pass_after_training_is_in_the_estimate(monkeypatch):
    def rest(method, **overrides):
        (made,) = plan("til/digits_permuted", methods=[method], scale="smoke", overrides=overrides)
        return estimate(made).seconds

    assert rest("ewc", fisher_batch=1) > 2 * rest("finetune")


@pytest.mark.usefixtures("_untimed")
def test_an_estimate_is_an_upper_bound_where_training_may_stop_early():
    early = {"recipe.patience": 1, "recipe.min_lr": 1e-4, "recipe.epochs": 3}
    (made,) = plan("til/digits_split", scale="smoke", overrides=early)
    assert estimate(made).at_most


def test_an_absurd_number_of_tasks_is_refused_at_once():
    (made,) = plan("til/digits_permuted", scale="smoke", overrides={"benchmark.tasks": 10**8})
    started = time.monotonic()
    with pytest.raises(InputError, match="tasks is a whole number from 1 to 1000; got 100000000"):
        estimate(made)
    assert time.monotonic() - started < 1


@pytest.mark.usefixtures("_untimed")
def test_absurd_epochs_cost_nothing_to_estimate():
    (made,) = plan("til/digits_split", scale="smoke", overrides={"recipe.epochs": 10**8})
    assert estimate(made).steps > 10**8


@pytest.mark.usefixtures("_untimed")
def test_absurd_batches_are_those_that_there_are():
    (made,) = plan("til/digits_split", scale="smoke", overrides={"recipe.batch_size": 10**9})
    assert estimate(made).steps == 5


def test_a_stream_of_samples_is_timed_as_a_stream():
    assert isinstance(estimating._over_again(_Stream(), 5), IterableDataset)
    assert list(estimating._over_again(_Stream(), 5)) == [0, 1, 2, 0, 1]


class _Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))
