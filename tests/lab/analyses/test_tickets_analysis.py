"""Tickets as sets: counted by hand, and as the algebra of tickets has them."""

import json

import numpy as np
import pytest

from forgetfree.lab.analyses import tickets
from forgetfree.lab.experiment import plan
from forgetfree.tickets import new_in, overlap, reused_by_all, reused_in, used

# weights                0  1  2  3  4  5  6  7  8  9
MASKS = np.array([
    [1, 1, 1, 1, 0, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 1, 1, 0, 0, 0, 0],
    [1, 0, 1, 0, 0, 1, 0, 0, 0, 1],
], bool)  # fmt: skip
PACKED = list(np.packbits(MASKS, axis=1))
BOTH = np.array([[4, 2, 2], [2, 4, 2], [2, 2, 4]])


def test_five_sets_are_those_counted_by_hand():
    assert tickets.five_sets(PACKED) == {
        "all used": [4, 6, 7],
        "per task": [4, 4, 4],
        "new per task": [4, 2, 1],
        "reused per task": [0, 2, 3],
        "reused for all tasks": [0, 2, 1],
    }


def test_weights_are_counted_by_how_many_tasks_use_them():
    assert tickets.times_used(PACKED, 10) == [3, 3, 3, 1]


def test_overlaps_are_counted_by_hand():
    assert tickets.overlaps(PACKED).tolist() == BOTH.tolist()


def test_agreement_is_a_part_of_the_weights_of_the_row():
    smaller = np.array([[4, 1], [1, 2]])
    assert tickets.agreement(smaller) == [[1.0, 0.25], [0.5, 1.0]]


def test_correlation_is_that_of_the_maps_of_zeros_and_ones():
    expected = np.corrcoef(MASKS.astype(float))
    np.testing.assert_allclose(tickets.correlation(BOTH, 10), expected, atol=1e-5)


def test_a_mask_without_contrast_has_no_correlation():
    assert tickets.correlation(np.array([[10, 4], [4, 4]]), 10) == [[None, None], [None, 1.0]]


@pytest.mark.parametrize("method", ["wsn", "packnet"])
def test_a_run_is_counted_as_the_algebra_of_tickets_counts(finished, method):
    subject = finished(method)
    done = []
    found = json.loads(json.dumps(tickets.analyse(subject, done.append)))
    learned = subject.learner.memory().tickets
    names = list(learned)
    for layer in found["weights"]:
        for t, name in enumerate(names):
            so_far = {other: learned[other] for other in names[: t + 1]}
            expected = {
                "all used": used(so_far),
                "per task": {layer: learned[name].mask(layer)},
                "new per task": new_in(learned, name),
                "reused per task": reused_in(learned, name),
                **({"reused for all tasks": reused_by_all(so_far)} if t else {}),
            }
            for kind, members in expected.items():
                assert found["sets"][kind][layer][t] == int(members[layer].sum()), (kind, layer, t)
    one, other = learned[names[0]], learned[names[1]]
    both = sum(int(mask.sum()) for mask in overlap(one, other).values())
    assert found["agreement"][0][1] == round(both / sum(int(one.mask(name).sum()) for name in one.masks), 5)
    assert done[-1] == 1.0
    assert done == sorted(done)


def test_a_ticket_of_packnet_contains_those_before_it(finished):
    found = tickets.analyse(finished("packnet"), lambda part: None)
    assert [row[t + 1 :] for t, row in enumerate(found["agreement"])] == [[1.0, 1.0], [1.0], []]
    assert found["sets"]["all used"] == found["sets"]["per task"]


@pytest.mark.parametrize(("method", "fits"), [("wsn", True), ("packnet", True), ("finetune", False), ("hat", False)])
def test_only_methods_with_a_mask_for_each_task_apply(method, fits):
    (short,) = plan("til/digits_permuted", methods=[method], scale="smoke")
    assert tickets.applies(short) == fits
