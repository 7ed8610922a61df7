"""Transfer matrices (Figures 8, 17 and 18 of the paper): what the ticket of one task is worth to another.

Every answer goes through the head that the asked task itself trained. WSN stands beside SoftNet, which is the same run
with small noise on the zeros of its tickets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from forgetfree.lab.paper import SOFTNET, WSN
from forgetfree.lab.report.figures.comparison import command, of_tasks
from forgetfree.lab.report.figures.figure import Drawing, Run, Series, having, series
from forgetfree.lab.report.figures.ink import SHADES, canvas, matrix

TITLE = "Transfer between tickets"
READINGS = {"trained": WSN, "trained, noisy": SOFTNET}
"""Where a record has the accuracies → whose they are."""
STEPS = 21
"""Of the key to shades: vectors, no picture."""


@dataclass(frozen=True)
class Panel:
    """The matrix of one capacity, a mean over seeds."""

    label: str
    noisy: bool
    """Whether there was noise on the zeros of tickets."""
    values: tuple[tuple[float, ...], ...]
    """Row: whose ticket answers. Column: the task that is asked, through its own head."""
    random: float
    """Accuracy of random networks, in the mean over tasks."""

    @property
    def own(self) -> float:
        """Tickets on their own tasks: the diagonal."""
        return mean(self.values[t][t] for t in range(len(self.values)))

    @property
    def before(self) -> float:
        """The ticket of the task before: one right of the diagonal, the terms of FWT."""
        return mean(self.values[t - 1][t] for t in range(1, len(self.values)))


def measure(runs: Sequence[Run]) -> tuple[Panel, ...]:
    """The smallest and the largest capacity of WSN, each without and with noise."""
    ask = command(
        of_tasks(runs)[0],
        f"--method {WSN} --set capacity=0.05,0.5 --set background_noise=1e-3 --set protocol.forward=true",
    )
    found = having(
        runs,
        lambda run: run.method == WSN and len(run.record.transfer.get("matrix", {}).get("trained", [])) > 1,
        f"this figure needs transfer matrices of WSN, of two tasks or more; make them with: {ask}",
    )
    smallest, *larger = series(found)
    ends = [smallest, *larger[-1:]]
    kinds = [key for key in READINGS if all(key in run.record.transfer["matrix"] for one in ends for run in one.runs)]
    return tuple(_panel(one, kind) for one in ends for kind in kinds)


def _panel(one: Series, kind: str) -> Panel:
    tables = [run.record.transfer["matrix"][kind] for run in one.runs]
    tasks = range(len(tables[0]))
    values = tuple(tuple(mean(table[i][j] for table in tables) for j in tasks) for i in tasks)
    random = mean(mean(run.record.transfer["random"]) for run in one.runs)
    (reading,) = series([replace(run, method=READINGS[kind]) for run in one.runs])
    return Panel(reading.label, reading.method == SOFTNET, values, random)


def draw(panels: tuple[Panel, ...]) -> Drawing:
    rows, columns = max(1, len(panels) // 2), min(2, len(panels))
    drawing, axes = canvas(rows, columns, width=3.3 * columns + 0.9, height=3.3 * rows + 0.3)
    for number, (each, panel) in enumerate(zip(axes, panels, strict=True)):
        matrix(each, panel.values, name=f"transfer{number + 1}")
        each.set_title(f"{panel.label}, the task's own head")
        each.set_ylabel("ticket of task")
        each.set_xlabel("task asked")
    shades = ScalarMappable(Normalize(0, 100), SHADES)
    key = drawing.colorbar(
        shades, ax=axes, boundaries=[5 * step for step in range(STEPS)], ticks=range(0, 101, 20), shrink=0.6, aspect=30
    )
    key.set_label("accuracy, %")
    key.outline.set_visible(False)
    return drawing


def words(panels: tuple[Panel, ...]) -> str:
    parts = "; ".join(
        f"{panel.label}: {100 * panel.own:.1f} % on the diagonal, {100 * panel.before:.1f} % right of it"
        for panel in panels
    )
    soft = " SoftNet is WSN with noise on the zeros of its tickets." if any(panel.noisy for panel in panels) else ""
    return (
        "Accuracy of the ticket of one task (row) on another (column) through the head that the asked task trained: "
        "left of the diagonal tickets of later tasks answer, right of it those of tasks before. "
        f"{parts}; random networks reach {100 * panels[0].random:.1f} %.{soft}"
    )
