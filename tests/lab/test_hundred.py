"""The bench of a hundred tasks runs, on two."""

import sys

from bench import hundred


def test_two_tasks_add_their_masks_and_heads_and_change_no_answer(miniature_omniglot, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench.hundred", "--tasks", "2", "--seconds", "0.1"])
    hundred.main()
    printed = capsys.readouterr().out
    row = next(line.split() for line in printed.splitlines() if line.strip().startswith("364"))
    assert float(row[2]) == 23.4  # a head of 500 times 12 numbers, in KB
    assert row[-1] == "0"
    assert "task 3, ms" in printed
