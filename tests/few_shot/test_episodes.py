"""Episodes are made of few classes with few images; class-balanced streams of as many images of every class."""

from collections import Counter
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from forgetfree.errors import InputError
from forgetfree.few_shot.episodes import Balanced, balanced_batches, episodes
from forgetfree.rng import generator

COUNTS = {2: 7, 5: 12, 6: 5, 9: 8}
LABELS = torch.tensor([label for label, count in COUNTS.items() for _ in range(count)])[
    torch.randperm(32, generator=generator(0, "order"))
]
IMAGES = torch.arange(32.0)[:, None]
DATA = (IMAGES, LABELS)


def drawn(data=DATA, seed=0, **settings):
    asked = {"ways": 3, "shots": 2, "queries": 3, "count": 4, **settings}
    return list(episodes(data, **asked, chance=generator(seed, "episodes")))


@given(ways=st.integers(1, 4), shots=st.integers(1, 4), queries=st.integers(0, 1), seed=st.integers(0, 20))
def test_an_episode_has_its_ways_shots_and_queries_and_no_image_twice(ways, shots, queries, seed):
    for episode in drawn(ways=ways, shots=shots, queries=queries, count=2, seed=seed):
        assert len(set(episode.classes.tolist())) == ways
        assert episode.support_labels.tolist() == [way for way in range(ways) for _ in range(shots)]
        assert episode.query_labels.tolist() == [way for way in range(ways) for _ in range(queries)]
        images = torch.cat([episode.support, episode.query]).flatten().long()
        assert len(set(images.tolist())) == ways * (shots + queries)
        # the image itself says which sample it is, so labels can be looked up in the data
        globally = torch.cat([episode.global_support_labels, episode.global_query_labels])
        assert torch.equal(LABELS[images], globally)


def test_the_support_has_a_row_for_each_class():
    (episode,) = drawn(count=1)
    rows = LABELS[episode.support.unflatten(0, (3, 2)).squeeze(2).long()]
    assert torch.equal(rows, episode.classes[:, None].expand(3, 2))


def test_every_class_and_every_image_has_its_turn_equally_often():
    many = drawn(ways=2, shots=1, queries=1, count=3000)
    classes = Counter(label for episode in many for label in episode.classes.tolist())
    images = Counter(torch.cat([episode.support for episode in many]).flatten().long().tolist())
    assert set(classes) == set(COUNTS)
    assert all(abs(count / 1500 - 1) < 0.1 for count in classes.values())
    for image, count in images.items():
        expected = 1500 / COUNTS[int(LABELS[image])]
        assert abs(count - expected) < 5 * expected**0.5


def test_the_same_chance_draws_the_same_episodes_and_another_one_others():
    first, again, other = drawn(seed=1), drawn(seed=1), drawn(seed=2)
    assert all(torch.equal(one.support, two.support) for one, two in zip(first, again, strict=True))
    assert not all(torch.equal(one.support, two.support) for one, two in zip(first, other, strict=True))
    assert len({tuple(episode.support.flatten().tolist()) for episode in first}) == 4


@pytest.mark.parametrize("queries", [0, 3])
def test_a_dataset_gives_the_same_episodes_as_its_tensors(queries):
    pairs = zip(drawn(queries=queries), drawn(TensorDataset(*DATA), queries=queries), strict=True)
    for one, other in pairs:
        assert torch.equal(one.support, other.support)
        assert torch.equal(one.query, other.query)
        assert torch.equal(one.classes, other.classes)


def test_too_few_classes_or_images_are_told_before_anything_is_drawn():
    chance = generator(0, "episodes")
    before = chance.get_state()
    with pytest.raises(InputError, match="5 ways needs as many classes; the data has 4"):
        episodes(DATA, ways=5, shots=1, queries=1, count=1, chance=chance)
    with pytest.raises(InputError, match="2 shots and 4 queries of a class, 6 images; class 6 has 5"):
        episodes(DATA, ways=2, shots=2, queries=4, count=1, chance=chance)
    with pytest.raises(InputError, match="ways, how many classes"):
        episodes(DATA, ways=0, shots=2, queries=4, count=1, chance=chance)
    assert torch.equal(chance.get_state(), before)


def test_data_that_cannot_be_drawn_from_by_class_is_told():
    with pytest.raises(InputError, match=r"one tensor of inputs .* got inputs in a tuple"):
        drawn(((IMAGES, IMAGES), LABELS))
    with pytest.raises(InputError, match="got Balanced"):
        drawn(Balanced(DATA, 1, lambda: generator(0, "test")))


def test_batches_have_as_many_images_of_every_class_and_a_class_repeats_after_its_last_image():
    seen = {label: [] for label in COUNTS}
    for batch in islice(balanced_batches(DATA, per_class=2, chance=generator(0, "batches")), 60):
        assert batch.labels.tolist() == [2, 2, 5, 5, 6, 6, 9, 9]
        images = batch.inputs.flatten().long()
        assert torch.equal(LABELS[images], batch.labels)
        for image, label in zip(images.tolist(), batch.labels.tolist(), strict=True):
            seen[label].append(image)
    for label, count in COUNTS.items():
        passes = [seen[label][at : at + count] for at in range(0, 120 - count, count)]
        assert all(len(set(images)) == count for images in passes)
        assert len({tuple(images) for images in passes}) > 1


def test_a_pass_has_as_many_images_of_every_class_in_turns():
    labels = torch.tensor([0] * 12 + [1] * 5 + [2] * 3)
    epoch = list(Balanced((torch.arange(20.0), labels), 4, lambda: generator(0, "test")))
    assert Counter(label for _, label in epoch) == {0: 12, 1: 12, 2: 12}
    turns = [epoch[at : at + 4] for at in range(0, len(epoch), 4)]
    assert all(len({label for _, label in turn}) == 1 for turn in turns)  # four images of a class in its turn
    for at in range(0, len(turns), 3):
        assert {turn[0][1] for turn in turns[at : at + 3]} == {0, 1, 2}  # and every class has one in a round
    counts = Counter(int(image) for image, _ in epoch)
    assert [counts[at] for at in range(12)] == [1] * 12  # an image comes again after all others of its class
    assert {counts[at] for at in range(12, 17)} == {2, 3}
    assert {counts[at] for at in range(17, 20)} == {4}


def test_passes_differ_by_their_chance_and_data_may_be_a_dataset():
    numbers = iter([0, 1, 0])
    balanced = Balanced(TensorDataset(*DATA), 4, lambda: generator(next(numbers), "test"))
    first, second, third = ([int(image) for image, _ in balanced] for _ in range(3))
    assert first == third != second
    assert [int(image) for image, _ in Balanced(DATA, 4, lambda: generator(0, "test"))] == first


def test_the_order_of_a_class_balanced_pass_is_what_it_has_always_been():
    """Stored runs of cRT were trained in this order."""
    data = (torch.arange(8.0), torch.tensor([0, 0, 0, 0, 0, 1, 1, 2]))
    assert [int(image) for image, _ in Balanced(data, 2, lambda: generator(3, "test"))] == RECORDED


RECORDED = [7, 7, 1, 4, 6, 5, 5, 6, 7, 7, 2, 3, 0, 3, 5]
