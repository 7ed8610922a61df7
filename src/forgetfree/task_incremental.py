"""TaskLearner: the host of all task-incremental methods. Tasks come one after another and are asked by name.

A method is a dataclass on top of this one. Its fields join those below and are at once its constructor, the keys of a
configuration, what an archive stores and what tells two learnings apart. It says what is learned in a few hooks:

    start()                 make what is kept from task to task (named in `state`)
    view(task, context)     what a task sees of the network while it learns: a TaskModel, inputs → features
    keep(session, context)  store what it has learned
    answer(task)            a plain module, inputs → features, that answers a learned task

and the host does the rest: heads, training, checkpoints, rollback, answers, certificates, storage, devices, removal.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, overload

import torch
from torch import Tensor, nn

from forgetfree import deprecation, settings, state
from forgetfree.certificate import Verified
from forgetfree.contracts import Inputs, LearnerState, Memory, Task, TaskRecord
from forgetfree.copies import copy_learner, copy_state, copy_tree, refuse_pickling, share_learner
from forgetfree.dense import MovingNetwork, SeparateNetworks
from forgetfree.engine import Context, Engine, ProgressCallback, RowNames
from forgetfree.errors import InputError
from forgetfree.heads import HeadFactory, linear_head
from forgetfree.modules import Placement
from forgetfree.network import Layout, Masked, SharedNetwork, used_words
from forgetfree.rng import check_seed, layer_init
from forgetfree.settings import FIXED, LOCAL, NEITHER, Whole
from forgetfree.sparse import compress
from forgetfree.tickets import CapacityReport
from forgetfree.training.phases import train
from forgetfree.training.recipe import Recipe, is_recipe
from forgetfree.training.session import Session, TaskModel

NAMED = 6
"""So many tasks a learner names when it is printed."""


def named(tasks: list[str]) -> str:
    """How many tasks there are, and the names of the last few."""
    count = f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"
    shown = ", ".join(["…"] * (len(tasks) > NAMED) + tasks[-NAMED:])
    return f"{count}: {shown or 'none yet'}"


@dataclass(eq=False, kw_only=True, repr=False)
class TaskLearner:
    """Learn tasks one after another; ask each by its name."""

    backbone: InitVar[nn.Module] = field(kw_only=False)
    recipe: Annotated[Recipe | None, is_recipe] = None
    """How a task is trained; may be changed between tasks, or given for one of them."""
    heads: Annotated[HeadFactory | None, FIXED] = None
    """(width of the features, task) → the task's head; a linear layer where nothing is said."""
    masked: Annotated[Masked, FIXED, LOCAL] = None
    """Which tensors tasks share through masks: name patterns or a predicate; once built, their names."""
    own_from: Annotated[Literal["wrapped", "previous"], FIXED] = "wrapped"
    """Where a task's own tensors start: as in the wrapped module, or as the previous task left its own."""
    seed: Annotated[int, lambda _, value: check_seed(value), FIXED] = 0
    device: Annotated[torch.device | str | None, NEITHER, LOCAL, FIXED] = None
    cache_bytes: Annotated[int, Whole("how many bytes of ready answers are kept"), NEITHER, LOCAL, FIXED] = 1 << 30
    sparse_answers: Annotated[bool, NEITHER, FIXED] = False
    """Whether large linear layers with few weights answer through compressed rows."""

    scenario: ClassVar[Literal["til"]] = "til"
    forget_free: ClassVar[bool] = False
    """Whether old answers stay bit-identical on the same batch, whatever is learned later."""
    state: ClassVar[tuple[str, ...]] = ()
    """What the method keeps from task to task beside the network."""
    resumable_state: ClassVar[tuple[str, ...]] = ()
    """What it keeps only to go on to the same bits: not in every archive."""
    keeps_free_weights: ClassVar[bool] = False
    """Whether the next task starts from weights that no task uses yet, so that an archive holds them too."""
    network_kind: ClassVar[Callable[..., Any]] = SharedNetwork
    """What keeps the weights: shared through masks, moved by all tasks, or one for each."""
    default_recipe: ClassVar[Recipe] = Recipe()
    default_heads: ClassVar[Any] = staticmethod(linear_head)
    renamed: ClassVar[Mapping[str, str]] = {}
    """Fields that had other names once: old name → new one."""

    def __post_init__(self, backbone: nn.Module) -> None:
        self.network: Any = self._wrapped(backbone)
        self.masked = self.network.layout().of("masked") or None
        engine = Engine(
            self.answer, self._placement, heads=self.heads, seed=self.seed, cache_bytes=self.cache_bytes,
            lighter=self._lighter,
        )  # fmt: skip
        self.start()
        self.check()
        self.engine = engine

    def __setattr__(self, name: str, value: Any) -> None:
        settings.assign(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return deprecation.by_old_name(self, name, {**deprecation.LEARNER, **type(self).renamed})

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in settings.own_fields(type(self), TaskLearner))
        return f"{type(self).__name__}({fields}) with {named(list(self.tasks))}{used_words(self.network)}"

    __copy__ = share_learner
    __deepcopy__ = copy_learner
    __reduce_ex__ = refuse_pickling

    # what a method says

    def start(self) -> None:
        """Make what is kept from task to task."""

    def check(self) -> None:
        """Refuse fields that do not go together; asked whenever one of them changes."""

    def view(self, task: Task, context: Context) -> TaskModel:
        """What a task sees of the network while it learns."""
        raise InputError(f"{type(self).__name__} does not say what a task sees of its network: give it view().")

    def keep(self, session: Session, context: Context) -> None:
        """Store what a task has learned."""

    def answer(self, task: str) -> nn.Module:
        """A plain module, inputs → features, that answers a learned task."""
        module: nn.Module = self.network.answer(task)
        return module

    def zero_shot_backbone(self, task: str, position: int) -> nn.Module:
        """What a task that is not learned is answered with, if this learned one was the last: what that one sees."""
        module: nn.Module = self.network.answer(task)
        return module

    def free(self, name: str, *words: int | str) -> Tensor:
        """What the weights of a shared tensor are where no task uses them; the words say on which occasion."""
        return layer_init(self.network.shapes[name], self.seed, *words, name)

    def forget(self, task: str) -> None:
        """Take what only this task used out of what is kept."""
        if isinstance(self.network, SharedNetwork):
            self.network.remove(task, lambda name: self.free(name, "removal"))
        else:
            self.network.remove(task)

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
        """Learn one more task. `checkpoint` is a file that lets a killed `learn` go on, to the same bits.

        `recipe` and `capacity` are for this task alone.
        """
        with self.learning(task, recipe=recipe, capacity=capacity) as session:
            train(session, self.recipe or Recipe(), self.engine, checkpoint, progress)

    @contextmanager
    def learning(self, task: Task, *, recipe: Recipe | None = None, capacity: float | None = None) -> Iterator[Session]:
        """Learn a task in your own loop: `session.parameters()`, `session(inputs)`, and at the end `session.keep()`."""
        with self.engine.exclusive(task), settings.given(self, {"recipe": recipe, "capacity": capacity}) as given:
            context = self._context()
            model = self.view(task, context)
            first = not self.engine.learned
            with self.engine.session(
                task,
                model,
                lambda session: self._kept(session, context),
                rollback=(self, self.network),
                loader=context.recipe.loader,
                carried=self._carried(model),
                settings=settings.identity(self, first=first),
                given={name: settings.described(value) for name, value in given.items()},
            ) as session:
                yield session

    @overload
    def predict(self, inputs: Inputs, task: str) -> Tensor: ...
    @overload
    def predict(self, inputs: Inputs, task: RowNames) -> Tensor | list[Tensor]: ...
    def predict(self, inputs: Inputs, task: str | RowNames | None = None) -> Tensor | list[Tensor]:
        """Scores per class of `task`, in eval mode, without gradient; of a forget-free learner always the same bits.

        A list names the task of every row: one tensor if all answers have one shape, else a list with one per row.
        """
        return self.engine.predict(inputs, self.engine.said(task))

    def zero_shot(self, inputs: Inputs, task: Task) -> Tensor:
        """Scores per class of a task that is not learned: what the last task sees, through an untrained head."""
        return self.engine.zero_shot(inputs, task, self._zero_shot_backbone)

    def zero_shot_modules(self, task: str) -> dict[str, nn.Module]:
        """Backbone and head of a task, the former as tasks that are not learned see it."""
        return self.engine.task_modules(task) | {"backbone": self._zero_shot_backbone(task)}

    def untrained_head(self, task: Task, features: Tensor, position: int, *words: int | str) -> nn.Module:
        """The head that `task` starts from if it is learned at this position; with other words, another one."""
        return self.engine.untrained_head(task, features, position, *words)

    @property
    def tasks(self) -> Mapping[str, TaskRecord]:
        """What is learned, by name, in order."""
        return self.engine.learned

    def task_modules(self, task: str) -> dict[str, nn.Module]:
        """Backbone and head of a task as plain modules; they are the caller's."""
        return self.engine.task_modules(task)

    def verify(self) -> list[Verified]:
        """Every task beside the certificate it got when it was learned; a task that was forgotten since fails."""
        return self.engine.verify()

    def remove(self, task: str) -> None:
        """Forget a task: nothing that only it used stays; all other tasks keep their bits."""
        with self.engine.removing(task, self, self.network):
            self.forget(task)

    def layout(self) -> Layout:
        """Every tensor of the backbone: shape, kind (masked, owned, fixed) and why. Print it."""
        layout: Layout = self.network.layout()
        return layout

    def remaining_capacity(self) -> CapacityReport:
        """How much of each layer is used, and how many more tasks fit that are as demanding as the most demanding."""
        if not isinstance(self.network, SharedNetwork):
            raise InputError(
                f"{type(self).__name__} shares no weights through masks, so that no capacity is used up by its tasks."
            )
        return self.network.remaining_capacity()

    def memory(self) -> Memory:
        """All that is kept to answer tomorrow, and to learn the next task."""
        training = state.counted(self, (*self.state, *self.resumable_state))
        if self.keeps_free_weights:
            training |= {f"unused.{name}": value for name, value in self.network.unused().items()}
        memory: Memory = self.network.memory(self.engine.heads.tensors(), training)
        return memory

    def to(self, device: torch.device | str) -> "TaskLearner":
        """Move all that is kept between tasks."""
        with self.engine.moved(device):
            self.network.to(device)
            state.move(self, (*self.state, *self.resumable_state), device)
            object.__setattr__(self, "device", device)
        return self

    def to_state(self, *, resumable: bool = False) -> LearnerState:
        """The learner as plain values and tensors: what an archive holds."""
        settings.check_all(self)
        with self.engine.consistent_read():
            memory, beside = self.network.to_state(self.memory())
            names = (*self.state, *(self.resumable_state if resumable else ()))
            training = {**beside, **self.engine.to_state(resumable), **state.stored(self, names, resumable=resumable)}
            if self.keeps_free_weights:  # a resumable archive has them among the free weights
                training["unused"] = {} if resumable else self.network.unused()
            arguments = settings.stored_fields(self) | {"heads": self.engine.kind_of_heads}
            learned, training = dict(self.tasks), copy_tree(training)
            return LearnerState(self.network.module, arguments, memory, learned, training, resumable)

    @classmethod
    def from_state(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "TaskLearner":
        """A learner made again from what was stored; without all of it, free weights are given anew."""
        stored = copy_state(stored)
        names = set(stored.memory.shared)
        masked = {"masked": lambda name, *_: name in names} if cls.network_kind is SharedNetwork else {}
        learner = cls(backbone, **{**settings.restored(cls, stored.arguments), **masked, **others})
        learner.network.from_state(stored)
        if not stored.resumable and cls.keeps_free_weights:
            learner.network.refill(stored.training["unused"])
        elif not stored.resumable and stored.memory.tickets and stored.memory.used:
            learner.network.renew(lambda name: learner.free(name, "free"))
        state.restore(learner, (*cls.state, *(cls.resumable_state if stored.resumable else ())), stored)
        learner.engine.from_state(stored)
        learner.check()
        return learner

    def _wrapped(self, backbone: nn.Module) -> Any:
        kind: Any = type(self).network_kind
        if kind is SharedNetwork:
            return kind(backbone, masked=self.masked, own_from=self.own_from, device=self.device)
        unused = {"masked": self.masked, "own_from": self.own_from, "sparse_answers": self.sparse_answers}
        usual = {name: settings.settings_of(type(self))[name].default for name in unused}
        for name, value in unused.items():
            if value != usual[name]:
                raise InputError(
                    f"{type(self).__name__} shares no weights through masks, so {name}={value!r} does nothing."
                )
        return kind(backbone, device=self.device)

    def _zero_shot_backbone(self, task: str) -> nn.Module:
        return self.zero_shot_backbone(task, self.engine.learned[task].position)

    def _context(self) -> Context:
        recipe = self.recipe or Recipe()
        return Context(self.seed, self.engine.position, self._placement(), recipe)

    def _kept(self, session: Session, context: Context) -> None:
        self.keep(session, context)
        if not self.forget_free:  # answers of earlier tasks may be others now
            self.engine.forget_answers()

    def _carried(self, model: TaskModel) -> frozenset[str]:
        """The parameters that outlive a task: those of the shared weights, and what the method keeps of them."""
        if isinstance(self.network, MovingNetwork):
            return frozenset(f"network.{name}" for name, _ in self.network.module.named_parameters())
        if isinstance(self.network, SeparateNetworks):
            return frozenset()
        parts = ["network", *(name for name in self.state if name in dict(model.named_children()))]
        return frozenset(f"{part}.{name}" for part in parts for name in self.network.weights)

    def _placement(self) -> Placement:
        placement: Placement = self.network.placement
        return placement

    def _lighter(self, module: nn.Module) -> nn.Module:
        if not self.sparse_answers or not isinstance(self.network, SharedNetwork):
            return module
        return compress(module, {f"backbone.{name}" for name in self.network.weights})
