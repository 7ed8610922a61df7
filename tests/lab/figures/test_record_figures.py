"""Figures that need nothing but records: what they measure, against cases computed by hand, and what they refuse."""

import itertools
import re
import shlex
from dataclasses import replace

import pytest

from forgetfree.lab.experiment import parse_overrides, plan
from forgetfree.lab.report.columns import accuracy, backward, forward, forward_with_own_head
from forgetfree.lab.report.drawing import Group, drawn
from forgetfree.lab.report.figures import (
    accuracy_over_capacity,
    accuracy_per_task,
    comparison,
    method_comparison,
    session_curves,
    task_bars,
    transfer_matrix,
)
from forgetfree.lab.report.figures.figure import Missing, series
from forgetfree.lab.report.figures.ink import as_svg

SESSIONS = {"tested": [60, 20, 20]}
THREE = [[0.9, None, None], [0.8, 0.5, None], [0.7, 0.4, 0.3]]
"""With 60, 20 and 20 test images, overall: 0.9, (48 + 10) / 80 = 0.725, (42 + 8 + 6) / 100 = 0.56."""
ENDS = [[0.9, None, None], [None, None, None], [0.8, 0.6, 0.4]]
"""Overall at the end: (48 + 12 + 8) / 100 = 0.68; nothing between."""
MATRIX = {"trained": [[0.9, 0.3], [0.5, 0.8]], "untrained": [[0.1, 0.2], [0.2, 0.1]]}
NOISY = {"trained, noisy": [[0.88, 0.4], [0.6, 0.78]], "untrained, noisy": [[0.1, 0.2], [0.2, 0.1]]}
TRANSFER = {"random": [0.1, 0.2], "guesses": [None, 0.25], "matrix": MATRIX}
WITH_NOISE = {
    "random": [0.1, 0.2], "guesses": [None, 0.25], "noisy_guesses": [None, 0.35], "matrix": {**MATRIX, **NOISY},
    "noisy_accuracy": [0.88, 0.78],
}  # fmt: skip
OURS = {
    "accuracy_over_capacity": accuracy_over_capacity,
    "accuracy_per_task": accuracy_per_task,
    "task_bars": task_bars,
    "transfer_matrix": transfer_matrix,
    "session_curves": session_curves,
    "method_comparison": method_comparison,
}


@pytest.fixture
def tasks(seen):
    """Runs of two tasks: WSN of three capacities, also seen as SoftNet, and two others."""

    def both(**settings):
        run = seen("wsn", transfer=WITH_NOISE, **settings)
        return [run, replace(run, method="softnet")]

    return [
        *both(capacity=0.3, accuracy=[[0.9, None], [0.9, 0.8]], footprint={"formula": 0.6}),
        *both(capacity=0.05, accuracy=[[0.7, None], [0.7, 0.6]], footprint={"formula": 0.2}),
        *both(capacity=0.1, accuracy=[[0.8, None], [0.8, 0.7]], footprint={"formula": 0.4}, seed=0),
        *both(capacity=0.1, accuracy=[[0.9, None], [0.9, 0.8]], footprint={"formula": 0.4}, seed=1),
        seen("finetune", accuracy=[[0.9, None], [0.4, 0.8]], footprint={"formula": 1.0}),
        seen("multitask", accuracy=[[None, None], [0.9, 0.95]], footprint={"formula": 1.0}),
    ]


@pytest.fixture
def sessions(seen):
    """Runs of three few-shot sessions: SoftNet of two capacities, HardNet of one of them, and two others."""
    better = [[0.9, None, None], [0.9, 0.5, None], [0.8, 0.4, 0.3]]
    return [
        seen("softnet", capacity=0.8, accuracy=THREE, sessions=SESSIONS, seed=0),
        seen("softnet", capacity=0.8, accuracy=better, sessions=SESSIONS, seed=1),
        seen("softnet", capacity=0.5, accuracy=THREE, sessions=SESSIONS),
        seen("hardnet", capacity=0.8, accuracy=THREE, sessions=SESSIONS),
        seen("ncm", accuracy=THREE, sessions=SESSIONS),
        seen("joint", accuracy=ENDS, sessions=SESSIONS),
    ]


# what a run says


