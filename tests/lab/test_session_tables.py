"""Tables of few-shot sessions: the paper's numbers complete, ours beside them, blanks where nothing was measured."""

import csv
import io
import json
import re
import statistics
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from forgetfree.errors import InputError
from forgetfree.lab import cli
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.lab.records import Record, RunFolder
from forgetfree.lab.report.contents import laid_out
from forgetfree.lab.report.published import published_sessions, session_methods
from forgetfree.lab.report.session_ends import session_ends
from forgetfree.lab.report.session_tables import STREAMS, session_table
from forgetfree.lab.report.tables import as_json, as_markdown, as_tables, rows
from forgetfree.lab.report.typesetting import as_csv, as_latex, as_terminal
from forgetfree.lab.report.typesetting import as_markdown as set_in_markdown

PRINTED = {
    "4": ("fscil_cifar100", "random"),
    "5": ("fscil_mini_imagenet", "random"),
    "7": ("fscil_cifar100", "topic"),
    "8": ("fscil_mini_imagenet", "topic"),
    "9": ("fscil_cub200", "topic"),
}
ENDED = [[0.9, None, None], [0.8, 0.5, None], [0.7, 0.4, 0.3]]
"""With 60, 20 and 20 test images, overall: 0.9; (48 + 10) / 80 = 0.725; (42 + 8 + 6) / 100 = 0.56."""
UPPER = [[0.9, None, None], [0.9, 0.5, None], [0.8, 0.6, 0.4]]
"""Overall at the end: (48 + 12 + 8) / 100 = 0.68."""
SPENT = {"learning": [1.0, 1.0], "testing": [1.0, 1.0]}


@pytest.fixture
def store(tmp_path):
    """Write down a finished run of three few-shot sessions."""

    def write(
        method="softnet", seed=0, *, benchmark="fscil_cifar100", split="topic", draw=0, scale="paper", capacity=0.5,
        accuracy=ENDED, overrides=None, backbone=None, settings=None, notes=None, selections=None, cost=None,
        exemplars=None, later=None, folder=None, epochs=5,
    ):  # fmt: skip
        name = benchmark.removeprefix("fscil_")
        plan = {
            "run": {"experiment": f"fscil/{name}", "method": method, "scale": scale, "seed": seed, "threads": 1},
            "overrides": overrides or {},
            "benchmark": {"name": benchmark, "tasks": 3, "draw": draw, "limit": "none", **(settings or {})},
            "backbone": backbone or {"name": "resnet18", "stem": "cifar", "init": "none"},
            "method": {
                **({"capacity": capacity} if method in ("softnet", "hardnet") else {}),
                **({} if exemplars is None else {"exemplars": exemplars}),
            },
            "recipe": {"epochs": epochs, "batch_size": 128},
            "protocol": {},
            **({"session": later} if later else {}),
        }
        if split:
            plan["benchmark"]["split"] = split
        spent = {"formula": 0.6, "density": 0.5, "weights": 600, "mask_bits": 0, "own": 0, "heads": 0, **(cost or {})}
        record = Record(
            tasks=["s 1", "s 2", "s 3"], accuracy=accuracy, footprints=[spent], notes=notes or {},
            selections=selections or {}, sessions={"tested": [60, 20, 20], "classes": [6, 2, 2]},
            seconds={"learning": [3600.0, 900.0, 900.0], "testing": [9.0]},
        )  # fmt: skip
        words = [
            benchmark,
            method,
            scale,
            capacity,
            split,
            draw,
            seed,
            json.dumps(overrides),
            len(list(tmp_path.iterdir())),
        ]
        made = RunFolder(tmp_path / (folder or "-".join(map(str, words)).replace("/", "_")))
        made.start(plan, {})
        made.save(record)
        return made

    return write


def line(table, method, source):
    (found,) = [line for line in table.lines if line.method == method and line.source == source]
    return found


def texts(table, method, source="ours, scale paper"):
    (block,) = table.blocks
    found = line(table, method, source)
    return {column: cell.text for column in table.headings if (cell := found.cell(block, column))}


# what the paper prints


