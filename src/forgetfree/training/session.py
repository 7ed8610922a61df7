"""A session is one task being learned, as an nn.Module: its parameters are exactly what may move.

    with learner.learning(task) as session:
        optimizer = torch.optim.SGD(session.parameters(), lr=0.1)
        ...
        session.keep()

What the method trains is `session.model`, inputs → features; `session.head` makes scores of them. Values that learned
tasks use are in neither: they are no parameters and no buffers, so no optimizer, no `load_state_dict`, no broadcast and
no cast can reach them. Whatever trains an nn.Module can train a session; `keep` looks at what came of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from forgetfree.batches import Batch, explained, plainly_like
from forgetfree.contracts import Inputs, Task
from forgetfree.errors import InputError, LearningError
from forgetfree.heads import HeadFactory
from forgetfree.modules import Placement, load_tensors, named_tensors
from forgetfree.python_state import untouched
from forgetfree.training.recipe import Recipe


@dataclass(frozen=True)
class Fitted:
    """What `fit` did."""

    selection: str
    curves: tuple[dict[str, float], ...]
    optimizer: Mapping[str, dict[str, Any]]
    """Optimizer state by parameter name, for the next task to start from."""
    seconds: float
    """How long training took, over all lives of a resumed one."""

    def after(self, earlier: "Fitted") -> "Fitted":
        """Both phases of a task that is trained twice, as one."""
        return replace(self, curves=earlier.curves + self.curves, seconds=earlier.seconds + self.seconds)


@dataclass(frozen=True)
class Phase:
    """One of several trainings of a session, each with its recipe, its random streams and its checkpoint."""

    recipe: Recipe
    name: str = ""
    """Of every phase but the first."""
    begin: Callable[["Session"], None] | None = None
    """What is done to the session before it."""


class TaskModel(nn.Module):
    """What a task sees of the network while it learns: inputs → features. What a method does not say is as usual."""

    epoch: int = 0
    """Which pass over the data this is, from 0."""
    through: float = 1.0
    """How far the epoch has come, 0 at its first batch and 1 at its last."""

    network: Any
    """What it sees of the learner's network."""
    head: HeadFactory | None = None
    """What makes the head to learn with, where that is not the one to answer with."""
    validates_penalty: bool = False
    """Whether an epoch is chosen by the loss with the penalty in it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """In eval mode nothing is written down, neither in tensors nor in plain attributes."""
        runs = self.runs()
        if runs is None or runs.training:
            return super().__call__(*args, **kwargs)
        with untouched(runs):
            return super().__call__(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TaskModel":
        """Constants of the method (class means, the network before, bases) follow to a device, never to a type."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        registries = ("_parameters", "_buffers", "_modules")
        for name, value in [*vars(self).items()]:
            if name not in registries:
                vars(self)[name] = _following(value, fn)
        return self

    def loss(self, batch: Batch, head: nn.Module) -> Tensor | None:
        """The method's own loss on a batch that is in place; None: the task's own, of `head(self(inputs))`."""
        return None

    def penalty(self) -> Tensor | None:
        """What is added to the loss while learning."""
        return None

    def criterion(self, batch: Batch, head: nn.Module) -> Tensor | None:
        """The loss by which an epoch is chosen, on a batch of validation data; None: the task's own."""
        return None

    def phases(self, recipe: Recipe) -> tuple[Phase, ...]:
        """How often the session is trained, and how."""
        return (Phase(recipe),)

    def ticket(self) -> Any:
        """The masks by which the shared network keeps what a first few-shot session has learned."""
        return getattr(self, "masks", None)

    def runs(self) -> nn.Module | None:
        """The module that is called while the session learns: the network itself, or the copy inside of a view."""
        network = getattr(self, "network", None)
        inside = getattr(network, "private_copy", network)
        return inside if isinstance(inside, nn.Module) else None

    def settled(self) -> Any:
        """The part that the shared network takes back, as it is to be stored."""
        return getattr(self, "network", None)


class Door:
    """Whether a session may still be used, and the way back to the learner; one for a session and all its copies."""

    def __init__(self, keep: Callable[["Session", str, Fitted | None], None]):
        self.open, self.kept, self.keep = True, False, keep

    def __deepcopy__(self, memo: dict[int, Any]) -> "Door":
        return self


@runtime_checkable
class LearnsItself(Protocol):
    """A head with a loss of its own, for methods that have none."""

    def session_loss(self, model: Callable[[Inputs], Any], batch: Batch) -> Tensor: ...


