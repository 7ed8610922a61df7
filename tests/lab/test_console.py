"""Names come from others: what is printed is what was given, without markup and without orders to the terminal."""

import io

import pytest
import torch
from rich.table import Table
from typer.testing import CliRunner

import forgetfree as ff
from forgetfree.lab import cli
from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.console import PlainConsole, bold, shown

NAMES = [
    "[/bold]", "digits [even]", "\x1b[31mred\x1b]0;title\x07", "a\rb", ":smile:", "right \u202e to left",
    "[link=x]y[/link]",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_printed_as_it_is_in_lines_and_tables(name):
    console = PlainConsole(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    table = Table("name")
    table.add_row(name)
    console.print(f"finished: {name}", table, bold(name, name), highlight=False)
    printed = console.file.getvalue()
    assert printed.count(shown(name)) == 4
    assert not any(sign in printed for sign in ("\x1b]", "\x1b[31m", "\x07", "\u202e"))


def test_plain_texts_stay_as_they_are():
    assert shown("Größe 3×3 – 日本\nline") == "Größe 3×3 – 日本\nline"


def test_archives_of_any_names_are_inspected_and_verified(tmp_path):
    learner = ff.WSN(BACKBONES["mlp"](inputs=8, hidden=(12, 6)), capacity=0.4, recipe=ff.Recipe(epochs=1))
    inputs, labels = torch.randn(12, 8), torch.arange(12) % 2
    for name in NAMES:
        learner.learn(ff.Task(name, (f"{name} one", "two"), (inputs, labels)))
    ff.save(learner, tmp_path / "n.ticket")
    for command in ("inspect", "verify"):
        done = CliRunner().invoke(cli.app, [command, str(tmp_path / "n.ticket")], env={"COLUMNS": "300"})
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
    done = CliRunner().invoke(cli.app, ["remove", str(tmp_path / "n.ticket"), "--task", "[/nobody]", "--in-place"])
    assert done.exit_code == 2
    assert "'[/nobody]'" in done.output