@pytest.mark.parametrize(("name", "place"), PRINTED.items())
def test_every_published_row_has_a_number_for_every_session(name, place):
    table = published_sessions(*place)
    assert table.name == name
    sessions = 11 if name == "9" else 9
    assert table.columns == (*(f"session_{t + 1}" for t in range(sessions)), "gap")
    for row in table.rows:
        assert row.method in session_methods()
        assert row.mark == "" or row.mark in table.marks
        (cells,) = row.cells.values()
        assert tuple(cells) == table.columns
        assert all(re.fullmatch(r"\d\d\.\d\d", cells[column].text) for column in table.columns[:-1])
        assert re.fullmatch(r"-" if row.method == "crt" else r"[+-]\d+\.\d\d", cells["gap"].text)
    used = {n for row in table.rows for n in row.slips} | {
        n for row in table.rows for block in row.cells.values() for cell in block.values() for n in cell.slips
    }
    assert used == set(range(1, len(table.slips) + 1)), "a slip that nothing has"
    assert set(table.marks) == {row.mark for row in table.rows} - {""}, "a mark that no row has"


@pytest.mark.parametrize(("name", "place"), PRINTED.items())
def test_every_gap_is_the_difference_with_crt_or_a_known_slip(name, place):
    table = published_sessions(*place)
    *_, last, _ = table.columns
    ends = [(row, block[last].mean, block["gap"]) for row in table.rows for block in row.cells.values()]
    ((_, upper, _),) = [entry for entry in ends if entry[0].method == "crt"]
    wrong = {
        (row.method, row.mark): round(end - upper, 2)
        for row, end, gap in ends
        if gap.mean is not None and round(end - upper, 2) != gap.mean
    }
    expected = {
        "4": {("fsll", "*"): -3.06},
        "5": {("fsll", "*"): -1.98},
        "7": {},
        "8": {("f2m", ""): -0.47},
        "9": {("topic", ""): -33.02, ("fsll", ""): -5.09, ("alice", ""): 0.8},
    }
    assert wrong == expected[name]
    for row, end, gap in ends:
        assert bool(gap.slips) == ((row.method, row.mark) in wrong)
        for number in gap.slips:
            assert f"{end - upper:+.2f}" in table.slips[number - 1]


def test_the_tables_have_the_rows_of_the_paper():
    found = {
        name: [(row.method, row.capacity) for row in published_sessions(*place).rows] for name, place in PRINTED.items()
    }
    ours = {name: [entry for entry in rows_ if entry[1] is not None] for name, rows_ in found.items()}
    both = {"4": ([50, 80, 99], [50, 80, 99]), "5": ([50, 80, 90], [50, 80, 90, 97]), "7": ([50, 80], [50, 80])}
    both |= {"8": ([80, 87, 90], [80, 87, 90]), "9": ([88, 90, 93], [88, 90, 93])}
    for name, (hard, soft) in both.items():
        assert ours[name] == [*(("hardnet", c / 100) for c in hard), *(("softnet", c / 100) for c in soft)]
    others = {name: [method for method, c in rows_ if c is None] for name, rows_ in found.items()}
    first, second = ["icarl", "rebalance", "fsll"], ["icarl", "rebalance", "topic"]
    assert others["4"] == ["crt", *first, *second, "f2m", "fsll"]
    assert others["5"] == ["crt", *first, *second, "idlvq_c", "f2m", "fsll"]
    recent = ["limit", "meta_fscil", "alice"]
    assert others["7"] == ["crt", "topic", "cec", "f2m", *recent, "entropy_reg", "c_fscil", "fsll"]
    assert others["8"] == [
        "crt", "topic", "idlvq_c", "cec", "f2m", *recent, "c_fscil", "entropy_reg", "subspace_reg", "fsll",
    ]  # fmt: skip
    assert others["9"] == ["crt", "topic", "sppr", "cec", "f2m", *recent, "entropy_reg", "fsll"]
    assert {stream.benchmark for stream in STREAMS.values()} <= set(BENCHMARKS)


