"""Forward transfer: what is learned already is worth to a task that is not.

`guesses[i]` is the accuracy on task i just before it is learned, by `guess`: the network as it stands, an untrained
head. A transfer matrix goes further, where tickets stay as they are: row j, column i is the accuracy on task i of what
task j sees, its own tensors included, through a head that is named: untrained, or the one that task i trained.
SoftNet's background noise acts on weights that later tasks move: what it does stands beside the rest, not in its place.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from forgetfree.contracts import Inputs, Task, TaskRecord
from forgetfree.lab.benchmarks.stream import Benchmark, Exam
from forgetfree.lessons import Lessons
from forgetfree.modules import clone, freeze, reset
from forgetfree.rng import preserved_rng, seed_all

ALL_IMAGES_UP_TO, MOST_IMAGES = 20, 50
"""With more tasks than the first, a matrix is measured on at most the second of each task's test images."""
RANDOM_NETWORKS = 5

Parts = Callable[[str], dict[str, nn.Module]]


class Guesser(Protocol):
    """A learner that can be asked about a task before it learns it, and shows what each task sees."""

    forget_free: bool
    lessons: Lessons

    @property
    def tasks(self) -> Mapping[str, TaskRecord]: ...
    def guess(self, inputs: Inputs, task: Task) -> Tensor: ...
    def parts(self, task: str) -> dict[str, nn.Module]: ...


def guessed(learner: Guesser, task: Task, exam: Exam, batch: int) -> float:
    """The accuracy on a task that is not learned."""
    right = sum(_right(learner.guess(inputs, task), labels) for inputs, labels in exam.batches(batch))
    return right / len(exam.labels)


def transfer(
    learner: Guesser, backbone: nn.Module, benchmark: Benchmark, guesses: Sequence[float | None], batch: int
) -> dict[str, Any]:
    """All that can be measured when everything is learned, with the guesses that were made on the way.

    `backbone` is the network as it was wrapped.
    """
    untrained: dict[str, nn.Module] = {}
    random: list[float] = []
    networks = _random_networks(backbone, learner.lessons.seed)
    for t, (name, task) in enumerate(zip(benchmark.names, benchmark.tasks, strict=True)):
        exam, known = benchmark.tests[name], learner.tasks[name]
        features = torch.zeros(2, known.features or 1)
        untrained[name] = learner.lessons.untrained_head(task, features, known.position)
        drawn = [learner.lessons.untrained_head(task, features, t, "random network", n) for n in range(len(networks))]
        accuracies = [
            _accuracies(network, [head], exam, batch)[0] for network, head in zip(networks, drawn, strict=True)
        ]
        random.append(sum(accuracies) / len(accuracies))
    found: dict[str, Any] = {"random": random, "guesses": list(guesses)}
    return found | _between_tickets(learner, untrained, benchmark, guesses, batch) if learner.forget_free else found


def _between_tickets(
    learner: Guesser,
    untrained: Mapping[str, nn.Module],
    benchmark: Benchmark,
    guesses: Sequence[float | None],
    batch: int,
) -> dict[str, Any]:
    images = MOST_IMAGES if len(benchmark.names) > ALL_IMAGES_UP_TO else None
    exams = {name: benchmark.tests[name].some(images) for name in benchmark.names}
    heads = {name: {"untrained": untrained[name], "trained": learner.parts(name)["head"]} for name in exams}
    matrix = _matrices(learner.parts, heads, exams, batch)
    if not getattr(learner, "background_noise", 0.0):
        return {"matrix": matrix, "images": images}
    soft_parts: Parts = learner.soft_parts  # type: ignore[attr-defined]
    noisy = {f"{kind}, noisy": rows for kind, rows in _matrices(soft_parts, heads, exams, batch).items()}
    whole = [
        _accuracies(soft_parts(name)["backbone"], [heads[name]["trained"]], benchmark.tests[name], batch)[0]
        for name in exams
    ]
    return {
        "guesses": _plain_guesses(learner, untrained, benchmark, batch),
        "noisy_guesses": list(guesses),  # `guess` of a learner with noise uses it
        "matrix": matrix | noisy,
        "noisy_accuracy": whole,
        "images": images,
    }


def _plain_guesses(
    learner: Guesser, untrained: Mapping[str, nn.Module], benchmark: Benchmark, batch: int
) -> list[float | None]:
    """What a learner with noise would have guessed without it: tickets do not change, so it can be asked later."""
    pairs = itertools.pairwise(benchmark.names)
    return [None] + [
        _accuracies(learner.parts(before)["backbone"], [untrained[name]], benchmark.tests[name], batch)[0]
        for before, name in pairs
    ]


def _matrices(
    parts: Parts, heads: Mapping[str, Mapping[str, nn.Module]], exams: Mapping[str, Exam], batch: int
) -> dict[str, list[list[float]]]:
    """For each kind of head: a row for every task that lends its ticket, a column for every task that is asked."""
    rows: dict[str, list[list[float]]] = {}
    for owner in exams:
        backbone = parts(owner)["backbone"]
        cells = [_accuracies(backbone, list(heads[name].values()), exam, batch) for name, exam in exams.items()]
        for kind, row in zip(heads[owner], zip(*cells, strict=True), strict=True):
            rows.setdefault(kind, []).append(list(row))
    return rows


def _random_networks(backbone: nn.Module, seed: int) -> list[nn.Module]:
    networks, cpu = [], torch.device("cpu")
    for number in range(RANDOM_NETWORKS):
        network = clone(backbone)
        with preserved_rng(cpu):
            seed_all(cpu, seed, "random network", number)
            reset(network)
        networks.append(freeze(network))
    return networks


def _accuracies(backbone: nn.Module, heads: Sequence[nn.Module], exam: Exam, batch: int) -> list[float]:
    """Of each head on the same features."""
    right = [0] * len(heads)
    with torch.no_grad():
        for inputs, labels in exam.batches(batch):
            features = backbone(inputs)
            for h, head in enumerate(heads):
                right[h] += _right(head(features), labels)
    return [count / len(exam.labels) for count in right]


def _right(answers: Tensor, labels: Tensor) -> int:
    return int((answers.argmax(1) == labels).sum())
