"""One name, one colour and one marker for a method, wherever it is shown; bars begin at nothing."""

import io
import re

import pytest
from matplotlib import rc_context
from matplotlib.colors import to_hex

from forgetfree.lab import legend
from forgetfree.lab.console import PlainConsole
from forgetfree.lab.paper import SMALL_NETWORKS
from forgetfree.lab.report import tables, transfers, typesetting
from forgetfree.lab.report.contents import laid_out
from forgetfree.lab.report.drawing import groups
from forgetfree.lab.report.figures import FIGURES, ink
from forgetfree.lab.report.page import page
from forgetfree.lab.report.published import methods, session_methods, title
from forgetfree.methods import METHODS
from made_up_runs import write_run

SESSIONS = {"tested": [60, 20], "classes": [6, 2], "confusion": [], "mistakes": []}


@pytest.fixture
def runs(seen):
    til = [seen(capacity=c, seed=s) for c in (0.05, 0.1, 0.3) for s in (0, 1)]
    til += [seen("finetune"), seen("multitask"), seen("packnet")]
    fscil = [seen(m, capacity=c, sessions=SESSIONS) for m in ("softnet", "hardnet") for c in (0.5, 0.8)]
    fscil += [seen(m, sessions=SESSIONS) for m in ("ncm", "joint")]
    return {"til": til, "fscil": fscil}


def drawn(name, runs):
    figure = FIGURES[name]
    with rc_context(ink.STYLE):
        return figure.draw(figure.measure(runs))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("accuracy_per_task", "til"), ("accuracy_over_capacity", "til"), ("accuracy_over_capacity", "fscil"),
     ("session_curves", "fscil"), ("method_comparison", "fscil")],
)  # fmt: skip
def test_a_method_has_its_colour_and_marker_in_every_figure(runs, name, kind):
    drawing = drawn(name, runs[kind])
    handles = [(line.get_label(), line) for axes in drawing.axes for line in axes.get_lines()]
    handles += [
        (text.get_text(), line)
        for each in drawing.legends
        for text, line in zip(each.texts, each.legend_handles, strict=True)
    ]
    looks = {}
    for label, line in handles:
        method = next((m for m in METHODS.entries if label.startswith(legend.entry(m).label)), None)
        if method:
            looks.setdefault(method, set()).add((to_hex(line.get_color()), line.get_marker()))
    assert len(looks) >= 2
    for method, found in looks.items():
        assert found == {(legend.entry(method).colour, legend.entry(method).marker)}, method
    strengths = [line.get_alpha() for label, line in handles[:3] if label.startswith("WSN, c")]
    assert len(set(strengths)) == len(strengths), "capacities differ in strength"


def test_what_is_no_method_never_looks_like_one():
    known = {(legend.entry(method).colour, legend.entry(method).marker) for method in METHODS.entries}
    assert len(known) == len(METHODS.entries)
    for number in range(20):
        style = ink.line_style(number)
        assert (style["color"], style["marker"]) not in known


def test_bars_begin_at_zero(seen):
    high = [[0.99, None], [0.97, 0.98]]
    drawing = drawn("task_bars", [seen(accuracy=high), seen("finetune", accuracy=high)])
    for axes in drawing.axes:
        assert axes.get_ylim()[0] == 0
        assert {bar.get_y() for bar in axes.patches} == {0}


def test_every_place_names_a_method_alike(tmp_path):
    folders = [write_run(tmp_path, name) for name in ("finetune", "single_task", "multitask")]
    folders += [write_run(tmp_path, name, few_shot=True) for name in ("joint", "hardnet")]
    screen = PlainConsole(file=io.StringIO(), width=250)
    rows = tables.rows(folders)
    screen.print(*tables.as_tables(rows, 250))
    few_shot, of_paper = laid_out("digits", None, folders), laid_out("1", None, folders)
    screen.print(*typesetting.as_terminal(few_shot), *typesetting.as_terminal(of_paper))
    whole = page(folders, command="forgetfree report runs")
    texts = [screen.file.getvalue(), tables.as_markdown(rows) + typesetting.as_markdown(few_shot), whole]
    for text in texts:
        body = re.sub(r"The paper calls .*?\.", "", text)
        for label in ("fine-tuning", "STL", "joint training", "HardNet"):
            assert label in body
        for other in ("FINETUNE", "Joint", "HardNet (WSN)", "single task", "| single_task"):
            assert other not in body
    glyph = legend.GLYPHS[legend.entry("finetune").marker]
    assert f"{glyph} fine-tuning" in texts[0]
    assert re.search(rf'style="color: [^"]+"[^>]*>{glyph}</span>fine-tuning', whole)


def test_the_paper_s_own_names_are_told_once_below_a_table(tmp_path):
    folders = [write_run(tmp_path, "finetune"), write_run(tmp_path, "hardnet", few_shot=True)]
    assert "The paper calls fine-tuning FINETUNE." in laid_out("1", None, folders).caption
    for method in (*methods(), *session_methods(), *SMALL_NETWORKS):
        if legend.installed(method):
            assert title(method) == legend.entry(method).label
    assert title("la_maml") == "La-MaML"
    assert transfers.APART[1] == "method"


def test_runs_of_before_a_benchmark_had_a_setting_are_compared_with_those_after_it(tmp_path):
    folders = [write_run(tmp_path, name, few_shot=True) for name in ("ncm", "softnet", "hardnet", "icarl")]
    for folder, more in zip(folders, ("", "hidden = 0", "hidden = 2", "augment_sessions = true"), strict=True):
        file = folder.path / "run.toml"
        file.write_text(file.read_text().replace("[benchmark]\n", f"[benchmark]\n{more}\n"))
    assert [[run.method for run in group.runs] for group in groups(folders)] == [
        ["ncm", "softnet", "icarl"],
        ["hardnet"],
    ]
