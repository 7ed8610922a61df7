"""Gradient checkpointing: parts of a backbone that backward() makes again, in every method's view of the network."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import forgetfree as ff
from forgetfree.batches import Batch
from forgetfree.network import SharedNetwork
from forgetfree.settings import settings_of
from zoo import FSCIL, TIL


class Parts(nn.Module):
    """Layers, a norm with statistics and dropout, inside and outside of what is made again."""

    def __init__(self, reentrant: bool | None, width: int = 8):
        super().__init__()
        self.reentrant = reentrant
        self.stem, self.twice, self.end = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 8)
        self.block = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.part(self._block, self.stem(inputs))
        return self.end(self.part(self.twice, self.twice(hidden)))

    def _block(self, hidden: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return torch.nn.functional.linear(self.block(hidden), self.block[0].weight)

    def part(self, function: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        if self.reentrant is None:
            return function(hidden)
        return checkpoint(function, hidden, use_reentrant=self.reentrant)


def built(reentrant: bool | None, width: int = 8) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Parts(reentrant, width)


def tasks(count: int = 2) -> list[ff.Task]:
    drawn = torch.Generator().manual_seed(1)
    inputs = [torch.randn(32, 8, generator=drawn) for _ in range(count)]
    return [ff.Task(f"t{i}", (2 * i, 2 * i + 1), (x, torch.arange(32) % 2)) for i, x in enumerate(inputs)]


def learner_of(method: str, reentrant: bool | None, width: int = 8) -> Any:
    kind = ff.METHODS[method]
    sgd = ff.Recipe(epochs=1, batch_size=8, optimizer="sgd", lr=0.01)
    usual = {"capacity": 0.5, "session": sgd, "exemplars": 2}
    chosen = {name: value for name, value in usual.items() if name in settings_of(kind)}
    return kind(built(reentrant, width), recipe=sgd, **chosen)


def gradients(learner: Any, task: ff.Task) -> dict[str, Tensor]:
    """Of all that moves, after one step through an open session."""
    inputs, labels = task.train
    with learner.learning(task) as session:
        session.train()
        torch.manual_seed(3)
        session.loss(Batch(inputs, labels)).backward()
        found = {name: value.grad.clone() for name, value in session.moving().items() if value.grad is not None}
        if isinstance(
            learner.network, SharedNetwork
        ):  # in a plain module, torch counts a part that is made again twice
            found |= {f"buffer {name}": value.clone() for name, value in session.named_buffers()}
        return found


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("method", [name for name in (*TIL, *FSCIL) if name != "multitask"])
def test_parts_that_are_made_again_give_the_same_gradients(method: str, reentrant: bool) -> None:
    plain, parts = learner_of(method, None), learner_of(method, reentrant)
    first, second = tasks()
    compare(plain, parts, first, reentrant)
    plain.learn(first)
    parts.learn(first)
    trains = method not in ("bayes_means", "ncm", "hardnet")
    # a reentrant part has no gradient where its inputs have none, so that not every session can learn in it
    if trains and not reentrant and isinstance(parts.network, SharedNetwork):
        compare(plain, parts, second, reentrant)


@pytest.mark.parametrize("method", ["fsll", "warp"])
def test_a_later_session_learns_in_reentrant_parts_where_layers_before_them_move(method: str) -> None:
    plain, parts = learner_of(method, None), learner_of(method, True)
    first, second = tasks()
    plain.learn(first)
    parts.learn(first)
    compare(plain, parts, second, reentrant=True)


def compare(plain: Any, parts: Any, task: ff.Task, reentrant: bool) -> None:
    expected, found = gradients(plain, task), gradients(parts, task)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # a reentrant part adds its share of the gradient apart from that of the rest
        near = {"rtol": 2e-5, "atol": 1e-7} if reentrant else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(found[name], value, **near)


@pytest.mark.parametrize("reentrant", [False, True])
def test_learning_with_kernels_ends_in_the_same_bits(reentrant: bool) -> None:
    plain, parts = learner_of("wsn", None, width=100), learner_of("wsn", reentrant, width=100)
    for task in tasks():
        for learner in (plain, parts):
            learner.learn(task)
    for name, value in plain.memory().shared.items():
        torch.testing.assert_close(parts.memory().shared[name], value, rtol=1e-5, atol=1e-7)
        assert reentrant or torch.equal(parts.memory().shared[name], value)


def test_several_calls_may_wait_for_one_backward() -> None:
    """Each call finds its own tensors, also where others were made since, in eval mode and in training."""
    (task,) = tasks(1)
    inputs, _ = task.train
    sums = []
    for learner in (learner_of("wsn", None), learner_of("wsn", False)):
        with learner.learning(task) as session:
            session.train()
            torch.manual_seed(0)
            loss = session(inputs[:8]).square().sum() + session(inputs[8:16]).sum()
            session.eval()
            with torch.no_grad():
                session(inputs[:4])
            session.train()
            loss.backward(retain_graph=True)
            loss.backward()
            copy.deepcopy(session)
            sums.append({name: value.grad for name, value in session.moving().items()})
    assert all(torch.equal(sums[0][name], value) for name, value in sums[1].items())


def test_a_backward_that_fails_leaves_a_session_that_learns_on() -> None:
    (task,) = tasks(1)
    learner = learner_of("wsn", False)
    with learner.learning(task) as session:
        session.train()
        loss = session(task.train[0]).square().sum()
        stuck = session.model.network.own_tensors["stem.bias"].register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        stuck.remove()
        copy.deepcopy(session)
        session(task.train[0]).square().sum().backward()
        session.keep()
    assert learner.predict(task.train[0], "t0").isfinite().all()


def test_a_part_leaves_no_weights_behind() -> None:
    """What was lent is held by nobody once backward() is done, even by whoever keeps the loss."""
    (task,) = tasks(1)
    with learner_of("wsn", False).learning(task) as session:
        loss = session(task.train[0]).square().sum()
        loss.backward()
        inside = session.model.network._module
        assert all(value.is_meta for value in (*inside.parameters(), *inside.buffers()))
        assert loss.grad_fn is not None


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("method", ["wsn", "hat", "finetune"])
def test_a_transformer_learns_with_gradient_checkpointing(method: str, reentrant: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
    )

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertModel(config, add_pooling_layer=False)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.bert(tokens).last_hidden_state[:, 0]

    def learned(checkpointing: bool) -> Tensor:
        torch.manual_seed(0)
        backbone = Pooled()
        if checkpointing:
            backbone.bert.gradient_checkpointing_enable({"use_reentrant": reentrant})
        tokens = torch.randint(20, (16, 5), generator=torch.Generator().manual_seed(1))
        sgd = ff.Recipe(epochs=1, optimizer="sgd", lr=0.01)
        learner = ff.METHODS[method](backbone, recipe=sgd, **({"capacity": 0.5} if method == "wsn" else {}))
        learner.learn(ff.Task("a", ("p", "q"), (tokens, torch.arange(16) % 2)))
        return learner.predict(tokens, "a")

    torch.testing.assert_close(learned(True), learned(False), rtol=1e-4, atol=1e-6)
