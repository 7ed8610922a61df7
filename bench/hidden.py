"""The settings of every head by class means, chosen on base classes that are hidden: no test image is looked at.

    FORGETFREE_DATA=… python -m bench.hidden fscil/omniglot
    FORGETFREE_DATA=… python -m bench.hidden fscil/cifar100 --set benchmark.split=topic --set backbone.name=resnet20

A network learns a part of the base classes; the others come in sessions of a few images each, as novel classes will,
and training images that were left out test. Every head is fitted to the features of that one network. Each has at most
twelve settings, and for each setting nine offsets between base and novel scores, in units of how far these scores
spread. Chosen is what is best over all seeds when base and novel accuracy weigh as much as in the stream that is
measured in the end. Omniglot's streams draw their characters, so there those of all measured seeds are left out.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from bench.tables import WIDTH, Table, store
from bench.updates import MEASURED, POOL, Stream, met, stream
from forgetfree.class_heads import ClassHeads
from forgetfree.contracts import Task
from forgetfree.engine import Context
from forgetfree.features import cached, extract_features
from forgetfree.few_shot.prototypes import class_head
from forgetfree.heads import head_by_name
from forgetfree.lab.experiment import build, parse_overrides, plan, versions

FOLDER = Path(__file__).resolve().parents[1] / "results" / "bench"
OFFSETS = (-1.0, -0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5, 1.0)
"""In units of the spread between the best novel and the best base score."""
HIDDEN = {"fscil/omniglot": 50, "fscil/cifar100": 20, "fscil/mini_imagenet": 20, "fscil/cub200": 30, "fscil/digits": 2}
"""Base classes that come in sessions; Omniglot's stream is made of characters of its own."""

Row = dict[str, Any]


def grid(**values: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


SPREADS = ("train", "held_out")
GRIDS: Mapping[str, list[dict[str, Any]]] = {
    "means": grid(metric=("euclidean", "cosine")),
    "normalised": [{}],
    "centred": [{}],
    "rooted": grid(power=(0.25, 0.35, 0.5, 0.7)),
    "teen": grid(pull=(0.1, 0.3, 0.5), sharpness=(4.0, 8.0, 16.0, 32.0)),
    "lda": grid(shrinkage=(0.05, 0.1, 0.2, 0.35, 0.5, 0.8), within=SPREADS),
    "ridge": grid(penalty=(1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)),
    "bayes": grid(shrinkage=(0.2, 0.5, 0.8), novel_prior=(1.0, 4.0), within=SPREADS),
}
"""At most twelve settings of each head."""


@dataclass(frozen=True)
class Seen:
    """A stream through one network: features in place of images."""

    tasks: list[Task]
    tests: list[tuple[Tensor, Tensor]]
    context: Context


def hidden_stream(experiment: str, seed: int, overrides: Mapping[str, Any], method: str = "ncm") -> tuple[Any, Stream]:
    """A learner that has learned nothing, and a stream of base classes alone."""
    if experiment == "fscil/omniglot":
        (run,) = plan(experiment, methods=[method], seeds=[seed], overrides={**overrides, **POOL})
        benchmark, learner, _ = build(run)
        return learner, stream(benchmark.tasks[0], seed, met(MEASURED))
    hidden = {"benchmark.hidden": HIDDEN[experiment], **overrides}
    (run,) = plan(experiment, methods=[method], seeds=[seed], overrides=hidden)
    benchmark, learner, _ = build(run)
    tests = [(benchmark.tests[name].inputs, benchmark.tests[name].labels) for name in benchmark.names]
    return learner, Stream(list(benchmark.tasks), tests)


def seen(learner: Any, data: Stream, checkpoint: Path | None) -> Seen:
    """The stream through the network that learns its first session."""
    first = data.tasks[0]
    learner.learn(first, checkpoint=checkpoint)
    network = learner.task_modules(first.name)["backbone"]
    tasks = [cached(task, network, batch_size=256) for task in data.tasks]
    tests = [extract_features(network, test, batch_size=256) for test in data.tests]
    context = replace(learner._context("hidden"), known=0, head=None, first_inputs=None)
    return Seen(tasks, tests, context)


def scores(kind: ClassHeads, data: Seen) -> Tensor:
    """Of all classes for all test images, after the last session."""
    head, known = None, 0
    for task in data.tasks:
        classes = tuple(range(known + len(task.classes)))
        inputs, labels = task.train  # type: ignore[misc]
        session = replace(task, classes=classes, train=(inputs, labels + known))
        head = class_head(kind, nn.Identity(), session, replace(data.context, known=known, head=head))
        known = len(classes)
    assert head is not None
    with torch.no_grad():
        return head(torch.cat([features for features, _ in data.tests]))


def judged(found: Tensor, data: Seen, share: float, unit: float | None) -> tuple[float, list[Row]]:
    """Accuracies at every offset: base, novel, their harmonic mean, and overall as in the stream that is measured."""
    base = len(data.tasks[0].classes)
    starts = torch.tensor([0, *(len(task.classes) for task in data.tasks)]).cumsum(0)
    labels = torch.cat([labels + start for (_, labels), start in zip(data.tests, starts, strict=False)])
    gap = found[:, base:].amax(1) - found[:, :base].amax(1)
    unit = float(gap.std()) if unit is None else unit
    rows = []
    for times in OFFSETS:
        moved = torch.cat([found[:, :base], found[:, base:] + times * unit], 1)
        right, old = moved.argmax(1) == labels, labels < base
        kept, new = float(right[old].double().mean()), float(right[~old].double().mean())
        rows.append(
            {"offset": times * unit, "overall": share * kept + (1 - share) * new, "base": kept, "novel": new,
             "harmonic": 2 * kept * new / max(kept + new, 1e-12)}
        )  # fmt: skip
    return unit, rows


def base_share(experiment: str, overrides: Mapping[str, Any]) -> float:
    """The part of test images that are of base classes, in the stream that is measured."""
    (run,) = plan(experiment, methods=["ncm"], seeds=[MEASURED[0]], overrides=overrides)
    benchmark = build(run)[0]
    counts = [len(benchmark.tests[name].labels) for name in benchmark.names]
    return counts[0] / sum(counts)


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    for head, tried in GRIDS.items():
        yield from ((head, given) for given in tried)


def written(head: str, given: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return f"{head}({inside})" if inside else head


def searched(seeds: Sequence[int], streams: Mapping[int, Seen], share: float, console: Console) -> list[Row]:
    """A row for every head, setting, offset and seed."""
    rows = []
    for head, given in track(list(settings()), "heads", console=console, transient=True):
        text, unit = written(head, given), None
        for seed in seeds:
            kind = cast(ClassHeads, head_by_name(text))
            unit, found = judged(scores(kind, streams[seed]), streams[seed], share, unit)
            rows += [{"head": head, "settings": text, "seed": seed, **row} for row in found]
    return rows


def chosen(rows: Sequence[Row]) -> dict[str, Row]:
    """For every head the setting and offset with the best overall accuracy over all seeds; and without an offset."""
    best: dict[str, Row] = {}
    for row in _over_seeds(rows):
        if row["head"] not in best or row["overall"] > best[row["head"]]["overall"]:
            best[row["head"]] = row
    return best


def _over_seeds(rows: Sequence[Row]) -> list[Row]:
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["settings"], row["offset"]), []).append(row)
    measures = ("overall", "base", "novel", "harmonic")
    return [
        {**own[0], **{name: sum(row[name] for row in own) / len(own) for name in measures}} for own in groups.values()
    ]


