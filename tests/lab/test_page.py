"""The page: one file that needs nothing else, with ours and the published apart; and its summary, in words."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import pytest
from matplotlib import rc_context

from forgetfree.errors import InputError
from forgetfree.lab import legend
from forgetfree.lab.records import Record, RunFolder
from forgetfree.lab.report import drawing, summary
from forgetfree.lab.report.drawing import groups
from forgetfree.lab.report.figures import accuracy_over_capacity, ink
from forgetfree.lab.report.figures.figure import Missing
from forgetfree.lab.report.figures.ink import readable_on
from forgetfree.lab.report.inline_svg import inline_svg
from forgetfree.lab.report.page import DARK_COLOURS, page
from forgetfree.lab.report.summary import answers

DENSE = 1000
RECIPE = {"epochs": 5, "batch_size": 64, "optimizer": "sgd", "lr": 0.1, "patience": "none"}
COMMAND = "forgetfree report runs --page"


def store(
    root, method="wsn", seed=1, *, benchmark="permuted_mnist", scale="cpu", tasks=3, acc=0.9, compared=100, different=0,
    capacity=0.3, weights=500, archive=True, verified=True, name=None, finished=True, overrides=None,
):  # fmt: skip
    """Write down a run whose accuracies fall from task to task, the same after each."""
    few_shot = benchmark.startswith("fscil")
    experiment = benchmark.replace("_", "/", 1) if few_shot else f"til/{benchmark}"
    plan = {
        "run": {"experiment": experiment, "method": method, "scale": scale, "seed": seed, "threads": 1},
        "overrides": overrides or {},
        "benchmark": {"name": benchmark, "tasks": tasks, **({"draw": 0} if few_shot else {})},
        "backbone": {"name": "mlp", "hidden": [100, 100], "bias": False},
        "method": {"capacity": capacity} if method in ("wsn", "hardnet", "softnet") else {"background_noise": 0.0},
        "recipe": RECIPE,
        "protocol": {"batch": 256},
    }
    folder = RunFolder(root / (name or f"{benchmark}-{method}-{capacity}-{scale}-{seed}"))
    folder.start(plan, {"forgetfree": "0.1.0", "python": "3.11"})
    bits = tasks * DENSE
    size = {"written": 0.7, "written_without_heads": 0.6} if archive else {"written": None}
    cost = {
        "formula": weights / DENSE + 0.22 * bits / (32 * DENSE), "density": weights / DENSE, "weights": weights,
        "mask_bits": bits, "own": 0, "heads": 30, "extras": 0, "training": 0, **size,
    }  # fmt: skip
    values = [acc - 0.01 * task for task in range(tasks)]
    record = Record(
        tasks=[f"{benchmark} {task + 1}" for task in range(tasks)],
        accuracy=[[value if i <= t else None for i, value in enumerate(values)] for t in range(tasks)],
        footprints=[cost] * tasks,
        compared=0 if few_shot else compared,
        different=different,
        curves={},
        selections={f"{benchmark} 1": "epoch 5 of 5, the last"},
        notes={"pixels": "inverted"},
        archive={
            "bytes": 2800, "sections": {"weights": 2000, "masks": 800}, "compared": 50, "different": 0,
            "verified": verified,
        } if archive else {},
        sessions={"tested": [100] + [20] * (tasks - 1), "classes": [60] + [5] * (tasks - 1), "confusion": [],
                  "mistakes": []} if few_shot else {},
        seconds={"learning": [61.0] * tasks, "testing": [1.0] * tasks},
    )  # fmt: skip
    if finished:
        folder.save(record)
    return folder


def said(folders):
    """Question → all that is answered, and the parts for groups."""
    found = answers(groups(folders), folders)
    return {
        answer.question: " ".join([*answer.sentences, *(f"{title}: {text}" for title, text in answer.by_group)])
        for answer in found
    }


# summary


def test_forget_free_methods_and_others_are_counted_apart(tmp_path):
    runs = [
        store(tmp_path, "wsn", compared=1000),
        store(tmp_path, "packnet", compared=500),
        store(tmp_path, "ewc", compared=400, different=100),
        store(tmp_path, "hat", compared=100),
    ]
    text = said(runs)["Did anything forget?"]
    assert "Forget-free methods did not: 2 runs (WSN, PackNet) gave 1,500 earlier answers again" in text
    assert "(EWC, HAT) promise nothing: 100 of 500 earlier answers (20.00 %) changed, none of them of HAT." in text


def test_a_forget_free_method_that_forgot_is_accused(tmp_path):
    text = said([store(tmp_path, compared=1000), store(tmp_path, seed=2, compared=1000, different=1)])
    assert "Forget-free methods did, which they must not" in text["Did anything forget?"]
    assert "1 of them (0.05 %) were other ones" in text["Did anything forget?"]


def test_archives_that_failed_and_runs_without_one_are_named(tmp_path):
    runs = [
        store(tmp_path),
        store(tmp_path, seed=2, verified=False, name="the broken one"),
        store(tmp_path, seed=3, archive=False),
    ]
    text = said(runs)["Did anything forget?"]
    assert "2 runs wrote an archive" in text
    assert "1 archive did not pass: the broken one." in text
    assert "Of 100 answers given by what was read, 0 differ." in text
    assert "1 run wrote none." in text
    assert "nothing is known" in said([store(tmp_path / "other", archive=False)])["Did anything forget?"]


def test_size_is_said_by_formula_and_by_bytes(tmp_path):
    text = said([store(tmp_path, weights=500), store(tmp_path, "ewc", weights=1000, archive=False)])["How big is it?"]
    assert "One dense network has 1,000 weights." in text
    assert "WSN, c = 30 %, CAP 52.1 %, archive 70.0 % (2.8 kB), accuracy 89.0 %" in text
    assert "Largest of all: EWC, CAP 102.1 %, no archive" in text


@pytest.mark.parametrize(
    ("best", "rival", "verdict"),
    [
        ([0.90, 0.92], [0.80, 0.82], "The gap of 10.00 points exceeds the deviation over seeds"),
        ([0.90, 0.92], [0.89, 0.92], "The gap of 0.50 points does not exceed the deviation over seeds"),
        ([0.90], [0.80, 0.82], "The gap of 9.00 points cannot be judged: a deviation needs more than one seed"),
    ],
)
def test_a_winner_is_ahead_only_if_the_gap_exceeds_the_deviation(tmp_path, best, rival, verdict):
    runs = [store(tmp_path, "wsn", seed, acc=acc) for seed, acc in enumerate(best)]
    runs += [store(tmp_path, "packnet", seed, acc=acc) for seed, acc in enumerate(rival)]
    text = said(runs)["Who wins?"]
    assert "WSN, c = 30 % is the most accurate" in text
    assert verdict in text


def test_what_does_not_learn_task_after_task_is_a_reference_and_wins_nothing(tmp_path):
    text = said([store(tmp_path, "wsn", acc=0.8), store(tmp_path, "multitask", acc=0.99, compared=0)])["Who wins?"]
    assert "WSN, c = 30 % is the most accurate with 79.00 %" in text
    assert "no other method to compare it with" in text
    assert "For reference: MTL 98.00 %." in text


def test_benchmarks_and_scales_are_never_mixed(tmp_path):
    runs = [store(tmp_path, acc=0.5), store(tmp_path, "ewc", benchmark="five_datasets", acc=0.9),
            store(tmp_path, "ewc", scale="paper", acc=0.9)]  # fmt: skip
    found = {answer.question: dict(answer.by_group) for answer in answers(groups(runs), runs)}["Who wins?"]
    assert len(found) == 3
    assert all("no other method" in text for text in found.values())


def test_seeds_scales_and_open_runs_are_told(tmp_path):
    runs = [store(tmp_path), store(tmp_path, seed=2), store(tmp_path, "ewc"), store(tmp_path, seed=3, finished=False)]
    text = said(runs)["What does this rest on?"]
    assert "3 finished runs of 1 benchmark, with 1 to 2 repetitions of a setting" in text
    assert "Scales: cpu (3 runs)." in text
    assert "for orientation only" in text
    assert "1 setting ran once" in text
    assert "1 run not finished, and in no number here." in text


def test_the_first_numbers_leave_out_what_is_not_there(tmp_path):
    few = groups([store(tmp_path, "ncm", benchmark="fscil_digits", archive=False)])
    assert [number.text for number in summary.first_numbers(few)] == ["1"]
    several = groups([store(tmp_path, compared=1000), store(tmp_path, "ewc", compared=70, different=7)])
    assert [number.text for number in summary.first_numbers(several)] == ["2", "0", "2"]


# the page


class Outline(HTMLParser):
    """What a page links to and loads, its headings and its tables."""

    def __init__(self, text):
        super().__init__()
        self.links, self.headings, self.rows, self.ids, self.tags = [], [], [], [], []
        self._row = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self.links += [found[name] for name in ("src", "href", "xlink:href", "srcset", "action") if name in found]
        self.ids += [found["id"]] if "id" in found else []
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "tr":
            self._row = (found.get("class"), [])
            self.rows.append(self._row)

    def handle_data(self, data):
        if self._row is not None and data.strip():
            self._row[1].append(data.strip())

    def handle_endtag(self, tag):
        if tag == "tr":
            self._row = None


@pytest.fixture
def one_figure(monkeypatch):
    """Only one figure is there to be drawn, so that tests are fast."""
    monkeypatch.setattr(drawing, "FIGURES", {"accuracy_over_capacity": accuracy_over_capacity})


def ten_runs(root):
    """Ten runs of three groups, one of twelve tasks and one of sessions."""
    return [
        *(store(root, "wsn", seed) for seed in (1, 2)),
        *(store(root, "ewc", seed, acc=0.8, different=40) for seed in (1, 2)),
        store(root, "packnet", acc=0.85),
        *(store(root, "wsn", seed, benchmark="omniglot_rotation", tasks=12) for seed in (1, 2)),
        store(root, "ewc", benchmark="omniglot_rotation", tasks=12),
        *(store(root, method, benchmark="fscil_omniglot", tasks=4) for method in ("hardnet", "ncm")),
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return ten_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def text(runs):
    """Their page, with one figure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "FIGURES", {"accuracy_over_capacity": accuracy_over_capacity})
        return page(runs, command=COMMAND)


