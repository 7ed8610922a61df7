"""Data becomes batches: every form of data gives the same batches, and what is wrong is said in words."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import forgetfree as ff
from forgetfree.batches import Batch, batches, count_batches, count_samples, repeated, shifted
from snapshots import FEATURES, assert_same, learner, pair, snapshot

INPUTS = torch.arange(20.0).reshape(10, 2)
LABELS = torch.arange(10) % 2


class Listed(Dataset[Any]):
    """A map-style Dataset over a list of samples."""

    def __init__(self, samples: list[Any]):
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Streamed(IterableDataset[Any]):
    """A stream over a list of samples, shared out among workers."""

    def __init__(self, samples: list[Any]):
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        return iter(self.samples if worker is None else self.samples[worker.id :: worker.num_workers])


def samples(inputs: Tensor = INPUTS, labels: Tensor = LABELS) -> list[tuple[Tensor, int]]:
    return [(value, int(label)) for value, label in zip(inputs, labels, strict=True)]


def task(data: Any, classes: tuple[int | str, ...] = (0, 1), **options: Any) -> ff.Task:
    return ff.Task("a", classes, data, **options)


def cut(data: Any, size: int, order: int | None = None, **options: Any) -> list[Batch]:
    generator = None if order is None else torch.Generator().manual_seed(order)
    return list(batches(task(data), data, size, order=generator, **options))


def test_a_pair_of_tensors_is_cut_in_order() -> None:
    made = cut((INPUTS, LABELS), 4)
    assert [len(batch) for batch in made] == [4, 4, 2]
    assert torch.equal(torch.cat([batch.inputs for batch in made]), INPUTS)
    assert torch.equal(torch.cat([batch.labels for batch in made]), LABELS)


@pytest.mark.parametrize("data", [Listed(samples()), TensorDataset(INPUTS, LABELS), Streamed(samples())])
def test_a_dataset_gives_the_batches_of_the_same_tensors(data: Any) -> None:
    for one, other in zip(cut((INPUTS, LABELS), 4), cut(data, 4), strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.labels, other.labels)


def test_a_shuffled_dataset_gives_the_shuffled_batches_of_the_same_tensors() -> None:
    for one, other in zip(cut((INPUTS, LABELS), 4, order=5), cut(Listed(samples()), 4, order=5), strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.labels, other.labels)


@settings(deadline=None)
@given(length=st.integers(1, 40), size=st.integers(1, 12), form=st.sampled_from(["pair", "listed", "streamed"]))
def test_every_sample_comes_once_and_no_last_batch_is_of_one(length: int, size: int, form: str) -> None:
    inputs, labels = torch.arange(float(length)).unsqueeze(1), torch.zeros(length, dtype=torch.long)
    data: Any = {
        "pair": (inputs, labels),
        "listed": Listed(samples(inputs, labels)),
        "streamed": Streamed(samples(inputs, labels)),
    }[form]
    made = cut(data, size, order=1)
    assert sorted(torch.cat([batch.inputs for batch in made]).squeeze(1).tolist()) == list(range(length))
    if size > 1 and length > 1:
        assert all(2 <= len(batch) <= size + 1 for batch in made)
        assert all(len(batch) == size for batch in made[:-1])
    if form != "streamed":
        assert count_batches(data, size) == len(made)


def test_batches_of_one_stay_when_one_is_asked_for() -> None:
    assert [len(batch) for batch in cut((INPUTS, LABELS), 1)] == [1] * 10
    assert [len(batch) for batch in cut(Streamed(samples()), 1)] == [1] * 10


def test_a_single_sample_is_a_batch_of_one() -> None:
    assert [len(batch) for batch in cut((INPUTS[:1], LABELS[:1]), 4)] == [1]
    assert [len(batch) for batch in cut(Streamed(samples()[:1]), 4)] == [1]


@pytest.mark.parametrize("first", [1, 2, 4])
def test_a_worker_with_a_single_sample_does_not_make_a_batch_of_one(first: int) -> None:
    class Lopsided(Streamed):
        def __iter__(self) -> Iterator[Any]:
            mine = slice(first) if torch.utils.data.get_worker_info().id == 0 else slice(first, None)
            return iter(self.samples[mine])

    made = cut(Lopsided(samples()[:5]), 4, loader={"num_workers": 2})
    assert sum(len(batch) for batch in made) == 5
    assert min(len(batch) for batch in made) > 1


def test_the_order_depends_on_its_generator_and_on_nothing_else() -> None:
    torch.manual_seed(0)
    one = [batch.labels.tolist() for batch in cut((INPUTS, torch.arange(10) % 2), 4, order=3)]
    values = [batch.inputs.tolist() for batch in cut((INPUTS, LABELS), 4, order=3)]
    torch.manual_seed(1)
    assert one == [batch.labels.tolist() for batch in cut((INPUTS, LABELS), 4, order=3)]
    assert values == [batch.inputs.tolist() for batch in cut((INPUTS, LABELS), 4, order=3)]
    assert values != [batch.inputs.tolist() for batch in cut((INPUTS, LABELS), 4, order=4)]


@pytest.mark.parametrize("form", ["pair", "listed", "streamed"])
def test_tuples_of_inputs_are_cut_together(form: str) -> None:
    second = torch.arange(10) + 100
    many = [((value, other), label) for (value, label), other in zip(samples(), second, strict=True)]
    data = {"pair": ((INPUTS, second), LABELS), "listed": Listed(many), "streamed": Streamed(many)}[form]
    made = cut(data, 3, order=2)
    assert [len(batch) for batch in made] == [3, 3, 4]
    for batch in made:
        assert isinstance(batch.inputs, tuple)
        assert torch.equal(batch.inputs[0][:, 0] / 2 + 100, batch.inputs[1].float())


@pytest.mark.parametrize("form", ["pair", "listed", "streamed"])
def test_dicts_of_inputs_are_cut_together(form: str) -> None:
    second = torch.arange(10) + 100
    many = [({"x": value, "i": other}, label) for (value, label), other in zip(samples(), second, strict=True)]
    data = {"pair": ({"x": INPUTS, "i": second}, LABELS), "listed": Listed(many), "streamed": Streamed(many)}[form]
    made = cut(data, 3, order=2)
    assert [len(batch) for batch in made] == [3, 3, 4]
    for batch in made:
        assert list(batch.inputs) == ["x", "i"]
        assert torch.equal(batch.inputs["x"][:, 0] / 2 + 100, batch.inputs["i"].float())


def padded(collected: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Samples of different lengths, filled up with zeros to FEATURES."""
    full = [torch.nn.functional.pad(value, (0, FEATURES - len(value))) for value, _ in collected]
    return torch.stack(full), torch.tensor([label for _, label in collected])


