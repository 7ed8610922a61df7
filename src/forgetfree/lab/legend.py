"""Legend: what a method is called and how it is drawn, in every table and figure alike.

What the table of methods says of it, with a default for what it leaves out. A method that is not installed here, such
as one of a plug-in that has gone, is known by its name alone: its runs are reported like those of any other.
"""

import re
import zlib
from dataclasses import replace

from rich.text import Text

from forgetfree.errors import PluginError
from forgetfree.lab.console import shown
from forgetfree.methods import METHODS
from forgetfree.registry import MethodEntry

COLOURS = (
    "#0060a8", "#c04a00", "#00795c", "#a4387e", "#7a6000", "#5b4fc4", "#5e6670", "#007f98", "#b03030", "#3f7f00",
    "#9b2fae", "#7d4a1e", "#44607c",
)  # fmt: skip
"""Each dark enough to be read on white (4.5:1)."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p", "d")
GLYPHS = dict(zip(MARKERS, "●■▲◆▼✚✕◄►★⬢⬟♦", strict=True))
"""Markers as letters: what stands before the name of a method in a terminal and in the tables of a page."""
COLOUR = re.compile(r"#[0-9a-f]{6}")


def entry(method: str) -> MethodEntry:
    """What is known of a method; label, colour and marker are always there."""
    known = METHODS.entry(method) if installed(method) else MethodEntry("", "not installed here", source="")
    number = zlib.crc32(method.encode())  # the same in every process, unlike hash()
    colour, marker = known.colour.lower(), known.marker
    return replace(
        known,
        label=known.label or method,
        colour=colour if COLOUR.fullmatch(colour) else COLOURS[number % len(COLOURS)],
        marker=marker if marker in MARKERS else MARKERS[number // len(COLOURS) % len(MARKERS)],
    )


def named(method: str, label: str | None = None) -> Text:
    """The name of a method as a terminal shows it, behind its marker and in its colour; `label` says more of it."""
    known = entry(method)
    return Text(f"{GLYPHS[known.marker]} {shown(known.label if label is None else label)}", style=known.colour)


def installed(method: str) -> bool:
    """Whether the table of methods has it."""
    try:
        return method in METHODS
    except PluginError:  # a broken package: what runs have recorded can be shown without it
        return False
