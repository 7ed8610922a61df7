"""The promise: whatever is learned later, by whatever optimizer, old answers on the same batch keep every bit."""

import copy
import logging
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree import recurrent, scores
from forgetfree.batches import convert, tensors_of
from forgetfree.contracts import Inputs
from forgetfree.tickets import overlap
from zoo import CLASSES, ZOO, Entry

NAMES = ("first", "second", "third", "fourth")
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


class Noise(torch.optim.SGD):
    """Adds noise to every parameter it sees, whether it has a gradient or not."""

    def __init__(self, parameters: list[nn.Parameter]):
        super().__init__(parameters, lr=0.1)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(0.1 * torch.randn_like(parameter))


def recipe(**settings: object) -> ff.Recipe:
    return ff.Recipe(**({"epochs": 1, "batch_size": 8, "lr": 0.03} | settings))  # type: ignore[arg-type]


RECIPES = {
    "sgd with momentum and decay": recipe(optimizer="sgd", epochs=3, lr=0.5, momentum=0.9, weight_decay=1e-2),
    "adam": recipe(optimizer="adam"),
    "adamw with decay": recipe(optimizer="adamw", weight_decay=0.1),
    "rmsprop": recipe(optimizer="rmsprop"),
    "carried-over optimizer": recipe(optimizer="adamw", weight_decay=0.1, carry_optimizer=True),
    "noise": recipe(optimizer=Noise),
    "bf16 autocast": recipe(autocast="bfloat16"),
    "clipping": recipe(clip=0.1),
    "accumulation": recipe(accumulate=2),
}


class OwnLoop:
    """A user's loop with one optimizer for all tasks, which goes on stepping after a task was kept."""

    def __init__(self) -> None:
        self.optimizer: torch.optim.Optimizer | None = None

    def __call__(self, learner: ff.WSN, task: ff.Task) -> None:
        inputs, labels = task.train
        with learner.learning(task) as session:
            if self.optimizer is None:
                self.optimizer = torch.optim.SGD(session.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1)
            else:
                self.optimizer.add_param_group({"params": session.parameters()})
            for _ in range(6):
                loss = nn.functional.cross_entropy(session(inputs), labels)
                loss.backward()
                self.optimizer.step()
            session.keep()
            self.optimizer.step()
        self.optimizer.step()


def ways() -> dict[str, tuple[ff.Recipe, Callable[[], Callable[[ff.WSN, ff.Task], None]]]]:
    by_recipe = {name: (given, lambda: ff.WSN.learn) for name, given in RECIPES.items()}
    return {**by_recipe, "own loop": (recipe(), OwnLoop)}


WAYS = ways()


def learner_of(entry: Entry, given: ff.Recipe | None = None, **settings: object) -> ff.WSN:
    return ff.WSN(entry.build(), capacity=0.3, recipe=given or RECIPES["adam"], **settings)  # type: ignore[arg-type]


def taught(entry: Entry, given: ff.Recipe | None = None, **settings: object) -> ff.WSN:
    learner = learner_of(entry, given, **settings)
    for seed, name in enumerate(NAMES):
        learner.learn(entry.task(name, seed=seed))
    return learner


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Stricter than torch.equal, for which 0.0 is -0.0."""
    return one.dtype == other.dtype and torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.fixture(autouse=True)
def kernels_for_small_networks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules here are too small for kernels, which larger ones always use; test_kernels has the plain path."""
    monkeypatch.setattr(scores, "WORTH_KERNELS", 0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ZOO)
def test_old_logits_are_bit_identical_after_every_new_task(kind: str, way: str) -> None:
    entry = ZOO[kind]
    given, teacher = WAYS[way]
    learner, teach = learner_of(entry, given), teacher()
    assert all(selection.cache is not None for selection in learner.scores.top(0.3).values())
    batch = entry.inputs(7, seed=99)
    right_after: dict[str, Tensor] = {}
    for seed, name in enumerate(NAMES):
        before = {tensor: value.clone() for tensor, value in learner.network.weights.items()}
        teach(learner, entry.task(name, seed=seed))
        right_after[name] = learner.predict(batch, task=name)
        assert any(not torch.equal(value, before[tensor]) for tensor, value in learner.network.weights.items())
        for old in right_after:
            assert same_bits(learner.predict(batch, task=old), right_after[old])
        rebuilt = copy.deepcopy(learner)  # has no cached module: its answers are made from what is kept
        for old in right_after:
            assert same_bits(rebuilt.predict(batch, task=old), right_after[old])
    first, last = (learner.network.tickets[name] for name in (NAMES[0], NAMES[-1]))
    common = sum(int(mask.sum()) for mask in overlap(first, last).values())
    kept = sum(int(first.mask(name).sum()) for name in first.masks)
    assert 0 < common < kept, "tickets neither moved apart nor reuse anything: the promise was not put to the test"
    assert not torch.equal(right_after[NAMES[0]], right_after[NAMES[-1]])


