"""Watching: what runs look like from outside while they go: a picture on a terminal, lines elsewhere."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from forgetfree.lab.following import Event, Followed, State, Story, follow
from forgetfree.lab.tensorboard import Mirror

STATES: dict[State, str] = {"running": "green", "waiting": "yellow", "stopped": "red", "finished": "blue"}
"""In the order they are shown, each with its colour."""
COLUMNS = {
    "state": -8, "done": -14, "task": 6, "epoch": 7, "loss": 6, "valid": 5, "acc": 5, "cap": 5, "time": 6, "left": 7
}  # fmt: skip
"""What is shown of a run, and in how many columns, 80 in all; a negative number fills from the left."""
PERCENT = ("valid", "acc", "cap")
SHADES = (("#dbe7f3", "#000000"), ("#a9cae6", "#000000"), ("#5f9fd0", "#000000"), ("#0060a8", "#ffffff"),
          ("#0a2540", "#ffffff"))  # fmt: skip
"""Paper and ink of a cell of the accuracy matrix, from 0 to 1."""
BARS = "▁▂▃▄▅▆▇█"
AS_ASCII = str.maketrans({**dict(zip(BARS, "__..--##", strict=True)), "━": "#", "─": "-", "…": "~", "→": ">", "·": ","})
POINTS = 18
"""The most epochs of a learning curve that are drawn."""
FINISHED = 3
"""Runs that were finished long ago are shown only to make up so many."""


def watch(
    paths: Sequence[Path],
    console: Console,
    *,
    every: float = 1.0,
    once: bool = False,
    tensorboard: Path | None = None,
) -> None:
    """Show all runs at or below the paths, looking again `every` so many seconds, until all are finished.

    Ctrl-C ends it. `once` shows them as they are now. `tensorboard` is a folder where all is written for TensorBoard.
    """
    mirror = Mirror(tensorboard) if tensorboard else None
    try:
        _watch(_Looks(paths, mirror), console, every, once)
    except KeyboardInterrupt:
        return
    finally:
        if mirror:
            mirror.close()


def picture(
    runs: Sequence[Followed],
    now: float,
    *,
    width: int = 80,
    height: int | None = None,
    new: Sequence[Path] = (),
    ascii_only: bool = False,
) -> Text:
    """The runs, each with its numbers, and the accuracy matrix of the one that moved last.

    Those at the paths in `new` are shown even if they are finished.
    """
    if not runs:
        return Text("No run yet.\n")
    order = list(STATES)
    shown = sorted(runs, key=lambda run: (order.index(run.state), -run.story.latest))
    shown = [run for i, run in enumerate(shown) if run.state != "finished" or run.folder.path in new or i < FINISHED]
    beside = width >= _WIDTH + 1 + max(len(_name(run)) for run in shown)
    if height is not None:
        shown = shown[: max(1, height // (2 if beside else 4))]
    headings = {name: f"{name[:3]} %" if name in PERCENT else name for name in COLUMNS}
    lines = [Text(" ".join(_filled(headings[name], size) for name, size in COLUMNS.items()), style="dim")]
    lines[0].pad_left(1 + max(len(_name(run)) for run in shown) if beside else 0)
    for run in shown:
        name = Text().append(_shortened(_name(run), width), style="bold")
        numbers = _numbers(run, now)
        if beside:
            name.pad_right(lines[0].cell_len - _WIDTH - name.cell_len)
            lines.append(name + numbers)
        else:
            lines += [name, numbers]
    counts = [f"{count} {state}" for state in order if (count := sum(run.state == state for run in runs))]
    lines.append(Text(", ".join(counts) + (f"; {len(shown)} shown" if len(shown) < len(runs) else ""), style="dim"))
    last = max(shown, key=lambda run: (run.state != "finished", run.story.latest))
    lines += _below(last, width, None if height is None else height - len(lines))
    text = Text("\n").join(lines)
    return Text(text.plain.translate(AS_ASCII)) if ascii_only else text


def _watch(looks: "_Looks", console: Console, every: float, once: bool) -> None:
    if once:
        runs = looks.again()
        seen = picture(runs, time.time(), width=console.width, ascii_only=console.options.ascii_only)
        console.print(seen, soft_wrap=True)
    elif console.is_terminal:
        _draw(looks, console, every)
    else:
        _print_lines(looks, console, every)


class _Looks:
    """Looks at the same paths again and again."""

    def __init__(self, paths: Sequence[Path], mirror: Mirror | None):
        self._paths, self._mirror, self._runs = paths, mirror, list[Followed]()

    def again(self) -> list[Followed]:
        """All runs that are there now."""
        self._runs = follow(self._paths, self._runs)
        if self._mirror:
            self._mirror.update([run.folder for run in self._runs])
        return self._runs


def _draw(looks: _Looks, console: Console, every: float) -> None:
    runs = looks.again()
    new = {run.folder.path for run in runs if run.state != "finished"}
    with Live(console=console, auto_refresh=False) as live:
        while True:
            size, plain = console.size, console.options.ascii_only
            seen = picture(
                runs, time.time(), width=size.width, height=size.height - 2, new=list(new), ascii_only=plain
            )  # fmt: skip
            live.update(seen, refresh=True)
            if _over(runs):
                break
            time.sleep(every)
            runs = looks.again()
            new |= {run.folder.path for run in runs if run.state != "finished"}
    console.print("Everything is finished.")


def _print_lines(looks: _Looks, console: Console, every: float) -> None:
    runs = looks.again()
    before = {run.folder.path: _moved(run) for run in runs if run.state == "finished"}
    if before:
        console.print(f"{len(before)} of {len(runs)} runs are finished already", highlight=False)
    while True:
        for run in runs:
            if before.get(run.folder.path) != _moved(run):
                before[run.folder.path] = _moved(run)
                line = _line(run, time.time())
                plain = line.translate(AS_ASCII) if console.options.ascii_only else line
                console.print(plain, highlight=False, markup=False, soft_wrap=True)
        if _over(runs):
            break
        time.sleep(every)
        runs = looks.again()
    console.print("Everything is finished.")


def _over(runs: Sequence[Followed]) -> bool:
    return bool(runs) and all(run.state == "finished" for run in runs)


def _moved(run: Followed) -> tuple[object, ...]:
    """What a new line is printed for: not that time goes by."""
    return run.state, run.story.task, run.story.epoch, len(run.story.rows)


def _line(run: Followed, now: float) -> str:
    """A run in one line of words."""
    values, percents = _values(run, now), ("done", *PERCENT)
    state = values.pop("state")
    words = [f"{name} {value}{' %' if name in percents else ''}" for name, value in values.items() if value]
    return f"{_name(run)}: {', '.join([state, *words])}"


def _values(run: Followed, now: float) -> dict[str, str]:
    """The value of each column; empty where nothing is known yet. Fractions are percent here."""
    story, last = run.story, (run.story.curve or [{}])[-1]
    values: dict[str, str] = dict.fromkeys(COLUMNS, "")
    values |= {"state": run.state, "acc": _percent(story.mean), "cap": _percent(story.capacity)}
    going = run.state in ("running", "waiting")
    values["time"] = _duration(story.elapsed + (max(0.0, now - story.latest) if going and story.latest else 0.0))
    if run.state == "finished":
        return values | {"done": "100", "task": f"{story.tasks}/{story.tasks}"}
    if not story.tasks:
        return values
    values |= {"done": f"{100 * story.done:.0f}", "task": f"{story.position + 1}/{story.tasks}"}
    if story.epoch and story.position not in story.rows:
        values["epoch"] = "{}/{}".format(*story.epoch)
    if "loss" in last:
        values |= {"loss": f"{last['loss']:.3f}"[:6], "valid": _percent(last.get("valid_accuracy"))}
    left = story.left(now)
    if left is not None and going:
        values["left"] = (">" if story.few_shot and not story.rows else "") + _duration(left)
    return values


def _numbers(run: Followed, now: float) -> Text:
    """The numbers of a run under the headings of COLUMNS."""
    values = _values(run, now)
    line = Text().append(_filled(values.pop("state"), COLUMNS["state"]), style=STATES[run.state])
    length = -COLUMNS["done"] - 6
    full = round(length * (1.0 if run.state == "finished" else run.story.done))
    line.append(" " + "━" * full, style=STATES[run.state]).append("─" * (length - full), style="dim")
    line.append(f" {values.pop('done'):>3} %")
    return line.append("".join(f" {_filled(value, COLUMNS[name])}" for name, value in values.items()))


def _below(run: Followed, width: int, height: int | None) -> list[Text]:
    """The run that moved last: how its last task is learned, and what it still knows of all tasks."""
    story = run.story
    lines = [Text(""), _heading(run, width)]
    if story.curve:
        lines.append(_curves(story.curve))
    if not story.rows:
        return lines
    most = None if height is None else max(1, height - len(lines) - 2)
    for cell in (6, 5, 4, 3):
        if 6 + cell * story.tasks + 7 <= width:
            return lines + _matrix(story, cell, most)
    return lines + _profile(story, width)


def _heading(run: Followed, width: int) -> Text:
    story = run.story
    task = "" if run.state == "finished" or not story.task else f" · {story.task}"
    return Text().append(_shortened(_name(run), width - len(task)), style="bold").append(task)


def _curves(curve: Sequence[Event]) -> Text:
    """Loss and validation accuracy over the last epochs, as small bars between first and last value."""
    line = Text()
    for name, key, scale in (("loss", "loss", 1.0), ("valid %", "valid_accuracy", 100.0)):
        values = [scale * epoch[key] for epoch in curve if epoch.get(key) is not None][-POINTS:]
        if values:
            line.append(f"{name} ", style="dim").append(_spark(values), style="cyan")
            first, last = (f"{value:.3f}" if scale == 1 else f"{value:.1f}" for value in (values[0], values[-1]))
            line.append(f" {first} → {last}   ")
    line.rstrip()
    return line


def _matrix(story: Story, cell: int, most: int | None) -> list[Text]:
    """Accuracy in percent: a row after each task, a column for each task."""
    rows = sorted(story.rows)[-most if most else 0 :]
    tasks = "".join(f"{i + 1:>{cell}}" for i in range(story.tasks))
    lines = [Text(f"{'after':5} {tasks}{'mean':>7}", style="dim")]
    for t in rows:
        line = Text().append(f"{t + 1:5} ", style="dim")
        for value in story.rows[t]:
            line.append(f"{_in_cell(value, cell):>{cell}}", style=_shade(value))
        mean = story.means.get(t)
        lines.append(line.append("" if mean is None else f"{100 * mean:7.1f}", style="bold"))
    return lines


def _profile(story: Story, width: int) -> list[Text]:
    """More tasks than columns: the last row and the means as small bars."""
    last = max(story.rows)
    now = [value for value in story.rows[last] if value is not None]
    means = [story.means[t] for t in sorted(story.means)]
    lines = []
    for name, values in (("each task now", now), ("mean so far", means)):
        if values:
            bars = _spark(_binned(values, width - 36), lowest=0.0, highest=1.0)
            low, high = 100 * min(values), 100 * max(values)
            line = Text().append(f"{name:14}", style="dim").append(bars, style="cyan")
            lines.append(line.append(f" {low:.1f} to {high:.1f} %"))
    return lines


def _spark(values: Sequence[float], lowest: float | None = None, highest: float | None = None) -> str:
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = (min(finite) if lowest is None else lowest), (max(finite) if highest is None else highest)
    steps = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * steps)] if math.isfinite(value) else "?" for value in values)


def _binned(values: Sequence[float], most: int) -> list[float]:
    """Means of neighbours, so that there are at most so many."""
    size = math.ceil(len(values) / max(1, most))
    pieces = [values[i : i + size] for i in range(0, len(values), size)]
    return [sum(piece) / len(piece) for piece in pieces]


def _in_cell(value: float | None, cell: int) -> str:
    """Percent; three digits, which fill a small cell, only where all is right."""
    if value is None:
        return ""
    return f"{100 * value:.1f}" if cell > 4 and value < 1 else f"{min(99, round(100 * value))}" if value < 1 else "100"


def _shade(value: float | None) -> str:
    if value is None:
        return ""
    paper, ink = SHADES[min(len(SHADES) - 1, int(value * len(SHADES)))]
    return f"{ink} on {paper}"


def _name(run: Followed) -> str:
    """As below the folder of all runs: experiment, then method, scale and seed."""
    path = run.folder.path.absolute()
    return f"{path.parent.name}/{path.name}"


def _shortened(name: str, width: int) -> str:
    """Without its middle where it is too long: seeds are at the end."""
    over = len(name) - width
    if over <= 0:
        return name
    keep = max(1, width - 1)
    return name[: keep - keep // 3] + "…" + name[len(name) - keep // 3 :]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.{0 if value > 1 else 1}f}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    for size, smaller, names in ((86400, 3600, "dh"), (3600, 60, "hm"), (60, 1, "ms")):
        if whole >= size:
            return f"{whole // size}{names[0]}{whole % size // smaller:02}{names[1]}"
    return f"{whole}s"


def _filled(text: str, width: int) -> str:
    return text.ljust(-width) if width < 0 else text.rjust(width)


_WIDTH = sum(map(abs, COLUMNS.values())) + len(COLUMNS) - 1
