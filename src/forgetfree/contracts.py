"""READ FIRST: the shapes every room speaks. A Task is learned by a Learner, and what it keeps is a Memory."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Generator, Tensor, nn
from torch.utils.data import Dataset

from forgetfree.errors import InputError
from forgetfree.tickets import PackedMask, Ticket

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""What a backbone takes, batch first: one tensor, several (positional), or several by name."""

Data = tuple[Inputs, Tensor] | Dataset[Any]
"""Inputs and labels as a pair of tensors (the fast path), or any Dataset or IterableDataset of such pairs."""

Augment = Callable[[Inputs, Generator], Inputs]
"""Training inputs, a batch at once, become others by chance; nothing but the generator decides."""

Loss = Callable[[Tensor, Tensor], Tensor]
LossName = Literal["cross_entropy", "mse", "bce_with_logits"]
LOSSES: dict[str, Loss] = {
    "cross_entropy": nn.functional.cross_entropy,
    "mse": nn.functional.mse_loss,
    "bce_with_logits": nn.functional.binary_cross_entropy_with_logits,
}


@dataclass(frozen=True)
class Task:
    """All a learner may see of one task; the test set is not here and never will be.

    `classes` are global names; labels are positions in it, 0 .. len(classes)-1. A task without classes says its
    `outputs` (a size) and its `loss`; with classes, `outputs` may ask for a wider head, and `loss` may be one's own:
    weights of classes, smoothed labels. `augment` changes the inputs it is trained on; validation, class means and
    answers never see it.

        Task("cats and dogs", ("cat", "dog"), (images, labels))
        Task("rare dogs", ("cat", "dog"), (images, labels), loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0])))
        Task("depth", (), (images, depths), loss="mse", outputs=1)
    """

    name: str
    classes: tuple[int | str, ...]
    train: Data
    valid: Data | None = None
    loss: Loss | LossName | None = None
    outputs: int | None = None
    augment: Augment | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"a task's name is a non-empty text; got {self.name!r}.")
        if isinstance(self.classes, str | set | frozenset) or not isinstance(self.classes, Iterable):
            raise InputError(
                f"task {self.name!r}: classes are several names in their order, as in ('cat', 'dog') or range(2); got "
                f"{self.classes!r}."
            )
        object.__setattr__(self, "classes", tuple(_plain_class(name) for name in self.classes))
        if len(set(self.classes)) != len(self.classes):
            raise InputError(f"task {self.name!r} names a class twice: {self.classes}.")
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise InputError(f"task {self.name!r}: no loss is called {self.loss!r}; there are {sorted(LOSSES)}.")
        if not self.classes and (self.outputs is None or self.loss in (None, "cross_entropy")):
            raise InputError(
                f"task {self.name!r} has no classes: say how many outputs it has and which loss, as in "
                "Task(name, (), train, outputs=1, loss='mse')."
            )
        if self.outputs is not None and self.outputs < max(1, len(self.classes)):
            raise InputError(
                f"task {self.name!r} asks for {self.outputs} outputs; its {len(self.classes)} classes need at least "
                f"{max(1, len(self.classes))}."
            )

    @property
    def classifies(self) -> bool:
        """Whether labels are positions in `classes`; a loss of one's own may also have others, which tensors show."""
        if not self.classes or not callable(self.loss):
            return bool(self.classes) and self.loss in (None, "cross_entropy")
        labels = self.train[1] if isinstance(self.train, tuple | list) and len(self.train) == 2 else None
        return not isinstance(labels, Tensor) or (labels.dim() == 1 and not labels.is_floating_point())

    @property
    def width(self) -> int:
        """How many outputs its head has."""
        return self.outputs if self.outputs is not None else len(self.classes)

    @property
    def criterion(self) -> Loss:
        """The loss as a function of (outputs, labels)."""
        if callable(self.loss):
            return self.loss
        return LOSSES[self.loss or "cross_entropy"]


