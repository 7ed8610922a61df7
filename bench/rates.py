"""The learning rate of every task-incremental method at scale `cpu`, by one search on validation data.

    FORGETFREE_DATA=… python -m bench.rates

A plain grid: four rates for every method and optimizer that the catalog has at scale `cpu`, the same four for all that
share an optimizer, on the first three tasks of three benchmarks. Perceptrons are searched on permuted digits,
convolutional networks on Omniglot Rotation; Permuted MNIST, which takes eight times as many steps as the digits and
wants smaller rates, on itself. Judged is the mean accuracy on the validation data of the three tasks after
the third was learned; test data are never asked. Chosen is the smallest rate within one standard error of the best:
what is less is chance, and most experiments take more steps, for which a smaller rate is safer. HAT's penalty is
searched in the same way, at the chosen rate; there the largest is taken, which leaves more units to later tasks than
three tasks can show.
Every finished row is written down at once, and a search that was stopped goes on.
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch.nn.functional import cross_entropy

from bench.tables import WIDTH, Table, store, stored
from forgetfree.contracts import Task
from forgetfree.errors import LearningError
from forgetfree.lab.experiment import build, catalog, plan, versions
from forgetfree.lab.experiment.experiments import read
from forgetfree.lab.protocols.contracts import Collecting

PERCEPTRONS, CONVOLUTIONS = "til/digits_permuted", "til/omniglot_rotation"
THEMSELVES = ("til/permuted_mnist",)
"""Experiments that are searched on themselves."""
RATES = {"adam": (0.0003, 0.001, 0.003, 0.01), "sgd": (0.03, 0.1, 0.3, 1.0)}
PENALTIES = {"hat": ("sparsity", (0.03, 0.1, 0.3, 0.75))}
"""A second setting of a method, searched at the chosen rate."""
TASKS, SEED = 3, 0
FILE = Path(__file__).resolve().parents[1] / "results" / "bench" / "rates.json"
CHOSEN, MEASURED = "rates: chosen at scale cpu", "rates: every row of the search"
"""Titles of the stored tables."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Search:
    """What is searched: a method by an optimizer, where; `setting` is the rate, or another at the chosen `rate`."""

    searched_on: str
    method: str
    optimizer: str
    setting: str = "lr"
    rate: float = 0.0

    def values(self) -> tuple[float, ...]:
        return RATES[self.optimizer] if self.setting == "lr" else PENALTIES[self.method][1]

    def overrides(self, value: float) -> dict[str, Any]:
        """How a plan of the catalog is changed to ask for one value."""
        asked = {"recipe.lr": value} if self.setting == "lr" else {"recipe.lr": self.rate, self.setting: value}
        return {"benchmark.tasks": TASKS, "recipe.optimizer": self.optimizer, **asked}


def search_for(run: Any) -> Search:
    """The search that decides on the rate of a plan."""
    kind = PERCEPTRONS if run.settings["backbone"]["name"] == "mlp" else CONVOLUTIONS
    kind = run.experiment if run.experiment in THEMSELVES else kind
    return Search(kind, run.method, run.settings["recipe"]["optimizer"])


def penalty_for(search: Search, rate: float) -> Search | None:
    """The search for a method's penalty at a rate, where it has one."""
    return replace(search, setting=PENALTIES[search.method][0], rate=rate) if search.method in PENALTIES else None


def needed() -> list[Search]:
    """Every method with every optimizer that the catalog has for it at scale `cpu`."""
    names = [name for name in catalog() if name.startswith("til/")]
    plans = [run for name in names for run in plan(name, methods=read(name)[1]["methods"], scale="cpu")]
    return sorted(set(map(search_for, plans)), key=lambda each: (each.searched_on, each.method, each.optimizer))


def measured(path: Path = FILE) -> list[Row]:
    """The rows that are stored."""
    return [dict(row) for row in stored(path)[MEASURED].rows] if path.exists() else []


def of(rows: Sequence[Row], search: Search) -> dict[float, Row]:
    """The rows of one search, by the value that was tried."""
    names = [field.name for field in fields(Search)]
    return {row["value"]: row for row in rows if Search(*(row[name] for name in names)) == search}


def chosen(rows: Sequence[Row], search: Search) -> float | None:
    """By validation data the best value, or one as good but for chance; None while the search is not finished."""
    own = of(rows, search)
    if set(own) != set(search.values()):
        return None
    best = max(own.values(), key=lambda row: row["accuracy"])
    error = math.sqrt(best["accuracy"] * (1 - best["accuracy"]) / best["images"])
    near = [value for value, row in own.items() if row["accuracy"] >= best["accuracy"] - error]
    return min(near) if search.setting == "lr" else max(near)


