"""The command line as a user holds it: help with examples, clear errors, tables, files."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import forgetfree as ff
from forgetfree.lab import cli

COMMANDS = [
    *([word] for word in ("demo", "list", "show", "run", "resume", "analyse", "report", "watch")),
    *([word] for word in ("inspect", "verify", "remove", "export")),
    *(["data", word] for word in ("list", "fetch", "check")),
]


@pytest.fixture
def call(monkeypatch):
    monkeypatch.setattr(cli.console, "_width", 200)
    monkeypatch.setattr(cli.errors, "_width", 200)

    def invoke(*words, code=0):
        result = CliRunner().invoke(cli.app, list(map(str, words)))
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    return invoke


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_carries_an_example(call, command):
    assert f"Example: forgetfree {' '.join(command)}" in " ".join(call(*command, "--help").split())


def test_the_list_of_commands_is_complete(call):
    text = call("--help")
    assert all(command[0] in text for command in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [["--help"], ["run", "--help"], ["list"], ["list", "--json"], ["show", "til/digits_split"], ["--version"],
     ["--show-completion", "bash"], ["show", "til/nothing_like_it"]],
    ids=" ".join,
)  # fmt: skip
def test_help_lists_and_completion_need_no_torch(words):
    assert _imported(words) & {"torch", "numpy", "matplotlib"} == set()


def _imported(words, **environment):
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: sys.stderr.write('\\nLOADED ' + ' '.join(sys.modules)))\n"
        f"sys.argv = ['forgetfree', *{words!r}]\n"
        "from forgetfree.lab.command import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert "LOADED" in done.stderr, done.stderr
    assert "forgetfree.lab.cli" in done.stderr
    return set(done.stderr.rpartition("LOADED ")[2].split())


def test_help_takes_less_than_half_a_second_of_cpu():
    before = os.times()
    subprocess.run([sys.executable, "-m", "forgetfree.lab.cli", "--help"], capture_output=True, check=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 0.5


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("run til/digits_", ["til/digits_permuted", "til/digits_split"], "fscil/digits"),
        ("run ./m", ["./mine.toml"], "./my_notes"),
        ("run fscil/digits --method ", ["softnet", "ncm"], "wsn"),
        ("run mine.toml --method ", ["wsn", "ewc"], "softnet"),
        ("show til/digits_split --scale ", ["smoke", "cpu"], "huge"),
        ("run til/digits_permuted --set ", ["capacity=", "recipe.epochs=", "backbone.inputs="], "wsn.capacity="),
        ("run til/digits_permuted --method wsn --method gpm --set g", ["gpm.threshold="], "gpm.capacity="),
        ("analyse runs --only t", ["tickets"], "codes"),
        ("report runs --figure ta", ["task_bars"], "all"),
        ("report runs --table s", ["sessions"], "1"),
        ("run til/nothing --method ", [], "wsn"),
    ],
)
def test_a_shell_completes_names(tmp_path, line, offered, not_offered):
    (tmp_path / "mine.toml").write_text(
        'scenario = "til"\nbenchmark.name = "digits_split"\nbackbone.name = "mlp"\nmethods.wsn.capacity = 0.1\n'
    )
    (tmp_path / "my_notes").write_text("")
    words = {"COMP_WORDS": f"forgetfree {line}", "COMP_CWORD": str(len(f"forgetfree {line}x".split()) - 1)}
    code = (
        "import sys\nsys.argv = ['forgetfree']\nfrom forgetfree.lab.command import main\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "_FORGETFREE_COMPLETE": "complete_bash", **words},
    )  # fmt: skip
    told = done.stdout.split()
    assert set(offered) <= set(told), done.stderr
    assert not_offered not in told
    assert "Error" not in done.stderr


def test_names_that_are_completed_are_those_of_the_report():
    from forgetfree.lab import completion
    from forgetfree.lab.analyses import ANALYSES
    from forgetfree.lab.report.contents import NAMES
    from forgetfree.lab.report.figures import FIGURES

    assert tuple(FIGURES) == completion.FIGURES
    assert tuple(NAMES) == completion.TABLES
    assert tuple(ANALYSES) == completion.ANALYSES


def test_without_the_laboratory_the_command_says_how_to_install_it():
    code = "import sys\nsys.modules['typer'] = None\nfrom forgetfree.lab.command import main\nmain()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "forgetfree[lab]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_the_packages_of_the_laboratory_are_those_of_its_extra():
    import tomllib

    from forgetfree.lab.command import PACKAGES

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = {"scikit-learn": "sklearn", "pillow": "PIL", "tomli-w": "tomli_w"}
    extra = [re.split("[<>=]", word)[0] for word in project["optional-dependencies"]["lab"]]
    assert {names.get(name, name) for name in extra} == set(PACKAGES)
    assert project["scripts"] == {"forgetfree": "forgetfree.lab.command:main"}


def test_list_and_show_speak_json(call):
    tables = json.loads(call("list", "--json"))
    assert "til/permuted_mnist" in tables["experiments"]
    assert "wsn" in tables["methods"]
    shown = json.loads(call("show", "til/permuted_mnist", "--method", "wsn", "--scale", "paper", "--json"))
    assert shown["method"]["capacity"] == 0.05
    assert call("show", "til/permuted_mnist").startswith("# forgetfree run til/permuted_mnist")
    assert "[recipe]" in call("show", "til/permuted_mnist", "--method", "finetune")


def test_run_report_and_run_again(call, tmp_path):
    words = (
        "run",
        "til/digits_split",
        "--method",
        "wsn",
        "--method",
        "finetune",
        "--scale",
        "smoke",
        "--out",
        tmp_path,
    )
    first = call(*words)
    assert "finetune" in first
    assert "changed" in first
    assert call(*words).count("finished already") == 2
    table = call("report", tmp_path)
    assert "ACC" in table
    rows = json.loads((tmp_path / "report.json").read_text())
    assert {row["method"] for row in rows} == {"wsn", "finetune"}
    assert (tmp_path / "report.csv").read_text().startswith("experiment,method")
    assert (tmp_path / "report.md").read_text().startswith("| experiment |")
    assert "Everything is finished" in call("resume", tmp_path)


def test_from_a_run_to_its_figures_its_page_and_a_gallery(call, tmp_path):
    runs = tmp_path / "runs"
    call("run", "til/digits_split", "--scale", "smoke", "--out", runs)
    assert "analyses made" in call("analyse", runs)
    text = call("report", runs, "--figure", "weight_reuse", "--to", tmp_path / "figures")
    assert "til/digits_split, scale smoke" in text
    (svg,) = (tmp_path / "figures").glob("weight_reuse-*.svg")
    assert "<svg" in svg.read_text()
    assert svg.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    every = call("report", runs, "--figure", "all", "--to", tmp_path / "figures")
    assert every.count("Written: ") == 2 * every.count("(til/digits_split, scale smoke)") > 8
    call("report", runs, "--html", tmp_path / "page.html")
    assert "wsn" in (tmp_path / "page.html").read_text()
    call("report", runs, "--gallery", tmp_path / "gallery.md")
    assert len(list((tmp_path / "gallery").glob("*.svg"))) == every.count("(til/digits_split, scale smoke)")


def test_a_report_of_nothing_finished_says_how_to_go_on(call, tmp_path):
    runs = tmp_path / "runs"
    call("run", "til/digits_split", "--scale", "smoke", "--out", runs)
    next(runs.rglob("record.json")).unlink()
    for words in ([], ["--figure", "task_bars"], ["--html", tmp_path / "page.html"], ["--gallery", tmp_path / "g.md"]):
        assert "none of these runs is finished yet" in call("report", runs, *words, code=2)
    assert "none of these runs is finished yet" in call("analyse", runs, code=2)


def test_several_runs_at_a_time_give_what_one_at_a_time_gives(call, tmp_path):
    words = ("run", "til/digits_split", "--scale", "smoke", "--seed", 0, "--seed", 1)
    call(*words, "--out", tmp_path / "one")
    call(*words, "--jobs", 2, "--out", tmp_path / "two")
    for seed in (0, 1):
        one, two = (
            json.loads((tmp_path / jobs / f"til-digits_split/wsn-smoke-seed{seed}/record.json").read_text())
            for jobs in ("one", "two")
        )
        one.pop("seconds"), two.pop("seconds")
        assert one == two


def test_a_dry_run_prints_folders_steps_and_time_and_makes_nothing(call, tmp_path):
    text = call(
        "run", "til/digits_split", "--scale", "smoke", "--set", "capacity=0.1,0.2", "--out", tmp_path, "--dry-run"
    )
    assert "wsn-capacity=0.1-smoke-seed0" in text
    assert "wsn-capacity=0.2-smoke-seed0" in text
    assert "steps" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "til/digits"], "no experiment 'til/digits'"),
        (["run", "til/digits_split", "--method", "wnn"], "Did you mean wsn"),
        (["run", "til/digits_split", "--set", "capacty=1"], "Did you mean capacity"),
        (["run", "til/digits_split", "--set", "capacity=2"], "in (0, 1]; got 2"),
        (["run", "til/digits_split", "--set", "capacity"], "key=value"),
        (["run", "til/digits_split", "--scale", "huge"], "no scale 'huge'"),
        (["show", "til/nothing"], "There are: "),
        (["report", "nowhere"], "there is no folder nowhere"),
        (["analyse", "nowhere"], "there is no folder nowhere"),
        (["report", "nowhere", "--table", "1", "--html", "a.html"], "--table and --html are asked for one at a time"),
        (["report", "nowhere", "--open"], "--open opens the page of --html"),
        (["report", "nowhere", "--html", "a.html", "--to", "b"], "--html is itself where to write"),
        (["report", "nowhere", "--figure", "task_bars", "--split", "topic"], "has no splits"),
        (["resume", "nowhere"], "there is no folder nowhere"),
        (["data", "check", "mnits"], "mnist"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_two(call, words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = call(*words, code=2)
    assert said in text
    assert "Traceback" not in text


def test_missing_data_names_files_places_and_the_command(call, tmp_path):
    words = (
        "run",
        "til/permuted_mnist",
        "--scale",
        "smoke",
        "--out",
        tmp_path / "runs",
        "--data-root",
        tmp_path / "data",
    )
    text = call(*words, code=2)
    assert "train-images-idx3-ubyte.gz" in text
    assert str(tmp_path / "data") in text
    assert "forgetfree data fetch mnist" in text


def test_data_commands_tell_what_is_here(call, miniature_mnist):
    listed = json.loads(call("data", "list", "--json"))
    assert listed["sources"][0]["here"] == 4
    assert json.loads(call("data", "check", "mnist", "--json"))["mnist"]["train-labels-idx1-ubyte.gz"] == "ok"
    (miniature_mnist / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    assert "wrong digest" in call("data", "check", "mnist", code=1)
    assert "complete" not in call("data", "fetch", "mnist", code=2)


def test_reporting_unfinished_runs_says_how_to_go_on(call, tmp_path):
    call("run", "til/digits_split", "--scale", "smoke", "--out", tmp_path)
    next(tmp_path.rglob("record.json")).unlink()
    assert "forgetfree resume" in call("report", tmp_path, code=2)
    assert "changed" in call("resume", tmp_path)


def test_a_table_of_the_paper_is_printed_and_written_as_markdown_csv_and_latex(call, tmp_path):
    stored = Path(__file__).parents[2] / "results" / "til-permuted_mnist"
    text = call("report", stored, "--table", 1, "--to", tmp_path)
    assert "Table 1: Omniglot Rotation" in text
    assert "ours, scale paper" in text
    assert "published" in text
    assert sorted(file.name for file in tmp_path.iterdir()) == ["table-1.csv", "table-1.md", "table-1.tex"]
    said = call("report", stored, "--table", 4, "--to", tmp_path, code=2)
    assert "no table '4'. There are: 1, 2, 3" in said
    assert "these runs are of permuted_mnist" in call("report", stored, "--table", 2, "--to", tmp_path, code=2)


def test_a_run_folder_that_was_renamed_is_not_resumed_elsewhere(call, tmp_path):
    call("run", "til/digits_split", "--scale", "smoke", "--out", tmp_path)
    record = next(tmp_path.rglob("record.json"))
    record.unlink()
    record.parent.rename(record.parent.with_name("mine"))
    assert "renamed or moved" in call("resume", tmp_path, code=2)


def test_the_version_is_printed(call):
    assert call("--version").startswith("forgetfree 0.")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The archive of a small run."""
    out = tmp_path_factory.mktemp("runs")
    words = ["run", "til/digits_split", "--method", "wsn", "--scale", "smoke", "--out", str(out)]
    assert CliRunner().invoke(cli.app, words).exit_code == 0
    return next(out.rglob("memory.ticket"))


