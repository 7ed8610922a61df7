"""FewShotLearner: the host of all few-shot class-incremental methods.

The first session is large and teaches the network; each later one brings a few classes with a few images. All learn in
one ticket, that of the first session, and one head answers for all classes seen: `predict` takes no task name.

A method is a dataclass on top of this one, whose fields join those below, and says what is learned in a few hooks:

    start()                   make what is kept from session to session (named in `state`)
    first(task, context)      what the first session sees of the network while it learns; a dense network if not said
    later(task, context)      what a later session sees, by which loss it learns
    answers(session, context) the head that answers from now on, when the network of the session is kept
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from forgetfree import deprecation, settings, state
from forgetfree.base_heads import CosineBase
from forgetfree.certificate import Verified
from forgetfree.class_heads import ClassHead
from forgetfree.contracts import Inputs, LearnerState, Memory, Task, TaskRecord
from forgetfree.copies import copy_learner, copy_state, copy_tree, refuse_pickling, share_learner
from forgetfree.engine import Context, Engine, ProgressCallback
from forgetfree.errors import InputError, TaskError
from forgetfree.few_shot.exemplars import check_classes, check_keepable, check_kept, rehearsing
from forgetfree.heads import (
    HeadFactory,
    Prototypes,
    check_heads,
    example_head,
    head_by_name,
    head_name,
    linear_head,
    nearest_mean,
)
from forgetfree.modules import Placement
from forgetfree.network import Layout, Masked, SharedNetwork, used_words
from forgetfree.replay import ReplayStore
from forgetfree.rng import check_seed
from forgetfree.settings import FIRST, FIXED, LATER, LOCAL, NAMES_BASE, NEITHER, QUIET, Whole
from forgetfree.tickets import PackedMask
from forgetfree.training.likeness import identified
from forgetfree.training.phases import train
from forgetfree.training.recipe import Recipe, is_recipe
from forgetfree.training.session import Session, TaskModel
from forgetfree.views import SeenThrough


def is_classifier(field: str, value: Any) -> str:
    """The name of a head that a first session can learn with."""
    made = head_by_name(value) if isinstance(value, str) else None
    if made is not linear_head and not isinstance(made, CosineBase):
        raise InputError(
            f"{field} is linear or cosine_base, with settings as in cosine_base(rotations=4); got {value!r}."
        )
    return str(value)


BaseClassifier = Annotated[str, is_classifier, FIRST, FIXED, NAMES_BASE, QUIET]
"""What the first session learns with, by name: `linear`, or `cosine_base` with its settings."""


@dataclass(eq=False, kw_only=True, repr=False)
class FewShotLearner:
    """Learn one large session, then classes from a few images each; one answer for all classes seen."""

    backbone: InitVar[nn.Module] = field(kw_only=False)
    recipe: Annotated[Recipe | None, is_recipe] = None
    """How the first session is trained."""
    session: Annotated[Recipe | None, is_recipe, LATER] = None
    """How later sessions are trained; may be changed between them, or given for one of them."""
    heads: Annotated[HeadFactory | None, FIXED, LATER] = None
    """What answers: mostly the nearest class mean, by one metric or another."""
    masked: Annotated[Masked, FIXED, LOCAL] = None
    """Which tensors are shared through masks: name patterns or a predicate; once built, their names."""
    seed: Annotated[int, lambda _, value: check_seed(value), FIXED] = 0
    device: Annotated[torch.device | str | None, NEITHER, LOCAL, FIXED] = None
    cache_bytes: Annotated[int, Whole("how many bytes of ready answers are kept"), NEITHER, LOCAL, FIXED] = 1 << 30

    scenario: ClassVar[Literal["fscil"]] = "fscil"
    forget_free: ClassVar[bool] = False
    state: ClassVar[tuple[str, ...]] = ()
    """What the method keeps from session to session beside the network and its exemplars."""
    resumable_state: ClassVar[tuple[str, ...]] = ()
    """What it keeps only to go on to the same bits: not in every archive."""
    side: ClassVar[tuple[str, ...]] = ()
    """Modules that answers need beside the network, made in `start`: attention, gates, a generator."""
    base: ClassVar[str] = "dense"
    """What kind of network the first session teaches: methods with the same kind, and the same fields, share one."""
    default_recipe: ClassVar[Recipe] = Recipe()
    default_session: ClassVar[Recipe] = Recipe()
    default_heads: ClassVar[Any] = staticmethod(nearest_mean)
    head_kind: ClassVar[type[nn.Module] | tuple[type[nn.Module], ...]] = (Prototypes, ClassHead)
    head_words: ClassVar[str] = (
        "this method answers by class means: heads are euclidean, cosine, means, normalised, rooted, centred, "
        "teen, lda, ridge or bayes"
    )
    renamed: ClassVar[Mapping[str, str]] = {}
    """Fields that had other names once: old name → new one."""

    def __post_init__(self, backbone: nn.Module) -> None:
        assert self.heads is not None
        check_heads(self.heads, self.head_kind, self.head_words)
        if self.forget_free:
            check_keeping(self.heads, type(self).__name__)
        self.network = SharedNetwork(backbone, masked=self.masked, device=self.device)
        self.masked = self.network.layout().of("masked")
        self.replay = ReplayStore(per_class=self._exemplars())
        """Images of earlier classes, where the method keeps some."""
        engine = Engine(
            self.answer, self._placement, heads=self.heads, seed=self.seed, cache_bytes=self.cache_bytes,
            single_head=True, by_session=self.forget_free,
        )  # fmt: skip
        self.start()
        self.check()
        self.engine = engine

    def __setattr__(self, name: str, value: Any) -> None:
        settings.assign(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return deprecation.by_old_name(self, name, {**deprecation.LEARNER, **type(self).renamed})

    def __repr__(self) -> str:
        fields = settings.own_fields(type(self), FewShotLearner)
        said = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields)
        sessions = f"{len(self.tasks)} session{'' if len(self.tasks) == 1 else 's'}"
        met = f"{sessions} and {len(self.classes)} classes"
        return f"{type(self).__name__}({said}) with {met}{used_words(self.network)}"

    __copy__ = share_learner
    __deepcopy__ = copy_learner
    __reduce_ex__ = refuse_pickling

    # what a method says

    def start(self) -> None:
        """Make what is kept from session to session."""

    def check(self) -> None:
        """Refuse fields that do not go together; asked whenever one of them changes."""

    def base_kind(self) -> str:
        """What kind of network the first session teaches, where a field decides."""
        return self.base

    def base_fields(self) -> dict[str, Any]:
        """The settings that the network of the first session depends on: those that reach it, if not said."""
        own, known = settings.own_fields(type(self), FewShotLearner), settings.settings_of(type(self))
        reached = settings.identity(self, first=True)
        told = {name for name in own if settings.NAMES_BASE in known[name].markers}  # by the kind of base itself
        return {name: reached[name] for name in own if name in reached and name not in told}

    def first_head(self) -> HeadFactory:
        """What makes the head that the first session learns with."""
        return classifier_of(getattr(self, "base_classifier", "linear"))

    def first(self, task: Task, context: Context) -> TaskModel:
        """What the first session sees of the network while it learns."""
        return SeenThrough(self.network.trainable_view(), self.network.everything)

    def later(self, task: Task, context: Context) -> TaskModel:
        """What a later session sees of the network while it learns; its `head` is the one to learn with."""
        raise InputError(f"{type(self).__name__} does not say what a later session sees: give it later().")

    def answers(self, session: Session, context: Context) -> nn.Module:
        """The head that answers from now on."""
        raise InputError(f"{type(self).__name__} does not say what answers: give it answers().")

    def uses_all_weights(self) -> bool:
        """Whether answers need every weight, those outside of the ticket too."""
        return False

    def accept(self, task: Task) -> None:
        """Refuse a session that this method could not learn."""

    def session_task(self, joined: Task, task: Task) -> Task:
        """What a session trains on: `task` with its classes after all others, and exemplars of earlier ones."""
        return rehearsing(joined, self.replay)

    def check_storable(self, *, resumable: bool) -> None:
        """Refuse to be stored in this way."""

    def answer(self, task: str) -> nn.Module:
        """A plain module, inputs → features: what the head sees."""
        return self.network.answer(next(iter(self.network.tickets)))

    # what the host does

    def learn(
        self,
        task: Task,
        checkpoint: Path | str | None = None,
        progress: ProgressCallback | None = None,
        *,
        recipe: Recipe | None = None,
        capacity: float | None = None,
    ) -> None:
        """Learn one more session. `checkpoint` is a file that lets a killed `learn` go on, to the same bits.

        `recipe` is for this session alone, whether it is the first or a later one; so is `capacity`, for the first.
        """
        with self.learning(task, recipe=recipe, capacity=capacity) as session:
            train(session, self._recipe(), self.engine, checkpoint, progress, mark=self._mark())

    @contextmanager
    def learning(self, task: Task, *, recipe: Recipe | None = None, capacity: float | None = None) -> Iterator[Session]:
        """Learn a session in your own loop: `session.parameters()`, `session.loss(batch)`, then `session.keep()`."""
        with self.engine.exclusive(task):
            self.accept(task)
            joined = self.engine.with_global_labels(task)
            check_classes(task)
            self.replay = replace(self.replay, per_class=self._exemplars())
            if self.replay.per_class:
                check_keepable(task)
            first = not self.engine.learned
            values = {"recipe" if first else "session": recipe, "capacity": capacity}
            if capacity is not None and not first:
                raise InputError("capacity is that of the first session: later ones learn in its ticket.")
            try:
                self.coming: Task | None = task
                with settings.given(self, values) as given:
                    context = self._context(task.name)
                    model = (self.first if first else self.later)(joined, context)
                    with self._session(self.session_task(joined, task), model, context, given) as made:
                        yield made
            finally:
                self.coming = None  # its images are the caller's: nothing holds them between sessions

    @contextmanager
    def _session(
        self, task: Task, model: TaskModel, context: Context, given: Mapping[str, Any] | None = None
    ) -> Iterator[Session]:
        first = not self.engine.learned

        def keep(session: Session) -> nn.Module:
            network = session.model.settled()
            if first:
                self.network.keep(task.name, network, session.model.ticket())
            else:
                self.network.commit(context.first, network)
            return self.answers(session, context)

        with self.engine.session(
            task,
            model,
            keep,
            rollback=(self, self.network),
            loader=context.recipe.loader,
            head=self.first_head() if first else model.head,
            settings=self._first_identity() if first else settings.identity(self, first=False),
            given={name: settings.described(value) for name, value in (given or {}).items()},
        ) as session:
            yield session

    def predict(self, inputs: Inputs, task: None = None) -> Tensor:
        """A score for every class seen, in the order of `classes`; in eval mode, without gradient."""
        if task is not None:
            raise TaskError(
                f"few-shot sessions are not asked by name: one answer has a score for each of the "
                f"{len(self.classes)} classes met. Leave task={task!r} out."
            )
        return self.engine.answer_all(inputs)

    @property
    def classes(self) -> tuple[int | str, ...]:
        """All classes seen, in the order of the scores that `predict` gives."""
        return self.engine.seen_classes

    @property
    def tasks(self) -> Mapping[str, TaskRecord]:
        """What is learned, by name, in order."""
        return self.engine.learned

    @property
    def base_name(self) -> str:
        """What the network of the first session depends on, data and recipe apart: equal for those that share it."""
        known = settings.settings_of(type(self))
        words = [self.base_kind()]
        head, usual = head_name(self.first_head()), head_name(type(self).default_heads)
        told = head == "linear" or (head == usual and self.base_kind() != FewShotLearner.base)  # by the kind itself
        words += [] if told else [head]
        for name, value in self.base_fields().items():
            default = known[name].default if name in known else value
            if value != default:
                plain = default is settings.MISSING or name == "capacity"
                words.append(_written(value) if plain else f"{name}={_written(value)}")
        return "-".join(words)

    def task_modules(self, task: str) -> dict[str, nn.Module]:
        """Backbone and head of the last session as plain modules; they are the caller's."""
        return self.engine.task_modules(task)

    def verify(self) -> list[Verified]:
        """The last session, which answers for all, beside the certificate it got when it was learned.

        Where old scores never change, every session: the scores of its own classes.
        """
        return self.engine.verify()

    def remove(self, task: str) -> None:
        """Forget a session, where scores of other classes do not depend on it: these keep their bits."""
        self.engine.refuse_unknown([task])
        if not self.forget_free:
            raise TaskError(f"session {task!r} cannot be removed: one head tells its classes from all others met.")
        self.engine.remove_session(task)

    def layout(self) -> Layout:
        """Every tensor of the backbone: shape, kind (masked, owned, fixed) and why. Print it."""
        return self.network.layout()

    def memory(self) -> Memory:
        """The network in its one ticket, the head that answers, and what is kept for training only, exemplars too."""
        training = state.counted(self, (*self.state, *self.resumable_state))
        extras = state.counted(self, self.side)
        memory = self.network.memory(self.engine.heads.tensors(), {**training, **self.replay.tensors()}, extras)
        if not self.uses_all_weights():
            return memory
        return replace(memory, used={name: PackedMask.full(mask.shape) for name, mask in memory.used.items()})

    def to(self, device: torch.device | str) -> "FewShotLearner":
        """Move all that is kept between sessions."""
        with self.engine.moved(device):
            self.network.to(device)
            state.move(self, (*self.state, *self.resumable_state, *self.side), device)
            object.__setattr__(self, "device", device)
        return self

    def to_state(self, *, resumable: bool = False) -> LearnerState:
        """The learner as plain values and tensors: what an archive holds."""
        settings.check_all(self)
        self.check_storable(resumable=resumable)
        with self.engine.consistent_read():
            memory, beside = self.network.to_state(self.memory())
            names = (*self.state, *self.side, *(self.resumable_state if resumable else ()))
            exemplars = state.to_state("exemplars", self.replay, resumable=resumable)
            training = {**beside, **exemplars, **self.engine.to_state(resumable)}
            training |= state.stored(self, names, resumable=resumable)
            arguments = settings.stored_fields(self) | {"heads": self.engine.kind_of_heads}
            learned, training = dict(self.tasks), copy_tree(training)
            return LearnerState(self.network.module, arguments, memory, learned, training, resumable)

    @classmethod
    def from_state(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "FewShotLearner":
        """A learner made again from what was stored."""
        stored = copy_state(stored)
        shared = set(stored.memory.shared)
        arguments = settings.restored(cls, stored.arguments)
        learner = cls(backbone, **{**arguments, "masked": lambda name, *_: name in shared, **others})
        learner.network.from_state(stored)
        learner.replay = state.from_state(
            "exemplars", learner.replay, stored.training, stored.memory.tickets, learner.seed
        )
        check_kept(learner.replay, stored.learned)
        names = (*cls.state, *cls.side, *(cls.resumable_state if stored.resumable else ()))
        state.restore(learner, names, stored)
        learner.engine.from_state(stored)
        learner.check()
        return learner

    def _exemplars(self) -> int:
        """How many images of a class are kept, from now on: a field of the methods that keep some."""
        count: int = getattr(self, "exemplars", 0)
        return count

    def _recipe(self) -> Recipe:
        recipe = self.session if self.engine.learned else self.recipe
        return recipe or Recipe()

    def _mark(self) -> str:
        """What tells the later phases of a first session apart, whose first phase may be shared with other methods."""
        if self.engine.learned:
            return ""
        return settings.digest(settings.identity(self, first=True) | settings.identity(self, first=False))

    def _first_identity(self) -> dict[str, Any]:
        """All that the network of the first session depends on, what every checkpoint says of itself apart."""
        said = {
            "base": self.base_kind(),
            "head": name if head_by_name(name := head_name(head := self.first_head())) else identified(head),
            "masked": settings.described(self.masked),
        }
        return {**said, **self.base_fields()}

    def _context(self, task: str) -> Context:
        records = list(self.engine.learned.values())
        first = records[0] if records else None
        return Context(
            self.seed,
            self.engine.position,
            self._placement(),
            self.recipe or Recipe(),
            known=len(self.classes),
            base=len(first.classes) if first else 0,
            first=first.name if first else task,
            first_inputs=first.inputs if first else None,
            head=next(iter(self.engine.heads.kept.values()), None),
        )

    def _placement(self) -> Placement:
        return self.network.placement


def check_keeping(heads: HeadFactory, method: str) -> None:
    """Refuse heads by which scores of known classes change when others are added."""
    head = example_head(heads)
    if not isinstance(head, ClassHead) or not head.keeps_bits:
        raise InputError(
            f"{method} promises that scores of old classes never change, and with a {type(head).__name__} they do: "
            "heads are bayes, lda, teen, centred, rooted, normalised or means."
        )


def classifier_of(name: str) -> HeadFactory:
    """What makes a head of this name to learn with."""
    made = head_by_name(name)
    assert made is not None
    return made


def _written(value: Any) -> str:
    """A value in the name of a file: short, but never the same for two."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value).replace("/", "_").replace(" ", "")
