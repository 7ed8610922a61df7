"""The only optimisation loop: `fit` trains a session by a recipe and leaves it in its best state.

An error, Ctrl-C or a killed process leaves the learner as it was; with a checkpoint, `fit` goes on at the last finished
epoch, to the same bits.
"""

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from forgetfree.batches import Batch, batches, count_batches
from forgetfree.contracts import Data, Task
from forgetfree.errors import InputError, LearningError
from forgetfree.rng import generator, preserved_rng, seed_all
from forgetfree.training.checkpoint import Course
from forgetfree.training.recipe import Recipe
from forgetfree.training.remembered import check_kept, is_of
from forgetfree.training.schedules import factor_at
from forgetfree.training.session import Fitted, Session


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


ProgressCallback = Callable[[Progress], None]
StandIn = Callable[[Session, Recipe], Fitted]
_stand_in: ContextVar[StandIn | None] = ContextVar("stand-in of fit", default=None)


@contextmanager
def standing_in(stand_in: StandIn | None) -> Iterator[None]:
    """Call this wherever `fit` would train, to see what a method asks of it; None lets it train again."""
    before = _stand_in.set(stand_in)
    try:
        yield
    finally:
        _stand_in.reset(before)


def fit(
    session: Session,
    recipe: Recipe,
    *,
    seed: int,
    position: int,
    carried: Mapping[str, dict[str, Any]] | None = None,
    checkpoint: Path | str | None = None,
    progress: ProgressCallback | None = None,
) -> Fitted:
    """Train the session's task by the recipe and leave the session in its best state."""
    if (stand_in := _stand_in.get()) is not None:
        return stand_in(session, recipe)
    task, device = session.task, next(session.parameters()).device
    optimizer = recipe.build(session.moving())
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group.get("lr", 0.0))
    if recipe.carry_optimizer and carried:
        _carry(session, optimizer, carried, recipe)
    run = Course(session, recipe, optimizer, checkpoint, seed, position)
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
            with run.judged():
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
    device = next(session.parameters()).device.type
    with torch.no_grad(), torch.autocast(device, enabled=False):
        for batch in batches(task, data, recipe.eval_batch_size, loader=recipe.loader):
            outputs = session(batch.inputs)
            total += float(session.criterion(batch, outputs)) * len(batch)
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
    task, parameters = session.task, list(session.parameters())
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
        if isinstance(recipe.schedule, str):
            part = (watch.epoch + (number - 1) / (last + 1)) / recipe.epochs
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor_at(recipe.schedule, part, recipe.warmup or 0.0)
        optimizer.step(again) if asks_again else take_step()
        clear()
        waiting = 0
        asked.clear()

    def again() -> float:
        """The mean loss of the group of batches, and its gradient, once more."""
        clear()
        shares = []
        for each in asked:
            with low_precision():
                share = session.loss(each) / len(asked)
            share.backward()  # type: ignore[no-untyped-call]
            shares.append(float(share.detach()))
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(parameters, recipe.clip)
        return sum(shares)

    take_step, asks_again = quick_step(optimizer), needs_closure(optimizer)
    asked: list[Batch] = []
    clear()
    number = 1
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
        if asks_again:
            asked.append(batch)
        if waiting == recipe.accumulate:
            step()
        watch.tick(number, total / count, optimizer)
    if waiting:
        step()
    session.through = 1.0
    if not count:
        raise InputError(f"task {task.name!r} is empty: its training data gave no batch.")
    return total / count


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step asks for the loss again and again, as that of LBFGS does."""
    asked = inspect.signature(optimizer.step).parameters.get("closure")
    return asked is not None and asked.default is asked.empty


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


def _carry(
    session: Session, optimizer: torch.optim.Optimizer, carried: Mapping[str, dict[str, Any]], recipe: Recipe
) -> None:
    for name, parameter in session.moving().items():
        if name in session.carried and name in carried and is_of(carried[name], recipe):  # not of another optimizer
            check_kept(carried[name], parameter, recipe, f"what the optimizer knew of {name}")
            optimizer.state[parameter] = {
                key: value.detach().clone() if isinstance(value, Tensor) else value
                for key, value in carried[name].items()
            }
