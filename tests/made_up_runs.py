"""Run folders written by hand."""

import json
from pathlib import Path

from forgetfree.lab.records import Record, RunFolder


def write_events(folder: Path, events: list[dict], *, mode: str = "w") -> Path:
    """Write down events, or with mode "a" more of them, as a run of WSN would."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text('[run]\nexperiment = "til/made_up"\nmethod = "wsn"\n')
    with (folder / "events.jsonl").open(mode) as file:
        file.writelines(json.dumps(each) + "\n" for each in events)
    return folder


def write_run(
    folder: Path, method: str, *, seed: int = 0, capacity: float | None = None, few_shot: bool = False
) -> RunFolder:
    """A finished run of any method, also one that is not installed: two tasks, or two few-shot sessions."""
    experiment = "fscil/digits" if few_shot else "til/permuted_mnist"
    made = RunFolder(folder / f"{experiment.replace('/', '-')}" / f"{method}-{capacity}-{seed}")
    plan = {
        "run": {"experiment": experiment, "method": method, "scale": "cpu", "seed": seed, "threads": 1},
        "overrides": {} if capacity is None else {"capacity": capacity},
        "benchmark": {"name": "fscil_digits" if few_shot else "permuted_mnist", "tasks": 2},
        "backbone": {"name": "mlp"},
        "method": {} if capacity is None else {"capacity": capacity},
        "recipe": {"epochs": 1, "batch_size": 32},
        "protocol": {},
    }
    cost = {"formula": 0.5, "density": 0.4, "weights": 400, "mask_bits": 1000, "own": 0, "heads": 0}
    made.start(plan, {"forgetfree": "0.1.0"})
    made.save(
        Record(
            tasks=["one", "two"],
            accuracy=[[0.9, None], [0.8, 0.7 + 0.01 * seed]],
            footprints=[cost] * 2,
            compared=100,
            sessions={"tested": [60, 20], "classes": [6, 2], "confusion": [], "mistakes": []} if few_shot else {},
            seconds={"learning": [1.0, 1.0], "testing": [1.0, 1.0]},
        )
    )
    return made
