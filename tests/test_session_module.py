"""A session is a module like any other, and cannot leak: whatever is done to it, what learned tasks use stays.

Attacks are made in the middle of a second task. Then it is kept, or a sentence refuses and everything is as before.
"""

import copy
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import (
    clip_grad_norm_,
    parameters_to_vector,
    parametrizations,
    parametrize,
    prune,
    vector_to_parameters,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import forgetfree as ff
from few_shots import sessions
from forgetfree.batches import Batch
from forgetfree.errors import ForgetfreeError
from forgetfree.modules import named_tensors
from forgetfree.training.session import Session
from forgetfree.views import Plain
from zoo import FSCIL, TIL

METHODS = [name for name in (*TIL, *FSCIL) if name != "multitask"]  # whose tasks are learned together, in no session
SETTINGS: dict[str, dict[str, Any]] = {
    "wsn": {"capacity": 0.3},
    "packnet": {"capacity": 0.3},
    "supsup": {"capacity": 0.3},
    "softnet": {"capacity": 0.6, "exemplars": 1},
    "hardnet": {"capacity": 0.6},
    "fsll": {"exemplars": 1, "fraction": 0.3},
    "gpm": {"threshold": 0.7},
    "joint": {"every": True},
    "crt": {"every": True},
}
SGD = ff.Recipe(epochs=2, batch_size=16, lr=0.05, optimizer="sgd")
QUICK = ff.Recipe(epochs=1, batch_size=32, lr=0.01, optimizer="sgd")


def backbone() -> nn.Module:
    """A layer that never moves, a norm with statistics, and weights that tasks share."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Linear(8, 8), nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU()
        )
        module[0].requires_grad_(False)
        return module


STILL = ("bayes_means", "softnet", "hardnet", "ncm", "fsll", "f2m", "s3c", "warp")
"""Few-shot methods whose sessions move no norm."""
TASKS, _ = sessions(2, base=4, images=12, classes=4, shots=4)
INPUTS = torch.cat([task.train[0] for task in TASKS])


@cache
def _after_the_first(method: str) -> Any:
    learner = built(method, backbone())
    learner.learn(TASKS[0])
    return learner


def built(method: str, module: nn.Module) -> Any:
    few_shots = {"session": QUICK} if method in FSCIL else {}
    return ff.METHODS[method](module, recipe=SGD, **few_shots, **SETTINGS.get(method, {}))


def after_the_first(method: str) -> Any:
    """A learner of one task, the caller's own."""
    return copy.deepcopy(_after_the_first(method))


def answers(learner: Any) -> dict[str, Tensor]:
    if learner.scenario == "fscil":
        return {"all classes": learner.predict(INPUTS)}
    return {task: learner.predict(INPUTS, task) for task in learner.tasks}


def protected(learner: Any) -> Callable[[Any], dict[str, Tensor]]:
    """What the next task may not move, whatever it does to the session: a look at it, now and later."""
    name, network = type(learner).__name__, learner.network
    if hasattr(network, "networks"):
        return lambda later: dict(named_tensors(later.network.networks["session 0"]))
    if not hasattr(network, "fixed"):
        still = {key for key, value in network.module.named_parameters() if not value.requires_grad}
        still |= learner._still() if name == "HAT" else set()
        still |= dict(network.module.named_parameters()).keys() - learner.bases if name == "GPM" else set()
        return lambda later: {key: later.network.module.get_parameter(key) for key in still}
    nothing, all_of_it = (
        {key: torch.full_like(used, on) for key, used in network.used.items()} for on in (False, True)
    )
    movable = all_of_it
    if learner.scenario == "til" and learner.forget_free:
        movable = {key: ~used for key, used in network.used.items()}
    elif name in ("SoftNet", "HardNet", "FSLL"):
        movable = nothing | learner.movable()
    elif name in ("NCM", "BayesMeans", "S3C", "F2M", "WaRP"):
        kept = getattr(learner, "centre", getattr(learner, "bases", {}))
        movable = nothing | {key: all_of_it[key] for key in kept}
    own = learner.forget_free or movable is not all_of_it

    def look(later: Any) -> dict[str, Tensor]:
        weights = {key: value[~movable[key]] for key, value in later.network.weights.items()}
        kept = later.network.tickets["session 0"].own.items() if own else ()
        fixed = {f"fixed {key}": value for key, value in later.network.fixed.items()}
        return weights | fixed | {f"own {key}": value for key, value in kept}

    return look


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """The names under which they differ; of scores for all classes those are compared that were there before."""
    assert set(one) <= set(other), set(one) - set(other)
    other = {
        key: value[:, : one[key].shape[1]] if key == "all classes" else value
        for key, value in other.items()
        if key in one
    }
    return [key for key in one if one[key].dtype != other[key].dtype or not torch.equal(one[key], other[key])]


def noise(tensor: Tensor) -> Tensor:
    drawn = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel()))
    return drawn.to(tensor.dtype) if tensor.is_floating_point() else torch.full_like(tensor, 7)


