"""Reuse ablation (Figure 6 c and d of the paper): what a task loses without the weights that it shares with others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from forgetfree.lab.legend import COLOURS
from forgetfree.lab.paper import WSN
from forgetfree.lab.report.figures.figure import Drawing, Run, analysed, deviation
from forgetfree.lab.report.figures.ink import INK, canvas, line_style, whole_ticks
from forgetfree.lab.report.figures.of_tickets import nearest, series_of, short

TITLE = "Reuse ablation"

TICKET = "ticket"
LABELS = {
    TICKET: "the ticket as it is",
    "without reused": "without weights reused per task",
    "without reused for all": "without weights reused for all tasks",
    "only reused": "with reused weights only",
    "all used": "with all weights used so far",
}


@dataclass(frozen=True)
class Ablation:
    """WSN at one capacity, mean over seeds."""

    label: str
    seeds: int
    images: tuple[int, ...]
    """How many test images of each task, in all seeds together."""
    accuracy: Mapping[str, tuple[float | None, ...]]
    """Variant → accuracy of each task; None at the first, which reuses nothing."""
    deviation: Mapping[str, tuple[float | None, ...]]
    """Of that over seeds."""
    layers: tuple[str, ...]
    lost: tuple[float, ...]
    """Layer by layer: accuracy lost without its reused weights, mean over the tasks after the first."""
    spread: tuple[float, ...]
    """The deviation of that over tasks."""
    as_recorded: bool
    """Whether tickets gave the accuracies of the records exactly."""


def measure(runs: Sequence[Run]) -> Ablation:
    """WSN at the capacity nearest to 10 %."""
    chosen = nearest(series_of(runs, lambda method, _: method == WSN, "reuse"))
    found = [analysed(run, "reuse") for run in chosen.runs]
    tasks = range(len(found[0]["tasks"]))
    seeds = {variant: [_known([each["variants"][variant][t] for each in found]) for t in tasks] for variant in LABELS}
    layers = tuple(found[0]["layers"])
    lost = {
        layer: [mean(each["variants"][TICKET][t] - each["layers"][layer][t] for each in found) for t in tasks[1:]]
        for layer in layers
    }
    return Ablation(
        chosen.label,
        len(found),
        tuple(sum(each["images"][t] for each in found) for t in tasks),
        {variant: tuple(mean(known) if known else None for known in of) for variant, of in seeds.items()},
        {variant: tuple(deviation(known) if known else None for known in of) for variant, of in seeds.items()},
        layers,
        tuple(mean(lost[layer]) for layer in layers),
        tuple(deviation(lost[layer]) for layer in layers),
        all(each["as_recorded"] for each in found),
    )


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def draw(ablation: Ablation) -> Drawing:
    many = len(ablation.layers)
    drawing, (tasks, layers) = canvas(1, 2, width=8.4, height=max(4.0, 1.6 + 0.22 * many))
    for number, (variant, values) in enumerate(ablation.accuracy.items()):
        places = [t + 1 for t, value in enumerate(values) if value is not None]
        middle, around = ([100 * value for value in _known(both)] for both in (values, ablation.deviation[variant]))
        style = {"markevery": max(1, len(middle) // 10), **line_style(number)}
        error = around if ablation.seeds > 1 else None
        tasks.errorbar(places, middle, error, label=LABELS[variant], capsize=2, **style)
    tasks.set_title(ablation.label)
    tasks.set_xlabel("task")
    tasks.set_ylabel("accuracy at the end, %")
    tasks.set_xlim(left=0.5)
    tasks.set_ylim(bottom=0)
    whole_ticks(tasks)
    drawing.legend(*tasks.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    lost, spread = ([100 * value for value in values] for values in (ablation.lost, ablation.spread))
    layers.barh(
        range(many), lost, 0.65 if many > 4 else 0.4, xerr=spread, color=COLOURS[0], edgecolor=INK, linewidth=0.5,
        ecolor=INK, capsize=2,
    )  # fmt: skip
    layers.set_yticks(range(many), [short(layer) for layer in ablation.layers])
    layers.tick_params(axis="y", length=0, labelsize=6.5 if many > 12 else None)
    layers.invert_yaxis()
    layers.grid(visible=False, axis="y")
    layers.set_axisbelow(True)
    layers.set_title("without the reused weights of one layer")
    layers.set_xlabel("points of accuracy lost, mean over tasks")
    layers.set_ylabel("layer")
    return drawing


def words(ablation: Ablation) -> str:
    later = {variant: _known(values[1:]) for variant, values in ablation.accuracy.items()}
    parts = ", ".join(f"{LABELS[variant]} {100 * mean(known):.1f} %" for variant, known in later.items() if known)
    at = max(range(len(ablation.layers)), key=lambda number: ablation.lost[number])
    text = (
        f"{ablation.label}, mean over {ablation.seeds} seed{'s, with deviation' if ablation.seeds > 1 else ''}: "
        f"mean accuracy of the tasks after the first, {parts}. Without its reused weights the layer "
        f"{short(ablation.layers[at])} costs most, {100 * ablation.lost[at]:.1f} points (bars: deviation over tasks). "
        f"{min(ablation.images) // ablation.seeds} test images of each task."
    )
    if not ablation.as_recorded:
        text += " Tickets as they are did not give exactly the accuracies of the record here: another machine?"
    return text
