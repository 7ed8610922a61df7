"""The gallery: every figure that finished runs allow, on one Markdown page, with what it shows and how it is made."""

from collections.abc import Sequence

from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.drawing import Drawn, allowed, groups
from forgetfree.lab.report.figures import FIGURES
from forgetfree.lab.report.figures.ink import as_svg

OPENING = """\
# Gallery

Every figure below is drawn from runs that are stored with the project: ours, at the scale that stands beside each, none
of the paper's own numbers. This page and its pictures are written by one command:

```text
{command}
```
"""


def gallery(folders: Sequence[RunFolder], *, command: str, pictures: str) -> tuple[str, dict[str, str]]:
    """The text of the page, and its pictures as SVG by path, in the folder `pictures` beside the page."""
    drawn: dict[str, list[Drawn]] = {name: [] for name in FIGURES}
    for group in groups(folders):
        for figure in allowed(group):
            drawn[figure.name].append(figure)
    parts, files = [OPENING.format(command=command)], {}
    for name, figures in drawn.items():
        if not figures:
            continue
        parts.append(f"## {FIGURES[name].TITLE}\n")
        for figure in figures:
            path = f"{pictures}/{figure.file}.svg"
            files[path] = as_svg(figure.drawing)
            parts.append(
                f"### {figure.group.title}\n\n![{_flat(figure.words)}]({path})\n\n{figure.words}\n\n"
                f"`forgetfree report RUNS --figure {name}`\n"
            )
    return "\n".join(parts), files


def _flat(text: str) -> str:
    """Text that may stand in the brackets of a picture."""
    return text.replace("[", "(").replace("]", ")").replace("\n", " ")