def remaining(rows: Sequence[Row], searches: Sequence[Search]) -> Iterator[tuple[Search, float]]:
    """What is still to be measured, as far as it is known yet: a penalty waits for its rate."""
    for search in searches:
        rate = chosen(rows, search)
        penalty = None if rate is None else penalty_for(search, rate)
        for each in filter(None, (search, penalty)):
            yield from ((each, value) for value in each.values() if value not in of(rows, each))


def measure(search: Search, value: float) -> Row:
    """One row: three tasks learned with this value, and asked on their validation data; 0 % where the loss diverged."""
    (run,) = plan(
        search.searched_on, methods=[search.method], scale="cpu", seeds=[SEED], overrides=search.overrides(value)
    )
    started = time.process_time()
    benchmark, learner, _ = build(run)
    tasks = list(benchmark.tasks)
    try:
        accuracies, losses = zip(*validated(learner, tasks), strict=True)
    except LearningError:
        accuracies, losses = (0.0,) * TASKS, (math.inf,) * TASKS
    known = versions()
    return {
        **asdict(search),
        "value": value,
        "accuracy": sum(accuracies) / TASKS,
        "loss": sum(losses) / TASKS if sum(losses) < math.inf else "diverged",
        **{f"task {t + 1}": accuracy for t, accuracy in enumerate(accuracies)},
        "images": sum(len(task.valid[1]) for task in tasks),  # type: ignore[index]
        "seconds": round(time.process_time() - started, 1),
        **{name: known[name] for name in ("forgetfree", "torch", "cpu")},
    }


def validated(learner: Any, tasks: list[Task]) -> list[tuple[float, float]]:
    """Accuracy and loss of every task on its validation data, after the last was learned."""
    for task in tasks:
        learner.learn(task)
    if isinstance(learner, Collecting):
        learner.finish()
    answers = []
    for task in tasks:
        inputs, labels = task.valid  # type: ignore[misc]
        scores = learner.predict(inputs, task=task.name)
        answers.append((float((scores.argmax(1) == labels).float().mean()), float(cross_entropy(scores, labels))))
    return answers


def tables(rows: Sequence[Row]) -> list[Table]:
    """One line for each search with its choice, and every row."""
    lines = []
    for search in dict.fromkeys(Search(*(row[field.name] for field in fields(Search))) for row in rows):
        own, best = of(rows, search), chosen(rows, search)
        tried = ", ".join(f"{value:g}: {100 * own[value]['accuracy']:.1f}" for value in sorted(own))
        name = f"{search.method}, {search.optimizer}"
        lines.append(
            {
                "searched on": search.searched_on,
                "method": name if search.setting == "lr" else f"{name} at {search.rate:g}: {search.setting}",
                "validation accuracy in percent": tried,
                "chosen": "not finished" if best is None else f"{best:g}",
            }
        )
    hours = sum(row["seconds"] for row in rows) / 3600
    note = (
        f"First {TASKS} tasks, seed {SEED}, validation data; the smallest rate (the largest penalty) within one "
        f"standard error of the best. {len(rows)} trainings, {hours:.2f} core-hours."
    )
    return [Table(CHOSEN, lines, note), Table(MEASURED, list(rows), note)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rates", description="Every method's rate, by one search.")
    parser.add_argument("--json", type=Path, default=FILE, metavar="FILE", help="where rows are kept, to go on from")
    parser.add_argument("--method", action="append", help="only these (default: all of the catalog)")
    parser.add_argument("--on", help="only this experiment (default: all that are searched on)")
    words = parser.parse_args()
    torch.set_num_threads(1)
    rows = measured(words.json)
    searches = [
        each
        for each in needed()
        if (not words.method or each.method in words.method) and words.on in (None, each.searched_on)
    ]
    console = Console(width=WIDTH)
    with Progress(console=console, transient=True) as bar:
        doing = bar.add_task("search", total=None)
        while (following := next(remaining(rows, searches), None)) is not None:
            search, value = following
            left = sum(1 for _ in remaining(rows, searches))
            bar.update(doing, description=f"{search.method}, {search.setting} {value:g}, {left} to go")
            rows.append(measure(search, value))
            store(tables(rows), words.json)
    if rows:
        tables(rows)[0].show(console)


if __name__ == "__main__":
    main()
