"""The rate of every few-shot method whose sessions train, chosen on base classes that are hidden.

    FORGETFREE_DATA=… python -m bench.sessions fscil/omniglot

Five rates for each, around the one that its paper or program has, on the streams of `bench.hidden`; where a method has
a second setting that its sessions hang on, five values of it at the chosen rate. Chosen is what is best over all seeds
when base and novel accuracy weigh as much as in the stream that is measured in the end. No test image is looked at.
Every finished row is written down at once, and a search that was stopped goes on.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from bench.hidden import FOLDER, HIDDEN, base_share, hidden_stream
from bench.tables import WIDTH, Table, store, stored
from bench.updates import measure
from forgetfree.errors import LearningError
from forgetfree.lab.experiment import parse_overrides, plan, versions
from forgetfree.lab.protocols.contracts import Collecting, base_name_of

TIMES = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Rates, as multiples of the one in the catalog."""
TRAINED = ("softnet", "crt", "icarl", "rebalance", "fsll", "f2m", "warp", "s3c")
SECOND: dict[str, tuple[str, tuple[float, ...]]] = {
    "softnet": ("temperature", (0.03, 0.1, 0.3, 1.0, 3.0)),
    "warp": ("temperature", (0.03, 0.0625, 0.25, 1.0, 4.0)),
    "s3c": ("replay_weight", (0.0, 1.0, 5.0, 20.0, 100.0)),
    "fsll": ("reg_weight", (0.0, 1.0, 5.0, 20.0, 100.0)),
    "rebalance": ("less_forget", (0.0, 1.0, 4.0, 16.0, 64.0)),
}
"""A second setting of a method's sessions, searched at the chosen rate."""
CHOSEN, MEASURED = "sessions: chosen on hidden classes", "sessions: every row"

Row = dict[str, Any]


def usual_rate(experiment: str, method: str) -> float:
    """The rate that the catalog has at scale `paper`: that of the paper or its program, whatever was chosen since."""
    (run,) = plan(experiment, methods=[method], scale="paper")
    return float(run.settings["session"]["lr"])


def trials(experiment: str, method: str, rows: Sequence[Row]) -> Iterator[tuple[str, float, float]]:
    """Setting, value and rate of everything that is to be tried, as far as it is known yet."""
    rate = usual_rate(experiment, method)
    rates = [float(f"{times * rate:.3g}") for times in TIMES]
    yield from (("session.lr", value, value) for value in rates)
    best = chosen(rows, method, "session.lr", len(rates))
    if method in SECOND and best is not None:
        name, values = SECOND[method]
        yield from ((name, value, best) for value in values)


def chosen(rows: Sequence[Row], method: str, setting: str, count: int) -> float | None:
    """The best value over all seeds; None while some are missing."""
    found: dict[float, list[float]] = {}
    for row in rows:
        if (row["method"], row["setting"]) == (method, setting):
            found.setdefault(row["value"], []).append(row["overall"])
    if len(found) < count or len({len(values) for values in found.values()}) > 1:
        return None
    return max(found, key=lambda value: sum(found[value]) / len(found[value]))


def tried(experiment: str, method: str, seed: int, overrides: dict[str, Any], share: float, bases: Path | None) -> Row:
    """One row: a hidden stream learned with these settings; no accuracy where the loss diverged."""
    learner, data = hidden_stream(experiment, seed, overrides, method)
    place = None if bases is None else bases / f"{base_name_of(learner)}-{seed}.safetensors"
    try:
        for at, task in enumerate(data.tasks):
            learner.learn(task, checkpoint=place if at == 0 else None)
        if isinstance(learner, Collecting):
            learner.finish()
        _, base, novel = measure(learner, data)
    except LearningError:
        base = novel = 0.0
    return {"overall": share * base + (1 - share) * novel, "base": base, "novel": novel}


def tables(rows: Sequence[Row], words: str) -> list[Table]:
    """One line for every setting of every method, and every row."""
    lines: list[Row] = []
    for method, setting in dict.fromkeys((row["method"], row["setting"]) for row in rows):
        own = [row for row in rows if (row["method"], row["setting"]) == (method, setting)]
        values = sorted({row["value"] for row in own})
        mean = {value: _mean([row["overall"] for row in own if row["value"] == value]) for value in values}
        best = chosen(rows, method, setting, len(TIMES))
        lines.append(
            {
                "method": method, "setting": setting,
                "overall in percent": ", ".join(f"{value:g}: {100 * mean[value]:.1f}" for value in values),
                "chosen": "not finished" if best is None else f"{best:g}",
            }
        )  # fmt: skip
    known = versions()
    note = (
        f"{words}: hidden base classes, means over seeds {', '.join(sorted({str(row['seed']) for row in rows}))}. "
        f"No test image was looked at. forgetfree {known['forgetfree']}, torch {known['torch']}."
    )
    return [Table(CHOSEN, lines, note), Table(MEASURED, list(rows), note)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sessions", description="How sessions are best trained.")
    parser.add_argument("experiment", choices=HIDDEN, help="whose base classes are hidden")
    parser.add_argument("--seed", type=int, nargs="+", default=[11, 12], help="of the streams (default: 11 12)")
    parser.add_argument("--method", action="append", choices=TRAINED, help="only these (default: all)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the run")
    parser.add_argument("--bases", type=Path, metavar="FOLDER", help="where base networks are kept, to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where rows are kept (default: results/bench)")
    words = parser.parse_args()
    torch.set_num_threads(1)
    file = words.json or FOLDER / f"sessions-{words.experiment.partition('/')[2]}.json"
    rows = [dict(row) for row in stored(file)[MEASURED].rows] if file.exists() else []
    given, share = parse_overrides(words.set), None
    if words.bases is not None:
        words.bases.mkdir(parents=True, exist_ok=True)
    console = Console(width=WIDTH)
    with Progress(console=console, transient=True) as bar:
        doing = bar.add_task("search", total=None)
        for method in words.method or TRAINED:
            while left := _left(words.experiment, method, words.seed, rows):
                setting, value, rate, seed = left[0]
                bar.update(doing, description=f"{method}, {setting} {value:g}, seed {seed}, {len(left)} to go")
                share = base_share(words.experiment, given) if share is None else share
                asked = {**given, "session.lr": rate, setting: value}
                found = tried(words.experiment, method, seed, asked, share, words.bases)
                rows.append({"method": method, "setting": setting, "value": value, "rate": rate, "seed": seed, **found})
                store(tables(rows, f"{words.experiment}{''.join(f', {each}' for each in words.set)}"), file)
    if rows:
        stored(file)[CHOSEN].show(console)


def _left(
    experiment: str, method: str, seeds: Sequence[int], rows: Sequence[Row]
) -> list[tuple[str, float, float, int]]:
    done = {(row["method"], row["setting"], row["value"], row["seed"]) for row in rows}
    wanted = [(*trial, seed) for trial in trials(experiment, method, rows) for seed in seeds]
    return [each for each in wanted if (method, each[0], each[1], each[3]) not in done]


if __name__ == "__main__":
    main()