def test_rows_that_are_printed_in_two_tables_and_accuracies_that_rise_are_known():
    tables = {name: published_sessions(*place) for name, place in PRINTED.items()}
    first: dict[tuple[str, ...], tuple[str, object]] = {}
    for name, table in tables.items():
        for row in table.rows:
            (cells,) = row.cells.values()
            numbers = [cells[column] for column in table.columns[:-1]]
            text = tuple(cell.text for cell in numbers)
            if text in first:
                assert row.slips or first[text][1].slips, f"{row.method}: Tables {first[text][0]} and {name} agree"
            first[text] = (name, row)
            for t in range(1, len(numbers)):
                rises = numbers[t].mean > numbers[t - 1].mean
                assert not rises or numbers[t - 1].slips or (row.method, name) == ("alice", "9"), (name, row.method, t)
            assert len(set(text)) == len(text) or any(cell.slips for cell in numbers)


def test_stars_and_slips_stand_where_the_paper_and_the_facts_have_them():
    found = {(row.method, row.capacity, row.mark): row for row in published_sessions("fscil_cifar100", "random").rows}
    assert {"*", "_"} == set(published_sessions("fscil_cifar100", "random").marks)
    assert ("icarl", None, "*") in found
    assert ("icarl", None, "") in found
    assert ("hardnet", 0.5, "_") in found
    assert found["fsll", None, "*"].slips == ()
    assert len(found["fsll", None, ""].slips) == 1
    birds = published_sessions("fscil_cub200", "topic")
    cells = {row.capacity: row.cells["fscil_cub200"] for row in birds.rows if row.method == "softnet"}
    (number,) = cells[0.93]["session_4"].slips
    assert "the number of session 6" in birds.slips[number - 1]
    assert cells[0.93]["session_4"].text == cells[0.93]["session_6"].text == "62.27"
    assert cells[0.9]["session_4"].slips == ()
    assert {row.mark for row in birds.rows if row.method == "crt"} == {"*"}


def test_the_paper_has_no_random_split_of_birds_and_no_characters():
    assert published_sessions("fscil_cub200", "random") is None
    assert published_sessions("fscil_omniglot", None) is None


# ours beside it


def test_sessions_gap_and_drop_are_computed_by_hand(store):
    table = session_table("cifar100", "topic", [store(), store("crt", accuracy=UPPER)])
    assert texts(table, "SoftNet, c = 50 %") == {
        "session_1": "90.00", "session_2": "72.50", "session_3": "56.00", "gap": "-12.00", "drop": "34.00",
    }  # fmt: skip
    assert texts(table, "cRT") == {"session_1": "90.00", "session_2": "80.00", "session_3": "68.00", "drop": "22.00"}
    printed = line(table, "SoftNet, c = 50 %", "published")
    assert printed.cell("fscil_cifar100", "gap").text == "+5.82"
    assert printed.cell("fscil_cifar100", "drop") is None
    assert printed.cell("fscil_cifar100", "session_9").text == "55.33"


def test_published_rows_and_ours_never_share_a_row(store):
    table = session_table("cifar100", "topic", [store(), store("hardnet", capacity=0.8), store("crt"), store("ncm")])
    shown = [(found.method, found.source) for found in table.lines]
    assert len(shown) == len(set(shown)) == 14 + 4
    ours = "ours, scale paper"
    wanted = [
        ("cRT", "published"), ("cRT", ours), ("NCM", ours), ("TOPIC", "published"), ("FSLL", "published"),
        ("HardNet, c = 50 %", "published"), ("HardNet, c = 80 %", "published"),
        ("HardNet, c = 80 %", ours), ("SoftNet, c = 50 %", "published"), ("SoftNet, c = 50 %", ours),
    ]  # fmt: skip
    assert [entry for entry in shown if entry in wanted] == wanted
    printed = {text for row in published_sessions("fscil_cifar100", "topic").rows for text in _numbers(row)}
    for found in table.lines:
        numbers = {cell.text for block in found.cells.values() for cell in block.values()}
        assert (numbers <= printed) == (found.source == "published")


def _numbers(row):
    return {cell.text for block in row.cells.values() for cell in block.values()}