def steps(session: Session, make: Callable[..., Any] | None = None, count: int = 2) -> None:
    """A few steps of an optimizer over all that moves."""
    parameters = list(session.parameters())
    if not parameters:
        return
    optimizer = (make or (lambda moving: torch.optim.SGD(moving, lr=0.05)))(parameters)
    batch = Batch(*session.task.train)
    session.train()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = session.loss(batch)
        loss.backward()
        return loss

    for _ in range(count):
        optimizer.step(closure)


# attacks: each gets the session and gives what is to be kept


def garbage_is_loaded(session):
    session.load_state_dict({name: noise(value) for name, value in session.state_dict().items()})


def garbage_is_assigned(session):
    session.load_state_dict({name: noise(value) for name, value in session.state_dict().items()}, assign=True)
    steps(session)


def wrong_names_are_loaded(session):
    state = {f"other.{name}": value for name, value in session.state_dict().items()}
    with pytest.raises(RuntimeError):
        session.load_state_dict({**state, "other": torch.zeros(1)})
    session.load_state_dict(state, strict=False)


def wrong_shapes_are_loaded(session):
    state = {name: torch.zeros(3, *value.shape) for name, value in session.state_dict().items()}
    if state:
        with pytest.raises(RuntimeError):
            session.load_state_dict(state)
        with pytest.raises(RuntimeError):
            session.load_state_dict(state, assign=True)


def state_of_another_type_is_assigned(session):
    state = {name: value.double() for name, value in session.state_dict().items()}
    session.load_state_dict(state, assign=True)


def half(session):
    session.half()


def double(session):
    session.to(torch.float64)


def complex_numbers(session):
    with warnings.catch_warnings(action="ignore"):
        session.to(torch.complex64)


def half_and_back(session):
    session.half().float()
    steps(session)


def cast_and_trained(session):
    session.double()
    with suppress(RuntimeError, ForgetfreeError):  # torch's own words: inputs are of another type
        steps(session)


def meta(session):
    session.to("meta")


def emptied(session):
    session.to_empty(device="cpu")
    vector_to_parameters(torch.zeros(sum(p.numel() for p in session.parameters())), session.parameters())


def shared_memory(session):
    session.share_memory()
    steps(session)


def reset(session):
    def drawn_anew(part: nn.Module) -> None:
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()

    session.apply(drawn_anew)


def everything_asks_for_gradients(session):
    session.requires_grad_(True)
    for buffer in session.buffers():
        if buffer.is_floating_point():
            buffer.requires_grad_(True)
    with suppress(RuntimeError, ValueError, ForgetfreeError):  # torch's own words: a norm writes to its statistics
        steps(session, lambda _: torch.optim.SGD([*session.parameters(), *session.buffers()], lr=1.0))


def nothing_asks_for_gradients(session):
    session.requires_grad_(False)


def vector_of_noise(session):
    if list(session.parameters()):
        vector = parameters_to_vector(session.parameters())
        vector_to_parameters(noise(vector), session.parameters())
        steps(session)


