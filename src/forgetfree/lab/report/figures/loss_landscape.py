"""Loss landscapes (Figure 3 of the paper): the training loss around a dense network, HardNet and SoftNet.

The first seed is drawn, all are compared. The head is dense in all three networks, and among the weights that count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, pstdev
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm

from forgetfree.lab import legend
from forgetfree.lab.paper import SMALL_NETWORKS
from forgetfree.lab.report.figures.beside import small_networks
from forgetfree.lab.report.figures.figure import Drawing, Run, analysed
from forgetfree.lab.report.figures.ink import SHADES, canvas

TITLE = "Loss landscapes"
LEVELS = 11
"""Contour lines, at equal ratios of the loss."""
ON_LIGHT, ON_DARK = "#1f2329", "#ffffff"
"""Lines and numbers on the shades, which are the same on a light and on a dark page."""


@dataclass(frozen=True)
class Panel:
    """The loss around one network, along its two leading Hessian eigenvectors."""

    name: str
    epoch: int
    loss: float
    eigenvalues: tuple[float, ...]
    grid: tuple[tuple[float, ...], ...]
    """A row for each step along the second eigenvector."""


@dataclass(frozen=True)
class Reached:
    """A network at the end, in every seed."""

    name: str
    weights: int
    """How many count."""
    eigenvalue: tuple[float, ...]
    """The leading one in these weights."""
    in_all: tuple[float, ...]
    """The leading one in all weights, hidden ones too."""
    loss: tuple[float, ...]


@dataclass(frozen=True)
class Landscapes:
    """Panels by epoch, then by network."""

    capacity: float
    seeds: tuple[int, ...]
    steps: tuple[float, ...]
    rows: tuple[tuple[Panel, ...], ...]
    reached: tuple[Reached, ...]


def measure(runs: Sequence[Run]) -> Landscapes:
    """Panels of the first seed that all three networks have; what they reached in all such seeds."""
    found = small_networks(runs)
    seen = [{name: analysed(run, "landscape") for name, run in each.items()} for each in found.by_seed.values()]
    first = seen[0]
    return Landscapes(
        found.capacity,
        tuple(found.by_seed),
        tuple(first[SMALL_NETWORKS[0]]["steps"]),
        tuple(
            tuple(_panel(name, first[name]["networks"][at]) for name in SMALL_NETWORKS)
            for at in range(len(first[SMALL_NETWORKS[0]]["networks"]))
        ),
        tuple(_reached(name, [each[name]["networks"][-1] for each in seen]) for name in SMALL_NETWORKS),
    )


def draw(found: Landscapes) -> Drawing:
    drawing, every = canvas(len(found.rows), len(SMALL_NETWORKS), width=7.6, height=2.75 * len(found.rows))
    for number, row in enumerate(found.rows):
        axes = every[number * len(SMALL_NETWORKS) : (number + 1) * len(SMALL_NETWORKS)]
        values = np.array([panel.grid for panel in row])
        levels = np.geomspace(values.min(), values.max(), LEVELS)
        inks = [ON_LIGHT if at < LEVELS // 2 else ON_DARK for at in range(LEVELS)]
        for panel, grid, place in zip(row, values, axes, strict=True):
            shown = place.contourf(found.steps, found.steps, grid, levels, cmap=SHADES, norm=LogNorm())
            lines = place.contour(found.steps, found.steps, grid, levels, colors=inks, linewidths=0.5)
            place.clabel(lines, levels[1::2], fmt="%.2g", fontsize=6.5)
            place.plot(0, 0, marker="+", color=ON_LIGHT, markersize=7)
            first, second = panel.eigenvalues
            place.set_title(f"{panel.name}, epoch {panel.epoch}\nλ = {first:.2f}, {second:.2f}; loss {panel.loss:.3f}")
            place.set_aspect("equal")
            place.grid(False)
            place.set_xticks([found.steps[0], 0, found.steps[-1]])
            place.set_yticks([found.steps[0], 0, found.steps[-1]])
        axes[0].set_ylabel("along 2nd eigenvector")
        bar = drawing.colorbar(shown, ax=axes, label="training loss", ticks=levels[::2], format="%.2g", pad=0.02)
        bar.minorticks_off()
    for place in every[-len(SMALL_NETWORKS) :]:
        place.set_xlabel("along 1st eigenvector")
    return drawing


def words(found: Landscapes) -> str:
    parts = "; ".join(
        f"{one.name} {_spread(one.eigenvalue, 2)} ({_spread(one.in_all, 2)}), loss {_spread(one.loss, 3)}, "
        f"{one.weights} weights"
        for one in found.reached
    )
    return (
        f"Training loss around NCM (the dense network), HardNet and SoftNet (c = {100 * found.capacity:g} %, the "
        f"head dense in all) along the two leading Hessian eigenvectors, seed {found.seeds[0]}. Leading eigenvalue at "
        "the end, in the weights that count (in brackets: in all weights, hidden ones too), "
        f"{_counted(found.seeds)}: {parts}."
    )


def _panel(method: str, network: Mapping[str, Any]) -> Panel:
    grid = tuple(tuple(row) for row in network["grid"])
    return Panel(legend.entry(method).label, network["epoch"], network["loss"], tuple(network["eigenvalues"]), grid)


def _reached(method: str, ends: Sequence[Mapping[str, Any]]) -> Reached:
    return Reached(
        legend.entry(method).label,
        ends[0]["weights"],
        tuple(end["eigenvalues"][0] for end in ends),
        tuple(end["eigenvalues_in_all"][0] for end in ends),
        tuple(end["loss"] for end in ends),
    )


def _spread(values: Sequence[float], digits: int) -> str:
    deviation = f" ± {pstdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def _counted(seeds: Sequence[int]) -> str:
    return f"mean of {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