def test_means_and_deviations_are_over_seeds_and_draws(store):
    better = [[0.9, None, None], [0.8, 0.5, None], [0.8, 0.4, 0.3]]  # 0.62 at the end
    folders = [
        store(seed=0, split="random"),
        store(seed=1, split="random", accuracy=better),
        store(seed=1, split="random", draw=4, overrides={"benchmark.draw": 4, "benchmark.split": "random"}),
    ]
    table = session_table("cifar100", None, folders)
    ends = [56.0, 62.0, 56.0]
    found = line(table, "SoftNet, c = 50 %", "ours, scale paper")
    cell = found.cell("fscil_cifar100", "session_3")
    assert cell.mean == pytest.approx(statistics.mean(ends))
    assert cell.deviation == pytest.approx(statistics.stdev(ends))
    assert found.seeds == {"fscil_cifar100": (0, 1)}
    (note,) = table.notes
    assert "seeds 0 1; draws 0 4;" in note
    with pytest.raises(InputError, match="same plan and seed"):
        session_table("cifar100", None, [*folders, store(seed=1, split="random")])


def test_what_was_not_measured_stays_blank(store):
    rare = [[0.9, None, None], [None, None, None], [0.7, 0.4, 0.3]]
    table = session_table("cifar100", None, [store(accuracy=rare), store("ncm", accuracy=ENDED)])
    assert texts(table, "SoftNet, c = 50 %") == {"session_1": "90.00", "session_3": "56.00", "drop": "34.00"}
    page = next(row for row in set_in_markdown(table).splitlines() if row.startswith("| NCM |"))
    cells = [cell.strip() for cell in page.strip("|").split("|")]
    assert cells == ["NCM", "ours, scale paper", "90.00", "72.50", "56.00", *[""] * 6, "", "34.00"]
    partly = [store(benchmark="fscil_digits", split=None, accuracy=[[0.9, None, None], [0.8, None, None], ENDED[-1]])]
    assert "session_2" not in texts(session_table("digits", None, partly), "SoftNet, c = 50 %"), "one of two parts"
    mixed = [store(seed=1, accuracy=rare, folder="a"), store(seed=2, folder="b")]
    assert "session_2" not in texts(session_table("cifar100", None, mixed), "SoftNet, c = 50 %")


def test_the_gap_is_blank_without_a_crt_of_ours_that_is_alike(store):
    def gap(*others):
        return texts(session_table("cifar100", None, [run, *others]), "SoftNet, c = 50 %").get("gap")

    run = store()
    small = {"name": "resnet20", "init": "none"}
    assert gap() is None
    assert gap(store("joint", accuracy=UPPER)) is None
    assert gap(store("crt", scale="cpu", accuracy=UPPER)) is None
    assert gap(store("crt", backbone=small, overrides={"backbone.name": "resnet20"}, accuracy=UPPER)) is None
    assert gap(store("crt", settings={"limit": 50}, overrides={"benchmark.limit": 50}, accuracy=UPPER)) is None
    two = store("crt", accuracy=UPPER), store("crt", overrides={"recipe.lr": 0.1}, accuracy=UPPER)
    assert gap(*two) is None, "which of the two would it be?"
    assert gap(two[0]) == "-12.00"
    others = [store("crt", seed=seed, accuracy=end) for seed, end in ((5, UPPER), (6, ENDED))]
    assert gap(*others) == "-6.00", "the mean of all seeds"


def test_streams_that_the_paper_does_not_have_are_tables_of_our_rows_only(store):
    for name in ("omniglot", "digits"):
        table = session_table(name, None, [store(benchmark=f"fscil_{name}", split=None), store()])
        assert [found.source for found in table.lines] == ["ours, scale paper"]
        assert table.name == name
        assert table.file == f"table-{name}"
        assert "the paper has no such table" in table.caption
        assert list(table.columns(f"fscil_{name}")) == ["session_1", "session_2", "session_3", "drop"]
        assert "3 sessions" in table.notes[0]
    birds = session_table("cub200", None, [store(benchmark="fscil_cub200")])
    assert 'a row of ours "from scratch" cannot be compared' in birds.caption
    birds = session_table("cub200", None, [store(benchmark="fscil_cub200", split="random")])
    assert [found.source for found in birds.lines] == ["ours, scale paper"]
    assert birds.title == "Few-shot CUB-200-2011, classes and shots drawn"


