"""Any data sample by sample: parts of several kinds become one, and single samples are found again."""

import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, TensorDataset

from forgetfree.errors import InputError
from forgetfree.samples import Samples, joined_data, labels_of, samples_at, samples_of

INPUTS = torch.arange(12.0).reshape(6, 2)
LABELS = torch.tensor([1, 0, 1, 2, 0, 1], dtype=torch.int32)
PAIR = (INPUTS, LABELS)
KINDS = {"pair": PAIR, "list": list(PAIR), "dataset": TensorDataset(*PAIR)}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(*PAIR, strict=True))


class Arrays(TensorDataset):
    """Images as numpy arrays, as many data sets give them."""

    def __getitem__(self, at):
        inputs, label = super().__getitem__(at)
        return inputs.numpy(), label


def test_tensors_are_joined_as_tensors():
    inputs, labels = joined_data([PAIR, (INPUTS + 100, LABELS + 3)])
    assert torch.equal(inputs, torch.cat([INPUTS, INPUTS + 100]))
    assert labels.dtype == torch.long
    assert labels.tolist() == [*LABELS.tolist(), *(LABELS + 3).tolist()]


def test_data_of_several_kinds_are_joined_sample_by_sample():
    joined = joined_data([PAIR, Arrays(*PAIR)])
    assert isinstance(joined, ConcatDataset)
    assert len(joined) == 12
    for at in (2, 8):
        inputs, label = joined[at]
        assert torch.equal(inputs, INPUTS[2])
        assert (label, type(label)) == (1, int)


def test_inputs_that_differ_are_not_joined():
    with pytest.raises(InputError, match="where their inputs are alike"):
        joined_data([PAIR, (INPUTS[:, :1], LABELS)])


def test_what_cannot_be_read_sample_by_sample_is_refused():
    with pytest.raises(InputError, match="not as a stream"):
        Samples(Stream())
    with pytest.raises(InputError, match="one tensor"):
        Samples(((INPUTS, INPUTS), LABELS))


@pytest.mark.parametrize("kind", KINDS)
def test_the_samples_of_a_class_come_in_their_order(kind):
    assert torch.equal(samples_of(KINDS[kind], 1), INPUTS[[0, 2, 5]])


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_found_by_their_positions(kind):
    assert torch.equal(samples_at(KINDS[kind], [4, 0, 4]), INPUTS[[4, 0, 4]])


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_whole_numbers_in_the_order_of_the_samples(kind):
    labels = labels_of(KINDS[kind])
    assert labels.dtype == torch.long
    assert labels.tolist() == LABELS.tolist()
