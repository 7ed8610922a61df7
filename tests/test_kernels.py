"""The kernels give the bits of the plain path: the same sets, the same weights, the same gradients."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import forgetfree as ff
from forgetfree import masked_weights, masks, scores
from forgetfree.kernels import ROOM, Search
from forgetfree.masks import kept_count, select
from forgetfree.scores import Scores


def chosen_by(cut, scores):
    chosen = np.abs(scores) >= cut.threshold
    chosen[cut.losers] = False
    return chosen


def assert_exact(search, scores, fraction):
    count = kept_count(scores.size, fraction)
    expected = select(torch.from_numpy(np.abs(scores)), count).numpy()
    np.testing.assert_array_equal(chosen_by(search.cut(scores, count), scores), expected)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 3000),
    fraction=st.sampled_from([1e-6, 0.01, 0.05, 0.3, 0.5, 0.9, 0.999, 1.0]),
    step=st.sampled_from([0.0, 1e-5, 1e-3, 0.1, 10.0]),
    grid=st.sampled_from([0.0, 0.25, 1e-3]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_a_search_along_a_walk_of_scores_is_exact_at_every_step(seed, size, fraction, step, grid, dtype):
    draw, search = np.random.default_rng(seed), Search(size)
    scores = draw.uniform(-1, 1, size)
    for _ in range(12):
        scores = scores + step * draw.choice([-1, 1], size)
        if grid:
            scores = np.round(scores / grid) * grid  # many ties, zeros of both signs
        assert_exact(search, scores.astype(dtype), fraction)


@pytest.mark.parametrize("value", [0.0, -0.0, 0.5, np.inf])
def test_scores_that_are_all_alike_keep_the_lower_indices(value):
    search, scores = Search(5 * ROOM), np.full(5 * ROOM, value, np.float32)
    for _ in range(3):
        assert_exact(search, scores, 0.3)


def test_a_search_finds_its_way_back_after_a_jump():
    draw, search = np.random.default_rng(0), Search(20_000)
    for scale in (1, 1, 1e-6, 1e6, 1, 0, 1, 1):
        for _ in range(3):
            assert_exact(search, (scale * draw.normal(size=20_000)).astype(np.float32), 0.1)


def test_steady_scores_are_found_in_the_band(monkeypatch):
    draw, search = np.random.default_rng(0), Search(200_000)
    scores, everywhere = draw.uniform(-0.04, 0.04, 200_000).astype(np.float32), []
    rank_all = Search._anywhere
    monkeypatch.setattr(Search, "_anywhere", lambda self, *words: everywhere.append(1) or rank_all(self, *words))
    for _ in range(60):
        scores += (1e-3 * draw.choice([-1, 1], scores.size)).astype(np.float32)
        assert_exact(search, scores, 0.05)
    assert len(everywhere) < 12, f"everything was ranked in {len(everywhere)} of 60 steps"


def seen_twice(dtype, used, monkeypatch):
    """The same network and scores seen by kernels and by plain torch."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(90, 70, bias=False), nn.ReLU(), nn.Linear(70, 60, bias=False)).to(dtype)
    results = []
    for fast in (True, False):
        monkeypatch.setattr(scores, "WORTH_KERNELS", 0 if fast else 10**12)
        network = ff.SharedNetwork(module)
        made = Scores.random(network.weights, seed=1)
        first = dict(made.named_parameters())["0.weight"]
        with torch.no_grad():
            first[0, :40] = torch.tensor([0.0, -0.0]).repeat(20)
            first[1:40] = first[1]  # ties by the row
        if used:
            network.keep("before", network.trainable_view(), made.top(0.2))
            with torch.no_grad():
                for _, value in made.named_parameters():
                    value.add_(0.01)
        view = network.trainable_view()
        with torch.no_grad():
            for _, value in view.named_parameters():
                value.add_(0.25)
        selections = made.top(0.3)
        assert all((selection.cache is not None) == fast for selection in selections.values())
        generator = torch.Generator().manual_seed(2)
        out = view(torch.randn(8, 90, generator=generator).to(dtype), selections)
        out.square().sum().backward()
        gradients = {
            f"{part}.{name}": value.grad
            for part, trained in (("free", view), ("scores", made))
            for name, value in trained.named_parameters()
        }
        results.append((out, gradients))
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("used", [False, True], ids=["first task", "second task"])
def test_kernels_and_plain_torch_give_the_same_outputs_and_gradients(dtype, used, monkeypatch):
    (fast, fast_gradients), (plain, plain_gradients) = seen_twice(dtype, used, monkeypatch)
    assert torch.equal(fast, plain)
    assert fast_gradients.keys() == plain_gradients.keys()
    for name, gradient in fast_gradients.items():
        assert torch.equal(gradient, plain_gradients[name]), name


