"""Ink: colours, lines and type that all figures share, and pictures as SVG and PNG.

Colours can be distinguished by people who see few of them; lines differ in dashes and markers too, so that a figure can
be read in grey.
"""

import io
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from forgetfree.lab import legend
from forgetfree.lab.legend import COLOURS

INK, FAINT = "#1f2328", "#8a9199"
"""Text and axes; grid and what is in the background."""
DASHES = ("-", "--", "-.", ":")
FADING = (1.0, 0.8, 0.65, 0.52, 0.42, 0.34)
"""How strong the lines of one method are, one after another."""
OTHER_MARKERS = ("8", "+", "H", "x", "1", "4", "2", "|", "3", "_", ".", "$+$", "$x$")
"""Of lines that are no methods: none of legend.MARKERS."""
SHADES = LinearSegmentedColormap.from_list("shades", ["#f4f7fb", "#7fb2d9", "#0060a8", "#0a2540"])
"""From little to much, for matrices; also in grey."""
ON_DARK = 0.3
"""The luminance of a colour that stands out on a dark page (about 6:1)."""
LIGHT, DARK = "#ffffff", "#010101"
"""What is written on a square: unlike INK the same in every theme, as the square is."""

PLACES, LONG = re.compile(r'\b(?:d|x|y)="[^"]*"'), re.compile(r"-?\d+\.\d{3,}")
"""Attributes of an SVG that say where something is, and numbers there with many decimals."""

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "forgetfree",
}
"""matplotlib's settings while a figure is drawn and written."""


def canvas(rows: int = 1, columns: int = 1, *, width: float = 6.4, height: float = 3.6) -> tuple[Drawing, list[Axes]]:
    """A drawing with its axes, row by row; the size, in inches, is that of the whole."""
    drawing = Drawing(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing, list(np.asarray(drawing.subplots(rows, columns, squeeze=False)).reshape(-1))


def line_style(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of a line that is no method, by its number.

    Where colours come round again, markers are hollow.
    """
    again, place = divmod(number, len(COLOURS))
    look = {"color": COLOURS[place], "marker": OTHER_MARKERS[place], "linestyle": DASHES[again % len(DASHES)]}
    return {**look, "markerfacecolor": "none"} if again else look


def method_styles(methods: Sequence[str]) -> list[dict[str, Any]]:
    """Colour, marker and dashes of a line for each of these methods: the same colour and marker in every figure.

    Where a method has several lines, such as one for each capacity, these differ in dashes and strength, and all
    but the first have hollow markers.
    """
    drawn: Counter[tuple[str, str]] = Counter()
    styles = []
    for method in methods:
        look = legend.entry(method).colour, legend.entry(method).marker
        style = {"color": look[0], "marker": look[1], "linestyle": DASHES[drawn[look] % len(DASHES)]}
        again = {"markerfacecolor": "none", "alpha": FADING[min(drawn[look], len(FADING) - 1)]}
        styles.append({**style, **again} if drawn[look] else style)
        drawn[look] += 1
    return styles


def whole_ticks(axes: Axes) -> None:
    """Only whole numbers along x: tasks and sessions are counted."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def matrix(
    axes: Axes, values: Sequence[Sequence[float | None]], *, least: float = 0.0, most: float = 1.0, name: str = "cell"
) -> None:
    """A square for each value, None left blank; its row, column and value are in the id of its shape.

    Values are fractions; few squares have their percent written on them.
    """
    rows, columns = len(values), len(values[0])
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if value is None:
                continue
            part = (value - least) / (most - least) if most > least else 0.0
            shade = to_hex(SHADES(min(1.0, max(0.0, part))))
            square = axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1.0, 1.0, facecolor=shade, edgecolor="none"))
            square.set_gid(f"{name}|{i + 1}|{j + 1}|{100 * value:z.2f}")
            if max(rows, columns) <= 10:
                axes.text(
                    j, i, f"{100 * value:z.0f}", ha="center", va="center", fontsize=6.5,
                    color=readable_on(shade),
                )  # fmt: skip
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.grid(False)
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        step = max(1, count // 10)
        axis.set_ticks(range(0, count, step), [str(n + 1) for n in range(0, count, step)])
    axes.tick_params(length=0)


def readable_on(colour: str) -> str:
    """Light or dark, whichever is easier to read on a colour such as #7fb2d9: one of them always can be (4.5:1)."""
    luminance = _luminance(colour)
    return LIGHT if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else DARK


def lightened(colour: str) -> str:
    """A colour, with as much white in it as it takes to be read on a dark page."""
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    for white in range(0, 256, 5):
        mixed = "#" + "".join(f"{part + (255 - part) * white // 255:02x}" for part in parts)
        if _luminance(mixed) >= ON_DARK:
            return mixed
    return LIGHT


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def as_svg(drawing: Drawing, ground: str = "white") -> str:
    """The same drawing gives the same letters; places have two decimals, which is less than anybody can see."""
    text = io.StringIO()
    with rc_context(STYLE):
        drawing.savefig(text, format="svg", facecolor=ground, metadata={"Date": None, "Creator": None})
    return PLACES.sub(lambda found: LONG.sub(_shortened, found[0]), text.getvalue())


def _shortened(number: re.Match[str]) -> str:
    return f"{float(number[0]):z.2f}"


def as_png(drawing: Drawing) -> bytes:
    content = io.BytesIO()
    with rc_context(STYLE):
        drawing.savefig(content, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return content.getvalue()
