"""What help says is true: examples run as they are printed, in an empty folder; nothing is cut, no type is a puzzle."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from forgetfree.lab import cli

GROUPS = [[], ["data"]]
COMMANDS = [
    *([word] for word in ("demo", "list", "show", "run", "resume", "analyse", "report", "watch")),
    *([word] for word in ("inspect", "verify", "remove", "export")),
    *(["data", word] for word in ("list", "fetch", "check")),
]
NEED_DATA = ("data fetch", "data check", "run til/permuted_mnist", "--table 1")
ONES_OWN = ("mine.toml",)
RUN_ELSEWHERE = ("demo",)
"""By tests/lab/test_demo.py."""


def help_of(command, width=80):
    done = CliRunner().invoke(cli.app, [*command, "--help"], env={"COLUMNS": str(width), "TERMINAL_WIDTH": str(width)})
    assert done.exit_code == 0, done.output
    return done.output


def examples(command):
    """The commands below "Example:", each on a line of its own; one that goes on in the next line says so."""
    text = re.sub(r"\s*\\\s*\n\s*", " ", help_of(command).rpartition("Example")[2])
    return [line.strip() for line in text.splitlines()[1:] if line.strip()]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [*GROUPS, *COMMANDS], ids=" ".join)
def test_help_speaks_to_people_and_fits(command, width):
    text = help_of(command, width)
    options = "\n".join(line for line in text.splitlines() if line.startswith("│ --"))
    for puzzle in ("bool", "list[", "int range", "BOOLEAN"):
        assert puzzle not in options
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_every_command_is_tried_here():
    told = help_of([]) + help_of(["data"])
    named = re.findall(r"^│ (\w+) {2,}\S", told.replace("data ", ""), re.MULTILINE)
    assert set(named) - {"data"} == {command[-1] for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_examples_are_of_the_command_and_can_be_copied(command):
    shown = examples(command)
    assert shown
    for line in shown:
        assert shlex.split(line)[: 1 + len(command)] == ["forgetfree", *command]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """A folder in which the example of `run` was run, and the archive that it left is at hand."""
    here = tmp_path_factory.mktemp("workshop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for line in examples(["run"]):
            assert "--scale smoke" in line, "examples are quick"
            run(line)
        shutil.copy(next(here.rglob("wsn-*/memory.ticket")), here)
    return here


def run(line):
    done = CliRunner().invoke(cli.app, shlex.split(line)[1:])
    assert done.exit_code == 0, f"{line}\n{done.output}"
    return done.output


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if " ".join(each) not in (*NEED_DATA, *RUN_ELSEWHERE, "run")], ids=" ".join
)
def test_examples_run_as_they_are_printed(command, workshop, monkeypatch):
    monkeypatch.chdir(workshop)
    for line in examples(command):
        assert run(line)


@pytest.mark.slow
def test_commands_of_the_readme_run(workshop, monkeypatch):
    monkeypatch.chdir(workshop)
    monkeypatch.setattr(typer, "launch", lambda page: None)
    text = (Path(__file__).parents[2] / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    tried = [
        line
        for line in lines
        if line.startswith("forgetfree") and not any(word in line for word in (*NEED_DATA, *ONES_OWN))
    ]
    assert len(tried) >= 12
    for line in tried:
        run(f"{line} --scale smoke" if line.startswith("forgetfree run") else line)


def test_sentences_of_the_list_are_whole(monkeypatch):
    monkeypatch.setattr(cli.console, "_width", 80)
    from forgetfree.lab.experiment.plugins import TABLES

    told = run("forgetfree list")
    words = " ".join(told.split())
    for kind in ("experiments", "methods", "benchmarks", "backbones"):
        for name, entry in TABLES[kind].entries.items():
            assert not entry.title.endswith(("…", "...", ",", ":")), name
            assert entry.title in words or kind == "methods" or len(entry.title) > 55
    assert max(map(len, told.splitlines())) <= 80
    assert re.search(r"^finetune +fine-tuning +reference +One network", told, re.MULTILINE)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_shows_what_it_can_and_json_is_whole(encoding):
    def told(*words):
        done = subprocess.run(
            [sys.executable, "-m", "forgetfree.lab.cli", *words], capture_output=True, check=False,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.decode(encoding)

    assert "Ten tasks of permuted 8" in told("list")
    assert "8×8" in json.loads(told("list", "--json"))["experiments"]["til/digits_permuted"]
