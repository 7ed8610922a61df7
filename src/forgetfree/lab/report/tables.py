"""Tables: finished runs, one row per setting, mean and deviation over seeds; for eyes and for machines."""

import csv
import io
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from forgetfree.errors import InputError
from forgetfree.lab import chance, legend
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report import grid
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
    at_chance: bool
    """Whether the training loss of some tasks never left that of guessing."""


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


APART = ("experiment", "method", "settings", "scale")
"""Columns that set rows apart; they stand before those that are chosen."""
ACC = {
    False: "mean accuracy of all tasks at the end",
    True: "accuracy on the test images of all classes after the last session",
}
"""What ACC is without and with few-shot sessions."""
MEANINGS = {
    "acc": "ACC: {acc}.",
    "cap_formula": "CAP: weights and masks by the paper's formula, where one dense network is 100.",
    "cap_written": "file: bytes of the archive really written, where one dense float32 network is 100.",
    "cap_written_without_heads": "no heads: bytes of the archive without those of the heads.",
    "density": "used: part of the shared weights that some task uses.",
    "to_learn": "to learn: what is kept only to learn on, where one dense network is 100.",
    "bwt": "BWT: mean change of earlier tasks.",
    "fwt": "FWT: accuracy on a task before it is learned, with an untrained head, less that of random networks; mean "
    "over the tasks after the first.",
    "different": "changed: earlier answers that are no longer bit-identical.",
}
"""What captions say of columns."""
AT_CHANCE = "†"
"""Marks an accuracy of runs in which the training loss of some tasks never left that of guessing."""


def caption(table: Sequence[Row], columns: Iterable[str]) -> str:
    """What stands below a table of these columns."""
    known = [text for key, text in MEANINGS.items() if key in set(columns)]
    if any(row.at_chance for row in table):
        known.append(
            f"{AT_CHANCE} some tasks were not learned at all, so that this says nothing of the method: see notes."
        )
    return " ".join(["In percent.", *known]).format(acc=" or ".join(dict.fromkeys(map(_acc, table))))


def _acc(row: Row) -> str:
    return ACC[row.sessions is not None]


def columns_of(table: Sequence[Row], chosen: Sequence[str] = ()) -> list[str]:
    """Columns that say something; where some are chosen, those in their order, behind what sets rows apart."""
    cells = [cells_of(row) for row in table]
    if not chosen:
        return [key for key in HEADINGS if any(row[key] for row in cells)]
    telling = [key for key in APART if key == "method" or len({row[key] for row in cells}) > 1]
    return list(dict.fromkeys([*telling, *chosen]))


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


def as_tables(table: Sequence[Row], width: int, chosen: Sequence[str] = ()) -> list[Table]:
    """For a terminal of this width, one for each experiment and scale.

    Columns that are empty everywhere are left out, and where the terminal is narrow those that say least.
    """
    return [_shown(title, members, width, chosen) for title, members in _comparisons(table).items()]