def learned(fast, monkeypatch, **keywords):
    monkeypatch.setattr(scores, "WORTH_KERNELS", 0 if fast else 10**12)
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 20), nn.ReLU()
    )
    learner = ff.WSN(backbone, capacity=0.2, recipe=ff.Recipe(epochs=2, batch_size=16, **keywords))
    x, y = torch.randn(64, 1, 8, 8), torch.arange(64) % 3
    for name in "abc":
        learner.learn(ff.Task(name, (0, 1, 2), (x.roll(ord(name), 0), y), (x, y)))
    return learner, x


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_learner_ends_with_the_same_bits_with_and_without_kernels(optimizer, monkeypatch):
    (fast, x), (plain, _) = (learned(way, monkeypatch, optimizer=optimizer) for way in (True, False))
    for name in "abc":
        assert torch.equal(fast.predict(x, name), plain.predict(x, name))


def test_a_score_that_becomes_nan_is_an_error_at_the_latest_when_the_task_is_kept():
    learner = ff.WSN(nn.Linear(200, 100), capacity=0.2)
    task = ff.Task("a", (0, 1), (torch.randn(8, 200), torch.arange(8) % 2))
    with learner.learning(task) as session:
        with torch.no_grad():
            session.moving()["scores.weight"][3, 5] = torch.nan
        with pytest.raises(ff.ForgetfreeError, match=r"not finite|NaN"):
            session.keep()
    assert not learner.tasks


def test_modules_in_another_memory_format_or_type_take_the_plain_path(monkeypatch):
    monkeypatch.setattr(scores, "WORTH_KERNELS", 0)
    module = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    learner = ff.WSN(nn.Sequential(module, nn.Flatten()), capacity=0.5, recipe=ff.Recipe(epochs=1))
    x = torch.randn(8, 4, 5, 5)
    learner.learn(ff.Task("a", (0, 1), (x, torch.arange(8) % 2)))
    before = learner.predict(x, "a")
    learner.learn(ff.Task("b", (0, 1), (x.flip(0), torch.arange(8) % 2)))
    assert torch.equal(before, learner.predict(x, "a"))


def test_without_numba_plain_torch_learns_the_same(monkeypatch):
    with_numba, x = learned(True, monkeypatch)
    monkeypatch.setitem(sys.modules, "forgetfree.kernels", None)
    without, _ = learned(True, monkeypatch)
    assert without.scores.fork().top(0.2)["0.weight"].cache is None
    assert torch.equal(with_numba.predict(x, "c"), without.predict(x, "c"))


@pytest.fixture
def session(monkeypatch):
    """A session in its second task whose weights are seen through the kernels."""
    monkeypatch.setattr(scores, "WORTH_KERNELS", 0)
    torch.manual_seed(0)
    learner = ff.WSN(
        nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 5)), capacity=0.3, recipe=ff.Recipe(epochs=1)
    )
    x, y = torch.randn(12, 9), torch.arange(12) % 3
    learner.learn(ff.Task("first", (0, 1, 2), (x, y)))
    with learner.learning(ff.Task("second", (0, 1, 2), (x, y))) as session:
        yield session, x, y


def plainly(session, x, y, monkeypatch):
    """Gradients of the same session by plain torch."""
    with monkeypatch.context() as patch:
        patch.setattr(masked_weights, "_suits_kernels", lambda *_: False)
        return torch.autograd.grad(nn.functional.cross_entropy(session(x), y), session.parameters())


