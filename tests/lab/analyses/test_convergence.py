"""Ratios of gradient change to weight change: by hand on a quadratic loss, and of random pairs at their distance."""

import pytest
import torch

from forgetfree.lab.analyses import convergence
from forgetfree.lab.analyses.convergence import analyse, applies, random_pairs, ratio
from forgetfree.lab.analyses.replay import Snapshot
from forgetfree.lab.analyses.subject import Subject
from forgetfree.lab.experiment import perform, plan
from forgetfree.lab.records import RunFolder

HESSIAN = torch.tensor([[4.0, 3.0, 0.0], [3.0, 2.0, 1.0], [0.0, 1.0, 5.0]], dtype=torch.float64)


def quadratic(seen):
    return seen @ HESSIAN @ seen / 2


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("mask", "printed", "followed"),
    [
        (row(1, 1, 1), (57 / 2) ** 0.5, (57 / 2) ** 0.5),  # weights change by (1, 0, 1), the gradient by (4, 4, 5)
        (row(1, 0, 1), (57 / 2) ** 0.5, (41 / 2) ** 0.5),
        (row(0, 1, 1), 26**0.5, 26**0.5),  # by (0, 0, 1) and (0, 1, 5)
        (row(0, 0, 1), 26**0.5, 5.0),
        (row(0.5, 1, 0), 5.0, 3.25**0.5 / 0.5),  # by (0.5, 0, 0) and (2, 1.5, 0), of which θ has (1, 1.5, 0)
    ],
)
def test_the_ratio_of_a_quadratic_loss_is_that_by_hand(mask, printed, followed):
    assert ratio(quadratic, (row(2, 7, 3), row(1, 7, 2)), mask) == pytest.approx((printed, followed))


@pytest.mark.parametrize("radius", [0.01, 2.0])
def test_random_pairs_are_seen_at_their_distance_and_hidden_weights_stay(radius):
    end = Snapshot(1, row(1, 2, 3, 4), row(1, 0, 0.25, 1))
    pairs = list(random_pairs(end, radius, seed=3))
    assert len(pairs) == convergence.DRAWS
    for one, other in pairs:
        assert torch.equal(one, end.weights)
        assert float(((one - other) * end.mask).norm()) == pytest.approx(radius)
        assert one[1] == other[1]
    assert torch.equal(pairs[0][1], next(random_pairs(end, radius, seed=3))[1])
    assert not torch.equal(pairs[0][1], pairs[1][1])
    assert not torch.equal(pairs[0][1], next(random_pairs(end, radius, seed=4))[1])


@pytest.mark.parametrize("method", ["ncm", "hardnet", "softnet"])
def test_an_analysis_has_every_kind_of_pair_by_both_readings(method, tmp_path, monkeypatch):
    monkeypatch.setattr(convergence, "DRAWS", 5)
    (short,) = plan("fscil/iris", methods=[method], overrides={"recipe.epochs": 3})
    assert applies(short)
    perform(short, tmp_path)
    subject, told = Subject(RunFolder(tmp_path / short.folder)), []
    found = analyse(subject, told.append)
    assert found == analyse(subject, lambda done: None)
    assert list(found["ratios"]) == ["epochs", "0.01", "0.1", "1"]
    for readings in found["ratios"].values():
        printed, followed = readings["printed"], readings["followed"]
        assert printed["quantiles"] == sorted(printed["quantiles"])
        assert 0 < followed["mean"] <= printed["mean"] <= printed["largest"]
        assert (printed == followed) is (method == "ncm")
    assert told == sorted(told)
    assert told[-1] == 1
