"""How sessions are best trained, SoftNet's and F2M's: a search that looks at no test image.

    FORGETFREE_DATA=… python -m bench.updates --json results/bench/updates-softnet.json
    FORGETFREE_DATA=… python -m bench.updates --method f2m --json results/bench/updates-f2m.json

A stream of its own, made of characters that no stored run of few-shot Omniglot meets, and of their training drawings
alone: three quarters of them are a base session, the others come in sessions of five classes with five drawings each
and are tested on their remaining drawings. Of a base class one drawing chooses the epoch and two others test; none does
both. One base network is learned for each seed; every row starts from it and changes how sessions are trained.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from bench.tables import WIDTH, Cell, Table, store
from forgetfree import Recipe, Task, load, save
from forgetfree.lab.experiment import build, plan

EXPERIMENT, CLASSES, WAYS, SHOTS = "fscil/omniglot", 200, 5, 5
POOL = {"benchmark.base": 900, "benchmark.tasks": 1}
"""Of the stream whose base session the classes are taken from: large enough to leave out those of stored runs."""
MEASURED = (1, 2, 3)
"""Seeds of the stored runs, whose classes are left out: what tests one seed may be learned by another."""
PAPER = Recipe(epochs=6, batch_size=512, optimizer="sgd", lr=0.02)


@dataclass(frozen=True)
class Change:
    """One way to train sessions: what it says, the recipe, and attributes of the learner."""

    words: str
    recipe: Recipe = PAPER
    settings: Mapping[str, Any] = field(default_factory=dict)


def changes(method: str) -> list[Change]:
    if method == "f2m":
        usual = replace(PAPER, momentum=0.9, weight_decay=5e-4)
        rates = (0.01, 0.003, 0.001, 0.0003, 0.0001, 0.0)
        return [Change(f"lr {rate:g}" if rate else "nothing trained", replace(usual, lr=rate)) for rate in rates]

    def change(words: str, lr: float = 0.02, epochs: int = 6, **settings: Any) -> Change:
        return Change(words, replace(PAPER, lr=lr, epochs=epochs), settings)

    return [
        change("nothing trained", lr=0.0),
        change("paper: lr 0.02, temperature 1, last layer"),
        *(change(f"lr {lr:g}", lr=lr) for lr in (0.1, 0.3, 0.5, 1.0, 2.0)),
        *(change(f"lr {lr:g}, means follow", lr=lr, drift_compensation=True) for lr in (0.3, 0.5, 1.0, 2.0)),
        *(change(f"lr 0.5, pull {p:g}", lr=0.5, feature_distillation=p) for p in (0.001, 0.01)),
        change("lr 0.5, pull 0.001, means follow", lr=0.5, feature_distillation=0.001, drift_compensation=True),
        change("lr 0.5, five exemplars, means follow", lr=0.5, exemplars=5, drift_compensation=True),
        *(change(f"lr {lr:g}, all layers", lr=lr, trainable_block="*") for lr in (0.02, 0.1)),
        change("lr 0.1, all layers, means follow", lr=0.1, trainable_block="*", drift_compensation=True),
        change("temperature 0.1", temperature=0.1),
        change("temperature 0.1, lr 0.1", lr=0.1, temperature=0.1),
        *(
            change(f"temperature 0.1, lr {lr:g}, means follow", lr=lr, temperature=0.1, drift_compensation=True)
            for lr in (0.05, 0.1, 0.2)
        ),
        change(
            "temperature 0.1, lr 0.1, pull 0.01, means follow",
            lr=0.1,
            temperature=0.1,
            feature_distillation=0.01,
            drift_compensation=True,
        ),
    ]


@dataclass(frozen=True)
class Stream:
    """Sessions made of training images only, and the tests of each."""

    tasks: list[Task]
    tests: list[tuple[Tensor, Tensor]]


def met(seeds: Sequence[int]) -> set[str | int]:
    """All classes of the experiment's streams with these seeds."""
    plans = plan(EXPERIMENT, methods=["ncm"], seeds=seeds) if seeds else []
    return {label for each in plans for task in build(each)[0].tasks for label in task.classes}


