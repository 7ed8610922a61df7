"""Features are taken once where the backbone stands still, and are those that it gives batch by batch."""

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from forgetfree.contracts import Task
from forgetfree.errors import InputError
from forgetfree.features import cached, extract_features
from forgetfree.rng import generator

INPUTS = torch.randn(23, 4, generator=generator(0, "inputs"))
LABELS = torch.arange(23) % 3
SIZE = 8


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(INPUTS, LABELS, strict=True))


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


DATA = {"pair": (INPUTS, LABELS), "dataset": TensorDataset(INPUTS, LABELS), "stream": Stream()}


def backbone() -> nn.Module:
    """Batch norm and dropout: what differs between training and evaluation."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 5))
        module(INPUTS)  # statistics that are not those of a new layer
    return module


@pytest.mark.parametrize("kind", DATA)
def test_features_are_bit_equal_to_those_of_the_module_batch_by_batch(kind):
    module = backbone()
    features, labels = extract_features(module, DATA[kind], batch_size=SIZE)
    module.eval()
    with torch.no_grad():
        expected = torch.cat([module(part) for part in INPUTS.split(SIZE)])
    assert torch.equal(features, expected)
    assert torch.equal(labels, LABELS)
    assert not features.requires_grad


def test_the_module_is_left_in_the_modes_it_was_in_and_with_its_statistics():
    module = backbone().train()
    module[1].eval()
    statistics = module[1].running_mean.clone()
    extract_features(module, DATA["pair"], batch_size=SIZE)
    assert [part.training for part in module] == [True, False, True, True, True]
    assert module.training
    assert torch.equal(module[1].running_mean, statistics)


def test_the_module_is_left_in_its_mode_when_it_fails():
    module = backbone().train()
    with pytest.raises(InputError, match=r"cannot take inputs \[batch, 3\]"):
        extract_features(module, (INPUTS[:, :3], LABELS), batch_size=SIZE)
    assert module.training


def test_autocast_around_it_changes_nothing():
    module = backbone()
    plain = extract_features(module, DATA["pair"], batch_size=SIZE)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(extract_features(module, DATA["pair"], batch_size=SIZE)[0], plain)


def test_inputs_are_cast_and_may_be_several():
    class Sum(nn.Module):
        def forward(self, one, other):
            return one + other

    features, _ = extract_features(
        Sum(), ((INPUTS, INPUTS), LABELS), batch_size=SIZE, cast=lambda inputs: tuple(part.double() for part in inputs)
    )
    assert torch.equal(features, 2 * INPUTS.double())
    assert features.dtype == torch.float64


def test_a_loader_collates_what_a_dataset_gives():
    def halved(samples):
        return torch.stack([image / 2 for image, _ in samples]), torch.stack([label for _, label in samples])

    features, _ = extract_features(nn.Identity(), DATA["dataset"], batch_size=SIZE, loader={"collate_fn": halved})
    assert torch.equal(features, INPUTS / 2)


def test_a_task_of_features_has_them_for_training_and_validation_and_is_not_augmented():
    module = backbone()
    task = Task("birds", ("a", "b", "c"), DATA["dataset"], valid=DATA["pair"], augment=lambda inputs, chance: -inputs)
    seen = cached(task, module, batch_size=SIZE)
    features, labels = extract_features(module, DATA["pair"], batch_size=SIZE)
    for data in (seen.train, seen.valid):
        assert torch.equal(data[0], features)
        assert torch.equal(data[1], labels)
    assert seen.augment is None
    assert (seen.name, seen.classes) == (task.name, task.classes)
    assert cached(Task("birds", ("a", "b", "c"), DATA["pair"]), module, batch_size=SIZE).valid is None


def test_what_is_no_feature_is_told():
    class Pair(nn.Module):
        def forward(self, inputs):
            return inputs, inputs

    with pytest.raises(InputError, match="one tensor of features; got a tuple"):
        extract_features(Pair(), DATA["pair"], batch_size=SIZE)
    empty = INPUTS[:0], LABELS[:0]
    for data in (empty, TensorDataset(*empty), Nothing()):
        with pytest.raises(InputError, match="no sample"):
            extract_features(nn.Identity(), data, batch_size=SIZE)
