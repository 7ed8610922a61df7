"""The engine of a learner: one task at a time, a head for each, what is learned, cached answers, certificates.

A method owns the weights and says what a task sees of them (`TaskModel`); the engine keeps the rest. It knows no
method: what it needs is handed to it as values.

With a `single_head`, tasks are few-shot sessions: a task adds classes to those seen, and one head, that of the last
task, answers for all of them.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, overload

import torch
from torch import Tensor, nn

from forgetfree.answering import Answers, check_rows, in_groups
from forgetfree.batches import check_data, convert, explained, first_batch, sampled, shifted, signature
from forgetfree.certificate import Verified, certify, check, ranges_of
from forgetfree.class_heads import ClassHead
from forgetfree.contracts import Inputs, LearnerState, Loss, Task, TaskRecord
from forgetfree.copies import Copies, copy_record
from forgetfree.errors import InputError, LearningError, TaskError
from forgetfree.files import digest_of
from forgetfree.forms import mapping, plain_or_tensor
from forgetfree.heads import HeadFactory, TaskHeads, Whole, head_name, linear_head, warn_of_classifier
from forgetfree.locks import ProcessLock
from forgetfree.modules import Placement, as_call, clone, freeze, named_tensors, with_tensors
from forgetfree.rng import check_seed, derive, preserved_rng, seed_all
from forgetfree.sealing import Ready
from forgetfree.training.loop import ProgressCallback as ProgressCallback
from forgetfree.training.loop import fit
from forgetfree.training.recipe import Recipe
from forgetfree.training.session import Door, Fitted, Session, TaskModel
from forgetfree.training.team import team
from forgetfree.trials import features_of, refuse_left_behind, without_values

log = logging.getLogger("forgetfree")

RowNames = list[str] | tuple[str, ...]
"""Names of tasks, one for every row of a batch."""


@dataclass(frozen=True)
class Context:
    """Where a learner stands when a task begins: what the hooks of a method are told beside the task."""

    seed: int
    position: int
    """Of the task in the order of learning: part of the seed of its random streams."""
    placement: Placement
    recipe: Recipe
    """The one of all tasks, or of the first session: it says how data are loaded and how many are looked at at once."""
    known: int = 0
    """In few-shot sessions: how many classes came before this one."""
    base: int = 0
    """How many of them the first session brought."""
    first: str = ""
    """The name of the first session, in whose ticket all learn."""
    first_inputs: Any = None
    """The signature of what it was learned on; None while it is learned."""
    head: nn.Module | None = None
    """The one head that answers before this session."""


class Engine:
    """The record of what is learned, and the way in (`exclusive`, `session`) and out (`predict`)."""

    def __init__(
        self,
        answer: Callable[[str], nn.Module],
        placement: Callable[[], Placement],
        *,
        heads: HeadFactory | None,
        seed: int,
        cache_bytes: int,
        lighter: Callable[[nn.Module], nn.Module] = lambda whole: whole,
        single_head: bool = False,
        by_session: bool = False,
    ):
        self.single_head = single_head
        self.by_session = by_session
        """Whether the one head keeps the scores of every session, so that each is certified, and can be removed."""
        self.seed = check_seed(seed)
        self.heads = TaskHeads(heads)
        self._learned: Mapping[str, TaskRecord] = {}
        self.optimizer: Mapping[str, dict[str, Any]] = {}
        """What the optimizer of the last task knew of parameters that outlive it."""
        self._answer = answer
        self._placement = placement
        self._lighter = lighter
        self._lock = Lock()
        self._answers = Answers(self._whole, cache_bytes)

    @property
    def learned(self) -> Mapping[str, TaskRecord]:
        """What is known of every task; copies, like all tensors that are handed out."""
        return Copies(dict(self._learned), copy_record)

    @property
    def position(self) -> int:
        """Of the next task: after all that are learned, also where some between them were removed."""
        return 1 + max((known.position for known in self._learned.values()), default=-1)

    @property
    def seen_classes(self) -> tuple[int | str, ...]:
        """All classes, in the order they were met."""
        return tuple(name for known in self._learned.values() for name in known.classes)

    @property
    def kind_of_heads(self) -> str:
        """The name of what makes heads: one of HEADS, or that of the caller's own factory."""
        return head_name(self.heads.factory or linear_head)

    def with_global_labels(self, task: Task) -> Task:
        """`task` as one more session: its classes after all classes seen, its labels moved along."""
        seen = self.seen_classes
        again = [name for name in task.classes if name in seen]
        if not task.classifies or task.outputs is not None or again:
            said = f"it brings {again[0]!r}, which was met before" if again else "it is no plain classification"
            raise TaskError(f"task {task.name!r} cannot be a session after {len(seen)} classes: {said}.")
        valid = None if task.valid is None else shifted(task.valid, len(seen))
        return replace(task, classes=seen + task.classes, train=shifted(task.train, len(seen)), valid=valid)

    def consistent_read(self) -> AbstractContextManager[Any]:
        """Nothing is kept or removed by others meanwhile; what is read belongs together."""
        return self._lock.still

    @contextmanager
    def exclusive(self, task: Task) -> Iterator[None]:
        """Wait until no other task is being learned; refuse a task that cannot be; preserve the random state."""
        check_data(task)
        learnable = torch.inference_mode(False), torch.enable_grad()  # whatever mode the caller is in
        with learnable[0], learnable[1], preserved_rng(self._placement().device), self._lock.held_for(task.name):
            if task.name in self._learned:
                raise TaskError(f"task {task.name!r} is learned already; learned tasks are {list(self._learned)}.")
            yield

    @contextmanager
    def session(
        self,
        task: Task,
        model: TaskModel,
        keep: Callable[[Session], nn.Module | None],
        *,
        rollback: tuple[object, ...],
        loader: Mapping[str, Any] | None,
        head: HeadFactory | None = None,
        carried: frozenset[str] = frozenset(),
        settings: Mapping[str, Any] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> Iterator[Session]:
        """Learn `task` in the model with a new head; `keep` stores what the model has learned.

        `head` makes the head to learn with, where that is not the one to answer with: `keep` then gives the latter.
        `rollback` are the objects `keep` writes to: all of them change or, on an error, none.
        """
        placement, position = self._placement(), self.position
        sample = placement.cast(first_batch(task, 2, loader).inputs)
        seen = signature(sample)
        learned, width = self._new_head(task, model, sample, head)
        untrained, began = clone(learned), (without_values(model.runs()), without_values(learned))

        def keep_all(session: Session, selection: str, fitted: Fitted | None) -> None:
            team().agree(
                digest_of(session.state()),
                f"task {task.name!r}: the processes that learn together have come to different results, so that "
                "nothing is kept. A module that draws random numbers elsewhere than from torch, numpy and random can "
                "be the cause, or a device that is not deterministic.",
            )
            with self._keeping(*rollback):
                answering = keep(session)
                if answering is not None:
                    refuse_infinite(answering, task.name)
                # of a head that learned its tensors are kept, as an archive has them
                tensors = dict(named_tensors(session.head))
                taken = answering.features if isinstance(answering, ClassHead) else width
                self.heads.keep(task.name, answering or with_tensors(untrained, tensors), taken)
                self.optimizer = fitted.optimizer if fitted else {}
                self.note(session.task, seen, selection, fitted, given)
                if self.single_head:  # one head answers for all classes
                    self.heads.keep_only(task.name)
                    self.forget_answers()
                self._try_out(task.name, sample, session, began[0], None if answering else began[1])
                self.certify(task.name, ranges_of(sampled(task, loader)))

        door = Door(keep_all)
        session = Session(
            task, model, learned, door, placement=placement, inputs=seen, carried=carried, settings=settings
        )
        seed_all(placement.device, self.seed, position, "session")
        try:
            yield session
        finally:
            door.open = False
        if not door.kept:
            log.info("task %r was left without keep(): everything is as it was before.", task.name)

    @contextmanager
    def _keeping(self, *rollback: object) -> Iterator[None]:
        """All that is written to inside changes or, on an error, nothing; nothing else is kept meanwhile."""
        try:
            with self.consistent_read(), torch.no_grad(), all_or_nothing(self, self.heads, *rollback):
                yield
        except BaseException:
            self.forget_answers()  # a module of what was not kept may be among them
            raise

    def fit_together(
        self,
        tasks: list[Task],
        mixed: Task,
        model: TaskModel,
        keep: Callable[[Session], Mapping[str, nn.Module]],
        width: int,
        recipe: Recipe,
        checkpoint: Path | str | None,
        progress: ProgressCallback | None,
        *,
        rollback: tuple[object, ...],
    ) -> None:
        """Train many tasks as one, and keep a head for each of them; what was known of tasks before is replaced."""
        placement, began = self._placement(), without_values(model.runs())

        def keep_all(session: Session, selection: str, fitted: Fitted | None) -> None:
            with self._keeping(*rollback):
                heads = keep(session)
                self._learned = {}  # all of them anew: this may be done again with more tasks
                for task in tasks:
                    self.heads.keep(task.name, heads[task.name], width)
                    self.note(task, signature(placement.cast(task.train[0])), selection, fitted)
                self.forget_answers()
                for task in tasks:
                    sample = convert(task.train[0], lambda value: value[:2])
                    self._try_out(task.name, placement.cast(sample), session, began)
                    self.certify(task.name, ranges_of(task.train[0]))

        session = Session(mixed, model, nn.Identity(), Door(keep_all), placement=placement)
        fitted = fit(session, recipe, seed=self.seed, position=0, checkpoint=checkpoint, progress=progress)
        session.keep(fitted.selection, fitted)

    def note(
        self, task: Task, seen: Any, selection: str, fitted: Fitted | None, given: Mapping[str, Any] | None = None
    ) -> None:
        """Write down that `task` is learned now; `seen` is the signature of its inputs."""
        learned = TaskRecord(
            task.name,
            task.classes[len(self.seen_classes) :] if self.single_head else task.classes,
            task.width,
            position=self.position,
            inputs=seen,
            threads=torch.get_num_threads(),
            selection=selection,
            curves=fitted.curves if fitted else (),
            seconds=fitted.seconds if fitted else 0.0,
            features=self.heads.widths.get(task.name),
            given=dict(given or {}),
        )
        self._learned = {**self._learned, task.name: learned}

    def certify(self, name: str, ranges: Any) -> None:
        """Certify a task as it is now; its probe has the `ranges` of whole numbers that it was learned on."""
        self._learned = {**self._learned, name: self._certified(name, ranges)}

    def certified(self) -> dict[str, TaskRecord]:
        """What is learned, with certificates of this moment."""
        now = {
            name: self._certified(name, known.certificate.ranges)
            for name, known in self.answering.items()
            if known.certificate
        }
        return {**self._learned, **now}

    def _certified(self, name: str, ranges: Any) -> TaskRecord:
        learned = self._learned[name]
        seed = derive(self.seed, learned.position, "probe")
        return replace(learned, certificate=certify(learned, ranges, seed, self._certified_parts(name), self._ask_as))

    def verify(self) -> list[Verified]:
        """Every task beside its certificate; of sessions the last, which answers for all, where scores may change."""
        return [check(learned, self._certified_parts(name), self._ask_as) for name, learned in self.answering.items()]

    @property
    def answering(self) -> Mapping[str, TaskRecord]:
        """The tasks that have a head, or rows of the one head that are theirs for ever."""
        every = self._learned.items()
        kept = {name: learned for name, learned in every if self.by_session or name in self.heads.kept}
        return Copies(kept, copy_record)

    def columns(self, name: str) -> list[int]:
        """Where the one head has the scores of a session's own classes."""
        start = 0
        for other, learned in self._learned.items():
            if other == name:
                return list(range(start, start + len(learned.classes)))
            start += len(learned.classes)
        raise TaskError(f"no session {name!r} is learned; learned sessions are {list(self._learned)}.")

    def _certified_parts(self, name: str) -> dict[str, nn.Module]:
        """What the answers of a task depend on: of one head for many sessions the rows of its own classes."""
        if not self.by_session:
            return self.task_modules(name)
        last = list(self._learned)[-1]
        head = cast(ClassHead, self.heads.kept[last])
        return {"backbone": self._answer(name), "head": head.only(self.columns(name))}

    def task_modules(self, name: str) -> dict[str, nn.Module]:
        """Backbone and head of a task as plain modules of the caller's own."""
        self.refuse_unknown([name])
        if name not in self.heads.kept:
            last = next(iter(self.answering))
            raise TaskError(f"session {name!r} has no head of its own: {last!r}, the last one, answers for all.")
        # a head may write to itself too
        return {"backbone": self._answer(name), "head": self.heads.kept[name]}

    @contextmanager
    def removing(self, name: str, *rollback: object) -> Iterator[None]:
        """Forget all that is known of a task but its weights, which the method removes inside; all of it or nothing."""
        with self._lock.held_for(f"removal of {name}", wait=False):
            self.refuse_unknown([name])
            with self.consistent_read(), torch.no_grad(), all_or_nothing(self, self.heads, *rollback):
                yield
                self._learned = {other: known for other, known in self._learned.items() if other != name}
                self.heads.remove(name)
                self.optimizer = {}  # it may hold momentum of weights that are gone
            self._answers.forget(name)

    def remove_session(self, name: str) -> None:
        """Forget a session that is not the first: the rows of its classes go, all others keep their bits."""
        with self._lock.held_for(f"removal of {name}", wait=False):
            self.refuse_unknown([name])
            if name == next(iter(self._learned)):
                raise TaskError(
                    f"session {name!r} cannot be removed: it is the first, and all that others are told apart by comes "
                    "from it."
                )
            with self.consistent_read(), torch.no_grad(), all_or_nothing(self, self.heads):
                last, gone = list(self._learned)[-1], self.columns(name)
                head, width = cast(ClassHead, self.heads.kept[last]), self.heads.widths[last]
                head.drop(torch.tensor(gone))
                left = {other: known for other, known in self._learned.items() if other != name}
                self._learned, met = {}, 0
                for other, known in left.items():
                    met += len(known.classes)
                    self._learned = {**self._learned, other: replace(known, outputs=met)}
                self.heads.keep(other, head, width)
                self.heads.keep_only(other)
                self.optimizer = {}
            self._answers.forget(name)

    def to_state(self, resumable: bool) -> dict[str, Any]:
        """What learning goes on from, where it is to go on to the same bits."""
        return {"optimizer": dict(self.optimizer)} if resumable else {}

    def from_state(self, state: LearnerState) -> None:
        """Become what was stored; the heads are made anew by the factory, with the stored tensors in them."""
        heads = {}
        with preserved_rng(torch.device("cpu")):
            for name in state.memory.heads:
                learned = state.learned[name]
                factory = self.heads.factory or linear_head
                heads[name] = freeze(
                    with_tensors(factory(learned.features or 1, _as_task(learned)), state.memory.heads[name])
                )
        self.heads.kept = heads
        self.heads.widths = {name: known.features for name, known in state.learned.items() if known.features}
        self._learned = dict(state.learned)
        self.optimizer = state.training.get("optimizer", {})
        mapping(mapping(plain_or_tensor))(self.optimizer, "optimizer")

    def answer_all(self, inputs: Inputs) -> Tensor:
        """With a single head: a score for every class seen."""
        if not self._learned:
            raise TaskError("nothing is learned yet: learn the first session.")
        last = list(self._learned)[-1]
        if self._answers.has(last):
            return self._ask(last, inputs)
        with self.consistent_read():  # network and head of one moment: another thread may be keeping a session
            return self._ask(list(self._learned)[-1], inputs)

    @overload
    def predict(self, inputs: Inputs, task: str) -> Tensor: ...
    @overload
    def predict(self, inputs: Inputs, task: RowNames) -> Tensor | list[Tensor]: ...
    def predict(self, inputs: Inputs, task: str | RowNames) -> Tensor | list[Tensor]:
        """The answer of a learned task: eval mode, no gradient, in the type of the weights.

        Several tasks in one batch: a list names the task of every row, and the rows of each task are answered together.
        """
        if isinstance(task, str) and task in self._learned:
            return self._ask(task, inputs)
        names = [task] if isinstance(task, str) else task
        self.refuse_unknown(names)
        cast_ = self._placement().cast(inputs)
        check_rows(cast_, names)
        self._refuse_mixing(names)
        return in_groups(cast_, names, self._ask)

    def zero_shot(self, inputs: Inputs, task: Task, backbone: Callable[[str], nn.Module]) -> Tensor:
        """The answer for a task that is not learned: what `backbone` gives for the last task, an untrained head."""
        if not isinstance(task, Task):
            raise InputError(f"zero-shot answers are about a Task that is not learned; got {task!r}.")
        if task.name in self._learned:
            raise TaskError(f"task {task.name!r} is learned: ask it with predict.")
        if not self._learned:
            raise TaskError("nothing is learned yet, so there is nothing to answer with.")
        last = list(self._learned)[-1]
        module = backbone(last)
        cast_ = self._placement().cast(inputs)
        args, kwargs = as_call(convert(cast_, torch.clone))  # a module may write to its inputs
        device = self._placement().device.type
        plain = torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False)
        with plain[0], plain[1], plain[2], explained(cast_, self._learned[last].inputs, last):
            features = module(*args, **kwargs)
            return cast(Tensor, self.untrained_head(task, features, self.position)(features))

    def untrained_head(self, task: Task, features: Tensor, position: int, *words: int | str) -> nn.Module:
        """The head that `task` starts from if it is learned at this position; with other words, another one."""
        device = self._placement().device
        with preserved_rng(device):
            seed_all(device, self.seed, position, "head", *words)
            return freeze(self.heads.new(task, features))

    def forget_answers(self) -> None:
        """Drop the cached modules: old answers may change when a new task is learned."""
        self._answers.clear()

    @contextmanager
    def moved(self, device: torch.device | str) -> Iterator[None]:
        """Move the heads; the learner moves its weights inside."""
        with self._lock.held_for("moving to another device"):
            yield
            self.heads.to(device)
            self.optimizer = {
                name: {key: value.to(device) if isinstance(value, Tensor) else value for key, value in known.items()}
                for name, known in self.optimizer.items()
            }
            self._answers.clear()

    def _new_head(
        self, task: Task, model: TaskModel, sample: Inputs, factory: HeadFactory | None
    ) -> tuple[nn.Module, int]:
        """A head for the features of a sample, and their width."""
        model.train(False)  # a look at the features leaves no trace in norms and counters
        plain = torch.autocast(self._placement().device.type, enabled=False)  # the head is of the type of the weights
        first = next(iter(self._learned.values()), None) if self.single_head else None  # which others are to be like
        known = (first.inputs, first.name) if first else (None, task.name)
        with torch.no_grad(), plain, explained(sample, *known):
            features = features_of(model, sample)
        if not self._learned:
            warn_of_classifier(model.runs(), features, task)
        model.train(True)
        seed_all(self._placement().device, self.seed, self.position, "head")
        return self.heads.new(task, features, factory), int(features.shape[-1])

    def _try_out(
        self, name: str, sample: Inputs, session: Session, network: nn.Module | None, head: nn.Module | None = None
    ) -> None:
        """Refuse a task that does not give the same answer twice, or not the one that its session has learned.

        `network` and `head` hold the plain attributes that these had when the session began.
        """
        self._answers.try_out(name, sample, goes_on=True)
        runs = session.model.runs()
        if network is not None and runs is not None:
            refuse_left_behind(name, network, runs, lambda: self._answer(name), sample)
        if head is not None:
            features = Ready(self._answer(name)).run(sample)
            refuse_left_behind(name, head, session.head, lambda: clone(self.heads.kept[name]), features)

    def _ask(self, name: str, inputs: Inputs) -> Tensor:
        learned_on = self._learned[name].inputs
        if self._answers.takes(name, inputs, learned_on):
            return self._answers(name, inputs)
        cast_ = self._placement().cast(inputs)
        with explained(cast_, learned_on, name):
            return self._answers(name, cast_)

    def said(self, task: str | RowNames | None) -> str | RowNames:
        """The task that is asked for, or a `TaskError` where nobody said it: the next task would make it another."""
        if task is not None:
            return task
        if not self._learned:
            raise TaskError("no task is learned yet: learner.learn(task) first, then predict(inputs, task=its name).")
        raise TaskError(
            f"which task is asked? Say it, as in predict(inputs, task={list(self._learned)[-1]!r}); learned tasks are "
            f"{list(self._learned)}."
        )

    def refuse_unknown(self, names: RowNames) -> None:
        """Raise a `TaskError` for names that no learned task has."""
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise TaskError(f"a task is asked by its name, several by a list with a name for every row; got {names!r}.")
        unknown = [name for name in dict.fromkeys(names) if name not in self._learned]
        if unknown:
            which = f"no task {unknown[0]!r} is" if len(unknown) == 1 else f"no tasks {str(unknown)[1:-1]} are"
            raise TaskError(f"{which} learned; learned tasks are {list(self._learned)}.")

    def _refuse_mixing(self, names: RowNames) -> None:
        several = dict.fromkeys(names)
        for name in several if len(several) > 1 else ():
            layer = self._answers.where_rows_meet(name)
            if layer:
                raise InputError(
                    f"{layer} keeps no running statistics, so a row's answer depends on the rows beside it, and rows "
                    "of several tasks cannot share a batch. Ask task by task, or build the layer with "
                    "track_running_stats=True."
                )

    def _ask_as(self, inputs: Inputs, name: str) -> Tensor:
        if not self.by_session:
            return self._ask(name, inputs)
        return self._ask(list(self._learned)[-1], inputs)[:, self.columns(name)]

    def _whole(self, name: str) -> nn.Module:
        return self._lighter(Whole(**self.task_modules(name)).eval())


