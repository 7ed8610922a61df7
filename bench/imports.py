"""How much longer `import forgetfree` takes than `import torch`: fresh processes in turn."""

import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import torch

from bench.rivals import Effort, take_turns
from bench.tables import Table

ROUNDS = 7


def measure(effort: Effort) -> list[Table]:
    rounds = take_turns(
        {module: partial(_fresh_import, module) for module in ("torch", "forgetfree")},
        replace(effort, rounds=effort.rounds or ROUNDS),
        clock=time.perf_counter,
    )
    row = {
        "import torch, s": rounds.median("torch"),
        "import forgetfree, s": rounds.median("forgetfree"),
        "ratio": rounds.ratio("forgetfree", to="torch"),
    }
    return [Table("import: a fresh process", [row], f"wall time · {len(rounds)} rounds · torch {torch.__version__}")]


def _fresh_import(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
