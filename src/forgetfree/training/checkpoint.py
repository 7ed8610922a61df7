"""The course of one training: curves, best state, patience and schedule; read from and written to a checkpoint."""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forgetfree.errors import FileError, InputError, LearningError
from forgetfree.files import digest_of, is_there, read_plain, save_tree, tree_of
from forgetfree.forms import FormError
from forgetfree.training.likeness import alike, fingerprint, identified
from forgetfree.training.recipe import Recipe
from forgetfree.training.remembered import check_alike, check_checkpoint, check_optimizer
from forgetfree.training.session import Fitted, Session
from forgetfree.training.team import team

log = logging.getLogger("forgetfree")

CHECKPOINT = "checkpoint, version 1"


class Course:
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
        self.mean: dict[str, Tensor] | None = None
        """Of the states after every epoch, where the recipe wants it: it is judged and kept, and training goes on."""
        self.best_epoch, self.best_loss = 0, math.inf
        self.patience = recipe.patience
        self.complete = False
        self.scheduler = recipe.schedule(optimizer) if callable(recipe.schedule) else None
        self.earlier, self.started = 0.0, time.monotonic()
        if session.task.valid is None:
            log.info("task %r has no validation set: the last epoch is kept.", session.task.name)
        if self.path is not None:
            self.identity = identity(session, recipe, seed, position)
            content = team().content(self._read)
            if content is not None:
                self._resume(content)

    @property
    def seconds(self) -> float:
        return self.earlier + time.monotonic() - self.started

    @property
    def lr(self) -> float:
        return max(float(group.get("lr", 0.0)) for group in self.optimizer.param_groups)

    @contextmanager
    def judged(self) -> Iterator[None]:
        """The session as it would be kept after this epoch."""
        if self.recipe.average is None:
            yield
            return
        now = self.session.state()
        self.mean = averaged(self.mean, now, self.recipe.average)
        self.session.restore(self.mean)
        try:
            yield
        finally:
            self.session.restore(now)

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
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(loss if valid_loss is None else valid_loss)
        elif self.scheduler is not None:
            self.scheduler.step()
        self.complete = self.complete or len(self.curves) >= self.recipe.epochs
        if self.path is not None and team().leads:
            self._save()

    def finish(self) -> Fitted:
        if self.best is not None:
            self.session.restore(self.best)
            selection = (
                f"epoch {self.best_epoch} of {len(self.curves)}, the best by validation loss ({self.best_loss:.6g})"
            )
        else:
            if self.mean is not None:
                self.session.restore(self.mean)
            selection = f"the last epoch ({len(self.curves)}): there was no validation set"
        state = {
            name: dict(self.optimizer.state[parameter])
            for name, parameter in self.session.moving().items()
            if name in self.session.carried and parameter in self.optimizer.state
        }
        return Fitted(selection, tuple(self.curves), state if self.recipe.carry_optimizer else {}, self.seconds)

    def _judge(self, valid_loss: float) -> None:
        if valid_loss < self.best_loss:
            self.best, self.best_loss, self.best_epoch = self.mean or self.session.state(), valid_loss, len(self.curves)
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
            "circumstances": circumstances(),
            "state": self.session.state(),
            "best": self.best,
            "mean": self.mean,
            "best_epoch": self.best_epoch,
            "best_loss": self.best_loss,
            "patience": self.patience,
            "seconds": self.seconds,
            "curves": self.curves,
            "complete": self.complete,
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "optimizer": self.optimizer.state_dict() if not self.complete or self.recipe.carry_optimizer else None,
        })  # fmt: skip

    def _read(self) -> bytes | None:
        assert self.path is not None
        return read_plain(self.path) if is_there(self.path) else None

    def _resume(self, content: bytes) -> None:
        assert self.path is not None
        saved = tree_of(content, self.path, CHECKPOINT)
        known = saved.get("identity") if isinstance(saved, dict) else None
        if not isinstance(known, dict):
            raise self._damaged("it does not say of which learning it is")
        # checkpoints written before learners had fields do not have them
        asked = [key for key in self.identity if key != "learner" or key in known]
        different = [key for key in asked if not alike(known.get(key), self.identity[key])]
        if different:
            raise InputError(
                f"{self.path} is the checkpoint of another learning; it differs in "
                + "; ".join(_differing(key, known.get(key), self.identity[key]) for key in different)
                + ". Nothing was changed: pass another path, or delete the file to start again."
            )
        try:
            self._check(saved)
            if saved["optimizer"] is not None:
                self._load_optimizer(saved["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(saved["scheduler"])
        except (FormError, ValueError, LookupError, TypeError, RuntimeError) as error:
            raise self._damaged(str(error)) from error
        if saved["circumstances"] != circumstances():
            log.warning(
                "%s was written under other circumstances (%s there, %s here): the result may differ in its last bits.",
                self.path,
                saved["circumstances"],
                circumstances(),
            )
        self.session.restore(saved["state"])
        self.best, self.best_epoch, self.best_loss = saved["best"], saved["best_epoch"], saved["best_loss"]
        self.patience, self.curves, self.complete = saved["patience"], saved["curves"], saved["complete"]
        self.earlier, self.mean = saved["seconds"], saved.get("mean")
        log.info("task %r: goes on after epoch %d, from %s.", self.session.task.name, len(self.curves), self.path)

    def _check(self, saved: dict[str, Any]) -> None:
        check_checkpoint(saved, self.session, self.recipe)
        if saved["optimizer"] is not None:
            sizes = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            check_optimizer(saved["optimizer"], self.optimizer.state_dict(), self.recipe, sizes)
        if self.scheduler is not None:
            check_alike(saved.get("scheduler"), self.scheduler.state_dict(), "what its scheduler knew")

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        before = [dict(group) for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(saved)
        for known, group in zip(before, self.optimizer.param_groups, strict=True):
            for name, value in known.items():  # what optimizers of other versions did not have
                group.setdefault(name, value)

    def _damaged(self, why: str) -> FileError:
        return FileError(f"{self.path} cannot be gone on from: {why.rstrip('.')}. Delete it to start again.")


def averaged(mean: Mapping[str, Tensor] | None, now: Mapping[str, Tensor], before: float) -> dict[str, Tensor]:
    """before · mean + (1 - before) · now; what is counted, not measured, is as it is now."""
    if mean is None:
        return dict(now)

    def joined(value: Tensor, known: Tensor) -> Tensor:
        measured = value.is_floating_point() and value.shape == known.shape
        return torch.lerp(value, known, before) if measured else value

    return {name: joined(value, mean[name]) for name, value in now.items()}


def identity(session: Session, recipe: Recipe, seed: int, position: int) -> dict[str, Any]:
    """What must be equal for a checkpoint to be of this very learning."""
    task = session.task
    return {
        "task": task.name,
        "classes": list(task.classes),
        "outputs": task.width,
        "loss": identified(task.loss),
        "augment": identified(task.augment),
        "train": fingerprint(task.train),
        "valid": fingerprint(task.valid) if task.valid is not None else None,
        "seed": seed,
        "position": position,
        "learner": session.settings,
        **{f"recipe.{name}": identified(value) for name, value in vars(recipe).items()},
        "start": digest_of(session.state()),
    }


def circumstances() -> dict[str, Any]:
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads()}


def _differing(key: str, there: Any, here: Any) -> str:
    if isinstance(there, dict) and isinstance(here, dict):
        names = [name for name in {**there, **here} if not alike(there.get(name), here.get(name))]
        return "; ".join(_differing(name, there.get(name), here.get(name)) for name in names)
    return f"{key}: {there!r} there, {here!r} here"