class Lock:
    """Whose turn it is to learn: one task at a time, others wait; nothing is shared by a copy."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._owner: tuple[tuple[int, int], str] | None = None
        self.still = ProcessLock()
        """Held for the moment in which a task is kept or removed, or everything is read."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Lock":
        return Lock()

    @contextmanager
    def held_for(self, task: str, *, wait: bool = True) -> Iterator[None]:
        owner, here = self._owner, (os.getpid(), threading.get_ident())
        if owner and owner[0] == here:
            raise TaskError(f"cannot start {task!r}: task {owner[1]!r} is still being learned here.")
        if not self._lock.acquire(blocking=wait):
            busy = f"task {owner[1]!r}" if owner else "another task"
            raise TaskError(f"cannot start {task!r}: {busy} is being learned. Wait until it is kept.")
        try:
            self._owner = here, task
            yield
        finally:
            self._owner = None
            self._lock.release()


@contextmanager
def all_or_nothing(*holders: object) -> Iterator[None]:
    """Put the attributes of `holders` back if anything goes wrong, Ctrl-C included.

    What they hold at rest is replaced, never written into; so putting the references back undoes everything.
    """
    before = [dict(vars(holder)) for holder in holders]
    try:
        yield
    except BaseException:
        for holder, attributes in zip(holders, before, strict=True):
            vars(holder).update(attributes)
        raise


def refuse_infinite(head: nn.Module, task: str) -> None:
    """Refuse a head that a method has made of features which were no numbers."""
    for name, value in named_tensors(head):
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise LearningError(
                f"task {task!r}: {name} of the head that is to answer holds values that are not finite. The learner is "
                "as it was before. Check the inputs for NaN, or lower the learning rate."
            )


def _as_task(learned: TaskRecord) -> Task:
    """The task again, without its data, for whoever makes its head."""
    nothing = torch.empty(0), torch.empty(0, dtype=torch.long)
    loss = None if learned.classes else cast(Loss, nn.functional.mse_loss)
    return Task(learned.name, learned.classes, nothing, loss=loss, outputs=learned.outputs)
