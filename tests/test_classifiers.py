"""A classifier grows: old rows stay bit for bit, new ones begin by a rule."""

import pytest
import torch
from torch import nn

from forgetfree.classifiers import grown
from forgetfree.errors import InputError
from forgetfree.heads import CosineClassifier
from forgetfree.modules import freeze

WIDTH, KNOWN = 6, 4
KINDS = {
    "linear": lambda total=KNOWN: nn.Linear(WIDTH, total),
    "without bias": lambda total=KNOWN: nn.Linear(WIDTH, total, bias=False),
    "cosine": lambda total=KNOWN: CosineClassifier(WIDTH, total),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
RULES = ["default", "mean", "zeros", lambda old, count: old[:1].expand(count, -1) * 3]


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


@every_kind
@pytest.mark.parametrize("rule", RULES)
def test_old_scores_are_bit_equal_and_everything_may_be_trained(kind, rule):
    old = freeze(KINDS[kind]().double())
    wider = grown(old, 3, init=rule)
    assert type(wider) is type(old)
    assert {name: value.shape[:1] for name, value in wider.named_parameters()} == {
        name: (KNOWN + 3,) if value.dim() else () for name, value in old.named_parameters()
    }
    for name, value in old.named_parameters():
        now = wider.get_parameter(name)
        assert torch.equal(now[:KNOWN] if value.dim() else now, value)
        assert now.dtype == torch.float64
        assert now.requires_grad
        assert now.data_ptr() != value.data_ptr()
    features = torch.randn(5, WIDTH, dtype=torch.float64)
    assert wider(features).shape == (5, KNOWN + 3)
    assert torch.allclose(wider(features)[:, :KNOWN], old(features))
    assert not any(value.requires_grad for value in old.parameters())


@every_kind
def test_by_default_new_rows_are_those_that_a_layer_of_the_full_width_draws(kind):
    old = KINDS[kind]()
    torch.default_generator.manual_seed(5)
    fresh = KINDS[kind](KNOWN + 2)
    drawn_to = torch.get_rng_state()
    torch.default_generator.manual_seed(5)
    wider = grown(old, 2)
    assert torch.equal(torch.get_rng_state(), drawn_to)
    for name, value in wider.named_parameters():
        if value.dim():
            assert torch.equal(value[KNOWN:], fresh.get_parameter(name)[KNOWN:])


@every_kind
@pytest.mark.parametrize("rule", RULES[1:])
def test_other_rules_draw_nothing(kind, rule):
    old, before = KINDS[kind](), torch.get_rng_state()
    grown(old, 2, init=rule)
    grown(old, torch.ones(2, WIDTH))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_rules_give_the_mean_zeros_or_what_a_function_says():
    old = KINDS["linear"]()
    mean, zeros, own = (grown(old, 2, init=rule) for rule in RULES[1:])
    assert torch.equal(mean.weight[KNOWN:], old.weight.mean(0).expand(2, -1))
    assert torch.equal(mean.bias[KNOWN:], old.bias.mean().expand(2))
    assert not zeros.weight[KNOWN:].any()
    assert not zeros.bias[KNOWN:].any()
    assert torch.equal(own.weight[KNOWN:], (3 * old.weight[:1]).expand(2, -1))
    assert not own.bias[KNOWN:].any()


@every_kind
def test_rows_that_are_given_are_taken_as_they_are(kind):
    rows = torch.randn(3, WIDTH)
    wider = grown(KINDS[kind](), rows)
    assert torch.equal(wider.weight[KNOWN:], rows)
    if kind == "linear":
        assert not wider.bias[KNOWN:].any()
    with torch.no_grad():
        rows.zero_()
    assert wider.weight[KNOWN:].any()


def test_the_scale_of_a_cosine_classifier_is_kept_and_a_linear_layer_knows_its_width():
    cosine = CosineClassifier(WIDTH, KNOWN, scale=7.5)
    assert float(grown(cosine, 1).scale.detach()) == 7.5
    assert grown(KINDS["linear"](), 3).out_features == KNOWN + 3
    assert "out_features=7" in repr(grown(KINDS["linear"](), 3))


def test_what_cannot_be_a_row_is_told():
    old = KINDS["linear"]()
    with pytest.raises(InputError, match=r"6 weights, \[rows, 6\].*shape \(2, 5\)"):
        grown(old, torch.ones(2, 5))
    with pytest.raises(InputError, match="not both"):
        grown(old, torch.ones(2, WIDTH), init="zeros")
    with pytest.raises(InputError, match="got 'xavier'"):
        grown(old, 2, init="xavier")
    with pytest.raises(InputError, match=r"2 rows of 6 weights; it gave shape \(1, 6\)"):
        grown(old, 2, init=lambda rows, count: rows[:1])
    with pytest.raises(InputError, match="rows, how many classes are new"):
        grown(old, -1)
