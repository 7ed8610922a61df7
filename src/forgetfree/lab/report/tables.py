"""Tables: finished runs, one row per setting, mean and deviation over seeds; for eyes and for machines."""

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from forgetfree.errors import InputError
from forgetfree.lab import legend
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.columns import Run, to_learn, views


@dataclass(frozen=True)
class Row:
    """One setting: what it reached on average over its seeds."""

    experiment: str
    method: str
    settings: str
    scale: str
    seeds: tuple[int, ...]
    acc: float
    acc_deviation: float | None
    cap_formula: float
    cap_written: float | None
    cap_written_without_heads: float | None
    density: float
    to_learn: float | None
    bwt: float | None
    fwt: float | None
    compared: int
    different: int
    seconds: float
    notes: str
    sessions: int | None
    """Few-shot sessions; None where the task of an input is given."""


HEADINGS = {
    "experiment": "experiment",
    "method": "method",
    "settings": "settings",
    "scale": "scale",
    "seeds": "seeds",
    "acc": "ACC",
    "cap_formula": "CAP",
    "cap_written": "file",
    "cap_written_without_heads": "no heads",
    "density": "used",
    "to_learn": "to learn",
    "bwt": "BWT",
    "fwt": "FWT",
    "different": "changed",
    "seconds": "time",
    "notes": "notes",
}


CAPTION = (
    "In percent. ACC: {acc}. CAP: weights and masks by the paper's formula, where one dense network is 100. file: "
    "bytes of the archive really written, where one dense float32 network is 100; no heads: the same without the bytes "
    "of the heads. used: part of the shared weights that some task uses."
)
ACC = {
    False: "mean accuracy of all tasks at the end",
    True: "accuracy on the test images of all classes after the last session",
}
"""What ACC is without and with few-shot sessions."""
FURTHER = {
    "to_learn": "to learn: what is kept only to learn on, where one dense network is 100.",
    "bwt": "BWT: mean change of earlier tasks.",
    "fwt": "FWT: accuracy on a task before it is learned, with an untrained head, less that of random networks; mean "
    "over the tasks after the first.",
    "different": "changed: earlier answers that are no longer bit-identical.",
}
"""Captions of columns that not every table has."""


def finished(folders: Sequence[RunFolder]) -> list[RunFolder]:
    """Those that are; an error where none is."""
    done = [folder for folder in folders if folder.finished]
    if not done:
        raise InputError(
            "none of these runs is finished yet: "
            + ", ".join(str(folder.path) for folder in folders)
            + ". Go on with: forgetfree resume RUNS"
        )
    return done


def rows(folders: Sequence[RunFolder]) -> list[Row]:
    """Finished runs, one row for those that differ in the seed alone; few-shot sessions come last."""
    found = [_row(key, members) for key, members in by_setting(folders).items()]
    return sorted(found, key=lambda row: row.sessions is not None)


def by_setting(folders: Sequence[RunFolder]) -> dict[tuple[str, str, str, str], list[Run]]:
    """Finished runs by experiment, method, settings and scale, in the order they come."""
    groups: dict[tuple[str, str, str, str], list[Run]] = {}
    for folder in finished(folders):
        seen = views(folder)[0]
        run = seen.plan["run"]
        settings = ", ".join(f"{key}={value}" for key, value in sorted(seen.plan.get("overrides", {}).items()))
        groups.setdefault((run["experiment"], run["method"], settings, run["scale"]), []).append(seen)
    return groups


def as_tables(table: Sequence[Row], width: int) -> list[Table]:
    """For a terminal of this width, one for each experiment and scale.

    Columns that are empty everywhere are left out, and where the terminal is narrow those that say least.
    """
    groups: dict[str, list[Row]] = {}
    for row in table:
        groups.setdefault(f"{row.experiment}, scale {row.scale}", []).append(row)
    return [_shown(title, members, width) for title, members in groups.items()]


GIVE_WAY = ("cap_written", "to_learn", "seconds", "density", "cap_written_without_heads", "fwt", "notes")
"""Columns that a narrow terminal does without, in this order."""
FOLDED = {"settings": 16, "seeds": 5, "notes": 16}
"""Columns that are folded in a narrow terminal, and how narrow they may get."""


