"""What figures that compare settings share: which runs are asked for, means over seeds, each method at its best."""

import math
import textwrap
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Literal

from matplotlib.axes import Axes

from forgetfree.lab.paper import SOFTNET, WSN, options
from forgetfree.lab.report.columns import noisy
from forgetfree.lab.report.figures.figure import Missing, Run, Series, deviation

LABEL_WIDTH = 26
"""Letters of a line in a legend: overrides can be long."""
MOST_TICKS = 20


def of_tasks(runs: Sequence[Run]) -> Sequence[Run]:
    """Runs of task-incremental learning; Missing for those of few-shot sessions."""
    if any(run.record.sessions for run in runs):
        raise Missing(
            "this figure is of task-incremental runs; those of few-shot sessions have session_curves and "
            "method_comparison. Make one with: forgetfree run til/permuted_mnist " + options((WSN,))
        )
    return runs


def of_sessions(runs: Sequence[Run]) -> Sequence[Run]:
    """Runs of several few-shot sessions; Missing for those of one, and of task-incremental learning."""
    if not all(run.record.sessions and len(run.record.tasks) > 1 for run in runs):
        what = "had one session only" if runs[0].record.sessions else "are task-incremental"
        raise Missing(
            f"this figure is of few-shot sessions, and these runs {what}. "
            "Make one with: forgetfree run fscil/omniglot " + options((SOFTNET,))
        )
    return runs


def command(run: Run, *words: str) -> str:
    """What to type for another run of the benchmark and scale of this one."""
    settings = run.plan["run"]
    same = [f"--set {key}={value}" for key, value in run.plan["overrides"].items() if key.startswith("benchmark.")]
    return " ".join(["forgetfree run", settings["experiment"], *words, *same, "--scale", settings["scale"]])


def by_task(run: Run) -> list[float]:
    """Accuracy on each task at the end."""
    last: Sequence[float | None] = run.record.transfer["noisy_accuracy"] if noisy(run) else run.record.accuracy[-1]
    return [value for value in last if value is not None]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Over seeds; one seed deviates by nothing."""
    return mean(values), deviation(values)


def over_sessions(one: Series, part: Literal["overall", "base", "novel"]) -> list[tuple[float, float] | None]:
    """Mean and deviation after each few-shot session; None where a run did not measure it."""
    found = []
    for entries in zip(*(run.record.by_session for run in one.runs), strict=True):
        known = [value for entry in entries if entry is not None and (value := getattr(entry, part)) is not None]
        found.append(mean_and_deviation(known) if len(known) == len(entries) else None)
    return found


def family(one: Series) -> str:
    """Its label without the capacity: what one line over capacities is called."""
    return one.label if one.capacity is None else one.label.replace(f", c = {100 * one.capacity:g} %", "")


def at_best(all_series: Sequence[Series], reached: Callable[[Run], float]) -> list[Series]:
    """Of the capacities of a method, that which reached most; other methods as they are."""
    best: dict[tuple[str, str], Series] = {}
    for one in all_series:
        key = one.method, family(one)
        known = best.get(key)
        if known is None or _mean(one, reached) > _mean(known, reached):
            best[key] = one
    return list(best.values())


def counted(axes: Axes, count: int) -> None:
    """Tasks or sessions along x, the first and as many others as can be read."""
    step = math.ceil(count / MOST_TICKS)
    axes.set_xticks([1, *range(step if step > 1 else 2, count + 1, step)])


def in_legend(label: str) -> str:
    """A label, broken where it is long."""
    return textwrap.fill(label, LABEL_WIDTH)


def _mean(one: Series, reached: Callable[[Run], float]) -> float:
    return mean(reached(run) for run in one.runs)
