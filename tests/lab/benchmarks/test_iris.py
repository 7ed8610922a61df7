"""Iris: one session of three species, every flower once, lengths standardised by those that are not tested."""

import pytest
import torch
from sklearn.datasets import load_iris

import forgetfree as ff
from forgetfree.lab.benchmarks.fscil_iris import fscil_iris
from forgetfree.lab.experiment import perform, plan
from forgetfree.methods import METHODS
from forgetfree.testing import check_benchmark


def parts(benchmark):
    """Inputs and labels that train, validate and test."""
    (task,) = benchmark.tasks
    exam = benchmark.tests[task.name]
    return task.train, task.valid, (exam.inputs, exam.labels)


def test_iris_keeps_the_contract():
    check_benchmark(lambda seed: fscil_iris(seed=seed))


def test_there_is_one_session_of_three_species():
    benchmark = fscil_iris()
    (task,) = benchmark.tasks
    assert task.classes == ("setosa", "versicolor", "virginica")
    counts = [labels.bincount().tolist() for _, labels in parts(benchmark)]
    assert counts == [[32, 32, 32], [8, 8, 7], [10, 10, 10]]


def test_every_different_flower_is_there_once_and_lengths_are_standardised_without_the_tested():
    train, valid, test = (inputs.double() for inputs, _ in parts(fscil_iris(seed=4)))
    known = torch.cat([train, valid])
    assert known.mean(0).tolist() == pytest.approx([0] * 4, abs=1e-6)
    assert known.std(0).tolist() == pytest.approx([1] * 4, abs=1e-6)
    assert float(test.mean(0).abs().max()) > 1e-3
    original = torch.from_numpy(load_iris().data).unique(dim=0)
    assert len(original) == len(known) + len(test) == 149
    width = original.std(0) / torch.cat([known, test]).std(0)
    back = torch.cat([known, test]) * width
    back = back - back.mean(0) + original.mean(0)
    assert torch.allclose(back.sort(0).values, original.sort(0).values, atol=1e-5)


def test_the_seed_draws_who_tests():
    one, other = (parts(fscil_iris(seed=seed))[2][0] for seed in (0, 1))
    assert not torch.equal(one, other)
    with pytest.raises(ff.InputError, match="held_out is the fraction"):
        fscil_iris(held_out=0.0)


@pytest.mark.parametrize("method", [name for name, made in METHODS.items() if made.scenario == "fscil"])
def test_one_session_is_enough_for_every_method(method, tmp_path):
    (short,) = plan("fscil/iris", methods=[method], scale="smoke")
    record = perform(short, tmp_path)
    (session,) = record.by_session
    assert session.novel is None
    assert session.overall == session.base == record.acc
    assert record.archive["verified"]
    assert record.archive["different"] == 0


def test_the_first_seventy_epochs_do_not_know_how_many_follow():
    (whole,) = plan("fscil/iris", methods=["softnet"])
    recipe = whole.settings["recipe"]
    assert recipe["epochs"] == 100
    assert recipe["patience"] is None
    assert recipe["milestones"] == ()