@pytest.fixture
def archive(ran, tmp_path):
    return Path(shutil.copy(ran, tmp_path / "memory.ticket"))


def test_a_run_leaves_an_archive_that_can_be_inspected_and_verified(call, archive):
    found = json.loads(call("inspect", archive, "--json"))
    assert found["method"] == "wsn"
    assert found["nbytes"] == archive.stat().st_size
    assert [task["weights"] == task["new"] + task["reused"] for task in found["tasks"]] == [True] * len(found["tasks"])
    shown = call("inspect", archive)
    assert all(task["name"] in shown for task in found["tasks"])
    verified = json.loads(call("verify", archive, "--json"))
    assert verified["ok"]
    assert {task["rule"] for task in verified["tasks"]} == {"bit for bit"}
    assert "bit for bit" in call("verify", archive)


def test_an_archive_of_sessions_is_shown_as_one_network_and_one_head(call, tmp_path):
    told = call("run", "fscil/digits", "--method", "softnet", "--scale", "smoke", "--out", tmp_path)
    (overall,) = re.findall(r"task 3 of 3 learned, accuracy on all classes met ([\d.]+) %", told)
    record = json.loads(next(tmp_path.rglob("record.json")).read_text())
    right = sum(a * n for a, n in zip(record["accuracy"][-1], record["sessions"]["tested"], strict=True))
    assert float(overall) == pytest.approx(100 * right / sum(record["sessions"]["tested"]), abs=0.06)
    archive = next(tmp_path.rglob("memory.ticket"))
    shown, found = call("inspect", archive), json.loads(call("inspect", archive, "--json"))
    first, last = found["tasks"][0], found["tasks"][-1]
    assert "answers   7 classes by one network" in shown
    assert f"{first['weights']:,} weights" in shown
    assert f"one head ({last['head']:,} values)" in " ".join(shown.split())
    rows = [
        line.split() for line in shown.splitlines() if line.split()[:2] in [t["name"].split() for t in found["tasks"]]
    ]
    assert [row[2:4] for row in rows] == [["5", "5"], ["1", "6"], ["1", "7"]]  # new classes, and all met