def test_the_split_is_asked_for_or_that_of_the_runs_or_topics(store):
    topic, drawn = store(), store(split="random", accuracy=UPPER)
    assert session_table("cifar100", None, [topic]).name == "7"
    assert session_table("cifar100", None, [drawn]).name == "4"
    both = session_table("cifar100", None, [drawn, topic])
    assert (both.name, both.file) == ("7", "table-cifar100-topic")
    assert texts(both, "SoftNet, c = 50 %")["session_3"] == "56.00", "only runs of the split"
    assert texts(session_table("cifar100", "random", [drawn, topic]), "SoftNet, c = 50 %")["session_3"] == "68.00"
    with pytest.raises(InputError, match="these runs of fscil_cifar100 are of the split topic, not of random"):
        session_table("cifar100", "random", [topic])
    with pytest.raises(InputError, match=r"no split 'drawn'. There are: topic, drawn_shots, random"):
        session_table("cifar100", "drawn", [topic])
    with pytest.raises(
        InputError, match="table mini_imagenet is of fscil_mini_imagenet; these runs are of fscil_cifar100"
    ):
        session_table("mini_imagenet", None, [topic])
    for name in ("omniglot", "sessions", "1", "transfer"):
        with pytest.raises(InputError, match=f"table {name} has no splits, so leave --split out"):
            laid_out(name, "topic", [topic])


def test_the_lines_below_say_how_our_rows_were_measured(store):
    selections = {
        "s 1": "epoch 7 of 10, the best by validation loss (0.25)",
        "s 2": "the last epoch (6): there was no validation set",
        "s 3": "the last epoch (6): there was no validation set",
    }
    folders = [
        store(
            selections=selections,
            exemplars=5,
            notes={"weights": "from scratch", "subset": "the first 50"},
            later={"epochs": 6},
        ),
        store(
            scale="cpu",
            exemplars=0,
            backbone={"name": "resnet18", "stem": "cifar", "init": "/some/where/net.safetensors"},
        ),
    ]
    table = session_table("cifar100", "topic", folders)
    assert list(table.notes) == [
        "CIFAR-100, TOPIC's split, ours, scale paper: SoftNet at c = 50 %: seeds 0; draws 0; only 3 of 9 sessions; "
        "epochs 5; batches of 128; epochs of later sessions 6; split topic; 5 exemplars a class; epoch "
        "kept after session 1: the best by validation loss; epoch kept after session 2, 3: the last epoch: there was "
        "no validation set; resnet18 (stem cifar); weights: from scratch; subset: the first 50.",
        "CIFAR-100, TOPIC's split, ours, scale cpu: SoftNet at c = 50 %: seeds 0; draws 0; only 3 of 9 sessions; "
        "epochs 5; batches of 128; split topic; no exemplars; resnet18 (stem cifar).",
    ]


def test_scales_overrides_and_other_experiments_are_rows_of_their_own(store):
    other = store(seed=1)
    plan = (other.path / "run.toml").read_text().replace("fscil/cifar100", "fscil/mine")
    (other.path / "run.toml").write_text(plan)
    folders = [store(), store(scale="cpu"), store(overrides={"recipe.lr": 0.1, "capacity": 0.5}), other]
    sources = [
        found.source for found in session_table("cifar100", None, folders).lines if found.method == "SoftNet, c = 50 %"
    ]
    assert sorted(sources) == [
        "ours, fscil/mine, scale paper", "ours, scale cpu", "ours, scale paper", "ours, scale paper, recipe.lr=0.1",
        "published",
    ]  # fmt: skip


# on paper and on screens


