"""Things of one's own by the command line: methods, benchmarks, backbones and experiments from outside."""

import json
import logging
import os
import subprocess
import sys
import tomllib

import pytest
from typer.testing import CliRunner

import forgetfree as ff
from forgetfree.lab import cli
from forgetfree.lab.experiment import Plan, plan
from forgetfree.lab.experiment.plugins import TABLES, load_plugins

NAMES = """
from forgetfree.registry import Entry, MethodEntry

METHODS = {"mine": MethodEntry("mine_parts:Mine", "Fine-tuning of mine.", label="Mine", badge="paper only")}
BENCHMARKS = {"mine_digits": Entry("mine_parts:mine_digits", "Digits of mine.")}
BACKBONES = {"mine_net": Entry("mine_parts:mine_net", "A net of mine.")}
EXPERIMENTS = {"til/of_mine": Entry("mine_files:experiments/of_mine.toml", "An experiment of mine.")}
"""
PARTS = """
from torch import nn

from forgetfree.lab.benchmarks.digits import digits_split
from forgetfree.methods import Finetune
from forgetfree.modules import named_backbone


class Mine(Finetune):
    "Fine-tuning of mine."


def mine_digits(*, tasks: int = 2, seed: int = 0):
    whole = digits_split(seed=seed)
    names = whole.names[:tasks]
    return type(whole)("mine_digits", whole.tasks[:tasks], {name: whole.tests[name] for name in names}, whole.notes)


@named_backbone
def mine_net(*, width: int):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())
"""
EXPERIMENT = """
title = "Digits by a method of mine"

[benchmark]
name = "mine_digits"

[backbone]
name = "mine_net"
width = 12

[recipe]
epochs = 1

[methods.mine]
[methods.wsn]
capacity = 0.5

[scales.smoke]
benchmark = { tasks = 2 }
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder with a plug-in, as the current one; what is plugged in is forgotten afterwards."""
    (tmp_path / "mine_names.py").write_text(NAMES)
    (tmp_path / "mine_parts.py").write_text(PARTS)
    (tmp_path / "mine_files" / "experiments").mkdir(parents=True)
    (tmp_path / "mine_files" / "__init__.py").write_text("")
    (tmp_path / "mine_files" / "experiments" / "of_mine.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for table in TABLES.values():
        monkeypatch.setattr(table, "_plugged", {})
    yield tmp_path
    for name in ("mine_names", "mine_parts", "mine_files"):
        sys.modules.pop(name, None)


@pytest.fixture
def call(monkeypatch):
    monkeypatch.setattr(cli.console, "_width", 200)
    monkeypatch.setattr(cli.errors, "_width", 200)

    def invoke(*words, code=0):
        result = CliRunner().invoke(cli.app, list(map(str, words)))
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    return invoke


def unplug():
    """As if in a new process."""
    for table in TABLES.values():
        table._plugged.clear()


def test_a_list_shows_what_a_plug_in_brings_its_badge_and_where_it_is_from(call, outside):
    text = " ".join(call("list", "--plugin", "mine_names").split())
    assert "mine Mine paper only Fine-tuning of mine. (from mine_names)" in text
    assert "til/of_mine An experiment of mine. (from mine_names)" in text
    told = json.loads(call("--plugin", "mine_names", "list", "--json"))
    assert told["badges"]["mine"] == "paper only"
    assert told["sources"]["benchmarks"]["mine_digits"] == "mine_names"
    assert told["sources"]["methods"]["wsn"] == "forgetfree"
    assert 'name = "mine_net"' in call("show", "til/of_mine", "--plugin", "mine_names")


def test_a_plug_in_is_run_in_processes_resumed_and_reported_without_naming_it_again(call, outside):
    seeds = ("--seed", 0, "--seed", 1, "--jobs", 2)
    call("run", "til/of_mine", "--method", "mine", "--scale", "smoke", *seeds, "--plugin", "mine_names")
    folders = sorted((outside / "runs" / "til-of_mine").iterdir())
    assert [folder.name for folder in folders] == ["mine-smoke-seed0", "mine-smoke-seed1"]
    for folder in folders:
        content = tomllib.loads((folder / "run.toml").read_text())
        assert content["run"]["plugins"] == ["mine_names"]
        assert content["backbone"] == {"name": "mine_net", "width": 12}
        record = json.loads((folder / "record.json").read_text())
        assert record["archive"]["verified"]
    (folders[0] / "record.json").unlink()
    unplug()
    assert "changed" in call("resume", "runs")
    assert (folders[0] / "record.json").is_file()
    unplug()
    assert "mine" in call("report", "runs")


def test_who_only_reports_runs_imports_nothing_of_the_current_folder(call, outside, caplog):
    call("run", "til/of_mine", "--plugin", "mine_names", "--method", "mine", "--scale", "smoke")
    unplug()
    for name in ("mine_names", "mine_parts"):
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if entry != str(outside)]
    with caplog.at_level(logging.WARNING):
        assert "mine" in call("report", "runs")
    assert "mine_names" not in sys.modules
    assert "--plugin mine_names: it cannot be imported" in caplog.text


def test_a_method_of_ones_own_runs_on_our_experiments_too(call, outside):
    call("run", "til/digits_split", "--plugin", "mine_names", "--method", "mine", "--scale", "smoke")
    assert (outside / "runs/til-digits_split/mine-smoke-seed0/record.json").is_file()


