"""Lessons: what all methods do alike. One task at a time, a head for each, answers by name.

A method owns the weights and says what a task sees of them; the lessons keep the rest: whose turn it is, the heads,
what is learned, the cached answers.

`growing` lessons are few-shot sessions: a task adds classes to those met, and one head, that of the last task, answers
for all of them.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, overload

import torch
from torch import Tensor, nn

from forgetfree.answering import Answers, check_rows, in_groups
from forgetfree.batches import (
    Batch,
    check_data,
    convert,
    explained,
    first_batch,
    plainly_like,
    sampled,
    shifted,
    signature,
)
from forgetfree.certificate import Verified, certify, check, ranges_of
from forgetfree.contracts import Inputs, LearnerState, Loss, Memory, Task, TaskRecord
from forgetfree.errors import InputError, ModuleError, TaskError
from forgetfree.heads import HEADS, HeadFactory, TaskHeads, Whole, linear_head
from forgetfree.modules import as_call, copy_module, freeze, with_tensors
from forgetfree.rng import check_seed, derive, draws, preserved_rng, seed_all
from forgetfree.training import (
    Fitted,
    Progress,
    Recipe,
    Session,
    Trainable,
    Turn,
    all_or_nothing,
    check_recipe,
    fit,
    full_name,
)

log = logging.getLogger("forgetfree")

ProgressCallback = Callable[[Progress], None]

RowNames = list[str] | tuple[str, ...]
"""Names of tasks, one for every row of a batch."""


@dataclass(frozen=True)
class Place:
    """Where weights live and of which floating-point type they are (None where there are several)."""

    device: torch.device
    dtype: torch.dtype | None

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> "Place":
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        if not floating:
            raise ModuleError("the backbone has no floating-point parameter, so there is nothing to learn in it.")
        kinds = {tensor.dtype for tensor in floating}
        return cls(floating[0].device, kinds.pop() if len(kinds) == 1 else None)

    def admit(self, inputs: Inputs) -> Inputs:
        """Inputs on this device and, where they are floating-point numbers, of this type."""

        def move(value: Tensor) -> Tensor:
            if not isinstance(value, Tensor):
                raise InputError(f"inputs are a tensor, a tuple or a dict of tensors; got a {type(value).__name__}.")
            return value.to(self.device, self.dtype if value.is_floating_point() else None)

        return convert(inputs, move) if isinstance(inputs, tuple | list | dict) else move(inputs)


class Lessons:
    """The record of what is learned, and the way in (`turn`, `session`) and out (`predict`)."""

    def __init__(
        self,
        backbone: Callable[[str], nn.Module],
        place: Callable[[], Place],
        *,
        recipe: Recipe | None,
        heads: HeadFactory | None,
        seed: int,
        cache_bytes: int,
        lighter: Callable[[nn.Module], nn.Module] = lambda whole: whole,
        growing: bool = False,
    ):
        self.growing = growing
        self.recipe = check_recipe("recipe", recipe or Recipe())
        self.seed = check_seed(seed)
        self.heads = TaskHeads(heads)
        self.learned: Mapping[str, TaskRecord] = {}
        self.optimizer: Mapping[str, dict[str, Any]] = {}
        """What the optimizer of the last task knew of parameters that outlive it."""
        self._backbone = backbone
        self._place = place
        self._lighter = lighter
        self._turn = Turn()
        self._answers = Answers(self._whole, cache_bytes)

    @property
    def tasks(self) -> Mapping[str, TaskRecord]:
        return MappingProxyType(dict(self.learned))

    @property
    def position(self) -> int:
        """Of the next task: after all that are learned, also where some between them were removed."""
        return 1 + max((known.position for known in self.learned.values()), default=-1)

    @property
    def met(self) -> tuple[int | str, ...]:
        """All classes, in the order they were met."""
        return tuple(name for known in self.learned.values() for name in known.classes)

    @property
    def kind_of_heads(self) -> str:
        """The name of what makes heads: one of HEADS, or that of the caller's own factory."""
        factory = self.heads.factory or linear_head
        return next((name for name, made in HEADS.items() if made is factory), full_name(factory))

    def joined(self, task: Task) -> Task:
        """`task` as one more session: its classes after all classes met, its labels moved along."""
        met = self.met
        again = [name for name in task.classes if name in met]
        if not task.classifies or task.outputs is not None or again:
            said = f"it brings {again[0]!r}, which was met before" if again else "it is no plain classification"
            raise TaskError(f"task {task.name!r} cannot be a session after {len(met)} classes: {said}.")
        valid = None if task.valid is None else shifted(task.valid, len(met))
        return replace(task, classes=met + task.classes, train=shifted(task.train, len(met)), valid=valid)

    def still(self) -> AbstractContextManager[Any]:
        """Nothing is kept or removed by others meanwhile; what is read belongs together."""
        return self._turn.still

    @contextmanager
    def turn(self, task: Task) -> Iterator[None]:
        """Wait until no other task is being learned; refuse a task that cannot be; borrow the random state."""
        check_data(task)
        learnable = torch.inference_mode(False), torch.enable_grad()  # whatever mode the caller is in
        with learnable[0], learnable[1], preserved_rng(self._place().device), self._turn.taken_for(task.name):
            if task.name in self.learned:
                raise TaskError(f"task {task.name!r} is learned already; learned tasks are {list(self.learned)}.")
            yield

    @contextmanager
    def session(
        self,
        task: Task,
        parts: Mapping[str, Trainable],
        features: Callable[[Inputs], Any],
        keep: Callable[[], nn.Module | None],
        *,
        holders: tuple[object, ...],
        head: HeadFactory | None = None,
        loss: Callable[[Batch], Tensor] | None = None,
        penalty: Callable[[], Tensor] | None = None,
        lasting: Iterable[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> Iterator[Session]:
        """Learn `task` with its own new head on `features`; `keep` stores what the method's parts have learned.

        `head` makes the head to learn with, where that is not the one to answer with: `keep` then gives the latter.
        `loss` stands in place of the task's. `penalty` is added to the loss while learning. `holders` are the objects
        `keep` writes to: all of them change or, on an error, none. `settings` tell one learning from
        another, so that a checkpoint goes on only where it began.
        """
        place, position = self._place(), self.position
        sample = place.admit(first_batch(task, 2, self.recipe.loader).inputs)
        seen = signature(sample)
        learned, width = self._new_head(task, parts, features, sample, head)

        def answer(inputs: Inputs) -> Tensor:
            if plainly_like(inputs, seen, place.device):
                return cast(Tensor, learned(features(inputs)))
            admitted = place.admit(inputs)
            with explained(admitted, seen, task.name):
                return cast(Tensor, learned(features(admitted)))

        def keep_all(selection: str, fitted: Fitted | None) -> None:
            with self.still(), torch.no_grad(), all_or_nothing(self, self.heads, *holders):
                answering = keep()
                self.heads.keep(task.name, answering or learned, width)
                self.optimizer = fitted.optimizer if fitted else {}
                self.note(task, seen, selection, fitted)
                if self.growing:  # one head answers for all classes
                    self.heads.keep_only(task.name)
                    self.forget_answers()
                self.certify(task.name, ranges_of(sampled(task, self.recipe.loader)))

        session = Session(
            task, {**parts, "head": learned}, answer, keep_all, loss=loss, penalty=penalty, lasting=lasting,
            settings=settings,
        )  # fmt: skip
        seed_all(place.device, self.seed, position, "session")
        try:
            yield session
        finally:
            session.open = False
        if not session.kept:
            log.info("task %r was left without keep(): everything is as it was before.", task.name)

    def fit(
        self,
        session: Session,
        *,
        checkpoint: Path | str | None,
        progress: ProgressCallback | None,
        recipe: Recipe | None = None,
    ) -> None:
        """Train the session by the recipe, or by another one, and keep its best state."""
        if not session.parameters():
            session.keep("as it was: nothing is trained")
            return
        fitted = self.train(session, recipe or self.recipe, checkpoint=checkpoint, progress=progress)
        session.keep(fitted.selection, fitted)

    def train(
        self,
        session: Session,
        recipe: Recipe,
        *,
        checkpoint: Path | str | None,
        progress: ProgressCallback | None,
        phase: str = "",
    ) -> Fitted:
        """Train the session and leave it in its best state, not kept yet; a later `phase` has a name, and its own
        random streams and checkpoint."""
        path = Path(checkpoint) if checkpoint is not None else None
        return fit(
            session,
            recipe,
            seed=derive(self.seed, phase) if phase else self.seed,
            position=self.position,
            device=self._place().device,
            carried={} if phase else self.optimizer,
            checkpoint=path.with_name(f"{path.stem}-{phase}{path.suffix}") if path and phase else path,
            progress=progress,
        )

    def note(self, task: Task, seen: Any, selection: str, fitted: Fitted | None) -> None:
        """Write down that `task` is learned now; `seen` is the signature of its inputs."""
        learned = TaskRecord(
            task.name,
            task.classes[len(self.met) :] if self.growing else task.classes,
            task.width,
            position=self.position,
            inputs=seen,
            threads=torch.get_num_threads(),
            selection=selection,
            curves=fitted.curves if fitted else (),
            seconds=fitted.seconds if fitted else 0.0,
            features=self.heads.widths.get(task.name),
        )
        self.learned = {**self.learned, task.name: learned}

    def certify(self, name: str, ranges: Any) -> None:
        """Certify a task as it is now; its probe has the `ranges` of whole numbers that it was learned on."""
        self.learned = {**self.learned, name: self._certified(name, ranges)}

    def certified(self) -> dict[str, TaskRecord]:
        """What is learned, with certificates of this moment."""
        now = {
            name: self._certified(name, known.certificate.ranges)
            for name, known in self.answering.items()
            if known.certificate
        }
        return {**self.learned, **now}

    def _certified(self, name: str, ranges: Any) -> TaskRecord:
        learned = self.learned[name]
        seed = derive(self.seed, learned.position, "probe")
        return replace(learned, certificate=certify(learned, ranges, seed, self.parts(name), self._ask_as))

    def verify(self) -> list[Verified]:
        """Every task beside its certificate; of sessions the last, which answers for all."""
        return [check(learned, self.parts(name), self._ask_as) for name, learned in self.answering.items()]

    @property
    def answering(self) -> Mapping[str, TaskRecord]:
        """The tasks that have a head."""
        return {name: learned for name, learned in self.learned.items() if name in self.heads.kept}

    def parts(self, name: str) -> dict[str, nn.Module]:
        """Backbone and head of a task as plain modules of the caller's own."""
        self.refuse_unknown([name])
        if name not in self.heads.kept:
            last = next(iter(self.answering))
            raise TaskError(f"session {name!r} has no head of its own: {last!r}, the last one, answers for all.")
        # a head may write to itself too
        return {"backbone": self._backbone(name), "head": copy_module(self.heads.kept[name], lambda _, t: t.clone())}

    @contextmanager
    def removing(self, name: str, *holders: object) -> Iterator[None]:
        """Forget all that is known of a task but its weights, which the method removes inside; all of it or nothing."""
        with self._turn.taken_for(f"removal of {name}", wait=False):
            self.refuse_unknown([name])
            with self.still(), torch.no_grad(), all_or_nothing(self, self.heads, *holders):
                yield
                self.learned = {other: known for other, known in self.learned.items() if other != name}
                self.heads.remove(name)
                self.optimizer = {}  # it may hold momentum of weights that are gone
            self._answers.clear()

    def stored(
        self,
        module: nn.Module,
        memory: Memory,
        *,
        resumable: bool,
        arguments: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> LearnerState:
        """All of a learner; `arguments` and `training` are the method's own."""
        common = {"recipe": self.recipe.described(), "heads": self.kind_of_heads, "seed": self.seed}
        state: dict[str, Any] = {"optimizer": dict(self.optimizer)} if resumable else {}
        return LearnerState(
            module, {**(arguments or {}), **common}, memory, self.learned, {**state, **(training or {})}, resumable
        )

    def restore(self, stored: LearnerState) -> None:
        """Become what was stored; the heads are made anew by the factory, with the stored tensors in them."""
        heads = {}
        with preserved_rng(torch.device("cpu")):
            for name in stored.memory.heads:
                learned = stored.learned[name]
                factory = self.heads.factory or linear_head
                heads[name] = freeze(
                    with_tensors(factory(learned.features or 1, _as_task(learned)), stored.memory.heads[name])
                )
        self.heads.kept = heads
        self.heads.widths = {name: known.features for name, known in stored.learned.items() if known.features}
        self.learned = dict(stored.learned)
        self.optimizer = stored.training.get("optimizer", {})

    def answer(self, inputs: Inputs) -> Tensor:
        """The answer of growing lessons: a score for every class met."""
        if not self.learned:
            raise TaskError("nothing is learned yet: learn the first session.")
        return self._ask(list(self.learned)[-1], inputs)

    @overload
    def predict(self, inputs: Inputs, task: str) -> Tensor: ...
    @overload
    def predict(self, inputs: Inputs, task: RowNames) -> Tensor | list[Tensor]: ...
    def predict(self, inputs: Inputs, task: str | RowNames) -> Tensor | list[Tensor]:
        """The answer of a learned task: eval mode, no gradient, in the type of the weights.

        Several tasks in one batch: a list names the task of every row, and the rows of each task are answered together.
        """
        if isinstance(task, str) and task in self.learned:
            return self._ask(task, inputs)
        names = [task] if isinstance(task, str) else task
        self.refuse_unknown(names)
        admitted = self._place().admit(inputs)
        check_rows(admitted, names)
        self._refuse_mixing(names)
        return in_groups(admitted, names, self._ask)

    def guess(self, inputs: Inputs, task: Task, backbone: nn.Module | None = None) -> Tensor:
        """The answer for a task that is not learned: the last task's backbone (or this one), an untrained head."""
        if not isinstance(task, Task):
            raise InputError(f"a guess is about a Task that is not learned; got {task!r}.")
        if task.name in self.learned:
            raise TaskError(f"task {task.name!r} is learned: ask it with predict.")
        if not self.learned:
            raise TaskError("nothing is learned yet, so there is nothing to guess with.")
        last = list(self.learned)[-1]
        backbone = backbone or self._backbone(last)
        admitted = self._place().admit(inputs)
        args, kwargs = as_call(admitted)
        plain = torch.inference_mode(False), torch.no_grad(), torch.autocast(self._place().device.type, enabled=False)
        with plain[0], plain[1], plain[2], explained(admitted, self.learned[last].inputs, last):
            features = backbone(*args, **kwargs)
            return cast(Tensor, self.untrained_head(task, features, self.position)(features))

    def untrained_head(self, task: Task, features: Tensor, position: int, *words: int | str) -> nn.Module:
        """The head that `task` starts from if it is learned at this position; with other words, another one."""
        device = self._place().device
        with preserved_rng(device):
            seed_all(device, self.seed, position, "head", *words)
            return freeze(self.heads.new(task, features))

    def forget_answers(self) -> None:
        """Drop the cached modules: for methods whose old answers change when a new task is learned."""
        self._answers.clear()

    @contextmanager
    def moved(self, device: torch.device | str) -> Iterator[None]:
        """Move the heads; the method moves its weights inside."""
        with self._turn.taken_for("moving to another device"):
            yield
            self.heads.to(device)
            self._answers.clear()

    def _new_head(
        self,
        task: Task,
        parts: Mapping[str, Trainable],
        features: Callable[[Inputs], Any],
        sample: Inputs,
        factory: HeadFactory | None,
    ) -> tuple[nn.Module, int]:
        """A head for the features of a sample, and their width."""
        for part in parts.values():
            part.train(False)  # a look at the features leaves no trace in norms and counters
        plain = torch.autocast(self._place().device.type, enabled=False)  # the head is of the type of the weights
        with torch.no_grad(), plain, explained(sample, None, task.name):
            seen: list[Any] = []
            if draws(lambda: seen.append(features(sample))):
                raise ModuleError(
                    "the backbone draws random numbers in eval mode, so that it can never give the same answer twice. "
                    "Use nn.Dropout, or torch.nn.functional.dropout(x, training=self.training)."
                )
        for part in parts.values():
            part.train(True)
        seed_all(self._place().device, self.seed, self.position, "head")
        return self.heads.new(task, seen[-1], factory), int(seen[-1].shape[-1])

    def _ask(self, name: str, inputs: Inputs) -> Tensor:
        learned_on = self.learned[name].inputs
        if self._answers.takes(name, inputs, learned_on):
            return self._answers(name, inputs)
        admitted = self._place().admit(inputs)
        with explained(admitted, learned_on, name):
            return self._answers(name, admitted)

    def refuse_unknown(self, names: RowNames) -> None:
        """Raise a `TaskError` for names that no learned task has."""
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise TaskError(f"a task is asked by its name, several by a list with a name for every row; got {names!r}.")
        unknown = [name for name in dict.fromkeys(names) if name not in self.learned]
        if unknown:
            which = f"no task {unknown[0]!r} is" if len(unknown) == 1 else f"no tasks {str(unknown)[1:-1]} are"
            raise TaskError(f"{which} learned; learned tasks are {list(self.learned)}.")

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
        return self._ask(name, inputs)

    def _whole(self, name: str) -> nn.Module:
        return self._lighter(Whole(**self.parts(name)).eval())


def _as_task(learned: TaskRecord) -> Task:
    """The task again, without its data, for whoever makes its head."""
    nothing = torch.empty(0), torch.empty(0, dtype=torch.long)
    loss = None if learned.classes else cast(Loss, nn.functional.mse_loss)
    return Task(learned.name, learned.classes, nothing, loss=loss, outputs=learned.outputs)