def test_marks_and_slips_of_rows_and_cells_are_flagged_in_every_form(store):
    table = session_table("cifar100", None, [store(split="random")])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*as_terminal(table), sep="\n")
    screen, page, set_ = console.export_text(), set_in_markdown(table), as_latex(table)
    wrong, same = 1, 2
    assert table.slips[wrong - 1] == "42.22 - 45.28 is -3.06"
    for text in (screen, page):
        assert f"-3.08 ?{wrong}" in text
        assert f"TOPIC ?{same}" in text
        assert "iCaRL *" in text
        assert f"?{same} the same row is printed in Table 7" in text
        assert "Table 4" in text
    assert "* reported by Shi et al." in screen
    assert r"FSLL$^\ast$ & published" in set_
    assert rf"TOPIC$^{{?{same}}}$ & published" in set_
    assert rf"$-3.08$$^{{?{wrong}}}$" in set_
    found = list(csv.DictReader(io.StringIO(as_csv(table))))
    (starred,) = [row for row in found if row["method"] == "FSLL" and row["marks"]]
    assert (starred["marks"], starred["slips"]) == ("row *", "gap: 42.22 - 45.28 is -3.06")
    (topic,) = [row for row in found if row["method"] == "TOPIC"]
    assert topic["slips"].startswith("row: the same row")
    assert (topic["table"], topic["session_9"], topic["drop"]) == ("4", "29.37", "")


def test_every_row_of_markdown_and_latex_has_as_many_cells(store):
    table = session_table("cub200", None, [store(benchmark="fscil_cub200"), store("crt", benchmark="fscil_cub200")])
    lines = [row for row in set_in_markdown(table).splitlines() if row.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in lines} == {2 + 11 + 2 + 1}
    assert lines[0].startswith("| method | source | after 1 |")
    body = as_latex(table).split(r"\begin{tabular}")[1].split(r"\end{tabular}")[0]
    rows_ = [row for row in body.splitlines() if row.endswith(r"\\") and "multicolumn" not in row]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows_} == {2 + 11 + 2 - 1}


# where they end, and the plain report


def test_where_runs_end_is_told_for_all_base_and_novel_classes_with_what_it_cost(store):
    paid = {"written": 0.4, "training": 300, "weights": 600}
    table = session_ends([store(cost=paid, exemplars=5), store("hardnet", benchmark="fscil_omniglot", split=None)])
    assert table.blocks == {"fscil_cifar100 topic": "CIFAR-100, TOPIC's split", "fscil_omniglot": "Omniglot"}
    soft = line(table, "SoftNet, c = 50 %", "ours, scale paper").cells["fscil_cifar100 topic"]
    assert {column: cell.text for column, cell in soft.items()} == {
        "overall": "56.00", "base": "70.00", "novel": "35.00", "harmonic": "46.67", "drop": "34.00", "exemplars": "5",
        "cap": "60.00", "cap_written": "40.00", "to_learn": "30.00", "time": "1.5000",
    }  # fmt: skip
    hard = line(table, "HardNet, c = 50 %", "ours, scale paper")
    assert list(hard.cells) == ["fscil_omniglot"]
    assert hard.cell("fscil_omniglot", "exemplars") is None
    assert hard.cell("fscil_omniglot", "cap_written") is None
    assert table.columns("fscil_omniglot") == ["overall", "base", "novel", "harmonic", "drop", "cap", "time"]
    page = set_in_markdown(table)
    assert page.startswith("CIFAR-100, TOPIC's split\n\n| method | source | overall |")
    assert "\n\nOmniglot\n\n| method |" in page
    assert "| HardNet, c = 50 % | ours, scale paper | 56.00 | 70.00 | 35.00 | 46.67 |" in page
    assert len([row for row in page.splitlines() if "ours, scale paper |" in row]) == 2, "a row where it was run"
    assert as_latex(table).count(r"\begin{tabular}") == 2
    assert [row["benchmark"] for row in csv.DictReader(io.StringIO(as_csv(table)))] == list(table.blocks)
    assert len(table.notes) == 2


