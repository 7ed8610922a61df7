"""What runs look like from outside, on a terminal, in lines, and for TensorBoard."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from forgetfree.errors import InputError
from forgetfree.lab import watching
from forgetfree.lab.following import follow
from forgetfree.lab.records import RunFolder
from forgetfree.lab.watching import picture, watch
from made_up_runs import write_events

PACE = 10.0


def events_of(tasks, learned, *, began, epochs=3, forget=0.1):
    """The events of the first tasks and of one epoch of the next; earlier tasks lose a little each time."""
    at, events = began, [{"time": began, "event": "start"}]
    for t in range(min(tasks, learned + 1)):
        place = {"task": f"made up {t + 1}", "done": t / tasks}
        events.append({"time": at, "event": "task", "position": t, "tasks": tasks, **place})
        for epoch in range(1, epochs + 1 if t < learned else 2):
            at += PACE
            done = (t + epoch / epochs) / tasks
            numbers = {"epoch": epoch, "loss": 2.0 / epoch, "valid_loss": 1.0 / epoch, "lr": 0.1}
            events.append({"time": at, "event": "epoch", **place, "done": done, "valid_accuracy": 0.9, **numbers})
        if t < learned:
            row = [max(0.0, 1 - forget * (t - i)) for i in range(t + 1)] + [None] * (tasks - t - 1)
            cost = {"formula": 0.1 * (t + 1), "density": 0.05 * (t + 1)}
            events.append({"time": at, "event": "tested", **place, "accuracy": row, "footprint": cost})
    return events


def finish(folder, tasks):
    rows = [[1.0] * (t + 1) + [None] * (tasks - t - 1) for t in range(tasks)]
    record = {
        "tasks": [f"made up {t + 1}" for t in range(tasks)], "accuracy": rows,
        "footprints": [{"formula": 0.5, "density": 0.4, "weights": 400, "mask_bits": 1000}] * tasks,
        "compared": 0, "different": 0, "curves": {}, "selections": {}, "notes": {},
        "seconds": {"learning": [1.0] * tasks, "testing": [1.0] * tasks},
    }  # fmt: skip
    (folder / "record.json").write_text(json.dumps(record))


def shown(path, now, **more):
    return picture(follow([path]), now, **more).plain


def piped():
    return Console(file=io.StringIO(), width=80)


def test_a_picture_has_a_run_with_its_numbers_and_its_matrix(tmp_path):
    now = time.time()
    write_events(tmp_path / "til-made_up" / "wsn-smoke-seed0", events_of(4, 2, began=now - 7 * PACE))
    lines = shown(tmp_path, now).splitlines()
    assert lines[1] == "til-made_up/wsn-smoke-seed0"
    assert " ".join(lines[0].split()) == "state done task epoch loss val % acc % cap % time left"
    assert " ".join(lines[2].split()) == "running ━━━━━─── 58 % 3/4 1/3 2.000 90.0 95.0 20.0 1m10s 50s"
    assert lines[3] == "1 running"
    assert "made up 3" in lines[5]
    assert [line.split() for line in lines[7:]] == [
        ["after", "1", "2", "3", "4", "mean"],
        ["1", "100", "100.0"],
        ["2", "90.0", "100", "95.0"],
    ]


def test_a_picture_of_twenty_tasks_fits_into_80_columns_and_30_rows(tmp_path):
    now = time.time()
    for name, learned in (("a", 19), ("b" * 90, 5), ("c", 3), ("d", 2), ("e", 1), ("f", 1), ("g", 1), ("h", 1)):
        events = events_of(20, learned, began=now - 1000, forget=0.02)
        write_events(tmp_path / "til-made_up" / f"{name}-seed0", events)
    text = shown(tmp_path, now, width=80, height=30)
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) <= 30
    assert "8 stopped; 7 shown" in text
    assert "…" in text
    assert text.splitlines()[-1].split()[0] == "19"


def test_cells_are_shaded_and_only_they(tmp_path):
    now = time.time()
    write_events(tmp_path / "e" / "r", events_of(3, 3, began=now - 90, forget=0.45))
    text = picture(follow([tmp_path]), now)
    shaded = {
        text.plain[span.start : span.end].strip(): str(span.style) for span in text.spans if " on " in str(span.style)
    }
    assert set(shaded) == {"100", "55.0", "10.0"}
    assert len({shaded[value] for value in ("100", "55.0", "10.0")}) == 3


def test_more_tasks_than_columns_become_small_bars(tmp_path):
    now = time.time()
    write_events(tmp_path / "e" / "r", events_of(100, 60, began=now - 3000, forget=0.01))
    text = shown(tmp_path, now)
    assert "each task now" in text
    assert "mean so far" in text
    assert max(map(len, text.splitlines())) <= 80


def test_numbers_that_are_none_do_not_break_the_picture(tmp_path):
    now, events = time.time(), events_of(2, 1, began=time.time() - 50)
    for each in events:
        if each["event"] == "epoch":
            each |= {"loss": float("nan"), "valid_accuracy": None}
    write_events(tmp_path / "e" / "r", events)
    assert "nan" in shown(tmp_path, now)


def test_a_terminal_without_unicode_gets_ascii(tmp_path):
    write_events(tmp_path / "e" / ("r" * 100), events_of(4, 2, began=time.time() - 70))
    shown(tmp_path, time.time(), ascii_only=True).encode("ascii")


def test_old_finished_runs_do_not_crowd_out_what_moves(tmp_path):
    now = time.time()
    for i in range(10):
        finish(write_events(tmp_path / "e" / f"old-{i}", events_of(2, 2, began=now - 9000 - i)), 2)
    write_events(tmp_path / "e" / "new", events_of(2, 1, began=now - 40))
    text = shown(tmp_path, now)
    assert text.splitlines()[1] == "e/new"
    assert "1 running, 10 finished; 3 shown" in text


def test_once_prints_a_picture_and_returns(tmp_path):
    console = piped()
    watch([tmp_path], console, once=True)
    write_events(tmp_path / "e" / "r", events_of(2, 1, began=time.time() - 40))
    watch([tmp_path], console, once=True)
    assert "No run yet." in console.file.getvalue()
    assert "1 running" in console.file.getvalue()
    with pytest.raises(InputError, match="no folder"):
        watch([tmp_path / "nowhere"], console)


def test_lines_tell_every_change_once_until_all_is_finished(tmp_path, monkeypatch):
    began = time.time() - 60
    events, console = events_of(2, 2, began=began), piped()
    folder, looks = tmp_path / "e" / "r", iter(range(2 * len(events) + 2))

    def sleep(_):
        i = next(looks)
        if i % 2 == 0 and i // 2 < len(events):
            write_events(folder, [events[i // 2]], mode="a")
        elif i // 2 == len(events):
            finish(folder, 2)

    monkeypatch.setattr(watching.time, "sleep", sleep)
    with RunFolder(folder).locked():
        watch([tmp_path], console)
    lines = console.file.getvalue().splitlines()
    assert lines[-1] == "Everything is finished."
    assert "e/r: finished, done 100 %, task 2/2, acc 100.0 %" in lines[-2]
    assert len(lines) == len(events) + 2  # a start, two tasks, six epochs, two tests; then finished, everything
    assert len(set(lines)) == len(lines)
    assert "e/r: waiting" in lines[0]
    assert "task 1/2, epoch 3/3, loss 0.667, valid 90.0 %" in lines[4]


def test_an_interrupt_ends_quietly(tmp_path, monkeypatch):
    def sleep(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", sleep)
    write_events(tmp_path / "e" / "r", events_of(2, 1, began=time.time() - 40))
    for terminal in (False, True):
        console = Console(file=io.StringIO(), width=80, force_terminal=terminal)
        watch([tmp_path], console)
        assert "finished." not in console.file.getvalue()


def test_a_terminal_is_drawn_on_until_all_is_finished(tmp_path, monkeypatch):
    folder = write_events(tmp_path / "e" / "r", events_of(2, 1, began=time.time() - 40))
    monkeypatch.setattr(watching.time, "sleep", lambda _: finish(folder, 2))
    console = Console(file=io.StringIO(), width=80, height=30, force_terminal=True, color_system=None)
    watch([tmp_path], console)
    drawn = console.file.getvalue()
    assert drawn.index("running") < drawn.index("finished") < drawn.index("Everything is finished.")


def test_a_run_in_another_process_is_watched_to_its_end(tmp_path):
    words = [
        sys.executable, "-m", "forgetfree.lab.cli", "run", "til/digits_permuted", "--method", "wsn", "--scale", "smoke",
        "--set", "benchmark.tasks=2", "--out", str(tmp_path),
    ]  # fmt: skip
    console = piped()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as run:
        watch([tmp_path], console, every=0.02)
        assert run.wait() == 0
    lines = console.file.getvalue().splitlines()
    assert len(lines) > 4
    assert any("running" in line and "task 2/2" in line for line in lines)
    assert "finished, done 100 %, task 2/2" in lines[-2]
    assert lines[-1] == "Everything is finished."


def scalars(logs):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(logs), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(each.step, round(each.value, 4)) for each in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


@pytest.fixture
def mirror():
    pytest.importorskip("tensorboard")
    from forgetfree.lab.tensorboard import mirror

    return mirror


def test_tensorboard_reads_what_the_events_told(tmp_path, mirror):
    folder = write_events(tmp_path / "e" / "r", events_of(3, 2, began=1000.0))
    for _ in range(2):  # a second mirror takes the place of the first
        mirror([RunFolder(folder)], tmp_path / "logs")
        read = scalars(tmp_path / "logs" / "e" / "r")
        assert read["loss/all"] == [(i + 1, round(2.0 / (i % 3 + 1), 4)) for i in range(7)]
        assert read["valid_accuracy/task 02"] == [(1, 0.9), (2, 0.9), (3, 0.9)]
        assert read["accuracy/mean"] == [(1, 1.0), (2, 0.95)]
        assert read["accuracy/task 01"] == [(1, 1.0), (2, 0.9)]
        assert read["capacity/formula"] == [(1, 0.1), (2, 0.2)]


def test_tensorboard_is_told_nothing_twice_after_a_stop(tmp_path, mirror):
    whole = events_of(3, 3, began=1000.0)
    again = [*whole[:8], *({**each, "time": each["time"] + 5000} for each in whole)]
    mirror([RunFolder(write_events(tmp_path / "e" / "r", whole))], tmp_path / "whole")
    mirror([RunFolder(write_events(tmp_path / "e" / "r", again))], tmp_path / "again")
    assert scalars(tmp_path / "again" / "e" / "r") == scalars(tmp_path / "whole" / "e" / "r")


def test_tensorboard_grows_with_the_run(tmp_path, mirror, monkeypatch):
    events = events_of(2, 2, began=time.time() - 60)
    folder = write_events(tmp_path / "runs" / "r", events[:3])
    steps = []

    def sleep(_):
        steps.append(len(scalars(tmp_path / "logs" / "runs" / "r")["loss/all"]))
        write_events(folder, events[3:], mode="a")
        finish(folder, 2)

    monkeypatch.setattr(watching.time, "sleep", sleep)
    watch([tmp_path / "runs"], piped(), tensorboard=tmp_path / "logs")
    assert steps == [1]
    assert len(scalars(tmp_path / "logs" / "runs" / "r")["loss/all"]) == 6


def test_records_without_events_are_mirrored_and_equal_names_kept_apart(tmp_path, mirror):
    folders = [tmp_path / where / "e" / "r" for where in ("here", "there")]
    for folder in folders:
        finish(write_events(folder, []), 2)
    mirror([RunFolder(folder) for folder in folders], tmp_path / "logs")
    for place in (Path("e/r"), Path("there/e/r")):
        assert scalars(tmp_path / "logs" / place)["accuracy/mean"] == [(1, 1.0), (2, 1.0)]


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'forgetfree\[tensorboard\]'"):
        watch([tmp_path], piped(), tensorboard=tmp_path / "logs")
