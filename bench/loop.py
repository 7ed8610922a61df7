"""The whole of learning, validation and best state included: two tasks of Permuted MNIST, batch 10, two epochs each.

`learner.learn(task)` of ours against the released way as its scripts run: its layer, Adam as they call it, answers in
batches of 10, and after every epoch a pass over the training set, only to print its loss. Then against its layer alone
in a loop like ours (fused Adam, answers in batches of 256, no such pass), and against the dense network, which is the
limit (and forgets). Training and validation images are in the benchmark's proportion of nine to one.
"""

import copy
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.nets import MLP
from bench.released import Used, adam, masks_of, through_masks, with_masks_of, zero_used
from bench.rivals import Effort, take_turns
from bench.step import CAPACITY, LEARNING_RATE, fused_adam
from bench.tables import Table
from forgetfree import WSN, DataError, Recipe, Task
from forgetfree.batches import batches
from forgetfree.heads import linear_head_without_bias
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.rng import generator

TASKS, IMAGES, EPOCHS, ROUNDS = 2, 3600, 2, 3
SCRIPT_BATCH = 10
"""In which the released scripts answer."""
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
        return cls([_nine_to_one(task) for task in benchmark.tasks], tests, True)

    @property
    def steps(self) -> int:
        return sum(EPOCHS * math.ceil(len(task.train[1]) / MLP.batch) for task in self.tasks)


def _nine_to_one(task: Task) -> Task:
    inputs, labels = task.valid
    count = len(task.train[1]) // 9
    return replace(task, valid=(inputs[:count], labels[:count]))


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


def released(study: Study, *, seed: int, as_script: bool = True) -> float:
    """The same as the released scripts do it, or only through their layer."""
    torch.manual_seed(seed)
    net, used, tickets = through_masks(MLP.build(), CAPACITY), {}, []
    for position, task in enumerate(study.tasks):
        whole = nn.Sequential(net, nn.Linear(100, task.width, bias=False))
        frozen: Used = {f"0.{name}": mask for name, mask in used.items()}
        _fit(whole, task, seed, position, after_backward=partial(zero_used, whole, frozen), as_script=as_script)
        used = with_masks_of(net, used, torch.int64 if as_script else torch.uint8)
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
    "its layer": partial(released, as_script=False),
}


def _fit(
    whole: nn.Module,
    task: Task,
    seed: int,
    position: int,
    *,
    after_backward: Callable[[], None] = lambda: None,
    as_script: bool = False,
) -> None:
    """A plain loop over the batches that the library would take; the epoch with the lowest validation loss stays."""
    parameters, lowest, best = list(whole.parameters()), math.inf, None
    optimizer = adam(parameters) if as_script else fused_adam(parameters)
    size = SCRIPT_BATCH if as_script else Recipe.eval_batch_size
    for epoch in range(EPOCHS):
        whole.train()
        for batch in batches(task, task.train, MLP.batch, order=generator(seed, position, "order", epoch)):
            optimizer.zero_grad()
            F.cross_entropy(whole(batch.inputs), batch.labels).backward()
            after_backward()
            optimizer.step()
        if as_script:
            validation_loss(whole, task.train, size)
        if (loss := validation_loss(whole, task.valid, size)) < lowest:
            lowest, best = loss, copy.deepcopy(whole.state_dict())
    whole.load_state_dict(best)


def validation_loss(whole: nn.Module, data: Data, size: int) -> float:
    return sum(
        float(F.cross_entropy(_answers(whole, inputs), labels, reduction="sum"))
        for inputs, labels in zip(data[0].split(size), data[1].split(size), strict=True)
    ) / len(data[1])


@torch.no_grad()
def _answers(whole: nn.Module, inputs: Tensor) -> Tensor:
    return whole.eval()(inputs)


def _right(answers: Tensor, labels: Tensor) -> float:
    return float((answers.argmax(1) == labels).float().mean())


def _spread(accuracies: list[float]) -> str:
    return f"{100 * statistics.mean(accuracies):.1f} ± {100 * statistics.pstdev(accuracies):.1f} %"