def test_the_page_loads_nothing(text):
    outline = Outline(text)
    assert [link for link in outline.links if not link.startswith("#")] == ["data:,"]
    assert not re.search(r"@import|@font-face|url\((?!#)|fetch\(|XMLHttpRequest|//\w+\.\w+", text)
    assert "default-src 'none'" in text
    assert not {"img", "iframe", "object", "embed", "video"} & set(outline.tags)


def test_what_is_linked_is_there_and_no_id_twice(text):
    outline = Outline(text)
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)
    assert len(outline.ids) == len(set(outline.ids))
    referred = set(re.findall(r"url\(#([^)]+)\)", text))
    assert referred
    assert referred <= set(outline.ids)


def test_ten_runs_with_every_figure_take_less_than_three_megabytes(runs):
    assert len(page(runs, command=COMMAND).encode()) < 3_000_000


def test_headings_are_in_order(text):
    levels = Outline(text).headings
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_same_runs_give_the_same_page(runs, text, one_figure):
    assert page(runs, command=COMMAND) == text


def test_names_are_escaped(tmp_path, one_figure):
    folder = store(tmp_path, name="a <script>alert('&amp;')</script> & b", overrides={"recipe.<b>": "<i>x</i>"})
    text = page([folder], command="forgetfree report '<runs>' & more")
    assert text.count("<script>") == 1
    assert "a &lt;script&gt;alert(&#39;&amp;amp;&#39;)&lt;/script&gt; &amp; b" in text
    assert "report &#39;&lt;runs&gt;&#39; &amp; more" in text
    assert "<i>x</i>" not in text
    assert "<b>" not in text


