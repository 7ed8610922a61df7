"""`python -m soak [part …] [--scale 0.01] [--only NUMBER]`: everything, or some parts, or one mutant again."""

import argparse
import functools
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from forgetfree import registry
from soak import archives, checkpoints, folders, kills, recalled
from soak.workers import Tally, survey


def of_archives(numbers: range, folder: Path) -> Tally:
    for name in archives.originals():
        archives.expected(name)
    return survey(numbers, lambda number: archives.attempt(number, folder / "mutant.ticket"))


def of_folders(numbers: range, folder: Path) -> Tally:
    folders.lay_out(folder / "runs")
    folders.victims(folder / "runs")
    return survey(numbers, lambda number: folders.attempt(number, folder / "runs"))


def of_checkpoints(numbers: range, folder: Path) -> Tally:
    for name in checkpoints.originals():
        checkpoints.learned(name)
    return survey(numbers, lambda number: checkpoints.attempt(number, folder / "task.safetensors"))


PARTS: dict[str, tuple[Callable[[range, Path], Tally], int]] = {
    "archives": (of_archives, 100_000),
    "folders": (of_folders, 5_000),
    "checkpoints": (of_checkpoints, 5_000),
    "kills": (kills.survey, 1_000),
    "answers": (recalled.survey, 1_000_000),
}


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m soak")
    words.add_argument("parts", nargs="*", help=", ".join(PARTS))
    words.add_argument("--scale", type=float, default=1.0, help="a part of all mutants")
    words.add_argument("--only", type=int, help="the mutant of this number")
    words.add_argument("--start", type=int, default=0, help="the first number")
    asked = words.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.setdefault("COLUMNS", "100")
    registry._points = functools.cache(registry._points)  # nobody installs a package meanwhile
    failed = 0
    for name in asked.parts or PARTS:
        part, count = PARTS[name]
        numbers = range(asked.start, round(count * asked.scale))
        if asked.only is not None:
            numbers = range(asked.only, asked.only + 1)
        with tempfile.TemporaryDirectory() as folder:
            found = part(numbers, Path(folder))
        print(f"{time.strftime('%H:%M')} {name}: {found}", flush=True)
        failed += len(found.failures)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
