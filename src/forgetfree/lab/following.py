"""Following: what the events of a run say while it goes, read without disturbing it.

A `Follower` reads what was appended since it last looked, a `Story` is what all of it says, and a `Followed` is a run
folder with both, and the state of its run.
"""

import contextlib
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from forgetfree.errors import FileError, InputError
from forgetfree.files import open_plain
from forgetfree.lab.records import Record, RunFolder
from forgetfree.lab.run_forms import is_event

Event = dict[str, Any]
State = Literal["waiting", "running", "stopped", "finished"]
QUIET = 5.0
"""Seconds without an event after which a lock that is free means that nobody runs the run."""
LONGEST_LINE = 1 << 20
"""Bytes of a line that is read as one; the longest event so far has a hundredth of that."""
TYPICAL = 5
"""How many of the tasks learned last say how long the next will take."""


@dataclass(frozen=True)
class News:
    """What was written since the last look."""

    events: list[Event]
    anew: bool
    """Whether the file is another than before: all of it is in `events`, and what was known is void."""


class Follower:
    """Reads a file of events as it grows; every line once, and only when it is complete."""

    def __init__(self, file: Path):
        self._file = file
        self._offset, self._beginning, self._inode = 0, b"", -1

    def news(self) -> News:
        """The events since the last look; lines that are none are left out."""
        try:
            with open_plain(self._file) as stream:
                return self._read(stream)
        except OSError:  # not there, or nothing that events could be read from
            anew, self._offset = self._offset > 0, 0
            return News([], anew)

    def _read(self, stream: Any) -> News:
        about, beginning = os.fstat(stream.fileno()), stream.read(64)
        same = about.st_ino == self._inode and about.st_size >= self._offset and beginning.startswith(self._beginning)
        anew = self._offset > 0 and not same
        if not same:
            self._offset, self._inode = 0, about.st_ino
        stream.seek(self._offset)
        events = []
        for line in iter(lambda: stream.readline(LONGEST_LINE), b""):
            if not line.endswith(b"\n") and len(line) < LONGEST_LINE:  # being written
                break
            self._offset += len(line)
            events += _parsed(line)
        self._beginning = beginning[: self._offset]
        return News(events, anew)


