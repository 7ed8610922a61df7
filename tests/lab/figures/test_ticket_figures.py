"""Figures of tickets: what they measure, by hand, from analyses written by hand; and that they can be drawn."""

import pytest
from matplotlib import rc_context

from forgetfree.lab.report.figures import FIGURES, capacity_growth, mask_correlation, reuse_ablation, weight_reuse
from forgetfree.lab.report.figures.figure import Missing
from forgetfree.lab.report.figures.ink import STYLE, as_png, as_svg

TICKETS = {
    "tasks": ["a", "b"],
    "weights": {"one.weight": 80, "two.weight": 20},
    "sets": {
        "all used": {"one.weight": [8, 12], "two.weight": [2, 3]},
        "per task": {"one.weight": [8, 8], "two.weight": [2, 2]},
        "new per task": {"one.weight": [8, 4], "two.weight": [2, 1]},
        "reused per task": {"one.weight": [0, 4], "two.weight": [0, 1]},
        "reused for all tasks": {"one.weight": [0, 4], "two.weight": [0, 1]},
    },
    "uses": {"one.weight": [68, 8, 4], "two.weight": [17, 2, 1]},
    "agreement": [[1.0, 0.5], [0.5, 1.0]],
    "correlation": [[1.0, 0.4], [0.4, 1.0]],
}
CODES = {
    "tasks": [1, 2],
    "weights": [400, 600],
    "masks": {"raw": [125, 250], "huffman 7": [80, 120], "ans 7": [70, 110], "context": [60, 100]},
    "archived": [1, 2],
    "archive": {"file": [700, 1000], "heads": [100, 200]},
}
REUSE = {
    "tasks": ["a", "b", "c"],
    "variants": {
        "ticket": [0.9, 0.8, 0.7],
        "without reused": [None, 0.3, 0.2],
        "without reused for all": [None, 0.5, 0.6],
        "only reused": [None, 0.4, 0.5],
        "all used": [None, 0.7, 0.6],
    },
    "layers": {"one.weight": [None, 0.6, 0.6], "two.weight": [None, 0.8, 0.5]},
    "images": [100, 100, 100],
    "as_recorded": True,
}
DENSE = {"weights": 600, "mask_bits": 0, "formula": 0.6}
"""Of a network with 1000 weights, 4000 bytes."""
ROOT_TWO = 2**0.5
"""Half the distance of two values times this is their deviation."""
NAMES = {
    "capacity_growth": "codes",
    "weight_reuse": "tickets",
    "reuse_ablation": "reuse",
    "mask_correlation": "tickets",
}


@pytest.fixture
def analysed(seen):
    """A finished run with analyses."""

    def make(method="wsn", *, tickets=TICKETS, codes=CODES, reuse=REUSE, **options):
        run = seen(method, footprint=DENSE, **options)
        for name, found in (("tickets", tickets), ("codes", codes), ("reuse", reuse)):
            if found is not None:
                run.folder.keep_analysis(name, found)
        return run

    return make


def test_growth_is_weights_and_masks_by_each_code_over_a_dense_network(analysed):
    (growth,) = capacity_growth.measure([analysed()])
    assert growth.label == "WSN, c = 10 %"
    assert {name: pytest.approx(values) for name, values in growth.curves.items()} == {
        "used weights alone": (0.1, 0.15),
        "+ raw masks": (525 / 4000, 850 / 4000),
        "+ 7-bit Huffman": (0.12, 0.18),
        "+ 7-bit ANS": (470 / 4000, 710 / 4000),
        "+ context code": (0.115, 0.175),
        "archive, without heads": (0.15, 0.2),
    }


def test_growth_is_a_mean_over_seeds_with_their_deviation(analysed):
    other = {**CODES, "weights": [400, 680]}
    (growth,) = capacity_growth.measure([analysed(), analysed(seed=1, codes=other)])
    assert growth.seeds == 2
    assert growth.curves["used weights alone"] == pytest.approx((0.1, 0.16))
    assert growth.spread["used weights alone"] == pytest.approx((0.0, 0.01 * ROOT_TWO))


