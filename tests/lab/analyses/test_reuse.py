"""Masks that are changed after learning: each variant by hand, and the ticket itself as it was recorded."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from forgetfree.lab.analyses import reuse
from forgetfree.lab.benchmarks.stream import TestSet
from forgetfree.lab.experiment import plan
from forgetfree.tickets import PackedMask, Ticket


def ticket(*bits):
    return Ticket({"weight": PackedMask.pack(torch.tensor([bits], dtype=torch.bool))})


TICKETS = {"one": ticket(1, 1, 0, 0), "two": ticket(1, 0, 1, 0), "three": ticket(1, 1, 1, 1)}


def test_what_was_used_before_and_by_all_is_known_for_each_task():
    found = [
        (name, before["weight"].int().tolist()[0], by_all["weight"].int().tolist()[0])
        for name, before, by_all in reuse.so_far(TICKETS)
    ]
    assert found == [
        ("one", [0, 0, 0, 0], [1, 1, 0, 0]),
        ("two", [1, 1, 0, 0], [1, 0, 0, 0]),
        ("three", [1, 1, 1, 0], [1, 0, 0, 0]),
    ]


@pytest.mark.parametrize(
    ("variant", "second", "third"),
    [
        ("ticket", [1, 0, 1, 0], [1, 1, 1, 1]),
        ("without reused", [0, 0, 1, 0], [0, 0, 0, 1]),
        ("without reused for all", [0, 0, 1, 0], [0, 1, 1, 1]),
        ("only reused", [1, 0, 0, 0], [1, 1, 1, 0]),
        ("all used", [1, 1, 1, 0], [1, 1, 1, 1]),
    ],
)
def test_variants_are_those_masks(variant, second, third):
    found = [
        reuse.VARIANTS[variant](TICKETS[name].mask("weight"), before["weight"], by_all["weight"]).int().tolist()[0]
        for name, before, by_all in reuse.so_far(TICKETS)
    ]
    assert found[1:] == [second, third]


def test_accuracy_is_that_of_the_masked_weights():
    modules = {"backbone": nn.Linear(2, 2, bias=False), "head": nn.Identity()}
    shared = {"weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]])}
    test_set = TestSet(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 1, 1]))
    everything, first = torch.ones(2, 2, dtype=torch.bool), torch.tensor([[True, True], [False, False]])
    assert reuse.accuracy(modules, shared, {"weight": everything}, test_set, 2) == 1.0
    assert reuse.accuracy(modules, shared, {"weight": first}, test_set, 2) == round(1 / 3, 6)


@pytest.mark.parametrize("method", ["wsn", "packnet"])
def test_tickets_as_they_are_answer_as_recorded(finished, method):
    subject = finished(method)
    found = json.loads(json.dumps(reuse.analyse(subject, lambda part: None)))
    assert found["as_recorded"]
    assert found["variants"]["ticket"] == [round(value, 6) for value in subject.record.accuracy[-1]]
    assert found["images"] == [len(subject.benchmark.tests[name].labels) for name in found["tasks"]]
    assert all(values[0] is None for name, values in found["variants"].items() if name != "ticket")
    assert all(values[0] is None and None not in values[1:] for values in found["layers"].values())


def test_another_record_is_noticed(finished):
    subject = replace(finished("wsn"))
    changed = [*subject.record.accuracy[-1]]
    changed[1] += 0.01
    subject.__dict__["record"] = replace(subject.record, accuracy=[*subject.record.accuracy[:-1], changed])
    assert not reuse.analyse(subject, lambda part: None)["as_recorded"]


def test_all_that_a_task_of_packnet_may_use_is_its_ticket(finished):
    found = reuse.analyse(finished("packnet"), lambda part: None)
    assert found["variants"]["all used"][1:] == found["variants"]["ticket"][1:]


def test_fewer_images_measure_everything_where_there_are_many(finished, monkeypatch):
    monkeypatch.setattr(reuse, "IMAGES", 50)
    found = reuse.analyse(finished("wsn"), lambda part: None)
    assert found["images"] == [50, 50, 50]
    assert found["as_recorded"]  # by all images
    assert all(50 * value == pytest.approx(round(50 * value)) for value in found["variants"]["ticket"])


@pytest.mark.parametrize(("method", "fits"), [("wsn", True), ("packnet", True), ("supsup", False)])
def test_only_methods_that_find_weights_learned_apply(method, fits):
    (short,) = plan("til/digits_permuted", methods=[method], scale="smoke")
    assert reuse.applies(short) == fits
