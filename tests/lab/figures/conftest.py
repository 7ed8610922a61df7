"""Finished runs written by hand, so that what a figure measures can be computed by hand as well."""

import itertools

import pytest

from forgetfree.lab.records import Record, RunFolder
from forgetfree.lab.report.columns import Run

ACCURACY = [[0.9, None], [0.8, 0.7]]
"""Of two tasks: after the first, after the second."""
FOOTPRINT = {"formula": 0.5, "density": 0.4, "weights": 400, "mask_bits": 0, "own": 0, "heads": 0}


@pytest.fixture
def seen(tmp_path):
    """Make a finished run of a method from what its record should say.

    Few-shot runs are those with `sessions`, as in sessions={"tested": [60, 20]}. `overrides` and `settings` go into the
    plan, the latter as those of the method; whatever else is named is a field of the record.
    """
    numbers = itertools.count()

    def make(
        method="wsn", *, seed=0, capacity=0.1, accuracy=ACCURACY, experiment=None, scale="cpu", overrides=None,
        settings=None, benchmark=None, as_method=None, footprint=None, **record,
    ):  # fmt: skip
        name = experiment or ("fscil/digits" if record.get("sessions") else "til/digits_permuted")
        by_capacity = method in ("wsn", "hardnet", "softnet")
        plan = {
            "run": {"experiment": name, "method": method, "scale": scale, "seed": seed, "threads": 1},
            "overrides": overrides or {},
            "benchmark": {
                "name": name.replace("/", "_").removeprefix("til_"),
                "tasks": len(accuracy),
                **(benchmark or {}),
            },
            "backbone": {"name": "mlp"},
            "method": {**({"capacity": capacity} if by_capacity else {}), **(settings or {})},
            "recipe": {"epochs": 1, "batch_size": 32},
            "protocol": {},
        }
        found = {
            "tasks": [f"task {t + 1}" for t in range(len(accuracy))],
            "accuracy": accuracy,
            "footprints": [{**FOOTPRINT, **(footprint or {})}],
            "seconds": {"learning": [1.0] * len(accuracy), "testing": [1.0]},
        }
        folder = RunFolder(tmp_path / f"run-{next(numbers)}")
        return Run(as_method or method, folder, plan, Record(**{**found, **record}))

    return make
