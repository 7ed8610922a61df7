"""Tasks that were never learned are flagged: in the record, in tables, in LaTeX and on the page."""

import math

import pytest

from forgetfree.lab import chance
from forgetfree.lab.experiment import perform, plan
from forgetfree.lab.records import RunFolder
from forgetfree.lab.report.page import page
from forgetfree.lab.report.paper_tables import paper_table
from forgetfree.lab.report.tables import as_latex, as_markdown, as_tables, rows
from forgetfree.lab.report.typesetting import as_latex as set_in_latex
from made_up_runs import write_run

GUESSING = math.log(10)
WORDS = "the training loss of 1 of 2 tasks never left that of guessing: 2"


def with_losses(folder: RunFolder, first: float, second: float) -> RunFolder:
    """The run with these last training losses, written without a note, as records of before are."""
    record = folder.record()
    record.curves = {"one": [{"loss": 3.0}, {"loss": first}], "two": [{"loss": second}]}
    folder.save(record)
    return folder


@pytest.fixture
def stuck(tmp_path):
    """Two seeds of one setting; in the second the second task stayed at ln(10)."""
    learned = with_losses(write_run(tmp_path, "supsup", seed=1), 0.5, GUESSING - 0.04)
    return [learned, with_losses(write_run(tmp_path, "supsup", seed=2), 0.5, GUESSING - 0.02)]


def test_a_task_is_at_chance_where_its_last_training_loss_is_that_of_guessing():
    curves = {"a": [{"loss": 1.0}, {"loss": GUESSING}], "b": [{"loss": GUESSING}, {"loss": 1.0}], "c": []}
    assert chance.at_chance(["a", "b", "c", "d"], curves, [10] * 4) == [1]
    assert chance.at_chance(["a"], curves, [12]) == []
    assert chance.at_chance(["a"], curves, [0]) == [], "a task without classes has no chance"


def test_a_record_of_before_is_flagged_when_it_is_read(stuck):
    assert [folder.record().notes.get(chance.NOTE) for folder in stuck] == [None, WORDS]


def test_tables_mark_the_accuracy_and_say_which_tasks_of_which_seed(stuck):
    table = rows(stuck)
    shown = as_markdown(table)
    assert "±" in shown
    assert " † |" in shown
    assert f"seed 2: {WORDS}" in shown
    assert r"^\dagger$" in as_latex(table)
    assert "not learned at all" in as_tables(table, 60)[0].caption
    assert "†" not in as_markdown(rows(stuck[:1]))


def test_the_paper_s_tables_and_the_page_say_it_too(stuck):
    assert WORDS in set_in_latex(paper_table("1", stuck))
    shown = page(stuck, command="forgetfree report")
    assert WORDS in shown
    assert "a training that failed" in " ".join(shown.split())


def test_a_run_notes_what_it_did_not_learn(tmp_path):
    (run,) = plan("til/digits_split", methods=["finetune"], scale="smoke", overrides={"recipe.lr": 1e-9})
    record = perform(run, tmp_path)
    assert "5 of 5 tasks never left" in record.notes[chance.NOTE]
    assert RunFolder(tmp_path / run.folder).record().notes == record.notes
