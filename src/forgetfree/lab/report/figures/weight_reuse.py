"""Weight reuse (Figure 6 a and b of the paper): which weights tasks share, over tasks and by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from matplotlib.axes import Axes

from forgetfree.lab import legend
from forgetfree.lab.legend import COLOURS
from forgetfree.lab.paper import WSN
from forgetfree.lab.report.figures.figure import Drawing, Run, Series, analysed, deviation
from forgetfree.lab.report.figures.ink import DASHES, INK, canvas, line_style, whole_ticks
from forgetfree.lab.report.figures.of_tickets import nearest, series_of, short
from forgetfree.lab.report.published import title

TITLE = "Weight reuse"

SHARES = ("used by all tasks", "by several", "by one task", "by none")
HATCHES = ("", "//", "..", "")


@dataclass(frozen=True)
class Reuse:
    """The tickets of one setting, mean over seeds."""

    label: str
    method: str
    seeds: int
    sets: Mapping[str, tuple[float, ...]]
    """Set → part of all weights that is in it after each task."""
    spread: Mapping[str, tuple[float, ...]]
    """The deviation of that over seeds."""
    layers: tuple[str, ...]
    shares: Mapping[str, tuple[float, ...]]
    """How many tasks use a weight at the end → part of each layer."""


def measure(runs: Sequence[Run]) -> tuple[Reuse, ...]:
    """Methods that reuse weights, at the capacity nearest to 10 % where they have several; WSN first."""
    found = series_of(runs, lambda _, method: method.reuses, "tickets")
    chosen = [one for one in found if one.capacity is None]
    for method in dict.fromkeys(one.method for one in found if one.capacity is not None):
        chosen.append(nearest([one for one in found if one.method == method and one.capacity is not None]))
    return tuple(_reuse(one) for one in sorted(chosen, key=lambda one: one.method != WSN))


def _reuse(one: Series) -> Reuse:
    found = [analysed(run, "tickets") for run in one.runs]
    total = sum(found[0]["weights"].values())
    parts = {
        kind: [
            [sum(counts[t] for counts in each["sets"][kind].values()) / total for each in found]
            for t in range(len(found[0]["tasks"]))
        ]
        for kind in found[0]["sets"]
    }  # of each seed, after each task
    sets = {kind: tuple(mean(seeds) for seeds in after) for kind, after in parts.items()}
    spread = {kind: tuple(deviation(seeds) for seeds in after) for kind, after in parts.items()}
    layers = tuple(found[0]["weights"])
    by_layer = {
        layer: [mean(seeds) for seeds in zip(*(_shares(each["uses"][layer]) for each in found), strict=True)]
        for layer in layers
    }
    shares = {kind: tuple(by_layer[layer][k] for layer in layers) for k, kind in enumerate(SHARES)}
    return Reuse(one.label, one.method, len(found), sets, spread, layers, shares)


def _shares(uses: Sequence[int]) -> tuple[float, ...]:
    """Parts of a layer that all, several, one and no task uses; `uses[k]` weights are used by k tasks."""
    total, by_one = sum(uses), uses[1] if len(uses) > 2 else 0
    several = sum(uses[2:-1])
    return uses[-1] / total, several / total, by_one / total, uses[0] / total


def draw(settings: tuple[Reuse, ...]) -> Drawing:
    high = max(2.8, 0.7 + 0.18 * max(len(reuse.layers) for reuse in settings))
    drawing, axes = canvas(len(settings), 2, width=8.4, height=0.8 + high * len(settings))
    for row, reuse in enumerate(settings):
        _over_tasks(axes[2 * row], reuse)
        _by_layer(axes[2 * row + 1], reuse)
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=2)
    drawing.legend(*axes[1].get_legend_handles_labels(), loc="outside lower right", ncols=2)
    return drawing


def _over_tasks(axes: Axes, reuse: Reuse) -> None:
    tasks = range(1, len(next(iter(reuse.sets.values()))) + 1)
    every = max(1, len(tasks) // 10)
    for number, (kind, values) in enumerate(reuse.sets.items()):
        # dashes, as some lie on each other
        style = line_style(number) | {"linestyle": DASHES[number % len(DASHES)]}
        middle, around = ([100 * value for value in both] for both in (values, reuse.spread[kind]))
        error = around if reuse.seeds > 1 else None
        axes.errorbar(tasks, middle, error, label=kind, capsize=2, markevery=(number % every, every), **style)
    axes.set_title(reuse.label)
    axes.set_xlabel("tasks learned")
    axes.set_ylabel("% of all weights")
    axes.set_xlim(left=0.5)
    axes.set_ylim(bottom=0)
    whole_ticks(axes)


def _by_layer(axes: Axes, reuse: Reuse) -> None:
    count = len(reuse.layers)
    left = [0.0] * count
    for number, (kind, values) in enumerate(reuse.shares.items()):
        parts = [100 * value for value in values]
        axes.barh(
            range(count), parts, 0.7, left=left, label=kind, hatch=HATCHES[number], edgecolor=INK, linewidth=0.5,
            facecolor="none" if kind == SHARES[-1] else COLOURS[number],
        )  # fmt: skip
        left = [start + part for start, part in zip(left, parts, strict=True)]
    axes.set_title(f"{reuse.label}: layers at the end")
    axes.set_yticks(range(count), [short(layer) for layer in reuse.layers])
    axes.tick_params(axis="y", length=0, labelsize=6.5 if count > 12 else None)
    axes.invert_yaxis()
    axes.set_ylabel("layer")
    axes.set_xlabel("% of its weights")
    axes.set_xlim(0, 100)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)


def words(settings: tuple[Reuse, ...]) -> str:
    parts = []
    for reuse in settings:
        reused, used = reuse.sets["reused per task"][-1], reuse.sets["per task"][-1]
        parts.append(
            f"{reuse.label} (mean over {reuse.seeds} seed{'s' if reuse.seeds > 1 else ''}): of the "
            f"{100 * used:.1f} % of all weights that the last task uses it reuses {100 * reused / used:.0f} %; all "
            f"tasks together use {100 * reuse.sets['all used'][-1]:.1f} %, and "
            f"{100 * reuse.sets['reused for all tasks'][-1]:.1f} % are in every ticket."
        )
    nested = dict.fromkeys(title(reuse.method) for reuse in settings if legend.entry(reuse.method).nested)
    parts += [f"A ticket of {name} contains all that earlier tasks kept: it reuses without choice." for name in nested]
    return " ".join(parts)
