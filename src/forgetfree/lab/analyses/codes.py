"""Codes: how used weights, masks by every code and real archives grow with the number of tasks.

After t tasks means: with the first t tickets alone. A mask by the context code is coded given the masks before it, and
a full block of symbols never changes, so that growth is read off the blocks. Archives are written: the last tasks are
removed from the learner, and what is left is saved anew.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forgetfree.archive import load, save, sizes
from forgetfree.codec import PAPER_BITS, Flags, Weights, ans, context, huffman, raw_bits
from forgetfree.lab.analyses.subject import Advance, Subject
from forgetfree.lab.experiment import Plan
from forgetfree.lab.metrics import BYTES
from forgetfree.lab.paper import WSN

HUFFMAN_BITS = (2, 4, 7, 10)
"""How many tasks share a symbol; the paper tries several, and takes 7. A Huffman code of single bits saves nothing."""
POINTS, FILES = 20, 10
"""With more tasks than this, masks are coded and archives written for as many numbers of tasks, evenly spread."""


def applies(plan: Plan) -> bool:
    return plan.method == WSN  # whose masks the codes are made for; any learner with tickets could be asked


def analyse(subject: Subject, advance: Advance) -> Mapping[str, Any]:
    """All in bytes, for each number of tasks in `tasks`.

    `weights`: used weights in float32. `masks`: code → all masks. `archive`: the "file" that was written, and its
    parts, for the numbers of tasks in `archived`.
    """
    memory = subject.learner.memory()
    counted, archived = (points(len(memory.tickets), most) for most in (POINTS, FILES))
    masks: dict[str, list[int]] = {}
    weights = [0] * len(counted)
    layers = list(next(iter(memory.tickets.values())).masks)
    for done, layer in enumerate(layers):
        flags = np.stack([ticket.mask(layer).numpy() for ticket in memory.tickets.values()])
        values = memory.shared[layer].detach().cpu().numpy()
        for code, grown in mask_bytes(flags, values, counted).items():
            masks[code] = [a + b for a, b in zip(masks.get(code, [0] * len(counted)), grown, strict=True)]
        weights = [a + BYTES * b for a, b in zip(weights, used_weights(flags, counted), strict=True)]
        advance(0.5 * (done + 1) / len(layers))
    return {
        "tasks": counted,
        "weights": weights,
        "masks": masks,
        "archived": archived,
        "archive": _archives(subject.folder.archive, archived, advance),
    }


def points(tasks: int, most: int) -> list[int]:
    """Numbers of tasks to measure at: all, or an even choice of them with the first and the last."""
    if tasks <= most:
        return list(range(1, tasks + 1))
    return [round(1 + i * (tasks - 1) / (most - 1)) for i in range(most)]


def used_weights(masks: Flags, counted: Sequence[int]) -> list[int]:
    """How many weights of a layer some of the first t tasks use."""
    used = np.zeros(masks.shape[1:], bool)
    grown = []
    for mask in masks:
        used |= mask
        grown.append(int(np.count_nonzero(used)))
    return [grown[t - 1] for t in counted]


def mask_bytes(masks: Flags, weights: Weights, counted: Sequence[int]) -> dict[str, list[int]]:
    """Code → bytes of the first t masks of a layer; "raw" is one bit per weight and task, each mask in whole bytes."""
    codes = {f"huffman {bits}": (huffman(bits), bits) for bits in HUFFMAN_BITS}
    codes[f"ans {PAPER_BITS}"] = (ans(PAPER_BITS), PAPER_BITS)
    found = {"raw": [t * -(-raw_bits(masks[:1]) // 8) for t in counted]}
    for code, (codec, bits) in codes.items():
        full = np.cumsum([0, *(len(block) for block in codec.encode(masks))]).tolist()
        found[code] = [
            full[t // bits] + sum(len(block) for block in codec.encode(masks[t - t % bits : t])) for t in counted
        ]
    grown = np.cumsum([len(block) for block in context().encode(masks, weights)]).tolist()
    return {**found, "context": [grown[t - 1] for t in counted]}


def _archives(path: Path, archived: Sequence[int], advance: Advance) -> dict[str, list[int]]:
    """Bytes of archives with the first t tasks of the one that is there."""
    learner = load(path)  # one of its own, for it forgets all tasks but the first
    names = list(learner.tasks)
    rows = [sizes(path)]
    with tempfile.TemporaryDirectory() as folder:
        shorter = Path(folder) / path.name
        for t in range(len(names) - 1, 0, -1):
            learner.remove(names[t])
            if t in archived:
                save(learner, shorter)
                rows.insert(0, sizes(shorter))
            advance(1 - 0.5 * t / len(names))
    advance(1.0)
    parts = dict.fromkeys(part for row in rows for part in row)
    return {part: [row.get(part, 0) for row in rows] for part in parts}
