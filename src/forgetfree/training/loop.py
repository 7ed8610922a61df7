"""The only optimisation loop: `fit` trains a session by a recipe and leaves it in its best state.

An error, Ctrl-C or a killed process leaves the learner as it was; with a checkpoint, `fit` goes on at the last finished
epoch, to the same bits.
"""

import inspect
import logging
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
from forgetfree.training.checkpoint import Course, circumstances, identity
from forgetfree.training.recipe import Recipe
from forgetfree.training.remembered import check_kept, is_of
from forgetfree.training.schedules import factor_at
from forgetfree.training.session import Fitted, Session
from forgetfree.training.team import TOLD, Total, team


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


log = logging.getLogger("forgetfree")
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
    check_shared_out(recipe, optimizer)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group.get("lr", 0.0))
    if recipe.carry_optimizer and carried:
        _carry(session, optimizer, carried, recipe)
    if team().size > 1:
        team().agree(
            repr((identity(session, recipe, seed, position), circumstances())),
            f"task {task.name!r}: the processes that learn together do not have the same data, settings, seed, first "
            "weights and versions of torch. Nothing was learned.",
        )
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
                partial(seed_all, device, seed, position, "micro-batch", epoch),
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


def check_shared_out(recipe: Recipe, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a recipe whose steps cannot be shared out among the processes that learn together."""
    size = team().size
    if size > 1 and recipe.accumulate == 1:
        log.warning(
            "%d processes learn together, and a step has one batch, which one of them computes: Recipe(accumulate=%d) "
            "gives each its share.",
            size,
            size,
        )
    elif size > 1 and recipe.accumulate % size:
        raise InputError(
            f"{size} processes learn together, and share out the accumulate={recipe.accumulate} batches of a step: "
            f"accumulate must be a multiple of {size}, as in Recipe(accumulate={size}). One process with the same "
            "accumulate gives the same bits."
        )
    if size > 1 and needs_closure(optimizer):
        raise InputError(
            f"{type(optimizer).__name__} asks for the loss again and again in a step, which {size} processes cannot "
            "share out: learn in one process, or with another optimizer."
        )


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
    task, together = session.task, team()
    session.train(False)
    device = next(session.parameters()).device.type
    own, sizes, error = [], [], None
    with torch.no_grad(), torch.autocast(device, enabled=False):
        for place, batch in enumerate(batches(task, data, recipe.eval_batch_size, loader=recipe.loader)):
            sizes.append(len(batch))
            if error is None and together.takes(place):
                try:
                    own += _judged(session, batch)
                except TOLD as failed:
                    error = failed
    told = together.share(own, error)
    if not sizes:
        raise InputError(f"task {task.name!r} is empty: its validation data gave no batch.")
    total, right = 0.0, 0
    for place, size in enumerate(sizes):
        turn, rank = divmod(place, together.size)
        total += told[rank][2 * turn] * size
        right += int(told[rank][2 * turn + 1])
    return total / sum(sizes), (right / sum(sizes) if task.classifies else None)


def _judged(session: Session, batch: Batch) -> list[float]:
    """The loss of a batch, and how many of its answers are right."""
    outputs = session(batch.inputs)
    loss = float(session.criterion(batch, outputs))
    right = int((outputs.argmax(1) == batch.labels.to(outputs.device)).sum()) if session.task.classifies else 0
    return [loss, float(right)]


def _epoch(
    session: Session,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer,
    watch: "_Watch",
    order: torch.Generator,
    chance: torch.Generator,
    seeds: "Callable[[int], None]",
) -> float:
    """One pass over the training data; the mean loss. `seeds` sets the random state of a micro-batch, by its number."""
    task, parameters, together = session.task, list(session.parameters()), team()
    device = parameters[0].device.type
    total, count, place = 0.0, 0, 0
    """`place`: of the next micro-batch in its step."""
    own: list[float] | None = None
    error: Exception | None = None
    gradients = Total()
    low_precision = partial(torch.autocast, device, torch.bfloat16) if recipe.autocast else nullcontext
    session.train(True)

    def clear() -> None:  # optimizer.zero_grad() does the same in ten times the time
        for parameter in parameters:
            parameter.grad = None

    def learn(number: int, batch: Batch) -> float:
        """The loss of a micro-batch, and its gradient."""
        seeds(number)
        with low_precision():
            value = session.loss(batch)
        amount = float(value.detach())
        if not math.isfinite(amount):
            raise LearningError(
                f"task {task.name!r}: the loss became {amount} at step {number} of epoch {watch.epoch + 1}. The "
                "learner is as it was before. Lower the learning rate, clip gradients, or check the inputs for NaN."
            )
        (value / recipe.accumulate if recipe.accumulate > 1 else value).backward()  # type: ignore[no-untyped-call]
        return amount

    def end_wave() -> None:
        """What all processes have made of a wave of micro-batches becomes one."""
        nonlocal total, count, own, error
        told = together.share(own, error)
        present = [bool(amounts) for amounts in told]
        for size, (amount,) in zip(wave, [amounts for amounts in told if amounts], strict=True):
            total, count = total + amount * size, count + size
        together.added(parameters, present, gradients)
        if statistics is not None:
            statistics.collect(together.gathered(statistics.now(), present))
        wave.clear()
        own = None

    def step() -> None:
        nonlocal gradients, place
        together.settle(parameters, gradients)
        gradients = Total()
        if statistics is not None:
            statistics.settle()
        if place < recipe.accumulate:  # a short last group: its mean is over the batches it has
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(recipe.accumulate / place)
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(parameters, recipe.clip)
        if isinstance(recipe.schedule, str):
            part = (watch.epoch + (number - 1) / (last + 1)) / recipe.epochs
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor_at(recipe.schedule, part, recipe.warmup or 0.0)
        optimizer.step(again) if asks_again else take_step()
        clear()
        asked.clear()
        place = 0

    def again() -> float:
        """The mean loss of the group of batches, and its gradient, once more."""
        clear()
        shares = []
        for which, each in asked:
            seeds(which)
            with low_precision():
                share = session.loss(each) / len(asked)
            share.backward()  # type: ignore[no-untyped-call]
            shares.append(float(share.detach()))
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(parameters, recipe.clip)
        return sum(shares)

    take_step, asks_again = quick_step(optimizer), needs_closure(optimizer)
    statistics = Statistics(session) if recipe.accumulate > 1 or together.size > 1 else None
    asked: list[tuple[int, Batch]] = []
    """The micro-batches of this step, with their numbers, for an optimizer that asks again."""
    wave: list[int] = []
    """How many samples each micro-batch of the wave has."""
    clear()
    number = 1
    last = (count_batches(task.train, recipe.batch_size) or 1) - 1
    for number, batch in enumerate(batches(task, task.train, recipe.batch_size, order=order, loader=recipe.loader), 1):
        session.through = min((number - 1) / last, 1.0) if last else 1.0
        if task.augment is not None:
            batch = Batch(task.augment(batch.inputs, chance), batch.labels)
        if together.takes(place):
            if statistics is not None:
                statistics.begin()
            try:
                own = [learn(number, batch)]
            except TOLD as failed:
                own, error = None, failed
        wave.append(len(batch))
        if asks_again:
            asked.append((number, batch))
        place += 1
        if len(wave) == together.size or place == recipe.accumulate:
            end_wave()
        if place == recipe.accumulate:
            step()
        if count:
            watch.tick(number, total / count, optimizer)
    if wave:
        end_wave()
    if place:
        step()
    session.through = 1.0
    if not count:
        raise InputError(f"task {task.name!r} is empty: its training data gave no batch.")
    return total / count


class Statistics:
    """Buffers over a step of several micro-batches, whoever computed them.

    Every micro-batch starts from the buffers as they were when the step began; afterwards each is the mean of what the
    micro-batches have made of it. What is counted, not measured, is as the last of them left it.
    """

    def __init__(self, session: Session):
        self._session = session
        self._before: dict[str, Tensor] | None = None
        self._made: list[dict[str, Tensor]] = []

    def now(self) -> dict[str, Tensor]:
        return dict(self._session.named_buffers())

    def begin(self) -> None:
        """Before a micro-batch."""
        if self._before is None:
            self._before = {name: value.clone() for name, value in self.now().items()}
        else:
            self._write(self._before)

    def collect(self, made: list[dict[str, Tensor]]) -> None:
        """What the micro-batches of a wave have made of the buffers."""
        if self._before is None:  # none of them was computed here
            self._before = {name: value.clone() for name, value in self.now().items()}
        self._made += [{name: value.clone() for name, value in each.items()} for each in made]

    def settle(self) -> None:
        """After the step."""
        assert self._before is not None
        settled = {}
        for name, before in self._before.items():
            values = [each[name] for each in self._made]
            measured = before.is_floating_point() and all(value.shape == before.shape for value in values)
            settled[name] = sum(values[1:], values[0]) / len(values) if measured else values[-1]
        self._write(settled)
        self._before, self._made = None, []

    def _write(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, buffer in self._session.named_buffers():
                if buffer.shape == values[name].shape:
                    buffer.copy_(values[name])


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
