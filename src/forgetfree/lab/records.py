"""Records: what a run found out, and the folder it lives in.

run.toml       the resolved plan: what was run, with which settings, seed, versions and threads
memory.ticket  the learner at the end, as an archive: forgetfree inspect, verify, load
record.json    what came out; `seconds` apart, so that the rest is the same whenever the same plan is run
events.jsonl   what happened when
analysis/      what `forgetfree analyse` computed from the archive, one small JSON for each analysis
checkpoints/   while it runs
"""

import json
import math
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import filelock
import tomli_w

from forgetfree.errors import FileError, InputError
from forgetfree.files import read_plain, write_atomically
from forgetfree.forms import Form, FormError
from forgetfree.lab import chance
from forgetfree.lab.metrics import (
    SessionAccuracy,
    average_accuracy,
    backward_transfer,
    forward_transfer,
    performance_drop,
    session_accuracies,
)
from forgetfree.lab.run_forms import FINISHED_PLAN, PLAN, check_record

LARGEST_JSON = 1 << 26
"""Bytes of a record or of an analysis; the largest so far have a thousandth of that."""
LARGEST_PLAN = 1 << 16


@dataclass
class Record:
    """What a run found out."""

    tasks: list[str]
    accuracy: list[list[float | None]] = field(default_factory=list)
    """Row t: after task t; null where not measured."""
    footprints: list[dict[str, float]] = field(default_factory=list)
    """What the memory cost after each task that could be asked."""
    compared: int = 0
    """Earlier answers that were asked again and compared bit for bit."""
    different: int = 0
    """How many of them differed."""
    curves: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    selections: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    archive: dict[str, Any] = field(default_factory=dict)
    """Of memory.ticket: bytes of the file and of its parts; answers asked again after reading it, how many differed."""
    transfer: dict[str, Any] = field(default_factory=dict)
    """Accuracies on tasks that are not learned yet: of guesses, tickets of others and random networks."""
    sessions: dict[str, Any] = field(default_factory=dict)
    """Of few-shot sessions: `tested`, images that test each; `classes`, how many are new in each; `confusion`, after
    each session (null where not measured) how many images of which session's classes were taken for one of which;
    `mistakes` at the end, as [class, taken for, images]. Empty for task-incremental runs."""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"learning": [], "testing": []})

    @property
    def acc(self) -> float:
        """Mean over tasks; of few-shot sessions the overall accuracy on all classes."""
        last = self.by_session[-1] if self.sessions else None
        return last.overall if last else average_accuracy(self.accuracy)

    @property
    def by_session(self) -> list[SessionAccuracy | None]:
        """Overall, base and novel accuracy after each few-shot session, None where it was not measured."""
        return session_accuracies(self.accuracy, self.sessions["tested"])

    @property
    def bwt(self) -> float | None:
        return backward_transfer(self.accuracy)

    @property
    def fwt(self) -> float | None:
        """By the guesses: what was learned, an untrained head."""
        return forward_transfer(self.transfer["guesses"], self.transfer["random"]) if self.transfer else None

    def note_chance(self, classes: Sequence[int]) -> None:
        """Note which tasks, of so many classes, were trained and never left the loss of guessing; nothing if none."""
        stuck = chance.at_chance(self.tasks, self.curves, classes)
        if stuck:
            self.notes = {**self.notes, chance.NOTE: chance.words(stuck, len(self.tasks))}

    def reproducible(self) -> dict[str, Any]:
        """All but the wall times, with the metrics derived from it."""
        values = {key: value for key, value in asdict(self).items() if key != "seconds"}
        metrics: dict[str, Any] = {"acc": self.acc, "bwt": self.bwt, "fwt": self.fwt, **self.footprints[-1]}
        if self.sessions:
            measured = self.by_session
            for name in ("overall", "base", "novel", "harmonic"):
                metrics[name] = [None if entry is None else getattr(entry, name) for entry in measured]
            metrics["drop"] = performance_drop(measured)
        return {"metrics": metrics, **values}


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def started(self) -> bool:
        return (self.path / "run.toml").is_file()

    @property
    def finished(self) -> bool:
        return (self.path / "record.json").is_file()

    @property
    def archive(self) -> Path:
        return self.path / "memory.ticket"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def plan(self) -> dict[str, Any]:
        """What run.toml says, without versions."""
        content = self._toml()
        content.pop("versions", None)
        return content

    def finished_plan(self) -> dict[str, Any]:
        """The plan of a finished run, with all that a report asks for."""
        plan = self.plan()
        self._check(plan, FINISHED_PLAN)
        return plan

    @property
    def plugins(self) -> tuple[str, ...]:
        """The modules that were named by --plugin when it was run, as far as it needs them."""
        return tuple(str(place) for place in self.plan().get("run", {}).get("plugins", ()))

    def versions(self) -> dict[str, Any]:
        return dict(self._toml().get("versions", {}))

    def check(self, plan: Mapping[str, Any], there: Mapping[str, Any]) -> None:
        """Refuse a folder of another plan, showing the difference; `there` is its own, with all defaults."""
        difference = _difference(there, plan)
        if difference:
            raise InputError(
                f"{self.path} holds another run; it differs in\n"
                + "\n".join(f"  {line}" for line in difference)
                + "\nNothing was changed: choose another --out, or move that folder away."
            )

    def start(self, plan: Mapping[str, Any], versions: Mapping[str, Any]) -> None:
        """Write the plan down, unless that was done in an earlier life of the run."""
        if not self.started:
            write_atomically(self.path / "run.toml", tomli_w.dumps({**plan, "versions": dict(versions)}).encode())

    @contextmanager
    def locked(self, patience: float = 1.0) -> Iterator[None]:
        """Hold the folder alone; a killed process lets go by itself.

        `patience` is for how many seconds it may be somebody else's: who only looks takes it for a moment.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(self.path / ".lock", timeout=patience)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise FileError(f"{self.path} is being run by another process.") from error
        try:
            yield
        finally:
            lock.release()

    def say(self, event: Mapping[str, Any]) -> None:
        """Append one line to events.jsonl."""
        line = json.dumps({"time": round(time.time(), 3), **event}) + "\n"
        try:
            with (self.path / "events.jsonl").open("a") as file:
                file.write(line)
        except OSError as error:
            raise FileError(f"cannot write {self.path / 'events.jsonl'}: {error.strerror}.") from error

    def save(self, record: Record) -> None:
        """Write record.json; the run is finished then, and its checkpoints go."""
        content = {**record.reproducible(), "seconds": record.seconds}
        write_atomically(self.path / "record.json", json.dumps(content, indent=1, allow_nan=False).encode())
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def analysis(self, name: str) -> dict[str, Any] | None:
        """What an analysis of the finished run found; None where none was made."""
        file = self._analysis(name)
        try:
            return dict(json.loads(read_plain(file, LARGEST_JSON))) if file.exists() else None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise FileError(
                f"{file} cannot be read: {error}. Delete it, and make it anew: forgetfree analyse {self.path}"
            ) from error

    def keep_analysis(self, name: str, found: Mapping[str, Any]) -> None:
        """Write down what an analysis found."""
        write_atomically(self._analysis(name), json.dumps(found, allow_nan=False, separators=(",", ":")).encode())

    def _analysis(self, name: str) -> Path:
        return self.path / "analysis" / f"{name}.json"

    def record(self) -> Record:
        """The record of a finished run."""
        try:
            content = json.loads(read_plain(self.path / "record.json", LARGEST_JSON))
            check_record(content)
            # what records of earlier versions lack
            later: dict[str, Any] = {"archive": {}, "transfer": {}, "sessions": {}}
            record = Record(**{entry.name: {**later, **content}[entry.name] for entry in fields(Record)})
        except (OSError, ValueError, RecursionError) as error:
            said = str(error).rstrip(".")
            raise FileError(f"{self.path / 'record.json'} cannot be read as a record: {said}.") from error
        count = chance.CLASSES.get(self.plan().get("benchmark", {}).get("name"))
        if count is not None and chance.NOTE not in record.notes:
            record.note_chance([count] * len(record.tasks))
        return record

    def _toml(self) -> dict[str, Any]:
        content = read_plain(self.path / "run.toml", LARGEST_PLAN)
        try:
            plan = tomllib.loads(content.decode())
        except (ValueError, RecursionError) as error:
            raise FileError(f"{self.path / 'run.toml'} is not a TOML file: {error}.") from error
        self._check(plan, PLAN)
        return plan

    def _check(self, plan: dict[str, Any], form: Form) -> None:
        try:
            form(plan, "the plan")
        except FormError as error:
            raise FileError(f"{self.path / 'run.toml'} cannot be read as a plan: {error}.") from error


def readable(folders: Sequence[RunFolder]) -> tuple[list[RunFolder], list[str]]:
    """The run folders whose plan and record can be read, and what is wrong with the others."""
    right, wrong = [], []
    for folder in folders:
        try:
            if folder.finished:
                folder.finished_plan()
                folder.record()
            else:
                folder.plan()
            right.append(folder)
        except FileError as error:
            wrong.append(str(error))
    return right, wrong


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold a file that several runs share; others wait. A killed process lets go by itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path.with_name(f".{path.name}.lock")):
        yield


def find_runs(paths: list[Path]) -> list[RunFolder]:
    """All run folders at or below the paths, in order of name."""
    found: dict[Path, RunFolder] = {}
    for path in paths:
        if not path.exists():
            raise InputError(f"there is no folder {path}.")
        for file in sorted(path.rglob("run.toml")):
            found[file.parent.resolve()] = RunFolder(file.parent)
    if not found:
        raise InputError(f"no run folder (one with a run.toml) at or below {', '.join(map(str, paths))}.")
    return list(found.values())


def _difference(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[str]:
    lines = []
    for key in sorted({*there, *here}):
        old, new = there.get(key), here.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += _difference(old, new, f"{prefix}{key}.")
        elif old != new and not (isinstance(old, float) and isinstance(new, float) and math.isclose(old, new)):
            lines.append(f"{prefix}{key}: {old!r} there, {new!r} here")
    return lines
