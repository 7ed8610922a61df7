"""The terminal: what is printed is shown as it is. Names come from others' files, so no markup and no escape sequences.

What is ours to emphasise is a `Text` with a style.
"""

import re
from typing import Any

from rich.console import Console
from rich.text import Text

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal takes for orders, or that turn the direction of what follows; the end of a line apart."""


class PlainConsole(Console):
    """A console that takes texts for what they are."""

    def __init__(self, **settings: Any):
        super().__init__(**{"markup": False, "emoji": False, **settings})

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(shown(text), **settings)


def shown(text: str) -> str:
    """The text with control characters written out, as in \\x1b."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else "\ufffd", text)


def bold(text: str, rest: str = "") -> Text:
    """A text in bold letters, and one in plain ones after it."""
    return Text.assemble((shown(text), "bold"), shown(rest))
