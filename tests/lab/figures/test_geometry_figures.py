"""Landscape, convergence, embedding: what they measure, from analyses written by hand, and what they refuse."""

import pytest

from forgetfree.lab.report.drawing import Group, drawn
from forgetfree.lab.report.figures import convergence, embedding_map, loss_landscape
from forgetfree.lab.report.figures.beside import beside
from forgetfree.lab.report.figures.figure import Missing
from forgetfree.lab.report.figures.ink import as_svg

ONE = {"accuracy": [[0.9]], "sessions": {"tested": [30], "classes": [3]}, "experiment": "fscil/iris"}
TWO = {"sessions": {"tested": [60, 20], "classes": [5, 1]}, "accuracy": [[0.9, None], [0.8, 0.7]]}
KINDS = ("epochs", "0.1")


def network(epoch, eigenvalue, loss, weights=9):
    grid = [[loss + abs(x) + 2 * abs(y) for x in (-1, 0, 1)] for y in (-1, 0, 1)]
    return {
        "epoch": epoch, "loss": loss, "weights": weights, "eigenvalues": [eigenvalue, 0.5],
        "eigenvalues_in_all": [2 * eigenvalue, 0.5], "grid": grid,
    }  # fmt: skip


def landscape(eigenvalue, loss):
    return {"steps": [-1, 0, 1], "networks": [network(70, 9.0, 0.5), network(100, eigenvalue, loss)]}


def ratios(*middles):
    """Ratios around a median for each kind; the gradient that training follows changes half as much."""
    found = {}
    for kind, middle in zip(KINDS, middles, strict=True):
        quantiles = [middle * part for part in (0.2, 0.5, 1, 2, 5)]
        halves = [value / 2 for value in quantiles]
        found[kind] = {"printed": {"quantiles": quantiles}, "followed": {"quantiles": halves}}
    return {"ratios": found}


def places(base, novel):
    return {
        "x": [0, 1, 2, 3], "y": [3, 2, 1, 0], "class": [0, 0, 2, 5], "novel": [0, 0, 0, 1], "sessions": 2,
        "silhouette": {"all": 0.0, "base": base, "novel": novel},
    }  # fmt: skip


@pytest.fixture
def with_analysis(seen):
    """A run of a method, and what an analysis found of it."""

    def make(name, found, method, **settings):
        run = seen(method, **settings)
        run.folder.keep_analysis(name, found)
        return run

    return make


@pytest.fixture
def networks(with_analysis):
    """Dense network, HardNet and SoftNet of two seeds, the subnetworks also at another capacity."""

    def make(name, found):
        return [
            with_analysis(name, found[method][seed], method, seed=seed, capacity=capacity, **ONE)
            for method in ("softnet", "ncm", "hardnet")
            for seed in (0, 1)
            for capacity in ((0.5, 0.1) if method != "ncm" else (0.1,))
        ]

    return make


@pytest.fixture
def landscapes(networks):
    found = {
        "ncm": [landscape(8.0, 0.1), landscape(6.0, 0.2)],
        "hardnet": [landscape(2.0, 0.3), landscape(3.0, 0.3)],
        "softnet": [landscape(1.0, 0.2), landscape(2.0, 0.2)],
    }
    return networks("landscape", found)


def test_landscapes_are_those_of_the_first_seed_by_epoch_and_network(landscapes):
    found = loss_landscape.measure(landscapes)
    assert (found.capacity, found.seeds, found.steps) == (0.1, (0, 1), (-1, 0, 1))
    assert [[panel.name for panel in row] for row in found.rows] == [["NCM", "HardNet", "SoftNet"]] * 2
    assert [[panel.epoch for panel in row] for row in found.rows] == [[70] * 3, [100] * 3]
    assert [panel.eigenvalues for panel in found.rows[1]] == [(8.0, 0.5), (2.0, 0.5), (1.0, 0.5)]
    assert found.rows[1][0].grid[0] == pytest.approx((3.1, 2.1, 3.1))
    assert [one.eigenvalue for one in found.reached] == [(8.0, 6.0), (2.0, 3.0), (1.0, 2.0)]
    assert [one.in_all for one in found.reached] == [(16.0, 12.0), (4.0, 6.0), (2.0, 4.0)]
    assert [one.loss for one in found.reached] == [(0.1, 0.2), (0.3, 0.3), (0.2, 0.2)]


def test_landscapes_say_eigenvalues_losses_and_weights(landscapes):
    words = loss_landscape.words(loss_landscape.measure(landscapes))
    assert "NCM 7.00 ± 1.00 (14.00 ± 2.00), loss 0.150 ± 0.050, 9 weights" in words
    assert "the head dense in all" in words
    alone = [run for run in landscapes if run.plan["run"]["seed"] == 1]
    assert "one seed: NCM 6.00 (12.00), loss 0.200, 9 weights; HardNet 3.00" in loss_landscape.words(
        loss_landscape.measure(alone)
    )


@pytest.fixture
def ratio_runs(networks):
    found = {
        "ncm": [ratios(0.4, 0.4), ratios(0.8, 0.8)],
        "hardnet": [ratios(0.1, 0.7), ratios(0.3, 0.9)],
        "softnet": [ratios(0.2, 0.2), ratios(0.3, 0.4)],
    }
    return networks("convergence", found)


