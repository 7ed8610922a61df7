"""Sparse answers: close to dense ones, always the same bits, and only where the rule says that they are faster."""

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.answering import Answers
from forgetfree.sparse import SparseLinear, compress, is_faster

WIDTH = 1449  # the smallest square layer that the rule takes
pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch was built without sparse kernels")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("outputs", "inputs", "density", "rows", "threads", "faster"),
    [
        (2500, 8192, 0.05, 64, 1, True),
        (2500, 8192, 0.05, 64, 2, True),
        (1500, 2500, 0.05, 64, 1, True),
        (1500, 2500, 0.05, 4096, 1, True),
        (1500, 2500, 0.10, 256, 1, True),
        (1500, 2500, 0.10, 257, 1, False),
        (1500, 2500, 0.1004, 64, 1, True),
        (1500, 2500, 0.11, 64, 1, False),
        (1500, 2500, 0.30, 64, 1, False),
        (1500, 2500, 0.05, 1, 1, True),
        (1500, 2500, 0.05, 1, 2, False),
        (1500, 2500, 0.10, 1, 1, False),
        (1449, 1449, 0.10, 2, 1, True),
        (1448, 1448, 0.01, 64, 1, False),
        (512, 8192, 0.05, 64, 1, True),
        (512, 8192, 0.10, 64, 1, False),
        (511, 8192, 0.01, 64, 1, False),
        (8192, 255, 0.01, 64, 1, False),
        (500, 800, 0.01, 64, 1, False),
        (100, 784, 0.01, 64, 1, False),
        (1500, 2500, 0.05, 0, 1, False),
    ],
)
def test_the_rule(outputs: int, inputs: int, density: float, rows: int, threads: int, faster: bool) -> None:
    assert is_faster(outputs, inputs, density, rows=rows, threads=threads) is faster


def layer(density: float = 0.05, *, bias: bool = True, width: int = WIDTH, seed: int = 0) -> nn.Linear:
    chance = torch.Generator().manual_seed(seed)
    made = nn.Linear(width, width, bias=bias).requires_grad_(False)
    made.weight.copy_(torch.randn(width, width, generator=chance) / width**0.5)
    made.weight[torch.rand(width, width, generator=chance) >= density] = 0
    return made


def rows(count: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randn(count, *(shape or (WIDTH,)), generator=torch.Generator().manual_seed(seed))


def compressed(dense: nn.Linear) -> SparseLinear:
    sparse = copy.deepcopy(dense)
    compress(sparse, {"weight"})
    assert isinstance(sparse, SparseLinear)
    return sparse


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, WIDTH), (64, WIDTH), (3, 5, WIDTH)])
def test_a_sparse_layer_agrees_with_the_dense_one(bias: bool, shape: tuple[int, ...]) -> None:
    dense, inputs = layer(bias=bias), rows(*shape)
    sparse = compressed(dense)
    answer, expected = sparse(inputs), dense(inputs)
    assert answer.shape == expected.shape
    assert answer.is_contiguous()
    assert torch.allclose(answer, expected, rtol=0, atol=1e-5)
    assert not torch.equal(answer, expected), "the dense kernel was used: the test would show nothing"
    assert torch.equal(sparse(inputs), answer)
    assert torch.equal(sparse(inputs.flip(0).contiguous().flip(0)), answer)


@pytest.mark.parametrize("count", [0, 1])
def test_where_it_is_not_faster_it_is_the_dense_layer_to_the_bit(count: int) -> None:
    dense, inputs = layer(0.10), rows(count)
    assert torch.equal(compressed(dense)(inputs), dense(inputs))
    assert torch.equal(compressed(dense)(inputs.sum(0)), dense(inputs.sum(0)))


def test_wrong_inputs_are_refused_in_the_words_of_a_dense_layer() -> None:
    dense = layer()
    for wrong in (rows(4, WIDTH - 1), rows(4).double(), torch.zeros(())):
        with pytest.raises(RuntimeError) as expected:
            dense(wrong)
        with pytest.raises(RuntimeError) as given:
            compressed(dense)(wrong)
        assert str(given.value) == str(expected.value)


def test_a_layer_whose_weight_was_changed_uses_the_changed_weight() -> None:
    inputs = rows(8)
    written, assigned = compressed(layer()), compressed(layer())
    written.weight.add_(1)
    assigned.weight = nn.Parameter(assigned.weight + 1)
    for changed in (written, assigned):
        assert torch.equal(changed(inputs), nn.functional.linear(inputs, changed.weight, changed.bias))


def test_autocast_and_gradients_go_the_dense_way() -> None:
    dense, inputs = layer(), rows(8)
    sparse = compressed(dense)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(sparse(inputs), dense(inputs))
    asked = inputs.clone().requires_grad_()
    sparse(asked).sum().backward()
    assert asked.grad is not None


def test_only_plain_masked_untied_unwatched_layers_are_compressed() -> None:
    class Own(nn.Linear):
        pass

    def own() -> nn.Linear:
        made = layer()
        made.__class__ = Own
        return made

    def hooked() -> nn.Linear:
        made = layer()
        made.register_forward_hook(lambda *_: None)
        return made

    def parametrized() -> nn.Module:
        return nn.utils.parametrize.register_parametrization(layer(), "weight", nn.Identity())

    tied = nn.Sequential(layer(), layer())
    tied[1].weight = tied[0].weight
    cases: dict[str, nn.Module] = {
        "plain": layer(),
        "owned": layer(),
        "denser": layer(0.3),
        "small": layer(width=256),
        "of doubles": layer().double(),
        "own": own(),
        "hooked": hooked(),
        "parametrized": parametrized(),
        "tied": tied,
    }
    module = nn.ModuleDict(cases)
    masked = [name for name, _ in module.named_parameters() if "owned" not in name]
    compress(module, masked)
    found = [name for name, part in module.named_modules() if isinstance(part, SparseLinear)]
    assert found == ["plain"]


