"""The whole of learning, validation and best state included: two tasks of Permuted MNIST, batch 10, two epochs each.

`learner.learn(task)` of ours against a plain loop over the same batches through the released way's layer, and through
the dense network, which is the limit (and forgets). The released scripts also answer their whole training set after
every epoch, only to print it; that is a rival of its own.
"""

import copy
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.nets import MLP
from bench.released import Used, masks_of, through_masks, with_masks_of, zero_used
from bench.rivals import Effort, take_turns
from bench.step import CAPACITY, LEARNING_RATE, fused_adam
from bench.tables import Table
from forgetfree import WSN, DataError, Recipe, Task
from forgetfree.batches import batches
from forgetfree.chance import stream
from forgetfree.heads import linear_head_without_bias
from forgetfree.lab.benchmarks import BENCHMARKS

TASKS, IMAGES, EPOCHS, ROUNDS = 2, 2000, 2, 3
Data = tuple[Tensor, Tensor]


def measure(effort: Effort) -> list[Table]:
    study = Study.of_mnist(100 if effort.quick else IMAGES)
    accuracies: dict[str, list[float]] = {name: [] for name in RIVALS}

    def run(name: str) -> None:
        accuracies[name].append(RIVALS[name](study, seed=len(accuracies[name])))

    rivals = {name: partial(run, name) for name in RIVALS}
    rounds = take_turns(rivals, replace(effort, rounds=effort.rounds or ROUNDS))
    rows = [
        {
            "way": name,
            "ms per step": 1e3 * rounds.median(name) / study.steps,
            "/ ours": rounds.ratio(name, to="ours"),
            "/ dense": rounds.ratio(name, to="dense"),
            "accuracy": _spread(accuracies[name]) if study.real else "–",
        }
        for name in RIVALS
    ]
    what = "MNIST" if study.real else "random vectors in place of MNIST, which is not there"
    note = effort.said(
        f"{len(rounds)} rounds, each with another seed",
        f"{what}, {study.steps} steps of batch {MLP.batch}",
        f"{TASKS} tasks, capacity {CAPACITY:.0%}",
    )
    return [Table("loop: learning two tasks, all that belongs to it", rows, note)]


@dataclass(frozen=True)
class Study:
    """Tasks to learn and their tests."""

    tasks: list[Task]
    tests: list[Data]
    real: bool

    @classmethod
    def of_mnist(cls, images: int) -> "Study":
        """So many images of MNIST per part, or random vectors where it is not."""
        try:
            benchmark = BENCHMARKS["permuted_mnist"](tasks=TASKS, limit=images)
        except DataError:
            tasks = [
                Task(f"random {t + 1}", tuple(range(10)), MLP.samples(images, seed=t), MLP.samples(images, seed=t))
                for t in range(TASKS)
            ]
            return cls(tasks, [MLP.samples(images, seed=t) for t in range(TASKS)], False)
        tests = [(exam.inputs, exam.labels) for exam in benchmark.tests.values()]
        return cls(list(benchmark.tasks), tests, True)

    @property
    def steps(self) -> int:
        return sum(EPOCHS * math.ceil(len(task.train[1]) / MLP.batch) for task in self.tasks)


def ours(study: Study, *, seed: int) -> float:
    """Learn all tasks by the library; the mean accuracy at the end."""
    torch.manual_seed(seed)
    recipe = Recipe(epochs=EPOCHS, batch_size=MLP.batch, lr=LEARNING_RATE, patience=6)
    learner = WSN(MLP.build(), capacity=CAPACITY, recipe=recipe, heads=linear_head_without_bias, seed=seed)
    for task in study.tasks:
        learner.learn(task)
    return statistics.mean(
        _right(learner.predict(inputs, task=task.name), labels)
        for task, (inputs, labels) in zip(study.tasks, study.tests, strict=True)
    )


def released(study: Study, *, seed: int, logs: bool = False) -> float:
    """The same through the released way's layer; `logs` answers the training set after every epoch."""
    torch.manual_seed(seed)
    net, used, tickets = through_masks(MLP.build(), CAPACITY), {}, []
    for position, task in enumerate(study.tasks):
        whole = nn.Sequential(net, nn.Linear(100, task.width, bias=False))
        frozen: Used = {f"0.{name}": mask for name, mask in used.items()}
        _fit(whole, task, seed, position, after_backward=partial(zero_used, whole, frozen), logs=logs)
        used = with_masks_of(net, used)
        tickets.append((masks_of(net), whole))
    accuracies = []
    for (masks, whole), (inputs, labels) in zip(tickets, study.tests, strict=True):
        net.load_state_dict(masks, strict=False)
        accuracies.append(_right(_answers(whole, inputs), labels))
    return statistics.mean(accuracies)


def dense(study: Study, *, seed: int) -> float:
    """One network without masks that simply learns on."""
    torch.manual_seed(seed)
    net, wholes = MLP.build(), []
    for position, task in enumerate(study.tasks):
        wholes.append(nn.Sequential(net, nn.Linear(100, task.width, bias=False)))
        _fit(wholes[-1], task, seed, position)
    return statistics.mean(
        _right(_answers(whole, inputs), labels) for whole, (inputs, labels) in zip(wholes, study.tests, strict=True)
    )


RIVALS: dict[str, Callable[..., float]] = {
    "dense": dense,
    "ours": ours,
    "released": released,
    "released, with its pass for logs": partial(released, logs=True),
}


def _fit(
    whole: nn.Module,
    task: Task,
    seed: int,
    position: int,
    *,
    after_backward: Callable[[], None] = lambda: None,
    logs: bool = False,
) -> None:
    """A plain loop over the batches that the library would take; the epoch with the lowest validation loss stays."""
    optimizer, lowest, best = fused_adam(list(whole.parameters())), math.inf, None
    for epoch in range(EPOCHS):
        whole.train()
        for batch in batches(task, task.train, MLP.batch, order=stream(seed, position, "order", epoch)):
            optimizer.zero_grad()
            F.cross_entropy(whole(batch.inputs), batch.labels).backward()
            after_backward()
            optimizer.step()
        if logs:
            _loss(whole, task.train)
        if (loss := _loss(whole, task.valid)) < lowest:
            lowest, best = loss, copy.deepcopy(whole.state_dict())
    whole.load_state_dict(best)


def _loss(whole: nn.Module, data: Data) -> float:
    return sum(
        float(F.cross_entropy(_answers(whole, inputs), labels, reduction="sum")) for inputs, labels in _parts(data)
    ) / len(data[1])


def _parts(data: Data, size: int = Recipe.eval_batch_size) -> Iterator[Data]:
    yield from zip(data[0].split(size), data[1].split(size), strict=True)


@torch.no_grad()
def _answers(whole: nn.Module, inputs: Tensor) -> Tensor:
    return whole.eval()(inputs)


def _right(answers: Tensor, labels: Tensor) -> float:
    return float((answers.argmax(1) == labels).float().mean())


def _spread(accuracies: list[float]) -> str:
    return f"{100 * statistics.mean(accuracies):.1f} ± {100 * statistics.pstdev(accuracies):.1f} %"