def test_few_shot_softnet_is_a_method_of_its_own_and_no_view_with_noise(seen):
    run = seen("softnet", accuracy=THREE, sessions=SESSIONS)
    assert accuracy(run) == pytest.approx(0.56)
    assert backward(run) == pytest.approx(((0.7 - 0.9) + (0.4 - 0.5)) / 2)
    assert forward(run) is None
    assert forward_with_own_head(run) is None


def test_task_incremental_softnet_is_wsn_with_noise(seen):
    run = seen("wsn", as_method="softnet", transfer=WITH_NOISE)
    assert accuracy(run) == pytest.approx(0.83)
    assert forward(run) == pytest.approx(0.35 - 0.2)
    assert forward_with_own_head(run) == pytest.approx(0.4 - 0.2)
    assert backward(run) is None
    plain = replace(run, method="wsn")
    assert accuracy(plain) == pytest.approx(0.75)
    assert forward_with_own_head(plain) == pytest.approx(0.3 - 0.2)


def test_series_are_named_by_method_and_capacity_in_the_order_of_the_tables(tasks):
    assert [(one.label, len(one.runs)) for one in series(tasks)] == [
        ("fine-tuning", 1),
        ("WSN, c = 5 %", 1), ("WSN, c = 10 %", 2), ("WSN, c = 30 %", 1),
        ("SoftNet, c = 5 %", 1), ("SoftNet, c = 10 %", 2), ("SoftNet, c = 30 %", 1),
        ("MTL", 1),
    ]  # fmt: skip


def test_a_family_is_a_label_without_its_capacity(seen):
    runs = [seen(capacity=0.05), seen(capacity=0.05, overrides={"capacity": 0.05, "recipe.lr": 0.1}), seen("ewc")]
    assert [comparison.family(one) for one in series(runs)] == ["EWC", "WSN", "WSN, recipe.lr=0.1"]


def test_a_label_leaves_out_what_the_group_says(seen):
    (one,) = series([seen(overrides={"benchmark.tasks": 2, "recipe.lr": 0.1})])
    assert one.label == "WSN, c = 10 %, recipe.lr=0.1"


@pytest.mark.parametrize(
    ("count", "ticks"), [(1, [1]), (3, [1, 2, 3]), (20, [*range(1, 21)]), (100, [1, *range(5, 101, 5)])]
)
def test_ticks_begin_with_the_first_and_are_few(count, ticks):
    class Axes:
        def set_xticks(self, values):
            self.ticks = values

    axes = Axes()
    comparison.counted(axes, count)
    assert axes.ticks == ticks


# accuracy over capacity


def test_accuracy_over_capacity_has_a_line_for_each_method_in_order_of_room(tasks):
    finetune, wsn, softnet, multitask = accuracy_over_capacity.measure(tasks)
    assert wsn.label == "WSN"
    assert wsn.capacity == (0.2, 0.4, 0.6)
    assert wsn.accuracy == pytest.approx((0.65, 0.8, 0.85))
    assert wsn.spread == pytest.approx((0.0, 0.1 / 2**0.5, 0.0))
    assert (wsn.noisy, softnet.noisy) == (False, True)
    assert softnet.accuracy == pytest.approx((0.83, 0.83, 0.83))
    assert finetune.accuracy == pytest.approx((0.6,))
    assert "MTL with 92.5 % at 100 %" in accuracy_over_capacity.words((finetune, wsn, softnet, multitask))


def test_points_are_in_order_of_the_room_that_was_taken(seen):
    runs = [seen(capacity=0.1, footprint={"formula": 0.3}), seen(capacity=0.5, footprint={"formula": 0.2})]
    (line,) = accuracy_over_capacity.measure(runs)
    assert line.capacity == (0.2, 0.3)


def test_other_settings_are_lines_of_their_own(seen):
    runs = [seen("multitask"), seen("multitask", overrides={"recipe.lr": 0.1}, accuracy=[[None, None], [0.1, 0.3]])]
    assert {line.label: line.accuracy for line in accuracy_over_capacity.measure(runs)} == {
        "MTL": pytest.approx((0.75,)), "MTL, recipe.lr=0.1": pytest.approx((0.2,)),
    }  # fmt: skip


