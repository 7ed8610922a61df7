"""SharedNetwork: three kinds of tensors, what is refused, where values start, and what is never written to."""

import copy
import functools
import logging
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import forgetfree as ff
from forgetfree import network
from forgetfree.masked_weights import Shared
from zoo import ZOO, Entry

BATCH = ZOO["mlp with dropout"].inputs(5, seed=99)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]


@pytest.fixture(autouse=True)
def _one_thread_and_one_chance() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(before)


def still() -> ff.Recipe:
    """A recipe that trains nothing: only what a module does to itself moves."""
    return ff.Recipe(epochs=1, batch_size=8, optimizer="sgd", lr=0.0)


def learner_of(backbone: nn.Module, **settings: object) -> ff.WSN:
    given = {"capacity": 0.3, "recipe": ff.Recipe(epochs=1, batch_size=8, lr=0.03)} | settings
    return ff.WSN(backbone, **given)  # type: ignore[arg-type]


def task(name: str = "first", seed: int = 0, count: int = 24) -> ff.Task:
    return ZOO["mlp with dropout"].task(name, count=count, seed=seed)


def features_only(width: int, given: ff.Task) -> nn.Module:
    """A head that shows the features as they are."""
    return nn.Identity()


def small(**extra: nn.Module) -> nn.Sequential:
    """A linear layer, and whatever else; from 6 numbers to 8."""
    return nn.Sequential(nn.Linear(6, 8), *extra.values())