def test_an_optimizer_that_steps_after_keep_moves_nothing_of_the_learner() -> None:
    entry, loop = ZOO["cnn with batch norm"], OwnLoop()
    learner = learner_of(entry)
    loop(learner, entry.task("first"))

    def everything() -> dict[str, Tensor]:
        memory = learner.memory()
        own, head = memory.tickets["first"].own, memory.heads["first"]
        parts = {"shared": memory.shared, "own": own, "head": head, "scores": learner.scores.state_dict()}
        return {f"{part} {name}": value for part, values in parts.items() for name, value in values.items()}

    before = {name: value.clone() for name, value in everything().items()}
    loop.optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in everything().items())


@pytest.mark.parametrize("way", ["weight decay", "carried momentum"])
def test_zeroing_gradients_is_not_a_freeze(way: str) -> None:
    """The same check on a learner that zeroes the gradients of used weights instead: its old answers do change."""
    entry = ZOO["mlp with dropout"]
    backbone, head = entry.build(), nn.Linear(8, CLASSES)
    weights = [parameter for parameter in backbone.parameters() if parameter.dim() > 1]
    generator = torch.Generator().manual_seed(0)
    masks = [torch.rand(weight.shape, generator=generator) < 0.3 for weight in weights]
    if way == "weight decay":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(weights, lr=0.03, weight_decay=0.1)
    else:
        optimizer = torch.optim.SGD(weights, lr=0.3, momentum=0.9)
    inputs, batch = entry.inputs(24), entry.inputs(7, seed=99)

    def answer(rows: Tensor) -> Tensor:
        names = [name for name, parameter in backbone.named_parameters() if parameter.dim() > 1]
        seen = {name: weight * mask for name, weight, mask in zip(names, weights, masks, strict=True)}
        return head(torch.func.functional_call(backbone.eval(), seen, rows))

    def step(frozen: bool) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(answer(inputs), entry.task("any").train[1]).backward()
        for weight, mask in zip(weights, masks, strict=True):
            if frozen:
                weight.grad[mask] = 0
        optimizer.step()

    step(frozen=False)
    right_after = answer(batch).detach()
    assert torch.equal(answer(batch), right_after)
    step(frozen=True)
    assert not torch.equal(answer(batch), right_after)


def test_a_weight_that_a_task_does_not_use_shows_it_no_sign() -> None:
    """Zero times a negative weight is -0.0: a later task that turns the weight must not turn that zero."""

    class Signs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)

        def forward(self, rows: Tensor) -> Tensor:
            return self.layer(rows) + torch.copysign(torch.ones(()), self.layer.weight).sum(1)

    entry = Entry(Signs, ZOO["mlp with dropout"].draw)
    learner, batch = learner_of(entry, RECIPES["noise"]), entry.inputs(5)
    learner.learn(entry.task("first"))
    before = learner.predict(batch, task="first")
    learner.learn(entry.task("second", seed=1))
    assert torch.equal(copy.deepcopy(learner).predict(batch, task="first"), before)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.LSTMCell])
