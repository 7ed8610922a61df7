"""Scores: where they start and how they carry over; minor weights of soft masks."""

import math

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.masks import as_mask
from forgetfree.scores import Minor, Scores


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [(nn.Linear(40, 30), 40), (nn.Conv2d(4, 20, 3), 36), (nn.Conv2d(8, 16, 3, groups=2), 36), (nn.Embedding(50, 9), 9)],
)
def test_scores_start_uniform_within_one_over_the_root_of_the_fan_in(layer: nn.Module, fan_in: int) -> None:
    values = Scores.random({"weight": layer.weight}, seed=3).state_dict()["weight"]
    bound = 1 / math.sqrt(fan_in)
    assert values.shape == layer.weight.shape
    assert float(values.abs().max()) <= bound * (1 + 1e-6)
    assert float(values.max()) > 0.9 * bound
    assert float(values.min()) < -0.9 * bound
    # mean and variance of U(-b, b) are 0 and b²/3; five standard errors
    n = values.numel()
    assert abs(float(values.mean())) < 5 * bound / math.sqrt(3 * n)
    assert abs(float(values.square().mean()) / (bound**2 / 3) - 1) < 5 * math.sqrt(4 / 5 / n)


def test_initial_scores_depend_on_seed_and_name_and_on_nothing_else() -> None:
    one, two = torch.zeros(7, 5), torch.zeros(4, 3)
    alone = Scores.random({"one": one}, seed=3).state_dict()
    torch.manual_seed(99)
    together = Scores.random({"two": two, "one": one}, seed=3).state_dict()
    assert torch.equal(alone["one"], together["one"])
    assert not torch.equal(alone["one"], Scores.random({"one": one}, seed=4).state_dict()["one"])
    twins = Scores.random({"a": one, "b": one}, seed=3).state_dict()
    assert not torch.equal(twins["a"], twins["b"])


def test_scores_of_half_precision_weights_are_float32_and_of_double_ones_double() -> None:
    kinds = {torch.bfloat16: torch.float32, torch.float32: torch.float32, torch.float64: torch.float64}
    for weight, score in kinds.items():
        assert Scores.random({"w": torch.zeros(3, 3, dtype=weight)}, seed=0).state_dict()["w"].dtype == score


def test_a_fork_shares_nothing_with_its_origin() -> None:
    origin = Scores.random({"w": torch.zeros(3, 3)}, seed=0, by="value")
    before = origin.state_dict()["w"].clone()
    fork = origin.fork()
    assert fork.by == "value"
    for _, parameter in fork.named_parameters():
        parameter.data.fill_(5.0)
    assert torch.equal(origin.state_dict()["w"], before)


def test_scores_carry_over_from_task_to_task() -> None:
    torch.manual_seed(0)
    learner = ff.WSN(nn.Linear(6, 8), capacity=0.5, recipe=ff.Recipe(epochs=2, batch_size=8, lr=0.05))
    inputs, labels = torch.randn(16, 6), torch.arange(16) % 2
    start = learner.scores.state_dict()["weight"].clone()
    learner.learn(ff.Task("one", (0, 1), (inputs, labels)))
    learned = learner.scores.state_dict()["weight"].clone()
    assert not torch.equal(start, learned)
    with learner.learning(ff.Task("two", (0, 1), (inputs, labels))) as session:
        assert torch.equal(session.moving()["scores.weight"], learned)
        session.keep()
    assert torch.equal(learner.scores.state_dict()["weight"], learned)


def test_minor_weights_are_what_their_number_says() -> None:
    shapes = {"a": torch.Size([40, 50]), "b": torch.Size([7])}
    one, other = Minor(shapes, 3), Minor(shapes, 3, number=5)
    assert not one.value("a").any()  # nothing drawn yet: the hard mask
    one.resample(5)
    assert torch.equal(one.value("a"), other.value("a"))
    assert float(one.value("a").min()) >= 0
    assert float(one.value("a").max()) < 1
    assert float(one.value("a").mean()) == pytest.approx(0.5, abs=0.05)
    state = {name: value.clone() for name, value in one.state_dict().items()}
    one.resample(6)
    assert not torch.equal(one.value("a"), other.value("a"))
    one.load_state_dict(state)
    assert torch.equal(one.value("a"), other.value("a"))
    assert not torch.equal(Minor(shapes, 4, number=5).value("a"), other.value("a"))


def test_scores_give_the_hard_mask_until_minor_weights_are_drawn() -> None:
    scores = Scores({"a": torch.randn(30, generator=torch.Generator().manual_seed(0))})
    minor = Minor({"a": torch.Size([30])}, 0)
    hard = as_mask(scores.soft(0.4, minor)["a"])
    minor.resample(0)
    soft = scores.soft(0.4, minor)["a"]
    assert isinstance(soft, Tensor)
    assert torch.equal(soft == 1, hard)
    assert torch.equal(soft[~hard], minor.value("a")[~hard])
