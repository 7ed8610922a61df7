"""Written with version 0.1 of forgetfree, before archives had format 2 and before learners were dataclasses.

Run once, with that version, and kept for the record of what it did; `test_before` reads what it left beside this file:

    archives/               a learner of every method, and a few special ones; -resumable: with all that learning needs
    checkpoints/            beside an archive of that name: one more task, left in the middle
    answers.safetensors     what each archive answers, after reading it and after one more task; and that task
    finished/               run folders of finished runs
    unfinished/             run folders whose process was killed in its third task
    whole/                  the records of the same runs, never killed

    python tests/before/make.py
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import forgetfree as ff
from forgetfree.archive import FORMAT
from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.experiment import Plan, parse_overrides, perform, plan

HERE = Path(__file__).resolve().parent
SHAPES = {"vectors": (12,), "images": (1, 16, 16)}
BACKBONE: dict[str, tuple[str, dict[str, Any]]] = {
    "vectors": ("mlp", {"inputs": 12, "hidden": (16, 8), "bias": True}),
    "images": ("conv4", {"channels": 1, "width": 6}),  # with batch norms
}
ROWS, SPREAD, SEED = 5, 0.6, 1
TASK = ff.Recipe(epochs=2, batch_size=8, lr=0.02, patience=1)
PLAIN = ff.Recipe(epochs=2, batch_size=8, optimizer="sgd", lr=0.05, clip=10.0)
CARRIED = ff.Recipe(epochs=2, batch_size=8, lr=0.02, weight_decay=0.01, carry_optimizer=True)
FEW = ff.Recipe(epochs=2, batch_size=16, optimizer="sgd", lr=0.05, momentum=0.9, weight_decay=5e-4)
CLASSIFIER = ff.Recipe(epochs=2, batch_size=16, optimizer="sgd", lr=0.1, momentum=0.9, milestones=(1,), factor=0.4)


@dataclass(frozen=True)
class Entry:
    """One learner that goes into archives."""

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    inputs: str = "vectors"
    recipe: ff.Recipe = TASK
    finish: bool = True
    """Whether what was collected is trained before it is written."""
    after: Callable[[Any], None] = lambda learner: None
    """What else happens to it before it is written."""
    kinds: tuple[bool, ...] = (False, True)
    """Which archives are written: the plain one, the resumable one."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of `save`, for the plain one."""
    stops: tuple[int, ...] = (1,)
    """After how many epochs of one more task it is left, once for each."""


WSN = {"capacity": 0.3, "own_from": "previous", "by": "value", "background_noise": 1e-3}
ENTRIES = {
    "wsn": Entry("wsn", WSN),
    "wsn-norms": Entry("wsn", {"capacity": 0.4}, inputs="images"),
    "wsn-sparse": Entry("wsn", {"capacity": 0.2, "sparse_answers": True}, kinds=(False,)),
    "wsn-float16": Entry("wsn", {"capacity": 0.3}, kinds=(False,), options={"dtype": "float16"}),
    "wsn-removed": Entry("wsn", {"capacity": 0.3}, after=lambda learner: learner.remove("task 1")),
    "finetune": Entry("finetune"),
    "single_task": Entry("single_task"),
    "multitask": Entry("multitask"),
    "ewc": Entry("ewc", {"strength": 100.0, "fisher_batch": 6}, inputs="images"),
    "ewc-carried": Entry("ewc", {"strength": 50.0}, recipe=CARRIED),
    "hat": Entry("hat", {"smax": 200.0, "sparsity": 0.5, "hard": True}, inputs="images", recipe=PLAIN),
    "hat-soft": Entry("hat", recipe=PLAIN),
    "gpm": Entry(
        "gpm",
        {"threshold": (0.9, 0.95), "threshold_step": 0.01, "samples": 16, "samples_per_layer": (16, 12)},
        recipe=PLAIN,
    ),
    "gpm-norms": Entry("gpm", {"threshold": 0.9}, inputs="images", recipe=PLAIN),
    "packnet": Entry(
        "packnet", {"capacity": 0.4, "retrain_epochs": 2, "refill": True, "own_from": "previous"}, stops=(1, 3)
    ),
    "supsup": Entry("supsup", {"capacity": 0.4, "transfer": True}),
    "piggyback": Entry("piggyback", {"threshold": 0.004, "start": 0.02}),
    "softnet": Entry(
        "softnet",
        {"capacity": 0.6, "draw": "forward", "soft_from_epoch": 1, "block": "8.weight", "temperature": 0.5,
         "pull": 0.1, "follow": True, "exemplars": 2, "heads": ff.nearest_direction, "session": FEW},
        inputs="images",
    ),
    "softnet-plain": Entry("softnet", {"capacity": 0.6, "by": "value", "session": FEW}),
    "hardnet": Entry("hardnet", {"capacity": 0.6}),
    "ncm": Entry("ncm", {"heads": ff.nearest_direction}, inputs="images"),
    "joint": Entry("joint"),
    "joint-waiting": Entry("joint", finish=False, kinds=(True,)),
    "crt": Entry("crt", {"every": True, "draws": 2, "session": CLASSIFIER}, stops=(1, 3)),
    "icarl": Entry("icarl", {"exemplars": 3, "session": FEW}),
    "rebalance": Entry(
        "rebalance",
        {"first": "dense", "exemplars": 3, "choose": "herding", "less_forget": 2.0, "ranking": 0.5, "margin": 0.1,
         "closest": 1, "session": FEW},
    ),
    "fsll": Entry(
        "fsll", {"fraction": 0.3, "strength": 2.0, "margin": 0.1, "exemplars": 2, "session": FEW}, inputs="images"
    ),
    "fsll-released": Entry("fsll", {"variant": "released", "threshold": 5.0, "session": FEW}),
    "f2m": Entry(
        "f2m",
        {"layers": 2, "bound": 0.02, "draws": 3, "spread": 1.0, "fix": 0.5, "exemplars": 2, "session": FEW},
        inputs="images",
    ),
    "f2m-released": Entry("f2m", {"variant": "released", "layers": 1, "bound": 0.05, "session": FEW}),
}  # fmt: skip
WITHOUT_DATA = ("multitask", "joint", "crt")
"""These train on all data at once, which their plain archives do not have; that of multitask never has."""

FINISHED = [
    ("til/digits_split", "wsn", ["capacity=0.1"]),
    ("fscil/digits", "softnet", ["follow=true", "pull=0.1"]),
]
KILLED = [
    ("til/digits_split", "wsn", ["backbone.hidden=[12,8]", "recipe.epochs=2", "recipe.batch_size=64"]),
    ("til/digits_split", "multitask", ["backbone.hidden=[12,8]", "recipe.epochs=3", "recipe.batch_size=64"]),
    ("fscil/digits", "softnet", ["backbone.hidden=[12,8]", "follow=true", "pull=0.1", "session.epochs=2"]),
]


def around(centres: Tensor, of_each: int, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs near the centre of each class, and their labels."""
    labels = torch.arange(len(centres)).repeat(of_each)
    return centres[labels] + SPREAD * torch.randn(len(labels), *centres.shape[1:], generator=chance), labels


def stream(inputs: str, scenario: str) -> list[ff.Task]:
    """Three tasks of three classes, the last with a wider head; or a first session and two of a few images each."""
    chance, tasks = torch.Generator().manual_seed(SEED), []
    for position in range(3):
        last, few = position == 2, scenario == "fscil" and position > 0
        classes = 2 if few else 3
        centres = torch.randn(classes, *SHAPES[inputs], generator=chance)
        train, valid = around(centres, 4 if few else 8, chance), around(centres, 3, chance)
        tasks.append(
            ff.Task(
                f"task {position}",
                tuple(f"{position}/{label}" for label in range(classes)),
                train,
                None if few or last else valid,
                outputs=4 if last and not few else None,
            )
        )
    return tasks


def following(inputs: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels of one more task, of two classes."""
    chance = torch.Generator().manual_seed(SEED + 1)
    return around(torch.randn(2, *SHAPES[inputs], generator=chance), 8, chance)


def one_more(inputs: str) -> ff.Task:
    return ff.Task("one more", ("new/0", "new/1"), following(inputs))


def probe(inputs: str) -> Tensor:
    return torch.randn(ROWS, *SHAPES[inputs], generator=torch.Generator().manual_seed(SEED + 2))


def learned(entry: Entry) -> Any:
    """The learner of an entry, after three tasks."""
    name, sizes = BACKBONE[entry.inputs]
    torch.manual_seed(SEED)
    made = ff.METHODS[entry.method]
    learner = made(BACKBONES[name](**sizes), recipe=entry.recipe, seed=SEED, **entry.settings)
    for task in stream(entry.inputs, made.scenario):
        learner.learn(task)
    if entry.finish and hasattr(learner, "finish"):
        learner.finish()
    entry.after(learner)
    return learner


def learn_on(learner: Any, task: ff.Task, **options: Any) -> None:
    learner.learn(task, **options)
    if hasattr(learner, "finish"):
        learner.finish(**options)


def answers(learner: Any, inputs: str) -> dict[str, Tensor]:
    """By task; few-shot sessions have one answer for all."""
    if learner.scenario == "fscil":
        return {"all classes": learner.predict(probe(inputs))}
    return {name: learner.predict(probe(inputs), task=name) for name in learner.tasks}


class Stop(Exception):
    pass


class Epochs:
    """Counts finished epochs, and stops after some."""

    def __init__(self, most: int | None = None):
        self.count, self.most = 0, most

    def __call__(self, step: ff.Progress) -> None:
        self.count += step.finished
        if self.count == self.most:
            raise Stop


def make_archives() -> None:
    tensors: dict[str, Tensor] = {}
    kinds: dict[str, str] = {}
    left: dict[str, int] = {}
    for inputs in SHAPES:
        tensors[f"probe/{inputs}"] = probe(inputs)
        tensors[f"one more/{inputs}"], tensors[f"labels/{inputs}"] = following(inputs)
    for name, entry in ENTRIES.items():
        learner = learned(entry)
        for resumable in entry.kinds:
            file = f"{name}-resumable" if resumable else name
            path = HERE / "archives" / f"{file}.ticket"
            path.parent.mkdir(exist_ok=True)
            ff.save(learner, path, resumable=resumable, **({} if resumable else entry.options))
            assert ff.verify(path).ok, file
            kinds[file] = entry.inputs
            loaded = ff.load(path)
            tensors |= {f"{file}/{task}": answer for task, answer in answers(loaded, entry.inputs).items()}
            try:
                learn_on(loaded, one_more(entry.inputs))
            except ff.TaskError:
                assert name in WITHOUT_DATA
                continue
            after = answers(loaded, entry.inputs)
            tensors |= {f"{file}/{task}/after one more": answer for task, answer in after.items()}
            if resumable:
                left |= make_checkpoints(file, entry, after)
        if True in entry.kinds and entry.method != "multitask":
            learn_on(learner, one_more(entry.inputs))  # it was never stopped
            for task, answer in answers(learner, entry.inputs).items():
                assert torch.equal(answer, after[task]), (name, task)
    circumstances = {
        "forgetfree": ff.__version__,
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    said = {"circumstances": circumstances, "inputs": kinds, "epochs left": left}
    header = {name: json.dumps(value) for name, value in said.items()}
    save_file({name: value.contiguous() for name, value in tensors.items()}, HERE / "answers.safetensors", header)


def make_checkpoints(file: str, entry: Entry, after: dict[str, Tensor]) -> dict[str, int]:
    """Leave one more task in the middle; how many epochs are left for whoever goes on from there."""
    left = {}
    for stop in entry.stops:
        archive, folder = HERE / "archives" / f"{file}.ticket", HERE / "checkpoints" / f"{file}-{stop}"
        folder.mkdir(parents=True)
        task, epochs = one_more(entry.inputs), Epochs(stop)
        try:
            learn_on(ff.load(archive), task, checkpoint=folder / "task.safetensors", progress=epochs)
        except Stop:
            pass
        else:
            folder.rmdir()  # nothing was trained
            continue
        with tempfile.TemporaryDirectory() as elsewhere:
            shutil.copytree(folder, elsewhere, dirs_exist_ok=True)
            learner, epochs = ff.load(archive), Epochs()
            learn_on(learner, task, checkpoint=Path(elsewhere) / "task.safetensors", progress=epochs)
        for name, answer in answers(learner, entry.inputs).items():
            assert torch.equal(answer, after[name]), (file, name)
        left[folder.name] = epochs.count
    return left


def planned(experiment: str, method: str, words: list[str]) -> Plan:
    (made,) = plan(experiment, methods=[method], scale="smoke", overrides=parse_overrides(words))
    return made


def make_runs() -> None:
    for words in FINISHED:
        perform(planned(*words), HERE / "finished")
    shutil.rmtree(HERE / "finished" / "bases")
    for number, words in enumerate(KILLED):
        one = planned(*words)
        lived = subprocess.run([sys.executable, __file__, str(number)])
        assert lived.returncode == -signal.SIGKILL, lived
        with tempfile.TemporaryDirectory() as elsewhere:
            perform(one, Path(elsewhere))
            record = HERE / "whole" / one.folder / "record.json"
            record.parent.mkdir(parents=True)
            shutil.copy(Path(elsewhere) / one.folder / "record.json", record)
    for lock in HERE.rglob(".*lock"):
        lock.unlink()


def live_and_be_killed(number: int) -> None:
    """Perform a plan until an epoch of its third task, or of a training of all tasks, is over; not the last epoch."""
    met: list[str] = []

    def watch(step: ff.Progress) -> None:
        met.extend([step.task] if step.task not in met else [])
        if (len(met) == 3 or step.task == "all tasks") and step.finished:
            os.kill(os.getpid(), signal.SIGKILL)

    perform(planned(*KILLED[number]), HERE / "unfinished", progress=watch)


def main() -> None:
    assert FORMAT == 1, "this is for the record: a later version would write what the test is not about"
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        live_and_be_killed(int(sys.argv[1]))
        return
    for name in ("archives", "checkpoints", "finished", "unfinished", "whole"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    make_archives()
    make_runs()
    files = [file for file in sorted(HERE.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
    for file in files:
        print(f"{file.stat().st_size:9,}  {file.relative_to(HERE)}")
    print(f"{sum(file.stat().st_size for file in files):9,}  in all")


if __name__ == "__main__":
    main()