class Session(nn.Module):
    """One task being learned. Calling it gives the scores of the task as learned so far, with gradients."""

    def __init__(
        self,
        task: Task,
        model: TaskModel,
        head: nn.Module,
        door: Door,
        *,
        placement: Placement,
        inputs: Any = None,
        carried: frozenset[str] = frozenset(),
        settings: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.task = task
        self.model = model
        self.head = head
        """What makes scores of the features; the one that answers later may be another."""
        self.settings = dict(settings or {})
        """The learner's fields that reach this session, as plain values: a checkpoint goes on only where it began."""
        self.carried = carried
        """Names of the parameters that outlive the task, as `state` has them."""
        self.inputs = inputs
        """The signature of what the task is learned on."""
        self._door = door
        self._placement = placement
        self._form = self._forms()
        self._infinite = infinite_buffers(self)

    def forward(self, inputs: Inputs) -> Tensor:
        self._check_open()
        if plainly_like(inputs, self.inputs, self._placement.device):
            return self._scores(inputs)
        cast = self._placement.cast(inputs)
        with explained(cast, self.inputs, self.task.name):
            return self._scores(cast)

    def _scores(self, inputs: Inputs) -> Tensor:
        if self.training:
            scores: Tensor = self.head(self.model(inputs))
            return scores
        with untouched(self.head):
            scores = self.head(self.model(inputs))
            return scores

    @property
    def epoch(self) -> int:
        """Which pass over the data this is, from 0; a loop of one's own may say it too."""
        return self.model.epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        self.model.epoch = value

    @property
    def through(self) -> float:
        """How far the epoch has come, 0 at its first batch and 1 at its last; a loop of one's own may say it too."""
        return self.model.through

    @through.setter
    def through(self, value: float) -> None:
        self.model.through = value

    @property
    def kept(self) -> bool:
        return self._door.kept

    @property
    def open(self) -> bool:
        return self._door.open

    def moving(self) -> dict[str, nn.Parameter]:
        """All that may move, by the names of `state`, in the order of `parameters()`."""
        return {_short(name): parameter for name, parameter in self.named_parameters()}

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that moves: weights, scores, own tensors and head of one moment."""
        self.model.settled()
        return {_short(name): tensor.detach().clone() for name, tensor in named_tensors(self)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a `state()`."""
        load_tensors(self, {name: state[_short(name)] for name, _ in named_tensors(self)})

    def loss(self, batch: Batch) -> Tensor:
        """The task's loss on a batch, or the method's own, and what the method adds to it."""
        own = type(self.model).loss is not TaskModel.loss
        loss = self.model.loss(self._placed(batch), self.head) if own else None
        if loss is None and isinstance(self.head, LearnsItself):
            loss = self.head.session_loss(self.model, self._placed(batch))
        if loss is None:
            loss = task_loss(self.task, self(batch.inputs), batch.labels)
        penalty = self.model.penalty()
        return loss if penalty is None else loss + penalty

    def criterion(self, batch: Batch, scores: Tensor) -> Tensor:
        """By what an epoch is chosen: the method's own, or the task's loss of these scores; some add their penalty."""
        own = type(self.model).criterion is not TaskModel.criterion
        value = self.model.criterion(self._placed(batch), self.head) if own else None
        loss = task_loss(self.task, scores, batch.labels) if value is None else value
        penalty = self.model.penalty() if self.model.validates_penalty else None
        return loss if penalty is None else loss + penalty

    def keep(self, selection: str = "as kept by the caller's own loop", fitted: Fitted | None = None) -> None:
        """Make the task the learner's, as it stands now; all of it or, on an error, nothing."""
        self._check_open()
        self._check_form()
        self._check_finite()
        self._door.keep(self, selection, fitted)
        self._door.kept, self._door.open = True, False

    def _placed(self, batch: Batch) -> Batch:
        return Batch(self._placement.cast(batch.inputs), batch.labels.to(self._placement.device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Session":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved = next((tensor for _, tensor in named_tensors(self)), None)
        if moved is not None:
            self._placement = replace(self._placement, device=moved.device)
        return self

    def _forms(self) -> dict[str, str]:
        """What the session is made of, in words, by name: parameters, and the buffers and parts of model and head."""
        parameters = {name: _words(value, value.shape) for name, value in self.moving().items()}
        buffers = {_short(name): _words(value) for name, value in self.named_buffers() if _is_ours(name)}  # may grow
        # of a network that is a plain module only the tensors are taken, so that its layers may be of any class
        kinds = {name: type(part) for name, part in self.named_modules() if not name.startswith("model.network.")}
        parts = {name: f"a {kind.__name__}" for name, kind in kinds.items() if _is_ours(name)}
        return parts | buffers | parameters

    def _check_form(self) -> None:
        """Refuse what a cast, a parametrisation or a replaced layer has made of the session."""
        now = self._forms()
        differing = [name for name in {**self._form, **now} if self._form.get(name) != now.get(name)]
        changed = [name for name in differing if not _counted_on(self._form.get(name, ""), now.get(name, ""))]
        if changed:
            was, has = (forms.get(changed[0], "not there") for forms in (self._form, now))
            raise LearningError(
                f"task {self.task.name!r}: {changed[0]} was {was} when the session began and is {has} now, so it is "
                "not kept. Train what the session came with, in the types it came in (autocast is fine), and remove "
                "parametrisations first."
            )

    def settle(self) -> None:
        """Take the parameters that there are now for those that belong here: a phase has begun."""
        self._form = self._forms()

    def _check_finite(self) -> None:
        """Refuse what is no number any more; a buffer that never was one, as a mask of infinities, is left alone."""
        for name, parameter in self.moving().items():
            if not bool(parameter.isfinite().all()):
                raise LearningError(
                    f"task {self.task.name!r}: {name} holds values that are not finite, so it is not kept. Lower the "
                    "learning rate, or clip gradients."
                )
        for name in sorted(infinite_buffers(self) - self._infinite):
            raise LearningError(
                f"task {self.task.name!r}: {name}, which the module wrote while it learned, holds values that are not "
                "finite, so it is not kept. Check the inputs for NaN and infinity, or lower the learning rate."
            )

    def _check_open(self) -> None:
        if not self._door.open:
            raise LearningError(
                f"the session of task {self.task.name!r} is over; start another with learner.learning(task)."
            )


def infinite_buffers(session: Session) -> set[str]:
    """The buffers of model and head in which some value is not finite."""
    ours = {_short(name): value for name, value in session.named_buffers() if _is_ours(name)}
    return {name for name, value in ours.items() if not value.is_meta and not bool(value.isfinite().all())}


def task_loss(task: Task, outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of `task`, with labels in the type and on the device that it needs."""
    labels = labels.to(outputs.device)
    if task.classifies:
        labels = labels.long()
        return _own_loss(task, outputs, labels) if callable(task.loss) else task.criterion(outputs, labels)
    if isinstance(task.loss, str):
        labels = labels.to(outputs.dtype)
        if (*labels.shape, 1) == tuple(outputs.shape):
            labels = labels.unsqueeze(-1)
        if labels.shape != outputs.shape:
            raise InputError(
                f"task {task.name!r}: outputs have shape {tuple(outputs.shape)}, labels {tuple(labels.shape)}; "
                f"{task.loss} needs them equal."
            )
    return task.criterion(outputs, labels)


def _own_loss(task: Task, outputs: Tensor, labels: Tensor) -> Tensor:
    """The caller's loss; weights for some of the classes, as of one session among several, are refused."""
    weights = getattr(task.loss, "weight", None)
    if isinstance(weights, Tensor) and weights.dim() == 1 and len(weights) != outputs.shape[-1]:
        raise InputError(
            f"task {task.name!r}: its loss has weights for {len(weights)} classes, and there are scores for "
            f"{outputs.shape[-1]}. Give a weight for each."
        )
    return task.criterion(outputs, labels)


def _following(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """Tensors, and what holds tensors, on the device that `fn` puts a tensor on; anything else as it is."""
    if isinstance(value, Tensor):
        return value.to(fn(torch.empty(0, device=value.device)).device)
    if isinstance(value, nn.Module):
        first = next((tensor for _, tensor in named_tensors(value)), None)
        return value if first is None else value.to(fn(torch.empty(0, device=first.device)).device)
    if isinstance(value, dict):
        return {key: _following(item, fn) for key, item in value.items()}
    return tuple(_following(item, fn) for item in value) if type(value) is tuple else value


def _short(name: str) -> str:
    """The name a tensor has in checkpoints: parts of the model stand beside the head, and views are seen through."""
    name = name.removeprefix("model.")
    for view in ("network.shared_weights.", "network.own_tensors."):
        if name.startswith(view):
            return "network." + name.removeprefix(view)
    return name


def _is_ours(name: str) -> bool:
    """Whether something is of model or head; what else hangs on a session, a loss or a metric, is the caller's."""
    return name.partition(".")[0] in ("model", "head")


def _words(tensor: Tensor, shape: torch.Size | None = None) -> str:
    kind = str(tensor.dtype).removeprefix("torch.") + (" without values" if tensor.is_meta else "")
    if tensor.requires_grad and tensor.is_leaf and not isinstance(tensor, nn.Parameter):
        kind += " that asks for a gradient"
    return kind if shape is None else f"{kind} of shape {tuple(shape)}"


def _counted_on(was: str, has: str) -> bool:
    """Whether a module made numbers of whole ones in a buffer of its own, as 0 + 0.5 does; no cast of a session can."""
    return was.startswith(("int", "uint")) and has == str(torch.get_default_dtype()).removeprefix("torch.")