def vector_of_another_type(session):
    if list(session.parameters()):
        vector_to_parameters(noise(parameters_to_vector(session.parameters())).double(), session.parameters())


def buffers_are_written(session):
    with torch.no_grad():
        for buffer in session.buffers():
            buffer.copy_(noise(buffer).abs())


def buffers_are_replaced(session):
    for part in session.modules():
        for name, buffer in list(part._buffers.items()):
            part._buffers[name] = noise(buffer).double() if buffer.is_floating_point() else noise(buffer)


def buffers_are_removed(session):
    for part in session.modules():
        part._buffers.clear()


def averaged(session):
    average = AveragedModel(session)
    steps(session)
    average.update_parameters(session)
    return average.module


def exponential_average(session):
    average = AveragedModel(session, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(2):
        steps(session)
        average.update_parameters(session)
    return average.module


def copied_and_trained(session):
    other = copy.deepcopy(session)
    steps(other, lambda moving: torch.optim.SGD(moving, lr=0.1, momentum=0.9, weight_decay=0.1))
    return other


def head_parametrized(session):
    parametrizations.orthogonal(session.head, "weight") if hasattr(session.head, "weight") else head_spectral(session)


def head_spectral(session):
    name, _ = next(iter([*session.head.named_parameters(), *session.head.named_buffers()]))
    parametrize.register_parametrization(session.head, name, Doubled())


class Doubled(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return 2 * value


def parts(session) -> list[tuple[nn.Module, str]]:
    return [(part, name) for part in session.modules() for name in list(part._parameters)]


def everything_parametrized(session):
    for part, name in parts(session):
        if part._parameters[name].is_floating_point():
            parametrize.register_parametrization(part, name, Doubled())


def everything_pruned(session):
    for part, name in parts(session):
        prune.random_unstructured(part, name, amount=0.5)


def pruned_for_good(session):
    for part, name in parts(session):
        prune.random_unstructured(part, name, amount=0.5)
        prune.remove(part, name)
    steps(session)


def parametrized_for_a_while(session):
    for part, name in parts(session):
        parametrize.register_parametrization(part, name, Doubled())
        parametrize.remove_parametrizations(part, name)
    steps(session)


def another_head(session):
    session.head = nn.Linear(16, 4)
    with suppress(RuntimeError, IndexError, ForgetfreeError, AssertionError):  # it may have too few columns
        steps(session)


def head_of_another_width(session):
    session.head = nn.Linear(16, 9)


def head_without_parameters(session):
    session.head = nn.Identity()


class Broken(nn.Linear):
    def forward(self, features: Tensor) -> Tensor:
        raise ValueError("broken")


def head_that_fails(session):
    session.head = Broken(16, 4)


def no_head(session):
    del session.head


def another_model(session):
    session.model = nn.Identity()


def model_of_another_class(session):
    replaced = Plain(session.model.network)
    for name, child in session.model.named_children():
        replaced.add_module(name, child)
    session.model = replaced


def another_network(session):
    session.model.network = nn.Linear(8, 16)


def network_of_another_learner(session):
    learner = WHOSE[type(session.model).__name__]
    other = built(learner, backbone_of_noise())
    other.learn(TASKS[0])
    with other.learning(TASKS[1]) as foreign:
        session.model.network = foreign.model.network


def backbone_of_noise() -> nn.Module:
    module = backbone()
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(noise(value))
    return module


WHOSE: dict[str, str] = {}


def extra_parts(session):
    session.model.register_parameter("extra", nn.Parameter(torch.zeros(3)))


def extra_buffer(session):
    session.head.register_buffer("extra", torch.zeros(3))


def parameters_removed(session):
    for part in session.modules():
        part._parameters.clear()


def data_is_set(session):
    for parameter in session.parameters():
        parameter.data = noise(parameter)
    steps(session)


def data_of_another_shape(session):
    for parameter in session.parameters():
        parameter.data = torch.zeros(2, 2)


def not_numbers(session):
    for parameter in session.parameters():
        parameter.data.fill_(torch.nan)


def parameters_replaced(session):
    for part, name in parts(session):
        part._parameters[name] = nn.Parameter(noise(part._parameters[name]))
    steps(session)


def parameters_tied(session):
    moving = [(part, name) for part, name in parts(session) if part._parameters[name].dim() == 1]
    for part, name in moving[1:]:
        part._parameters[name] = moving[0][0]._parameters[moving[0][1]]


def momentum_and_decay(session):
    steps(session, lambda moving: torch.optim.SGD(moving, lr=0.1, momentum=0.9, weight_decay=0.1))


def adam(session):
    steps(session, lambda moving: torch.optim.AdamW(moving, lr=0.1, weight_decay=0.1))


def lbfgs(session):
    steps(session, lambda moving: torch.optim.LBFGS(moving, max_iter=3), count=1)


def eval_mode(session):
    session.eval()


def gradients_left(session):
    steps(session)
    for parameter in session.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)


ATTACKS: dict[str, Callable[[Session], Session | None]] = {
    attack.__name__: attack
    for attack in (
        garbage_is_loaded, garbage_is_assigned, wrong_names_are_loaded, wrong_shapes_are_loaded,
        state_of_another_type_is_assigned, half, double, complex_numbers, half_and_back, cast_and_trained, meta,
        emptied, shared_memory, reset, everything_asks_for_gradients, nothing_asks_for_gradients, vector_of_noise,
        vector_of_another_type, buffers_are_written, buffers_are_replaced, buffers_are_removed, averaged,
        exponential_average, copied_and_trained, head_parametrized, head_spectral, everything_parametrized,
        everything_pruned, pruned_for_good, parametrized_for_a_while, another_head, head_of_another_width,
        head_without_parameters, head_that_fails, no_head, another_model, model_of_another_class, another_network,
        network_of_another_learner, extra_parts, extra_buffer, parameters_removed, data_is_set, data_of_another_shape,
        not_numbers, parameters_replaced, parameters_tied, momentum_and_decay, adam, lbfgs, eval_mode, gradients_left,
    )
}  # fmt: skip


QUICK_METHODS = ("wsn", "hat", "fsll")
"""One of each kind: masks, one network that moves, few-shot sessions."""
QUICK_ATTACKS = ("garbage_is_loaded", "buffers_are_written", "copied_and_trained", "momentum_and_decay")
PAIRS = [
    pytest.param(method, attack, marks=() if method in QUICK_METHODS or attack in QUICK_ATTACKS else pytest.mark.slow)
    for method in METHODS
    for attack in ATTACKS
]


@pytest.mark.parametrize(("method", "attack"), PAIRS)
def test_an_attacked_session_is_kept_without_harm_or_refused_with_a_sentence(method, attack):
    learner = after_the_first(method)
    look = protected(learner)
    before, unmoved = answers(learner), {name: value.detach().clone() for name, value in look(learner).items()}
    refused = None
    with learner.learning(TASKS[1]) as session:
        steps(session)
        WHOSE[type(session.model).__name__] = method
        attacked = ATTACKS[attack](session) or session
        try:
            attacked.keep()
        except ForgetfreeError as error:
            refused = str(error)
    assert len(learner.tasks) == (1 if refused else 2)
    assert same(unmoved, look(learner)) == []
    if refused:
        assert refused.endswith(".")
        assert same(before, answers(learner)) == []
        learner.learn(TASKS[1])
    elif learner.forget_free:
        assert same(before, answers(learner)) == []
        assert all(verified.ok for verified in learner.verify())


# what a session is: its parameters are exactly what may move


def names(learner: Any) -> list[str]:
    """The names of all that the next task may move, in their order: shared weights, own tensors, the method's, head."""
    with learner.learning(TASKS[len(learner.tasks)]) as session:
        return list(session.moving())


SHARED, OWN, HEAD = ["1.weight", "4.weight"], ["1.bias", "2.weight", "2.bias", "4.bias"], ["head.weight", "head.bias"]
VIEW = [f"network.{name}" for name in (*SHARED, *OWN)]
SCORES = [f"scores.{name}" for name in SHARED]
PLAIN = [f"network.{name}" for name in ("1.weight", "1.bias", "2.weight", "2.bias", "4.weight", "4.bias")]
BY_METHOD: dict[str, tuple[list[str], list[str]]] = {
    "wsn": ([*VIEW, *SCORES, *HEAD], [*VIEW, *SCORES, *HEAD]),
    "packnet": ([*VIEW, *HEAD], [*VIEW, *HEAD]),
    "supsup": ([*VIEW[2:], *SCORES, *HEAD], [*VIEW[2:], *SCORES, *HEAD]),
    "piggyback": ([*VIEW[2:], *SCORES, *HEAD], [*VIEW[2:], *SCORES, *HEAD]),
    "finetune": ([*PLAIN, *HEAD], [*PLAIN, *HEAD]),
    "single_task": ([*PLAIN, *HEAD], [*PLAIN, *HEAD]),
    "ewc": ([*PLAIN, *HEAD], [*PLAIN, *HEAD]),
    "gpm": ([*PLAIN, *HEAD], ["network.1.weight", "network.4.weight", *HEAD]),
    "hat": ([*PLAIN, "gates.embedding", *HEAD], [*PLAIN, "gates.embedding", *HEAD]),
    "softnet": ([*VIEW, *SCORES, *HEAD], ["network.4.weight"]),
    "hardnet": ([*VIEW, *SCORES, *HEAD], []),
    "ncm": ([*VIEW, *HEAD], []),
    "joint": ([*VIEW, *HEAD], [*VIEW, *HEAD]),
    "crt": ([*VIEW, *HEAD], [*VIEW, *HEAD]),
    "icarl": ([*VIEW, *HEAD], [*VIEW, *HEAD]),
    "rebalance": ([*VIEW, "head.weight", "head.scale"], [*VIEW, "head.new", "head.scale"]),
    "fsll": ([*VIEW, *HEAD], VIEW[:2]),
    "f2m": ([*VIEW, *HEAD], VIEW[:2]),
    "warp": ([*VIEW, *HEAD], [f"moves.{name}" for name in SHARED]),
    "bayes_means": ([*VIEW, *HEAD], []),
    "s3c": ([*VIEW, "head.weight", "head.noise"], ["head.weight", "head.noise"]),
}
"""What moves in the first task, and in the second."""


@pytest.mark.parametrize("method", METHODS)
def test_parameters_are_exactly_what_may_move_in_the_order_of_always(method):
    first, second = BY_METHOD[method]
    assert names(built(method, backbone())) == first
    assert names(after_the_first(method)) == second


@pytest.mark.parametrize("method", METHODS)
def test_no_parameter_buffer_or_state_is_what_a_learned_task_uses(method):
    learner = after_the_first(method)
    memory = learner.memory()
    held = [*protected(learner)(learner).values(), *memory.shared.values()]  # alive, so that no address is given twice
    held += [value for head in memory.heads.values() for value in head.values()]
    kept = {value.untyped_storage().data_ptr() for value in held if value.numel()}
    with learner.learning(TASKS[1]) as session:
        found = [*named_tensors(session), *session.state_dict().items()]
        assert [name for name, value in found if value.untyped_storage().data_ptr() in kept] == []
        parameters = dict(session.named_parameters())
        buffers = dict(session.named_buffers())
        assert set(parameters) | (set(buffers) & set(session.state_dict())) == set(session.state_dict())
        fixed = [name for name in session.state_dict() if name.endswith(("network.0.weight", "network.0.bias"))]
        assert fixed == []
        if method in STILL:  # norms stand still: they are not its to load
            assert not [name for name in session.state_dict() if "own_tensors" in name]
        if learner.forget_free and method != "single_task":
            for name, value in learner.network.weights.items():
                free = parameters.get(f"model.network.shared_weights.{name}")
                assert free is None or free.shape == value.shape


@pytest.mark.parametrize("method", METHODS)
def test_a_session_is_handled_like_any_module(method):
    learner = after_the_first(method)
    with learner.learning(TASKS[1]) as session:
        steps(session)
        session.eval()
        inputs = TASKS[1].train[0]
        scores = session(inputs)
        pairs = list(session.named_parameters())
        moving = zip(pairs, session.parameters(), session.moving().values(), strict=True)
        assert all(value is one is other for (_, value), one, other in moving)

        state = {name: value.clone() for name, value in session.state_dict().items()}
        steps(session, lambda moving: torch.optim.SGD(moving, lr=0.5))
        session.load_state_dict(state)
        assert torch.equal(session.eval()(inputs), scores)
        assert torch.equal(session.to("cpu")(inputs), scores)
        assert torch.equal(copy.deepcopy(session)(inputs), scores)

        tensors = dict(named_tensors(session))
        assert torch.equal(functional_call(session, tensors, (inputs,)), scores)
        session.train()
        functional_call(session, {name: value.clone() for name, value in tensors.items()}, (inputs,))
        assert [name for name, _ in named_tensors(session)] == list(tensors)
        assert torch.equal(session.eval()(inputs), scores)
        if pairs:
            others = {name: noise(value) for name, value in pairs}
            assert not torch.equal(functional_call(session, others, (inputs,)), scores)
            assert torch.equal(session(inputs), scores)  # and nothing of it stays
            vector = parameters_to_vector(session.parameters())
            vector_to_parameters(vector.clone(), session.parameters())
            assert torch.equal(session(inputs), scores)
            session.loss(Batch(*session.task.train)).backward()
            assert clip_grad_norm_(session.parameters(), 1e-3) > 0
            session.zero_grad()
        session.keep()
    assert len(learner.tasks) == 2


@pytest.mark.parametrize("method", ["wsn", "packnet", "ewc", "hat", "icarl"])
def test_hooks_are_called_and_old_answers_stay(method):
    learner, called = after_the_first(method), []
    before = answers(learner)
    with learner.learning(TASKS[1]) as session:
        session.register_forward_pre_hook(lambda *_: called.append("before"))
        session.register_forward_hook(lambda *_: called.append("after"))
        session.model.register_forward_hook(lambda *_: called.append("model"))
        session.head.register_full_backward_hook(lambda *_: called.append("backward"))
        inputs, labels = session.task.train
        nn.functional.cross_entropy(session(inputs), labels).backward()
        session.keep()
    assert called[:4] == ["before", "model", "after", "backward"]
    if learner.forget_free:
        assert same(before, answers(learner)) == []


def test_what_a_caller_hangs_on_a_session_does_no_harm_unless_it_moves():
    learner = after_the_first("wsn")
    before = answers(learner)
    with learner.learning(TASKS[1]) as session:
        session.loss_function = nn.CrossEntropyLoss(weight=torch.ones(4))
        steps(session)
        session.temperature = nn.Parameter(torch.ones(()))
        with pytest.raises(ff.LearningError, match="temperature was not there when the session began"):
            session.keep()
        del session.temperature
        session.keep()
    assert same(before, answers(learner)) == []


@pytest.mark.parametrize("method", METHODS)
def test_what_is_done_to_a_session_after_it_was_kept_reaches_nobody(method):
    learner = after_the_first(method)
    with learner.learning(TASKS[1]) as session:
        steps(session)
        session.keep()
        kept = answers(learner)
        with torch.no_grad():
            for _, tensor in named_tensors(session):
                tensor.copy_(noise(tensor))
        with pytest.raises(ff.LearningError, match="is over"):
            session.keep()
        with pytest.raises(ff.LearningError, match="is over"):
            copy.deepcopy(session).keep()
    learner.engine.forget_answers()  # which would be asked first
    assert same(kept, answers(learner)) == []
    assert all(verified.ok for verified in learner.verify() if learner.forget_free or verified.task == "session 1")


@pytest.mark.parametrize("method", ["wsn", "packnet", "supsup", "piggyback", "single_task"])
def test_another_memory_format_changes_no_old_answer(method):
    """The bits of a convolution depend on how its weight lies in memory."""

    def convolutions() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten())

    images, labels = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3
    learner = built(method, convolutions())
    learner.learn(ff.Task("session 0", (0, 1, 2), (images, labels)))
    weights = {name: value.stride() for name, value in learner.memory().shared.items()}
    before = learner.predict(images, "session 0")
    with learner.learning(ff.Task("session 1", (0, 1, 2), (-images, labels))) as session:
        session.to(memory_format=torch.channels_last)
        steps(session)
        session.keep()
    assert {name: learner.memory().shared[name].stride() for name in weights} == weights
    learner.engine.forget_answers()
    assert torch.equal(learner.predict(images, "session 0"), before)
    assert all(verified.ok for verified in learner.verify())