def test_a_recurrent_layer_without_a_low_precision_kernel_falls_back_and_says_so_once(
    layer: type[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    try:
        with torch.autocast("cpu", torch.bfloat16):
            layer(2, 2)(torch.zeros(2, 2))
        expected = 0
    except RuntimeError:
        expected = 1
    recurrent._has_kernel.cache_clear()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layer(4, 5, batch_first=True) if issubclass(layer, nn.RNNBase) else layer(4, 5)

        def forward(self, sequence: Tensor) -> Tensor:
            if isinstance(self.inner, nn.RNNBase):
                return self.inner(sequence)[0][:, -1]
            return self.inner(sequence[:, 0])[0]

    entry = Entry(Net, ZOO["lstm"].draw)
    with caplog.at_level(logging.WARNING, "forgetfree"):
        learner = learner_of(entry, RECIPES["bf16 autocast"], masked=["inner.weight*"])
        for seed in range(2):
            learner.learn(entry.task(NAMES[seed], seed=seed))
    said = [record.getMessage() for record in caplog.records if "kernel" in record.getMessage()]
    assert len(said) == expected
    assert all(layer.__name__ in sentence and "bfloat16" in sentence for sentence in said)
    assert learner.predict(entry.inputs(3), task="first").dtype == torch.float32


def test_autocast_really_learns_in_low_precision() -> None:
    entry, batch = ZOO["mlp with dropout"], ZOO["mlp with dropout"].inputs(5)
    plain, low = (learner_of(entry, RECIPES[way]) for way in ("adam", "bf16 autocast"))
    for learner in (plain, low):
        learner.learn(entry.task("first"))
    assert not torch.equal(plain.predict(batch, task="first"), low.predict(batch, task="first"))


@pytest.mark.parametrize("kind", ZOO)
def test_a_sample_alone_and_in_a_batch_agree(kind: str) -> None:
    entry = ZOO[kind]
    learner = learner_of(entry)
    learner.learn(entry.task("first"))
    batch = entry.inputs(6, seed=99)
    together = learner.predict(batch, task="first")
    for row in range(6):
        alone = learner.predict(convert(batch, lambda value, row=row: value[row : row + 1]), task="first")
        assert torch.allclose(alone[0], together[row], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["cnn with batch norm", "lstm", "transformer encoder", "counting"])
@pytest.mark.parametrize("cache_bytes", [1 << 30, 1])
def test_eight_threads_and_four_tasks_answer_like_one(kind: str, cache_bytes: int) -> None:
    entry = ZOO[kind]
    learner = taught(entry, cache_bytes=cache_bytes)
    batch = entry.inputs(5, seed=99)
    serial = {name: copy.deepcopy(learner).predict(batch, task=name) for name in NAMES}
    wrong = ask_at_once(learner, batch, serial, repeats=12)
    assert wrong == []


def test_threads_that_meet_a_module_that_writes_only_now_and_then_answer_like_one() -> None:
    class Sometimes(nn.Module):
        """Counts the large batches only, in use."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)
            self.register_buffer("count", torch.ones(()))

        def forward(self, rows: Tensor) -> Tensor:
            if not self.training and len(rows) > 5:
                self.count += 1
            return self.layer(rows) * self.count

    entry = Entry(Sometimes, ZOO["counting"].draw)
    for _ in range(5):
        learner = taught(entry)
        small, large = entry.inputs(5), entry.inputs(9)
        right = {name: copy.deepcopy(learner).predict(small, task=name) for name in NAMES}
        learner.predict(small, task="first")
        threading.Timer(0.002, learner.predict, (large, "first")).start()
        assert ask_at_once(learner, small, right, repeats=20) == []


def test_a_call_that_fails_after_writing_leaves_no_trace() -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)
            self.register_buffer("count", torch.ones(()))

        def forward(self, rows: Tensor) -> Tensor:
            if len(rows) == 3 and not self.training:
                self.count += 1
                raise RuntimeError("three rows")
            return self.layer(rows) * self.count

    entry = Entry(Fragile, ZOO["counting"].draw)
    learner = learner_of(entry)
    learner.learn(entry.task("first"))
    before = [learner.predict(entry.inputs(5), task="first") for _ in range(2)]
    with pytest.raises(RuntimeError, match="three rows"):
        learner.predict(entry.inputs(3), task="first")
    assert same_bits(learner.predict(entry.inputs(5), task="first"), before[0])


@pytest.mark.parametrize("kind", ["mlp with dropout", "transformer encoder", "counting"])
def test_what_the_caller_is_doing_does_not_change_an_answer(kind: str) -> None:
    entry = ZOO[kind]
    learner = learner_of(entry)
    learner.learn(entry.task("first"))
    batch = entry.inputs(5, seed=99)
    plain = learner.predict(batch, task="first")
    contexts: dict[str, Callable[[], object]] = {
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "grad mode": torch.enable_grad,
        "no grad": torch.no_grad,
        "inference mode": torch.inference_mode,
    }
    for name, context in contexts.items():
        fresh = copy.deepcopy(learner)
        with context():  # type: ignore[attr-defined]
            for asked in (learner, fresh):
                for _ in range(2):
                    answer = asked.predict(batch, task="first")
                    assert same_bits(answer, plain), name
                    assert not answer.requires_grad, name
        assert same_bits(fresh.predict(batch, task="first"), plain), f"after {name}"
    given = convert(batch, lambda value: value.clone().requires_grad_() if value.is_floating_point() else value)
    assert not learner.predict(given, task="first").requires_grad


def test_a_task_learned_inside_the_callers_autocast_answers_in_the_type_of_the_weights() -> None:
    entry = ZOO["mlp with dropout"]
    learner = learner_of(entry)
    inputs, labels = entry.task("first").train
    with torch.autocast("cpu", torch.bfloat16), learner.learning(entry.task("first")) as session:
        nn.functional.cross_entropy(session(inputs), labels).backward()
        session.keep()
    before = learner.predict(inputs, task="first")
    assert before.dtype == torch.float32
    learner.learn(entry.task("second", seed=1))
    assert same_bits(copy.deepcopy(learner).predict(inputs, task="first"), before)


@pytest.mark.parametrize("kind", ["residual, a module twice", "lstm", "counting"])
def test_answers_keep_their_bits_while_another_thread_learns(kind: str) -> None:
    entry = ZOO[kind]
    learner = learner_of(entry, cache_bytes=1)
    for seed, name in enumerate(NAMES[:2]):
        learner.learn(entry.task(name, seed=seed))
    batch = entry.inputs(5, seed=99)
    before = {name: learner.predict(batch, task=name) for name in NAMES[:2]}
    asked = 0
    worker = threading.Thread(target=learner.learn, args=(entry.task("third", count=160, seed=2),))
    worker.start()
    while worker.is_alive():
        for name in before:
            assert same_bits(learner.predict(batch, task=name), before[name])
            asked += 1
    worker.join()
    assert asked > 2
    assert list(learner.tasks) == ["first", "second", "third"]
    alone = learner_of(entry, cache_bytes=1)
    for seed, name in enumerate(NAMES[:3]):
        alone.learn(entry.task(name, count=160 if seed == 2 else 24, seed=seed))
    assert same_bits(learner.predict(batch, task="third"), alone.predict(batch, task="third"))


@pytest.mark.parametrize("kind", ZOO)
def test_asking_leaves_no_trace(kind: str) -> None:
    entry = ZOO[kind]
    learner = learner_of(entry)
    learner.learn(entry.task("first"))
    silent = copy.deepcopy(learner)
    batch = entry.inputs(5, seed=99)
    given = convert(batch, torch.clone)
    chance = torch.get_rng_state()
    answers = [learner.predict(batch, task="first") for _ in range(4)]
    assert all(same_bits(answer, answers[0]) for answer in answers)
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(*pair) for pair in zip(tensors_of(batch), tensors_of(given), strict=True))
    for learned in (learner, silent):
        learned.learn(entry.task("second", seed=1))
    assert same_bits(learner.predict(batch, task="second"), silent.predict(batch, task="second"))


def test_the_counting_module_counts_while_it_learns() -> None:
    """Else the other tests of it could not fail: 3 batches were seen, and the answer is the fourth call."""
    entry = ZOO["counting"]
    learner = learner_of(entry)
    learner.learn(entry.task("first"))
    own = learner.network.tickets["first"].own
    assert (float(own["in_place"]), int(own["assigned"])) == (3, 3)


def ask_at_once(learner: ff.WSN, batch: Inputs, right: dict[str, Tensor], repeats: int) -> list[str]:
    """The tasks that were answered wrongly to eight threads that ask all tasks, each in another order."""
    wrong: list[str] = []
    start = threading.Barrier(8)

    def ask(number: int) -> None:
        start.wait()
        for repeat in range(repeats * len(NAMES)):
            name = NAMES[(number + repeat * (1 + number % 3)) % len(NAMES)]
            if not same_bits(learner.predict(batch, task=name), right[name]):
                wrong.append(name)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong
