"""A killed `learn` goes on from its checkpoint to the same bits, and a checkpoint goes on only where it began.

Run as a script, this file is a small world of its own: it learns once without disturbance, then again and again in
processes that it kills at random moments, and prints what it saw.
"""

import copy
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import forgetfree as ff
from forgetfree.training import loop
from forgetfree.training.likeness import alike, fingerprint, identified
from snapshots import assert_same, learner, pair, snapshot, task

KILLS, ALL_KILLS = 8, 20
RECIPE = ff.Recipe(epochs=20, batch_size=8, lr=0.02, patience=2, factor=0.7)


class Stop(Exception):
    pass


def stopped_after(epoch: int, taught: ff.WSN, one: ff.Task, path: Path) -> None:
    """Begin to learn and leave after an epoch, as a killed process would."""

    def stop(event: ff.Progress) -> None:
        if event.finished and event.epoch == epoch:
            raise Stop

    with pytest.raises(Stop):
        taught.learn(one, checkpoint=path, progress=stop)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize("carry", [False, True], ids=["fresh", "carried"])
def test_a_stopped_learn_goes_on_to_the_same_bits(tmp_path: Path, optimizer: Any, carry: bool) -> None:
    recipe = ff.Recipe(
        epochs=4,
        batch_size=16,
        lr=0.02,
        momentum=0.9,
        weight_decay=0.01,
        optimizer=optimizer,
        patience=1,
        carry_optimizer=carry,
        clip=1.0,
        accumulate=2,
    )
    plain = learner(recipe)
    for position, name in enumerate("abc"):
        plain.learn(task(name, position))
    resumed = learner(recipe)
    for position, name in enumerate("abc"):
        path = tmp_path / name
        for epoch in (1, 3):
            stopped_after(epoch, resumed, task(name, position), path)
        if name == "c":  # a new process: everything before comes back from finished checkpoints
            resumed = learner(recipe)
            for earlier, other in enumerate("ab"):
                resumed.learn(task(other, earlier), checkpoint=tmp_path / other)
        resumed.learn(task(name, position), checkpoint=path)
    assert_same(snapshot(resumed), snapshot(plain))


def test_a_checkpoint_changes_nothing_of_what_is_learned(tmp_path: Path) -> None:
    plain, safe = learner(), learner()
    plain.learn(task("a"))
    safe.learn(task("a"), checkpoint=str(tmp_path / "checkpoint"))
    assert_same(snapshot(safe), snapshot(plain))


def test_without_validation_too_a_stopped_learn_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    plain, resumed = learner(), learner()
    plain.learn(task("a", valid=False))
    stopped_after(2, resumed, task("a", valid=False), tmp_path / "checkpoint")
    resumed.learn(task("a", valid=False), checkpoint=tmp_path / "checkpoint")
    assert_same(snapshot(resumed), snapshot(plain))


def test_the_best_epoch_before_the_kill_is_still_the_best_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([2.0, 1.0, 3.0, 4.0, 5.0])
    monkeypatch.setattr(loop, "evaluate", lambda *_: (next(losses), 0.5))
    recipe = ff.Recipe(epochs=5, batch_size=16, lr=0.05)
    resumed = learner(recipe)
    stopped_after(3, resumed, task("a"), tmp_path / "checkpoint")
    resumed.learn(task("a"), checkpoint=tmp_path / "checkpoint")
    assert resumed.tasks["a"].selection == "epoch 2 of 5, the best by validation loss (1)"
    short = learner(ff.Recipe(epochs=2, batch_size=16, lr=0.05))
    short.learn(task("a", valid=False))
    bits = [{key: value for key, value in snapshot(one).items() if key != "task/a"} for one in (resumed, short)]
    assert_same(*bits)


def test_a_finished_checkpoint_is_replayed_without_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, replayed = learner(), learner()
    plain.learn(task("a"), checkpoint=tmp_path / "checkpoint")

    def no_training(*_: Any) -> None:
        raise AssertionError("it trained again")

    monkeypatch.setattr(loop, "_epoch", no_training)
    events: list[ff.Progress] = []
    replayed.learn(task("a"), checkpoint=tmp_path / "checkpoint", progress=events.append)
    assert events == []
    assert_same(snapshot(replayed), snapshot(plain))


def other_inputs() -> ff.Task:
    right = task("a")
    return ff.Task("a", right.classes, (right.train[0] + 1, right.train[1]), right.valid)


def other_valid() -> ff.Task:
    right = task("a")
    return ff.Task("a", right.classes, right.train, pair(9, 20))


SHORT = {"epochs": 3, "batch_size": 16, "lr": 0.02}
OTHERS: dict[str, tuple[Any, Any, list[str]]] = {
    "another name": (learner, lambda: task("b"), ["task: 'a' there, 'b' here", "classes"]),
    "other classes": (
        learner,
        lambda: ff.Task("a", (7, 8, 9), *(getattr(task("a"), part) for part in ("train", "valid"))),
        ["classes"],
    ),
    "other inputs": (learner, other_inputs, ["train"]),
    "other validation": (learner, other_valid, ["valid"]),
    "no validation": (learner, lambda: task("a", valid=False), ["valid"]),
    "another loss": (learner, lambda: task("a", loss="cross_entropy"), ["loss: None there, 'cross_entropy' here"]),
    "a wider head": (learner, lambda: task("a", outputs=5), ["outputs: 3 there, 5 here"]),
    "another rate": (
        lambda: learner(ff.Recipe(**SHORT | {"lr": 0.5})),
        lambda: task("a"),
        ["lr: 0.02 there, 0.5 here"],
    ),
    "more epochs": (
        lambda: learner(ff.Recipe(**SHORT | {"epochs": 9})),
        lambda: task("a"),
        ["epochs: 3 there, 9 here"],
    ),
    "another seed": (lambda: learner(seed=8), lambda: task("a"), ["seed: 7 there, 8 here"]),
    "another capacity": (
        lambda: learner(capacity=0.7),
        lambda: task("a"),
        ["capacity: 0.4 there, 0.7 here"],
    ),
    "another ranking": (lambda: learner(by="value"), lambda: task("a"), ["'magnitude' there, 'value' here"]),
}


@pytest.mark.parametrize(("make", "one", "words"), OTHERS.values(), ids=OTHERS.keys())
def test_a_checkpoint_of_another_learning_is_refused_by_its_differences(
    tmp_path: Path, make: Any, one: Any, words: list[str]
) -> None:
    path = tmp_path / "checkpoint"
    stopped_after(2, learner(), task("a"), path)
    content, taught = path.read_bytes(), make()
    before = snapshot(taught)
    with pytest.raises(ff.InputError, match="checkpoint of another learning") as caught:
        taught.learn(one(), checkpoint=path)
    for word in words:
        assert word in str(caught.value)
    assert "batch_size" not in str(caught.value)  # what is equal is not named
    assert_same(snapshot(taught), before)
    assert path.read_bytes() == content


def test_a_checkpoint_of_another_state_of_the_learner_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    experienced = learner()
    experienced.learn(task("before", 3))
    stopped_after(2, experienced, task("a"), path)
    with pytest.raises(ff.InputError, match=r"position: 1 there, 0 here; start: "):
        learner().learn(task("a"), checkpoint=path)
    elsewhere = learner()
    elsewhere.learn(task("before", 4))
    before = snapshot(elsewhere)
    with pytest.raises(ff.InputError, match="differs in start: "):
        elsewhere.learn(task("a"), checkpoint=path)
    assert_same(snapshot(elsewhere), before)


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "foreign"])
def test_a_damaged_checkpoint_is_refused_in_words_and_left_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "checkpoint"
    taught = learner()
    before = snapshot(taught)
    stopped_after(2, taught, task("a"), path)
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "flipped": content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
            "emptied": b"",
            "foreign": b"not a checkpoint at all, but long enough to look like something",
        }[damage]
    )
    spoiled = path.read_bytes()
    with pytest.raises(ff.FileError, match=r"damaged.*Delete it to start again"):
        taught.learn(task("a"), checkpoint=path)
    assert_same(snapshot(taught), before)
    assert path.read_bytes() == spoiled
    path.unlink()
    taught.learn(task("a"), checkpoint=path)
    assert list(taught.tasks) == ["a"]


