"""Any comparison on paper: chosen methods and columns of every table, as LaTeX that compiles and as Markdown."""

import re
import string

import pytest
from typer.testing import CliRunner

from forgetfree.lab import cli
from forgetfree.lab.report.escapes import latex, markdown
from forgetfree.lab.report.grid import TO_FIT, in_latex
from made_up_runs import write_run

NASTY = 'a_b & 50% #1 {x} $y$ ~ ^ \\ | <b> [l](u) `c` "q" – … × → α 中 é\n\x1b ± † *'


@pytest.fixture
def runs(tmp_path):
    for method, capacity in (("wsn", 0.05), ("wsn", 0.3), ("finetune", None), ("a_b & 50%|x", None)):
        write_run(tmp_path / "runs", method, capacity=capacity)
    write_run(tmp_path / "runs", "softnet", capacity=0.5, few_shot=True)
    return tmp_path / "runs"


def report(runs, *words, code=0):
    done = CliRunner().invoke(cli.app, ["report", str(runs), "--to", str(runs.parent / "out"), *words])
    assert done.exit_code == code, done.output
    return done.output


def check_compiles(text):
    """As far as one can tell without LaTeX: braces, environments, mathematics, columns and letters."""
    assert set(text) <= {*string.printable, *"éü"}, sorted({*text} - {*string.printable})
    text = text.replace(TO_FIT, "{")
    code = "\n".join(re.sub(r"(?<!\\)%.*", "", line) for line in text.splitlines())
    bare = re.sub(r"\\[^a-zA-Z]", "", code)
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    outside = re.sub(r"\$[^$]*\$", "", bare)
    assert not re.search(r"[_^#~<>|]", outside), re.findall(r".{20}[_^#~<>|].{20}", outside)
    begun, ended = (re.findall(rf"\\{word}\{{([a-z*]+)\}}", code) for word in ("begin", "end"))
    assert sorted(begun) == sorted(ended)
    for columns, body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", code, re.DOTALL):
        assert columns
        body = re.sub(r"\\(toprule|midrule|bottomrule)", "", body)
        for row in filter(None, (part.strip() for part in re.split(r"(?<!\\)\\\\(?![a-zA-Z])", body))):
            spanned = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", row))
            row = re.sub(r"\\cmidrule\(lr\)\{[\d-]+\}", "", row)
            assert len(re.findall(r"(?<!\\)&", row)) + spanned == len(columns) - 1, row


def test_letters_of_names_are_printed_and_not_obeyed():
    for letter in NASTY:
        check_compiles(latex(letter) + latex(NASTY))
    assert latex("a_b|c") == r"a\_b\textbar{}c"
    assert latex("α → 中") == r"$\alpha$ $\rightarrow$ U+4E2D"
    assert markdown("a|b\n<c> [d](e)") == r"a\|b &lt;c> [d]\(e)"


def test_numbers_are_set_as_numbers():
    assert in_latex("-1.50 ± 0.20 (0.30) †") == r"$-1.50 \pm 0.20\ (0.30)^\dagger$"
    assert in_latex("12 min") == "12 min"
    assert in_latex("1 2 3") == "1 2 3", "three seeds are not the number 123"
    assert in_latex("") == ""


def test_every_table_is_written_as_latex(runs):
    report(runs)
    text = (runs.parent / "out" / "report.tex").read_text()
    check_compiles(text)
    assert r"\toprule" in text
    assert text.count(r"\begin{tabular}") == 2, "task-incremental and few-shot runs are two comparisons"
    assert "WSN" in text
    assert "fine-tuning" in text
    assert r"a\_b \& 50\%\textbar{}x" in text
    page = (runs.parent / "out" / "report.md").read_text()
    assert r"a_b & 50%\|x" in page
    heads = [line.count("|") - line.count(r"\|") for line in page.splitlines() if line.startswith("|")]
    assert len(set(heads)) == 1


def test_methods_and_columns_are_chosen_in_their_order(runs):
    told = report(runs, "--method", "wsn", "--method", "finetune", "--column", "CAP", "--column", "acc")
    out = runs.parent / "out"
    lines = (out / "report.md").read_text().splitlines()
    assert lines[0] == "| method | settings | CAP | ACC |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| fine-tuning", "| WSN", "| WSN"]
    text = (out / "report.tex").read_text()
    check_compiles(text)
    assert r"Method & Settings & CAP & ACC \\" in text
    assert "BWT" not in text + told
    assert (out / "report.csv").read_text().splitlines()[
        0
    ] == "experiment,method,settings,scale,seeds,cap_formula,acc,acc_deviation"
    assert "softnet" not in (out / "report.json").read_text()


def test_tables_of_the_paper_are_chosen_from_too(runs):
    report(runs, "--table", "1", "--method", "wsn", "--method", "gpm", "--column", "acc", "--column", "bwt")
    text = (runs.parent / "out" / "table-1.tex").read_text()
    check_compiles(text)
    assert "GPM" in text
    assert "PackNet" not in text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    assert r"Method & Source & ACC & BWT &" in text
    report(runs, "--table", "sessions", "--column", "overall")
    check_compiles((runs.parent / "out" / "table-sessions.tex").read_text())
    report(runs, "--figure", "accuracy_over_capacity", "--method", "wsn")
    assert "PackNet" not in next((runs.parent / "out").glob("*til*.svg")).read_text()


def test_what_is_measured_against_a_method_that_is_not_shown_still_is(runs):
    for method in ("crt", "ncm"):
        write_run(runs, method, few_shot=True)
    report(runs, "--table", "digits", "--method", "ncm")
    page = (runs.parent / "out" / "table-digits.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| NCM")]
    assert "| gap with cRT |" in page
    assert row.split("|")[-3].strip() == "+0.00"
    assert "| cRT" not in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--column", "accuracy"], "no column 'accuracy' in this table. Did you mean acc"),
        (["--table", "1", "--column", "time"], "no column 'time'"),
        (["--method", "wnn"], "no method 'wnn' among these runs. Did you mean wsn"),
        (["--figure", "task_bars", "--column", "acc"], "--column chooses from a table"),
    ],
)
def test_what_cannot_be_chosen_is_said(runs, words, said):
    assert said in " ".join(report(runs, *words, code=2).split())
