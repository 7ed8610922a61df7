"""The numbers in docs/results.md are those of the stored runs, and nothing else."""

import re
from pathlib import Path

from forgetfree.lab.records import find_runs
from forgetfree.lab.report.tables import as_markdown, rows

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"


def test_every_table_of_the_page_is_what_the_report_prints_for_its_folder():
    tables = re.findall(r"<!-- forgetfree report (\S+) -->\n\n((?:\|.*\n)+)", PAGE.read_text())
    assert tables, "no table with its command was found"
    for folder, table in tables:
        assert table == as_markdown(rows(find_runs([ROOT / folder]))), (
            f"{folder}: the page is not what the report prints"
        )


def test_every_stored_run_is_in_a_table_of_the_page():
    stored = {folder.path.parent for folder in find_runs([ROOT / "results"])}
    shown = {ROOT / folder for folder in re.findall(r"<!-- forgetfree report (\S+) -->", PAGE.read_text())}
    assert stored == shown


def test_stored_runs_forgot_nothing_where_the_method_says_so():
    for folder in find_runs([ROOT / "results"]):
        record = folder.record()
        if folder.plan()["run"]["method"] in ("wsn", "single_task"):
            assert record.compared > 0
            assert record.different == 0
            assert record.bwt == 0
