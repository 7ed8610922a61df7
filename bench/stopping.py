"""Stopping and going on: seven tasks of Permuted MNIST, an archive, three more tasks; against never having stopped.

    FORGETFREE_DATA=… python -m bench.stopping --json results/bench/stopping.json

From a resumable archive the last three tickets and all weights must be the same bits. Without free weights and scores
in it they cannot be; then the question is how many weights the network uses at the end. Takes several minutes.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bench.tables import WIDTH, Table, store
from forgetfree import load, save
from forgetfree.lab.experiment import build, plan
from forgetfree.tickets import density, used

EXPERIMENT, CAPACITY, BEFORE = "til/permuted_mnist", 0.05, 7


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stopping", description="Stop after seven tasks, and go on.")
    parser.add_argument("--scale", default="paper", help="smoke, cpu or paper (default)")
    parser.add_argument("--before", type=int, default=BEFORE, help="tasks before the stop (default: 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    words = parser.parse_args()
    torch.set_num_threads(1)
    (run,) = plan(EXPERIMENT, methods=["wsn"], scale=words.scale, seeds=[1], overrides={"capacity": CAPACITY})
    benchmark, learner, _ = build(run)
    tasks = list(benchmark.tasks)
    for task in tasks[: words.before]:
        learner.learn(task)
    with tempfile.TemporaryDirectory() as folder:
        for resumable in (False, True):
            save(learner, Path(folder) / f"{resumable}.ticket", resumable=resumable)
        ways = {"never stopped": learner} | {
            name: load(Path(folder) / f"{resumable}.ticket")
            for name, resumable in (("resumable archive", True), ("archive", False))
        }
    for way in ways.values():
        for task in tasks[words.before :]:
            way.learn(task)
    rows = [
        {
            "way": name,
            "density, %": 100 * density(used(way.network.tickets)),
            "same bits": "yes" if _state(way) == _state(learner) else "no",
        }
        for name, way in ways.items()
    ]
    stopped = f"stopped after {words.before} of {len(tasks)} tasks"
    note = f"{EXPERIMENT}, scale {words.scale}, capacity {CAPACITY:.0%}, {stopped}"
    table = Table("stopping: weights in use at the end", rows, note)
    table.show(Console(width=WIDTH))
    if words.json:
        store([table], words.json)


def _state(learner: Any) -> list[bytes]:
    """Weights, masks and scores, bit for bit."""
    tensors = [*learner.network.weights.values(), *learner.scores.state_dict().values()]
    masks = [mask.bits for ticket in learner.network.tickets.values() for mask in ticket.masks.values()]
    return [tensor.numpy().tobytes() for tensor in (*tensors, *masks)]


if __name__ == "__main__":
    main()