def test_a_run_that_fails_does_not_stop_the_others_and_is_named(call, tmp_path):
    run = ("run", "fscil/digits", "--scale", "smoke", "--out", tmp_path, "--method", "ncm")
    told = call(*run, "--set", "recipe.lr=1e30,0.001", code=2)
    assert "1 of 2 runs failed, the others are finished" in told
    assert "Lower the learning rate" in call(*run, "--set", "recipe.lr=1e30", code=2)
    (left,) = [path.parent for path in tmp_path.rglob("run.toml") if not (path.parent / "record.json").exists()]
    for path in tmp_path.rglob("record.json"):
        path.unlink()
    told = "".join(call("resume", tmp_path, code=2).split("\n"))
    assert f"{left}: task" in told
    assert "1 of 2 runs failed, the others are finished" in told
    assert [path.parent.name for path in tmp_path.rglob("record.json")] == ["ncm-recipe.lr=0.001-smoke-seed0"]


def test_settings_that_do_not_fit_a_method_are_refused_before_anything_is_written(call, tmp_path):
    run = ("run", "fscil/digits", "--scale", "smoke", "--out", tmp_path / "runs", "--method", "joint")
    assert "learns nothing" in call(*run, "--set", "heads=euclidean", code=2)
    assert not list(tmp_path.rglob("run.toml"))


