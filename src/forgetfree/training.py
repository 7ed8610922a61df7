"""Training: a Session is one task being learned, a Recipe says how, and `fit` is the only optimisation loop.

Everything that moves is in the session and becomes the learner's only by `keep()`. So an error, Ctrl-C or a killed
process leaves the learner as it was; with a checkpoint, `fit` goes on at the last finished epoch, to the same bits.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from forgetfree.batches import OURS, Batch, batches, count_batches, tensors_of
from forgetfree.contracts import Data, Inputs, Task
from forgetfree.errors import InputError, LearningError, TaskError
from forgetfree.files import digest_of, load_tree, save_tree
from forgetfree.modules import load_tensors, named_tensors
from forgetfree.rng import generator, preserved_rng, seed_all

log = logging.getLogger("forgetfree")

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")
CHECKPOINT = "checkpoint, version 1"


@dataclass(frozen=True)
class Recipe:
    """How one task is trained; the same for every task."""

    epochs: int = 10
    batch_size: int = 64
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] | OptimizerFactory = "adam"
    """A name, or a function of the parameters, called once per task; lr, weight_decay and momentum are then unused."""
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    """For sgd and rmsprop."""
    patience: int | None = None
    """After so many epochs without a better validation loss, the learning rate is multiplied by `factor`."""
    factor: float = 0.5
    min_lr: float = 0.0
    """Learning of a task ends when the learning rate falls below this."""
    milestones: tuple[int, ...] = ()
    """After each of these epochs the learning rate is multiplied by `factor`."""
    clip: float | None = None
    """Largest norm of the gradient of all parameters together."""
    accumulate: int = 1
    """Batches per optimizer step."""
    autocast: Literal["bfloat16"] | None = None
    """Train in low precision. Validation and answers always use the type of the weights."""
    carry_optimizer: bool = False
    """Start a task with the optimizer state that shared weights and scores had at the end of the task before."""
    eval_batch_size: int = 256
    loader: Mapping[str, Any] | None = None
    """Keywords for torch's DataLoader (num_workers, collate_fn, …), for tasks given as a Dataset."""

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("accumulate", 1), ("eval_batch_size", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"Recipe({name}=…) is a whole number of at least {least}; got {value!r}.")
        for name in ("lr", "weight_decay", "momentum", "factor", "min_lr", "clip"):
            value = getattr(self, name)
            if not isinstance(value, int | float) and not (name == "clip" and value is None):
                raise InputError(f"Recipe({name}=…) is a number; got {value!r}.")
        if not callable(self.optimizer) and self.optimizer not in OPTIMIZERS:
            raise InputError(
                f"Recipe(optimizer=…) is one of {list(OPTIMIZERS)} or a function of the parameters; got "
                f"{self.optimizer!r}."
            )
        for name in ("lr", "weight_decay", "momentum", "min_lr"):
            if not getattr(self, name) >= 0:
                raise InputError(f"Recipe({name}=…) is a number of at least 0; got {getattr(self, name)!r}.")
        if not 0 < self.factor < 1:
            raise InputError(f"Recipe(factor=…) shrinks the learning rate, in (0, 1); got {self.factor!r}.")
        if self.patience is not None and (not isinstance(self.patience, int) or self.patience < 1):
            raise InputError(f"Recipe(patience=…) is None or a number of epochs of at least 1; got {self.patience!r}.")
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if not all(isinstance(epoch, int) and epoch > 0 for epoch in self.milestones):
            raise InputError(f"Recipe(milestones=…) are numbers of epochs, from 1; got {self.milestones!r}.")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"Recipe(clip=…) is None or a gradient norm above 0; got {self.clip!r}.")
        if self.autocast not in (None, "bfloat16"):
            raise InputError(f"Recipe(autocast=…) is None or 'bfloat16'; got {self.autocast!r}.")
        clash = OURS & set(self.loader or {})
        if clash:
            raise InputError(f"Recipe(loader=…) cannot set {sorted(clash)}: batches and their order are the recipe's.")

    def build(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer for one task."""
        if callable(self.optimizer):
            made = self.optimizer(parameters)
            if not all(hasattr(made, name) for name in ("step", "zero_grad", "param_groups", "state_dict")):
                raise InputError(f"Recipe(optimizer=…) must give a torch optimizer; it gave a {type(made).__name__}.")
            return made
        common: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        match self.optimizer:
            case "adam":
                return _fused(torch.optim.Adam, parameters, common)
            case "adamw":
                return _fused(torch.optim.AdamW, parameters, common)
            case "sgd":
                # not fused: that kernel wants momentum for all parameters or none, and new ones join carried ones
                return torch.optim.SGD(parameters, momentum=self.momentum, **common)
            case _:
                return torch.optim.RMSprop(parameters, momentum=self.momentum, **common)

    def described(self) -> dict[str, Any]:
        """Every field as a plain value; functions by name."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_described(cls, described: Mapping[str, Any]) -> "Recipe":
        """The recipe again; one with functions in it can be read but not learned by."""
        settings, lost = dict(described), []
        if settings["optimizer"] not in OPTIMIZERS:
            lost.append(f"optimizer={settings.pop('optimizer')}")
        if any(isinstance(value, str) for value in (settings["loader"] or {}).values()):
            lost.append(f"loader={settings.pop('loader')}")
        if not lost:
            return cls(**settings)

        def missing(_: Any) -> Any:
            raise InputError(
                f"the recipe had functions in it, which an archive cannot hold: {', '.join(lost)}. Pass it to load: "
                "load(path, recipe=…)."
            )

        return cls(**{**settings, "optimizer": missing})


@dataclass(frozen=True)
class Progress:
    """Where learning stands; handed to the `progress` callback after every epoch, and now and then within one."""

    task: str
    epoch: int
    epochs: int
    step: int
    steps: int | None
    loss: float
    valid_loss: float | None
    valid_accuracy: float | None
    lr: float
    seconds: float
    finished: bool
    """Whether the epoch is over."""


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


class Trainable(Protocol):
    """A part of a session: an nn.Module, or something that moves like one. `state_dict` shows the live tensors."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def state_dict(self) -> Mapping[str, Tensor]: ...
    def load_state_dict(self, state: Mapping[str, Tensor], /) -> Any: ...
    def train(self, mode: bool = True, /) -> Any: ...


class Session:
    """One task being learned. Calling it answers with what has been learned so far, with gradients."""

    def __init__(
        self,
        task: Task,
        parts: Mapping[str, Trainable],
        answer: Callable[[Inputs], Tensor],
        keep: Callable[[str, Fitted | None], None],
        *,
        loss: Callable[[Batch], Tensor] | None = None,
        penalty: Callable[[], Tensor] | None = None,
        lasting: Iterable[str] = (),
        settings: Mapping[str, Any] | None = None,
    ):
        self.task = task
        self.epoch = 0
        """Which pass over the data this is, from 0; a loop of one's own may say it too."""
        self.through = 1.0
        """How far the epoch has come, 0 at its first batch and 1 at its last; a loop of one's own may say it too."""
        self.settings = dict(settings or {})
        """What else makes this learning what it is, as plain values: the capacity, say."""
        self.kept = False
        self.open = True
        self.lasting = frozenset(lasting)
        """Names of the parameters that outlive the task."""
        self.parts = parts
        """All that moves, by name; what the task is answered with is the part "head"."""
        self._answer = answer
        self._keep = keep
        self._loss = loss or self._task_loss
        self._penalty = penalty

    def __call__(self, inputs: Inputs) -> Tensor:
        self._check_open()
        return self._answer(inputs)

    def parameters(self) -> list[nn.Parameter]:
        """All that may move, and nothing that belongs to a learned task."""
        return list(self.named_parameters().values())

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return {
            f"{part}.{name}": parameter
            for part, trained in self.parts.items()
            for name, parameter in trained.named_parameters()
            if parameter.requires_grad
        }

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that moves: weights, scores, own tensors and head of one moment."""
        return {
            f"{part}.{name}": tensor.detach().clone()
            for part, trained in self.parts.items()
            for name, tensor in _tensors(trained).items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a `state()`."""
        for part, trained in self.parts.items():
            prefix = f"{part}."
            own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
            load_tensors(trained, own) if isinstance(trained, nn.Module) else trained.load_state_dict(own)

    def train(self, mode: bool = True) -> None:
        """Training or eval mode, as of an nn.Module."""
        for trained in self.parts.values():
            trained.train(mode)

    def eval(self) -> None:
        self.train(False)

    def loss(self, batch: Batch) -> Tensor:
        """The task's loss on a batch, or the method's own, and what the method adds to it."""
        loss = self._loss(batch)
        return loss if self._penalty is None else loss + self._penalty()

    def _task_loss(self, batch: Batch) -> Tensor:
        return task_loss(self.task, self(batch.inputs), batch.labels)

    def keep(self, selection: str = "as kept by the caller's own loop", fitted: Fitted | None = None) -> None:
        """Make the task the learner's, as it stands now; all of it or, on an error, nothing."""
        self._check_open()
        for name, parameter in self.named_parameters().items():
            if not bool(parameter.isfinite().all()):
                raise LearningError(
                    f"task {self.task.name!r}: {name} holds values that are not finite, so it is not kept. Lower the "
                    "learning rate, or clip gradients."
                )
        self._keep(selection, fitted)
        self.kept, self.open = True, False

    def _check_open(self) -> None:
        if not self.open:
            raise LearningError(
                f"the session of task {self.task.name!r} is over; start another with learner.learning(task)."
            )


class Turn:
    """Whose turn it is to learn: one task at a time, others wait; nothing is shared by a copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: tuple[int, str] | None = None
        self.still = threading.RLock()
        """Held for the moment in which a task is kept or removed, or everything is read."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Turn":
        return Turn()

    @contextmanager
    def taken_for(self, task: str, *, wait: bool = True) -> Iterator[None]:
        owner = self._owner
        if owner and owner[0] == threading.get_ident():
            raise TaskError(f"cannot start {task!r}: task {owner[1]!r} is still being learned here.")
        if not self._lock.acquire(blocking=wait):
            busy = f"task {owner[1]!r}" if owner else "another task"
            raise TaskError(f"cannot start {task!r}: {busy} is being learned. Wait until it is kept.")
        try:
            self._owner = (threading.get_ident(), task)
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


def task_loss(task: Task, outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of `task`, with labels in the type and on the device that it needs."""
    labels = labels.to(outputs.device)
    if task.classifies:
        return task.criterion(outputs, labels.long())
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


def fit(
    session: Session,
    recipe: Recipe,
    *,
    seed: int,
    position: int,
    device: torch.device,
    carried: Mapping[str, dict[str, Any]] | None = None,
    checkpoint: Path | str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Fitted:
    """Train the session's task by the recipe and leave the session in its best state."""
    task = session.task
    optimizer = recipe.build(session.parameters())
    if recipe.carry_optimizer and carried:
        _carry(session, optimizer, carried)
    run = _Run(session, recipe, optimizer, checkpoint, seed, position)
    started = time.monotonic()
    plain = torch.autocast(device.type, enabled=False)  # the caller's would reach into backward()
    with preserved_rng(device), plain, without_denormals():
        while not run.complete:
            epoch = session.epoch = len(run.curves)
            seed_all(device, seed, position, "epoch", epoch)
            trained = _epoch(
                session,
                recipe,
                optimizer,
                _Watch(progress, task, recipe, epoch, started),
                generator(seed, position, "order", epoch),
                generator(seed, position, "augmentation", epoch),
            )
            valid, accuracy = evaluate(session, task.valid, recipe) if task.valid is not None else (None, None)
            run.record(trained, valid, accuracy)
            if progress:
                progress(
                    Progress(
                        task.name,
                        epoch + 1,
                        recipe.epochs,
                        0,
                        None,
                        trained,
                        valid,
                        accuracy,
                        run.lr,
                        time.monotonic() - started,
                        True,
                    )
                )
    return run.finish()


@contextmanager
def without_denormals() -> Iterator[None]:
    """Take numbers below 1e-38 for zero on this thread: a CPU needs many times longer for them.

    Momentum of weights that a mask left out fades by a factor in every step, and ends there by the thousands.
    """
    before = not bool(torch.tensor(1e-38) * 0.1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def evaluate(session: Session, data: Data, recipe: Recipe) -> tuple[float, float | None]:
    """Mean loss over `data`, and accuracy where the task classifies; in eval mode, leaving no trace."""
    task, total, right, count = session.task, 0.0, 0, 0
    session.train(False)
    device = session.parameters()[0].device.type
    with torch.no_grad(), torch.autocast(device, enabled=False):
        for batch in batches(task, data, recipe.eval_batch_size, loader=recipe.loader):
            outputs = session(batch.inputs)
            total += float(task_loss(task, outputs, batch.labels)) * len(batch)
            count += len(batch)
            if task.classifies:
                right += int((outputs.argmax(1) == batch.labels.to(outputs.device)).sum())
    if not count:
        raise InputError(f"task {task.name!r} is empty: its validation data gave no batch.")
    return total / count, (right / count if task.classifies else None)


def _epoch(
    session: Session,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer,
    watch: "_Watch",
    order: torch.Generator,
    chance: torch.Generator,
) -> float:
    """One pass over the training data; the mean loss."""
    task, parameters = session.task, session.parameters()
    device = parameters[0].device.type
    total, count, waiting = 0.0, 0, 0
    low_precision = partial(torch.autocast, device, torch.bfloat16) if recipe.autocast else nullcontext
    session.train(True)

    def clear() -> None:  # optimizer.zero_grad() does the same in ten times the time
        for parameter in parameters:
            parameter.grad = None

    def step() -> None:
        nonlocal waiting
        if waiting < recipe.accumulate:  # a short last group: its mean is over the batches it has
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(recipe.accumulate / waiting)
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(parameters, recipe.clip)
        take_step()
        clear()
        waiting = 0

    take_step = quick_step(optimizer)
    clear()
    last = (count_batches(task.train, recipe.batch_size) or 1) - 1
    for number, batch in enumerate(batches(task, task.train, recipe.batch_size, order=order, loader=recipe.loader), 1):
        session.through = min((number - 1) / last, 1.0) if last else 1.0
        if task.augment is not None:
            batch = Batch(task.augment(batch.inputs, chance), batch.labels)
        with low_precision():
            value = session.loss(batch)
        amount = float(value.detach())
        if not math.isfinite(amount):
            raise LearningError(
                f"task {task.name!r}: the loss became {amount} at step {number} of epoch {watch.epoch + 1}. The "
                "learner is as it was before. Lower the learning rate, clip gradients, or check the inputs for NaN."
            )
        (value / recipe.accumulate if recipe.accumulate > 1 else value).backward()  # type: ignore[no-untyped-call]
        total, count, waiting = total + amount * len(batch), count + len(batch), waiting + 1
        if waiting == recipe.accumulate:
            step()
        watch.tick(number, total / count, optimizer)
    if waiting:
        step()
    session.through = 1.0
    if not count:
        raise InputError(f"task {task.name!r} is empty: its training data gave no batch.")
    return total / count


def quick_step(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """`optimizer.step`; for fused Adam its kernel without torch's calls around it, which take as long as it does."""
    kernel = {torch.optim.Adam: torch._fused_adam_, torch.optim.AdamW: torch._fused_adamw_}.get(type(optimizer))
    special = ("amsgrad", "maximize", "capturable", "differentiable")
    plain = all(
        group.get("fused") and isinstance(group["lr"], float) and not any(group.get(name) for name in special)
        for group in optimizer.param_groups
    )
    if kernel is None or not plain or _is_hooked(optimizer):
        return optimizer.step

    def step() -> None:
        moved = [[p for p in group["params"] if p.grad is not None] for group in optimizer.param_groups]
        if not all(optimizer.state.get(parameter) for parameters in moved for parameter in parameters):
            optimizer.step()  # the first time, it makes its states
            return
        with torch.no_grad():
            for group, parameters in zip(optimizer.param_groups, moved, strict=True):
                states = [optimizer.state[parameter] for parameter in parameters]
                counts = [state["step"] for state in states]
                torch._foreach_add_(counts, 1)
                kernel(
                    parameters, [p.grad for p in parameters],
                    [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states], [], counts,
                    lr=group["lr"], beta1=group["betas"][0], beta2=group["betas"][1],
                    weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
                )  # fmt: skip

    return step


def _is_hooked(optimizer: torch.optim.Optimizer) -> bool:
    own = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return any((*own, _global_optimizer_pre_hooks, _global_optimizer_post_hooks))


class _Watch:
    """Tells the progress callback, at most twice a second, how far an epoch has come."""

    def __init__(
        self, progress: Callable[[Progress], None] | None, task: Task, recipe: Recipe, epoch: int, started: float
    ):
        self.epoch = epoch
        self._progress, self._task, self._recipe, self._started = progress, task, recipe, started
        self._steps = count_batches(task.train, recipe.batch_size) if progress else None
        self._next = time.monotonic() + 0.5

    def tick(self, step: int, loss: float, optimizer: torch.optim.Optimizer) -> None:
        if self._progress is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + 0.5
        self._progress(
            Progress(
                self._task.name,
                self.epoch + 1,
                self._recipe.epochs,
                step,
                self._steps,
                loss,
                None,
                None,
                float(optimizer.param_groups[0].get("lr", 0.0)),
                now - self._started,
                False,
            )
        )


class _Run:
    """The course of one fit: best state, patience, curves; read from and written to the checkpoint."""

    def __init__(
        self,
        session: Session,
        recipe: Recipe,
        optimizer: torch.optim.Optimizer,
        checkpoint: Path | str | None,
        seed: int,
        position: int,
    ):
        self.session, self.recipe, self.optimizer = session, recipe, optimizer
        self.path = Path(checkpoint) if checkpoint is not None else None
        self.curves: list[dict[str, float]] = []
        self.best: dict[str, Tensor] | None = None
        self.best_epoch, self.best_loss = 0, math.inf
        self.patience = recipe.patience
        self.complete = False
        self.earlier, self.started = 0.0, time.monotonic()
        if session.task.valid is None:
            log.info("task %r has no validation set: the last epoch is kept.", session.task.name)
        if self.path is not None:
            self.identity = _identity(session, recipe, seed, position)
            if self.path.exists():
                self._resume()

    @property
    def seconds(self) -> float:
        return self.earlier + time.monotonic() - self.started

    @property
    def lr(self) -> float:
        return max(float(group.get("lr", 0.0)) for group in self.optimizer.param_groups)

    def record(self, loss: float, valid_loss: float | None, valid_accuracy: float | None) -> None:
        """Take note of a finished epoch; decide whether it is the best and whether it is the last."""
        entry = {"loss": loss, "lr": self.lr}
        if valid_loss is not None:
            if not math.isfinite(valid_loss):
                raise LearningError(
                    f"task {self.session.task.name!r}: the validation loss became {valid_loss} in epoch "
                    f"{len(self.curves) + 1}. The learner is as it was before. Lower the learning rate, or clip "
                    "gradients."
                )
            entry["valid_loss"] = valid_loss
            if valid_accuracy is not None:
                entry["valid_accuracy"] = valid_accuracy
        self.curves.append(entry)
        if valid_loss is not None:
            self._judge(valid_loss)
        if len(self.curves) in self.recipe.milestones:
            self._slow_down()
        self.complete = self.complete or len(self.curves) >= self.recipe.epochs
        if self.path is not None:
            self._save()

    def finish(self) -> Fitted:
        if self.best is not None:
            self.session.restore(self.best)
            selection = (
                f"epoch {self.best_epoch} of {len(self.curves)}, the best by validation loss ({self.best_loss:.6g})"
            )
        else:
            selection = f"the last epoch ({len(self.curves)}): there was no validation set"
        state = {
            name: dict(self.optimizer.state[parameter])
            for name, parameter in self.session.named_parameters().items()
            if name in self.session.lasting and parameter in self.optimizer.state
        }
        return Fitted(selection, tuple(self.curves), state if self.recipe.carry_optimizer else {}, self.seconds)

    def _judge(self, valid_loss: float) -> None:
        if valid_loss < self.best_loss:
            self.best, self.best_loss, self.best_epoch = self.session.state(), valid_loss, len(self.curves)
            self.patience = self.recipe.patience
        elif self.patience is not None:
            self.patience -= 1
            if self.patience == 0:
                self._slow_down()
                self.patience = self.recipe.patience
                self.complete = self.lr < self.recipe.min_lr

    def _slow_down(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group.get("lr", 0.0) * self.recipe.factor

    def _save(self) -> None:
        assert self.path is not None
        save_tree(self.path, CHECKPOINT, {
            "identity": self.identity,
            "circumstances": _circumstances(),
            "state": self.session.state(),
            "best": self.best,
            "best_epoch": self.best_epoch,
            "best_loss": self.best_loss,
            "patience": self.patience,
            "seconds": self.seconds,
            "curves": self.curves,
            "complete": self.complete,
            "optimizer": self.optimizer.state_dict() if not self.complete or self.recipe.carry_optimizer else None,
        })  # fmt: skip

    def _resume(self) -> None:
        assert self.path is not None
        saved = load_tree(self.path, CHECKPOINT)
        different = [key for key in self.identity if saved["identity"].get(key) != self.identity[key]]
        if different:
            raise InputError(
                f"{self.path} is the checkpoint of another learning; it differs in "
                + "; ".join(
                    f"{key}: {saved['identity'].get(key)!r} there, {self.identity[key]!r} here" for key in different
                )
                + ". Nothing was changed: pass another path, or delete the file to start again."
            )
        if saved["circumstances"] != _circumstances():
            log.warning(
                "%s was written under other circumstances (%s there, %s here): the result may differ in its last bits.",
                self.path,
                saved["circumstances"],
                _circumstances(),
            )
        self.session.restore(saved["state"])
        if saved["optimizer"] is not None:
            self.optimizer.load_state_dict(saved["optimizer"])
        self.best, self.best_epoch, self.best_loss = saved["best"], saved["best_epoch"], saved["best_loss"]
        self.patience, self.curves, self.complete = saved["patience"], saved["curves"], saved["complete"]
        self.earlier = saved["seconds"]
        log.info("task %r: goes on after epoch %d, from %s.", self.session.task.name, len(self.curves), self.path)


def _tensors(part: Trainable) -> Mapping[str, Tensor]:
    """The live tensors of a part; of a module also the buffers that its state dict leaves out."""
    return dict(named_tensors(part)) if isinstance(part, nn.Module) else part.state_dict()


def _fused(kind: Any, parameters: list[nn.Parameter], settings: dict[str, Any]) -> torch.optim.Optimizer:
    """The optimizer as one kernel, five times faster on a CPU, where the device and the types allow it."""
    try:
        return kind(parameters, fused=True, **settings)  # type: ignore[no-any-return]
    except RuntimeError:
        return kind(parameters, **settings)  # type: ignore[no-any-return]


def _carry(session: Session, optimizer: torch.optim.Optimizer, carried: Mapping[str, dict[str, Any]]) -> None:
    for name, parameter in session.named_parameters().items():
        if name in session.lasting and name in carried:
            optimizer.state[parameter] = {
                key: value.detach().clone() if isinstance(value, Tensor) else value
                for key, value in carried[name].items()
            }


def _identity(session: Session, recipe: Recipe, seed: int, position: int) -> dict[str, Any]:
    """What must be equal for a checkpoint to be of this very learning."""
    task = session.task
    return {
        "task": task.name,
        "classes": list(task.classes),
        "outputs": task.width,
        "loss": _plain(task.loss),
        "augment": _plain(task.augment),
        "train": _fingerprint(task.train),
        "valid": _fingerprint(task.valid) if task.valid is not None else None,
        "seed": seed,
        "position": position,
        **session.settings,
        **{f"recipe.{name}": value for name, value in recipe.described().items()},
        "start": digest_of(session.state()),
    }


def _fingerprint(data: Data) -> str:
    """A digest of tensors; of a Dataset, which may be too large to read twice, only its type."""
    if not isinstance(data, tuple | list):
        return type(data).__name__
    return digest_of({"labels": data[1]} | {str(i): value for i, value in enumerate(tensors_of(data[0]))})


def _circumstances() -> dict[str, Any]:
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads()}


def check_recipe(what: str, recipe: Recipe) -> Recipe:
    """`recipe` itself, if it is one."""
    if not isinstance(recipe, Recipe):
        raise InputError(f"{what} is a Recipe, as in Recipe(epochs=5, lr=0.01); got {recipe!r}.")
    return recipe


def full_name(function: Any) -> str:
    """Where a function lives; never a name of ours, as the bare word `adam` would be."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if callable(value):
        return full_name(value)
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__qualname__
