"""The gallery: every figure that finished runs allow, on one Markdown page, with what it shows and how it is made."""

from collections.abc import Sequence
from pathlib import Path

from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.drawing import Drawn, allowed, groups
from forgetfree.lab.report.figures import FIGURES
from forgetfree.lab.report.figures.ink import as_svg

OPENING = """\
# Gallery

Every figure below is drawn from runs that are stored with the project: ours, at the scale that stands beside each, none
of the paper's own numbers. This page and its pictures are written by one command:

```text
{command} --gallery {page}
```
"""


def gallery(folders: Sequence[RunFolder], page: Path, *, command: str) -> tuple[str, dict[Path, str]]:
    """The text of the page, and its pictures as SVG by path, in a folder beside it.

    `command` reports on these runs.
    """
    drawn: dict[str, list[Drawn]] = {name: [] for name in FIGURES}
    for group in groups(folders):
        for figure in allowed(group):
            drawn[figure.name].append(figure)
    parts, files = [OPENING.format(command=command, page=page)], {}
    for name, figures in drawn.items():
        if not figures:
            continue
        parts.append(f"## {FIGURES[name].TITLE}\n")
        for figure in figures:
            path = f"{page.stem}/{figure.file}.svg"
            files[page.parent / path] = as_svg(figure.drawing)
            parts.append(
                f"### {figure.group.title}\n\n![{_flat(figure.words)}]({path})\n\n{figure.words}\n\n"
                f"`{command} --figure {name}`\n"
            )
    return "\n".join(parts), files


def _flat(text: str) -> str:
    """Text that may stand in the brackets of a picture."""
    return text.replace("[", "(").replace("]", ")").replace("\n", " ")