def test_a_plug_in_that_a_run_does_not_use_leaves_no_trace_in_it(outside):
    load_plugins(["mine_names"])
    (made,) = plan("til/digits_split", scale="smoke")
    assert made.plugins == ()
    assert "plugins" not in made.as_toml()["run"]
    (made,) = plan("til/of_mine", methods=["wsn"], scale="smoke")
    assert made.plugins == ("mine_names",)
    assert Plan.from_toml(made.as_toml()) == made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plugin", "no_such", "list"], "--plugin no_such: it cannot be imported"),
        (["list", "--plugin", "no.such"], "--plugin no.such: it cannot be imported"),
        (["list", "--plugin", "broken"], "--plugin broken: it cannot be imported. It says: ValueError: not today"),
        (["run", "til/of_mine", "--plugin", "mine_names", "--plugin", "rival"], "rival brings method 'mine', which"),
        (["run", "til/of_mine"], "no experiment 'til/of_mine'"),
        (["run", "of_mine.toml"], "of_mine.toml cannot be read"),
        (["run", "mine_files/experiments/of_mine.toml"], "does not say how it is learned"),
    ],
)
def test_mistakes_with_plug_ins_are_one_sentence(call, outside, words, said):
    (outside / "broken.py").write_text("raise ValueError('not today')\n")
    (outside / "rival.py").write_text(NAMES.replace("mine_parts", "other_parts"))
    text = call(*words, code=2)
    assert said in text
    assert "Traceback" not in text


def test_a_run_of_a_plug_in_that_is_gone_says_which(call, outside):
    call("run", "til/of_mine", "--plugin", "mine_names", "--method", "mine", "--scale", "smoke")
    next(outside.rglob("record.json")).unlink()
    (outside / "mine_names.py").unlink()
    sys.modules.pop("mine_names")
    unplug()
    assert "--plugin mine_names: it cannot be imported" in call("resume", "runs", code=2)
    with pytest.raises(ff.PluginError, match=r"no method 'mine' here. There are: wsn.*--plugin"):
        Plan.from_toml(tomllib.loads(next(outside.rglob("run.toml")).read_text()))


MINE = """
# A file of one's own: scenario, benchmark, backbone, methods.
{scenario}
[benchmark]
name = "digits_split"

[backbone]
name = "mlp"
inputs = 64
hidden = [10]

[recipe]
epochs = 1

[methods.wsn]
capacity = 0.5
"""


def test_an_experiment_file_of_ones_own_is_run_and_resumed_without_it(call, outside):
    (outside / "my-digits.toml").write_text(MINE.format(scenario='scenario = "til"'))
    call("run", "./my-digits.toml")
    (folder,) = (outside / "runs" / "til-my-digits").iterdir()
    assert folder.name == "wsn-cpu-seed0"
    assert tomllib.loads((folder / "run.toml").read_text())["run"]["experiment"] == "til/my-digits"
    (folder / "record.json").unlink()
    (outside / "my-digits.toml").unlink()
    assert "changed" in call("resume", "runs")
    assert "til/my-digits" in call("report", "runs")


def test_the_folder_of_a_file_may_say_its_scenario_and_the_file_is_shown_as_it_is(call, outside):
    (outside / "til").mkdir()
    (outside / "til" / "x.toml").write_text(MINE.format(scenario=""))
    assert plan("til/x.toml")[0].experiment == "til/x"
    assert call("show", "til/x.toml") == MINE.format(scenario="")
    assert json.loads(call("show", "til/x.toml", "--json"))["method"]["capacity"] == 0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "mlp"\n', ""), "does not say which backbone it takes"),
        (("[methods.wsn]\ncapacity = 0.5\n", ""), "names no method"),
        (("capacity = 0.5\n", ""), "method wsn needs capacity, which has no default: --set capacity=…"),
        (("[methods.wsn]", "[methods.wsm]"), "no method 'wsm' here"),
        (("[recipe]", "[recipes]"), "no section 'recipes' of mine.toml. Did you mean recipe"),
        (('scenario = "til"', 'scenario = "tli"'), "no scenario 'tli' of mine.toml. Did you mean til"),
        (('scenario = "til"', 'scenario = "fscil"'), "wsn learns task by task"),
        (("[backbone]", "[backbone"), "mine.toml is no TOML"),
    ],
)
def test_mistakes_in_a_file_of_ones_own_are_one_sentence(call, outside, change, said):
    (outside / "mine.toml").write_text(MINE.format(scenario='scenario = "til"').replace(*change))
    assert said in call("run", "mine.toml", code=2)


def test_an_installed_package_is_found_by_its_entry_points(outside):
    about = outside / "outsider-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outsider\nVersion: 1.0\n")
    groups = ("methods", "benchmarks", "backbones", "experiments")
    (about / "entry_points.txt").write_text(
        "".join(f"[forgetfree.{group}]\nmine = mine_names:{group.upper()}\n" for group in groups)
    )

    def forgetfree(*words):
        done = subprocess.run(
            [sys.executable, "-m", "forgetfree.lab.cli", *words], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(outside)}, cwd=outside,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = json.loads(forgetfree("list", "--json"))
    assert told["sources"]["experiments"]["til/of_mine"] == told["sources"]["methods"]["mine"] == "outsider"
    forgetfree("run", "til/of_mine", "--scale", "smoke", "--seed", "0", "--seed", "1", "--jobs", "2")
    for seed in (0, 1):
        folder = outside / f"runs/til-of_mine/mine-smoke-seed{seed}"
        assert "plugins" not in tomllib.loads((folder / "run.toml").read_text())["run"]
        assert json.loads((folder / "record.json").read_text())["archive"]["verified"]
    forgetfree("verify", str(folder / "memory.ticket"))
    forgetfree("report", "runs")