def test_a_collate_function_and_workers_come_through_the_recipe() -> None:
    inputs, labels = pair(0, 20, 2)
    ragged = Listed(
        [(value[: 3 + i % 3], int(label)) for i, (value, label) in enumerate(zip(inputs, labels, strict=True))]
    )
    whole = padded(ragged.samples)
    made = {}
    for name, data, loader in (
        ("tensors", whole, None),
        ("collated", ragged, {"collate_fn": padded}),
        ("workers", ragged, {"collate_fn": padded, "num_workers": 2}),
    ):
        taught = learner(ff.Recipe(epochs=2, batch_size=8, loader=loader))
        taught.learn(task(data))
        made[name] = snapshot(taught)
    assert_same(made["collated"], made["tensors"])
    assert_same(made["workers"], made["tensors"])


@pytest.mark.parametrize("form", [Listed, Streamed])
def test_learning_from_a_dataset_is_bit_identical_to_learning_from_its_tensors(form: Any) -> None:
    train, valid = pair(0), pair(1, 21)
    recipe = ff.Recipe(epochs=3, batch_size=13, lr=0.02, eval_batch_size=10)
    if form is Streamed:  # a stream comes in its own order, so give the tensors no order to shuffle: one batch
        recipe = ff.Recipe(epochs=3, batch_size=40, lr=0.02, eval_batch_size=10)
        train = (train[0][:1].expand(40, -1).clone(), torch.zeros(40, dtype=torch.long))
    one, other = learner(recipe), learner(recipe)
    one.learn(ff.Task("a", (0, 1, 2), train, valid))
    other.learn(ff.Task("a", (0, 1, 2), form(samples(*train)), form(samples(*valid))))
    assert_same(snapshot(one), snapshot(other))


@pytest.mark.parametrize("kind", ["one tensor", "tuple of one", "tuple", "dict"])
def test_every_form_of_input_can_be_learned_and_asked(kind: str) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(FEATURES, 20)

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            return self.layer(x if y is None else x + y)

    inputs, labels = pair(0)
    form: Any = {
        "one tensor": inputs,
        "tuple of one": (inputs,),
        "tuple": (inputs, inputs),
        "dict": {"x": inputs, "y": inputs},
    }[kind]
    taught = ff.WSN(Sum(), capacity=0.5, recipe=ff.Recipe(epochs=1))
    taught.learn(ff.Task("a", (0, 1, 2), (form, labels)))
    assert taught.predict(form, "a").shape == (40, 3)


WRONG_LABELS = [
    (torch.tensor([0, 1, 2]), r"labels \[0, 1, 2\] are out of range.*local positions.*0\.\.1.*global classes"),
    (torch.tensor([-1, 0, 1]), r"local positions.*0\.\.1.*not all among them"),
    (torch.tensor([5, 7, 5]), r"local positions.*0\.\.1.*\[5, 7\].*global classes they all are.*classes\.index"),
    (torch.tensor([0.0, 1.0, 0.0]), "whole numbers"),
    (torch.tensor([[0], [1], [0]]), "one per sample"),
]


