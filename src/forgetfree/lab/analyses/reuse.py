"""Reuse: how well a task answers without the weights that it shares with earlier ones, and with nothing but them.

The paper's ablation (Figure 6): the weights that tasks share are as they were learned, only a mask changes. Own tensors
(biases, norms, statistics) and the head stay those of the task.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forgetfree.lab import legend
from forgetfree.lab.analyses.subject import Advance, Subject
from forgetfree.lab.benchmarks.stream import TestSet
from forgetfree.lab.experiment import Plan
from forgetfree.modules import copy_module, freeze
from forgetfree.tickets import Sets, Ticket

IMAGES = 1000
"""At most so many test images of each task, evenly spread over them, measure what a mask is worth."""
DIGITS = 6

VARIANTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "ticket": lambda mask, before, by_all: mask,
    "without reused": lambda mask, before, by_all: mask & ~before,
    "without reused for all": lambda mask, before, by_all: mask & ~by_all,
    "only reused": lambda mask, before, by_all: mask & before,
    "all used": lambda mask, before, by_all: mask | before,
}
"""Name → mask from that of the task, what tasks before it use, and what all of them and the task use."""


def applies(plan: Plan) -> bool:
    return legend.entry(plan.method).reuses


def analyse(subject: Subject, advance: Advance) -> Mapping[str, Any]:
    """Accuracies of each task, by its test images, through other masks than its ticket.

    `variants`: see VARIANTS; for the first task only "ticket", as nothing is reused. `layers`: where the reused weights
    of one layer are removed. `images`: how many of each task. `as_recorded`: whether tickets, asked about all test
    images, give the accuracies of the record, each exactly.
    """
    memory = subject.learner.memory()
    layers = list(next(iter(memory.tickets.values())).masks)
    batch = int(subject.plan.settings["protocol"]["batch"])
    variants: dict[str, list[float | None]] = {name: [] for name in VARIANTS}
    by_layer: dict[str, list[float | None]] = {layer: [] for layer in layers}
    images, whole = [], []
    for t, (name, before, by_all) in enumerate(so_far(memory.tickets)):
        modules, test_set = subject.learner.task_modules(name), subject.benchmark.tests[name]
        mask = {layer: memory.tickets[name].mask(layer) for layer in layers}
        whole.append(accuracy(modules, memory.shared, mask, test_set, batch))
        some = test_set.some(IMAGES)
        images.append(len(some.labels))
        for variant, choose in VARIANTS.items():
            chosen = {layer: choose(mask[layer], before[layer], by_all[layer]) for layer in layers}
            measured = accuracy(modules, memory.shared, chosen, some, batch) if t or variant == "ticket" else None
            variants[variant].append(measured)
        for layer in layers:
            chosen = {**mask, layer: mask[layer] & ~before[layer]}
            by_layer[layer].append(accuracy(modules, memory.shared, chosen, some, batch) if t else None)
        advance((t + 1) / len(memory.tickets))
    recorded = [round(value, DIGITS) for value in subject.record.accuracy[-1] if value is not None]
    return {
        "tasks": list(memory.tickets),
        "variants": variants,
        "layers": by_layer,
        "images": images,
        "as_recorded": whole == recorded,
    }


def so_far(tickets: Mapping[str, Ticket]) -> Iterator[tuple[str, Sets, Sets]]:
    """Each task with the weights that some task before it uses, and those that all of these and itself use."""
    before: Sets = {}
    by_all: Sets = {}
    for name, ticket in tickets.items():
        mask = {layer: packed.unpack() for layer, packed in ticket.masks.items()}
        earlier = before or {layer: torch.zeros_like(value) for layer, value in mask.items()}
        by_all = {layer: value & by_all.get(layer, value) for layer, value in mask.items()}
        yield name, earlier, by_all
        before = {layer: value | earlier[layer] for layer, value in mask.items()}


def accuracy(
    modules: Mapping[str, nn.Module], shared: Mapping[str, Tensor], masks: Sets, test_set: TestSet, batch: int
) -> float:
    """Of a task's backbone and head, with these of the shared weights in it."""

    def tensor_for(name: str, old: Tensor) -> Tensor:
        return shared[name].where(masks[name], 0) if name in masks else old.detach().clone()

    backbone = freeze(copy_module(modules["backbone"], tensor_for))
    right = 0
    with torch.no_grad():
        for inputs, labels in test_set.batches(batch):
            right += int((modules["head"](backbone(inputs)).argmax(1) == labels).sum())
    return round(right / len(test_set.labels), DIGITS)