def test_runs_without_an_analysis_are_left_out_where_others_have_it(analysed):
    (growth,) = capacity_growth.measure([analysed(), analysed(seed=1, codes=None), analysed(capacity=0.5, codes=None)])
    assert growth.seeds == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_single_task_has_nothing_to_show(analysed, name):
    with pytest.raises(Missing, match=r"single task.*forgetfree run til/digits_permuted --method wsn"):
        FIGURES[name].measure([analysed(accuracy=[[0.9]])])


def test_growth_has_a_panel_for_each_capacity_of_wsn_alone(analysed):
    runs = [analysed(capacity=0.3), analysed(capacity=0.05), analysed("packnet")]
    assert [growth.label for growth in capacity_growth.measure(runs)] == ["WSN, c = 5 %", "WSN, c = 30 %"]


def test_an_archive_may_be_written_for_fewer_tasks_than_masks_are_coded(analysed):
    found = {**CODES, "archived": [2], "archive": {"file": [1000], "heads": [200]}}
    (growth,) = capacity_growth.measure([analysed(codes=found)])
    assert growth.tasks["archive, without heads"] == (2,)
    assert growth.tasks["+ raw masks"] == (1, 2)


def test_reuse_is_a_part_of_all_weights_and_of_each_layer(analysed):
    (reuse,) = weight_reuse.measure([analysed()])
    assert reuse.sets == {
        "all used": (0.1, 0.15),
        "per task": (0.1, 0.1),
        "new per task": (0.1, 0.05),
        "reused per task": (0.0, 0.05),
        "reused for all tasks": (0.0, 0.05),
    }
    assert reuse.layers == ("one.weight", "two.weight")
    assert reuse.shares == {
        "used by all tasks": (0.05, 0.05),
        "by several": (0.0, 0.0),
        "by one task": (0.1, 0.1),
        "by none": (0.85, 0.85),
    }


def test_weights_that_several_of_many_tasks_use_stand_between_one_and_all(analysed):
    found = {**TICKETS, "uses": {"one.weight": [40, 20, 8, 8, 4], "two.weight": [20, 0, 0, 0, 0]}}
    (reuse,) = weight_reuse.measure([analysed(tickets=found)])
    assert [reuse.shares[kind][0] for kind in weight_reuse.SHARES] == [0.05, 0.2, 0.25, 0.5]


def test_reuse_is_a_mean_over_seeds_with_their_deviation(analysed):
    more = {**TICKETS["sets"], "all used": {"one.weight": [8, 16], "two.weight": [2, 3]}}
    (reuse,) = weight_reuse.measure([analysed(), analysed(seed=1, tickets={**TICKETS, "sets": more})])
    assert reuse.seeds == 2
    assert reuse.sets["all used"] == pytest.approx((0.1, 0.17))
    assert reuse.spread["all used"] == pytest.approx((0.0, 0.02 * ROOT_TWO))


def test_reuse_is_shown_at_the_capacity_nearest_to_ten_percent_beside_packnet(analysed):
    runs = [analysed(capacity=0.5), analysed(capacity=0.05), analysed("packnet")]
    assert [reuse.label for reuse in weight_reuse.measure(runs)] == ["WSN, c = 5 %", "PackNet"]


def test_an_ablation_is_a_mean_over_seeds_and_layers_lose_what_their_tickets_had(analysed):
    other = {**REUSE, "variants": {**REUSE["variants"], "ticket": [0.9, 0.9, 0.9]}}
    ablation = reuse_ablation.measure([analysed(), analysed(seed=1, reuse=other)])
    assert ablation.accuracy["ticket"] == pytest.approx((0.9, 0.85, 0.8))
    assert ablation.deviation["ticket"] == pytest.approx((0.0, 0.05 * ROOT_TWO, 0.1 * ROOT_TWO))
    assert ablation.accuracy["without reused"] == (None, pytest.approx(0.3), pytest.approx(0.2))
    assert ablation.lost == pytest.approx(((0.25 + 0.2) / 2, (0.05 + 0.3) / 2))
    assert ablation.spread == pytest.approx((0.025 * ROOT_TWO, 0.125 * ROOT_TWO))
    assert ablation.as_recorded


