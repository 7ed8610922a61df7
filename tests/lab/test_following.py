"""What the events of a run say while it goes."""

import json
import time

import pytest

from forgetfree.errors import InputError
from forgetfree.lab.experiment import perform, plan
from forgetfree.lab.following import Followed, Follower, Story, as_events, follow
from forgetfree.lab.records import RunFolder
from made_up_runs import write_events


def event(at, kind, **more):
    return {"time": at, "event": kind, **more}


def life(at, positions, *, tasks=4, epochs=5, pace=10.0, start=True):
    """The events of whole tasks, ten seconds an epoch, tested at once."""
    events = [event(at, "start")] if start else []
    for t in positions:
        events.append(event(at, "task", task=f"task {t}", position=t, tasks=tasks, done=t / tasks))
        for epoch in range(1, epochs + 1):
            at += pace
            done = (t + epoch / epochs) / tasks
            events.append(
                event(at, "epoch", task=f"task {t}", done=done, epoch=epoch, loss=1 / epoch, valid_loss=None,
                      valid_accuracy=0.5 + epoch / 100, lr=0.1)
            )  # fmt: skip
        row = [0.9 - 0.1 * i for i in range(t + 1)] + [None] * (tasks - t - 1)
        events.append(event(at, "tested", task=f"task {t}", accuracy=row, done=(t + 1) / tasks))
    return events


def told(events, **more):
    story = Story(**more)
    for each in events:
        story.add(each)
    return story


def test_every_event_is_read_once_while_the_file_grows(tmp_path):
    file, events = tmp_path / "events.jsonl", life(100.0, range(2))
    follower, read = Follower(file), []
    assert follower.news().events == []
    for each in events:
        with file.open("a") as stream:
            stream.write(json.dumps(each) + "\n")
        news = follower.news()
        assert not news.anew
        read += news.events
    assert read == events
    assert follower.news().events == []


def test_a_line_that_is_being_written_waits_until_it_is_whole(tmp_path):
    file, line = tmp_path / "events.jsonl", json.dumps(event(1.0, "start"))
    follower = Follower(file)
    file.write_text(line[:10])
    assert follower.news().events == []
    file.write_text(line)
    assert follower.news().events == []
    file.write_text(line + "\n")
    assert follower.news().events == [event(1.0, "start")]


def test_broken_lines_are_left_out_and_the_event_after_half_a_line_is_read(tmp_path):
    file, start = tmp_path / "events.jsonl", json.dumps(event(1.0, "start"))
    file.write_text(f'nonsense\n[1]\n{{"event": "start"}}\n\xff\n{{"time": 0.5, "event": "ta{start}\n{start}\n')
    assert Follower(file).news().events == [event(1.0, "start")] * 2


def test_a_file_that_was_cut_replaced_or_deleted_is_read_anew(tmp_path):
    file, events = tmp_path / "events.jsonl", life(100.0, range(2))
    write_events(tmp_path, events)
    follower = Follower(file)
    follower.news()
    write_events(tmp_path, events[:3])
    news = follower.news()
    assert news.anew
    assert news.events == events[:3]
    other = write_events(tmp_path / "other", events)
    (other / "events.jsonl").replace(file)
    assert follower.news().events == events
    write_events(tmp_path, life(200.0, range(3)))  # the same file, longer than before
    news = follower.news()
    assert news.anew
    assert len(news.events) == len(life(200.0, range(3)))
    file.unlink()
    assert follower.news().anew
    assert not follower.news().anew


def test_progress_matrix_and_mean_follow_the_events():
    events = life(100.0, range(4))
    story = told(events[:4])  # start, task, two epochs
    assert (story.task, story.position, story.tasks, story.epoch) == ("task 0", 0, 4, (2, 5))
    assert story.done == pytest.approx(0.1)
    assert story.mean is None
    story = told(events[: 1 + 7 * 2 + 2])  # the first epoch of the third task
    assert story.done == pytest.approx(0.55)
    assert story.rows == {0: [0.9, None, None, None], 1: [0.9, 0.8, None, None]}
    assert story.mean == pytest.approx(0.85)
    assert story.elapsed == pytest.approx(110.0)
    assert told(events).done == 1.0


def test_time_left_is_that_of_tasks_alike():
    events = life(100.0, range(4))
    assert told(events[:1]).left(100.0) is None
    assert told(events[:2]).left(100.0) is None
    assert told(events[:4]).left(120.0) == pytest.approx(180.0)  # two of twenty epochs
    assert told(events[:4]).left(125.0) == pytest.approx(175.0)  # time goes by between events
    assert told(events[: 1 + 7 * 2]).left(200.0) == pytest.approx(100.0)
    assert told(events).left(300.0) == 0.0