class Around(nn.Module):
    """A linear layer with something odd beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows)


# --- three kinds of tensors ---


def test_every_tensor_is_masked_owned_or_fixed_and_the_layout_says_why() -> None:
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5))
    backbone[3].weight.requires_grad_(False)
    layout = ff.SharedNetwork(backbone).layout()
    assert {entry.name: (entry.kind, entry.why) for entry in layout} == {
        "0.weight": ("masked", "weight of Conv2d"),
        "0.bias": ("owned", "1-d parameter of Conv2d"),
        "1.weight": ("owned", "1-d parameter of BatchNorm2d"),
        "1.bias": ("owned", "1-d parameter of BatchNorm2d"),
        "3.weight": ("fixed", "requires_grad was False when wrapped"),
        "3.bias": ("owned", "1-d parameter of Linear"),
        "1.running_mean": ("owned", "buffer"),
        "1.running_var": ("owned", "buffer"),
        "1.num_batches_tracked": ("owned", "buffer"),
    }
    assert {entry.name: entry.shape for entry in layout}["0.weight"] == (4, 1, 3, 3)
    rows = str(layout).splitlines()
    assert rows[0].split() == ["tensor", "shape", "kind", "why"]
    assert any(row.split()[:3] == ["0.weight", "4×1×3×3", "masked"] for row in rows)
    assert any(row.split()[:3] == ["1.num_batches_tracked", "scalar", "owned"] for row in rows)


@pytest.mark.parametrize("kind", ZOO)
def test_the_layout_names_every_tensor_once(kind: str) -> None:
    backbone = ZOO[kind].build()
    names = [entry.name for entry in ff.SharedNetwork(backbone).layout()]
    tensors = {id(tensor) for tensor in [*backbone.parameters(), *backbone.buffers()]}
    assert len(names) == len(set(names)) == len(tensors)


def test_weights_of_recurrent_attention_and_embedding_layers_are_masked() -> None:
    lstm, encoder, tied = (
        ff.SharedNetwork(ZOO[kind].build()).layout().of("masked")
        for kind in ("lstm", "transformer encoder", "tied weight")
    )
    assert {"layer.weight_ih_l0", "layer.weight_hh_l1_reverse"} <= set(lstm)
    assert {"embedding.weight", "encoder.layers.1.self_attn.in_proj_weight"} <= set(encoder)
    assert tied == ["embedding.weight", "mix.weight"]


@pytest.mark.parametrize("masked", ["2.*", ["2.*"], ("2.weight", "2.bias"), iter(["2.*"])])
def test_masked_chooses_tensors_by_pattern(masked: object) -> None:
    backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
    layout = ff.SharedNetwork(backbone, masked=masked).layout()  # type: ignore[arg-type]
    assert layout.of("masked") == ["2.weight", "2.bias"]
    assert layout.of("owned") == ["0.weight", "0.bias"]
    assert all(entry.why.startswith("matches '2.") for entry in layout if entry.kind == "masked")


def test_masked_chooses_tensors_by_predicate() -> None:
    asked = []

    def convolutions(name: str, parameter: nn.Parameter, layer: nn.Module) -> bool:
        asked.append((name, parameter.dim(), type(layer)))
        return isinstance(layer, nn.Conv2d)

    backbone = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 4))
    layout = ff.SharedNetwork(backbone, masked=convolutions).layout()
    assert layout.of("masked") == ["0.weight", "0.bias"]
    assert ("2.weight", 2, nn.Linear) in asked
    assert {entry.why for entry in layout if entry.kind == "masked"} == {"chosen by masked="}


def test_a_chosen_bias_is_shared_and_frozen_like_a_weight() -> None:
    learner = learner_of(small(), masked=["*"])
    answers = {}
    for seed, name in enumerate(("first", "second", "third")):
        learner.learn(task(name, seed))
        answers[name] = learner.predict(BATCH, task=name)
        rebuilt = copy.deepcopy(learner)
        assert all(torch.equal(rebuilt.predict(BATCH, task=old), answer) for old, answer in answers.items())
    assert learner.network.tickets["first"].own == {}


def test_a_pattern_that_matches_nothing_is_an_error_that_names_what_exists() -> None:
    with pytest.raises(ff.InputError, match=r"'3\.weight'.*'0\.weight', '0\.bias'"):
        ff.SharedNetwork(small(), masked=["0.weight", "3.weight"])


@pytest.mark.parametrize("backbone", [nn.BatchNorm1d(6), nn.Linear(6, 8).requires_grad_(False), nn.Identity()])
def test_a_module_with_nothing_to_share_is_refused(backbone: nn.Module) -> None:
    with pytest.raises(ff.ModuleError, match="masked="):
        ff.SharedNetwork(backbone)


def test_much_owned_warns_and_names_the_argument_to_use(caplog: pytest.LogCaptureFixture) -> None:
    class Prompt(Around):
        def __init__(self) -> None:
            super().__init__()
            self.prompt = nn.Parameter(torch.zeros(7, 6))

    with caplog.at_level(logging.WARNING, "forgetfree"):
        ff.SharedNetwork(Prompt())
    (sentence,) = (record.getMessage() for record in caplog.records)
    assert "masked=" in sentence
    assert "'prompt'" in sentence
    assert "51 %" in sentence  # 42 + 8 of 98
    caplog.clear()
    with caplog.at_level(logging.WARNING, "forgetfree"):
        ff.SharedNetwork(Prompt(), masked=["layer.weight", "prompt"])
        ff.SharedNetwork(nn.Linear(100, 10))
    assert caplog.records == []


# --- what is refused ---


class LooseTensor(Around):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(8)


class LooseTensorInAList(Around):
    def __init__(self) -> None:
        super().__init__()
        self.scales = [1.0, (2.0, torch.ones(8))]


class LooseTensorInADict(Around):
    def __init__(self) -> None:
        super().__init__()
        self.layer.state = {"scales": {"last": torch.ones(8)}}


class LooseParameters(Around):
    def __init__(self) -> None:
        super().__init__()
        self.extra = [nn.Parameter(torch.ones(8))]


class LooseModule(Around):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 8)]


class SecondWay(Around):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.state = {"count": self.count}


class Uncopyable(Around):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tensor attribute": (LooseTensor, r"'scale' .*register_buffer\('scale'"),
    "tensor in a list": (LooseTensorInAList, r"scales\[1\]\[1\].*register_buffer\('scales'"),
    "tensor in a dict": (LooseTensorInADict, r"layer \(Linear\).*'last'.*register_buffer\('state'"),
    "parameter in a list": (LooseParameters, r"extra\[0\].*nn\.Parameter"),
    "module in a list": (LooseModule, r"layers\[0\].*nn\.ModuleList"),
    "second way to a buffer": (SecondWay, r"state\['count'\].*under its own name"),
    "embedding with max_norm": (lambda: nn.Embedding(5, 4, max_norm=1.0), "max_norm=None"),
    "embedding bag with max_norm": (lambda: nn.EmbeddingBag(5, 4, max_norm=1.0), "max_norm=None"),
    "sparse embedding": (lambda: small(extra=nn.Embedding(5, 4, sparse=True)), "sparse=False"),
    "lazy layer": (lambda: nn.Sequential(nn.LazyLinear(8)), "run one batch through it"),
    "lazy buffers": (lambda: small(extra=nn.LazyBatchNorm1d(affine=False)), "run one batch through it"),
    "old weight_norm": (
        lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 8))),
        r"torch\.nn\.utils\.parametrizations\.weight_norm",
    ),
    "old spectral_norm": (lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8))), "'weight'"),
    "module that cannot be copied": (Uncopyable, "outside the module"),
    "no module": (lambda: lambda rows: rows, "nn.Module"),  # type: ignore[return-value]
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_module_that_could_leak_is_refused_with_a_sentence_that_says_what_to_do(kind: str) -> None:
    build, sentence = REFUSED[kind]
    with pytest.raises(ff.ModuleError, match=sentence):
        learner_of(build())


def test_a_refused_head_is_refused_with_the_same_sentence_and_nothing_is_lost() -> None:
    learner = learner_of(small(), heads=lambda width, given: nn.LazyLinear(given.width))
    with pytest.raises(ff.ModuleError, match="run one batch through it"):
        learner.learn(task())
    assert list(learner.tasks) == []


def test_a_module_that_holds_itself_in_a_dict_is_looked_through_once() -> None:
    backbone = Around()
    backbone.registry = {"layer": backbone.layer}
    backbone.registry["registry"] = backbone.registry
    learner_of(backbone).learn(task())


def test_a_fixed_tensor_that_the_module_writes_to_is_an_error_and_reaches_no_other_task() -> None:
    class Average(Around):
        def __init__(self) -> None:
            super().__init__()
            self.average = nn.Parameter(torch.ones(8), requires_grad=False)

        def forward(self, rows: Tensor) -> Tensor:
            answer = self.layer(rows)
            if self.training and len(rows) == 16:
                self.average.mul_(0.9).add_(0.1 * answer.detach().mean(0))
            return answer * self.average

    learner = learner_of(Average())
    learner.learn(task("first"))
    before = learner.predict(BATCH, task="first")
    with pytest.raises(ff.ModuleError, match=r"average .*register_buffer"), learner.learning(task("second")) as session:
        session(ZOO["mlp with dropout"].inputs(16))
    assert torch.equal(copy.deepcopy(learner).predict(BATCH, task="first"), before)
    assert torch.equal(learner.memory().common["average"], torch.ones(8))


def test_a_buffer_that_is_made_while_learning_is_an_error() -> None:
    class Late(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", None)

        def forward(self, rows: Tensor) -> Tensor:
            answer = self.layer(rows)
            if self.training:
                self.mean = answer.detach().mean(0)
            return answer if self.mean is None else answer - self.mean

    with pytest.raises(ff.ModuleError, match=r"^mean: .*before wrapping"):
        learner_of(Late()).learn(task())


@pytest.mark.parametrize(
    "norm", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
)
@pytest.mark.parametrize("masked", [None, ["*weight*"]])
def test_new_style_parametrizations_are_accepted_and_keep_their_bits(norm: Callable, masked: object) -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 8))
    learner = learner_of(backbone, masked=masked, capacity=0.6)
    answers = {}
    for seed, name in enumerate(("first", "second", "third")):
        learner.learn(task(name, seed))
        answers[name] = learner.predict(BATCH, task=name)
        assert bool(answers[name].isfinite().all())
        rebuilt = copy.deepcopy(learner)
        for old, answer in answers.items():
            assert torch.equal(learner.predict(BATCH, task=old), answer)
            assert torch.equal(rebuilt.predict(BATCH, task=old), answer)


# --- fixed tensors ---


def test_a_fixed_tensor_is_seen_unchanged_stored_once_and_in_no_ticket() -> None:
    backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
    backbone[2].requires_grad_(False)
    wrapped = copy.deepcopy(backbone.state_dict())
    seen = []
    backbone[2].register_forward_hook(lambda layer, given, answer: seen.append(layer.weight.detach().clone()))
    learner = learner_of(backbone)
    for seed, name in enumerate(("first", "second")):
        with learner.learning(task(name, seed)) as session:
            assert not any(name.startswith("network.2.") for name in session.moving())
            session(BATCH).sum().backward()
            torch.optim.SGD(session.parameters(), lr=0.1).step()
            session.keep()
        learner.predict(BATCH, task=name)
    assert len(seen) >= 4
    assert all(torch.equal(weight, wrapped["2.weight"]) for weight in seen)
    memory = learner.memory()
    assert torch.equal(memory.common["2.weight"], wrapped["2.weight"])
    assert torch.equal(memory.common["2.bias"], wrapped["2.bias"])
    for ticket in memory.tickets.values():
        assert not {"2.weight", "2.bias"} & (set(ticket.masks) | set(ticket.own))
    assert not {"2.weight", "2.bias"} & set(memory.shared)


# --- the user's module ---


class Recorder:
    """Somebody else's object that listens to a module."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def method(self, layer: nn.Module, given: tuple[Tensor, ...], answer: Tensor) -> None:
        self.calls.append("training" if layer.training else "answering")

    def before(self, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        self.calls.append("before")

    def backward(self, layer: nn.Module, into: object, out: object) -> None:
        self.calls.append("backward")

    def __call__(self, layer: nn.Module, given: tuple[Tensor, ...], answer: Tensor) -> None:
        self.method(layer, given, answer)


@pytest.mark.parametrize("kind", ZOO)
@pytest.mark.parametrize("training", [True, False])
def test_the_users_module_is_never_written_to(kind: str, training: bool) -> None:
    entry = ZOO[kind]
    backbone = entry.build().train(training)
    if kind == "cnn with batch norm":
        with torch.no_grad():
            backbone.train()(entry.inputs(8))  # its statistics are not those of a new module
        backbone.train(training)
    before, shape, kinds = copy.deepcopy(backbone.state_dict()), str(backbone), type(backbone)
    identities = [id(tensor) for tensor in [*backbone.parameters(), *backbone.buffers()]]
    learner = learner_of(backbone)
    for seed, name in enumerate(("first", "second")):
        learner.learn(entry.task(name, seed=seed))
        learner.predict(entry.inputs(5), task=name)
    after = backbone.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert (type(backbone), str(backbone)) == (kinds, shape)
    assert [id(tensor) for tensor in [*backbone.parameters(), *backbone.buffers()]] == identities
    assert all(part.training == training for part in backbone.modules())
    assert all(parameter.grad is None for parameter in backbone.parameters())


def test_hooks_are_kept_and_fire_while_learning_and_answering() -> None:
    backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
    calls: list[bool] = []
    backbone[0].register_forward_hook(lambda layer, given, answer: calls.append(layer.training))
    learner = learner_of(backbone)
    learner.learn(task())  # a look at the features, three batches, then trials and the probe of the certificate
    assert calls[:5] == [False, True, True, True, False]
    calls.clear()
    learner.predict(BATCH, task="first")
    assert calls == [False]
    assert len(backbone[0]._forward_hooks) == 1


@pytest.mark.parametrize("way", ["method", "callable", "partial"])
@pytest.mark.parametrize("kind", ["mlp with dropout", "counting"])
def test_a_hook_of_an_outside_object_reports_to_that_object(way: str, kind: str) -> None:
    entry = ZOO[kind]
    backbone, recorder = entry.build(), Recorder()
    listener = {"method": recorder.method, "callable": recorder, "partial": functools.partial(recorder.method)}[way]
    backbone.register_forward_hook(listener)
    backbone.register_forward_pre_hook(recorder.before)
    learner = learner_of(backbone)
    learner.learn(entry.task("first"))
    assert recorder.calls[:8] == ["before", "answering"] + 3 * ["before", "training"]
    assert recorder.calls[8:10] == ["before", "answering"]
    for _ in range(3):
        recorder.calls.clear()
        learner.predict(entry.inputs(5), task="first")
        assert recorder.calls == ["before", "answering"]


def test_a_backward_hook_of_an_outside_object_reports_to_that_object() -> None:
    backbone, recorder = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), Recorder()
    backbone[1].register_full_backward_hook(recorder.backward)
    learner_of(backbone).learn(task())
    assert recorder.calls == 3 * ["backward"]


