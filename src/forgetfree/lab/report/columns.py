"""Columns: what one finished run says in each column of the paper's tables, and TABLES, the tables there are."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from forgetfree.lab.metrics import PAPER_ALPHA, forward_transfer
from forgetfree.lab.paper import SOFTNET
from forgetfree.lab.records import Record, RunFolder
from forgetfree.lab.report.published import methods


@dataclass(frozen=True)
class Run:
    """A finished run, as one method of the tables."""

    method: str
    folder: RunFolder
    plan: Mapping[str, Any]
    record: Record


@dataclass(frozen=True)
class Column:
    """One column: its heading, what it means, and its value for a run; percent of a fraction, or hours."""

    heading: str
    meaning: str
    measured: Callable[[Run], float | None]
    unit: float = 100.0
    digits: int = 2
    sign: Literal["", "+"] = ""
    """Whether a number above zero shows it."""


OF_ONE_METHOD = ("draw", "augment_sessions")
"""Settings of a benchmark in which runs on one stream may differ."""
SINCE = {"hidden": 0, "augmentation": "none"}
"""Settings that runs of before do not have, as they are where nobody changes them."""


def stream(run: Run) -> dict[str, Any]:
    """The settings of a benchmark that must be alike for two runs to be compared; seeds and draws are averaged over."""
    return {
        key: value
        for key, value in run.plan["benchmark"].items()
        if key not in OF_ONE_METHOD and (key not in SINCE or value != SINCE[key])
    }


def views(folder: RunFolder) -> list[Run]:
    """A run as its method; one of WSN that answered with noise behind its masks as well, also as SoftNet."""
    plan, record = folder.finished_plan(), folder.record()
    names = [plan["run"]["method"]]
    if plan["method"].get("background_noise", 0.0) > 0 and "noisy_accuracy" in record.transfer:
        names.append(SOFTNET)
    return [Run(name, folder, plan, record) for name in names]


def dense_weights(cost: Mapping[str, float]) -> float:
    """How many weights one network has, by a footprint whose `formula` is in units of it."""
    return (cost["weights"] + (1 - PAPER_ALPHA) * cost["mask_bits"] / 32) / cost["formula"]


def noisy(run: Run) -> bool:
    """Whether a task-incremental run is read with noise behind its masks; few-shot SoftNet is a method of its own."""
    return run.method == SOFTNET and not run.record.sessions


def accuracy(run: Run) -> float:
    return statistics.mean(run.record.transfer["noisy_accuracy"]) if noisy(run) else run.record.acc


def charged(run: Run) -> float:
    """CAP by the rule that the paper has for this method; masks of methods that are in no table cost their bits."""
    cost = run.record.footprints[-1]
    known = methods().get(run.method)
    rule = known.charged if known else "raw"
    dense = dense_weights(cost)
    if rule == "coded":
        return cost["formula"]
    if rule == "dense":
        return max(1, round(cost["weights"] / dense))
    return cost["weights"] / dense + cost["mask_bits"] / (32 * dense)


def coded(run: Run) -> float:
    return run.record.footprints[-1]["formula"]


def written(run: Run) -> float | None:
    return run.record.footprints[-1].get("written_without_heads")


def forward(run: Run) -> float | None:
    """FWT with a head that has not learned anything."""
    if not noisy(run):
        return run.record.fwt
    found = run.record.transfer
    return forward_transfer(found["noisy_guesses"], found["random"]) if "noisy_guesses" in found else None


def forward_with_own_head(run: Run) -> float | None:
    """FWT of the ticket before, with the head that the task itself learned later."""
    found = run.record.transfer
    matrix = found.get("matrix", {}).get("trained, noisy" if noisy(run) else "trained")
    if matrix is None:
        return None
    before = [None, *(matrix[i - 1][i] for i in range(1, len(matrix)))]
    return forward_transfer(before, found["random"])


def backward(run: Run) -> float | None:
    return None if noisy(run) else run.record.bwt  # with noise, accuracy is measured at the end only


def to_learn(run: Run) -> float | None:
    """Values kept only to learn on (Fisher information, bases, scores, exemplars), in units of one dense network."""
    cost = run.record.footprints[-1]
    values = cost.get("training")
    return None if values is None else values / dense_weights(cost)


def hours(run: Run) -> float:
    return sum(run.record.seconds["learning"]) / 3600


LEARNED = {
    "acc": Column("ACC", "mean accuracy of all tasks at the end", accuracy),
    "cap": Column("CAP, paper's rule", "weights and masks as the paper charges this method", charged),
    "cap_coded": Column("CAP, one code", "used weights and 1 - 0.78 bits for every mask bit, for all methods", coded),
    "cap_written": Column(
        "CAP, file", "bytes of the archive really written, without heads, over those of one dense network", written
    ),
}
"""Columns that all tables of task-incremental learning have."""

TRANSFERRED = LEARNED | {
    "fwt": Column(
        "FWT",
        "accuracy on a task before it is learned, with an untrained head, less that of random networks; mean over the "
        "T - 1 tasks after the first",
        forward,
    ),
    "fwt_own_head": Column(
        "FWT, own head",
        "the same by the ticket of the task before, with the head that the task itself learned",
        forward_with_own_head,
    ),
    "bwt": Column("BWT", "mean change of earlier tasks", backward),
}

TIME = Column(
    "time (h)",
    "hours of learning, ours on the machine of the run, the paper's on a V100",
    hours,
    unit=1.0,
    digits=4,  # hours of small runs are small
)

TIMED = LEARNED | {"time": TIME}

TABLES: dict[str, Mapping[str, Column]] = {"1": TRANSFERRED, "2": TRANSFERRED, "3": TIMED}
"""Tables of task-incremental learning in the paper, name → columns; their published half is in published.toml."""
