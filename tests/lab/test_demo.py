"""The demo as a newcomer meets it: runs that stay where they can be seen, and sentences that are true when it stops."""

import html
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from forgetfree.lab import cli, demo

SMOKE = "from forgetfree.lab import demo\ndemo.SCALE = 'smoke'\nfrom forgetfree.lab.command import main\nmain()\n"


@pytest.mark.slow
def test_a_demo_that_is_stopped_by_its_user_says_what_is_kept_and_where(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SMOKE, "demo"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )  # fmt: skip
    latest = time.monotonic() + 60
    while not any(tmp_path.rglob("run.toml")) and process.poll() is None and time.monotonic() < latest:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    (kept,) = tmp_path.iterdir()
    assert f"What was learned so far is in {kept.name}. The same command goes on." in said
    assert "Traceback" not in said
    assert any(kept.rglob("run.toml"))


def test_the_same_command_goes_on_explains_itself_and_writes_commands_that_can_be_copied(tmp_path, monkeypatch):
    here = tmp_path / "somewhere with a blank"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(demo, "SCALE", "smoke")
    with monkeypatch.context() as patch:
        patch.setattr(demo, "perform", stopped_after_one_run())
        stopped = CliRunner().invoke(cli.app, ["demo"])
    assert stopped.exit_code == 130
    assert "What was learned so far is in forgetfree-demo." in " ".join(stopped.output.split())
    (first,) = here.rglob("record.json")
    made = first.stat().st_mtime_ns
    done = CliRunner().invoke(cli.app, ["demo"])
    assert done.exit_code == 0, done.output
    assert first.stat().st_mtime_ns == made
    told = " ".join(done.output.split())
    for words in ("● WSN", "■ fine-tuning", "▲ STL", "◆ MTL", "memory (CAP)", "0 exactly"):
        assert words in told
    assert "room" not in told
    assert "answers were compared bit for bit with those given right after learning, and 0 differ." in told
    (page,) = here.rglob("*.html")
    shown = re.findall(r"<code>(forgetfree .*?)</code>", page.read_text())
    commands = [shlex.split(html.unescape(text)) for text in shown]
    assert ["forgetfree", "demo"] in commands
    (bars,) = [words for words in commands if words[-1] == "task_bars"]
    drawn = CliRunner().invoke(cli.app, bars[1:])
    assert drawn.exit_code == 0, drawn.output
    assert list(here.rglob("task_bars-*.svg"))
    for path in re.findall(r'<p class="path"><code>(.*?)</code>', page.read_text()):
        assert (here / html.unescape(path)).is_dir()


def stopped_after_one_run():
    """`perform`, whose user presses Ctrl-C in the second run."""
    whole, begun = demo.perform, []

    def perform(plan, *args, **settings):
        begun.append(plan)
        if len(begun) > 1:
            raise KeyboardInterrupt
        return whole(plan, *args, **settings)

    return perform


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "til/digits_split", "--scale", "smoke", "--out", "my runs"], "forgetfree resume 'my runs'"),
        (["inspect", "memory.ticket"], "interrupted."),
        (["list"], "interrupted."),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else None,
)
def test_what_an_interrupted_command_says_is_true_of_it(words, said, monkeypatch, tmp_path):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    for place in ("archive.inspect", "lab.running.perform_all", "lab.cli.console.print"):
        monkeypatch.setattr(f"forgetfree.{place}", stop)
    (tmp_path / "my runs").mkdir()
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 130
    assert said in " ".join(done.output.split())
    assert ("resume" in done.output) == ("resume" in said)
