"""The table of benches: name → function that measures and gives tables."""

import argparse
from pathlib import Path

import torch
from rich.console import Console

from bench import compiled, imports, inference, loop, select, stacked, step
from bench.rivals import Effort
from bench.tables import WIDTH, store

BENCHES = {
    "step": step.measure,
    "select": select.measure,
    "loop": loop.measure,
    "inference": inference.measure,
    "stacked": stacked.measure,
    "import": imports.measure,
}

ON_REQUEST = {"compiled": compiled.measure}
"""Not part of a whole run."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ratios, measured in one run.")
    parser.add_argument(
        "names", nargs="*", help=f"which of {', '.join(BENCHES)} (default: all of these) or {', '.join(ON_REQUEST)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--threads", type=int, default=Effort.threads, help="threads torch may use (default: 1)")
    parser.add_argument("--rounds", type=int, help="so many rounds for every row, instead of a time for each")
    parser.add_argument("--quick", action="store_true", help="the smallest configuration of each, two rounds")
    words = parser.parse_args()
    every = BENCHES | ON_REQUEST
    unknown = [name for name in words.names if name not in every]
    if unknown:
        parser.error(f"no bench is called {', '.join(unknown)}; there are {', '.join(every)}")
    effort = Effort(words.threads, words.rounds or (2 if words.quick else None), quick=words.quick)
    torch.set_num_threads(effort.threads)
    torch.manual_seed(0)
    console, measured = Console(), []
    if not console.is_terminal:
        console = Console(width=WIDTH)
    for name in words.names or BENCHES:
        tables = every[name](effort)
        for table in tables:
            table.show(console)
        measured += tables
        if words.json:  # after each: a run that is stopped keeps what it has
            store(measured, words.json)


if __name__ == "__main__":
    main()