def test_capacities_far_apart_are_on_a_scale_of_factors(tasks, seen):
    near = accuracy_over_capacity.draw(accuracy_over_capacity.measure([seen("hat"), seen("ewc")]))
    assert near.axes[0].get_xscale() == "linear"
    far = seen("single_task", footprint={"formula": 10.0})
    (axes,) = accuracy_over_capacity.draw(accuracy_over_capacity.measure([*tasks, far])).axes
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["20", "50", "100", "200", "500", "1000"]
    low, high = axes.get_xlim()
    assert low < 20
    assert high > 1000


# accuracy per task


def test_accuracy_per_task_begins_with_wsn(tasks):
    lines = {line.label: line for line in accuracy_per_task.measure(tasks)}
    *_, last_of_ours, first_of_others, _ = lines
    assert list(lines)[:3] == ["WSN, c = 5 %", "WSN, c = 10 %", "WSN, c = 30 %"]
    assert (last_of_ours, first_of_others) == ("SoftNet, c = 30 %", "fine-tuning")
    assert lines["WSN, c = 10 %"].end == pytest.approx((0.85, 0.75))
    assert lines["WSN, c = 10 %"].spread == pytest.approx((0.1 / 2**0.5, 0.1 / 2**0.5))
    assert lines["SoftNet, c = 10 %"].end == pytest.approx((0.88, 0.78))


def test_accuracy_right_after_learning_is_there_where_it_differs(tasks):
    first = {line.label: line.first for line in accuracy_per_task.measure(tasks)}
    assert first.pop("fine-tuning") == pytest.approx((0.9, 0.8))
    assert set(first.values()) == {None}, "what did not change, or was measured at the end only"


def test_words_on_tasks_say_what_was_lost(tasks, seen):
    said = accuracy_per_task.words(accuracy_per_task.measure(tasks))
    assert "WSN, c = 30 % reaches 85.0 % in the mean and 80.0 % on task 2" in said
    assert "fine-tuning lost most, 25.0 points" in said
    stayed = accuracy_per_task.measure([seen(accuracy=[[0.8, None], [0.8, 0.7]])])
    assert "No task changed" in accuracy_per_task.words(stayed)


def test_accuracy_per_task_has_one_panel_without_rivals(tasks, seen):
    assert len(accuracy_per_task.draw(accuracy_per_task.measure(tasks)).axes) == 2
    assert len(accuracy_per_task.draw(accuracy_per_task.measure([seen()])).axes) == 1


# bars


def test_bars_are_of_each_method_at_its_best_capacity(tasks):
    found = task_bars.measure(tasks)
    assert found.groups == ((1, 1), (2, 2))
    bars = {one.label: one for one in found.bars}
    assert list(bars) == ["fine-tuning", "WSN, c = 30 %", "SoftNet, c = 5 %", "MTL"]
    assert bars["WSN, c = 30 %"].height == (0.9, 0.8)
    assert bars["fine-tuning"].height == (0.4, 0.8)
    assert "task 2: MTL (95.0 %)." in task_bars.words(found)


@pytest.mark.parametrize(
    ("tasks", "groups"), [(10, [(t, t) for t in range(1, 11)]), (12, [(t, t + 1) for t in range(1, 12, 2)])]
)
def test_long_streams_have_several_tasks_in_a_bar(seen, tasks, groups):
    last = [t / 100 for t in range(tasks)]
    table = [[None] * tasks for _ in range(tasks - 1)] + [last]
    found = task_bars.measure([seen("ewc", accuracy=table, seed=s) for s in (0, 1)] + [seen("gpm", accuracy=table)])
    assert found.groups == tuple(groups)
    for bars in found.bars:
        assert bars.height == pytest.approx([sum(last[a - 1 : b]) / (b - a + 1) for a, b in groups])
        assert set(bars.spread) == {0.0}


def test_the_last_bar_may_have_fewer_tasks(seen):
    table = [[None] * 21 for _ in range(20)] + [[0.5] * 20 + [0.8]]
    found = task_bars.measure([seen("ewc", accuracy=table), seen("gpm", accuracy=table)])
    assert found.groups[-2:] == ((16, 18), (19, 21))
    assert found.bars[0].height[-1] == pytest.approx(0.6)
    assert "tasks 19-21: EWC (60.0 %)" in task_bars.words(found)