def test_an_ablation_says_when_tickets_did_not_answer_as_recorded(analysed):
    right = reuse_ablation.words(reuse_ablation.measure([analysed()]))
    wrong = reuse_ablation.words(reuse_ablation.measure([analysed(reuse={**REUSE, "as_recorded": False})]))
    assert "record" not in right
    assert wrong.startswith(right)
    assert "record" in wrong


def test_an_ablation_names_the_layer_that_costs_most(analysed):
    text = reuse_ablation.words(reuse_ablation.measure([analysed()]))
    assert "layer one costs most, 15.0 points" in text
    assert "100 test images" in text


def test_correlation_is_a_mean_over_seeds(analysed):
    other = {**TICKETS, "correlation": [[1.0, 0.6], [0.6, 1.0]], "agreement": [[1.0, 0.7], [0.7, 1.0]]}
    (alike,) = mask_correlation.measure([analysed(), analysed(seed=1, tickets=other)])
    assert alike.correlation == ((1.0, 0.5), (0.5, 1.0))
    assert alike.agreement == pytest.approx(0.6)
    assert alike.density == pytest.approx(0.1)


def test_a_correlation_that_a_seed_does_not_have_is_left_blank(analysed):
    other = {**TICKETS, "correlation": [[None, None], [None, 1.0]]}
    (alike,) = mask_correlation.measure([analysed(), analysed(seed=1, tickets=other)])
    assert alike.correlation == ((None, None), (None, 1.0))
    assert "not defined" in mask_correlation.words((alike,))


def test_correlation_has_a_panel_for_each_method_with_masks_and_each_capacity(analysed):
    runs = [analysed(capacity=0.3), analysed(), analysed("packnet"), analysed("finetune"), analysed("supsup")]
    labels = [alike.label for alike in mask_correlation.measure(runs)]
    assert sorted(labels) == ["PackNet", "SupSup", "WSN, c = 10 %", "WSN, c = 30 %"]


@pytest.mark.parametrize("name", NAMES)
def test_noise_behind_the_masks_is_not_another_setting(analysed, name):
    runs = [analysed(), analysed(as_method="softnet")]
    assert FIGURES[name].measure(runs) == FIGURES[name].measure(runs[:1])


@pytest.mark.parametrize("name", NAMES)
def test_without_wsn_the_run_to_make_is_named(analysed, name):
    with pytest.raises(Missing, match="forgetfree run til/digits_permuted --method wsn --scale cpu"):
        FIGURES[name].measure([analysed("finetune")])


@pytest.mark.parametrize(("name", "analysis"), NAMES.items())
def test_without_its_analysis_the_command_is_named(seen, name, analysis):
    with pytest.raises(Missing, match=f"{analysis}.*forgetfree analyse"):
        FIGURES[name].measure([seen()])


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_drawn_the_same_again_and_said_in_words(analysed, name):
    figure = FIGURES[name]
    arrays = figure.measure([analysed(), analysed(seed=1), analysed("packnet"), analysed(capacity=0.5)])
    with rc_context(STYLE):
        pictures = [as_svg(figure.draw(arrays)) for _ in range(2)]
        assert as_png(figure.draw(arrays)).startswith(b"\x89PNG")
    assert pictures[0] == pictures[1]
    assert "WSN, c = 10 %" in pictures[0]
    assert "%" in figure.words(arrays)


def test_many_tasks_and_layers_can_be_drawn(analysed):
    layers = {f"block.{number}.weight": 10 for number in range(20)}
    tasks = [f"task {t}" for t in range(20)]
    square = [[1.0 if i == j else 0.2 for j in range(20)] for i in range(20)]
    found = {
        "tasks": tasks,
        "weights": layers,
        "sets": {kind: {layer: [5] * 20 for layer in layers} for kind in TICKETS["sets"]},
        "uses": {layer: [5, *[0] * 19, 5] for layer in layers},
        "agreement": square,
        "correlation": square,
    }
    for figure in (weight_reuse, mask_correlation):
        with rc_context(STYLE):
            assert as_png(figure.draw(figure.measure([analysed(tickets=found)])))
