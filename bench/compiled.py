"""torch.compile: a step of a learner that wraps `torch.compile(backbone)`, against one that wraps the backbone itself.

Not part of a whole run: it needs a C++ compiler, and compiling takes minutes.
"""

from contextlib import ExitStack
from dataclasses import replace

import torch

from bench.nets import MLP, RESNET20, Net
from bench.rivals import Call, Effort, take_turns
from bench.step import ours
from bench.tables import Table
from forgetfree.training.loop import without_denormals

ROWS = [(MLP, 10), (MLP, 64), (RESNET20, 64)]


def measure(effort: Effort) -> list[Table]:
    rows = []
    for net, batch in effort.chosen(ROWS):
        with ExitStack() as sessions, without_denormals():
            rivals: dict[str, Call] = {
                "as it is": ours(net, net.samples(batch), sessions),
                "compiled": ours(_compiled(net), net.samples(batch), sessions),
            }
            rounds = take_turns(rivals, effort)
        rows.append({
            "network": net.name,
            "batch": batch,
            "as it is, ms": 1e3 * rounds.median("as it is"),
            "compiled / as it is": rounds.ratio("compiled", to="as it is"),
        })  # fmt: skip
    return [Table("compiled: a training step of ours", rows, effort.said(f"{len(rounds)} rounds for the last row"))]


def _compiled(net: Net) -> Net:
    return replace(net, build=lambda: torch.compile(net.build(), dynamic=False))
