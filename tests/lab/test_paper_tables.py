"""The paper's tables: its numbers complete, ours beside them, blanks where nothing was run, nothing unlabelled."""

import csv
import io
import re
import statistics

import pytest
from rich.console import Console

from forgetfree.errors import InputError
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.lab.records import Record, RunFolder, find_runs
from forgetfree.lab.report import transfers
from forgetfree.lab.report.columns import TABLES
from forgetfree.lab.report.contents import laid_out
from forgetfree.lab.report.escapes import latex
from forgetfree.lab.report.paper_tables import paper_table
from forgetfree.lab.report.published import methods, published, rules
from forgetfree.lab.report.tables import as_csv as plain_csv
from forgetfree.lab.report.tables import as_markdown as plain_markdown
from forgetfree.lab.report.tables import as_tables, rows
from forgetfree.lab.report.typesetting import as_csv, as_latex, as_markdown, as_terminal
from forgetfree.methods import METHODS

DENSE = 1000
PACKNET = {
    "permuted_mnist": 0.1,
    "five_datasets": 0.2,
    "omniglot_rotation": 0.02,
    "cifar100_split": 0.1,
    "cifar100_superclass": 0.05,
    "tiny_imagenet": 0.025,
}
"""The part of the free weights that PackNet keeps for a task: 1/T, or as the paper prints it."""


@pytest.fixture
def store(tmp_path):
    """Write down a finished run of two tasks."""

    def write(
        method="wsn", seed=0, *, benchmark="permuted_mnist", scale="paper", acc=(0.9, 0.8), first=0.9, weights=500,
        bits=2000, overrides=None, settings=None, noise=0.0, capacity=0.05, transfer=None, notes=None, training=None,
        written=None, seconds=(1800.0, 1800.0), epochs=5, tasks=2, folder=None,
    ):  # fmt: skip
        plan = {
            "run": {"experiment": f"til/{benchmark}", "method": method, "scale": scale, "seed": seed, "threads": 1},
            "overrides": overrides or {},
            "benchmark": {"name": benchmark, "tasks": tasks, **(settings or {})},
            "backbone": {"name": "mlp", "hidden": [100, 100], "bias": False},
            "method": {"background_noise": noise, **({"capacity": capacity} if method == "wsn" else {})},
            "recipe": {"epochs": epochs, "batch_size": 10},
            "protocol": {},
        }
        cost = {
            "formula": weights / DENSE + 0.22 * bits / (32 * DENSE), "density": min(1.0, weights / DENSE),
            "weights": weights, "mask_bits": bits, "own": 0, "heads": 0, "written": written,
            "written_without_heads": written,
            **({} if training is None else {"training": training}),
        }  # fmt: skip
        record = Record(
            tasks=["a", "b"], accuracy=[[first, None], list(acc)], footprints=[cost], notes=notes or {},
            transfer=transfer or {}, seconds={"learning": list(seconds), "testing": [1.0, 1.0]},
        )  # fmt: skip
        made = RunFolder(tmp_path / (folder or f"{benchmark}-{method}-{scale}-{capacity}-{overrides}-{seed}"))
        made.start(plan, {})
        made.save(record)
        return made

    return write


def line(table, method, source):
    (found,) = [line for line in table.lines if line.method == method and line.source == source]
    return found


# what the paper prints


@pytest.mark.parametrize("name", TABLES)
def test_every_published_row_has_every_cell_or_says_that_it_is_not_printed(name):
    table = published(name)
    assert {row.method for row in table.rows} <= set(methods())
    for row in table.rows:
        assert list(row.cells) == list(table.benchmarks)
        for block in row.cells.values():
            assert tuple(block) == table.columns
            for cell in block.values():
                assert (cell.mean is None) == (cell.text == "-")
                assert cell.mark == "" or cell.mark in table.marks
    assert set(table.columns) <= set(TABLES[name])