def test_a_hook_that_is_a_method_of_the_module_works_on_the_copy() -> None:
    class Listening(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("heard", torch.zeros(()))
            self.layer.register_forward_hook(self.hear)

        def hear(self, layer: nn.Module, given: tuple[Tensor, ...], answer: Tensor) -> None:
            self.heard += 1

    backbone = Listening()
    learner = learner_of(backbone)
    learner.learn(task())
    learner.predict(BATCH, task="first")
    assert int(backbone.heard) == 0
    assert int(learner.network.tickets["first"].own["heard"]) == 3


# --- where values start ---


@pytest.mark.parametrize("kind", [kind for kind in ZOO if kind != "counting"])
def test_at_full_capacity_and_without_a_step_a_task_answers_like_the_wrapped_module(kind: str) -> None:
    """So a pretrained module works. (Running statistics are reset, so one that has seen nothing is compared.)"""
    entry = ZOO[kind]
    backbone = entry.build()
    learner = learner_of(backbone, capacity=1.0, recipe=still(), heads=features_only)
    batch = entry.inputs(5)
    with learner.learning(entry.task("first")) as session:
        session.keep()
    with torch.no_grad():
        args, kwargs = ((), batch) if isinstance(batch, dict) else ((batch,), {})
        dense = backbone.eval().requires_grad_(False)(*args, **kwargs)  # a GRU's kernel depends on that flag
    assert torch.equal(learner.predict(batch, task="first"), dense)


def test_fit_with_a_zero_learning_rate_keeps_the_wrapped_weights() -> None:
    backbone = ZOO["mlp with dropout"].build()
    learner = learner_of(backbone, capacity=1.0, recipe=still())
    learner.learn(task())
    wrapped = backbone.state_dict()
    assert all(torch.equal(value, wrapped[name]) for name, value in learner.network.weights.items())
    assert learner.network.tickets["first"].own == {}


def test_free_weights_of_the_next_task_start_where_the_last_task_left_them() -> None:
    backbone = small()
    learner = learner_of(backbone)
    learner.learn(task("first"))
    left = learner.network.weights["0.weight"].clone()
    with learner.learning(task("second")) as session:
        assert torch.equal(session.moving()["network.0.weight"], left)
    assert not torch.equal(left, backbone.get_parameter("0.weight"))


def normed() -> nn.Module:
    """A module that has a history: its bias is not zero, its running statistics are not those of a new one."""
    backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    with torch.no_grad():
        backbone[1].bias.fill_(0.25)
        backbone.train()(3 + BATCH)
    return backbone


def test_own_tensors_start_from_the_wrapped_values_with_running_statistics_reset() -> None:
    backbone = normed()
    learner = learner_of(backbone)
    starts = []
    for seed, name in enumerate(("first", "second")):
        with learner.learning(task(name, seed)) as session:
            starts.append(session.state())
            session(BATCH).sum().backward()
            torch.optim.SGD(session.parameters(), lr=0.1).step()
            session.keep()
    for start in starts:
        assert torch.equal(start["network.1.bias"], torch.full((8,), 0.25))
        assert torch.equal(start["network.0.bias"], backbone[0].bias)
        assert torch.equal(start["network.1.running_mean"], torch.zeros(8))
        assert torch.equal(start["network.1.running_var"], torch.ones(8))
        assert int(start["network.1.num_batches_tracked"]) == 0


def test_own_tensors_can_start_from_the_previous_task() -> None:
    learner = learner_of(normed(), own_from="previous")
    learner.learn(task("first"))
    before = learner.predict(BATCH, task="first")
    left = learner.network.tickets["first"].own
    with learner.learning(task("second")) as session:
        start = session.state()
        session(BATCH).sum().backward()
        torch.optim.SGD(session.parameters(), lr=0.1).step()
        session.keep()
    assert {"0.bias", "1.bias", "1.running_mean", "1.num_batches_tracked"} <= set(left)
    assert all(torch.equal(start[f"network.{name}"], value) for name, value in left.items())
    assert torch.equal(copy.deepcopy(learner).predict(BATCH, task="first"), before)


def test_own_from_knows_two_words() -> None:
    with pytest.raises(ff.InputError, match="'wrapped' or 'previous'; got 'last'"):
        learner_of(small(), own_from="last")


def test_an_own_tensor_that_a_task_left_unchanged_is_stored_once_and_in_no_ticket() -> None:
    learner = learner_of(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), recipe=still())
    learner.learn(task("first"))
    learner.learn(task("second"))
    for ticket in learner.network.tickets.values():
        assert set(ticket.own) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(learner.memory().common) == {"0.bias", "1.weight", "1.bias"}


