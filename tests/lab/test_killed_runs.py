"""A run that is killed again and again ends with the record of one that never was.

Run as a script, this file performs the plan in a forked process whenever a line comes in, and says its number: torch
is imported once, and every life of the run is a process of its own.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from forgetfree.lab.experiment import build, perform, plan

KILLS, AT_LEAST = 20, 10
OVERRIDES = {"benchmark.tasks": 6, "recipe.epochs": 12}


def planned():
    (each,) = plan("til/digits_permuted", methods=["wsn"], scale="smoke", seeds=[3], overrides=OVERRIDES)
    return each


def events(out):
    file = out / planned().folder / "events.jsonl"
    return file.read_text().splitlines() if file.is_file() else []


def trained_in_this_life(out, known):
    return any('"epoch"' in line for line in events(out)[known:])


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().split()[2] != "Z"


def record(out):
    content = json.loads((out / planned().folder / "record.json").read_text())
    content.pop("seconds")
    return content


def test_a_run_killed_at_twenty_random_moments_ends_with_an_equal_record(tmp_path):
    whole, killed, chance, moments = tmp_path / "whole", tmp_path / "killed", random.Random(0), []
    perform(planned(), whole)
    words = [sys.executable, __file__, str(killed)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        for _ in range(KILLS):
            known = len(events(killed))
            launcher.stdin.write("live\n")
            launcher.stdin.flush()
            pid = int(launcher.stdout.readline())
            while alive(pid) and not trained_in_this_life(killed, known):
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.1))
            if not alive(pid):
                break
            os.kill(pid, signal.SIGKILL)
            assert launcher.stdout.readline() == f"{-signal.SIGKILL}\n"
            moments.append(round(json.loads(events(killed)[-1]).get("done", 0), 3))
        launcher.stdin.close()
    print("killed when so much was done:", moments)
    assert len(moments) >= AT_LEAST, f"only {len(moments)} kills landed, at {moments}"
    perform(planned(), killed)
    assert record(killed) == record(whole)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    torch.optim.Adam(build(planned())[2].parameters())  # what is slow to import is imported before
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            perform(planned(), Path(sys.argv[1]))
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