def test_the_tables_have_the_rows_of_the_paper():
    capacities = [0.03, 0.05, 0.1, 0.3, 0.5, 0.7]
    rows_of = {name: [(row.method, row.capacity) for row in published(name).rows] for name in TABLES}
    both = [(method, c) for method in ("wsn", "softnet") for c in capacities]
    alone = {
        "1": ["single_task", "finetune", "ewc", "hat", "gpm", "packnet", "supsup"],
        "2": ["la_maml", "gpm", "fs_dgpm", "packnet", "supsup"],
    }
    for name, others in alone.items():
        assert rows_of[name] == [*((method, None) for method in others), *both, ("multitask", None)]
    assert rows_of["3"] == [("packnet", None), ("supsup", None), ("wsn", None)]
    assert {"wsn", "finetune", "single_task", "multitask"} <= set(METHODS) & set(methods())
    assert {key for name in TABLES for key in published(name).benchmarks} <= set(BENCHMARKS)


@pytest.mark.parametrize("name", TABLES)
def test_packnet_is_charged_by_a_closed_formula_with_raw_mask_bits(name):
    table = published(name)
    (packnet,) = [row for row in table.rows if row.method == "packnet"]
    for benchmark, target in table.benchmarks.items():
        kept, tasks = PACKNET[benchmark], target.tasks
        expected = 100 * (1 - (1 - kept) ** tasks + tasks / 32)
        assert packnet.cells[benchmark]["cap"].mean == pytest.approx(expected, abs=0.05)
    assert methods()["packnet"].charged == "raw"


@pytest.mark.parametrize("name", ["1", "2"])
def test_wsn_takes_more_room_with_more_capacity_and_softnet_the_same_apart_from_a_known_slip(name):
    table = published(name)
    for benchmark in table.benchmarks:
        taken = {
            method: [row.cells[benchmark]["cap"].mean for row in table.rows if row.method == method]
            for method in ("wsn", "softnet")
        }
        assert taken["wsn"] == sorted(taken["wsn"])
        differ = [n for n, (hard, soft) in enumerate(zip(*taken.values(), strict=True)) if hard != soft]
        assert differ == ([5] if benchmark == "permuted_mnist" else [])
    assert all(cell["bwt"].mean == 0 for row in table.rows if row.method == "wsn" for cell in row.cells.values())


def test_what_is_printed_twice_agrees_apart_from_the_known_slips():
    main = {
        (row.method, benchmark): [r.cells[benchmark] for r in published(name).rows if r.method == row.method]
        for name in ("1", "2")
        for row in published(name).rows
        for benchmark in published(name).benchmarks
    }
    for row in published("3").rows:
        for benchmark, block in row.cells.items():
            (same,) = [cells for cells in main[row.method, benchmark] if cells["cap"].mean == block["cap"].mean]
            for column in ("acc", "cap"):
                twice = same[column], block[column]
                agree = twice[0].mean == twice[1].mean and (
                    twice[0].deviation is None or abs(twice[0].deviation - twice[1].deviation) <= 0.0501
                )
                assert agree or any(cell.slips for cell in twice), (row.method, benchmark, column)


def test_fractions_of_table_1_become_percent_with_the_digits_of_the_paper():
    (finetune,) = [row for row in published("1").rows if row.method == "finetune"]
    cell = finetune.cells["permuted_mnist"]["bwt"]
    assert (cell.mean, cell.deviation, cell.text) == (-21, 1, "-21 ± 1")


def test_marks_and_slips_stand_where_the_paper_and_the_facts_have_them():
    cells = {(row.method, row.capacity): row.cells for row in published("1").rows}
    assert cells["ewc", None]["five_datasets"]["acc"].mark == "†"
    assert cells["single_task", None]["omniglot_rotation"]["acc"].mark == "*"
    assert cells["gpm", None]["five_datasets"]["cap"].mark == ""
    slips = published("1").slips
    (wrong,) = cells["softnet", 0.7]["permuted_mnist"]["cap"].slips
    assert "102.56" in slips[wrong - 1]
    assert cells["softnet", 0.5]["permuted_mnist"]["cap"].slips == ()
    assert cells["wsn", 0.7]["permuted_mnist"]["cap"].slips == ()
    assert len(cells["softnet", 0.3]["permuted_mnist"]["fwt"].slips) == 2
    for name in TABLES:
        table = published(name)
        used = {n for row in table.rows for block in row.cells.values() for cell in block.values() for n in cell.slips}
        assert used == set(range(1, len(table.slips) + 1)), "a slip that no cell has"