def test_published_rows_and_ours_are_apart_and_labelled(text):
    rows = Outline(text).rows
    quoted = [cells for kind, cells in rows if kind == "published"]
    ours = [cells for kind, cells in rows if kind == "ours" and "WSN, c = 30 %" in cells]
    assert ["STL", "published", "97.37 ± 0.01", "1000.0", "-", "-"] in quoted
    assert all("published" in cells for cells in quoted)
    assert ours
    assert all("ours, scale cpu" in cells for cells in ours)
    assert not [cells for kind, cells in rows if kind != "published" and "published" in cells]


def test_tables_are_those_that_the_runs_belong_to(tmp_path, text, one_figure):
    for title in ("Table 1: Task-incremental learning against", "Few-shot Omniglot", "After the last few-shot session"):
        assert f"<h3>{title}" in text
    alone = page([store(tmp_path / "other", benchmark="digits_split")], command=COMMAND)
    assert "<h3>Table 1" not in alone
    assert "published rows only" not in alone


def test_slips_and_marks_are_told_below_their_table(text):
    assert re.search(r'<a href="#table-1-slip-1"', text)
    assert '<li id="table-1-slip-1"><span>?1</span>' in text
    assert re.search(r"<li><span>†</span> \w+", text)


def test_a_figure_that_cannot_be_drawn_is_not_there(runs, monkeypatch):
    def missing(runs):
        raise Missing("make it first")

    figure = SimpleNamespace(TITLE="Never drawn", measure=missing)
    monkeypatch.setattr(drawing, "FIGURES", {"never": figure})
    text = page(runs, command=COMMAND)
    assert "Never drawn" not in text
    assert "<figure" not in text
    assert 'href="#figures"' not in text