def trained(session):
    steps(session, count=5)


def trained_as_a_copy(session):
    session = copy.deepcopy(session)
    steps(session, count=5)
    return session


def trained_as_another_tensor(session):
    session.load_state_dict({name: value.clone() for name, value in session.state_dict().items()}, assign=True)
    steps(session, count=5)


def trained_after_a_functional_call(session):
    session.eval()  # norms would take statistics
    functional_call(session, {name: value * 1 for name, value in session.named_parameters()}, (INPUTS,))
    steps(session, count=5)


WAYS = [trained, trained_as_a_copy, trained_as_another_tensor, trained_after_a_functional_call]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["hat", "gpm", "ewc"])
def test_what_protects_by_gradients_or_penalties_protects_a_copy_just_as_well(method, way):
    """Hooks of torch stay with a tensor; those of HAT and GPM with the place that it has in the network."""
    found = []
    for train in (trained, way):
        learner = after_the_first(method)
        with learner.learning(TASKS[1]) as session:
            (train(session) or session).keep()
        found.append(dict(named_tensors(learner.network.module)))
    assert same(*found) == []


@pytest.mark.parametrize("way", WAYS)
def test_hard_gates_hold_old_answers_in_a_copy_too(way):
    learner = ff.METHODS["hat"](backbone(), recipe=SGD, hard=True)
    learner.learn(TASKS[0])
    before = answers(learner)
    with learner.learning(TASKS[1]) as session:
        (way(session) or session).keep()
    assert same(before, answers(learner)) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo detected")
