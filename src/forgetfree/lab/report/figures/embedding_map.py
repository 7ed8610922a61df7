"""Embedding map (Figure 14 of the paper): base and novel classes in the features of HardNet and SoftNet, by t-SNE."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from forgetfree.lab import legend
from forgetfree.lab.legend import COLOURS
from forgetfree.lab.paper import SUBNETWORKS, options
from forgetfree.lab.report.figures.beside import beside
from forgetfree.lab.report.figures.figure import Drawing, Run, analysed, having
from forgetfree.lab.report.figures.ink import INK, canvas

TITLE = "Embedding of test images"
CAPACITY = 0.3
"""Of the paper's figure; the nearest one that both have is drawn."""
PARTS = ("base", "novel")


@dataclass(frozen=True)
class Map:
    """The images of one network: places, number of the class, whether it came in the second session."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    classes: tuple[int, ...]
    novel: tuple[bool, ...]
    silhouette: Mapping[str, float]
    """Of base and novel images, in the features themselves: of this network."""
    mean_silhouette: Mapping[str, float]
    """And the mean over seeds."""


@dataclass(frozen=True)
class Maps:
    """HardNet and SoftNet at one capacity; drawn is the first seed."""

    capacity: float
    seeds: tuple[int, ...]
    sessions: int
    maps: tuple[Map, ...]


def measure(runs: Sequence[Run]) -> Maps:
    """The maps of the first seed that both have, silhouettes of all such seeds."""
    fitting = having(
        runs,
        lambda run: bool(run.record.sessions) and len(run.record.tasks) > 1,
        f"this figure is of few-shot sessions; make some with: forgetfree run fscil/digits {options(SUBNETWORKS)}",
    )
    found = beside(fitting, SUBNETWORKS, near=CAPACITY)
    seen = [{name: analysed(run, "embedding") for name, run in each.items()} for each in found.by_seed.values()]
    maps = tuple(_map(legend.entry(name).label, [each[name] for each in seen]) for name in SUBNETWORKS)
    return Maps(found.capacity, tuple(found.by_seed), seen[0][SUBNETWORKS[0]]["sessions"], maps)


def draw(found: Maps) -> Drawing:
    drawing, every = canvas(1, len(found.maps), width=7.6, height=4.2)
    for axes, one in zip(every, found.maps, strict=True):
        for number, label in enumerate(dict.fromkeys(one.classes)):
            at = [i for i, other in enumerate(one.classes) if other == label]
            places = [one.x[i] for i in at], [one.y[i] for i in at]
            if one.novel[at[0]]:
                axes.scatter(*places, marker="x", s=34, linewidths=1.8, color=INK, zorder=3)
            else:
                axes.scatter(*places, marker="o", s=16, color=COLOURS[number % len(COLOURS)], alpha=0.75, linewidths=0)
        parts = ", ".join(f"{part} {one.silhouette[part]:.3f}" for part in PARTS)
        axes.set_title(f"{one.name}, c = {100 * found.capacity:g} %\nsilhouette: {parts}")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel("t-SNE, first")
        axes.margins(0.05)
    every[0].set_ylabel("t-SNE, second")
    dot = every[0].scatter([], [], marker="o", s=16, color=COLOURS[0], linewidths=0, label="base class")
    cross = every[0].scatter([], [], marker="x", s=34, linewidths=1.8, color=INK, label="class of the second session")
    drawing.legend(handles=[dot, cross], loc="outside lower center", ncols=2)
    return drawing


def words(found: Maps) -> str:
    one = found.maps[0]
    novel = {label for label, new in zip(one.classes, one.novel, strict=True) if new}
    base = set(one.classes) - novel
    parts = "; ".join(
        f"{each.name} {each.mean_silhouette['base']:.3f} (base), {each.mean_silhouette['novel']:.3f} (novel)"
        for each in found.maps
    )
    seeds = f"mean of {len(found.seeds)} seeds" if len(found.seeds) > 1 else "one seed"
    return (
        f"{len(one.x)} test images by t-SNE, seed {found.seeds[0]}: {len(base)} base classes of even number (dots), "
        f"{len(novel)} of the second session (crosses). The network is that after all {found.sessions} sessions. "
        f"Silhouette in its features, {seeds}: {parts}."
    )


def _map(name: str, seen: Sequence[Mapping[str, Any]]) -> Map:
    first = seen[0]
    return Map(
        name,
        tuple(first["x"]),
        tuple(first["y"]),
        tuple(first["class"]),
        tuple(bool(value) for value in first["novel"]),
        {part: first["silhouette"][part] for part in PARTS},
        {part: mean(each["silhouette"][part] for each in seen) for part in PARTS},
    )
