"""EWC, elastic weight consolidation: every task may move all weights, but is pulled back to where they were.

The pull on a weight is as strong as its Fisher information, which says how much the earlier tasks depend on it. Like
lambda, its scale belongs to the estimator: squared mean gradients of small batches, with the true labels. With a large
lambda times learning rate the pull overshoots: clip gradients (`Recipe(clip=…)`).
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor, nn

from forgetfree.authoring import Context, InputError, Plain, Session, Task, TaskLearner, TaskModel, task_loss
from forgetfree.batches import batches
from forgetfree.dense import MovingNetwork
from forgetfree.rng import generator, seed_all
from forgetfree.settings import Number, Was, Whole, learner

LAMBDA = "EWC's lambda (0 is finetuning, 5000 is usual)"
FISHER_BATCH = "how many samples' mean gradient is squared (EWC's lambda is tied to it: 20 is usual)"


@learner
class EWC(TaskLearner):
    """One network, one head per task; what earlier tasks need is held by a quadratic penalty, `reg_weight` strong.

    With `validate_penalty` an epoch is chosen by the loss with the penalty in it, as the released code does.
    """

    reg_weight: Annotated[float, Number(LAMBDA, 0), Was("strength")] = 5000.0
    fisher_batch: Annotated[int, Whole(FISHER_BATCH, 1)] = 20
    validate_penalty: bool = True

    network_kind = MovingNetwork
    state = ("fisher", "merged")

    def start(self) -> None:
        self.fisher: Mapping[str, Tensor] = {}
        """Of the backbone's weights, the mean over all tasks so far; empty before the first."""
        self.merged = 0

    def check(self) -> None:
        weights = {
            name: weight.shape for name, weight in self.network.module.named_parameters() if weight.requires_grad
        }
        if self.fisher and {name: value.shape for name, value in self.fisher.items()} != weights:
            raise InputError("the stored Fisher information is not of this backbone's weights.")

    def view(self, task: Task, context: Context) -> TaskModel:
        anchors = dict(self.network.module.named_parameters())  # all weights as the last task left them
        pulls = {name: self.reg_weight / 2 * fisher for name, fisher in self.fisher.items()}
        return Anchored(self.network.trainable_view(), anchors, pulls, validates_penalty=self.validate_penalty)

    def keep(self, session: Session, context: Context) -> None:
        fresh, t = fisher_of(session, self.fisher_batch, context), self.merged
        self.fisher = {name: (new + t * self.fisher.get(name, 0)) / (t + 1) for name, new in fresh.items()}
        self.merged = t + 1
        self.network.keep(session.task.name, session.model.network)


class Anchored(Plain):
    """A network that is pulled back: (lambda / 2) sum F (theta - theta*)^2."""

    def __init__(
        self,
        network: nn.Module,
        anchors: Mapping[str, Tensor],
        pulls: Mapping[str, Tensor],
        *,
        validates_penalty: bool = False,
    ):
        super().__init__(network)
        self.validates_penalty = validates_penalty
        self._held = {name: (anchors[name].detach(), pull) for name, pull in pulls.items()}

    def penalty(self) -> Tensor | None:
        held = [(self.network.get_parameter(name), *values) for name, values in self._held.items()]
        pulled = [(pull * (weight - anchor).square()).sum() for weight, anchor, pull in held]
        return torch.stack(pulled).sum() if pulled else None


def fisher_of(session: Session, size: int, context: Context) -> dict[str, Tensor]:
    """The diagonal of the Fisher matrix: the mean over batches of the squared gradient of the task's loss."""
    task, weights = session.task, dict(session.model.network.named_parameters())
    if not weights:  # only heads learn
        return {}
    for weight in weights.values():
        weight.requires_grad_(True)  # whatever a loop of the caller's own has asked of it
    squares = {name: torch.zeros_like(weight, dtype=_fine(weight)) for name, weight in weights.items()}
    order = generator(context.seed, context.position, "fisher order")
    seed_all(context.placement.device, context.seed, context.position, "fisher")
    before, count = session.state(), 0
    session.train()
    with torch.enable_grad():
        for batch in batches(task, task.train, size, order=order, loader=context.recipe.loader):
            session.zero_grad()
            # not by autograd.grad, which a reentrant gradient checkpoint refuses
            task_loss(task, session(batch.inputs), batch.labels).backward()  # type: ignore[no-untyped-call]
            for name, weight in weights.items():
                if weight.grad is not None:
                    squares[name].addcmul_(weight.grad, weight.grad)
            count += 1
    session.restore(before)  # norms have taken statistics meanwhile
    return {name: square / count for name, square in squares.items()}


def _fine(weight: Tensor) -> torch.dtype:
    """The type to add up in: that of the weight, or finer where it is coarse."""
    return torch.promote_types(weight.dtype, torch.float32)
