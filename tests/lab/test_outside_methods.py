"""Methods from outside: of a plug-in, or no longer installed. Their runs are reported like those of any other."""

import io

import pytest
from rich.console import Console

from forgetfree.lab import legend
from forgetfree.lab.analysing import analyse_all
from forgetfree.lab.report.contents import laid_out
from forgetfree.lab.report.drawing import allowed, figures, groups
from forgetfree.lab.report.figures import mask_correlation
from forgetfree.lab.report.figures.ink import method_styles
from forgetfree.lab.report.gallery import gallery
from forgetfree.lab.report.page import page
from forgetfree.lab.report.publishing import write_figures, write_table
from forgetfree.lab.report.summary import answers
from forgetfree.methods import METHODS
from forgetfree.registry import MethodEntry
from made_up_runs import write_run

MINE = MethodEntry(
    "mine.learner:Mine",
    "A method of somebody else.",
    label="My Net",
    colour="#123456",
    marker="*",
    forget_free=True,
    capacity=True,
    tickets=True,
    reuses=True,
)


@pytest.fixture
def plugged(monkeypatch):
    """METHODS with a method that cannot even be imported: a report must not try."""
    monkeypatch.setattr(METHODS, "_plugged", {})
    METHODS.plug({"mine": MINE}, "mine")


@pytest.fixture(params=[False, True], ids=["til", "fscil"])
def few_shot(request):
    return request.param


def quiet() -> Console:
    return Console(file=io.StringIO(), width=100)


# not installed


def test_runs_of_a_method_that_is_not_installed_are_in_every_table_figure_and_page(tmp_path, few_shot):
    methods = ("mine", "ncm" if few_shot else "ewc")
    runs = [write_run(tmp_path, name, seed=seed, few_shot=few_shot) for name in methods for seed in (0, 1)]
    console = quiet()
    for name in [None, *(["digits", "sessions"] if few_shot else ["1"])]:
        write_table(name, None, runs, tmp_path / "tables", console)
    assert all("mine" in file.read_text() for file in (tmp_path / "tables").iterdir())
    assert "mine" in console.file.getvalue()
    written = write_figures("all", runs, tmp_path / "figures", console)
    shown = [file for file in written if file.suffix == ".svg" and ">mine<" in file.read_text()]
    assert len(shown) == 2
    assert all(legend.entry("mine").colour in file.read_text() for file in shown)
    text = page(runs, command="forgetfree report")
    assert '<span class="name">mine</span>' in text
    _, pictures = gallery(runs, tmp_path / "gallery.md", command="forgetfree report")
    assert sum(">mine<" in picture for picture in pictures.values()) == 2


def test_what_is_not_known_of_a_method_is_not_claimed(tmp_path):
    runs = [write_run(tmp_path, "mine", capacity=0.1)]
    said = " ".join(sentence for answer in answers(groups(runs), runs) for sentence in answer.sentences)
    assert "Other methods (mine) promise nothing" in said
    (line,) = [line for line in laid_out("1", None, runs).lines if line.source != "published"]
    assert (line.method, line.source) == ("mine", "ours, scale cpu, capacity=0.1")


def test_a_method_that_is_not_installed_is_not_analysed(tmp_path):
    console = quiet()
    assert analyse_all([write_run(tmp_path, "mine")], console) == []
    assert "method 'mine' is not installed, so no analysis" in " ".join(console.file.getvalue().split())


# plugged in


def test_a_plugged_method_has_its_own_name_colour_and_marker(tmp_path, plugged):
    runs = [write_run(tmp_path, "mine", capacity=capacity) for capacity in (0.1, 0.3)] + [write_run(tmp_path, "ewc")]
    (drawn,) = figures("accuracy_over_capacity", runs)
    assert [line.label for line in drawn.arrays] == ["EWC", "My Net"]
    assert drawn.arrays[1].method == "mine"
    _, line = drawn.drawing.axes[0].lines
    assert (line.get_color(), line.get_marker()) == ("#123456", "*")
    lines = [line for line in laid_out("1", None, runs).lines if line.key == "mine"]
    assert [line.method for line in lines] == ["My Net, c = 10 %", "My Net, c = 30 %"]
    text = page(runs, command="forgetfree report")
    assert "light-dark(#123456,#" in text, "its own colour, and a lighter one on dark"
    assert "stroke: #123456" not in text
    said = " ".join(sentence for answer in answers(groups(runs), runs) for sentence in answer.sentences)
    assert "Forget-free methods did not: 2 runs (My Net)" in said


def test_a_plugged_method_with_tickets_is_in_the_figures_of_tickets(tmp_path, plugged):
    run = write_run(tmp_path, "mine", capacity=0.1)
    run.keep_analysis(
        "tickets",
        {
            "tasks": ["one", "two"],
            "weights": {"layer": 100},
            "sets": {
                name: {"layer": [10, 10]}
                for name in ("all used", "per task", "new per task", "reused per task", "reused for all tasks")
            },
            "uses": {"layer": [85, 10, 5]},
            "agreement": [[1.0, 0.5], [0.5, 1.0]],
            "correlation": [[1.0, 0.4], [0.4, 1.0]],
        },
    )
    (group,) = groups([run])
    assert {"weight_reuse", "mask_correlation"} <= {drawn.name for drawn in allowed(group)}
    assert "My Net, c = 10 %: 40 %" in mask_correlation.words(mask_correlation.measure(group.runs))


# legend


def test_every_method_of_ours_has_a_look_of_its_own_among_those_it_is_compared_with():
    ours = {name: known for name, known in METHODS.entries.items() if known.source == "forgetfree"}
    for scenario in ("til", "fscil"):
        shown = [legend.entry(name) for name, known in ours.items() if known.scenario == scenario]
        assert len({known.colour for known in shown}) == len(shown) >= 9
        assert len({known.marker for known in shown}) == len(shown)
        assert {known.colour for known in shown} <= set(legend.COLOURS), "each has a twin in the page's dark theme"
        assert len({known.label for known in shown}) == len(shown)


def test_a_method_looks_the_same_in_every_figure_whatever_is_beside_it():
    def looks(*methods):
        return {
            name: (style["color"], style["marker"]) for name, style in zip(methods, method_styles(methods), strict=True)
        }

    every = looks("wsn", "ewc", "mine", "yours")
    assert every["wsn"] == (METHODS.entry("wsn").colour, METHODS.entry("wsn").marker)
    assert looks("mine", "wsn") == {name: every[name] for name in ("mine", "wsn")}


def test_two_lines_of_a_method_differ_in_dashes():
    one, two = method_styles(["wsn", "wsn"])
    assert one["color"] == two["color"]
    assert one["linestyle"] != two["linestyle"]
    assert two["markerfacecolor"] == "none"


@pytest.mark.parametrize(("colour", "marker"), [("", ""), ("red", "no marker"), ("#12345", "oo")])
def test_a_look_that_cannot_be_drawn_is_replaced_by_one_picked_by_name(monkeypatch, colour, marker):
    monkeypatch.setattr(METHODS, "_plugged", {})
    METHODS.plug({"mine": MethodEntry("mine:Mine", "Mine.", colour=colour, marker=marker)}, "mine")
    known = legend.entry("mine")
    assert known.label == "mine"
    assert known.colour in legend.COLOURS
    assert known.marker in legend.MARKERS
    (style,) = method_styles(["mine"])
    assert style["color"] == known.colour
