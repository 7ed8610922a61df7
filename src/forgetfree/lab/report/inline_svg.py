"""Inline SVG: a drawing as part of a page, in the page's colours and type, with ids of its own.

Squares of a matrix, which have their row, column and value in their id, get these as attributes that a page can show.
"""

import re
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

from forgetfree.lab.legend import COLOURS
from forgetfree.lab.report.figures.figure import Drawing
from forgetfree.lab.report.figures.ink import FAINT, INK, as_svg, lightened

VARIABLES = {
    INK: "var(--ink)",
    "#000000": "var(--ink)",
    FAINT: "var(--faint)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(COLOURS, start=1)},
}
"""Colour of a drawing → variable of the page."""

COLOUR = re.compile(r"#[0-9a-f]{6}")
FAMILY = re.compile(r"font-family: [^;]*'DejaVu Sans'[^;]*;? ?")
UNNEEDED = ("metadata", "style")

Element = ElementTree.Element


def inline_svg(drawing: Drawing, key: str, title: str, words: str, *, colours: Iterable[str] = ()) -> str:
    """Markup for inside an HTML page; `key` sets its ids apart from those of other drawings there.

    `colours` are those of its methods, which may bring their own.
    """
    root = ElementTree.fromstring(as_svg(drawing, ground="none"))
    for element in root.iter():
        element.tag = element.tag.partition("}")[2]
        for child in [child for child in element if child.tag.partition("}")[2] in UNNEEDED]:
            element.remove(child)
        element.tail = None  # white space between shapes
        if element.tag not in ("text", "tspan"):
            element.text = None
    squares = [element for element in root.iter("g") if element.get("id", "").count("|") == 3]
    for square in squares:
        _annotate(square)
    themed = {colour: css_colour(colour) for colour in (*VARIABLES, *colours)}
    for element in root.iter():
        _adapt(element, key, themed)
    _name(root, key, title, words, has_squares=bool(squares))
    return ElementTree.tostring(root, encoding="unicode")


def css_colour(colour: str) -> str:
    """A colour in the themes of the page: a variable, or for one that a method brings itself a lighter one on dark."""
    return VARIABLES.get(colour) or f"light-dark({colour},{lightened(colour)})"


def _annotate(square: Element) -> None:
    """Give a square its row, column and value instead of an id."""
    name, row, column, value = square.attrib.pop("id").rsplit("|", 3)
    square.attrib |= {"class": "cell", "data-row": row, "data-column": column, "data-value": value, "data-name": name}
    for shape in square:
        found = COLOUR.search(shape.attrib.pop("style", ""))
        if found:
            shape.set("fill", found[0])


def _adapt(element: Element, key: str, colours: Mapping[str, str]) -> None:
    """Colours become those of the page, ids and references to them those of this drawing.

    Other colours stay, such as those of squares in a matrix. Text in the background is easier to see than lines there.
    """
    for name, value in list(element.attrib.items()):
        if name == "id":
            del element.attrib["id"]
            if element.tag != "g":  # groups are named for who writes the file, nothing refers to them
                element.set("id", f"{key}-{value}")
        elif name.endswith("}href"):
            del element.attrib[name]
            element.set("href", value.replace("#", f"#{key}-", 1) if value.startswith("#") else value)
        elif name == "style":
            text = {FAINT: "var(--quiet)"} if element.tag in ("text", "tspan") else {}
            coloured = _coloured(FAMILY.sub("", value), {**colours, **text})
            element.set("style", coloured.replace("url(#", f"url(#{key}-").strip("; "))
        elif name == "clip-path":
            element.set(name, value.replace("url(#", f"url(#{key}-"))
        elif name == "fill" and element.tag == "rect" and value in colours:  # the ground of a hatch
            del element.attrib[name]
            element.set("style", f"fill: {colours[value]}")
        elif name == "transform" and value.startswith("rotate(-0 "):
            del element.attrib[name]
        elif name in ("d", "transform"):
            element.set(name, " ".join(value.split()))


def _coloured(style: str, colours: Mapping[str, str]) -> str:
    return COLOUR.sub(lambda found: colours.get(found[0], found[0]), style)


def _name(root: Element, key: str, title: str, words: str, *, has_squares: bool) -> None:
    """Say what it shows to who cannot see it; how large it is shown is the page's affair."""
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.attrib |= {
        "role": "group" if has_squares else "img",  # what is inside an image cannot be reached by keyboard
        "aria-labelledby": f"{key}-title",
        "aria-describedby": f"{key}-words",
        "style": f"--width: {float(root.attrib['viewBox'].split()[2]):g}",
    }
    for place, (tag, name, text) in enumerate((("title", "title", title), ("desc", "words", words))):
        element = Element(tag, {"id": f"{key}-{name}"})
        element.text = text
        root.insert(place, element)