def test_a_figure_has_its_words_and_its_command(text):
    assert text.count("<figure ") == 3
    assert text.count(f"<code>{COMMAND} --figure accuracy_over_capacity</code>") == 3
    assert re.search(r"<desc[^>]*>Accuracy at the end against capacity for 3 methods", text)


def test_a_run_tells_its_settings_certificate_matrix_and_sessions(text):
    for told in (
        "<dt>earlier answers compared</dt><dd>100</dd>",
        "<dt>archive</dt><dd>2,800 bytes</dd>",
        "<dt>every task verified</dt><dd>yes</dd>",
        "<dt>masks</dt><dd>800</dd>",
        "<dt>pixels</dt><dd>inverted</dd>",
        "<dt>permuted_mnist 1</dt><dd>epoch 5 of 5, the last</dd>",
        "<dt>optimizer</dt><dd>sgd</dd>",
        "<dt>hidden</dt><dd>100, 100</dd>",
        "<dt>forgetfree</dt><dd>0.1.0</dd>",
        "<dt>time learning</dt><dd>3.0 min</dd>",
        '<td class="s45">90.00</td>',
    ):
        assert told in text, told
    # four sessions: 100, 20, 20 and 20 images with 90, 89, 88 and 87 %
    last = next(cells for _, cells in Outline(text).rows if cells[:3] == ["4", "5", "160"])
    assert last[3:] == ["89.25", "90.00", "88.00", "88.99"]


def test_unfinished_runs_are_listed_and_none_finished_is_an_error(tmp_path, one_figure):
    waiting = store(tmp_path, seed=9, finished=False, name="still going")
    assert "still going" in page([store(tmp_path), waiting], command=COMMAND)
    with pytest.raises(InputError, match="none of these runs is finished"):
        page([waiting], command=COMMAND)


# drawings


@pytest.fixture
def drawn():
    with rc_context(ink.STYLE):
        made, (left, right) = ink.canvas(1, 2)
        ink.matrix(left, [[0.1, None], [0.5, 2 / 3]])
        right.bar([1, 2], [3, 4], color=legend.COLOURS[1], hatch="//")
        right.plot([1, 2], [1, 2], **ink.line_style(0))
        right.set_xlabel("a < b & c")
    return made


def test_a_drawing_takes_the_colours_of_the_page_and_squares_keep_theirs(drawn):
    svg = inline_svg(drawn, "key", "Title", "Words")
    for colour in (ink.INK, ink.FAINT, legend.COLOURS[1]):
        assert colour not in svg
    assert "var(--ink)" in svg
    assert "var(--series-1)" in svg
    assert "var(--series-2)" in svg
    assert 'fill="#0060a8"' in svg  # the square of two thirds, which has the first colour of lines
    assert len(DARK_COLOURS) == len(legend.COLOURS)


def test_squares_tell_their_place_and_value(drawn):
    svg = inline_svg(drawn, "key", "Title", "Words")
    found = re.findall(r'class="cell" data-row="(\d)" data-column="(\d)" data-value="([\d.]+)"', svg)
    assert found == [("1", "1", "10.00"), ("2", "1", "50.00"), ("2", "2", "66.67")]
    written = re.findall(r'<text style="font-size: 6.5px; text-anchor: middle; fill: (#\w+)"[^>]*>(\d+)', svg)
    assert written == [("#010101", "10"), ("#010101", "50"), ("#ffffff", "67")]


def test_two_drawings_share_no_id_and_every_reference_stays_inside(drawn):
    one, two = (inline_svg(drawn, key, "Title", "Words") for key in ("one", "two"))
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (one, two)]
    assert not ids[0] & ids[1]
    for svg, known in zip((one, two), ids, strict=True):
        referred = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
        assert len(referred) >= 4
        assert referred <= known


def test_a_drawing_is_named_for_who_cannot_see_it_and_has_no_prolog(drawn):
    svg = inline_svg(drawn, "key", "Over & <out>", "Many words")
    assert svg.startswith('<svg viewBox="')
    assert '<title id="key-title">Over &amp; &lt;out&gt;</title><desc id="key-words">Many words</desc>' in svg
    assert "a &lt; b &amp; c" in svg
    assert "<style" not in svg
    assert "<metadata" not in svg


@pytest.mark.parametrize(("ground", "text"), [("#ffffff", "#010101"), ("#0a2540", "#ffffff"), ("#4089c0", "#010101")])
def test_what_is_written_on_a_square_can_be_read(ground, text):
    assert readable_on(ground) == text
