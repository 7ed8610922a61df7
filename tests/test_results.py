"""The numbers in docs/results.md are those of the stored runs, and nothing else."""

import json
import re
from pathlib import Path

import pytest
from bench import coverage

from forgetfree.lab.records import RunFolder, find_runs
from forgetfree.lab.report import transfers, typesetting
from forgetfree.lab.report.contents import laid_out
from forgetfree.lab.report.drawing import groups
from forgetfree.lab.report.figures import FIGURES
from forgetfree.lab.report.figures.figure import Missing
from forgetfree.lab.report.published import published, title
from forgetfree.lab.report.tables import as_markdown, rows
from forgetfree.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"


def test_every_table_of_the_page_is_what_the_report_prints_for_its_folder():
    tables = re.findall(r"<!-- forgetfree report (\S+) -->\n\n((?:\|.*\n)+)", PAGE.read_text())
    assert tables, "no table with its command was found"
    for folder, table in tables:
        assert table == as_markdown(rows(find_runs([ROOT / folder]))), (
            f"{folder}: the page is not what the report prints"
        )


def test_every_table_of_transfer_is_what_the_report_prints_for_its_folder():
    tables = re.findall(r"<!-- forgetfree report (\S+) --table transfer -->\n\n((?:\|.*\n)+)", PAGE.read_text())
    assert tables, "no table of transfer was found"
    for folder, table in tables:
        assert table == transfers.as_markdown(transfers.transfers(find_runs([ROOT / folder]))), folder


def test_every_table_of_sessions_is_what_the_report_prints_for_its_folder():
    pattern = r"<!-- forgetfree report (\S+) --table (?!transfer)(\w+)(?: --split (\w+))? -->\n\n((?:\|.*\n)+)"
    for folder, name, split, table in re.findall(pattern, PAGE.read_text()):
        printed = typesetting.as_markdown(laid_out(name, split or None, find_runs([ROOT / folder])))
        lines = [line for line in printed.splitlines(keepends=True) if line.startswith("|")]
        assert table == "".join(lines), f"{folder}: the page is not what the report prints as table {name}"


def test_the_page_of_what_is_absent_or_was_never_run_is_that_of_the_stored_runs():
    assert coverage.PAGE.read_text() == coverage.page(), "run python -m bench.coverage"


def test_every_stored_run_is_in_a_table_of_the_page():
    stored = {folder.path.parent for folder in find_runs([ROOT / "results"])}
    shown = {ROOT / folder for folder in re.findall(r"<!-- forgetfree report (\S+) .*-->", PAGE.read_text())}
    assert stored == shown


def test_the_gallery_says_what_the_figures_of_the_stored_runs_say():
    page = (ROOT / "docs" / "gallery.md").read_text()
    said = 0
    for group in groups(find_runs([ROOT / "results"])):
        for name, figure in FIGURES.items():
            try:
                words = figure.words(figure.measure(group.runs))
            except Missing:
                continue
            assert f"\n{words}\n" in page, f"{name}, {group.title}: run the command of docs/gallery.md"
            said += 1
    assert said == page.count("\n### ") >= 30
    assert {f"gallery/{path.name}" for path in (ROOT / "docs" / "gallery").iterdir()} == set(
        re.findall(r"\]\((gallery/[^)]+)\)", page)
    )


def test_stored_runs_forgot_nothing_where_the_method_says_so():
    for folder in find_runs([ROOT / "results"]):
        record = folder.record()
        if METHODS[folder.plan()["run"]["method"]].forget_free:
            assert record.compared > 0
            assert record.different == 0
            # where one answer is for all classes, old scores stay, and more classes compete with them
            assert record.bwt == 0 or record.sessions


def test_the_tables_of_codes_are_what_was_measured():
    sizes, speeds = (table["rows"] for table in json.loads((ROOT / "results/codes-permuted_mnist.json").read_text()))
    shown = {
        name: re.findall(r"^\| (\d.*) \|$", table, re.MULTILINE)
        for name, table in re.findall(r"<!-- codes: (\w+) -->\n\n((?:\|.*\n)+)", PAGE.read_text())
    }
    assert [len(lines) for lines in shown.values()] == [6, 6, 6]
    capacity = [key for key in sizes[0] if key.startswith("CAP") or key == "capacity"]
    expected = {
        "sizes": [[f"{row[key]}" for key in row if key not in capacity[1:]] for row in sizes],
        "capacity": [[f"{row[key]:g}" if key != "capacity" else row[key] for key in capacity] for row in sizes],
        "speed": [[_rounded(value) for value in row.values()] for row in speeds],
    }
    assert {name: [line.split(" | ") for line in lines] for name, lines in shown.items()} == expected


def test_the_codes_keep_what_the_page_says_of_them():
    sizes = json.loads((ROOT / "results/codes-permuted_mnist.json").read_text())[0]["rows"]
    for row in sizes:
        assert row["context"] <= 0.95 * row["ans"]
        assert row["ans"] <= 1.013 * row["bound"]
        assert row["huffman"] <= 1.02 * row["bound"] or row["capacity"] in ("3%", "5%", "10%")


def _rounded(value):
    return value if isinstance(value, str) else f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def test_what_the_page_quotes_of_the_paper_is_what_the_paper_prints():
    quoted = dict(
        re.findall(r"^\| ((?:WSN, c = \d+ %|STL|fine-tuning|MTL)) \| ([\d.]+) \| [\d.]+ \|", PAGE.read_text(), re.M)
    )
    printed = {
        f"{title(row.method)}, c = {100 * row.capacity:g} %" if row.capacity else title(row.method): row
        for row in published("1").rows
    }
    assert len(quoted) == 9
    for name, accuracy in quoted.items():
        assert float(accuracy) == printed[name].cells["permuted_mnist"]["acc"].mean


def test_what_the_page_says_of_rivals_is_in_their_runs_and_in_the_paper():
    rivals = re.findall(
        r"^\| (EWC|GPM|PackNet|SupSup) \| ([\d.]+) \| ([\d.]+) \| (\S+) \| (\S+) \|$", PAGE.read_text(), re.M
    )
    assert len(rivals) == 4
    printed = {row.method: row.cells["permuted_mnist"] for row in published("1").rows}
    for name, ours, theirs, bwt, their_bwt in rivals:
        record = RunFolder(ROOT / f"results/til-permuted_mnist/{name.lower()}-paper-seed1").record()
        assert f"{100 * record.acc:.2f}" == ours
        assert 100 * record.bwt == pytest.approx(float(bwt), abs=0.005)
        assert (printed[name.lower()]["acc"].mean, printed[name.lower()]["bwt"].mean) == (
            float(theirs),
            float(their_bwt),
        )
