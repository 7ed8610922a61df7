"""Convergence (Equations 3 to 6 of the paper): the change of the gradient over that of the weights, measured.

The paper's proposition has subnetworks below a dense network, and soft ones below hard ones. What is measured is
evidence about the networks at hand, and no proof. With ReLU the gradient jumps, so that there is no Lipschitz constant,
and a ratio grows without bound where a jump lies between two networks that are close.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from forgetfree.lab import legend
from forgetfree.lab.paper import SMALL_NETWORKS
from forgetfree.lab.report.figures.beside import small_networks
from forgetfree.lab.report.figures.figure import Drawing, Run, analysed
from forgetfree.lab.report.figures.ink import canvas, method_styles

TITLE = "Gradient change over weight change"
READINGS = {"printed": "in all weights, as printed", "followed": "in the weights that count, as trained"}
"""In which weights the gradient is taken: analysis → words."""
APART = 0.25
"""Between networks of one kind of pair, where kinds are one apart."""


@dataclass(frozen=True)
class Spread:
    """Quantiles (5, 25, 50, 75, 95 %) of the ratio for one network and each kind of pair; means over seeds."""

    name: str
    quantiles: tuple[tuple[float, ...], ...]

    @property
    def medians(self) -> tuple[float, ...]:
        return tuple(row[len(row) // 2] for row in self.quantiles)


@dataclass(frozen=True)
class Ratios:
    """For each reading of the gradient, a spread for each network."""

    capacity: float
    seeds: int
    kinds: tuple[str, ...]
    """Of pairs: "epochs", or the distance of random ones."""
    readings: dict[str, tuple[Spread, ...]]


def measure(runs: Sequence[Run]) -> Ratios:
    """Quantiles as the analyses have them, averaged over the seeds that all networks have."""
    found = small_networks(runs)
    seen = [{name: analysed(run, "convergence") for name, run in each.items()} for each in found.by_seed.values()]
    kinds = tuple(seen[0][SMALL_NETWORKS[0]]["ratios"])

    def quantiles(method: str, kind: str, reading: str) -> tuple[float, ...]:
        rows = [each[method]["ratios"][kind][reading]["quantiles"] for each in seen]
        return tuple(mean(column) for column in zip(*rows, strict=True))

    readings = {
        reading: tuple(
            Spread(legend.entry(name).label, tuple(quantiles(name, kind, reading) for kind in kinds))
            for name in SMALL_NETWORKS
        )
        for reading in READINGS
    }
    return Ratios(found.capacity, len(found.by_seed), kinds, readings)


def draw(found: Ratios) -> Drawing:
    drawing, every = canvas(1, len(READINGS), width=7.6, height=3.4)
    for axes, (reading, spreads) in zip(every, found.readings.items(), strict=True):
        for number, (one, style) in enumerate(zip(spreads, method_styles(SMALL_NETWORKS), strict=True)):
            places = [at + (number - (len(spreads) - 1) / 2) * APART for at in range(len(found.kinds))]
            low, lower, _, upper, high = zip(*one.quantiles, strict=True)
            axes.vlines(places, low, high, color=style["color"], linewidth=1.0)
            axes.vlines(places, lower, upper, color=style["color"], linewidth=4.0, alpha=0.45)
            axes.plot(places, one.medians, label=one.name, markersize=6, **style | {"linestyle": "none"})
        axes.set_yscale("log")
        axes.set_title(f"gradient {READINGS[reading]}")
        axes.set_xticks(range(len(found.kinds)), [_kind(kind) for kind in found.kinds])
        axes.grid(False, axis="x")
    limits = [limit for axes in every for limit in axes.get_ylim()]
    for axes in every:
        axes.set_ylim(min(limits), max(limits))
    every[0].set_ylabel("change of gradient / of weights")
    drawing.supxlabel("pairs of networks: one epoch apart, or at a distance in random directions", fontsize=9)
    handles, labels = every[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper center", ncols=len(SMALL_NETWORKS))
    return drawing


def words(found: Ratios) -> str:
    dense, hard, soft = found.readings["printed"]
    parts = "; ".join(
        f"{' '.join(_kind(kind).split())}: {a:.2g}, {b:.2g}, {c:.2g}"
        for kind, a, b, c in zip(found.kinds, dense.medians, hard.medians, soft.medians, strict=True)
    )
    below = sum(b < a and c < a for a, b, c in zip(dense.medians, hard.medians, soft.medians, strict=True))
    softer = sum(c <= b for b, c in zip(hard.medians, soft.medians, strict=True))
    seeds = f"means of {found.seeds} seeds" if found.seeds > 1 else "one seed"
    return (
        f"Change of the gradient over change of the weights: median (mark), quartiles and 5 to 95 %; {seeds}, c = "
        f"{100 * found.capacity:g} %. Medians, as printed, of {dense.name} (the dense network), {hard.name}, "
        f"{soft.name}: {parts}. Both "
        f"subnetworks are below the dense network in {below} and SoftNet is not above HardNet in {softer} of "
        f"{len(found.kinds)} kinds of pairs. This is evidence, not proof."
    )


def _kind(kind: str) -> str:
    return "one\nepoch" if kind == "epochs" else f"distance\n{kind}"