def tables(experiment: str, rows: Sequence[Row], seeds: Sequence[int], share: float, words: str) -> list[Table]:
    lines: list[Row] = []
    for head, row in chosen(rows).items():
        plain = max(
            (each["overall"] for each in _over_seeds(rows) if each["head"] == head and each["offset"] == 0), default=0.0
        )
        lines.append(
            {
                "head": row["settings"], "offset": round(row["offset"], 4),
                **{name: round(100 * row[name], 2) for name in ("overall", "base", "novel", "harmonic")},
                "offset 0": round(100 * plain, 2),
            }
        )  # fmt: skip
    known = versions()
    note = (
        f"{experiment}{words}: hidden base classes, in percent, means over seeds {', '.join(map(str, seeds))}; overall "
        f"weighs base accuracy by {share:.2f}, as the measured stream does; offset 0: overall without one. "
        f"{', '.join(f'{head} {len(tried)}' for head, tried in GRIDS.items())} settings, {len(OFFSETS)} offsets each. "
        f"forgetfree {known['forgetfree']}, torch {known['torch']}."
    )
    return [Table(f"heads: chosen on hidden classes, {experiment}{words}", lines, note),
            Table(f"heads: every row, {experiment}{words}", list(rows), note)]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hidden", description="Settings of heads, on hidden classes.")
    parser.add_argument("experiment", choices=HIDDEN, help="whose base classes are hidden")
    parser.add_argument("--seed", type=int, nargs="+", default=[11, 12], help="of the streams (default: 11 12)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the run")
    parser.add_argument("--bases", type=Path, metavar="FOLDER", help="where base networks are kept, to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where rows are written (default: results/bench)")
    words = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=WIDTH)
    overrides = parse_overrides(words.set)
    said = "".join(f", {each}" for each in words.set)
    share, streams = base_share(words.experiment, overrides), {}
    for seed in words.seed:
        learner, data = hidden_stream(words.experiment, seed, overrides)
        place = None if words.bases is None else words.bases / f"hidden-{seed}.safetensors"
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
        streams[seed] = seen(learner, data, place)
    rows = searched(words.seed, streams, share, console)
    found = tables(words.experiment, rows, words.seed, share, said)
    found[0].show(console)
    store(found, words.json or FOLDER / f"heads-{words.experiment.partition('/')[2]}.json")


if __name__ == "__main__":
    main()