def test_a_resumed_run_with_a_long_gap_keeps_its_progress_and_its_pace():
    before = life(100.0, range(3))[: 1 + 7 * 2 + 3]  # killed after two epochs of the third task
    replay = [each for each in life(100_000.0, range(2), pace=0.4) if each["event"] != "epoch"]  # two seconds a task
    replay.append(event(100_004.0, "task", task="task 2", position=2, tasks=4, done=0.5))
    story = told(before)
    assert story.left(before[-1]["time"]) == pytest.approx(80.0)
    for each in replay:
        story.add(each)
        assert story.done >= 0.5
        assert story.left(each["time"]) == pytest.approx(80.0 if each is replay[-1] else 100.0)
    assert story.done == pytest.approx(0.6)
    assert story.elapsed == pytest.approx(124.0)
    third = life(100_000.0, [2], start=False)[3:4]
    assert third[0]["epoch"] == 3
    story.add({**third[0], "time": 100_014.0})
    assert story.epoch == (3, 5)
    assert [each["epoch"] for each in story.curve] == [1, 2, 3]
    assert story.left(100_014.0) == pytest.approx(70.0)


def test_the_first_few_shot_session_says_nothing_about_later_ones():
    events = life(1000.0, [0], pace=100.0) + life(1500.0, [1, 2], pace=1.0, start=False)
    assert told(events[:3], few_shot=True).left(1100.0) == pytest.approx(400.0)
    assert told(events[: 1 + 7 * 2], few_shot=True).left(1505.0) == pytest.approx(10.0)
    assert told(events[: 1 + 7 * 2], few_shot=False).left(1505.0) > 400.0


def test_tasks_tested_only_once_count_as_last_measured():
    rows = [[0.9, None], [None, 0.5]]
    events = life(0.0, range(2), tasks=2)
    tested = iter(rows)
    story = told([{**each, "accuracy": next(tested)} if each["event"] == "tested" else each for each in events])
    assert story.mean == pytest.approx(0.7)


def test_overall_accuracy_and_capacity_are_taken_where_they_are_told():
    events = life(0.0, [0])
    events[-1] |= {"overall": 0.25, "footprint": {"formula": 0.5, "density": 0.4}}
    assert (told(events).mean, told(events).capacity) == (0.25, 0.5)


def test_states_follow_the_folder_and_its_lock(tmp_path):
    now = time.time()
    folder = RunFolder(write_events(tmp_path / "experiment" / "run", []))
    run = Followed(folder)

    def state(at):
        run.look(at)
        return run.state

    with folder.locked():
        assert state(now) == "waiting"
        assert state(now + 1000) == "waiting"
        write_events(folder.path, life(now, [0])[:3])
        assert state(now + 11) == "running"
        assert state(now + 1000) == "running"  # silent, but held
    assert state(now + 12) == "running"
    assert state(now + 2000) == "stopped"
    with folder.locked():  # looking did not keep the lock
        assert state(now + 2001) == "stopped"
        assert state(now + 2010) == "running"
    (folder.path / "record.json").write_text("{}")
    assert state(now + 2011) == "finished"


def test_a_lock_is_not_made_where_there_is_none(tmp_path):
    folder = write_events(tmp_path / "run", life(100.0, [0]))
    run = Followed(RunFolder(folder))
    run.look()
    assert run.state == "stopped"
    assert sorted(file.name for file in folder.iterdir()) == ["events.jsonl", "run.toml"]


def test_folders_that_appear_or_go_are_noticed_and_known_ones_are_kept(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        follow([tmp_path / "nowhere"])
    assert follow([tmp_path]) == []
    write_events(tmp_path / "b", life(100.0, [0]))
    (first,) = follow([tmp_path])
    write_events(tmp_path / "a", [])
    runs = follow([tmp_path, tmp_path / "a"], [first])
    assert [run.folder.path.name for run in runs] == ["a", "b"]
    assert runs[1] is first
    for file in (tmp_path / "b").iterdir():
        file.unlink()
    assert [run.folder.path.name for run in follow([tmp_path], runs)] == ["a"]


@pytest.mark.parametrize("experiment", ["til/digits_permuted", "fscil/digits"])
def test_a_record_tells_what_the_events_told(tmp_path, experiment):
    method = "wsn" if experiment.startswith("til") else "softnet"
    (each,) = plan(experiment, methods=[method], scale="smoke", seeds=[0])
    record = perform(each, tmp_path)
    (live,) = follow([tmp_path])
    assert live.story.means[len(record.tasks) - 1] == pytest.approx(record.acc)
    assert live.story.capacity == record.footprints[-1]["formula"]
    (tmp_path / each.folder / "events.jsonl").unlink()
    (again,) = follow([tmp_path])
    assert again.state == "finished"
    assert again.story.rows == live.story.rows
    assert again.story.means == pytest.approx(live.story.means)
    assert again.story.few_shot == experiment.startswith("fscil")
    kinds = [[entry["event"] for entry in told_by] for told_by in (as_events(record, 0.0), as_events(record, 9.0))]
    assert kinds[0] == kinds[1]
    assert kinds[0].count("tested") == len(record.tasks)
