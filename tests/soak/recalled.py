"""Old answers: learned tasks are asked again after later tasks, a removal, saving and loading; bits are compared."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import forgetfree as ff
from forgetfree.lab.backbones import BACKBONES
from forgetfree.registry import methods
from soak.archives import same
from soak.workers import Tally

ROWS, FEATURES, TASKS = 1000, 12, 7
QUICK = {
    "hat": ff.Recipe(epochs=1, batch_size=20, optimizer="sgd", lr=0.05),
    "gpm": ff.Recipe(epochs=1, batch_size=20, optimizer="sgd", lr=0.02),
}


def survey(numbers: range, folder: Path) -> Tally:
    """Compare so many old answers, of every method that promises to keep them, on new seeds until there are enough."""
    tally, started, seed = Tally(), time.monotonic(), numbers.start
    while tally.tried < len(numbers):
        for name in keeping():
            try:
                compared = _life(name, seed, folder / "life.ticket")
            except AssertionError as error:
                tally.failures.append(f"{seed}: {name}: {error}")
                print(f"  failed {tally.failures[-1]}", flush=True)
                return tally
            tally.tried += compared
            tally.outcomes[f"of {name}"] += compared
        seed += 1
    tally.seconds = time.monotonic() - started
    return tally


def keeping() -> list[str]:
    """The methods that promise bit-identical answers."""
    entries = {name: methods().entry(name) for name in ff.METHODS}
    return [name for name, entry in entries.items() if entry.forget_free and entry.scenario == "til"]


def _life(name: str, seed: int, path: Path) -> int:
    """A learner learns, is stored and read, forgets a task, and learns on; how many old answers were compared."""
    chance = torch.Generator().manual_seed(seed)
    learner = _learner(name, seed)
    given: dict[str, tuple[Tensor, Tensor]] = {}
    compared = 0

    def compare(when: str) -> None:
        nonlocal compared
        for task, (batch, answer) in given.items():
            assert same({"": learner.predict(batch, task=task)}, {"": answer}), f"{task} answers otherwise {when}"
            compared += len(answer)

    for number in range(TASKS):
        task = f"task {number}"
        data = torch.randn(60, FEATURES, generator=chance), torch.randint(3, (60,), generator=chance)
        learner.learn(ff.Task(task, ("a", "b", "c"), data))
        compare(f"after {task}")
        batch = torch.randn(ROWS, FEATURES, generator=chance)
        given[task] = batch, learner.predict(batch, task=task)
        if number % 3 == 1:
            ff.save(learner, path, resumable=number % 2 == 0)
            learner = ff.load(path)
            compare("after loading")
        if number == 4:
            learner.remove("task 0")
            del given["task 0"]
            compare("after a removal")
    return compared


def _learner(name: str, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = BACKBONES["mlp"](inputs=FEATURES, hidden=(16, 8), bias=True)
    recipe = QUICK.get(name, ff.Recipe(epochs=1, batch_size=20, lr=0.02))
    capacity = {"capacity": 0.2} if name in ("wsn", "packnet", "supsup") else {}
    return ff.METHODS[name](backbone, recipe=recipe, seed=seed, **capacity)