@dataclass
class Story:
    """What the events of a run say so far. A run that goes on after a stop tells tasks again: these are known then."""

    few_shot: bool = False
    """Whether the first task is unlike all others."""
    events: int = 0
    task: str = ""
    """The task at hand; empty until the first begins, in each life of the run."""
    position: int = 0
    tasks: int = 0
    curves: dict[int, list[Event]] = field(default_factory=dict)
    """The epochs of each task, by position."""
    rows: dict[int, list[float | None]] = field(default_factory=dict)
    """Row t of the accuracy matrix, as far as it was measured."""
    means: dict[int, float] = field(default_factory=dict)
    """After task t: mean over the tasks, each as last measured; of few-shot sessions, where known, over all images."""
    capacity: float | None = None
    """The paper's CAP of the memory after the last task tested."""
    elapsed: float = 0.0
    """Seconds in all lives, without the time between them."""
    latest: float = 0.0
    """When the last event was written."""
    seconds: dict[int, float] = field(default_factory=dict)
    """How long each task took, until it was tested for the first time."""
    _within: dict[int, float] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Take in the next event."""
        self.events += 1
        if event["event"] == "start":
            self.task, self.position = "", 0
        else:
            self._spend(event["time"] - self.latest if self.latest else 0.0)
        self.latest = event["time"]
        if event["event"] == "task":
            self.task, self.position, self.tasks = event["task"], event["position"], event["tasks"]
        elif event["event"] == "epoch":
            self._epoch(event)
        elif event["event"] == "tested":
            self._tested(event)

    @property
    def curve(self) -> list[Event]:
        """The epochs of the task at hand; before its first, those of the last one that has any."""
        return self.curves.get(self.position) or self.curves.get(self.position - 1, [])

    @property
    def epoch(self) -> tuple[int, int] | None:
        """Which epoch of how many the task at hand has behind it."""
        curve, within = self.curves.get(self.position), self._within.get(self.position)
        return (curve[-1]["epoch"], round(curve[-1]["epoch"] / within)) if curve and within else None

    @property
    def done(self) -> float:
        """The fraction of the run that is done."""
        if not self.tasks:
            return 0.0
        within = 0.0 if self.position in self.rows else self._within.get(self.position, 0.0)
        return min(1.0, (len(self.rows) + within) / self.tasks)

    @property
    def mean(self) -> float | None:
        """The mean accuracy after the last task that was tested."""
        return self.means[max(self.means)] if self.means else None

    def left(self, now: float) -> float | None:
        """Estimated seconds to the end, from how long tasks took; None before there is anything to estimate from.

        Until the first few-shot session is over the later ones count as nothing: they are much shorter.
        """
        if not self.tasks:
            return None
        learned = [self.seconds[t] for t in sorted(self.rows) if t in self.seconds and not (t == 0 and self.few_shot)]
        typical = statistics.median(learned[-TYPICAL:]) if learned else None
        here, whole = 0.0, typical
        if self.position not in self.rows:
            spent, within = self.seconds.get(self.position, 0.0), self._within.get(self.position, 0.0)
            whole = spent / within if within else typical
            if whole is None:
                return None
            here = max(0.0, whole - spent - max(0.0, now - self.latest))
        later = sum(t not in self.rows for t in range(self.position + 1, self.tasks))
        each = typical if typical is not None else 0.0 if self.few_shot else whole
        return None if later and each is None else here + later * (each or 0.0)

    def _spend(self, seconds: float) -> None:
        seconds = max(0.0, seconds)  # clocks are set back now and then
        self.elapsed += seconds
        if self.position not in self.rows:
            self.seconds[self.position] = self.seconds.get(self.position, 0.0) + seconds

    def _epoch(self, event: Event) -> None:
        curve = self.curves.setdefault(self.position, [])
        while curve and curve[-1]["epoch"] >= event["epoch"]:  # learned again after a stop, or in a second phase
            curve.pop()
        curve.append(event)
        self._within[self.position] = event["done"] * max(1, self.tasks) - self.position

    def _tested(self, event: Event) -> None:
        self.rows[self.position] = event["accuracy"]
        met = [self.rows[t] for t in sorted(self.rows) if t <= self.position]
        last = {i: value for row in met for i, value in enumerate(row) if value is not None}
        overall = event.get("overall")
        if last:
            self.means[self.position] = sum(last.values()) / len(last) if overall is None else overall
        if event.get("footprint"):
            self.capacity = event["footprint"]["formula"]


class Followed:
    """A run folder, looked at again and again."""

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self.state: State = "waiting"
        self._follower = Follower(folder.path / "events.jsonl")
        self._free, self._asked = False, 0.0
        self._begin()

    def look(self, now: float | None = None) -> None:
        """Read what is new, and tell the state."""
        now = time.time() if now is None else now
        finished = self.folder.finished
        news = self._follower.news()
        if news.anew:
            self._begin()
        for event in news.events:
            self.story.add(event)
        if finished and self.state != "finished":
            self._end()
        self.state = "finished" if finished else self._unfinished(now)

    def _begin(self) -> None:
        with contextlib.suppress(FileError):  # just deleted
            self.story = Story(few_shot="session" in self.folder.plan())
            return
        self.story = Story()

    def _end(self) -> None:
        """What only the record knows; where no events were kept, all of it."""
        with contextlib.suppress(FileError):
            record = self.folder.record()
            if not self.story.events:
                for event in as_events(record, (self.folder.path / "record.json").stat().st_mtime):
                    self.story.add(event)
            overall = enumerate(record.by_session) if record.sessions else ()
            self.story.means |= {t: each.overall for t, each in overall if each} | {len(record.tasks) - 1: record.acc}
            self.story.capacity = record.footprints[-1]["formula"]

    def _unfinished(self, now: float) -> State:
        if now - self._last_sign() < QUIET:
            self._asked = 0.0
        else:
            if now - self._asked >= QUIET:
                self._free, self._asked = not _held(self.folder), now
            if self._free:
                return "stopped"
        return "running" if self.story.task else "waiting"

    def _last_sign(self) -> float:
        with contextlib.suppress(OSError):
            return self.story.latest or (self.folder.path / "run.toml").stat().st_mtime
        return 0.0


def follow(paths: Sequence[Path], known: Sequence[Followed] = ()) -> list[Followed]:
    """All run folders at or below the paths as they are now, in order of name; those `known` are kept."""
    for path in paths:
        if not path.exists():
            raise InputError(f"there is no folder {path}.")
    before = {each.folder.path: each for each in known}
    found = sorted({file.parent for path in paths for file in path.rglob("run.toml")})
    runs = [before.get(path) or Followed(RunFolder(path)) for path in found]
    now = time.time()
    for each in runs:
        each.look(now)
    return runs


def as_events(record: Record, ended: float) -> list[Event]:
    """The events of a finished run, from its record; `ended` is when it was over."""
    learning, testing = record.seconds["learning"], record.seconds["testing"]
    testing = [0.0] * (len(record.tasks) - len(testing)) + list(testing)  # some are tested at the end only
    overall = [each and each.overall for each in record.by_session] if record.sessions else [None] * len(record.tasks)
    clock = ended - sum(learning) - sum(testing)
    events: list[Event] = [{"time": clock, "event": "start"}]
    for t, (task, row) in enumerate(zip(record.tasks, record.accuracy, strict=True)):
        whole = len(record.tasks)
        events.append(
            {"time": clock, "event": "task", "task": task, "position": t, "tasks": whole, "done": t / whole}
        )  # fmt: skip
        curve = record.curves.get(task, [])
        for i, epoch in enumerate(curve, 1):
            within = i / len(curve)
            at, done = clock + learning[t] * within, (t + within) / whole
            events.append({"time": at, "event": "epoch", "task": task, "done": done, "epoch": i, **epoch})
        clock += learning[t] + testing[t]
        at_the_end = len(record.footprints) < whole
        footprint = None if at_the_end and t + 1 < whole else record.footprints[-1 if at_the_end else t]
        events.append(
            {"time": clock, "event": "tested", "task": task, "accuracy": row, "overall": overall[t],
             "footprint": footprint, "done": (t + 1) / whole}
        )  # fmt: skip
    return [*events, {"time": clock, "event": "finish"}]


def _parsed(line: bytes) -> list[Event]:
    """The event of a line; a killed process may have left half a line before it."""
    with contextlib.suppress(ValueError, RecursionError):
        event = json.loads(line[max(0, line.rfind(b'{"time"')) :])
        if is_event(event):
            return [event]
    return []


def _held(folder: RunFolder) -> bool:
    """Whether a process runs the run; a try that takes its lock gives it back at once."""
    if not (folder.path / ".lock").is_file():
        return False
    try:
        with folder.locked(patience=0):
            return False
    except OSError:  # held, or not ours to ask
        return True