def test_every_method_has_a_rule_of_capacity():
    assert {method.charged for method in methods().values()} == set(rules())


# ours beside it


def test_ours_and_published_are_rows_of_their_own_in_the_order_of_the_paper(store):
    folders = [store("wsn", capacity=0.05), store("multitask"), store("wsn", capacity=0.03), store("finetune")]
    table = paper_table("1", folders)
    assert list(table.blocks.values()) == ["Permuted MNIST", "5 Datasets", "Omniglot Rotation"]
    shown = [(line.method, line.source) for line in table.lines]
    ours = "ours, scale paper"
    wanted = [
        ("STL", "published"), ("fine-tuning", "published"), ("fine-tuning", ours), ("EWC", "published"),
        ("WSN, c = 3 %", "published"), ("WSN, c = 3 %", ours), ("WSN, c = 5 %", "published"), ("WSN, c = 5 %", ours),
        ("WSN, c = 10 %", "published"), ("SoftNet, c = 3 %", "published"), ("MTL", "published"), ("MTL", ours),
    ]  # fmt: skip
    assert [entry for entry in shown if entry in wanted] == wanted
    assert len(shown) == len(set(shown)) == 20 + 4


def test_means_and_deviations_are_over_seeds(store):
    accs = [(0.9, 0.8), (0.95, 0.85), (0.7, 0.9)]
    table = paper_table("1", [store(seed=seed, acc=acc, first=0.95) for seed, acc in enumerate(accs)])
    means = [100 * statistics.mean(acc) for acc in accs]
    found = line(table, "WSN, c = 5 %", "ours, scale paper")
    cell = found.cell("permuted_mnist", "acc")
    assert cell.mean == pytest.approx(statistics.mean(means))
    assert cell.deviation == pytest.approx(statistics.stdev(means))
    assert cell.text == f"{statistics.mean(means):.2f} ± {statistics.stdev(means):.2f}"
    assert found.cell("permuted_mnist", "bwt").mean == pytest.approx(100 * statistics.mean([-0.05, 0, -0.25]))
    assert found.seeds == {"permuted_mnist": (0, 1, 2)}


def test_one_seed_has_no_deviation_and_what_one_seed_lacks_is_blank(store):
    one = line(paper_table("1", [store()]), "WSN, c = 5 %", "ours, scale paper")
    assert one.cell("permuted_mnist", "acc").text == "85.00"
    two = line(paper_table("1", [store(), store(seed=1, written=0.4)]), "WSN, c = 5 %", "ours, scale paper")
    assert two.cell("permuted_mnist", "cap_written") is None


def test_what_was_not_run_is_blank_and_what_is_not_printed_is_a_dash(store):
    table = paper_table("1", [store("piggyback")])
    ours = line(table, "Piggyback", "ours, scale paper")
    assert ours.cell("omniglot_rotation", "acc") is None
    text = next(row for row in as_markdown(table).splitlines() if row.startswith("| Piggyback"))
    cells = [cell.strip() for cell in text.strip("|").split("|")]
    assert cells[2] == "85.00"
    assert cells[-1] == ""
    assert line(table, "HAT", "published").cell("permuted_mnist", "acc").text == "-"
    assert not [found for found in table.lines if found.method == "Piggyback" and found.source == "published"]


def test_capacity_is_told_by_one_code_by_the_file_and_by_the_papers_own_rule(store):
    folders = [
        store("packnet", weights=600, bits=2000, written=0.7),
        store("wsn", weights=600, bits=2000, written=0.65),
        store("single_task", weights=2000, bits=0),
        store("hat", weights=900, bits=0),
        store("mine", weights=600, bits=2000),
    ]
    table = paper_table("1", folders)
    got = {
        found.method: {key: cell.mean for key, cell in found.cells["permuted_mnist"].items() if key.startswith("cap")}
        for found in table.lines
        if found.source.startswith("ours")
    }
    one_code, raw = 60 + 100 * 0.22 * 2 / 32, 60 + 100 * 2 / 32
    assert got["PackNet"] == pytest.approx({"cap": raw, "cap_coded": one_code, "cap_written": 70})
    assert got["WSN, c = 5 %"] == pytest.approx({"cap": one_code, "cap_coded": one_code, "cap_written": 65})
    assert got["STL"] == pytest.approx({"cap": 200, "cap_coded": 200})
    assert got["HAT"] == pytest.approx({"cap": 100, "cap_coded": 90}), "the paper charges whole networks"
    assert got["mine"] == pytest.approx({"cap": raw, "cap_coded": one_code})
    assert "PackNet, SupSup, Piggyback: used weights, and one bit for every mask bit" in table.caption


