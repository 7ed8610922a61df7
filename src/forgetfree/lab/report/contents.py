"""Contents: every table that can be asked for by name."""

from collections.abc import Sequence

from forgetfree.errors import InputError
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.columns import TABLES
from forgetfree.lab.report.layout import Layout
from forgetfree.lab.report.paper_tables import paper_table
from forgetfree.lab.report.published import methods, session_methods
from forgetfree.lab.report.session_ends import session_ends
from forgetfree.lab.report.session_tables import STREAMS, session_table

TRANSFER, ENDS = "transfer", "sessions"
"""Forward transfer in all its readings, which is no layout; where few-shot runs end."""
NAMES = (*TABLES, TRANSFER, *STREAMS, ENDS)


def check_name(name: str | None, split: str | None) -> None:
    """Refuse a table that there is not, and a split where there are none."""
    if name is not None and name not in NAMES:
        raise InputError(f"there is no table {name!r}. There are: {', '.join(NAMES)}.")
    if split is not None and (name not in STREAMS or not STREAMS[name].has_splits):
        asked = "the report without --table" if name is None else f"table {name}"
        having = [key for key, stream in STREAMS.items() if stream.has_splits]
        raise InputError(f"{asked} has no splits, so leave --split out; those that have: {', '.join(having)}.")


def quoted(name: str | None) -> list[str]:
    """Methods that the table of this name may quote from the paper."""
    return [] if name is None or name == TRANSFER else [*methods(), *session_methods()]


def laid_out(name: str, split: str | None, folders: Sequence[RunFolder]) -> Layout:
    """The table of this name, with all finished runs that belong to it; all but `transfer` are laid out."""
    check_name(name, split)
    if name in STREAMS:
        return session_table(name, split, folders)
    return session_ends(folders) if name == ENDS else paper_table(name, folders)
