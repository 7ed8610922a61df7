"""Mutated run folders: every command that reads them ends in a sentence, and the other runs are still shown."""

import json
import math
import os
import random
import shutil
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
from typer.testing import CliRunner

from forgetfree.lab import cli
from forgetfree.lab.report.figures import FIGURES
from soak.mutants import as_json, damaged, mutated

TESTS = Path(__file__).parents[1]
FINISHED, UNFINISHED = TESTS / "before" / "finished", TESTS / "before" / "unfinished"
RESULTS = TESTS.parent / "results"
STORED = (
    "til-permuted_mnist/wsn-capacity=0.05-cpu-seed1", "til-omniglot_rotation/packnet-cpu-seed1",
    "til-permuted_mnist/piggyback-cpu-seed1",
)  # fmt: skip
"""Runs with analyses, which figures are drawn from."""


def lay_out(root: Path) -> None:
    """Run folders to be changed, as small as they come: finished ones, one with analyses, and one that was stopped."""
    shutil.copytree(FINISHED, root, dirs_exist_ok=True)
    shutil.copytree(UNFINISHED / "til-digits_split", root / "til-digits_split", dirs_exist_ok=True)
    for name in STORED:
        if (RESULTS / name).is_dir():
            shutil.copytree(RESULTS / name, root / name)


@cache
def victims(root: Path) -> dict[Path, bytes]:
    """Every file that is read, and what is in it."""
    names = ("run.toml", "record.json", "events.jsonl")
    files = [path for path in root.rglob("*") if path.name in names or path.parent.name == "analysis"]
    return {path: path.read_bytes() for path in sorted(files)}


def attempt(number: int, root: Path) -> str:
    """Change one file, give a command, and put the file back."""
    chance = random.Random(f"folder {number}")
    path = chance.choice(list(victims(root)))
    try:
        how = _change(path, victims(root)[path], chance)
        return f"{how}, {_command(root, path, chance)}"
    finally:
        _remove(path)
        path.write_bytes(victims(root)[path])


def _change(path: Path, content: bytes, chance: random.Random) -> str:
    """Put something else in place of a file; in a word, what."""
    match chance.randrange(10):
        case 0:
            _remove(path)
            chance.choice(ODD_FILES)(path)
            return "odd file"
        case 1 | 2:
            path.write_bytes(damaged(content, chance))
            return "raw"
        case _:
            path.write_bytes(_rewritten(path, content, chance))
            return "one field"


def _rewritten(path: Path, content: bytes, chance: random.Random) -> bytes:
    if path.suffix == ".toml":
        tree = mutated(tomllib.loads(content.decode()), chance)
        try:
            return tomli_w.dumps(tree if isinstance(tree, dict) else {"x": tree}).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError, RecursionError):  # what TOML cannot say
            return damaged(content, chance)
    if path.suffix == ".jsonl":
        lines = content.decode().splitlines()
        at = chance.randrange(len(lines))
        lines[at] = as_json(mutated(json.loads(lines[at]), chance))
        return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
    return as_json(mutated(json.loads(content), chance)).encode("utf-8", "surrogatepass")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 33)


def _deep(path: Path) -> None:
    path.write_text("x = " + "[" * 50_000 if path.suffix == ".toml" else "[" * 50_000 + "\n")


ODD_FILES: list[Callable[[Path], None]] = [
    os.mkfifo,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("/nowhere"),
    Path.mkdir,
    Path.touch,
    lambda path: path.write_bytes(b"\xff\xfe\0" * 1000),
    _sparse,
    _deep,
    lambda path: path.write_text(json.dumps({"tasks": math.nan})),
]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _command(root: Path, path: Path, chance: random.Random) -> str:
    written = root.parent / "written"
    shutil.rmtree(written, ignore_errors=True)
    reports: list[list[Any]] = [
        ["report", root, "--to", written],
        ["report", root, "--table", chance.choice(["1", "2", "3", "transfer", "sessions", "digits"]), "--to", written],
        ["watch", root, "--once"],
        ["analyse", root, "--only", "tickets"],
        ["resume", root / "til-permuted_mnist"],  # finished: a run that is not would be run, for as long as it says
        ["report", root, "--figure", chance.choice(list(FIGURES)), "--to", written],
        ["report", root, "--html", written / "page.html"],
    ]
    words = chance.choices(reports, [41, 15, 25, 10, 4, 4.5, 0.5])[0]
    found = CliRunner().invoke(cli.app, list(map(str, words)))
    error = found.exception
    if error is not None and not isinstance(error, SystemExit):
        raise error
    assert found.exit_code in (0, 1, 2), f"{words[0]} ended with {found.exit_code}: {found.output[-300:]}"
    assert "Traceback" not in found.output
    if words is reports[0]:
        _check_shown(written, path)
    return f"{words[0]} says {'all' if found.exit_code == 0 else 'what is wrong'}"


def _check_shown(written: Path, path: Path) -> None:
    """Every other run is in the table, with the accuracy it had."""
    rows = {(row["experiment"], row["method"]): row["acc"] for row in json.loads((written / "report.json").read_text())}
    of_file = path.parent.parent if path.parent.name == "analysis" else path.parent
    for key, (folder, accuracy) in _shown_before().items():
        if folder != of_file.name:
            assert key in rows, f"{key} is not shown any more"
            assert abs(rows[key] - accuracy) < 1e-12, f"{key} is shown with {rows[key]} instead of {accuracy}"


@cache
def _shown_before() -> dict[tuple[str, str], tuple[str, float]]:
    """What the rows of runs say that stand alone, and the name of their folder."""
    told = {}
    for file in (*FINISHED.rglob("record.json"), *(RESULTS / name / "record.json" for name in STORED)):
        if file.is_file():
            run = tomllib.loads((file.parent / "run.toml").read_text())["run"]
            accuracy = json.loads(file.read_text())["metrics"]["acc"]
            told[run["experiment"], run["method"]] = file.parent.name, accuracy
    return told
