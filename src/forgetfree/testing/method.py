"""check_method: what a method on one of our hosts promises, one promise after another, each by its name.

The promises are those that the host keeps for a method which says truly what it keeps (`state`) and what it moves (the
parameters of its `TaskModel`): nothing here knows how a method learns.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forgetfree.archive import load, save, verify
from forgetfree.batches import Batch, batches
from forgetfree.contracts import Task
from forgetfree.errors import InputError, LearningError, TaskError
from forgetfree.few_shot.learner import FewShotLearner
from forgetfree.methods import METHODS
from forgetfree.state import tensors_in
from forgetfree.task_incremental import TaskLearner
from forgetfree.testing.learner import FEATURES, ask, called, check_learner, inputs_of, small_tasks
from forgetfree.training.recipe import Recipe

QUICK = Recipe(epochs=2, batch_size=16, optimizer="sgd", lr=0.05)
"""What a method is trained with: plain enough for all of them."""


def check_method(
    make: Callable[..., Any],
    *,
    checks: Sequence[str] | None = None,
    backbone: Callable[[], nn.Module] | None = None,
    tasks: Sequence[Task] | None = None,
    recipe: Recipe = QUICK,
) -> None:
    """Raise an `AssertionError` that names the promise a method breaks; METHOD_CHECKS has all of them by name.

    `make` is the method's class, or a function that is called as one: `make(backbone, recipe=recipe)`. `checks` are the
    names of some promises, in place of all. `backbone` and `tasks` replace the small default ones: a function that
    always builds the same network, and three tasks that it can take.
    """
    trial = Trial(make, backbone or small_backbone, list(tasks or small_tasks()), recipe)
    unknown = [name for name in checks or () if name not in METHOD_CHECKS]
    if unknown:
        raise InputError(f"no check is called {unknown[0]!r}; there are {', '.join(map(repr, METHOD_CHECKS))}.")
    for name in checks or METHOD_CHECKS:
        try:
            with _as_it_was():
                METHOD_CHECKS[name](trial)
        except AssertionError as error:
            raise AssertionError(f"{type(trial.new()).__name__}, {name!r}: {error}") from error


def small_backbone() -> nn.Module:
    """A network that takes [batch, 8], with a norm and dropout, always with the same weights."""
    with _as_it_was():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 12), nn.ReLU()
        )


class Trial:
    """What a check of a method builds and teaches its learners with."""

    def __init__(self, make: Callable[..., Any], backbone: Callable[[], nn.Module], tasks: list[Task], recipe: Recipe):
        self.make, self.backbone, self.tasks, self.recipe = make, backbone, tasks, recipe
        self._taught: dict[int, Any] = {}

    def new(self, backbone: nn.Module | None = None) -> Any:
        learner = self.make(backbone or self.backbone(), recipe=self.recipe)
        host = isinstance(learner, TaskLearner | FewShotLearner)
        assert host, f"a method is built on TaskLearner or FewShotLearner; {type(learner).__name__} is not"
        return learner

    def taught(self, count: int) -> Any:
        """A learner of the first tasks, of the caller's own."""
        if count not in self._taught:
            learner = self.new()
            for task in self.tasks[:count]:
                learn(learner, task)
            self._taught[count] = learner
        return copy.deepcopy(self._taught[count])

    def answers(self, learner: Any, tasks: Sequence[Task] | None = None) -> dict[str, Tensor]:
        """What a learner answers to the inputs of the tasks that it knows, or of some of them."""
        known = [task for task in tasks or self.tasks if task.name in learner.tasks]
        return {task.name: ask(learner, task) for task in known}


def learn(
    learner: Any, task: Task, checkpoint: Path | None = None, progress: Callable[[Any], None] | None = None
) -> None:
    """Learn a task at once, also with a learner that collects tasks for `finish()`."""
    training(learner, task)(checkpoint, progress)


