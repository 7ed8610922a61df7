"""Analyses are made once, beside the run that they are of; an interrupted call goes on; figures find what they need."""

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from forgetfree.errors import FileError, InputError
from forgetfree.lab.analyses import ANALYSES
from forgetfree.lab.analysing import analyse_all
from forgetfree.lab.experiment import Plan, perform, plan
from forgetfree.lab.records import RunFolder, find_runs
from forgetfree.lab.report.drawing import drawn, figures, groups
from forgetfree.lab.report.figures import FIGURES
from forgetfree.lab.report.figures.figure import Missing
from forgetfree.lab.report.gallery import gallery

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """Two finished runs of seconds."""
    out = tmp_path_factory.mktemp("runs")
    for method in ("wsn", "finetune"):
        (planned,) = plan("til/digits_split", methods=[method], scale="smoke")
        perform(planned, out)
    return out


@pytest.fixture
def runs(kept, tmp_path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "runs"))


def wsn(runs: Path) -> RunFolder:
    (folder,) = (folder for folder in find_runs([runs]) if folder.plan()["run"]["method"] == "wsn")
    return folder


def _applying(folder: RunFolder) -> list[str]:
    planned = Plan.from_toml(folder.plan())
    return [name for name, analysis in ANALYSES.items() if analysis.applies(planned)]


def test_every_analysis_that_applies_is_made_once(runs):
    folders = find_runs([runs])
    made = analyse_all(folders, QUIET)
    assert "tickets" in {name for _, name in made}
    assert {folder.path for folder, _ in made} == {wsn(runs).path}, "fine-tuning has no tickets to analyse"
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("analysis/*.json")}
    assert len(before) == len(made)
    assert analyse_all(folders, QUIET) == []
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("analysis/*.json")} == before
    assert [name for _, name in analyse_all(folders, QUIET, only=["tickets"], again=True)] == ["tickets"]
    assert wsn(runs).analysis("tickets") == json.loads((wsn(runs).path / "analysis" / "tickets.json").read_text())


def test_the_same_run_gives_the_same_analysis(runs):
    analyse_all(find_runs([runs]), QUIET)
    first = {path: path.read_bytes() for path in runs.rglob("analysis/*.json")}
    analyse_all(find_runs([runs]), QUIET, again=True)
    assert {path: path.read_bytes() for path in runs.rglob("analysis/*.json")} == first


def test_what_was_made_before_an_interruption_stays_and_the_rest_is_made_then(runs, monkeypatch):
    folders, applying = find_runs([runs]), _applying(wsn(runs))
    last = ANALYSES[applying[-1]]

    class Interrupted:
        applies = staticmethod(last.applies)

        @staticmethod
        def analyse(subject, advance):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(ANALYSES, applying[-1], Interrupted)
        with pytest.raises(KeyboardInterrupt):
            analyse_all(folders, QUIET)
    assert [name for name in applying if wsn(runs).analysis(name)] == applying[:-1]
    assert [name for _, name in analyse_all(folders, QUIET)] == applying[-1:]


def test_an_unknown_analysis_names_those_there_are(runs):
    with pytest.raises(InputError, match=r"no analysis 'lipschitz'. There are: tickets"):
        analyse_all(find_runs([runs]), QUIET, only=["lipschitz"])


def test_a_run_without_its_archive_is_said_and_passed_over(runs):
    wsn(runs).archive.unlink()
    console = Console(record=True, width=200)
    assert analyse_all(find_runs([runs]), console) == []
    assert "no archive, so no analysis" in console.export_text()


def test_a_broken_analysis_says_how_to_make_it_anew(runs):
    analyse_all(find_runs([runs]), QUIET, only=["tickets"])
    (wsn(runs).path / "analysis" / "tickets.json").write_text('{"tasks": [')
    with pytest.raises(FileError, match=r"tickets\.json cannot be read.*forgetfree analyse"):
        wsn(runs).analysis("tickets")


def test_a_figure_whose_analysis_is_missing_names_the_command(runs):
    with pytest.raises(InputError, match=r"(?s)weight_reuse cannot be drawn.*forgetfree analyse .*wsn"):
        figures("weight_reuse", find_runs([runs]))


def test_an_unknown_figure_names_those_there_are(runs):
    with pytest.raises(InputError, match=r"no figure 'pie'. There are: accuracy_over_capacity, "):
        figures("pie", find_runs([runs]))


def test_runs_of_different_benchmarks_are_grouped_and_never_mixed(runs):
    (other,) = plan("til/digits_permuted", methods=["finetune"], scale="smoke")
    perform(other, runs)
    found = groups(find_runs([runs]))
    assert [(group.experiment, len(group.runs)) for group in found] == [
        ("til/digits_permuted", 1),
        ("til/digits_split", len(found[1].runs)),
    ]
    assert {run.plan["run"]["experiment"] for run in found[1].runs} == {"til/digits_split"}
    assert len({group.slug for group in found}) == 2


def test_groups_that_differ_in_the_backbone_alone_write_different_files(runs):
    for hidden in ([20], [30]):
        (other,) = plan("til/digits_split", methods=["finetune"], scale="smoke", overrides={"backbone.hidden": hidden})
        perform(other, runs)
    folder = RunFolder(runs / other.folder)
    told = (folder.path / "run.toml").read_text()
    shutil.copytree(folder.path, runs / "elsewhere")
    (runs / "elsewhere" / "run.toml").write_text(told.replace("hidden = [\n    30,\n]", "hidden = [\n    31,\n]", 1))
    found = groups(find_runs([runs]))
    assert [group.details for group in found] == ["hidden=[30]", "hidden=[20]", "hidden=[30] again", ""]  # by folder
    assert len({group.slug for group in found}) == len({group.title for group in found}) == len(found)


def test_every_figure_either_draws_or_says_what_is_missing(runs):
    analyse_all(find_runs([runs]), QUIET)
    (group,) = groups(find_runs([runs]))
    made, missing = [], []
    for name in FIGURES:
        try:
            made.append(drawn(name, group))
        except Missing as error:
            missing.append(f"{name}: {error}")
    assert [text for text in missing if "forgetfree " not in text] == []
    shown = {each.name for each in made}
    assert {"accuracy_over_capacity", "capacity_growth", "weight_reuse", "reuse_ablation"} <= shown
    assert all(len(each.words) > 40 for each in made)


def test_the_gallery_shows_every_figure_it_can_and_is_the_same_each_time(runs):
    analyse_all(find_runs([runs]), QUIET)
    page = Path("docs/g.md")
    text, pictures = gallery(find_runs([runs]), page, command="forgetfree report runs")
    assert "\nforgetfree report runs --gallery docs/g.md\n" in text
    assert "`forgetfree report runs --figure weight_reuse`" in text
    assert len(pictures) >= 5
    for path, picture in pictures.items():
        assert f"]({path.relative_to('docs')})" in text
        assert "<svg" in picture
    assert gallery(find_runs([runs]), page, command="forgetfree report runs") == (text, pictures)