def test_gradients_of_single_samples_by_vmap_are_those_of_a_loop(session, monkeypatch):
    session, x, y = session
    parameters = list(session.parameters())

    def loss(row, label):
        return nn.functional.cross_entropy(session(row.unsqueeze(0)), label.unsqueeze(0))

    def gradient_of(row, label):
        # every parameter is closed over, so the derivative is taken along a factor that each of them has
        return torch.func.grad(lambda factor: factor * loss(row, label))(torch.ones(()))

    apart = torch.func.vmap(gradient_of)(x, y)
    alone = torch.stack([loss(row, label) for row, label in zip(x, y, strict=True)])
    torch.testing.assert_close(apart, alone)
    together = torch.autograd.grad(apart.mean(), parameters)
    for ours, plain in zip(together, plainly(session, x, y, monkeypatch), strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("fast", [True, False], ids=["kernels", "plain"])
def test_weights_and_scores_can_be_stacked_under_vmap(fast, monkeypatch):
    monkeypatch.setattr(scores, "WORTH_KERNELS", 0 if fast else 10**12)
    torch.manual_seed(0)
    free, values = torch.randn(3, 6, 4), torch.randn(3, 6, 4)

    def seen(weight, score):
        top = Scores({"w": torch.zeros(6, 4)}).top(0.4)["w"]
        selection = masks.Selection(score, 0.4, "magnitude", top.cache)
        return masked_weights.masked_weights({"w": selection}, {"w": masked_weights.Shared(weight)})["w"]

    apart = [masks.top_fraction(score, 0.4) * weight for weight, score in zip(free, values, strict=True)]
    assert torch.equal(torch.func.vmap(seen)(free, values), torch.stack(apart))

    def energy(weight, score):
        return seen(weight, score).square().sum()

    for ours, plain in zip(
        torch.func.vmap(torch.func.grad(energy, argnums=(0, 1)))(free, values),
        torch.autograd.grad(_energy(free.requires_grad_(), values.requires_grad_()), (free, values)),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-5)


def _energy(free, values):
    return sum((masks.top_fraction(s, 0.4) * w).square().sum() for w, s in zip(free, values, strict=True))


def test_second_derivatives_are_those_of_plain_torch(session, monkeypatch):
    session, x, y = session

    def penalty():
        loss = nn.functional.cross_entropy(session(x), y)
        first = torch.autograd.grad(loss, session.parameters(), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), session.parameters())

    ours = penalty()
    monkeypatch.setattr(masked_weights, "_suits_kernels", lambda *_: False)
    for one, other in zip(ours, penalty(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_two_forward_passes_before_one_backward_pass_give_the_gradient_of_both(session, monkeypatch):
    session, x, y = session
    both = nn.functional.cross_entropy(session(x), y) + nn.functional.cross_entropy(session(x + 1), y)
    ours = torch.autograd.grad(both, session.parameters())
    apart = [plainly(session, inputs, y, monkeypatch) for inputs in (x, x + 1)]
    for one, first, second in zip(ours, *apart, strict=True):
        torch.testing.assert_close(one, first + second, atol=1e-6, rtol=1e-5)


def test_gradients_that_are_not_cleared_add_up(session):
    session, x, y = session
    for _ in range(2):
        nn.functional.cross_entropy(session(x), y).backward()
    twice = [parameter.grad.clone() for parameter in session.parameters()]
    for parameter in session.parameters():
        parameter.grad = None
    nn.functional.cross_entropy(session(x), y).backward()
    for parameter, doubled in zip(session.parameters(), twice, strict=True):
        torch.testing.assert_close(2 * parameter.grad, doubled)


def test_scores_that_move_between_forward_and_backward_are_an_error(session):
    session, x, y = session
    loss = nn.functional.cross_entropy(session(x), y)
    with torch.no_grad():
        session.moving()["scores.0.weight"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_values_put_in_place_of_a_parameters_data_are_seen(session):
    session, x, _ = session
    session.eval()
    before = session(x)
    for parameter in session.parameters():
        parameter.data = torch.zeros_like(parameter)
    assert bool((session(x) == 0).all())
    assert not bool((before == 0).all())