# --- what is kept ---


def test_masks_at_rest_take_one_bit_per_weight() -> None:
    learner = learner_of(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 9)))
    learner.learn(task())
    memory = learner.memory()
    ticket = memory.tickets["first"]
    for name, bits in {"0.weight": 48, "1.weight": 72}.items():
        for packed in (ticket.masks[name], memory.used[name]):
            assert packed.nbytes == packed.bits.nbytes == bits // 8
            assert packed.bits.dtype == torch.uint8
        assert torch.equal(ticket.mask(name), memory.used[name].unpack())


def test_used_is_the_union_of_all_tickets_and_used_values_never_move() -> None:
    learner = learner_of(ZOO["mlp with dropout"].build())
    history = []
    for seed, name in enumerate(("first", "second", "third")):
        learner.learn(task(name, seed))
        history.append((dict(learner.network.used), {k: v.clone() for k, v in learner.network.weights.items()}))
        union = ff.tickets.used(learner.network.tickets)
        for tensor, used in learner.network.used.items():
            assert torch.equal(used, union[tensor])
    for used, weights in history:
        for name, value in learner.network.weights.items():
            assert torch.equal(value[used[name]], weights[name][used[name]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["mlp with dropout", "cnn with batch norm", "tied weight", "counting"])
def test_modules_of_another_floating_point_type_learn_and_keep_their_bits(kind: str, dtype: torch.dtype) -> None:
    entry = ZOO[kind]
    learner = learner_of(entry.build().to(dtype))
    batch, answers = entry.inputs(5), {}
    for seed, name in enumerate(("first", "second", "third")):
        learner.learn(entry.task(name, seed=seed))
        answers[name] = learner.predict(batch, task=name)
        assert answers[name].dtype == dtype
        rebuilt = copy.deepcopy(learner)
        assert all(torch.equal(rebuilt.predict(batch, task=old), answer) for old, answer in answers.items())
    assert {value.dtype for value in learner.network.weights.values()} == {dtype}
    assert not torch.equal(answers["first"], answers["third"])


def test_weights_in_channels_last_order_keep_order_and_bits() -> None:
    entry = ZOO["cnn with batch norm"]
    learner = learner_of(entry.build().to(memory_format=torch.channels_last))
    batch, answers = entry.inputs(5), {}
    for seed, name in enumerate(("first", "second", "third")):
        learner.learn(entry.task(name, seed=seed))
        answers[name] = learner.predict(batch, task=name)
        rebuilt = copy.deepcopy(learner)
        assert all(torch.equal(rebuilt.predict(batch, task=old), answer) for old, answer in answers.items())
    assert learner.network.weights["4.weight"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", ["mlp with dropout", "residual, a module twice", "lstm", "counting"])
def test_a_deep_copy_of_a_learner_is_independent(kind: str) -> None:
    entry, batch = ZOO[kind], ZOO[kind].inputs(5, seed=99)

    def learner() -> ff.WSN:
        carry = ff.Recipe(epochs=1, batch_size=8, lr=0.03, carry_optimizer=True)
        made = learner_of(entry.build(), recipe=carry)
        made.learn(entry.task("first"))
        return made

    original, untouched = learner(), learner()
    before = original.predict(batch, task="first")
    twin = copy.deepcopy(original)
    assert torch.equal(twin.predict(batch, task="first"), before)
    twin.learn(entry.task("other", seed=5))
    assert list(original.tasks) == ["first"]
    assert torch.equal(copy.deepcopy(original).predict(batch, task="first"), before)
    assert torch.equal(twin.predict(batch, task="first"), before)
    for one in (original, untouched):
        one.learn(entry.task("second", seed=1))
    assert torch.equal(original.predict(batch, task="second"), untouched.predict(batch, task="second"))
    assert torch.equal(twin.predict(batch, task="first"), before)


def test_a_deep_copy_made_while_a_task_is_learned_is_as_before_that_task() -> None:
    learner = learner_of(small())
    learner.learn(task("first"))
    before = learner.predict(BATCH, task="first")
    with learner.learning(task("second", 1)) as session:
        twin = copy.deepcopy(learner)
        session.keep()
    assert list(twin.tasks) == ["first"]
    twin.learn(task("third", 2))
    assert torch.equal(twin.predict(BATCH, task="first"), before)


def test_a_learner_moves_to_a_device_and_answers_and_learns_as_before() -> None:
    backbone = normed()
    moved, stays = learner_of(backbone), learner_of(backbone, device="cpu")
    for learner in (moved, stays):
        learner.learn(task("first"))
    before = moved.predict(BATCH, task="first")
    assert moved.to("cpu") is moved
    for learner in (moved, stays):
        learner.learn(task("second", 1))
        assert torch.equal(learner.predict(BATCH, task="first"), before)
    assert torch.equal(moved.predict(BATCH, task="second"), stays.predict(BATCH, task="second"))


class Diary(nn.Module):
    """Writes the mean of every training batch into a buffer that grows; what it answers depends on all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.register_buffer("pages", torch.zeros(0, 8))

    def forward(self, rows: Tensor) -> Tensor:
        answer = self.layer(rows)
        if self.training:
            self.pages = torch.cat([self.pages, answer.detach().mean(0, keepdim=True)])
        return answer + self.pages.sum(0)


@pytest.mark.parametrize("own_from", ["wrapped", "previous"])
def test_a_buffer_that_grows_is_owned_as_long_as_each_task_left_it(own_from: str) -> None:
    entry = Entry(Diary, ZOO["counting"].draw)
    learner = learner_of(entry.build(), own_from=own_from)
    answers = {}
    for seed, (name, count) in enumerate({"first": 24, "second": 40, "third": 16}.items()):
        learner.learn(task(name, seed, count))
        answers[name] = learner.predict(BATCH, task=name)
        rebuilt = copy.deepcopy(learner)
        assert all(torch.equal(rebuilt.predict(BATCH, task=old), answer) for old, answer in answers.items())
    lengths = [len(ticket.own["pages"]) for ticket in learner.network.tickets.values()]
    assert lengths == ([3, 5, 2] if own_from == "wrapped" else [3, 8, 10])


def test_a_buffer_that_grows_goes_back_to_the_length_of_the_best_epoch() -> None:
    learner = learner_of(Entry(Diary, ZOO["counting"].draw).build(), recipe=ff.Recipe(epochs=4, batch_size=8, lr=3.0))
    whole = task(count=24)
    learner.learn(ff.Task("first", whole.classes, whole.train, valid=whole.train))
    best = int(learner.tasks["first"].selection.split()[1])
    assert best < 4, "the learning rate is to make it worse"
    assert len(learner.network.tickets["first"].own["pages"]) == 3 * best


def test_a_buffer_that_changes_its_type_is_kept_in_the_new_one() -> None:
    class Halves(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor(0))

        def forward(self, rows: Tensor) -> Tensor:
            if self.training:
                self.count = self.count + 0.5
            return self.layer(rows) * self.count

    learner = learner_of(Halves())
    with learner.learning(task()) as session:
        session(BATCH)
        state = session.state()
    with learner.learning(task()) as session:
        session.restore(state)
        session.keep()
    assert float(learner.network.tickets["first"].own["count"]) == 0.5


def test_a_head_that_writes_to_itself_answers_the_same_twice() -> None:
    class CountingHead(nn.Module):
        def __init__(self, width: int, given: ff.Task):
            super().__init__()
            self.layer = nn.Linear(width, given.width)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, features: Tensor) -> Tensor:
            if len(features) != 5:  # not in the first answer
                self.count += 1
            return self.layer(features) + self.count

    learner = learner_of(small(), heads=CountingHead)
    learner.learn(task())
    five, six = BATCH, ZOO["mlp with dropout"].inputs(6)
    before = [learner.predict(rows, task="first") for rows in (five, six)]
    for _ in range(3):
        assert all(
            torch.equal(learner.predict(rows, task="first"), answer)
            for rows, answer in zip((five, six), before, strict=True)
        )


def test_a_module_that_writes_to_its_inputs_does_not_change_the_tasks_data() -> None:
    class Greedy(Around):
        def forward(self, rows: Tensor) -> Tensor:
            return self.layer(rows.sub_(0.5))

    inputs, labels = task().train
    given = ff.Task("first", (0, 1, 2), (inputs.clone(), labels), valid=(inputs.clone(), labels))
    learner_of(Greedy(), recipe=ff.Recipe(epochs=2, batch_size=8)).learn(given)
    assert torch.equal(given.train[0], inputs)
    assert torch.equal(given.valid[0], inputs)


def test_a_module_that_draws_random_numbers_in_eval_mode_is_refused_and_nothing_is_lost():
    class Restless(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 8)

        def forward(self, x):
            return nn.functional.dropout(self.linear(x))

    learner = ff.WSN(Restless(), capacity=0.5)
    with pytest.raises(ff.ModuleError, match="random numbers in eval mode"):
        learner.learn(ff.Task("a", (0, 1), (torch.randn(8, 4), torch.arange(8) % 2)))
    assert not learner.tasks


def test_a_layer_that_is_used_up_has_nothing_left_to_learn_but_its_scores() -> None:
    learner = learner_of(small(), capacity=1.0)
    learner.learn(task("first"))
    with learner.learning(task("second")) as session:
        names = set(session.moving())
        session(task().train[0]).sum().backward()
        assert session.moving()["scores.0.weight"].grad is not None
        session.keep()
    assert not {f"network.{name}" for name in learner.network.weights} & names
    assert {f"scores.{name}" for name in learner.network.weights} <= names


def test_a_full_network_learns_the_same_bits_as_one_with_a_weight_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = small()

    def answers() -> Tensor:
        learner = learner_of(backbone, capacity=1.0)
        learner.learn(task("first"))
        learner.capacity = 0.5
        learner.learn(task("second"))
        return learner.predict(task().train[0], "second")

    used_up = answers()
    monkeypatch.setattr(network, "_to_move", lambda value, used: Shared(nn.Parameter(value.clone()), value, used))
    assert torch.equal(answers(), used_up)


def test_a_compiled_backbone_can_be_wrapped_and_its_tasks_keep_their_bits() -> None:
    learner, inputs = learner_of(torch.compile(small(), backend="aot_eager")), task().train[0]
    learner.learn(task("first"))
    before = learner.predict(inputs, "first")
    learner.learn(task("second", seed=1))
    assert torch.equal(learner.predict(inputs, "first"), before)
    assert not torch.equal(learner.predict(inputs, "second"), before)
    plain = learner.task_modules("first")["backbone"]._orig_mod
    torch.testing.assert_close(learner.task_modules("first")["head"](plain(inputs)), before)


def learned_on(movable: dict[str, Tensor] | None) -> tuple[ff.SharedNetwork, ff.SharedNetwork]:
    """A network whose first task was seen again, pushed about and taken back; and the same before."""
    shared = ff.SharedNetwork(normed())
    masks = {name: torch.ones_like(value) for name, value in shared.weights.items()}
    shared.keep("first", shared.trainable_view(), masks)
    before = copy.deepcopy(shared)
    view = shared.view_of("first", movable)
    view.train(True)
    view(BATCH, masks)  # norms that move take statistics here
    with torch.no_grad():
        for _, parameter in view.named_parameters():
            parameter.add_(1.0)
    shared.commit("first", view)
    return shared, before


def test_a_task_learns_on_in_its_own_ticket_and_everything_may_move() -> None:
    shared, before = learned_on(None)
    assert bool((shared.weights["0.weight"] == before.weights["0.weight"] + 1).all())
    own, was = shared.answer("first"), before.answer("first")
    assert torch.equal(own[1].bias, was[1].bias + 1)
    assert not torch.equal(own[1].running_mean, was[1].running_mean)
    assert torch.equal(shared.used["0.weight"], before.used["0.weight"])


def test_of_movable_entries_no_others_move_and_norms_stand_still() -> None:
    movable = torch.zeros(8, 6, dtype=torch.bool)
    movable[2, 3] = movable[5, 0] = True
    shared, before = learned_on({"0.weight": movable})
    moved = shared.weights["0.weight"] != before.weights["0.weight"]
    assert torch.equal(moved, movable)
    for (name, value), (_, was) in zip(
        shared.answer("first").named_buffers(), before.answer("first").named_buffers(), strict=True
    ):
        assert torch.equal(value, was), name
    assert torch.equal(shared.answer("first")[1].bias, before.answer("first")[1].bias)
    assert not list(shared.view_of("first", {}).named_parameters())


def test_a_view_that_stands_still_is_handled_like_any_module() -> None:
    shared, _ = learned_on(None)
    view = shared.view_of("first", {"0.weight": torch.ones(8, 6, dtype=torch.bool)})
    view.stand_still()
    assert not list(view.named_parameters())
    assert not list(view.named_buffers())
    answer = view(BATCH, shared.everything)
    view.to("cpu").double()  # to another device it would go, to another type it does not
    assert torch.equal(view(BATCH, shared.everything), answer)
    assert torch.equal(answer, shared.answer("first")(BATCH))