def training(learner: Any, task: Task) -> Callable[[Path | None, Callable[[Any], None] | None], None]:
    """The call that trains a task; a learner with `finish()` has collected it before."""
    if not hasattr(learner, "finish"):
        return lambda checkpoint, progress: learner.learn(task, checkpoint, progress)
    learner.learn(task)
    return lambda checkpoint, progress: learner.finish(checkpoint, progress)


def kept_by(learner: Any) -> dict[str, Any]:
    """All that a learner keeps, by name, as `to_state` has it; tensors as type, shape and bits."""
    stored = learner.to_state(resumable=True)
    memory = stored.memory
    tree = {
        "shared": memory.shared, "common": memory.common, "heads": memory.heads, "extras": memory.extras,
        "counted": memory.training, "training": stored.training, "arguments": stored.arguments,
        "used": {name: mask.bits for name, mask in memory.used.items()},
        "own": {name: ticket.own for name, ticket in memory.tickets.items()},
        "masks": {task: {name: m.bits for name, m in t.masks.items()} for task, t in memory.tickets.items()},
        "learned": {name: repr(record) for name, record in stored.learned.items()},
    }  # fmt: skip
    return dict(_leaves("", tree))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}/{key}" if name else str(key), item)
    elif isinstance(value, list | tuple) and any(isinstance(item, Tensor | Mapping | list | tuple) for item in value):
        for at, item in enumerate(value):
            yield from _leaves(f"{name}/{at}", item)
    elif isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        yield name, (str(value.dtype), tuple(value.shape), plain.view(-1).view(torch.uint8).numpy().tobytes())
    else:
        yield name, repr(value)