def _comparisons(table: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that may be compared, by experiment and scale."""
    groups: dict[str, list[Row]] = {}
    for row in table:
        groups.setdefault(f"{row.experiment}, scale {row.scale}", []).append(row)
    return groups


GIVE_WAY = ("cap_written", "to_learn", "seconds", "density", "cap_written_without_heads", "fwt", "notes")
"""Columns that a narrow terminal does without, in this order."""
FOLDED = {"settings": 16, "seeds": 5, "notes": 16}
"""Columns that are folded in a narrow terminal, and how narrow they may get."""


def _shown(title: str, table: Sequence[Row], width: int, chosen: Sequence[str]) -> Table:
    cells = [cells_of(row) for row in table]
    used = [key for key in columns_of(table, chosen) if key not in ("experiment", "scale")]
    least = {key: _narrowest(key, [row[key] for row in cells]) for key in used}
    for key in GIVE_WAY:
        if sum(least.values()) + len(least) > width:
            least.pop(key, None)
    missing = [HEADINGS[key] for key in used if key not in least]
    used = list(least)
    without = f" Not shown in so narrow a terminal: {', '.join(missing)}." if missing else ""
    shown = Table(
        title=title,
        title_justify="left",
        box=SIMPLE,
        padding=0,
        show_edge=False,
        caption=caption(table, used) + without,
        caption_justify="left",
    )
    for key in used:
        text = key in ("method", "settings", "notes")
        heading = HEADINGS[key].replace(" ", "\n")
        shown.add_column(
            heading, justify="left" if text else "right", min_width=least[key], no_wrap=key not in FOLDED,
            overflow="fold",
        )  # fmt: skip
    for row, cell in zip(table, cells, strict=True):
        shown.add_row(*(legend.named(row.method) if key == "method" else Text(cell[key]) for key in used))
    return shown


def _narrowest(key: str, cells: list[str]) -> int:
    marker = 2 if key == "method" else 0  # and a blank, before the name
    whole = marker + max(len(cell) for cell in (*HEADINGS[key].split(), *cells))
    return min(whole, FOLDED.get(key, whole))


def as_markdown(table: Sequence[Row], chosen: Sequence[str] = ()) -> str:
    used = columns_of(table, chosen)
    return grid.as_markdown([HEADINGS[key] for key in used], [[cells_of(row)[key] for key in used] for row in table])


def as_latex(table: Sequence[Row], chosen: Sequence[str] = ()) -> str:
    """One for each experiment and scale, under one caption."""
    grids, told = [], set()
    for title, members in _comparisons(table).items():
        used = [key for key in columns_of(members, chosen) if key not in ("experiment", "scale")]
        cells = [[cells_of(row)[key] for key in used] for row in members]
        grids.append(grid.Grid(title, [HEADINGS[key] for key in used], cells))
        told |= {*used}
    only = f"{grids[0].title}. " if len(grids) == 1 else ""
    return grid.as_latex(grids, only + caption(table, told))


def as_csv(table: Sequence[Row], chosen: Sequence[str] = ()) -> str:
    text = io.StringIO()
    rows_ = [_values(row, chosen) for row in table]
    writer = csv.DictWriter(text, fieldnames=list(rows_[0]))
    writer.writeheader()
    writer.writerows({**row, "seeds": " ".join(map(str, row["seeds"]))} for row in rows_)
    return text.getvalue()


def as_json(table: Sequence[Row], chosen: Sequence[str] = ()) -> str:
    return json.dumps([_values(row, chosen) for row in table], indent=1)


def _values(row: Row, chosen: Sequence[str]) -> dict[str, Any]:
    """A row for machines: all there is, or what says which row it is and what is chosen."""
    values = asdict(row)
    wanted = [key for name in chosen for key in (name, f"{name}_deviation") if key in values]
    return {key: values[key] for key in dict.fromkeys([*APART, "seeds", *wanted])} if chosen else values


def _row(key: tuple[str, str, str, str], runs: Sequence[Run]) -> Row:
    records = [run.record for run in runs]
    accs = [record.acc for record in records]
    sessions = [len(record.tasks) for record in records if record.sessions]
    bwts = [record.bwt for record in records if record.bwt is not None and not record.sessions]
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
        notes="; ".join(_notes(runs)),
        at_chance=any(chance.NOTE in record.notes for record in records),
        sessions=max(sessions) if sessions else None,
    )


def _notes(runs: Sequence[Run]) -> list[str]:
    """What the records note, each once; of tasks that were not learned, in the runs of which seeds."""
    alike = {f"{name}: {value}" for run in runs for name, value in run.record.notes.items() if name != chance.NOTE}
    stuck = {run.plan["run"]["seed"]: run.record.notes.get(chance.NOTE) for run in runs}
    return sorted(alike) + [f"seed {seed}: {words}" for seed, words in sorted(stuck.items()) if words]


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
        "method": legend.entry(row.method).label,
        "seeds": " ".join(map(str, row.seeds)),
        "acc": f"{100 * row.acc:.2f}{deviation}{' ' + AT_CHANCE if row.at_chance else ''}",
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