def test_a_layer_registered_twice_is_compressed_for_all_who_hold_it() -> None:
    shared = layer()
    module = nn.Sequential(shared, nn.ReLU(), shared)
    compress(module, ["0.weight"])
    assert module[0] is module[2]
    assert isinstance(module[2], SparseLinear)


def test_the_budget_counts_compressed_rows() -> None:
    built: list[str] = []

    def build(name: str) -> nn.Module:
        built.append(name)
        return compressed(layer(bias=False))

    dense = layer(bias=False).weight.nbytes
    answers = Answers(build, budget=2 * dense + 100_000)  # for two dense layers, not for two of these
    for name in ("a", "b"):
        answers.try_out(name, rows(2))
    built.clear()
    for name in ("b", "a", "b", "b"):
        answers(name, rows(2))
    assert built == ["a", "b"]


def test_torch_says_nothing_of_its_beta() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compressed(layer())(rows(2))


class Net(nn.Module):
    """Two layers that are compressed and one that is too small."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.small = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16)

    def forward(self, given: Tensor) -> Tensor:
        return self.small(torch.relu(self.second(torch.relu(self.first(given)))))


def learner_of(make: Callable[[], nn.Module] = Net, **settings: Any) -> ff.WSN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ff.WSN(make(), capacity=0.05, recipe=ff.Recipe(epochs=1, batch_size=4, lr=0.01), **settings)


def task(name: str, seed: int) -> ff.Task:
    return ff.Task(name, ("x", "y"), (rows(8, seed=seed), torch.arange(8) % 2))


def test_sparse_answers_keep_their_bits_after_every_new_task() -> None:
    learner, dense, batch = learner_of(sparse_answers=True), learner_of(), rows(6, seed=9)
    right_after: dict[str, Tensor] = {}
    for seed, name in enumerate("abc"):
        learner.learn(task(name, seed))
        dense.learn(task(name, seed))
        right_after[name] = learner.predict(batch, task=name)
        plain = dense.predict(batch, task=name)
        assert torch.allclose(right_after[name], plain, rtol=0, atol=1e-5)
        assert not torch.equal(right_after[name], plain), "no sparse kernel was used: the test would show nothing"
        rebuilt = copy.deepcopy(learner)
        for old, answer in right_after.items():
            for asked in (learner, rebuilt):
                assert torch.equal(asked.predict(batch, task=old), answer)
    alone = [row for row, name in enumerate("aabcab") if name == "a"]
    assert torch.equal(learner.predict(batch, task=list("aabcab"))[alone], learner.predict(batch[alone], task="a"))
    assert rebuilt.sparse_answers


def test_threads_share_a_sparse_module() -> None:
    learner, batch, wrong = learner_of(sparse_answers=True), rows(6, seed=9), []
    for seed, name in enumerate("ab"):
        learner.learn(task(name, seed))
    right = {name: copy.deepcopy(learner).predict(batch, task=name) for name in "ab"}

    def ask(first: int) -> None:
        for turn in range(10):
            name = "ab"[(first + turn) % 2]
            if not torch.equal(learner.predict(batch, task=name), right[name]):
                wrong.append(name)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nothing_changes_without_the_keyword() -> None:
    learner = learner_of()
    learner.learn(task("a", 0))
    assert not learner.sparse_answers
    assert not any(isinstance(part, SparseLinear) for part in learner.engine._whole("a").modules())
    network, head, batch = learner.network.answer("a"), learner.engine.heads.kept["a"], rows(6, seed=9)
    assert torch.equal(learner.predict(batch, task="a"), head(network(batch)))


def test_a_module_that_writes_to_its_sparse_layer_is_found_out() -> None:
    class Writing(Net):
        def forward(self, given: Tensor) -> Tensor:
            if len(given) == 3 and not self.training:
                with torch.no_grad():
                    self.first.weight.mul_(2)
            return super().forward(given)

    learner, dense = learner_of(Writing, sparse_answers=True), learner_of(Writing)
    for asked in (learner, dense):
        asked.learn(task("a", 0))
    two, three = rows(2, seed=9), rows(3, seed=9)
    before = [learner.predict(two, task="a") for _ in range(2)]
    for _ in range(2):
        assert torch.allclose(learner.predict(three, task="a"), dense.predict(three, task="a"), rtol=0, atol=1e-5)
        assert torch.equal(learner.predict(two, task="a"), before[0])


def test_hooks_of_the_callers_backbone_see_what_they_would_see() -> None:
    seen: list[Tensor] = []

    def make() -> nn.Module:
        net = Net()
        net.first.register_forward_hook(lambda _, given, answer: seen.append(answer.detach().clone()))
        return net

    learner = learner_of(make, sparse_answers=True)
    learner.learn(task("a", 0))
    seen.clear()
    learner.predict(rows(6), task="a")
    module = learner.engine._whole("a").backbone
    assert len(seen) == 1
    assert type(module.first) is nn.Linear
    assert type(module.second) is SparseLinear
    assert torch.equal(seen[0], nn.functional.linear(rows(6), module.first.weight, module.first.bias))


def test_sparse_answers_move_like_others() -> None:
    learner, batch = learner_of(sparse_answers=True), rows(6)
    learner.learn(task("a", 0))
    before = learner.predict(batch, task="a")
    assert torch.equal(learner.to("cpu").predict(batch, task="a"), before)
