"""Replay: a finished few-shot run learned again, to the bits, to see its network after epochs that nobody kept.

A network is taken as the paper writes it, R(θ ⊙ m): one flat row of weights θ and one of what they are seen through, m.
The linear head that the base session trains is part of it, the last entries of the row. No mask is ever on that head:
there m is one in all methods.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from forgetfree.errors import LearningError
from forgetfree.heads import Whole
from forgetfree.lab.analyses.subject import Advance, Subject
from forgetfree.lab.experiment import Plan, build
from forgetfree.lab.paper import SMALL_NETWORKS
from forgetfree.masks import soft_mask, top_fraction
from forgetfree.modules import named_tensors
from forgetfree.rng import threads
from forgetfree.scores import Minor
from forgetfree.training import Progress, task_loss
from forgetfree.training.phases import train

MOST_WEIGHTS = 20_000


@dataclass(frozen=True)
class Snapshot:
    """A network at the end of an epoch, in double precision."""

    epoch: int
    weights: Tensor
    """θ, [weights]."""
    mask: Tensor
    """m, [weights]: ones of a dense network, zeros and ones of HardNet, from 0 to 1 of SoftNet."""

    @property
    def counting(self) -> Tensor:
        """True where a weight has a say: m > 0."""
        return self.mask > 0

    @property
    def seen(self) -> Tensor:
        """θ ⊙ m."""
        return self.weights * self.mask


@dataclass(frozen=True)
class Replay:
    """A base session learned again: its network after some epochs, and the loss that it was trained by."""

    snapshots: tuple[Snapshot, ...]
    answer: Callable[[Tensor], Tensor]
    """Scores of all training samples, [samples, classes], by the weights as they are seen, θ ⊙ m."""
    loss: Callable[[Tensor], Tensor]
    """R: the mean cross-entropy over all training samples, by the weights as they are seen."""
    labels: Tensor

    def accuracy(self, seen: Tensor) -> float:
        return float((self.answer(seen).argmax(1) == self.labels).double().mean())


def small(plan: Plan) -> bool:
    """Whether a run is of a method and a network whose loss can be looked at from all sides."""
    backbone = plan.settings["backbone"]
    if plan.method not in SMALL_NETWORKS or backbone["name"] != "mlp":
        return False
    widths = (backbone["inputs"], *backbone["hidden"])
    return bool(sum(width * after for width, after in pairwise(widths)) <= MOST_WEIGHTS)


def trained_epochs(subject: Subject) -> int:
    """How many epochs the base session of a run had."""
    return len(subject.record.curves[subject.record.tasks[0]])


def replay(subject: Subject, epochs: Collection[int], advance: Advance) -> Replay:
    """Learn the run again and look at its network after these epochs of the base session.

    The network at the end is compared with that of the archive: where they differ, what was seen is not of this run.
    """
    benchmark, built, _ = build(subject.plan, subject.data_root)
    learner: Any = built
    snapshots: list[Snapshot] = []
    with threads(subject.plan.threads):
        with learner.learning(benchmark.tasks[0]) as session:

            def look(step: Progress) -> None:
                if step.finished and step.epoch in epochs:
                    snapshots.append(_snapshot(step.epoch, session.state(), learner))
                advance(step.epoch / step.epochs)

            train(session, learner.recipe, learner.engine, progress=look)
            whole, task = Whole(learner.network.module, session.head).eval(), session.task
        for later in benchmark.tasks[1:]:
            learner.learn(later)
        _refuse_another(subject, learner)
    inputs, labels = task.train
    answer = _answering(whole, inputs.double())
    return Replay(tuple(snapshots), answer, lambda seen: task_loss(task, answer(seen), labels), labels)


def _snapshot(epoch: int, state: Mapping[str, Tensor], learner: Any) -> Snapshot:
    weights = {name: state[f"network.{name}"] for name, _ in named_tensors(learner.network.module)}
    masks = {name: torch.ones_like(value) for name, value in weights.items()} | _masks(state, learner)
    head = [value for name, value in state.items() if name.startswith("head.")]
    ones = [torch.ones_like(value) for value in head]
    return Snapshot(epoch, _row([*weights.values(), *head]), _row([*masks.values(), *ones]))


def _masks(state: Mapping[str, Tensor], learner: Any) -> dict[str, Tensor]:
    """What the masked weights are seen through; nothing where the network is dense."""
    scores = {name.removeprefix("scores."): value for name, value in state.items() if name.startswith("scores.")}
    if not scores:
        return {}
    shapes = {name: value.shape for name, value in scores.items()}
    minor = Minor(shapes, learner.seed, int(state["minor.number"]))
    return {
        name: soft_mask(top_fraction(value, learner.capacity, by=learner.by), minor.value(name))
        for name, value in scores.items()
    }


def _row(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors])


def _answering(whole: nn.Module, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    shapes = {name: value.shape for name, value in named_tensors(whole)}
    sizes = [shape.numel() for shape in shapes.values()]

    def answer(seen: Tensor) -> Tensor:
        parts = zip(shapes.items(), torch.split(seen, sizes), strict=True)
        tensors = {name: values.view(shape) for (name, shape), values in parts}
        scores: Tensor = torch.func.functional_call(whole, tensors, (inputs,))
        return scores

    return answer


def _refuse_another(subject: Subject, learner: Any) -> None:
    last = subject.record.tasks[-1]
    again, kept = learner.task_modules(last), subject.learner.task_modules(last)
    different = [
        f"{part}.{name}"
        for part in kept
        for (name, value), (_, other) in zip(named_tensors(kept[part]), named_tensors(again[part]), strict=True)
        if not torch.equal(value, other)
    ]
    if different:
        raise LearningError(
            f"{subject.folder.path}: learned again, the network is not that of the archive; it differs in "
            f"{', '.join(different)}. The run was made with {subject.folder.versions()}: analyse it with the same, or "
            "run it again here."
        )
