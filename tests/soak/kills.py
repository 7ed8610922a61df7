"""Kills: run, save, analyse and report are killed at random moments; the same call then ends as if nothing had been."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

import forgetfree as ff
from forgetfree.lab.analysing import analyse_all
from forgetfree.lab.experiment import perform, plan
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.publishing import write_table
from soak.workers import Tally

BEFORE = Path(__file__).parents[1] / "before"
QUIET = Console(quiet=True)
SHARES = {"run": 0.4, "save": 0.3, "analyse": 0.15, "report": 0.15}
"""Of all kills."""


def survey(numbers: range, folder: Path, shares: Mapping[str, float] = SHARES) -> Tally:
    """Kill so many processes, and look at what they left behind."""
    tally, started = Tally(), time.monotonic()
    kinds = {"run": _Run, "save": _Save, "analyse": _Analyse, "report": _Report}
    for name, share in shares.items():
        deed: Any = kinds[name](folder / name)
        chance, wanted = random.Random(f"kills in {name} {numbers.start}"), round(len(numbers) * share)
        killed = tries = 0
        while killed < wanted and tries < 10 * wanted + 20:
            tries += 1
            landed = _killed(deed.do, chance.uniform(0, deed.seconds))
            killed += landed
            try:
                deed.check(landed)
            except AssertionError as error:
                tally.failures.append(f"{name}, kill {killed}: {error}")
        try:
            deed.do()
            deed.end()
        except AssertionError as error:
            tally.failures.append(f"{name}, at the end: {error}")
        tally.tried += killed
        tally.outcomes[f"in {name}"] += killed
        if killed < wanted:
            tally.failures.append(f"{name}: only {killed} of {wanted} kills landed")
    tally.seconds = time.monotonic() - started
    for failure in tally.failures:
        print(f"  failed {failure}", flush=True)
    return tally


def _killed(do: Callable[[], None], after: float) -> bool:
    """Let a process do something and kill it; whether it was still at it."""
    child = _doing(do)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _doing(do: Callable[[], Any]) -> int:
    """The number of a process that does something and ends."""
    child = os.fork()
    if not child:
        try:
            do()
        finally:
            os._exit(0)
    return child


def _timed(do: Callable[[], Any]) -> float:
    """About how long something takes in a process of its own."""
    began = time.monotonic()
    os.waitpid(_doing(do), 0)
    return max(0.01, time.monotonic() - began)


class _Run:
    """A run of five tasks; when one is finished, its folder is compared and another begins."""

    def __init__(self, folder: Path):
        self.folder, self.lives = folder, 0
        (self.plan,) = plan(
            "til/digits_permuted", methods=["wsn"], scale="smoke", overrides={"benchmark.tasks": 4, "recipe.epochs": 3}
        )
        whole = folder / "whole"
        perform(self.plan, whole)
        self.right = _record(whole / self.plan.folder)
        self.seconds = _timed(lambda: perform(self.plan, folder / "once")) / 2

    @property
    def out(self) -> Path:
        return self.folder / f"life {self.lives}"

    def do(self) -> None:
        perform(self.plan, self.out)

    def check(self, landed: bool) -> None:
        if RunFolder(self.out / self.plan.folder).finished:
            self.end()
            shutil.rmtree(self.out)
            self.lives += 1

    def end(self) -> None:
        found = self.out / self.plan.folder
        assert _record(found) == self.right, "the record is another than that of a run that was never killed"
        assert ff.verify(found / "memory.ticket").ok


def _record(folder: Path) -> Any:
    content = json.loads((folder / "record.json").read_text())
    content.pop("seconds")
    return content


class _Save:
    """Two learners saved over each other: the file is always one of them, whole."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.path, self.turn = folder / "memory.ticket", 0
        self.learners = [ff.load(BEFORE / "archives" / f"{name}.ticket") for name in ("wsn", "packnet")]
        self.right = []
        for learner in self.learners:
            ff.save(learner, self.path)
            self.right.append(self.path.read_bytes())
        self.seconds = 1.2 * _timed(self.do)

    def do(self) -> None:
        ff.save(self.learners[self.turn], self.path)

    def check(self, landed: bool) -> None:
        content = self.path.read_bytes()
        assert content in self.right, "the archive is neither the old nor the new one"
        self.turn = 1 - self.right.index(content)

    def end(self) -> None:
        assert ff.verify(self.path).ok
        assert [each.name for each in self.path.parent.iterdir()] == [self.path.name], "something was left behind"


class _Analyse:
    """The analyses of a finished run: each is there and whole, or not there."""

    def __init__(self, folder: Path):
        shutil.copytree(BEFORE / "finished" / "til-digits_split", folder)
        self.folder = RunFolder(next(folder.iterdir()))
        self.do()
        self.right = self._found()
        self.again()
        self.seconds = 1.2 * _timed(self.do)
        self.again()

    def again(self) -> None:
        shutil.rmtree(self.folder.path / "analysis")

    def do(self) -> None:
        analyse_all([self.folder], QUIET, only=["tickets", "codes"])

    def _found(self) -> dict[str, Any]:
        files = sorted((self.folder.path / "analysis").glob("*.json"))
        return {file.name: json.loads(file.read_text()) for file in files}

    def check(self, landed: bool) -> None:
        for name, found in self._found().items():
            assert found == self.right[name], f"{name} is another"
        if self._found().keys() == self.right.keys():
            self.again()

    def end(self) -> None:
        assert self._found() == self.right


class _Report:
    """The table of finished runs: each of its files is there and whole, or not there."""

    def __init__(self, folder: Path):
        self.to, self.runs = folder / "written", list(map(RunFolder, (BEFORE / "finished").glob("*/*")))
        self.do()
        self.right = self._found()
        shutil.rmtree(self.to)
        self.seconds = 1.2 * _timed(self.do)
        shutil.rmtree(self.to)

    def do(self) -> None:
        write_table(None, None, self.runs, self.to, QUIET)

    def _found(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.to.iterdir() if not path.name.startswith(".")}

    def check(self, landed: bool) -> None:
        if self.to.is_dir():
            for name, content in self._found().items():
                assert content == self.right[name], f"{name} is another"
            shutil.rmtree(self.to)

    def end(self) -> None:
        assert self._found() == self.right