def test_verify_says_that_it_could_not_check_with_exit_code_2(call, archive):
    content = bytearray(archive.read_bytes())
    content[-9] ^= 1
    archive.write_bytes(content)
    assert "does not match its digest" in call("verify", archive, code=2)
    assert "cannot read" in call("verify", archive.parent / "nowhere.ticket", code=2)


def test_verify_says_that_a_certificate_is_broken_with_exit_code_1(call, archive):
    learner = ff.load(archive)
    name = next(iter(learner.tasks))
    known = learner.tasks[name]
    other = replace(known, certificate=replace(known.certificate, digest="0" * 32))
    learner.engine._learned = {**learner.engine.learned, name: other}
    ff.save(learner, archive)
    assert name in call("verify", archive, code=1)


def test_a_task_can_be_removed_from_an_archive(call, archive, tmp_path):
    before = json.loads(call("inspect", archive, "--json"))
    gone, *others = [task["name"] for task in before["tasks"]]
    call("remove", archive, "--task", gone, "--to", tmp_path / "less.ticket")
    after = json.loads(call("inspect", tmp_path / "less.ticket", "--json"))
    assert [task["name"] for task in after["tasks"]] == others
    assert after["nbytes"] < before["nbytes"]
    assert archive.stat().st_size == before["nbytes"], "it was not asked for in place"
    call("verify", tmp_path / "less.ticket")
    assert "no task 'nobody'" in call("remove", archive, "--task", "nobody", "--in-place", code=2)
    content = archive.read_bytes()
    for where in ((), ("--to", tmp_path / "other.ticket", "--in-place")):
        assert "either --to FILE or --in-place" in call("remove", archive, "--task", gone, *where, code=2)
        assert archive.read_bytes() == content
    call("remove", archive, "--task", gone, "--in-place")
    assert archive.read_bytes() == (tmp_path / "less.ticket").read_bytes()


