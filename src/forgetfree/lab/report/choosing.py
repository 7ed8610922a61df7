"""Choosing: which methods and which columns of a comparison are shown."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from forgetfree.errors import InputError
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.columns import views


def of_methods(folders: Sequence[RunFolder], methods: Sequence[str], *, published: Iterable[str]) -> list[RunFolder]:
    """The runs of these methods, or all where none is named; `published` are those that a table quotes beside them."""
    if not methods:
        return list(folders)
    names = {folder: _names(folder) for folder in folders}
    there = dict.fromkeys(name for known in names.values() for name in known)
    for method in methods:
        if method not in there and method not in set(published):
            raise InputError(_unknown("method", method, "among these runs", there))
    chosen = [folder for folder, known in names.items() if set(known) & set(methods)]
    if not chosen:
        raise InputError(f"none of these runs is of {', '.join(methods)}; they are of {', '.join(there)}.")
    return chosen


def columns_named(names: Sequence[str], headings: Mapping[str, str]) -> list[str]:
    """The columns of these names, in their order: each by its key or its heading."""
    known = {word.casefold(): key for key, heading in headings.items() for word in (heading, key)}
    for name in names:
        if name.casefold() not in known:
            raise InputError(_unknown("column", name, "in this table", headings))
    return list(dict.fromkeys(known[name.casefold()] for name in names))


def _names(folder: RunFolder) -> list[str]:
    return [run.method for run in views(folder)] if folder.finished else [str(folder.plan()["run"]["method"])]


def _unknown(kind: str, name: str, where: str, there: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(there), n=2, cutoff=0.5)
    near += [word for word in there if word and name.startswith(word) and word not in near]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no {kind} {name!r} {where}.{hint} There are: {', '.join(there)}."