def stream(base: Task, seed: int, without: set[str | int]) -> Stream:
    """A stream out of one base session: three quarters of its classes, then the others in sessions."""
    inputs, labels = base.train  # type: ignore[misc]
    held, held_labels = base.valid  # type: ignore[misc]
    known = [label for label, name in enumerate(base.classes) if name not in without][:CLASSES]
    order = [known[at] for at in torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).tolist()]
    first = len(order) * 3 // 4
    groups = [order[:first], *(order[at : at + WAYS] for at in range(first, len(order) - WAYS + 1, WAYS))]
    tasks, tests = [], []
    for t, group in enumerate(groups):
        images = [inputs[labels == label] for label in group]
        rest = [held[held_labels == label] for label in group]
        names = tuple(base.classes[label] for label in group)
        if t:
            parts = [(each[:SHOTS], each[:0], each[SHOTS:]) for each in images]
        else:
            parts = [(each[:-2], each[-2:-1], each[-1:]) for each in images]
        learned, valid, tested = (list(part) for part in zip(*parts, strict=True))
        tasks.append(Task(f"part {t + 1}", names, _pair(learned), None if t else _pair(valid)))
        tests.append(_pair([torch.cat(both) for both in zip(tested, rest, strict=True)]))
    return Stream(tasks, tests)


def _pair(images: list[Tensor]) -> tuple[Tensor, Tensor]:
    sizes = torch.tensor([len(each) for each in images])
    return torch.cat(images), torch.arange(len(images)).repeat_interleave(sizes)


def measure(learner: Any, data: Stream) -> tuple[float, float, float]:
    """Overall, base and novel accuracy after the last session."""
    right, count, start = [], [], 0
    for task, (inputs, labels) in zip(data.tasks, data.tests, strict=True):
        given = torch.cat([learner.predict(part) for part in inputs.split(256)]).argmax(1)
        right.append(int((given == labels + start).sum()))
        count.append(len(labels))
        start += len(task.classes)
    return sum(right) / sum(count), right[0] / count[0], sum(right[1:]) / sum(count[1:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.updates", description="How sessions are best trained.")
    parser.add_argument("--seed", type=int, nargs="+", default=[1, 2], help="of the streams (default: 1 2)")
    parser.add_argument("--method", choices=("softnet", "f2m"), default="softnet", help="whose (default: softnet)")
    parser.add_argument("--capacity", type=float, default=0.8, help="of SoftNet (default: 0.8)")
    parser.add_argument("--epochs", type=int, default=20, help="of the base session (default: 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    words = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=WIDTH)
    soft = {"capacity": words.capacity} if words.method == "softnet" else {}
    without = met(MEASURED)
    rows: dict[str, dict[str, Cell]] = {each.words: {"sessions": each.words} for each in changes(words.method)}
    for seed in words.seed:
        data, found = searched(words.method, seed, words.epochs, soft, without, console)
        for sessions, numbers in found.items():
            rows[sessions] |= {f"{name}, seed {seed}": f"{100 * value:.2f}" for name, value in numbers.items()}
    sizes = [len(labels) for _, labels in data.tests]
    drawings = f"{sizes[0]} base and {sum(sizes[1:])} novel drawings that nothing was chosen by"
    note = f"In percent after {len(sizes)} sessions; {drawings}, of characters that no stored run meets."
    name = f"SoftNet, c = {words.capacity:g}" if soft else "F2M"
    table = Table(f"{name}: how sessions are trained", list(rows.values()), note)
    table.show(console)
    if words.json:
        store([table], words.json)


def searched(
    method: str, seed: int, epochs: int, settings: Mapping[str, Any], without: set[str | int], console: Console
) -> tuple[Stream, dict[str, dict[str, float]]]:
    """One base network, and what every way to train sessions makes of it: overall, base and novel accuracy."""
    milestones = [epochs * 3 // 5, epochs * 17 // 20]
    overrides = {"recipe.epochs": epochs, "recipe.milestones": milestones, **POOL, **settings}
    (run,) = plan(EXPERIMENT, methods=[method], seeds=[seed], overrides=overrides)
    benchmark, learner, backbone = build(run)
    data = stream(benchmark.tasks[0], seed, without)
    learner.learn(data.tasks[0])
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.ticket"
        save(learner, path, codec="ans")
        for each in track(changes(method), f"sessions, seed {seed}", console=console, transient=True):
            again = load(path, backbone)
            again.session = each.recipe
            for name, value in each.settings.items():
                setattr(again, name, value)
            for task in data.tasks[1:]:
                again.learn(task)
            found[each.words] = dict(zip(("overall", "base", "novel"), measure(again, data), strict=True))
    return data, found


if __name__ == "__main__":
    main()
