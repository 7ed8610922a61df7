"""Few-shot sessions in 8 dimensions and what their tests ask of a learner: all it keeps, how often it is right."""

import torch
from torch import nn

from forgetfree.contracts import Task

DIMENSIONS, SPREAD, TESTED = 8, 0.4, 10


def backbone():
    """A small network with a norm, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(DIMENSIONS, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())


def sessions(count=3, *, base=12, images=20, classes=5, shots=5):
    """A first session of `base` classes and `count` of a few images each; and for each inputs and labels to test it."""
    draw = torch.Generator().manual_seed(1)
    tasks, tests = [], []
    for t, (ways, samples) in enumerate([(base, images), *[(classes, shots)] * count]):
        centres = 3 * torch.randn(ways, DIMENSIONS, generator=draw)
        parts = []
        for each in (samples, TESTED):
            labels = torch.arange(ways).repeat_interleave(each)
            parts.append((centres[labels] + SPREAD * torch.randn(len(labels), DIMENSIONS, generator=draw), labels))
        tasks.append(Task(f"session {t}", tuple(f"{t}/{c}" for c in range(ways)), parts[0]))
        tests.append(parts[1])
    return tasks, tests


def kept(learner):
    """Every tensor that a learner keeps, by name."""
    memory = learner.memory()
    heads = {f"{task} {name}": value for task, head in memory.heads.items() for name, value in head.items()}
    own = {f"own {name}": value for ticket in memory.tickets.values() for name, value in ticket.own.items()}
    return {**memory.shared, **heads, **own, **memory.training}


def assert_same(one, other):
    one, other = kept(one), kept(other)
    assert list(one) == list(other)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def accuracies(learner, tests):
    """Of each session's test, among all classes met."""
    found, seen = [], 0
    for inputs, labels in tests:
        found.append(float((learner.predict(inputs).argmax(1) == labels + seen).float().mean()))
        seen += int(labels.max()) + 1
    return found
