"""The few-shot protocol: what is measured after each session, what is looked at when, and what is shared."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forgetfree as ff
from forgetfree.lab.benchmarks.fscil_digits import fscil_digits
from forgetfree.lab.experiment import perform, plan
from forgetfree.lab.metrics import SessionAccuracy, performance_drop, session_accuracies
from forgetfree.lab.protocols.fscil import run

RECIPE = ff.Recipe(epochs=3, batch_size=32)
DENSE = 64 * 32


def learner(method: str = "ncm", **settings: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
    return ff.METHODS[method](network, recipe=RECIPE, **settings)


class Asked:
    """A learner that writes down which images it was asked, after which session."""

    def __init__(self, inner: Any):
        self.inner, self.log = inner, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def predict(self, inputs: Any) -> Any:
        self.log.append((len(self.inner.tasks), inputs))
        return self.inner.predict(inputs)


def test_every_session_is_tested_on_all_classes_met_and_no_image_before_its_session():
    benchmark, asked = fscil_digits(), Asked(learner())
    record = run(asked, benchmark, dense=DENSE)
    for t, name in enumerate(benchmark.names):
        images = {tuple(row) for row in benchmark.tests[name].inputs.tolist()}
        times = [after for after, inputs in asked.log if images & {tuple(row) for row in inputs.tolist()}]
        assert min(times) == t + 1
        assert max(times) == len(benchmark.names)
    assert [sum(value is not None for value in row) for row in record.accuracy] == [1, 2, 3, 4, 5, 6]
    assert record.sessions["classes"] == [5, 1, 1, 1, 1, 1]


def test_the_numbers_are_those_of_the_answers():
    benchmark, made = fscil_digits(tasks=3), learner()
    record = run(made, benchmark, dense=DENSE)
    exams = [benchmark.tests[name] for name in benchmark.names]
    inputs = torch.cat([exam.inputs for exam in exams])
    labels = torch.cat([exams[0].labels, exams[1].labels + 5, exams[2].labels + 6])
    given = torch.cat([made.predict(part) for part in inputs.split(256)]).argmax(1)
    right = given == labels
    last = record.by_session[-1]
    assert last.overall == pytest.approx(float(right.float().mean()), abs=1e-6)
    assert last.base == pytest.approx(float(right[labels < 5].float().mean()), abs=1e-6)
    assert last.novel == pytest.approx(float(right[labels >= 5].float().mean()), abs=1e-6)
    assert last.harmonic == pytest.approx(2 * last.base * last.novel / (last.base + last.novel))
    assert record.acc == last.overall
    confusion = torch.tensor(record.sessions["confusion"][-1])
    assert confusion.sum(1).tolist() == record.sessions["tested"] == [len(exam.labels) for exam in exams]
    assert int(confusion[0, 1:].sum()) == int(((labels < 5) & (given >= 5)).sum())
    mistakes = record.sessions["mistakes"]
    assert sum(count for _, _, count in mistakes) == int((~right).sum())
    first = mistakes[0]
    assert first[2] == int(((labels == first[0]) & (given == first[1])).sum())  # digits are named by their positions


def test_session_accuracies_by_hand():
    # after session 1: 80 of 100 right; after session 2: 70 of 100 base and 5 of 20 novel
    found = session_accuracies([[0.8, None], [0.7, 0.25]], [100, 20])
    assert found == [SessionAccuracy(0.8, 0.8, None), SessionAccuracy(75 / 120, 0.7, 0.25)]
    assert found[0].harmonic is None
    assert found[1].harmonic == pytest.approx(2 * 0.7 * 0.25 / 0.95)
    assert performance_drop(found) == pytest.approx(0.8 - 75 / 120)
    assert session_accuracies([[0.8, None], [None, None]], [100, 20])[1] is None
    assert performance_drop([found[0], None]) is None
    assert SessionAccuracy(0.5, 0.0, 0.0).harmonic == 0.0


def test_methods_that_start_alike_read_one_base_network(tmp_path):
    (first,) = plan("fscil/digits", methods=["ncm"], scale="smoke")
    (other,) = plan("fscil/digits", methods=["ncm"], scale="smoke", overrides={"heads": "cosine"})
    one = perform(first, tmp_path)
    (base,) = (tmp_path / "bases").glob("*.safetensors")
    written = base.stat().st_mtime_ns
    two = perform(other, tmp_path)
    assert base.stat().st_mtime_ns == written  # read, not learned again
    assert one.notes["base"] == two.notes["base"] == base.stem
    assert one.curves == two.curves
    assert one.notes["weights"] == "from scratch"
    (alone,) = plan("fscil/digits", methods=["ncm"], scale="smoke", overrides={"heads": "cosine"})
    assert perform(alone, tmp_path / "elsewhere").reproducible() == two.reproducible()
    (apart,) = plan("fscil/digits", methods=["joint"], scale="smoke", overrides={"heads": "linear_without_bias"})
    assert perform(apart, tmp_path).notes["base"] != base.stem  # another network beside it


def test_runs_at_the_same_time_do_not_learn_the_base_twice(tmp_path):
    path, learned = tmp_path / "base.safetensors", []

    def one(made: Any) -> None:
        run(made, fscil_digits(tasks=2), dense=DENSE, base=path, progress=lambda step: learned.append(step.epoch))
        finished.append(made)

    finished: list[Any] = []
    threads = [threading.Thread(target=one, args=(learner(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(finished) == 2
    assert len(learned) == RECIPE.epochs


def test_the_last_row_is_what_the_archive_answers(tmp_path):
    (each,) = plan("fscil/digits", methods=["softnet"], scale="smoke")
    record = perform(each, tmp_path)
    folder = tmp_path / each.folder
    assert record.archive["verified"]
    assert record.archive["different"] == 0
    assert record.archive["compared"] == sum(record.sessions["tested"])
    again = ff.load(folder / "memory.ticket")
    assert len(again.classes) == 7
    assert ff.verify(folder / "memory.ticket").ok
    assert [entry["name"] for entry in ff.inspect(folder / "memory.ticket").tasks] == record.tasks


def test_a_killed_run_goes_on_to_the_same_record(tmp_path: Path):
    (each,) = plan("fscil/digits", methods=["softnet"], scale="smoke")
    whole = perform(each, tmp_path / "whole")

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "tested" and event["done"] > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(each, tmp_path / "broken", say=stop)
    assert perform(each, tmp_path / "broken").reproducible() == whole.reproducible()
