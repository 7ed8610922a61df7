"""What a layer takes in: rows that its weight multiplies, their Gram matrix, and who is told when a layer is called."""

import pytest
import torch
from torch import nn

from forgetfree import layer_inputs
from forgetfree.errors import LearningError
from forgetfree.layer_inputs import gram, layers, refuse_infinite, rows, watched

CONVOLUTIONS = {
    "padding and stride": (nn.Conv2d(3, 5, 3, stride=2, padding=1), (3, 9, 8)),
    "dilation": (nn.Conv2d(2, 5, (3, 2), dilation=(2, 3), padding=(2, 1)), (2, 9, 9)),
    "reflected": (nn.Conv2d(2, 5, 3, padding=1, padding_mode="reflect"), (2, 6, 7)),
    "same": (nn.Conv2d(2, 5, (2, 3), padding="same"), (2, 6, 7)),
    "groups": (nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 6, 6)),
    "one dimension": (nn.Conv1d(3, 5, 4, stride=3, padding=2), (3, 11)),
    "three dimensions": (nn.Conv3d(2, 3, (2, 3, 1), padding=1), (2, 4, 5, 3)),
}


@pytest.mark.parametrize(("layer", "size"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolution_is_its_weight_times_the_patches(layer, size):
    images = torch.randn(2, *size)
    patches = rows(layer, images)
    answer = (layer(images) - layer.bias.view(-1, *[1] * (len(size) - 1))).flatten(2)  # [batch, outputs, places]
    weight = layer.weight.flatten(1).unflatten(0, (layer.groups, -1))
    by_group = patches.view(2, layer.groups, answer.shape[2], -1)
    expected = torch.einsum("god,bgpd->bgop", weight, by_group).flatten(1, 2)
    torch.testing.assert_close(answer, expected)
    torch.testing.assert_close(rows(layer, images[0]), rows(layer, images[:1]))


@pytest.mark.parametrize("at_once", [1, 1 << 22], ids=["one image at a time", "all at once"])
def test_a_gram_matrix_is_that_of_all_rows_however_many_are_held(at_once, monkeypatch):
    monkeypatch.setattr(layer_inputs, "AT_ONCE", at_once)
    cases = [*CONVOLUTIONS.values(), (nn.Linear(7, 3), (5, 7))]
    for layer, size in cases:
        inputs = torch.randn(6, *size)
        seen = rows(layer, inputs).double()
        torch.testing.assert_close(gram(layer, inputs), seen.T @ seen)
        assert gram(layer, inputs).dtype == torch.float64


def test_who_watches_is_told_of_every_call_and_of_none_after():
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    module[2].weight.requires_grad_(False)
    told, inputs = [], torch.randn(5, 4)
    with watched(module, lambda name, layer, given: told.append((name, layer, given))):
        module(inputs)
    module(inputs)
    ((name, layer, given),) = told
    assert (name, layer) == ("0.weight", module[0])
    assert list(layers(module)) == [name]
    assert torch.equal(given, inputs)
    assert not module[0]._forward_pre_hooks


def test_what_is_not_finite_is_refused_by_the_name_of_the_layer():
    refuse_infinite("animals", "0.weight", torch.ones(3))
    with pytest.raises(LearningError, match=r"task 'animals': what the layer of 0.weight takes in is not finite"):
        refuse_infinite("animals", "0.weight", torch.tensor([1.0, torch.inf]))
