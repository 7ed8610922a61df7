"""Publishing: tables, figures, the page and the gallery as files, each written whole or not at all."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from forgetfree.files import write_atomically
from forgetfree.lab.console import bold
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report import contents, tables, transfers, typesetting
from forgetfree.lab.report.choosing import columns_named, of_methods

EVERY = "all"
"""In place of a figure's name."""


def write_table(
    name: str | None,
    split: str | None,
    folders: Sequence[RunFolder],
    to: Path,
    console: Console,
    *,
    methods: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> list[Path]:
    """Print a table and write it in every form that it has; without a name, that of all runs.

    `methods` and `columns` choose from its rows and columns; what is measured against another method still is.
    """
    own = of_methods(folders, methods, published=contents.quoted(name))
    if name is None:
        file, rows = "report", tables.rows(own)
        chosen = columns_named(columns, tables.HEADINGS)
        console.print(*tables.as_tables(rows, console.width, chosen), sep="\n")
        texts = {
            "csv": tables.as_csv(rows, chosen),
            "json": tables.as_json(rows, chosen),
            "md": tables.as_markdown(rows, chosen),
            "tex": tables.as_latex(rows, chosen),
        }
    elif name == contents.TRANSFER:
        file, read = name, transfers.transfers(folders, methods)
        chosen = columns_named(columns, {heading: heading for heading in read[0]})
        console.print(transfers.as_table(read, chosen))
        texts = {"md": transfers.as_markdown(read, chosen), "tex": transfers.as_latex(read, chosen)}
    else:
        whole = contents.laid_out(name, split, folders)
        table = whole.chosen(methods, columns_named(columns, whole.headings))
        file = table.file
        console.print(*typesetting.as_terminal(table), sep="\n")
        texts = {
            "md": typesetting.as_markdown(table),
            "csv": typesetting.as_csv(table),
            "tex": typesetting.as_latex(table),
        }
    return _written({to / f"{file}.{ending}": text.encode() for ending, text in texts.items()}.items())


def write_figures(name: str, folders: Sequence[RunFolder], to: Path, console: Console) -> list[Path]:
    """A figure, or all that the runs allow, as SVG and PNG; with a caption of what each shows."""
    from forgetfree.lab.report.drawing import allowed, figures, groups
    from forgetfree.lab.report.figures.ink import as_png, as_svg

    made = (drawn for group in groups(folders) for drawn in allowed(group)) if name == EVERY else figures(name, folders)
    written = []
    for drawn in made:
        console.print(bold(drawn.title, f" ({drawn.group.title}). {drawn.words}"), highlight=False)
        files = {
            to / f"{drawn.file}.svg": as_svg(drawn.drawing).encode(),
            to / f"{drawn.file}.png": as_png(drawn.drawing),
        }
        written += _written(files.items())
    return written


def write_page(folders: Sequence[RunFolder], to: Path, command: str, *, made_by: str) -> list[Path]:
    """The one page with everything; `command` reports on these runs, `made_by` is what the user said."""
    from forgetfree.lab.report.page import page

    return _written([(to, page(folders, command=command, made_by=made_by).encode())])


def write_gallery(folders: Sequence[RunFolder], to: Path, command: str) -> list[Path]:
    """A Markdown page of all figures, and the pictures in a folder beside it."""
    from forgetfree.lab.report.gallery import gallery

    text, pictures = gallery(folders, to, command=command)
    return _written([*((path, picture.encode()) for path, picture in pictures.items()), (to, text.encode())])


def _written(files: Iterable[tuple[Path, bytes]]) -> list[Path]:
    paths = []
    for path, content in files:
        write_atomically(path, content)
        paths.append(path)
    return paths
