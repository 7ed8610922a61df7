"""A process that is forked while another thread learns: the child finds no lock closed and waits for no thread."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys, threading, torch, forgetfree as ff
from torch import nn

class Large(nn.Linear):  # its buffer is large enough for torch to copy it by several threads
    def __init__(self):
        super().__init__(16, 16)
        self.register_buffer("seen", torch.zeros(300, 300))
    def forward(self, rows):
        return super().forward(rows) + self.seen.mean()

def backbone(): return Large()
def task(name): return ff.Task(name, ("p", "q"), (torch.randn(32, 16), torch.arange(32) % 2))

torch.set_num_threads(2)
quick, path = ff.Recipe(epochs=1), sys.argv[1]
first = ff.WSN(backbone(), capacity=0.5, recipe=quick)
first.learn(task("a"))
ff.save(first, path)
busy, begun = ff.WSN(backbone(), capacity=0.5, recipe=ff.Recipe(epochs=10**6)), threading.Event()
threading.Thread(target=lambda: busy.learn(task("b"), progress=lambda _: begun.set()), daemon=True).start()
begun.wait()
one, other = backbone(), backbone()
child = os.fork()
if child == 0:
    signal.alarm(40)
    loaded = ff.load(path, one)
    loaded.learn(task("c"))
    first.predict(torch.randn(4, 16), "a")
    busy.learn(task("d"), recipe=quick)
    assert ff.verify(path, other).tasks[0].tensors
    os._exit(7)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_that_is_forked_while_a_thread_learns_loads_asks_and_learns(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / "file"], timeout=60, check=False)
    assert done.returncode == 7
