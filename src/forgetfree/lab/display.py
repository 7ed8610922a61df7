"""What a run looks like while it goes: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from forgetfree.training import Progress as Step


class Display:
    """Shows the progress of several runs, one after another; without a terminal, a line for every task."""

    def __init__(self, console: Console, *, every_task: bool = True):
        self._console = console
        self._lines = every_task and not console.is_terminal
        self._bars = Progress(
            BarColumn(bar_width=12),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("<"),  # time so far < time left
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._bar: TaskID | None = None
        self._name, self._position, self._tasks, self._started = "", 0, 1, 0.0
        self._valid = ""

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, name: str) -> None:
        """A run begins."""
        self._name, self._position, self._tasks, self._started = name, 0, 1, time.monotonic()
        if self._console.is_terminal:
            self._console.print(name, style="bold", highlight=False)
        if self._bar is not None:
            self._bars.remove_task(self._bar)
        self._bar = self._bars.add_task(name, total=1.0, detail="")

    def say(self, event: dict[str, Any]) -> None:
        """An event of the protocol."""
        if event["event"] == "task":
            self._position, self._tasks, self._valid = event["position"], event["tasks"], ""
            self._advance(0.0, f"task {self._position + 1}/{self._tasks}")
        elif event["event"] == "tested":
            self._advance(1.0, f"task {self._position + 1}/{self._tasks}")
            if self._lines:
                self._console.print(
                    f"{self._name}: task {self._position + 1} of {self._tasks} learned{_accuracy(event)} "
                    f"({time.monotonic() - self._started:.0f} s)"
                )

    def step(self, step: Step) -> None:
        """Progress within a task."""
        within = (step.epoch - 1 + (1 if step.finished else step.step / step.steps if step.steps else 0)) / step.epochs
        if step.valid_accuracy is not None:
            self._valid = f", valid {100 * step.valid_accuracy:.1f} %"
        place = f"task {self._position + 1}/{self._tasks}, epoch {step.epoch}/{step.epochs}"
        self._advance(within, f"{place}, loss {step.loss:.3f}{self._valid}")

    def overall(self, fractions: list[float]) -> None:
        """How far several runs have come together."""
        if self._bar is not None:
            done = sum(fraction >= 1 for fraction in fractions)
            self._bars.update(self._bar, completed=sum(fractions) / len(fractions), detail=f"{done} finished")

    def _advance(self, within: float, detail: str) -> None:
        if self._bar is not None:
            self._bars.update(self._bar, completed=(self._position + within) / self._tasks, detail=detail)


def _accuracy(event: Mapping[str, Any]) -> str:
    """What a test has found, in words: of few-shot sessions over all images, else the mean of the tasks."""
    known = [value for value in event["accuracy"] if value is not None]
    if not known:
        return ""
    if event.get("overall") is not None:
        return f", accuracy on all classes met {100 * event['overall']:.1f} %"
    return f", mean accuracy {100 * sum(known) / len(known):.1f} %"
