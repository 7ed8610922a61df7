"""The demo: ten tasks learned one after another by four methods, explained to somebody who has not read the paper."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from forgetfree.lab import legend
from forgetfree.lab.analysing import analyse_all
from forgetfree.lab.display import Display
from forgetfree.lab.experiment import perform, plan
from forgetfree.lab.paper import DEMONSTRATED, WSN
from forgetfree.lab.records import Record, RunFolder, find_runs
from forgetfree.lab.report.publishing import write_page

EXPERIMENT, SCALE = "til/digits_permuted", "cpu"
PAGE = "report.html"


def demo(console: Console, out: Path, *, seed: int = 0, made_by: str = "forgetfree demo") -> None:
    """Run all methods in `out`, or go on with them, print what happened and write a page there that shows it.

    The page says what it was `made_by`.
    """
    plans = plan(EXPERIMENT, methods=DEMONSTRATED, scale=SCALE, seeds=[seed])
    capacity = plans[0].settings["method"]["capacity"]
    _say(console, "[bold]Ten tasks, learned one after another in one small network (64-100-100).[/bold]")
    _say(
        console,
        "Every task is to read the same handwritten digits, with the pixels shuffled in another way, and nothing of a "
        f"task's data is kept. WSN lets each task use {capacity:.0%} of the weights of every layer, and locks those it "
        "used. Beside it: [bold]fine-tuning[/bold] simply trains on; [bold]STL[/bold], single-task learning, takes a "
        "new network for each task; [bold]MTL[/bold], multitask learning, sees the data of all tasks at once, which in "
        "practice one cannot.\n",
    )
    records: dict[str, Record] = {}
    with Display(console, every_task=False) as display:
        for run in plans:
            label = legend.entry(run.method).label
            display.start(label)
            records[run.method] = perform(run, out, progress=display.step, say=display.say)
            if not console.is_terminal:
                console.print(f"{label}: done", highlight=False)
    console.print(_table(records))
    _say(
        console,
        "[dim]after: mean test accuracy of the ten tasks, each right after it was learned. end: of the same tasks "
        "after all ten (ACC). lost: the difference, over the first nine (BWT). memory: of the weights and masks of all "
        "ten tasks, where one dense network is 100 % (CAP, the paper's formula).[/dim]\n",
    )
    wsn = records[WSN]
    _say(
        console,
        f"WSN: after every task all earlier tasks were asked again; {wsn.compared:,} answers were compared bit for bit "
        f"with those given right after learning, and [bold]{wsn.different:,} differ[/bold].\n",
    )
    runs, page = [RunFolder(out / run.folder) for run in plans], out / PAGE
    with console.status("drawing the page …"):
        analyse_all(runs, Console(quiet=True))
        write_page(runs, page, shlex.join(["forgetfree", "report", *map(str, _reported(runs, out))]), made_by=made_by)
    _say(console, f"All of it on one page, with figures: [bold]{escape(str(page.resolve()))}[/bold]")


def _reported(runs: Sequence[RunFolder], out: Path) -> list[Path]:
    """What to name for a report of these runs: the folder above them, where nothing else is in it."""
    ours = [folder.path for folder in runs]
    return [out] if {folder.path for folder in find_runs([out])} == set(ours) else ours


def _say(console: Console, text: str) -> None:
    console.print(Text.from_markup(text), highlight=False, width=min(console.width, 100))


def _table(records: dict[str, Record]) -> Table:
    table = Table()
    for heading in ("method", "after", "end (ACC)", "lost (BWT)", "memory (CAP)", "time"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method, record in records.items():
        diagonal = [record.accuracy[t][t] for t in range(len(record.tasks))]
        known = [value for value in diagonal if value is not None]
        table.add_row(
            legend.named(method),
            f"{100 * sum(known) / len(known):.1f} %" if len(known) == len(diagonal) else "–",
            f"{100 * record.acc:.1f} %",
            "–" if record.bwt is None else f"{100 * record.bwt:.1f} %" if record.bwt else "0 exactly",
            f"{100 * record.footprints[-1]['formula']:.0f} %",
            f"{sum(map(sum, record.seconds.values())):.0f} s",
            style="bold" if method == WSN else None,
        )
    return table