NOISY = {
    "random": [0.1, 0.1],
    "guesses": [None, 0.15],
    "noisy_guesses": [None, 0.2],
    "matrix": {
        "untrained": [[0.9, 0.15], [0.1, 0.8]],
        "trained": [[0.9, 0.4], [0.1, 0.8]],
        "untrained, noisy": [[0.9, 0.2], [0.1, 0.8]],
        "trained, noisy": [[0.9, 0.5], [0.1, 0.8]],
    },
    "noisy_accuracy": [0.8, 0.7],
    "images": 50,
}


def test_a_run_with_background_noise_is_a_row_of_wsn_and_one_of_softnet(store):
    table = paper_table("1", [store(noise=0.001, transfer=NOISY)])
    hard, soft = (
        {
            key: cell.mean
            for key, cell in line(table, f"{name}, c = 5 %", "ours, scale paper").cells["permuted_mnist"].items()
        }
        for name in ("WSN", "SoftNet")
    )
    assert hard["acc"] == pytest.approx(85)
    assert soft["acc"] == pytest.approx(75)
    assert hard["fwt"] == pytest.approx(5)
    assert soft["fwt"] == pytest.approx(10)
    assert hard["fwt_own_head"] == pytest.approx(30)
    assert soft["fwt_own_head"] == pytest.approx(40)
    assert soft["cap"] == hard["cap"]
    assert hard["bwt"] == pytest.approx(0)
    assert "bwt" not in soft, "not measured with noise"
    assert "on 50 images a task" in table.notes[0]


def test_without_noise_there_is_no_softnet_row_and_old_records_have_no_transfer(store):
    quiet = {key: NOISY[key] for key in ("random", "guesses")}
    for transfer, fwt in ((quiet, 5), ({}, None)):
        table = paper_table("1", [store(transfer=transfer, folder=str(fwt))])
        assert not [found for found in table.lines if found.method.startswith("SoftNet") and "ours" in found.source]
        cell = line(table, "WSN, c = 5 %", "ours, scale paper").cell("permuted_mnist", "fwt")
        assert (None if cell is None else round(cell.mean, 6)) == fwt


def test_scales_and_overrides_are_rows_of_their_own_and_lines_below_say_what_they_are(store):
    folders = [
        store(),
        store(scale="cpu", epochs=1, settings={"limit": 600, "wide": True}, notes={"subset": "the first 600 images"}),
        store(overrides={"recipe.lr": 0.1, "capacity": 0.05}),
    ]
    table = paper_table("1", folders)
    sources = [found.source for found in table.lines if found.method == "WSN, c = 5 %"]
    assert sorted(sources) == ["ours, scale cpu", "ours, scale paper", "ours, scale paper, recipe.lr=0.1", "published"]
    (small,) = [note for note in table.notes if "scale cpu" in note]
    assert small == (
        "Permuted MNIST, ours, scale cpu: WSN at c = 5 %: seeds 0; only 2 of 10 tasks; epochs 1 instead of 5; "
        "batches of 10; mlp (hidden 100 100); benchmark with limit 600, wide; subset: the first 600 images."
    )
    for text in (as_markdown(table), as_csv(table), as_latex(table)):
        assert "ours, scale cpu" in text
        assert "only 2 of 10 tasks" in text or text == as_csv(table)


def test_an_experiment_of_another_name_is_not_mixed_with_the_usual_one(store):
    other = store(seed=1)
    plan = (other.path / "run.toml").read_text().replace("til/permuted_mnist", "til/mine")
    (other.path / "run.toml").write_text(plan)
    sources = {found.source for found in paper_table("1", [store(), other]).lines}
    assert {"ours, scale paper", "ours, til/mine, scale paper"} <= sources