def test_no_two_of_twenty_methods_have_the_same_bars(seen):
    found = task_bars.Comparison(((1, 1),), tuple(task_bars.Bars(f"m{n}", f"m{n}", (0.5,), (0.0,)) for n in range(20)))
    (axes,) = task_bars.draw(found).axes
    looks = [(bars[0].get_edgecolor(), bars[0].get_facecolor(), bars[0].get_hatch()) for bars in axes.containers]
    assert len(set(looks)) == 20
    hatches = [hatch for _, _, hatch in looks]
    assert all(one != other for one, other in itertools.pairwise(hatches)), "neighbours differ without colour"


# transfer


def test_transfer_matrices_are_of_the_smallest_and_the_largest_capacity_as_means_over_seeds(seen):
    other = {**WITH_NOISE, "matrix": {**WITH_NOISE["matrix"], "trained": [[0.7, 0.1], [0.3, 0.6]]}}
    runs = [
        seen(capacity=0.5, transfer=WITH_NOISE, seed=0),
        seen(capacity=0.5, transfer=other, seed=1),
        seen(capacity=0.1, transfer=WITH_NOISE),
        seen(capacity=0.03, transfer=WITH_NOISE),
    ]
    panels = transfer_matrix.measure(runs)
    assert [panel.label for panel in panels] == [
        "WSN, c = 3 %", "SoftNet, c = 3 %", "WSN, c = 50 %", "SoftNet, c = 50 %",
    ]  # fmt: skip
    _, small_noisy, large, _ = panels
    assert [value for row in large.values for value in row] == pytest.approx([0.8, 0.2, 0.4, 0.7])
    assert small_noisy.values == ((0.88, 0.4), (0.6, 0.78))
    assert (large.own, large.before, large.random) == pytest.approx((0.75, 0.2, 0.15))
    assert "WSN, c = 50 %: 75.0 % on the diagonal, 20.0 % right of it" in transfer_matrix.words(panels)


def test_a_transfer_matrix_can_stand_alone(seen):
    (panel,) = transfer_matrix.measure([seen(transfer=TRANSFER), seen("packnet", transfer=TRANSFER)])
    assert panel.label == "WSN, c = 10 %"
    assert panel.values == ((0.9, 0.3), (0.5, 0.8))
    assert "SoftNet" not in transfer_matrix.words((panel,))
    svg = as_svg(transfer_matrix.draw((panel,)))
    assert "transfer1|1|2|30.00" in svg, "row: whose ticket; column: who is asked"


# sessions


def test_session_curves_have_softnet_by_capacity_and_a_panel_for_what_hardnet_has_too(sessions):
    alone, against = session_curves.measure(sessions)
    assert [one.label for one in alone.curves] == ["SoftNet, c = 50 %", "SoftNet, c = 80 %"]
    assert [one.label for one in against.curves] == ["HardNet, c = 80 %", "SoftNet, c = 80 %"]
    assert against.title.endswith("c = 80 %")
    hard, soft = against.curves
    assert hard.overall == pytest.approx((0.9, 0.725, 0.56))
    assert hard.base == (0.9, 0.8, 0.7)
    assert hard.novel == (None, 0.5, pytest.approx(0.35))
    assert hard.spread == (0.0, 0.0, 0.0)
    assert soft.overall[-1] == pytest.approx(0.59)
    assert soft.spread[-1] == pytest.approx(0.06 / 2**0.5)


def test_softnet_or_a_pair_alone_is_one_panel(sessions):
    (one,) = session_curves.measure([run for run in sessions if run.plan["method"].get("capacity") == 0.8])
    assert len(one.curves) == 2
    (one,) = session_curves.measure([run for run in sessions if run.plan["method"].get("capacity") == 0.5])
    assert [each.label for each in one.curves] == ["SoftNet, c = 50 %"]


def test_parts_of_session_curves_differ_in_dashes(sessions):
    drawing = session_curves.draw(session_curves.measure(sessions))
    dashes = [line.get_linestyle() for line in drawing.axes[1].get_lines()]
    assert dashes == ["-", "--", "-."] * 2
    novel = drawing.axes[1].get_lines()[2]
    assert list(novel.get_xdata()) == [2, 3], "there is no novel class in the first session"


