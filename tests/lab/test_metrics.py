"""ACC, BWT and CAP against cases computed by hand."""

import pytest
import torch

from forgetfree.contracts import Memory
from forgetfree.lab.metrics import average_accuracy, backward_transfer, footprint
from forgetfree.tickets import PackedMask, Ticket

MATRIX = [[0.9, None, None], [0.7, 0.8, None], [0.6, 0.9, 0.5]]


def test_acc_is_the_mean_of_the_last_row():
    assert average_accuracy(MATRIX) == pytest.approx((0.6 + 0.9 + 0.5) / 3)


def test_bwt_is_the_mean_change_since_each_task_was_learned():
    assert backward_transfer(MATRIX) == pytest.approx(((0.6 - 0.9) + (0.9 - 0.8)) / 2)


def test_bwt_is_none_where_the_first_measurement_is_missing():
    assert backward_transfer([[None] * 2, [0.5, 0.6]]) is None


def test_acc_of_an_incomplete_matrix_is_an_error():
    with pytest.raises(ValueError, match="every task"):
        average_accuracy([[0.5, None]])


def mask(*ones, size=100):
    bits = torch.zeros(size, dtype=torch.bool)
    bits[list(ones)] = True
    return PackedMask.pack(bits)


def test_the_formula_counts_used_weights_and_coded_mask_bits():
    memory = Memory(
        shared={"w": torch.zeros(100)},
        used={"w": mask(*range(25))},
        common={},
        tickets={"a": Ticket({"w": mask(*range(20))}), "b": Ticket({"w": mask(*range(10, 25))}, {"b": torch.zeros(3)})},
        heads={"a": {"weight": torch.zeros(4, 5)}},
    )
    result = footprint(memory, dense=100)
    assert (result.weights, result.mask_bits, result.own, result.heads) == (25, 200, 3, 20)
    assert result.density == pytest.approx(0.25)
    assert result.formula == pytest.approx(0.25 + 0.22 * 2 / 32)


def test_networks_that_are_not_shared_cost_one_hundred_percent_each():
    memory = Memory({f"{t}/w": torch.zeros(100) for t in range(3)}, {}, {}, {}, {})
    assert footprint(memory, dense=100).formula == pytest.approx(3.0)