def test_a_seed_counts_once(store):
    with pytest.raises(InputError, match="same plan and seed"):
        paper_table("1", [store(folder="one"), store(folder="two")])


def test_table_3_tells_hours_of_learning(store):
    table = paper_table("3", [store(benchmark="cifar100_split", seconds=(1800.0, 5400.0))])
    found = line(table, "WSN, c = 5 %", "ours, scale paper")
    assert found.cell("cifar100_split", "time").text == "2.0000"
    assert line(table, "WSN (best)", "published").cell("cifar100_split", "time").text == "0.71 ± 0.09"
    assert "fwt" not in table.headings
    assert "threads 1" in table.notes[0]
    assert "c = 30 % on Permuted MNIST" in table.caption


def test_wrong_names_and_runs_of_other_benchmarks_are_told(store):
    with pytest.raises(InputError, match=r"no table 'four'. There are: 1, 2, 3, transfer, cifar100"):
        laid_out("four", None, [store()])
    with pytest.raises(InputError, match=r"table 2 is of cifar100_split, .*; these runs are of permuted_mnist"):
        paper_table("2", [store(folder="other")])
    open_one = store(folder="open")
    (open_one.path / "record.json").unlink()
    with pytest.raises(InputError, match="none of these runs is finished"):
        paper_table("1", [open_one])


# on paper and on screens


def test_slips_and_marks_are_flagged_in_every_form(store):
    table = paper_table("1", [store()])
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(*as_terminal(table), sep="\n")
    screen, page = console.export_text(), as_markdown(table)
    number = published("1").slips.index("must be that of WSN with the same masks, which is printed as 102.56") + 1
    for text in (screen, page):
        assert f"99.21 ± 0.1 ?{number}" in text
        assert f"?{number} must be that of WSN" in text
        assert "88.64 ± 0.26 †" in text
        assert "† reported by Saha et al." in text
    assert rf"$99.21 \pm 0.1$$^{{?{number}}}$" in as_latex(table)
    assert r"$88.64 \pm 0.26$$^\dagger$" in as_latex(table)


def test_the_terminal_shows_every_column_even_where_it_is_narrow(store):
    table = paper_table("1", [store(noise=0.001, transfer=NOISY, written=0.5)])
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*as_terminal(table), sep="\n")
    text = console.export_text()
    assert "BWT" in text.split("STL")[0]
    assert "rule" in text.split("STL")[0]


def test_markdown_has_one_table_with_as_many_cells_in_every_row(store):
    text = as_markdown(paper_table("2", [store(benchmark="tiny_imagenet")]))
    lines = [row for row in text.splitlines() if row.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in lines}) == 1
    assert "TinyImageNet: CAP, one code" in lines[0]
    assert "CIFAR-100 Split: CAP, one code" not in lines[0], "nothing was run on it"


def test_csv_is_tidy_and_keeps_sources_apart(store):
    found = list(csv.DictReader(io.StringIO(as_csv(paper_table("1", [store(seed=3)])))))
    (ours,) = [row for row in found if row["source"] != "published"]
    assert (ours["benchmark"], ours["method"], ours["seeds"]) == ("permuted_mnist", "WSN, c = 5 %", "3")
    assert float(ours["acc"]) == pytest.approx(85)
    assert ours["acc_deviation"] == ""
    (slip,) = [row for row in found if row["method"] == "SoftNet, c = 70 %" and row["benchmark"] == "permuted_mnist"]
    assert float(slip["cap"]) == 99.21
    assert "cap: must be that of WSN" in slip["slips"]
    assert {row["marks"] for row in found if row["method"] == "EWC"} == {"", "acc †; cap †; bwt †", "acc *; cap *"}


