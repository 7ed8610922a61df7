"""Rivals take turns, and what is reported is the median of the ratios within a round.

A busy machine slows all rivals of a round alike, so a ratio within the round stays where the seconds do not. A turn of
a fast rival is several calls, long enough for the clock; the order changes from round to round. On one thread the clock
is that thread's own CPU time, which stands still while other processes have the core.
"""

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

Call = Callable[[], Any]
Clock = Callable[[], float]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Effort:
    """How much is measured: the defaults are those of `make bench`."""

    threads: int = 1
    rounds: int | None = None
    """So many for every row; None lets each row go on for its time."""
    seconds: float = 2.0
    """For one row; large networks get their fewest rounds even if that takes longer."""
    quick: bool = False
    """Only the smallest configuration of each bench."""

    def chosen(self, rows: list[Row]) -> list[Row]:
        """The rows to measure; the smallest comes first."""
        return rows[:1] if self.quick else rows

    @property
    def clock(self) -> Clock:
        return time.thread_time if self.threads == 1 else time.perf_counter

    def said(self, *more: str) -> str:
        """The circumstances, as the line below a table."""
        threads = "1 thread, its CPU time" if self.threads == 1 else f"{self.threads} threads, wall time"
        return " · ".join([threads, *more, f"torch {torch.__version__}", platform.machine()])


@dataclass(frozen=True)
class Rival:
    """What is timed, and what must happen before each call without being timed."""

    call: Call
    before: Call | None = None

    def turn(self, calls: int, clock: Clock) -> float:
        """Seconds of one call, the mean of so many."""
        if self.before is None:
            started = clock()
            for _ in range(calls):
                self.call()
            return (clock() - started) / calls
        total = 0.0
        for _ in range(calls):
            self.before()
            started = clock()
            self.call()
            total += clock() - started
        return total / calls


@dataclass(frozen=True)
class Rounds:
    """Seconds per call of every rival, round by round."""

    seconds: Mapping[str, list[float]]

    def __len__(self) -> int:
        return len(next(iter(self.seconds.values())))

    def ratio(self, name: str, to: str) -> float:
        """How many times the seconds of `to` the rival `name` takes: the median over rounds."""
        return statistics.median(a / b for a, b in zip(self.seconds[name], self.seconds[to], strict=True))

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])


FEWEST_ROUNDS, MOST_ROUNDS = 5, 200
SHORTEST_TURN = 0.05
"""Seconds: long enough for the caches to hold what a rival needs after the others had them."""


def take_turns(rivals: Mapping[str, Call | Rival], effort: Effort, *, clock: Clock | None = None) -> Rounds:
    """Time all rivals in turn, round after round, until the time of a row is over."""
    clock = clock or effort.clock
    entered = {name: rival if isinstance(rival, Rival) else Rival(rival) for name, rival in rivals.items()}
    calls = {name: _calls(rival, clock) for name, rival in entered.items()}
    seconds: dict[str, list[float]] = {name: [] for name in entered}
    names, done, started = list(entered), 0, time.perf_counter()
    while not _enough(done, time.perf_counter() - started, effort):
        for name in names[done % len(names) :] + names[: done % len(names)]:
            seconds[name].append(entered[name].turn(calls[name], clock))
        done += 1
    return Rounds(seconds)


WARM_UP = 4


def _calls(rival: Rival, clock: Clock) -> int:
    """How many calls make a turn; the calls to find out are the warm-up: the first ones load libraries and compile."""
    fastest = min(rival.turn(1, clock) for _ in range(WARM_UP))
    return max(1, round(SHORTEST_TURN / max(fastest, 1e-7)))


def _enough(rounds: int, seconds: float, effort: Effort) -> bool:
    if effort.rounds is not None:
        return rounds >= effort.rounds
    return rounds >= MOST_ROUNDS or (rounds >= FEWEST_ROUNDS and seconds > effort.seconds)
