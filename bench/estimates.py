"""What `--dry-run` estimates, against what learning takes: every method on embedded digits.

    python -m bench.estimates --json results/bench/estimates.json

Both are CPU time of one thread. Learning is that of a run, with its checkpoints; testing is left out, as there.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from bench.rivals import Effort
from bench.tables import WIDTH, Cell, Table, store
from forgetfree.lab.experiment import Plan, build, estimate, plan
from forgetfree.lab.protocols.contracts import Collecting
from forgetfree.methods import METHODS

EXPERIMENTS = {"til": "til/digits_permuted", "fscil": "fscil/digits"}
MORE = {"joint": {"every": True}, "crt": {"every": True}}
"""Settings that change what is trained: a row of their own."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.estimates", description="Estimated time and true time.")
    parser.add_argument("--scale", default="cpu", help="smoke or cpu (default)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    words = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=WIDTH)
    rows = [_row(each) for each in track(list(_plans(words.scale)), "estimates", console=console, transient=True)]
    note = Effort().said(f"{' and '.join(EXPERIMENTS.values())}, scale {words.scale}, seed 1")
    table = Table("estimates: seconds of learning", rows, note)
    table.show(console)
    if words.json:
        store([table], words.json)


def _plans(scale: str) -> Iterator[Plan]:
    for method, entry in METHODS.entries.items():
        for overrides in ({}, MORE.get(method)):
            if overrides is not None:
                yield from plan(
                    EXPERIMENTS[entry.scenario], methods=[method], scale=scale, seeds=[1], overrides=overrides
                )


def _row(made: Plan) -> dict[str, Cell]:
    cost, true = estimate(made), _learned(made)
    said = " ".join([made.method, *(f"{key}={value}" for key, value in made.overrides.items())])
    return {"method": said, "steps": cost.steps, "estimated": cost.seconds, "true": true, "ratio": cost.seconds / true}


def _learned(made: Plan) -> float:
    """Seconds of CPU that learning the whole stream takes."""
    benchmark, learner, _ = build(made)
    tasks: list[Any] = list(benchmark.tasks)
    with tempfile.TemporaryDirectory() as folder:
        started = time.thread_time()
        for t, task in enumerate(tasks):
            learner.learn(task, checkpoint=Path(folder) / f"task-{t}.safetensors")
        if isinstance(learner, Collecting):
            learner.finish(checkpoint=Path(folder) / "all.safetensors")
        return time.thread_time() - started


if __name__ == "__main__":
    main()