def test_a_task_can_be_exported(call, archive, tmp_path):
    name = json.loads(call("inspect", archive, "--json"))["tasks"][0]["name"]
    said = call("export", archive, "--task", name, "--to", tmp_path / "model.pt2")
    assert f"{(tmp_path / 'model.pt2').stat().st_size:,} bytes" in said
    assert ".onnx" in call("export", archive, "--task", name, "--to", tmp_path / "model.exe", code=2)


def test_a_backbone_of_ones_own_is_named_by_its_place(call, tmp_path, monkeypatch):
    (tmp_path / "nets_of_mine.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Linear(4, 6), nn.ReLU())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    learner = ff.WSN(nn.Sequential(nn.Linear(4, 6), nn.ReLU()), capacity=0.5, recipe=ff.Recipe(epochs=1))
    learner.learn(ff.Task("mine", (0, 1), (torch.randn(8, 4), torch.arange(8) % 2)))
    ff.save(learner, "mine.ticket")
    said = call("verify", "mine.ticket", code=2)
    assert "--backbone package.module:make" in said
    assert "load(" not in said
    call("verify", "mine.ticket", "--backbone", "nets_of_mine:make")
    assert "package.module:make" in call(
        "remove", "mine.ticket", "--task", "mine", "--in-place", "--backbone", "nowhere:make", code=2
    )
