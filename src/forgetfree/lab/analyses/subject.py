"""The subject of an analysis: a finished run with all that it was made from, each part built when it is asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from forgetfree.archive import load
from forgetfree.errors import FileError, InputError, PluginError
from forgetfree.lab.benchmarks.stream import Benchmark
from forgetfree.lab.experiment import Plan, build
from forgetfree.lab.records import Record, RunFolder

Advance = Callable[[float], None]
"""Called with how far an analysis has come, from 0 to 1."""


@dataclass(frozen=True)
class Subject:
    """A finished run: its plan and record, the learner in its archive, the benchmark it was tested on."""

    folder: RunFolder
    data_root: Path | None = None

    @cached_property
    def plan(self) -> Plan:
        try:
            return Plan.from_toml(self.folder.plan())
        except (InputError, PluginError) as error:
            raise FileError(f"{self.folder.path / 'run.toml'} cannot be read as a plan: {error}") from error

    @cached_property
    def record(self) -> Record:
        return self.folder.record()

    @cached_property
    def learner(self) -> Any:
        """As it was at the end of the run."""
        if not self.folder.archive.is_file():
            raise InputError(
                f"{self.folder.path} has no memory.ticket, which an analysis needs; run it again from its run.toml."
            )
        return load(self.folder.archive)

    @cached_property
    def benchmark(self) -> Benchmark:
        benchmark, _, _ = build(self.plan, self.data_root)
        return benchmark


class Analysis(Protocol):
    """What a module of this folder has."""

    def applies(self, plan: Plan) -> bool:
        """Whether a run of this plan can be analysed so."""

    def analyse(self, subject: Subject, advance: Advance) -> Mapping[str, Any]:
        """What was found, as plain values that JSON can say."""