def test_latex_is_escaped_and_balanced(store):
    assert latex("5 % & a_b ± #1 {x} $ ~ ^ \\ † *") == (
        r"5 \% \& a\_b $\pm$ \#1 \{x\} \$ \textasciitilde{} \textasciicircum{} \textbackslash{} $^\dagger$ $^\ast$"
    )
    text = as_latex(paper_table("1", [store(overrides={"background_noise": 0.5, "mask": "a&b%"})]))
    assert r"background\_noise=0.5, mask=a\&b\%" in text
    body = text[text.index(r"\begin{tabular}") : text.index(r"\end{tabular}")]
    (columns,) = re.findall(r"\\begin\{tabular\}\{(l+r+)\}", body)
    rows_ = [row for row in body.splitlines() if row.endswith(r"\\") and "multicolumn" not in row]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows_} == {len(columns) - 1}
    assert sum(map(int, re.findall(r"\\multicolumn\{(\d+)\}", body))) == len(columns) - 2
    plain = re.sub(r"\\[{}$]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert not re.search(r"(?<!\\)[%_]", plain.replace("{%\n", "{\n").split("\n", 1)[1].replace("^", ""))
    assert not re.search(r"[±†*]", plain.replace("table*", ""))


# the plain table


def test_the_plain_table_tells_transfer_and_what_is_kept_to_learn_only_where_it_is_known(store):
    plain = rows([store()])
    assert "FWT" not in plain_markdown(plain)
    assert "to learn" not in plain_markdown(plain)
    told = rows([store(seed=1, transfer=NOISY, training=1500, folder="told")])
    assert told[0].fwt == pytest.approx(0.05)
    assert told[0].to_learn == pytest.approx(1.5)
    assert "| 150.00 |" in plain_markdown(told)
    assert "| FWT |" in plain_markdown(told)
    assert "to learn: " in str(as_tables(told, 200)[0].caption)
    assert "FWT: " not in str(as_tables(plain, 200)[0].caption)
    assert "to_learn,bwt,fwt" in plain_csv(plain)


def test_forward_transfer_is_told_in_all_its_readings(store):
    (row,) = transfers.transfers([store(seed=1, transfer=NOISY, folder="told"), store(seed=2, folder="silent")])
    assert row["seeds"] == "1"
    assert row["untrained"] == "5.00 (2.50)"
    assert row["untrained, noise"] == "10.00 (5.00)"
    assert row["own head"] == "30.00 (15.00)"
    assert row["own head, noise"] == "40.00 (20.00)"
    assert row["R"] == "10.00"
    assert "| 30.00 (15.00) |" in transfers.as_markdown([row])
    with pytest.raises(InputError, match="none of these runs measured forward transfer"):
        transfers.transfers([store(seed=2, folder="silent")])


def test_forward_transfer_is_also_what_is_learned_beyond_a_network_of_its_own(store):
    def run(method, seed, first, last):
        return store(method, seed, first=first, acc=(0.1, last), transfer=NOISY)

    runs = [run("finetune", 1, 0.9, 0.8), run("finetune", 2, 0.9, 0.6), run("finetune", 3, 0.1, 0.1)]
    alone = [run("single_task", 1, 0.8, 0.6), run("single_task", 2, 0.9, 0.5)]
    column = "learned - STL"
    tuned, single = transfers.transfers([*runs, *alone])
    assert tuned[column] == "10.00 ± 7.07"  # of seed 3 nothing to compare with was run
    assert single[column] == ""
    assert column in transfers.as_markdown([tuned, single])
    assert column in transfers.CAPTION
    other = store("single_task", 1, first=0.8, acc=(0.1, 0.6), transfer=NOISY, scale="cpu")
    assert [row[column] for row in transfers.transfers([*runs, other])] == ["", ""]
    assert column not in transfers.as_markdown(transfers.transfers(runs))


def test_a_narrow_terminal_loses_columns_that_say_little_and_never_the_accuracy(store):
    told = rows([store(seed=1, transfer=NOISY, training=1500, folder="told")])
    for width, there in ((50, False), (200, True)):
        (table,) = as_tables(told, width)
        console = Console(width=width, file=io.StringIO())
        console.print(table)
        printed = console.file.getvalue()
        assert f"{100 * told[0].acc:.2f}" in printed
        assert all(len(line) <= width for line in printed.splitlines())
        assert (f"{100 * told[0].cap_formula:.2f}") in printed
        assert ("150.00" in printed) == there
        assert ("Not shown" in printed) == (not there)


def test_folders_are_found_and_told_apart_on_disk(store, tmp_path):
    store(), store(seed=1), store("finetune")
    table = paper_table("1", find_runs([tmp_path]))
    assert line(table, "WSN, c = 5 %", "ours, scale paper").seeds == {"permuted_mnist": (0, 1)}
