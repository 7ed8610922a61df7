"""Workers: mutants are tried in processes that may be killed, run out of memory or of time, and say what happened."""

import os
import resource
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS, MEMORY = 10.0, 2 << 30
"""Of processor time, and bytes beyond those of a fresh process: what a mutant may cost."""
PATIENCE = 60
"""Seconds by the clock after which a mutant hangs."""
SHIFT = 400
"""Mutants that one process tries."""


class TooMuchError(BaseException):
    """A mutant took too long."""


@dataclass
class Tally:
    """What came of all mutants."""

    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    largest: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.outcomes.most_common())
        return (
            f"{self.tried} tried: {kinds}; slowest {self.slowest:.2f} s, largest {self.largest >> 20} MB more than at "
            f"the start; {len(self.failures)} failed; {self.seconds:.0f} s"
        )


def survey(numbers: range, attempt: Callable[[int], str]) -> Tally:
    """Try every number; `attempt` says in a word what came of it, and raises where a promise was broken."""
    tally, started, left = Tally(), time.monotonic(), list(numbers)
    while left:
        known = len(tally.failures)
        done = _shift(left[:SHIFT], attempt, tally)
        left = left[done:]
        for failure in tally.failures[known:]:
            print(f"  failed {failure}", flush=True)
        if len(numbers) > SHIFT:
            failed, took = len(tally.failures), time.monotonic() - started
            print(f"  {tally.tried} of {len(numbers)}, {failed} failed, {took:.0f} s", flush=True)
    tally.seconds = time.monotonic() - started
    return tally


def _shift(numbers: list[int], attempt: Callable[[int], str], tally: Tally) -> int:
    """Try some numbers in a process of their own; how many were tried."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(numbers, attempt, writing)
        os._exit(0)
    os.close(writing)
    said = _listen(reading, child)
    _, status = os.waitpid(child, 0)
    for line in said:
        number, kind, seconds, nbytes = line.split("\t", 3)
        tally.tried += 1
        tally.slowest = max(tally.slowest, float(seconds))
        tally.largest = max(tally.largest, int(nbytes))
        if kind.startswith("FAILED"):
            tally.failures.append(f"{number}: {kind.removeprefix('FAILED ')}")
            kind = "failed"
        tally.outcomes[kind] += 1
    if status and len(said) < len(numbers):
        tally.failures.append(f"{numbers[len(said)]}: its process ended with status {status}")
        tally.tried += 1
        tally.outcomes["failed"] += 1
        return len(said) + 1
    return len(said)


def _listen(reading: int, child: int) -> list[str]:
    """The lines that a process writes; it is killed where it is silent for too long."""
    content, last, looked = b"", time.monotonic(), time.monotonic()
    while True:
        ready, _, _ = select.select([reading], [], [], 1.0)
        before, looked = looked, time.monotonic()
        if ready:
            piece = os.read(reading, 1 << 16)
            if not piece:
                break
            content, last = content + piece, looked
        elif looked - before > PATIENCE / 2:  # all of us were stopped for a while
            last = looked
        elif looked - last > PATIENCE:
            os.kill(child, signal.SIGKILL)
    os.close(reading)
    return content.decode().splitlines()


def _work(numbers: list[int], attempt: Callable[[int], str], writing: int) -> None:
    def too_long(*_: Any) -> None:
        raise TooMuchError

    signal.signal(signal.SIGPROF, too_long)
    start = _pages()[1]
    space = _pages()[0]
    resource.setrlimit(resource.RLIMIT_AS, (space + MEMORY, space + MEMORY))
    for number in numbers:
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            kind = attempt(number)
        except TooMuchError:
            kind = f"FAILED took more than {SECONDS} s"
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            kind = "FAILED " + text.encode("ascii", "backslashreplace").decode().replace("\n", " ").replace("\t", " ")
        signal.setitimer(signal.ITIMER_PROF, 0)
        took = time.process_time() - began
        line = f"{number}\t{kind[:600]}\t{took:.3f}\t{max(0, _peak() - start)}\n"
        os.write(writing, line.encode())


def _pages() -> tuple[int, int]:
    """Bytes of address space, and of memory, that this process has."""
    space, resident, *_ = Path("/proc/self/statm").read_text().split()
    return int(space) * resource.getpagesize(), int(resident) * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
