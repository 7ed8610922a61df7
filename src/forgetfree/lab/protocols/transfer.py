"""Forward transfer: what is learned already is worth to a task that is not.

`guesses[i]` is the accuracy on task i just before it is learned, by `zero_shot`: the network as it stands, an untrained
head. A transfer matrix goes further, where tickets stay as they are: row j, column i is the accuracy on task i of what
task j sees, its own tensors included, through a head that is named: untrained, or the one that task i trained.
SoftNet's background noise acts on weights that later tasks move: what it does stands beside the rest, not in its place.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from forgetfree.contracts import Task
from forgetfree.lab.benchmarks.stream import Benchmark, TestSet
from forgetfree.lab.protocols.contracts import Modules, Noisy, Transferable
from forgetfree.modules import clone, freeze, reset
from forgetfree.rng import preserved_rng, seed_all

ALL_IMAGES_UP_TO, MOST_IMAGES = 20, 50
"""With more tasks than the first, a matrix is measured on at most the second of each task's test images."""
RANDOM_NETWORKS = 5


def zero_shot_accuracy(learner: Transferable, task: Task, test_set: TestSet, batch: int) -> float:
    """The accuracy on a task that is not learned."""
    right = sum(_right(learner.zero_shot(inputs, task), labels) for inputs, labels in test_set.batches(batch))
    return right / len(test_set.labels)


def transfer(
    learner: Transferable, backbone: nn.Module, benchmark: Benchmark, guesses: Sequence[float | None], batch: int
) -> dict[str, Any]:
    """All that can be measured when everything is learned, with the guesses that were made on the way.

    `backbone` is the network as it was wrapped.
    """
    untrained: dict[str, nn.Module] = {}
    random: list[float] = []
    networks = _random_networks(backbone, learner.seed)
    for t, (name, task) in enumerate(zip(benchmark.names, benchmark.tasks, strict=True)):
        test_set, known = benchmark.tests[name], learner.tasks[name]
        features = torch.zeros(2, known.features or 1)
        untrained[name] = learner.untrained_head(task, features, known.position)
        drawn = [learner.untrained_head(task, features, t, "random network", n) for n in range(len(networks))]
        accuracies = [
            _accuracies(network, [head], test_set, batch)[0] for network, head in zip(networks, drawn, strict=True)
        ]
        random.append(sum(accuracies) / len(accuracies))
    found: dict[str, Any] = {"random": random, "guesses": list(guesses)}
    return found | _between_tickets(learner, untrained, benchmark, guesses, batch) if learner.forget_free else found


def _between_tickets(
    learner: Transferable,
    untrained: Mapping[str, nn.Module],
    benchmark: Benchmark,
    guesses: Sequence[float | None],
    batch: int,
) -> dict[str, Any]:
    images = MOST_IMAGES if len(benchmark.names) > ALL_IMAGES_UP_TO else None
    test_sets = {name: benchmark.tests[name].some(images) for name in benchmark.names}
    heads = {name: {"untrained": untrained[name], "trained": learner.task_modules(name)["head"]} for name in test_sets}
    matrix = _matrices(learner.task_modules, heads, test_sets, batch)
    if not isinstance(learner, Noisy) or not learner.background_noise:
        return {"matrix": matrix, "images": images}
    zero_shot_modules = learner.zero_shot_modules
    noisy = {f"{kind}, noisy": rows for kind, rows in _matrices(zero_shot_modules, heads, test_sets, batch).items()}
    whole = [
        _accuracies(zero_shot_modules(name)["backbone"], [heads[name]["trained"]], benchmark.tests[name], batch)[0]
        for name in test_sets
    ]
    return {
        "guesses": _plain_guesses(learner, untrained, benchmark, batch),
        "noisy_guesses": list(guesses),  # `zero_shot` of a learner with noise uses it
        "matrix": matrix | noisy,
        "noisy_accuracy": whole,
        "images": images,
    }


def _plain_guesses(
    learner: Transferable, untrained: Mapping[str, nn.Module], benchmark: Benchmark, batch: int
) -> list[float | None]:
    """What a learner with noise would have guessed without it: tickets do not change, so it can be asked later."""
    pairs = itertools.pairwise(benchmark.names)
    return [None] + [
        _accuracies(learner.task_modules(before)["backbone"], [untrained[name]], benchmark.tests[name], batch)[0]
        for before, name in pairs
    ]


def _matrices(
    modules: Modules, heads: Mapping[str, Mapping[str, nn.Module]], test_sets: Mapping[str, TestSet], batch: int
) -> dict[str, list[list[float]]]:
    """For each kind of head: a row for every task that lends its ticket, a column for every task that is asked."""
    rows: dict[str, list[list[float]]] = {}
    for owner in test_sets:
        backbone = modules(owner)["backbone"]
        cells = [
            _accuracies(backbone, list(heads[name].values()), test_set, batch) for name, test_set in test_sets.items()
        ]
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


def _accuracies(backbone: nn.Module, heads: Sequence[nn.Module], test_set: TestSet, batch: int) -> list[float]:
    """Of each head on the same features."""
    right = [0] * len(heads)
    with torch.no_grad():
        for inputs, labels in test_set.batches(batch):
            features = backbone(inputs)
            for h, head in enumerate(heads):
                right[h] += _right(head(features), labels)
    return [count / len(test_set.labels) for count in right]


def _right(answers: Tensor, labels: Tensor) -> int:
    return int((answers.argmax(1) == labels).sum())