def _assert_same(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    """Equal entry for entry; the message names what differs instead of showing bits."""
    other = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    assert not other, f"{what}: {', '.join(other[:5])}{' and more' if len(other) > 5 else ''}"


def _assert_answers(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    assert list(found) == list(expected), f"{what}: tasks are {list(found)}, not {list(expected)}"
    for name, answer in expected.items():  # with a single head of the classes that were known
        assert torch.equal(found[name][:, : answer.shape[1]], answer), f"{what}: the answers of {name!r} are others"


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Give the caller's random state back."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def _refused(what: str, error: type[Exception]) -> Iterator[None]:
    """What is inside must end in this error."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"{what} is not refused")


class _Stop(Exception):
    pass


def _stop(event: Any) -> None:
    if event.finished:
        raise _Stop


def _contract(trial: Trial) -> None:
    check_learner(trial.new, tasks=trial.tasks)


def _equal_seeds(trial: Trial) -> None:
    one, other = trial.taught(2), trial.new()
    for task in trial.tasks[:2]:
        torch.rand(3)  # whatever the caller draws
        learn(other, task)
    _assert_same(kept_by(other), kept_by(one), "two learners of one seed are not equal")


def _callers_module(trial: Trial) -> None:
    module, untouched = trial.backbone(), trial.backbone()
    flags = [(p.requires_grad, p.grad) for p in module.parameters()]
    learner = trial.new(module)
    for task in trial.tasks[:2]:
        learn(learner, task)
    state, expected = module.state_dict(), untouched.state_dict()
    changed = [name for name in expected if not torch.equal(state[name], expected[name])]
    assert not changed, f"learning wrote to {changed[0]} of the module that was handed in"
    assert [(p.requires_grad, p.grad) for p in module.parameters()] == flags, "flags or gradients of it changed"
    assert module.training == untouched.training, "its mode was changed"
    module = trial.backbone()
    learner = trial.new(module)
    _other(module)
    for task in trial.tasks[:2]:
        learn(learner, task)
    _assert_same(kept_by(learner), kept_by(trial.taught(2)), "what its owner does to it later reaches the learner")


def _killed(trial: Trial) -> None:
    # which of its two calls trains the first task of a learner with finish() is its own affair
    for count in range(1 if hasattr(trial.new(), "finish") else 0, 3):
        plain, killed, resumed = (trial.taught(count) for _ in range(3))
        task = trial.tasks[count]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.safetensors"
            epochs = _epochs(plain, task)
            assert _was_stopped(killed, task, path) or not epochs, "an error in the progress callback was swallowed"
            left = _epochs(resumed, task, path)
        assert left == max(epochs - 1, 0), "a killed learn began anew instead of going on"
        _assert_same(kept_by(resumed), kept_by(plain), f"killed and resumed, task {count + 1} has other bits")


def _epochs(learner: Any, task: Task, checkpoint: Path | None = None) -> int:
    """Learn a task; how many epochs it took."""
    seen: list[bool] = []
    learn(learner, task, checkpoint, lambda event: seen.append(event.finished))
    return sum(seen)


def _was_stopped(learner: Any, task: Task, checkpoint: Path) -> bool:
    """Learn a task as far as the end of its first epoch; False if there is none."""
    try:
        learn(learner, task, checkpoint, _stop)
    except _Stop:
        return True
    return False


def _rolled_back(trial: Trial) -> None:
    learner, task = trial.taught(1), trial.tasks[1]
    expected = kept_by(trial.taught(2))
    train = training(learner, task)
    before, answers = kept_by(learner), trial.answers(learner)

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    def as_before(what: str) -> None:
        _assert_same(kept_by(learner), before, f"{what} changed what is kept")
        _assert_answers(trial.answers(learner), answers, what)

    try:
        train(None, interrupt)
    except KeyboardInterrupt:
        as_before("Ctrl-C while a task is trained")
    else:  # nothing is trained in a session like this one
        learner = trial.taught(1)
        train = training(learner, task)

    certify = learner.engine.certify

    def fail(*words: Any) -> None:
        certify(*words)
        raise _Stop

    learner.engine.certify = fail  # the very last step of keeping
    with _refused("an error while a task is kept", _Stop):
        train(None, None)
    del learner.engine.certify
    as_before("an error while a task is kept")
    if not hasattr(learner, "finish"):
        with _refused("a parameter that is not a number", LearningError), learner.learning(task) as session:
            for parameter in session.parameters():
                parameter.data.fill_(torch.nan)
                break
            else:
                raise LearningError("there is none")
            session.keep()
        as_before("a parameter that is not a number")
    train(None, None)
    _assert_same(kept_by(learner), expected, "a task that is learned after an error has other bits")


def _left_without_keep(trial: Trial) -> None:
    learner, task = trial.taught(1), trial.tasks[1]
    before, answers = kept_by(learner), trial.answers(learner)
    if hasattr(learner, "finish"):
        return
    with learner.learning(task) as session:
        _take_a_step(session)
    _assert_same(kept_by(learner), before, "a session left without keep() changed what is kept")
    _assert_answers(trial.answers(learner), answers, "a session left without keep()")
    with _refused("to use a session that is over", LearningError):
        session.keep()
    learner.learn(task)
    _assert_same(kept_by(learner), kept_by(trial.taught(2)), "a task that is learned after that has other bits")
    with learner.learning(trial.tasks[2]) as session:
        session.keep()
        with _refused("to keep a session twice", LearningError):
            session.keep()


def _take_a_step(session: Any) -> None:
    parameters = list(session.parameters())
    session.train()
    loss = session.loss(_first_batch(session.task))
    assert bool(loss.isfinite().all()), "the loss of a session is not finite"
    if parameters:
        loss.backward()
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1).step()


def _first_batch(task: Task) -> Batch:
    return next(iter(batches(task, task.train, 16)))


def _only_what_may_move(trial: Trial) -> None:
    learner, task = trial.taught(1), trial.tasks[1]
    if hasattr(learner, "finish"):
        return
    before, answers = kept_by(learner), trial.answers(learner)
    with learner.learning(task) as session:
        parameters = list(session.parameters())
        assert all(parameter.requires_grad and parameter.is_leaf for parameter in parameters), "one asks no gradient"
        assert len({id(parameter) for parameter in parameters}) == len(session.moving()), "a parameter has two names"
        held = {t.untyped_storage().data_ptr() for t in _tensors(learner) if t.numel()}
        shared = [name for name, t in session.state_dict().items() if t.untyped_storage().data_ptr() in held]
        assert not shared, f"{shared[0]} of the session is the very memory of what the learner keeps"
        start = session.state()
        with torch.no_grad():
            for tensor in session.state_dict().values():
                tensor.copy_(torch.ones_like(tensor))
        _assert_same(kept_by(learner), before, "writing into a session changed what is kept")
        session.restore(start)
        _take_a_step(session)
        if learner.forget_free:
            session.keep()
    _assert_answers(trial.answers(learner, trial.tasks[:1]), answers, "moving all that a session has")


def _tensors(learner: Any) -> list[Tensor]:
    memory = learner.memory()
    own = [value for ticket in memory.tickets.values() for value in ticket.own.values()]
    heads = [value for head in memory.heads.values() for value in head.values()]
    return [*memory.shared.values(), *memory.common.values(), *memory.training.values(), *own, *heads]


def _archives(trial: Trial) -> None:
    learner = trial.taught(2)
    answers = trial.answers(learner)
    for resumable in (False, True):
        loaded = _stored_and_read(learner, trial, resumable=resumable)
        what = f"an archive{' to go on from' if resumable else ''}"
        assert type(loaded) is type(learner), f"{what} gives a {type(loaded).__name__}"
        _assert_answers(trial.answers(loaded), answers, what)
        stored, again = (settings_of(each) for each in (learner, loaded))
        assert again == stored, f"{what} has other settings: {again}, not {stored}"
    _assert_answers(trial.answers(learner), answers, "saving")


def _stored_and_read(learner: Any, trial: Trial, *, resumable: bool) -> Any:
    """The learner that a file gives; of a method that no table has, that comes of what a file would hold."""
    if METHODS.name_of(type(learner)) is None:
        state = learner.to_state(resumable=resumable)
        return type(learner).from_state(
            _other(trial.backbone()), state, heads=learner.heads, recipe=learner.recipe, device=learner.device
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.ticket"
        save(learner, path, resumable=resumable)
        assert verify(path, trial.backbone(), heads=learner.heads).ok, "an archive does not verify"
        loaded: Any = load(path, _other(trial.backbone()), heads=learner.heads)
    assert all(found.ok for found in loaded.verify()), "a learner from an archive does not verify"
    return loaded


def settings_of(learner: Any) -> dict[str, str]:
    """The fields of a method, written down; where and how fast it runs is not among them."""
    here = ("masked", "device", "cache_bytes", "heads")  # heads, if none are said, are linear ones
    return {field.name: repr(getattr(learner, field.name)) for field in fields(learner) if field.name not in here}


def _resumable_archive(trial: Trial) -> None:
    learner = trial.taught(2)
    loaded = _stored_and_read(learner, trial, resumable=True)
    _assert_same(kept_by(loaded), kept_by(learner), "what is loaded is not what was saved")
    if _learns_on(loaded, trial.tasks[2]):
        _assert_same(kept_by(loaded), kept_by(trial.taught(3)), "an archive learned on to other bits")


def _learns_on(learner: Any, task: Task) -> bool:
    """Learn one more task; False if the method needs data for it that no archive has, and says so."""
    try:
        learn(learner, task)
    except TaskError:
        if hasattr(learner, "finish"):
            return False
        raise
    return True


def _other(module: nn.Module) -> nn.Module:
    """The same structure with other values: an archive brings its own."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    return module


def _copies(trial: Trial) -> None:
    learner = trial.taught(1)
    before, answers = kept_by(learner), trial.answers(learner)
    twin = copy.deepcopy(learner)
    _assert_answers(trial.answers(twin), answers, "a copy")
    if hasattr(learner, "finish"):
        learn(twin, trial.tasks[1])
    else:
        with learner.learning(trial.tasks[2]):  # neither waits for the other
            learn(twin, trial.tasks[1])
    _assert_same(kept_by(learner), before, "learning with a copy changed what the original keeps")
    whole = trial.new()
    for task in trial.tasks[:2]:
        learn(whole, task)
    _assert_same(kept_by(twin), kept_by(whole), "a copy learned on to other bits")


def _memory(trial: Trial) -> None:
    learner, fresh = trial.taught(2), trial.new()
    memory, stored = learner.memory(), learner.to_state(resumable=True)
    counted = {**memory.training, **memory.extras}
    named = (*learner.state, *learner.resumable_state, *getattr(learner, "side", ()))
    for name in named:
        missing = [full for full in tensors_in(name, getattr(learner, name)) if full not in counted]
        assert not missing, f"memory() does not count {missing[0]}"
    images = learner.replay.tensors() if isinstance(learner, FewShotLearner) else {}
    assert images.keys() <= counted.keys(), "memory() does not count the exemplars"
    written = {value for _, value in _leaves("", stored.training)}
    lost = [name for name, value in _leaves("", counted) if value not in written and not name.startswith("unused.")]
    assert not lost, f"to_state does not hold {lost[0]}, which memory() counts"
    for name in vars(learner):
        if name in (*named, "replay"):
            continue
        now, then = (dict(_leaves("", tensors_in(name, vars(each).get(name)))) for each in (learner, fresh))
        assert now == then, f"{name} is kept from task to task, but not named in `state`: no archive holds it"
    for task in memory.heads:
        head = learner.task_modules(task)["head"]
        for name, value in (*head.named_parameters(), *head.named_buffers()):
            assert torch.equal(memory.heads[task][name], value), f"memory() lacks {name} of the head of {task!r}"


def _devices(trial: Trial) -> None:
    learner = trial.taught(2)
    before, answers = kept_by(learner), trial.answers(learner)
    where = next(iter(_tensors(learner))).device
    assert learner.to(where) is learner, "to() gives something else than the learner"
    _assert_same(kept_by(learner), before, "moving to where it is changed what is kept")
    _assert_answers(trial.answers(learner), answers, "moving to where it is")
    learn(learner, trial.tasks[2])
    _assert_same(kept_by(learner), kept_by(trial.taught(3)), "a learner that was moved learned on to other bits")


def _threads(trial: Trial) -> None:
    learner = trial.taught(2)
    answers, asked = trial.answers(learner), []
    with ThreadPoolExecutor(4) as several:

        def ask(_: Any = None) -> None:
            found = [several.submit(trial.answers, learner, [task]) for task in trial.tasks[:2] * 4]
            for each in found:
                (name, answer), *_ = each.result().items()
                assert torch.equal(answer, answers[name]), (
                    f"{name!r} is answered differently by several threads at once"
                )
                asked.append(name)

        ask()
        learn(learner, trial.tasks[2], progress=ask)  # also while the next task is being learned
    assert len(asked) >= 8


def _settings(trial: Trial) -> None:
    learner = trial.new()
    host = next(kind for kind in (TaskLearner, FewShotLearner) if isinstance(learner, kind))
    common = {field.name for field in fields(host)}
    own = [field.name for field in fields(learner) if field.name not in common]
    for name in (*own, "recipe", "seed"):
        before = getattr(learner, name)
        said = _said(learner, name)
        assert said, f"{name} takes anything: give its field a rule"
        assert name in said, f"a wrong {name} is refused without its name: {said}"
        assert getattr(learner, name) is before, f"a {name} that was refused is there nevertheless"
        vars(learner)[name] = _NOTHING  # behind its back
        with _refused(f"to store a learner with a wrong {name}", InputError):
            learner.to_state()
        vars(learner)[name] = before


def _said(learner: Any, name: str) -> str:
    """How a setting that cannot be is refused; nothing if it is taken."""
    try:
        setattr(learner, name, _NOTHING)
    except InputError as error:
        return str(error)
    return ""


class _Nothing:
    """A value that no setting can have."""

    def __repr__(self) -> str:
        return "nothing that makes sense"


_NOTHING = _Nothing()


def _plain_modules(trial: Trial) -> None:
    learner = trial.taught(1)
    for _ in range(3):
        trial.answers(learner)  # which may stay at hand
    learn(learner, trial.tasks[1])

    def by_modules(task: Task, *, spoiled: bool = False) -> Tensor:
        modules = learner.task_modules(task.name)
        answer: Tensor = called(modules["head"], called(modules["backbone"], inputs_of(task)))
        with torch.no_grad():
            for tensor in (*modules["backbone"].parameters(), *modules["head"].parameters()) if spoiled else ():
                tensor.zero_()
        return answer

    for task in trial.tasks[:2] if learner.scenario == "til" else trial.tasks[1:2]:
        expected = ask(learner, task)
        same = torch.equal(by_modules(task, spoiled=True), expected)
        assert same, f"task_modules({task.name!r}) answer something else than predict"
        untouched = torch.equal(by_modules(task), expected) and torch.equal(ask(learner, task), expected)
        assert untouched, "what task_modules gives is not the caller's own"
    module = trial.backbone()
    every = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    assert sorted(entry.name for entry in learner.layout()) == sorted(every), "layout() lacks a tensor"
    if learner.scenario == "til":
        answer = learner.zero_shot(inputs_of(trial.tasks[2]), trial.tasks[2])
        assert answer.shape[1] == trial.tasks[2].width, "zero_shot gives not as many scores as the task has classes"


def _removal(trial: Trial) -> None:
    learner = trial.taught(3)
    first, *others = trial.tasks
    answers = trial.answers(learner)
    if learner.scenario == "fscil":
        before = kept_by(learner)
        with _refused("to remove a session", TaskError):
            learner.remove(first.name)
        _assert_same(kept_by(learner), before, "a removal that was refused changed what is kept")
        if learner.forget_free:
            _session_removal(trial, learner)
        return
    with _refused("to remove a task that is not there", TaskError):
        learner.remove("never learned")
    learner.remove(first.name)
    assert list(learner.tasks) == [task.name for task in others], "a removed task is still among the tasks"
    memory = learner.memory()
    assert first.name not in (*memory.heads, *memory.tickets), "the head or the ticket of a removed task is kept"
    with _refused("to ask a removed task", TaskError):
        ask(learner, first)
    _assert_answers(trial.answers(learner), {task.name: answers[task.name] for task in others}, "a removal")
    learn(learner, first)
    assert list(learner.tasks)[-1] == first.name or hasattr(learner, "finish"), "a removed task is not learned again"
    if learner.forget_free:
        kept = {task.name: answers[task.name] for task in others}
        _assert_answers(trial.answers(learner, others), kept, "learning after a removal")


def _session_removal(trial: Trial, learner: Any) -> None:
    """Of a learner with one head that keeps the scores of every session."""
    first, gone, last = trial.tasks
    answers, width = trial.answers(learner), [len(task.classes) for task in trial.tasks]
    left = [*range(width[0]), *range(width[0] + width[1], sum(width))]
    learner.remove(gone.name)
    assert list(learner.tasks) == [first.name, last.name], "a removed session is still among the sessions"
    kept = {name: answers[name][:, left] for name in (first.name, last.name)}
    _assert_answers(trial.answers(learner, [first, last]), kept, "a removal")
    assert all(verified.ok for verified in learner.verify()), "a removal broke the certificate of another session"
    learn(learner, gone)
    _assert_answers(trial.answers(learner, [first, last]), kept, "learning after a removal")


METHOD_CHECKS: Mapping[str, Callable[[Trial], None]] = {
    "keeps the contract of a learner": _contract,
    "two learners of one seed are equal": _equal_seeds,
    "never writes to the module it is given": _callers_module,
    "a killed learn goes on to the same bits": _killed,
    "an error leaves everything as it was": _rolled_back,
    "a session without keep() leaves everything as it was": _left_without_keep,
    "a session has exactly what may move": _only_what_may_move,
    "an archive answers with the same bits": _archives,
    "a resumable archive learns on to the same bits": _resumable_archive,
    "a copy learns on alone": _copies,
    "memory counts all that is kept": _memory,
    "moving to another device changes no bit": _devices,
    "many threads may ask": _threads,
    "settings that cannot be are refused": _settings,
    "task_modules answer as predict does": _plain_modules,
    "removal takes one task and leaves the others": _removal,
}
"""What `check_method` checks, by name."""