def test_a_compiled_session_learns_and_old_answers_stay():
    learner = after_the_first("wsn")
    before = answers(learner)
    with learner.learning(TASKS[1]) as session:
        compiled = torch.compile(session, backend="eager")
        optimizer = torch.optim.SGD(session.parameters(), lr=0.1)
        inputs, labels = TASKS[1].train
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(compiled(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        session.keep()
    assert losses[-1] < losses[0]
    assert same(before, answers(learner)) == []


def test_a_view_of_a_copied_learner_is_not_taken_back():
    learner = after_the_first("wsn")
    twin = copy.deepcopy(learner)
    twin.remove(TASKS[0].name)
    twin.learn(TASKS[1])
    before = learner.predict(TASKS[0].train[0], TASKS[0].name)
    with learner.learning(TASKS[1]) as session:
        session.model.network = twin.network.trainable_view()
        with pytest.raises(ff.ForgetfreeError):
            session.keep()
    assert torch.equal(before, learner.predict(TASKS[0].train[0], TASKS[0].name))


@pytest.mark.parametrize("method", ["ewc", "hat", "icarl", "packnet", "wsn"])
def test_constants_of_a_method_follow_a_session_to_its_device(method):
    learner = after_the_first(method)
    with learner.learning(TASKS[1]) as session:
        session.to("meta").train()
        assert session.loss(Batch(TASKS[1].train[0], TASKS[1].train[1])).device.type == "meta"
