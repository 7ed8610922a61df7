"""Heads that know classes by their means: what they are in the limit, and what never moves."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from forgetfree.class_heads import (
    LDA,
    TEEN,
    Bayes,
    BayesMeans,
    CentredCosine,
    Chosen,
    ClassHead,
    Means,
    NormalisedMeans,
    Ridge,
    RootedMeans,
    powered,
    shrunk,
    squared_distances,
)
from forgetfree.contracts import Task
from forgetfree.errors import InputError, LearningError
from forgetfree.moments import Moments, gather

WIDTH = 12
KINDS = [
    Means(), Means(metric="cosine"), NormalisedMeans(), RootedMeans(), CentredCosine(), TEEN(), LDA(), Bayes(),
    Bayes(bits=None), Bayes(novel_prior=3.0),
    Ridge(features=50), LDA(offset=0.3), NormalisedMeans(offset=-0.1),
]  # fmt: skip


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class World:
    """Classes whose means spread by psi, and images that spread by one around them."""

    def __init__(self, classes: int, psi: float = 2.0, width: int = WIDTH):
        self.draws = chance()
        self.centres = torch.randn(classes, width, generator=self.draws).double() * psi**0.5

    def images(self, label: int, count: int) -> Tensor:
        return self.centres[label] + torch.randn(count, self.centres.shape[1], generator=self.draws).double()

    def batches(self, labels: range, count: int) -> list[tuple[Tensor, Tensor]]:
        return [(self.images(label, count), torch.full((count,), label)) for label in labels]


def task(classes: int) -> Task:
    return Task("classes", tuple(range(classes)), (torch.zeros(classes, 1), torch.arange(classes)))


def moments_for(head: ClassHead, found: list[tuple[Tensor, Tensor]], labels: range) -> Moments:
    counts = torch.bincount(torch.cat([each for _, each in found]))[list(labels)] if head.balanced else None
    return gather(found, labels, head.lift, scatter=head.scatters, counts=counts)


def made(kind: Chosen, found: list[tuple[Tensor, Tensor]], classes: int, width: int = WIDTH) -> ClassHead:
    head = kind(width, task(classes))
    assert isinstance(head, ClassHead)
    return head.fitted(moments_for(head, found, range(classes)))


def extended(head: ClassHead, found: list[tuple[Tensor, Tensor]], labels: range) -> ClassHead:
    return head.extended(moments_for(head, found, labels))


# moments


def test_moments_are_those_of_all_features_at_once():
    world = World(5)
    found = [(world.images(i % 5, 7) + 1000, torch.full((7,), i % 5)) for i in range(15)]
    moments = gather(found, range(5), lambda z: z, scatter=True)
    z, y = torch.cat([f for f, _ in found]), torch.cat([labels for _, labels in found])
    means = torch.stack([z[y == c].mean(0) for c in range(5)])
    around = z - means[y]
    assert torch.allclose(moments.means, means)
    assert moments.counts.tolist() == [21] * 5
    assert torch.allclose(moments.within(), around.T @ around / (105 - 5), atol=1e-9)


def test_counts_give_every_class_the_same_say_in_the_scatter():
    world = World(2)
    found = [(world.images(0, 3), torch.zeros(3)), (world.images(1, 300), torch.ones(300))]
    found = [(z, y.long()) for z, y in found]
    moments = gather(found, range(2), lambda z: z, scatter=True, counts=torch.tensor([3, 300]))
    parts = [(z - z.mean(0)).T @ (z - z.mean(0)) / len(z) for z, _ in found]
    assert torch.allclose(moments.scatter, parts[0] + parts[1], atol=1e-9)


def test_other_classes_in_a_batch_are_passed_over():
    found = [(torch.eye(4), torch.tensor([0, 7, 1, 9]))]
    moments = gather(found, [1, 7], lambda z: z)
    assert torch.equal(moments.means, torch.eye(4).double()[[2, 1]])


def test_a_class_without_an_image_and_a_feature_that_is_no_number_are_refused():
    with pytest.raises(InputError, match="label 1"):
        gather([(torch.eye(2), torch.tensor([0, 0]))], range(2), lambda z: z)
    with pytest.raises(LearningError, match="not finite"):
        gather([(torch.full((1, 2), float("nan")), torch.tensor([0]))], [0], lambda z: z)


def test_psi_is_recovered_from_unequal_counts():
    """Half of the classes with 2 images, half with 50: the arithmetic mean of counts would be a third too large."""
    truth, width, classes = 0.7, 40, 400
    world = World(classes, psi=truth, width=width)
    found = [(world.images(c, 2 if c % 2 else 50), None) for c in range(classes)]
    found = [(z, torch.full((len(z),), c)) for c, (z, _) in enumerate(found)]
    moments = gather(found, range(classes), lambda z: z, scatter=True)
    assert float(moments.between().diagonal().mean()) == pytest.approx(truth, rel=0.05)


# Bayes means in the limit


def plain_bayes(psi: float, counts: Tensor, rows: Tensor, power: float) -> BayesMeans:
    """A Bayes head as it would be with W = I, this psi in all directions and no rounding."""
    head = BayesMeans(WIDTH, len(rows), Bayes(power=power, bits=None))
    head.middle, head.directions, head.steps = torch.zeros(WIDTH), torch.eye(WIDTH), torch.ones(WIDTH)
    head.psi, head.row_steps = torch.full((WIDTH,), psi), torch.ones(WIDTH)
    head.rows, head.counts, head.base = rows, counts.int(), torch.tensor(len(rows))
    return head


@pytest.mark.parametrize("power", [0.35, 0.5, 1.0])
def test_with_endless_psi_and_equal_counts_it_is_the_nearest_mean_of_powered_features(power: float):
    rows, features = torch.randn(9, WIDTH, generator=chance()), torch.randn(200, WIDTH, generator=chance(1))
    head = plain_bayes(1e12, torch.full((9,), 5), rows, power)
    nearest = torch.cdist(powered(features, power), rows).argmin(1)
    assert torch.equal(head(features).argmax(1), nearest)


def test_with_many_images_of_every_class_it_is_the_rule_of_lda():
    world = World(20)
    found = world.batches(range(20), 30)
    bayes = made(Bayes(power=1.0, shrinkage=0.3, directions=WIDTH, bits=None), found, 20)
    lda = made(LDA(power=1.0, shrinkage=0.3), found, 20)
    assert isinstance(bayes, BayesMeans)
    assert len(bayes.psi) == WIDTH  # so that no direction is left out
    bayes.counts = torch.full_like(bayes.counts, 10**9)
    features = torch.cat([world.images(c, 5) for c in range(20)]).float()
    one, other = bayes(features), lda(features)
    assert torch.allclose(one - one[:, :1], other - other[:, :1], atol=1e-3)


def test_lda_scores_are_those_of_the_textbook():
    world = World(6)
    found = world.batches(range(6), 20)
    lda = made(LDA(power=1.0, shrinkage=0.2), found, 6)
    moments = gather(found, range(6), lambda z: z, scatter=True)
    inverse = torch.linalg.inv(shrunk(moments.within(), 0.2))
    x = world.images(3, 50)
    known = x @ inverse @ moments.means.T - (moments.means @ inverse * moments.means).sum(1) / 2
    ours = lda(x.float()).double()
    assert torch.allclose(ours - ours[:, :1], known - known[:, :1], atol=1e-3)


def test_classes_of_few_images_are_less_sure():
    """A class of one image has its mean drawn to the middle and spreads more than one of fifty."""
    head = plain_bayes(1.0, torch.tensor([1, 50]), torch.stack([torch.ones(WIDTH), -torch.ones(WIDTH)]), 1.0)
    far = head(torch.full((1, WIDTH), 30.0)) - head(torch.full((1, WIDTH), -30.0)).flip(1)
    assert far[0, 0] > 0 > far[0, 1]  # at the same distance from either mean the surer class falls off faster


def test_a_larger_prior_for_new_classes_trusts_their_images_more():
    world = World(12)
    found = world.batches(range(10), 20)
    few = world.batches(range(10, 12), 1)
    means = [made(Bayes(power=1.0, bits=None, novel_prior=prior), found, 10) for prior in (0.1, 1.0, 1e6)]
    features = few[0][0].float()
    own = [extended(head, few, range(10, 12))(features)[0, 10] for head in means]
    assert own[0] < own[1] < own[2]


# bits


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not isinstance(kind, Ridge)])
def test_scores_of_known_classes_keep_their_bits(kind: Chosen):
    world = World(300)
    head, features = made(kind, world.batches(range(40), 9), 40), world.centres.float()
    for start, end in ((40, 41), (41, 46), (46, 100), (100, 300)):
        before = head(features)
        head = extended(head, world.batches(range(start, end), 1), range(start, end))
        assert torch.equal(head(features)[:, :start], before)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not isinstance(kind, Ridge | TEEN)])
def test_the_order_of_new_classes_changes_no_bit(kind: Chosen):
    world = World(30)
    base, new = world.batches(range(20), 9), world.batches(range(20, 30), 3)
    features = world.centres.float()

    def one_by_one(order: list[int]) -> Tensor:
        head = made(kind, base, 20)
        for label in order:
            head = extended(head, [new[label - 20]], range(label, label + 1))
        back = [order.index(label) for label in range(20, 30)]
        return head(features)[:, [*range(20), *(20 + at for at in back)]]

    assert torch.equal(one_by_one(list(range(20, 30))), one_by_one([25, 29, 20, 21, 28, 27, 22, 26, 24, 23]))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not isinstance(kind, Ridge)])
def test_what_is_dropped_leaves_the_others_as_they_were(kind: Chosen):
    world = World(12)
    head = made(kind, world.batches(range(8), 9), 8)
    head = extended(head, world.batches(range(8, 12), 2), range(8, 12))
    features = world.centres.float()
    before = head(features)
    head.drop(torch.tensor([8, 10]))
    assert torch.equal(head(features), before[:, [*range(8), 9, 11]])


def test_a_ridge_is_the_regression_of_the_textbook_with_every_class_weighing_the_same():
    world = World(4)
    found = [(world.images(c, n), torch.full((n,), c)) for c, n in enumerate((3, 8, 20, 100))]
    head = made(Ridge(features=30, penalty=0.1), found, 4)
    z, y = torch.cat([head.lift(z) for z, _ in found]), torch.cat([labels for _, labels in found])
    weights = 1 / torch.bincount(y)[y].double()
    gram = (z * weights[:, None]).T @ z
    goal = (z * weights[:, None]).T @ torch.nn.functional.one_hot(y).double()
    known = torch.linalg.solve(gram + 0.1 * gram.diagonal().mean() * torch.eye(30), goal)
    assert torch.allclose(head.weight.double(), known.T, rtol=1e-3, atol=1e-5)


# what is stored


def test_rows_and_directions_take_a_byte_each():
    world = World(50)
    head = made(Bayes(directions=8), world.batches(range(50), 9), 50)
    assert head.rows.dtype == head.directions.dtype == torch.int8
    assert head.rows.shape == (50, 8)
    assert head.directions.shape == (WIDTH, 8)
    assert sum(value.numel() * value.element_size() for value in head.buffers()) < 50 * 12 + 12 * 12 + 200


def test_eight_bits_answer_nearly_as_thirty_two():
    world = World(50)
    found = world.batches(range(50), 9)
    features = torch.cat([world.images(c, 20) for c in range(50)]).float()
    coarse, fine = (made(replace(Bayes(), bits=bits), found, 50)(features) for bits in (8, None))
    assert (coarse - fine).abs().max() < 0.05 * fine.abs().max()
    assert (coarse.argmax(1) == fine.argmax(1)).float().mean() > 0.98


def test_a_mean_beyond_the_range_of_the_first_session_is_clamped_with_headroom():
    world = World(20)
    head = made(Bayes(power=1.0, headroom=2.0), world.batches(range(20), 9), 20)
    reach = head.row_steps * 127
    assert torch.allclose(reach, 2 * (head.rows[:20].float() * head.row_steps).abs().amax(0), rtol=0.02)
    far = [(torch.full((1, WIDTH), 1e6), torch.tensor([20]))]
    head = extended(head, far, range(20, 21))
    assert head.rows[20].abs().min() > 0
    assert head.rows[20].abs().max() == 127
    assert bool(head(torch.zeros(1, WIDTH)).isfinite().all())


# odd data


@pytest.mark.parametrize("kind", KINDS)
def test_odd_data_gives_numbers(kind: Chosen):
    world = World(4)
    still = [(z.clone().index_fill_(1, torch.tensor([2]), 0.0), y) for z, y in world.batches(range(4), 9)]
    identical = [(world.centres[c].expand(3, -1), torch.full((3,), c)) for c in range(4)]
    single = world.batches(range(4), 1)
    for found in (still, identical, single):
        head = extended(made(kind, found, 4), [(world.centres[:1] + 1, torch.tensor([4]))], range(4, 5))
        scores = head(world.centres.float())
        assert scores.shape == (4, 5)
        assert bool(scores.isfinite().all())


def test_bayes_means_ask_for_two_classes():
    with pytest.raises(InputError, match="two"):
        made(Bayes(), World(1).batches(range(1), 9), 1)


def test_half_types_are_taken():
    world = World(5)
    head = made(Bayes(), world.batches(range(5), 9), 5).to(torch.bfloat16)
    assert head(world.centres.to(torch.bfloat16)).dtype == torch.bfloat16


def test_ten_thousand_classes_are_answered_a_part_at_a_time():
    rows, points = torch.randn(10_000, 64, generator=chance()), torch.randn(256, 64, generator=chance(1))
    far = squared_distances(points, rows)
    assert far.shape == (256, 10_000)
    assert torch.equal(far[:, :100], squared_distances(points, rows[:100]))