@pytest.fixture
def by_name(tmp_path):
    """A finished task-incremental run."""
    plan = {
        "run": {"experiment": "til/digits_split", "method": "wsn", "scale": "paper", "seed": 0, "threads": 1},
        "benchmark": {"name": "digits_split"}, "backbone": {"name": "mlp"}, "method": {"capacity": 0.5},
        "recipe": {"epochs": 1, "batch_size": 10}, "protocol": {},
    }  # fmt: skip
    cost = {"formula": 0.6, "density": 0.5, "weights": 600, "mask_bits": 0, "own": 0, "heads": 0}
    made = RunFolder(tmp_path / "by-name")
    made.start(plan, {})
    accuracy = [[0.9, None], [0.8, 0.7]]
    made.save(Record(tasks=["a", "b"], accuracy=accuracy, footprints=[cost], seconds=SPENT))
    return made


def test_the_plain_report_keeps_both_kinds_apart_and_leaves_backward_transfer_of_sessions_blank(store, by_name):
    found = rows([store(), by_name, store("ncm")])
    assert [(row.experiment, row.method) for row in found] == [
        ("til/digits_split", "wsn"), ("fscil/cifar100", "softnet"), ("fscil/cifar100", "ncm"),
    ]  # fmt: skip
    assert [row.acc for row in found] == pytest.approx([0.75, 0.56, 0.56])
    assert [row.sessions for row in found] == [None, 3, 3]
    assert found[0].bwt == pytest.approx(-0.1)
    assert [row.bwt for row in found[1:]] == [None, None]
    tasks, sessions = as_tables(found, 200)
    assert "ACC: mean accuracy of all tasks at the end" in tasks.caption
    assert "BWT: " in tasks.caption
    assert "ACC: accuracy on the test images of all classes after the last session" in sessions.caption
    assert "BWT" not in sessions.caption
    assert "BWT" not in as_markdown(found[1:])
    assert json.loads(as_json(found))[1]["bwt"] is None


def test_where_runs_end_needs_few_shot_runs(by_name):
    with pytest.raises(InputError, match="none of these runs is of few-shot sessions; they are of digits_split"):
        session_ends([by_name])
    with pytest.raises(InputError, match="table digits is of fscil_digits; these runs are of digits_split"):
        session_table("digits", None, [by_name])


# the command line


@pytest.fixture
def report(monkeypatch):
    monkeypatch.setattr(cli.console, "_width", 200)
    monkeypatch.setattr(cli.errors, "_width", 200)

    def invoke(*words, code=0):
        result = CliRunner().invoke(cli.app, ["report", *map(str, words)])
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    return invoke


def test_the_command_writes_the_tables_of_sessions(report, store, by_name, tmp_path):
    store(), store("crt", accuracy=UPPER), store(benchmark="fscil_omniglot", split=None)
    to = tmp_path / "to"
    text = report(tmp_path, "--table", "cifar100", "--split", "topic", "--to", to)
    assert "Table 7: CIFAR-100, TOPIC's split" in text
    assert "ours, scale paper" in text
    assert "Table omniglot: Omniglot" in report(tmp_path, "--table", "omniglot", "--to", to)
    assert "harmonic" in report(tmp_path, "--table", "sessions", "--to", to)
    assert "fscil/cifar100" in report(tmp_path, "--to", to)
    stems = ["report", "table-cifar100-topic", "table-omniglot", "table-sessions"]
    assert sorted({file.stem for file in to.iterdir()}) == stems
    assert {file.suffix for file in to.glob("table-sessions.*")} == {".csv", ".md", ".tex"}


def test_the_command_refuses_in_one_sentence(report, store, tmp_path):
    store()
    assert "table omniglot has no splits" in report(tmp_path, "--table", "omniglot", "--split", "topic", code=2)
    assert "the report without --table has no splits" in report(tmp_path, "--split", "topic", code=2)
    assert "are of the split topic, not of random" in report(
        tmp_path, "--table", "cifar100", "--split", "random", code=2
    )
    assert "There are: 1, 2, 3, transfer, cifar100, mini_imagenet, cub200, omniglot, digits, sessions" in report(
        tmp_path, "--table", "birds", code=2
    )
    assert not list(Path(tmp_path).glob("table-*"))