def test_words_on_sessions_name_the_ends(sessions):
    said = session_curves.words(session_curves.measure(sessions))
    assert "Highest at the end is SoftNet, c = 80 % (90.0 % first, 59.0 % last: base 75.0 %, novel 35.0 %)" in said
    assert "lowest SoftNet, c = 50 % (90.0 % first, 56.0 % last" in said


def test_methods_are_compared_at_their_best_capacity_and_ends_alone_are_markers(sessions):
    lines = {line.label: line for line in method_comparison.measure(sessions)}
    assert set(lines) == {"SoftNet, c = 80 %", "HardNet, c = 80 %", "NCM", "joint training"}
    assert lines["NCM"].session == (1, 2, 3)
    assert lines["NCM"].accuracy == pytest.approx((0.9, 0.725, 0.56))
    assert lines["NCM"].whole
    joint = lines["joint training"]
    assert (joint.session, joint.whole) == ((1, 3), False)
    assert joint.accuracy == pytest.approx((0.9, 0.68))
    (axes,) = method_comparison.draw(tuple(lines.values())).axes
    drawn_as = {line.get_label(): line.get_linestyle() for line in axes.get_lines()}
    assert (drawn_as["joint training"], drawn_as["NCM"]) == ("None", "-")
    said = method_comparison.words(tuple(lines.values()))
    assert "SoftNet, c = 80 %: 90.0 % first, 59.0 % at the end" in said
    assert "Markers alone: joint training" in said


def test_a_session_that_one_run_did_not_measure_is_left_out(seen):
    runs = [seen("ncm", accuracy=table, sessions=SESSIONS, seed=n) for n, table in enumerate((THREE, ENDS))]
    first, between, last = comparison.over_sessions(series(runs)[0], "overall")
    assert first == (0.9, 0.0)
    assert between is None
    assert last == pytest.approx((0.62, 0.12 / 2**0.5))


# all of them


@pytest.mark.parametrize("name", OURS)
def test_a_figure_names_all_that_it_shows(name, tasks, sessions):
    runs = sessions if OURS[name] in (session_curves, method_comparison) else tasks
    found = drawn(name, Group("til/digits_permuted", "cpu", "", runs))
    assert found.title == OURS[name].TITLE
    assert re.search(r"\d\d\.\d %", found.words)
    svg = as_svg(found.drawing)
    shown = re.findall(r"(?:WSN|SoftNet|HardNet|fine-tuning|MTL|NCM|joint training)[^<]*", svg)
    assert {text.split(",")[0] for text in shown} >= ({"WSN", "SoftNet"} if runs is tasks else {"SoftNet", "HardNet"})


def test_bars_and_their_hatches_are_the_same_when_drawn_again(tasks):
    found = task_bars.measure(tasks)
    assert as_svg(task_bars.draw(found)) == as_svg(task_bars.draw(found))


@pytest.mark.parametrize("name", OURS)
def test_every_figure_but_that_of_capacity_is_of_one_scenario(name, tasks, sessions):
    if OURS[name] is accuracy_over_capacity:
        return
    other = tasks if OURS[name] in (session_curves, method_comparison) else sessions
    with pytest.raises(Missing, match=r"task-incremental.*Make one with: forgetfree run"):
        OURS[name].measure(other)


@pytest.mark.parametrize(
    ("figure", "of"),
    [(accuracy_per_task, "ewc"), (transfer_matrix, "wsn"), (task_bars, "wsn"), (session_curves, "ncm"),
     (method_comparison, "ncm")],
)  # fmt: skip
def test_what_is_missing_is_a_command_that_can_be_planned(figure, of, seen):
    few = {"accuracy": THREE, "sessions": SESSIONS} if of == "ncm" else {}
    with pytest.raises(Missing) as caught:
        figure.measure([seen(of, scale="smoke", overrides={"benchmark.tasks": 2}, **few)])
    said = re.search(r"make \w+ with: forgetfree run ([^;]*)", str(caught.value)).group(1)
    experiment, *words = shlex.split(said)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    planned = plan(
        experiment, methods=[word for flag, word in pairs if flag == "--method"], scale=dict(pairs)["--scale"],
        overrides=parse_overrides(word for flag, word in pairs if flag == "--set"),
    )  # fmt: skip
    assert len(planned) >= 2
    assert {each.settings["benchmark"]["tasks"] for each in planned} == {2}
    assert {each.scale for each in planned} == {"smoke"}
