"""Replay and landscape: the network is that of the run, to the bits; its loss and its Hessian are those by hand."""

import shutil
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.nn import functional as F

import forgetfree as ff
from forgetfree.lab.analyses import landscape
from forgetfree.lab.analyses.landscape import analyse, applies, around, offsets, surroundings
from forgetfree.lab.analyses.replay import Replay, Snapshot, replay
from forgetfree.lab.analyses.subject import Subject
from forgetfree.lab.experiment import perform, plan
from forgetfree.lab.records import RunFolder

METHODS = ["ncm", "hardnet", "softnet"]


def nothing(_):
    """Nobody wants to know how far it has come."""


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """The subject of a method that learned Iris for four epochs; the same one whenever it is asked for."""
    out = tmp_path_factory.mktemp("flowers")

    @cache
    def make(method):
        (short,) = plan("fscil/iris", methods=[method], overrides={"recipe.epochs": 4})
        perform(short, out)
        return Subject(RunFolder(out / short.folder))

    return make


@pytest.fixture(scope="module")
def replayed(flowers):
    """All epochs of that run."""
    return cache(lambda method: replay(flowers(method), range(1, 5), nothing))


@pytest.mark.parametrize("method", METHODS)
def test_the_epoch_that_the_run_kept_is_among_the_snapshots_to_the_bits(method, flowers, replayed):
    subject = flowers(method)
    kept = torch.cat(
        [value.flatten() for value in subject.learner.task_modules("fscil_iris 1")["backbone"].parameters()]
    )
    epoch = int(subject.record.selections["fscil_iris 1"].split()[1])
    (snapshot,) = [one for one in replayed(method).snapshots if one.epoch == epoch]
    assert torch.equal(snapshot.seen[: len(kept)].float(), kept)


@pytest.mark.parametrize(("method", "ones", "counting"), [("ncm", 850, 850), ("hardnet", 87, 87), ("softnet", 87, 850)])
def test_masks_are_those_of_the_method_and_never_on_the_head(method, ones, counting, replayed):
    for snapshot in replayed(method).snapshots:  # a tenth of 100 and of 750 weights are 11 and 76: see kept_count
        backbone, head = snapshot.mask.split([850, 93])
        assert [int((backbone == 1).sum()), int((backbone > 0).sum())] == [ones, counting]
        assert bool((head == 1).all())


def test_the_loss_is_the_mean_over_the_training_flowers(flowers, replayed):
    found = replayed("softnet")
    inputs, labels = flowers("softnet").benchmark.tasks[0].train
    seen = found.snapshots[-1].seen
    first, second, head, bias = seen.split([100, 750, 90, 3])
    features = torch.relu(torch.relu(inputs.double() @ first.view(25, 4).T) @ second.view(30, 25).T)
    scores = features @ head.view(3, 30).T + bias
    assert float(found.loss(seen)) == pytest.approx(float(F.cross_entropy(scores, labels)))
    assert found.accuracy(seen) == pytest.approx(float((scores.argmax(1) == labels).double().mean()))


def test_a_run_whose_sessions_went_on_is_replayed_to_its_end(tmp_path):
    (short,) = plan("fscil/digits", methods=["softnet"], scale="smoke")
    perform(short, tmp_path)
    subject = Subject(RunFolder(tmp_path / short.folder))
    assert len(subject.record.tasks) == 3
    assert [one.epoch for one in replay(subject, [1], nothing).snapshots] == [1]


def test_another_network_than_that_of_the_archive_is_refused(flowers, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(flowers("hardnet").folder.path, folder)
    settings = folder / "run.toml"
    settings.write_text(settings.read_text().replace("lr = 0.01", "lr = 0.011", 1))
    with pytest.raises(ff.LearningError, match=r"not that of the archive; it differs in backbone\.1\.weight"):
        replay(Subject(RunFolder(folder)), [1], nothing)


@pytest.mark.parametrize("method", METHODS)
def test_eigenvalues_are_those_of_the_exact_hessian(method, replayed, monkeypatch):
    monkeypatch.setattr(landscape, "STEPS", 3)
    found = replayed(method)
    snapshot = found.snapshots[-1]
    there = surroundings(found, snapshot, seed=0)
    in_all = torch.autograd.functional.hessian(found.loss, snapshot.seen)
    count, mask = snapshot.counting, snapshot.mask[snapshot.counting]
    in_theta = mask[:, None] * in_all[count][:, count] * mask
    for key, matrix in (("eigenvalues", in_theta), ("eigenvalues_in_all", in_all)):
        values = torch.linalg.eigvalsh(matrix)
        leading = values[values.abs().argsort(descending=True)[:2]]
        assert there[key] == pytest.approx(leading.tolist(), rel=1e-4)
    assert there["weights"] == int(count.sum())


def test_the_grid_is_the_loss_along_both_directions():
    directions = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    grid = around(lambda w: 3 * w[0] ** 2 + w[1], torch.tensor([2.0, 5.0], dtype=torch.float64), directions)
    x, y = offsets(), offsets()
    assert torch.allclose(grid, 3 * (2 + y[:, None]) ** 2 + 5 + x)


def test_behind_a_mask_hidden_weights_are_no_coordinates_and_minor_ones_move_less(monkeypatch):
    monkeypatch.setattr(landscape, "STEPS", 3)
    curvature = torch.tensor([8.0, 4.0, 2.0], dtype=torch.float64)
    mask = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    snapshot = Snapshot(1, torch.tensor([9.0, 2.0, 3.0], dtype=torch.float64), mask)

    def loss(seen):
        return (curvature * seen**2).sum() / 2

    there = surroundings(Replay((snapshot,), lambda seen: seen[None], loss, torch.tensor([2])), snapshot, seed=0)
    assert there["loss"] == pytest.approx((4 * 1 + 2 * 9) / 2)
    assert there["eigenvalues"] == pytest.approx([2, 1])  # 2·1² and 4·0.5²
    assert there["eigenvalues_in_all"] == pytest.approx([8, 4])
    assert there["norm"] == pytest.approx(10**0.5, rel=1e-4)
    assert there["gradient"] == pytest.approx(40**0.5, rel=1e-4)  # (0.5·4·1, 1·2·3)


def test_an_analysis_has_both_epochs_and_is_the_same_twice(flowers, monkeypatch):
    monkeypatch.setattr(landscape, "STEPS", 5)
    told = []
    one, again = analyse(flowers("hardnet"), told.append), analyse(flowers("hardnet"), nothing)
    assert one == again
    assert [network["epoch"] for network in one["networks"]] == [3, 4]
    assert one["steps"] == [-1, -0.5, 0, 0.5, 1]
    for network in one["networks"]:
        assert network["grid"][2][2] == network["loss"]
    assert told == sorted(told)
    assert told[-1] == 1


def test_only_small_networks_are_looked_at():
    def fits(experiment, method, **overrides):
        (one,) = plan(experiment, methods=[method], overrides=overrides)
        return applies(one)

    assert all(fits("fscil/iris", method) and fits("fscil/digits", method) for method in METHODS)
    assert not fits("fscil/iris", "icarl")
    assert not fits("fscil/omniglot", "softnet")
    assert not fits("til/permuted_mnist", "wsn")
    (large,) = plan("fscil/digits", methods=["ncm"])
    backbone = {**large.settings["backbone"], "hidden": (1000, 64)}
    assert not applies(replace(large, settings={**large.settings, "backbone": backbone}))