def test_ratios_are_means_of_the_quantiles_over_seeds(ratio_runs):
    found = convergence.measure(ratio_runs)
    assert (found.capacity, found.seeds, found.kinds) == (0.1, 2, KINDS)
    dense, hard, soft = found.readings["printed"]
    assert dense.quantiles[0] == pytest.approx((0.12, 0.3, 0.6, 1.2, 3.0))
    assert [one.medians[1] for one in (dense, hard, soft)] == pytest.approx([0.6, 0.8, 0.3])
    assert found.readings["followed"][0].medians == pytest.approx((0.3, 0.3))


def test_ratios_say_how_often_each_inequality_holds(ratio_runs):
    words = convergence.words(convergence.measure(ratio_runs))
    assert "one epoch: 0.6, 0.2, 0.25; distance 0.1: 0.6, 0.8, 0.3" in words
    assert "below the dense network in 1 and SoftNet is not above HardNet in 1 of 2 kinds of pairs" in words
    assert "evidence, not proof" in words


@pytest.fixture
def maps(with_analysis):
    found = {"hardnet": [places(0.5, 0.1), places(0.3, 0.2)], "softnet": [places(0.6, 0.4), places(0.8, 0.2)]}
    return [
        with_analysis("embedding", found[method][seed], method, seed=seed, capacity=0.3, **TWO)
        for method in found
        for seed in (0, 1)
    ]


def test_maps_are_of_the_first_seed_and_silhouettes_of_all(maps):
    found = embedding_map.measure(maps)
    hard, soft = found.maps
    assert (hard.name, soft.name, found.capacity, found.sessions) == ("HardNet", "SoftNet", 0.3, 2)
    assert (hard.x, hard.classes, hard.novel) == ((0, 1, 2, 3), (0, 0, 2, 5), (False, False, False, True))
    assert hard.silhouette == {"base": 0.5, "novel": 0.1}
    assert hard.mean_silhouette == pytest.approx({"base": 0.4, "novel": 0.15})
    assert soft.mean_silhouette == pytest.approx({"base": 0.7, "novel": 0.3})
    words = embedding_map.words(found)
    assert "4 test images by t-SNE, seed 0: 2 base classes of even number (dots), 1 of the second session" in words
    assert "after all 2 sessions" in words
    assert "mean of 2 seeds: HardNet 0.400 (base), 0.150 (novel); SoftNet 0.700 (base), 0.300 (novel)" in words


def test_every_figure_is_drawn_with_its_numbers(landscapes, ratio_runs, maps):
    for name, runs, shown in (
        ("loss_landscape", landscapes, ["NCM, epoch 100", "λ = 8.00, 0.50; loss 0.100", "training loss"]),
        ("convergence", ratio_runs, ["gradient in all weights, as printed", "SoftNet", "distance"]),
        ("embedding_map", maps, ["HardNet, c = 30 %", "silhouette: base 0.600, novel 0.400"]),
    ):
        group = Group("fscil/iris", "cpu", "", runs)
        picture = as_svg(drawn(name, group).drawing)
        assert all(text in picture for text in shown), name
        assert picture == as_svg(drawn(name, group).drawing)


# What cannot be drawn


def test_of_several_capacities_the_nearest_that_all_have_is_taken(seen):
    runs = [seen("hardnet", capacity=c, **TWO) for c in (0.1, 0.5, 0.8)]
    runs += [seen("softnet", capacity=c, **TWO) for c in (0.5, 0.8)]
    methods = ("hardnet", "softnet")
    assert beside(runs, methods, near=0.1).capacity == 0.5
    assert beside(runs, methods, near=0.7).capacity == 0.8
    with pytest.raises(Missing, match=r"no capacity is the same .* --set capacity=0\.3"):
        beside([runs[0], *runs[3:]], methods, near=0.3)


def test_runs_without_a_partner_name_the_command_that_makes_it(seen):
    with pytest.raises(Missing, match="forgetfree run fscil/digits --scale cpu --seed 0 --method softnet"):
        beside([seen("hardnet", **TWO)], ("hardnet", "softnet"), near=0.3)
    with pytest.raises(Missing, match="no seed is the same"):
        beside([seen("hardnet", seed=0, **TWO), seen("softnet", seed=1, **TWO)], ("hardnet", "softnet"), near=0.3)


def test_runs_of_another_kind_are_refused_in_words(seen):
    for figure in (loss_landscape, convergence):
        with pytest.raises(Missing, match="forgetfree run fscil/iris --method ncm --method hardnet --method softnet"):
            figure.measure([seen("wsn")])
    for runs in ([seen("wsn")], [seen("hardnet", **ONE)]):
        with pytest.raises(Missing, match="forgetfree run fscil/digits --method hardnet --method softnet"):
            embedding_map.measure(runs)


def test_a_missing_analysis_is_named(seen):
    runs = [seen(method, **ONE) for method in ("ncm", "hardnet", "softnet")]
    for figure, name in ((loss_landscape, "landscape"), (convergence, "convergence")):
        with pytest.raises(Missing, match=f"no analysis '{name}'; make it with: forgetfree analyse"):
            figure.measure(runs)