def _shown(title: str, table: Sequence[Row], width: int) -> Table:
    cells = [cells_of(row) for row in table]
    used = [key for key in HEADINGS if key not in ("experiment", "scale") and any(row[key] for row in cells)]
    least = {key: _narrowest(key, [row[key] for row in cells]) for key in used}
    for key in GIVE_WAY:
        if sum(least.values()) + len(least) > width:
            least.pop(key, None)
    missing = [HEADINGS[key] for key in used if key not in least]
    used = list(least)
    further = [text for key, text in FURTHER.items() if key in used]
    if missing:
        further.append(f"Not shown in so narrow a terminal: {', '.join(missing)}.")
    shown = Table(
        title=title,
        title_justify="left",
        box=SIMPLE,
        padding=0,
        show_edge=False,
        caption=" ".join([CAPTION.format(acc=ACC[table[0].sessions is not None]), *further]),
        caption_justify="left",
    )
    for key in used:
        text = key in ("method", "settings", "notes")
        heading = HEADINGS[key].replace(" ", "\n")
        shown.add_column(
            heading, justify="left" if text else "right", min_width=least[key], no_wrap=key not in FOLDED,
            overflow="fold",
        )  # fmt: skip
    for row in cells:
        colours = {"method": legend.entry(row["method"]).colour}
        shown.add_row(*(Text(row[key], style=colours.get(key, "")) for key in used))
    return shown


def _narrowest(key: str, cells: list[str]) -> int:
    whole = max(len(cell) for cell in (*HEADINGS[key].split(), *cells))
    return min(whole, FOLDED.get(key, whole))


def as_markdown(table: Sequence[Row]) -> str:
    cells = [cells_of(row) for row in table]
    used = [key for key in HEADINGS if any(row[key] for row in cells)]
    lines = [[HEADINGS[key] for key in used], ["---"] * len(used), *([row[key] for key in used] for row in cells)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def as_csv(table: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(asdict(table[0])))
    writer.writeheader()
    writer.writerows({**asdict(row), "seeds": " ".join(map(str, row.seeds))} for row in table)
    return text.getvalue()


def as_json(table: Sequence[Row]) -> str:
    return json.dumps([asdict(row) for row in table], indent=1)


def _row(key: tuple[str, str, str, str], runs: Sequence[Run]) -> Row:
    records = [run.record for run in runs]
    accs = [record.acc for record in records]
    sessions = [len(record.tasks) for record in records if record.sessions]
    bwts = [record.bwt for record in records if record.bwt is not None and not record.sessions]
    notes = {f"{name}: {value}" for record in records for name, value in record.notes.items()}
    return Row(
        *key,
        seeds=tuple(sorted(run.plan["run"]["seed"] for run in runs)),
        acc=statistics.mean(accs),
        acc_deviation=statistics.stdev(accs) if len(accs) > 1 else None,
        cap_formula=statistics.mean(record.footprints[-1]["formula"] for record in records),
        cap_written=_mean([record.footprints[-1].get("written") for record in records]),
        cap_written_without_heads=_mean([record.footprints[-1].get("written_without_heads") for record in records]),
        density=statistics.mean(record.footprints[-1]["density"] for record in records),
        to_learn=_mean([to_learn(run) for run in runs]),
        bwt=statistics.mean(bwts) if bwts else None,
        fwt=_mean([record.fwt for record in records]),
        compared=sum(record.compared for record in records),
        different=sum(record.different for record in records),
        seconds=statistics.mean(sum(map(sum, record.seconds.values())) for record in records),
        notes="; ".join(sorted(notes)),
        sessions=max(sessions) if sessions else None,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean, if all were measured."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if len(known) == len(values) else None


def _share(part: int, whole: int) -> str:
    """A part in percent; nothing but a plain zero is printed as 0."""
    if not whole:
        return ""
    return "0" if not part else f"{max(100 * part / whole, 0.01):.2f}"


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.2f}"


def cells_of(row: Row) -> dict[str, str]:
    """Column → what a table shows of a row."""
    deviation = f" ± {100 * row.acc_deviation:.2f}" if row.acc_deviation is not None else ""
    values: dict[str, Any] = {
        **asdict(row),
        "seeds": " ".join(map(str, row.seeds)),
        "acc": f"{100 * row.acc:.2f}{deviation}",
        "cap_formula": f"{100 * row.cap_formula:.2f}",
        "cap_written": _percent(row.cap_written),
        "cap_written_without_heads": _percent(row.cap_written_without_heads),
        "density": f"{100 * row.density:.2f}",
        "to_learn": _percent(row.to_learn),
        "bwt": _percent(row.bwt),
        "fwt": _percent(row.fwt),
        "different": _share(row.different, row.compared),
        "seconds": f"{row.seconds:.0f} s" if row.seconds < 100 else f"{row.seconds / 60:.0f} min",
    }
    return {key: str(values[key]) for key in HEADINGS}
