"""The task-incremental protocol: every cell measured, nothing copied, tests never seen by the learner."""

import pytest
import torch
from torch import nn

import forgetfree as ff
from forgetfree.lab.backbones.mlp import mlp
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.lab.protocols import til

RECIPE = ff.Recipe(epochs=1, batch_size=64)


@pytest.fixture(scope="module")
def benchmark_():
    return BENCHMARKS["digits_permuted"](tasks=3, seed=0)


def backbone():
    return nn.Sequential(nn.Linear(64, 30), nn.ReLU())


class Spy(ff.WSN):
    """Counts what is asked, and can be told to answer wrongly about old tasks."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked, self.spoil = [], False

    def predict(self, inputs, task):
        self.asked.append((len(self.tasks), task))
        answer = super().predict(inputs, task)
        old = self.spoil and list(self.tasks).index(task) < len(self.tasks) - 1
        return answer.nextafter(answer + 1) if old else answer


def test_every_cell_on_and_below_the_diagonal_is_measured_by_asking(benchmark_):
    spy = Spy(backbone(), capacity=0.5, recipe=RECIPE)
    record = til.run(spy, benchmark_, dense=1920, batch=10_000)
    names = [task.name for task in benchmark_.tasks]
    assert spy.asked == [(t + 1, names[i]) for t in range(3) for i in range(t + 1)]
    for t, row in enumerate(record.accuracy):
        assert [value is None for value in row] == [i > t for i in range(3)]
    assert record.different == 0
    assert record.compared == 3 * len(benchmark_.tests[names[0]].labels)


def test_first_and_last_leaves_the_other_cells_empty(benchmark_):
    learner = ff.WSN(backbone(), capacity=0.5, recipe=RECIPE)
    record = til.run(learner, benchmark_, dense=1920, evaluate="first-and-last")
    assert [[value is None for value in row] for row in record.accuracy] == [
        [False, True, True],
        [True, False, True],
        [False, False, False],
    ]
    assert record.bwt == 0


def test_an_answer_that_changes_by_one_bit_is_counted(benchmark_):
    spy = Spy(backbone(), capacity=0.5, recipe=RECIPE)
    spy.spoil = True
    record = til.run(spy, benchmark_, dense=1920)
    assert record.different == record.compared > 0


def test_a_learner_that_collects_is_finished_once_and_has_only_a_last_row(benchmark_):
    learner = ff.METHODS["multitask"](backbone(), recipe=RECIPE)
    record = til.run(learner, benchmark_, dense=1920)
    assert record.accuracy[0] == record.accuracy[1] == [None] * 3
    assert None not in record.accuracy[2]
    assert record.bwt is None


def test_accuracy_is_that_of_the_test_set(benchmark_):
    learner = ff.WSN(backbone(), capacity=0.5, recipe=ff.Recipe(epochs=8, batch_size=32, lr=0.01))
    record = til.run(learner, benchmark_, dense=1920)
    exam = benchmark_.tests[record.tasks[0]]
    right = (learner.predict(exam.inputs, record.tasks[0]).argmax(1) == exam.labels).float().mean()
    assert record.accuracy[2][0] == pytest.approx(float(right), abs=2e-3)
    assert record.acc > 0.7
    assert torch.tensor(record.footprints[-1]["density"]) > 0.5


@pytest.mark.parametrize("method", ["wsn", "finetune", "single_task", "multitask"])
def test_the_last_row_is_measured_from_the_archive(benchmark_, tmp_path, method):
    extra = {"capacity": 0.5} if method == "wsn" else {}
    learner = ff.METHODS[method](mlp(inputs=64, hidden=(30,)), recipe=RECIPE, **extra)
    record = til.run(learner, benchmark_, dense=1920, archive=tmp_path / "memory.ticket")
    assert record.archive["bytes"] == (tmp_path / "memory.ticket").stat().st_size
    assert record.archive["verified"]
    assert record.archive["different"] == 0
    assert record.archive["compared"] == 3 * len(benchmark_.tests["digits_permuted 1"].labels)
    cost = record.footprints[-1]
    assert cost["written"] == record.archive["bytes"] / (4 * 1920)
    assert cost["written"] - cost["written_without_heads"] == pytest.approx(
        record.archive["sections"]["heads"] / (4 * 1920)
    )
    again = ff.load(tmp_path / "memory.ticket")
    for value, (name, exam) in zip(record.accuracy[-1], benchmark_.tests.items(), strict=True):
        assert value == float((again.predict(exam.inputs, name).argmax(1) == exam.labels).double().mean())


@pytest.mark.parametrize("released", [True, False])
def test_a_record_says_where_answers_depend_on_their_batch(released):
    norm = nn.BatchNorm1d(20, affine=not released, track_running_stats=not released)
    learner = ff.WSN(nn.Sequential(nn.Linear(64, 20), norm, nn.ReLU()), capacity=0.3, recipe=RECIPE)
    record = til.run(learner, BENCHMARKS["digits_split"](), dense=1280, batch=64)
    assert ("64 at a time, in the order of the test set" in record.notes.get("answers", "")) == released
