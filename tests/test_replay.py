"""Images are kept to train on again: the best of every class, or a fair sample of all that was seen."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forgetfree.errors import InputError
from forgetfree.replay import NO_TASK, ReplayStore
from forgetfree.rng import generator

IMAGES = torch.arange(24.0).reshape(8, 3)


def exemplars() -> ReplayStore:
    return ReplayStore(per_class=2).with_class(3, IMAGES[:4]).with_class(1, IMAGES[4:5])


def stream(store: ReplayStore, count: int, batch: int, seed: int = 0) -> ReplayStore:
    """A store that saw `count` samples, the numbers from 0 on, in batches; each hundred is a task."""
    chance = generator(seed, "reservoir")
    for start in range(0, count, batch):
        numbers = torch.arange(start, min(start + batch, count))
        store = store.reservoir(numbers[:, None].float(), numbers % 7, start // 100, chance)
    return store


def test_the_first_images_of_a_class_are_kept_in_their_order():
    inputs, labels = exemplars().data()
    assert torch.equal(inputs, IMAGES[[0, 1, 4]])
    assert labels.tolist() == [3, 3, 1]
    assert labels.dtype == torch.long
    assert len(exemplars()) == 3


def test_a_class_that_comes_again_replaces_its_images_in_place():
    store = exemplars().with_class(3, IMAGES[6:])
    assert list(store.kept) == [3, 1]
    assert torch.equal(store.kept[3], IMAGES[6:])


def test_a_store_never_changes_and_shares_no_memory_with_what_it_was_given():
    images = IMAGES.clone().requires_grad_()
    empty = ReplayStore(per_class=2)
    store = empty.with_class(0, images)
    with torch.no_grad():
        images.zero_()
    assert torch.equal(store.kept[0], IMAGES[:2])
    assert not store.kept[0].requires_grad
    assert not empty
    before = stream(ReplayStore(size=5), 5, 5)
    numbers = before.data()[0].clone()
    after = before.reservoir(torch.full((50, 1), 99.0), torch.zeros(50, dtype=torch.long), 1, generator(0, "more"))
    assert torch.equal(before.data()[0], numbers)
    assert (before.seen, after.seen) == (5, 55)


def test_without_room_for_a_class_nothing_is_kept():
    store = ReplayStore(per_class=0).with_class(3, IMAGES)
    assert not store
    assert store.tensors() == {}
    with pytest.raises(InputError, match="empty"):
        store.data()


def test_exemplars_are_stored_by_the_label_of_their_class():
    state = exemplars().to_state()
    assert list(state) == ["exemplars.3", "exemplars.1"]
    for again in (ReplayStore(per_class=2).from_state(state), ReplayStore.from_tensors(2, state)):
        assert again.per_class == 2
        assert list(again.kept) == [1, 3]  # by label
        assert torch.equal(again.kept[3], IMAGES[:2])
    assert ReplayStore(per_class=2).to_state() == {}


def test_while_there_is_room_a_reservoir_keeps_everything_in_its_order():
    store = stream(ReplayStore(size=20), 20, 6)
    inputs, labels = store.data()
    assert inputs.flatten().tolist() == list(range(20))
    assert torch.equal(labels, torch.arange(20) % 7)


@given(count=st.integers(0, 60), batch=st.integers(1, 17), size=st.integers(0, 12))
def test_a_reservoir_is_the_same_for_batches_of_any_size_and_never_larger_than_it_may_be(count, batch, size):
    at_once, in_parts = stream(ReplayStore(size=size), count, 100), stream(ReplayStore(size=size), count, batch)
    assert len(at_once) == len(in_parts) == min(size, count)
    assert at_once.seen == in_parts.seen == count
    if at_once:
        inputs, labels = at_once.data()
        assert torch.equal(inputs, in_parts.data()[0])
        assert torch.equal(labels, inputs.flatten().long() % 7)  # a label stays with its image
        assert len(set(inputs.flatten().tolist())) == len(inputs)  # and no sample is kept twice


def test_every_sample_is_kept_with_the_same_probability():
    size, count, runs = 4, 20, 2000
    times = torch.zeros(count)
    for seed in range(runs):
        kept = stream(ReplayStore(size=size), count, 7, seed).data()[0].flatten().long()
        times[kept] += 1
    expected = size / count
    deviation = (expected * (1 - expected) / runs) ** 0.5
    assert ((times / runs - expected).abs() < 4.5 * deviation).all()


def test_samples_know_their_task():
    store = stream(ReplayStore(size=50), 400, 20)
    everything = store.sample(50, generator(0, "all"))
    assert torch.equal(everything.tasks, everything.inputs.flatten().long() // 100)
    assert len(set(everything.tasks.tolist())) == 4
    alone = ReplayStore(size=5).reservoir(IMAGES, torch.zeros(8), None, generator(0, "alone"))
    assert alone.sample(1, generator(0, "one")).tasks.tolist() == [NO_TASK]
    assert set(exemplars().sample(3, generator(0, "one")).tasks.tolist()) == {NO_TASK}


def test_samples_are_drawn_once_each_or_with_replacement():
    store = exemplars()
    inputs, labels, _ = store.sample(10, generator(0, "sample"))
    assert sorted(inputs[:, 0].tolist()) == [0.0, 3.0, 12.0]
    assert torch.equal(labels, torch.where(inputs[:, 0] == 12, 1, 3))
    assert len(store.sample(2, generator(0, "sample")).labels) == 2
    many = store.sample(3000, generator(0, "sample"), replacement=True)
    assert torch.bincount(many.inputs[:, 0].long(), minlength=13)[[0, 3, 12]].sub(1000).abs().max() < 150
    with pytest.raises(InputError, match="nothing to replay"):
        ReplayStore(size=3).sample(1, generator(0, "sample"))


@pytest.mark.parametrize("count", [0, 3, 30])
def test_a_reservoir_goes_on_from_its_state_as_if_nothing_had_happened(count):
    store = stream(ReplayStore(size=5), count, 4)
    again = ReplayStore(size=5).from_state(store.to_state())
    labels = torch.zeros(8, dtype=torch.long)
    one, other = (each.reservoir(IMAGES[:, :1], labels, 4, generator(1, "on")) for each in (store, again))
    assert one.seen == other.seen == count + 8
    assert all(torch.equal(a, b) for a, b in zip(one.sampled, other.sampled, strict=True))


def test_a_state_is_a_tree_of_plain_values():
    for store in (exemplars(), ReplayStore(size=5), stream(ReplayStore(size=5), 9, 4)):
        assert plain(store.to_state())


def plain(tree) -> bool:
    if isinstance(tree, dict):
        return all(type(key) is str and plain(value) for key, value in tree.items())
    return tree is None or type(tree) in (int, str, torch.Tensor)


def test_all_that_is_kept_is_counted():
    store = stream(ReplayStore(size=5), 9, 4)
    assert set(store.tensors()) == {"replay.inputs", "replay.labels", "replay.tasks"}
    assert store.nbytes == 5 * (4 + 8 + 8)
    assert exemplars().nbytes == 3 * 3 * 4
    assert ReplayStore(size=5).nbytes == 0


def test_a_store_moves_as_a_whole():
    for store in (exemplars(), stream(ReplayStore(size=5), 9, 4)):
        moved = store.to("meta")
        assert {value.device.type for value in moved.tensors().values()} == {"meta"}
        assert {value.device.type for value in store.tensors().values()} == {"cpu"}


def test_what_cannot_be_kept_is_told():
    store, chance = ReplayStore(size=3), generator(0, "told")
    with pytest.raises(InputError, match="per_class=None and size=None"):
        ReplayStore()
    with pytest.raises(InputError, match="per_class=1 and size=2"):
        ReplayStore(per_class=1, size=2)
    with pytest.raises(InputError, match="exemplars, how many images of a class are kept"):
        ReplayStore(per_class=-1)
    with pytest.raises(InputError, match="size, how many samples"):
        ReplayStore(size=1.5)
    with pytest.raises(InputError, match="is a reservoir"):
        store.with_class(0, IMAGES)
    with pytest.raises(InputError, match="filled by with_class"):
        exemplars().reservoir(IMAGES, torch.zeros(8), 0, chance)
    with pytest.raises(InputError, match="as many labels"):
        store.reservoir(IMAGES, torch.zeros(7), 0, chance)
    with pytest.raises(InputError, match=r"samples of one kind: inputs \[3, 3\]"):
        store.reservoir(IMAGES, torch.zeros(8), 0, chance).reservoir(IMAGES[:, :2], torch.zeros(8), 0, chance)
    with pytest.raises(InputError, match="3 samples were kept; this reservoir has room for 2"):
        ReplayStore(size=2).from_state(stream(store, 9, 4).to_state())
