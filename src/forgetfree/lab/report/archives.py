"""Archives for eyes and for machines: what one holds, and how its tasks stand beside their certificates."""

from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from forgetfree.archive import Inspection, Verification
from forgetfree.lab import legend
from forgetfree.lab.console import bold

PARTS = {"free": "weights outside the masks"}
"""Parts of an archive whose names say too little."""


def as_plain(found: Inspection) -> dict[str, Any]:
    return {**asdict(found), "path": str(found.path)}


def as_tables(found: Inspection) -> list[Table | Text]:
    """What an archive holds: itself, its tasks, its layers, its bytes."""
    settings = ", ".join(f"{key}={value}" for key, value in found.arguments.items() if key not in ("recipe", "session"))
    used, total = (sum(counts) for counts in zip(*found.layers.values(), strict=True))
    lines = [
        f"holds     {len(found.tasks)} tasks in {found.nbytes:,} bytes, written by forgetfree {found.version}",
        f"method    {found.method} ({settings})",
        f"backbone  {found.backbone}",
        f"learning  {found.learning}",
    ]
    if found.rounded:
        largest = max((value or 0.0 for value in found.rounded["difference"].values()), default=0.0)
        lines.append(f"rounded   to {found.rounded['dtype']}: answers differ by at most {largest:.1e} (relative)")
    few_shot = found.tasks and legend.entry(found.method).scenario == "fscil"
    if few_shot:
        lines.append(f"answers   {_answering(found)}")
    return [
        bold(str(found.path), "".join(f"\n{line}" for line in lines)),
        (_sessions if few_shot else _tasks)(found),
        _layers(found, used, total),
        _bytes(found),
    ]


def _answering(found: Inspection) -> str:
    """Few-shot sessions have one network, the first one's, and one head, the last one's."""
    first, last = found.tasks[0], found.tasks[-1]
    classes = sum(len(task["classes"]) for task in found.tasks)
    return (
        f"{classes:,} classes by one network (its mask: {first['weights']:,} weights, {100 * first['density']:.1f} %; "
        f"{first['own']:,} values of its own) and one head ({last['head']:,} values)"
    )


def _sessions(found: Inspection) -> Table:
    table = _table("sessions", ("name", "new", "met", "classes"))
    for column in table.columns:
        column.no_wrap = True
    table.expand, table.columns[-1].ratio = True, 1  # names of classes take what is left, and end in an ellipsis
    met = 0
    for task in found.tasks:
        met += len(task["classes"])
        table.add_row(task["name"], f"{len(task['classes']):,}", f"{met:,}", ", ".join(map(str, task["classes"][:20])))
    return table


def _tasks(found: Inspection) -> Table:
    table = _table("tasks", ("name", "classes", "weights", "density", "new", "reused", "own values", "head"))
    for task in found.tasks:
        classes = ", ".join(map(str, task["classes"][:6])) + (" …" if len(task["classes"]) > 6 else "")
        density = f"{100 * task['density']:.1f} %"
        numbers = [f"{task[key]:,}" for key in ("new", "reused", "own", "head")]
        table.add_row(task["name"], classes, f"{task['weights']:,}", density, *numbers)
    return table


def _layers(found: Inspection, used: int, total: int) -> Table:
    table = _table("layers", ("name", "weights", "used by some task", "part"))
    for name, (taken, size) in [*found.layers.items(), ("all", (used, total))]:
        table.add_row(name, f"{size:,}", f"{taken:,}", f"{100 * taken / max(1, size):.1f} %")
    return table


def _bytes(found: Inspection) -> Table:
    table = _table("bytes", ("part", "bytes", "part of the file"))
    for name, size in sorted(found.sections.items(), key=lambda entry: -entry[1]):
        table.add_row(PARTS.get(name, name), f"{size:,}", f"{100 * size / found.nbytes:.1f} %")
    return table


def verified(found: Verification) -> dict[str, Any]:
    return {"ok": found.ok, "tasks": [asdict(task) for task in found.tasks], "rounded": found.rounded}


def verified_table(found: Verification) -> Table:
    """A row per task: whether its tensors are the certified ones, by which rule its answers were compared, and how."""
    table = _table("certificates", ("task", "tensors", "answers must be", "difference", "holds"))
    for task in found.tasks:
        apart = "–" if task.difference is None else f"{task.difference:.1e}" if task.difference else "0"
        held = Text("yes", "green") if task.ok else Text("no", "red")
        table.add_row(task.task, "equal" if task.tensors else "changed", task.rule, apart, held)
    return table


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, show_edge=False)
    for number, heading in enumerate(headings):
        text = number == 0 or heading in ("classes", "answers must be", "tensors")
        table.add_column(heading, justify="left" if text else "right")
    return table