@dataclass(frozen=True)
class Certificate:
    """What a task was when it was learned, so that anybody can see later that it still is."""

    digest: str
    """Of its effective tensors: names, types, shapes and bits of backbone and head."""
    probe: int
    """The seed its probe inputs are drawn from; no sample of anybody's data is in an archive."""
    ranges: Any
    """Smallest and largest whole number in the training inputs, in the form of the inputs; None for other types."""
    answers: Tensor | None
    """To the probe; None if the module could not take it."""
    fingerprint: Mapping[str, Any]
    """Under which circumstances the answers were given: under the same ones they must be equal bit for bit."""


@dataclass(frozen=True)
class TaskRecord:
    """What is known of a task once it is learned."""

    name: str
    classes: tuple[int | str, ...]
    outputs: int
    position: int
    """Its place in the order of learning: part of the seed of all its random streams."""
    inputs: Any
    """Shape (without the batch) and dtype of its inputs."""
    threads: int
    """Threads torch used; with another number the same call may give other bits."""
    selection: str
    """Which state was kept, in words: the best epoch by validation loss, the last epoch, or the user's own choice."""
    curves: tuple[Mapping[str, float], ...] = ()
    """One entry per epoch: loss and lr, and where there is a validation set valid_loss and valid_accuracy."""
    seconds: float = field(default=0.0, compare=False, repr=False)
    """How long training took, over all lives of a resumed one."""
    features: int | None = None
    """How wide the features are that its head takes."""
    certificate: Certificate | None = field(default=None, compare=False, repr=False)
    given: Mapping[str, Any] = field(default_factory=dict)
    """Settings that were given for this task alone, as plain values."""


@dataclass(frozen=True)
class Memory:
    """All that is kept to answer tomorrow: saved by archives, counted by capacity, opened by reports."""

    shared: Mapping[str, Tensor]
    """The weights all tasks draw on."""
    used: Mapping[str, PackedMask]
    """Which entries of `shared` some task uses; the others are free and need not be kept to answer."""
    common: Mapping[str, Tensor]
    """Stored once for all tasks: fixed tensors, and the start of own tensors that some task left unchanged."""
    tickets: Mapping[str, Ticket]
    heads: Mapping[str, Mapping[str, Tensor]]
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    """Whatever else a method needs to answer, by name."""
    training: Mapping[str, Tensor] = field(default_factory=dict)
    """What is kept between tasks only to learn the next one: scores, a Fisher matrix, bases of a subspace."""


@dataclass(frozen=True)
class LearnerState:
    """A learner as plain values and tensors: what an archive holds, and what a learner is made from again."""

    module: nn.Module
    """The backbone, for its structure; its values mean nothing."""
    arguments: Mapping[str, Any]
    """Of its constructor, as plain values."""
    memory: Memory
    learned: Mapping[str, TaskRecord]
    training: Mapping[str, Any]
    """What learning goes on from, as a tree of tensors."""
    resumable: bool = False
    """Whether free weights and all of `training` are there, so that learning goes on to the same bits."""


@runtime_checkable
class Learner(Protocol):
    """A method of continual learning. `forget_free` promises bit-identical answers on the same batch for ever."""

    scenario: Literal["til", "fscil"]
    forget_free: bool

    @property
    def tasks(self) -> Mapping[str, TaskRecord]: ...
    def learn(
        self,
        task: Task,
        checkpoint: Path | str | None = None,
        progress: Callable[[Any], None] | None = None,
    ) -> None: ...
    @property
    def predict(self) -> Callable[..., Tensor]:
        """(inputs, task) → scores of that task's classes; in few-shot sessions (inputs) → of all classes met."""
        ...

    def memory(self) -> Memory: ...


def _plain_class(name: Any) -> int | str:
    """A class as a plain number or text: numpy's and torch's numbers become Python's."""
    plain = name.item() if hasattr(name, "item") else name
    if isinstance(plain, bool) or not isinstance(plain, int | str):
        raise InputError(f"a class is named by a whole number or a text; got {name!r}.")
    return plain