def killed(kills: int, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, __file__, folder, str(kills)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["killed while learning"] == kills
    assert report["found a checkpoint"] >= kills // 6
    assert report["different"] == []
    assert report["partial files left"] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_killed_at_random_moments_learning_ends_in_the_same_bits(tmp_path: Path) -> None:
    killed(KILLS, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_killed_at_twenty_random_moments_learning_ends_in_the_same_bits(tmp_path: Path) -> None:
    killed(ALL_KILLS, tmp_path)


def learn_two_tasks(folder: Path) -> ff.WSN:
    """Dropout, batch norm, validation and patience."""
    taught = learner(RECIPE)
    for position, name in enumerate("ab"):
        taught.learn(task(name, position), checkpoint=folder / name)
    return taught


def digest(taught: ff.WSN) -> str:
    return hashlib.blake2b(repr(sorted(snapshot(taught).items())).encode()).hexdigest()


def in_a_process(folder: Path, kill_after: float | None = None) -> float:
    """Learn in a process of its own, killed after some seconds; how long it lived."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            taught = learn_two_tasks(folder)
            (folder / "learned").touch()
            (folder / "digest").write_text(digest(taught))
            os._exit(0)
        finally:
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("learning failed by itself")
    return time.monotonic() - started


def main(folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    print("seed of the moments:", seed)
    learner().learn(task("warm"))  # torch imports its optimizers late; processes forked from here need not
    (folder / "undisturbed").mkdir()
    duration = in_a_process(folder / "undisturbed")
    expected = (folder / "undisturbed" / "digest").read_text()
    landed, resumed, jobs = 0, 0, []
    while landed < kills:
        jobs.append(folder / f"job {len(jobs)}")
        jobs[-1].mkdir()
        while landed < kills and not (jobs[-1] / "digest").exists():
            found = sorted(path.name for path in jobs[-1].iterdir())
            moment = chance.uniform(0.02, 0.4) * duration
            in_a_process(jobs[-1], moment)
            in_time = not (jobs[-1] / "learned").exists()
            landed, resumed = landed + in_time, resumed + (in_time and "a" in found)
            outcome = "killed" if in_time else "too late"
            print(f"{jobs[-1].name}, {found or 'no checkpoint'}: {outcome} at {moment:.3f} s of {duration:.3f} s")
        in_a_process(jobs[-1])
    report = {
        "killed while learning": landed,
        "found a checkpoint": resumed,
        "different": [job.name for job in jobs if (job / "digest").read_text() != expected],
        "partial files left": [str(path) for path in folder.glob("*/.*")],
    }
    print(json.dumps(report))


class Rows(Dataset):
    """Samples of a seed, some of them changed at random by a generator of their own."""

    def __init__(self, seed: int = 0, length: int = 40, noise: float = 0.0):
        (self.rows, self.labels), self.length, self.noise = pair(seed), length, noise
        self.chance = np.random.default_rng()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return self.rows[at] + self.noise * float(self.chance.random()), int(self.labels[at])


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (Rows(0), Rows(1), "inputs"),
        (Rows(0), Rows(0, length=32), "length"),
        (Rows(0, noise=0.1), Rows(1, noise=0.1, length=32), "length"),
        (Rows(0), Rows(0), None),
        (Rows(0, noise=0.1), Rows(0, noise=0.1), None),
    ],
)
def test_a_checkpoint_of_a_dataset_goes_on_with_its_own_samples_only(
    tmp_path: Path, one: Rows, other: Rows, said: str | None
) -> None:
    path, first, second = tmp_path / "file", replace(task("a", 0), train=one), replace(task("a", 0), train=other)
    stopped_after(3, learner(RECIPE), first, path)
    if said is None:
        learner(RECIPE).learn(second, checkpoint=path)
        return
    with pytest.raises(ff.InputError, match=f"another learning; it differs in .*{said}"):
        learner(RECIPE).learn(second, checkpoint=path)


def test_a_checkpoint_that_says_only_the_kind_of_its_dataset_still_goes_on() -> None:
    assert alike("Rows", fingerprint(Rows()))
    assert not alike("Others", fingerprint(Rows()))
    assert alike("here.<lambda>", identified(lambda: 1).replace(f"{__name__}.", "here.").replace(TEST, ""))


TEST = "test_a_checkpoint_that_says_only_the_kind_of_its_dataset_still_goes_on.<locals>."


def made(rate: float) -> Any:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


class Scaled:
    def __init__(self, by: float):
        self.by = by

    def __call__(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.by * torch.nn.functional.cross_entropy(outputs, labels)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made(0.1), made(0.2)),
        (lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.2)),
        (lambda p, lr=0.1: torch.optim.SGD(p, lr=lr), lambda p, lr=0.2: torch.optim.SGD(p, lr=lr)),
        (partial(torch.optim.SGD, lr=0.1), partial(torch.optim.SGD, lr=0.2)),
        (Scaled(1.0), Scaled(2.0)),
        (Scaled(1.0).__call__, Scaled(2.0).__call__),
        (torch.nn.CrossEntropyLoss(), torch.nn.CrossEntropyLoss(label_smoothing=0.1)),
        (torch.nn.CrossEntropyLoss(weight=torch.ones(3)), torch.nn.CrossEntropyLoss(weight=torch.arange(3.0))),
        (torch.optim.SGD, torch.optim.Adam),
    ],
)
def test_functions_of_one_place_are_told_apart_by_what_they_do(one: Any, other: Any) -> None:
    assert identified(one) != identified(other)
    assert identified(one) == identified(copy.deepcopy(one))


def test_a_checkpoint_does_not_go_on_with_another_lambda(tmp_path: Path) -> None:
    path, one = tmp_path / "file", task("a", 0)
    stopped_after(2, learner(replace(RECIPE, optimizer=made(0.1))), one, path)
    with pytest.raises(ff.InputError, match=r"recipe\.optimizer"):
        learner(replace(RECIPE, optimizer=made(0.2))).learn(one, checkpoint=path)
    learner(replace(RECIPE, optimizer=made(0.1))).learn(one, checkpoint=path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