@pytest.mark.parametrize(("labels", "words"), WRONG_LABELS)
@pytest.mark.parametrize("form", ["train", "valid", "dataset"])
def test_wrong_labels_are_explained_in_both_readings(labels: Tensor, words: str, form: str) -> None:
    right = (torch.randn(3, FEATURES), torch.tensor([0, 1, 0]))
    wrong = (right[0], labels)
    data = {
        "train": (wrong, None),
        "valid": (right, wrong),
        "dataset": (TensorDataset(*wrong), None),
    }[form]
    taught = learner()
    before = snapshot(taught)
    with pytest.raises(ff.InputError, match=words):
        taught.learn(ff.Task("a", (5, 7), *data))
    assert_same(snapshot(taught), before)


def test_wrong_labels_deep_in_a_dataset_leave_the_learner_as_it_was() -> None:
    inputs, labels = pair(0)
    labels[33] = 9
    taught = learner()
    before = snapshot(taught)
    with pytest.raises(ff.InputError, match="out of range"):
        taught.learn(ff.Task("a", (0, 1, 2), Listed(samples(inputs, labels))))
    assert_same(snapshot(taught), before)


def test_names_of_classes_are_shown_too() -> None:
    with pytest.raises(ff.InputError, match=r"2 classes \['cat', 'dog'\]"):
        learner().learn(task((torch.randn(2, FEATURES), torch.tensor([0, 2])), ("cat", "dog")))


FOUR = torch.zeros(4, FEATURES)
NO_DATA: list[tuple[Any, str]] = [
    ((FOUR, torch.zeros(3, dtype=torch.long)), "differ in length"),
    (((FOUR, FOUR[:2]), torch.zeros(4, dtype=torch.long)), "differ in length"),
    ((FOUR[:0], torch.zeros(0, dtype=torch.long)), "empty"),
    (Listed([]), "empty"),
    (Streamed([]), "empty"),
    ((FOUR, [0, 0, 1, 1]), "pair"),
    ((FOUR, torch.tensor(1)), "pair"),
    ((FOUR,), "pair"),
    (([1.0, 2.0], torch.zeros(2, dtype=torch.long)), "inputs are a tensor"),
    (("text", torch.zeros(4, dtype=torch.long)), "inputs are a tensor"),
    (((), torch.zeros(4, dtype=torch.long)), "inputs are a tensor"),
    ({"x": FOUR}, "pair"),
    (Dataset(), "no length"),
    (None, "pair"),
    (Listed([torch.zeros(FEATURES)] * 4), "pairs"),
    (Listed([(torch.zeros(FEATURES), "cat")] * 4), "pairs"),
]


@pytest.mark.parametrize(("data", "words"), NO_DATA)
def test_data_that_cannot_be_learned_is_refused_in_words(data: Any, words: str) -> None:
    taught = learner()
    before = snapshot(taught)
    with pytest.raises(ff.InputError, match=words):
        taught.learn(task(data))
    assert_same(snapshot(taught), before)


@pytest.mark.parametrize("valid", [(FOUR[:0], torch.zeros(0, dtype=torch.long)), Listed([]), Streamed([])])
def test_empty_validation_data_is_refused_in_words(valid: Any) -> None:
    taught = learner()
    before = snapshot(taught)
    with pytest.raises(ff.InputError, match="empty: its valid"):
        taught.learn(ff.Task("a", (0, 1, 2), pair(0), valid))
    assert_same(snapshot(taught), before)


def test_a_collate_function_with_too_few_labels_is_refused_in_words() -> None:
    def lossy(collected: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.stack([value for value, _ in collected]), torch.zeros(1, dtype=torch.long)

    with pytest.raises(ff.InputError, match="2 inputs and 1 labels"):
        learner(ff.Recipe(loader={"collate_fn": lossy})).learn(task(Listed(samples(*pair(0, 8, 2)))))


def test_labels_are_shifted_whatever_the_data_is() -> None:
    class Stream(IterableDataset[tuple[Tensor, int]]):
        def __iter__(self) -> Iterator[tuple[Tensor, int]]:
            return iter(samples())

    wide = task((INPUTS, LABELS + 3), (0, 1, 2, 3, 4))
    expected = (LABELS + 3).tolist()
    for data in ((INPUTS, LABELS), TensorDataset(INPUTS, LABELS), Stream()):
        found = [label for batch in batches(wide, shifted(data, 3), 4) for label in batch.labels.tolist()]
        assert found == expected, type(data)


def test_samples_are_repeated_to_the_number_asked_for() -> None:
    for data in ((INPUTS, LABELS), TensorDataset(INPUTS, LABELS)):
        few, many = repeated(data, 3), repeated(data, len(LABELS) + 2)
        assert (count_samples(few), count_samples(many)) == (3, len(LABELS) + 2)
        (whole,) = batches(task(many), many, 100)
        assert torch.equal(whole.labels[-2:], LABELS[:2])
