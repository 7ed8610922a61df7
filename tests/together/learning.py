"""Every scenario of `test_team`, in one process or in several: what was learned, as digests, or what was said.

torchrun --nproc-per-node 2 -m together.learning FILE scenario [scenario …]
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree.testing.method import kept_by

RECIPE = ff.Recipe(epochs=2, batch_size=8, accumulate=4, lr=0.02)
ROWS = 75
"""Not a multiple of anything: the last step is short, and so is its last micro-batch."""


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(11, 6), nn.LSTM(6, 8, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        return self.layer(self.words(words))[0].mean(1)


class Sick(nn.Module):
    """Fails while it learns, in all processes but the first."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows * torch.nan if self.training and rank() else rows


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(12, 80), nn.ReLU(), nn.Linear(80, 40), nn.ReLU()),
    "dropout": lambda: nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 16), nn.ReLU()),
    "norm": lambda: nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16)),
    "lstm": Sequence,
}


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[kind]()


def task(number: int, kind: str = "mlp", rows: int = ROWS) -> ff.Task:
    draw = torch.Generator().manual_seed(number)
    labels = torch.arange(rows) % 3
    inputs = torch.randn(rows, 12, generator=draw) + labels[:, None]
    if kind == "lstm":
        inputs = torch.randint(11, (rows, 5), generator=draw)
    names = tuple(f"{number}/{label}" for label in range(3))
    return ff.Task(f"task {number}", names, (inputs, labels), (inputs[:20], labels[:20]))


def learner(method: str, kind: str, recipe: ff.Recipe = RECIPE, **given: Any) -> Any:
    usual: dict[str, Any] = {"capacity": 0.4} if method in ("wsn", "packnet", "softnet") else {}
    recipe = replace(recipe, optimizer="sgd") if method == "gpm" else recipe
    usual |= {"session": recipe} if ff.METHODS[method].scenario == "fscil" else {}
    return ff.METHODS[method](network(kind), recipe=recipe, **(usual | given))


def learned(method: str, kind: str, recipe: ff.Recipe = RECIPE, **given: Any) -> dict[str, str]:
    made = learner(method, kind, recipe, **given)
    for number in range(2):
        made.learn(task(number, kind))
    assert all(verified.ok for verified in made.verify() if made.forget_free)
    seconds = ("seconds",)
    return {name: str(hash_of(value)) for name, value in kept_by(made).items() if not name.startswith(seconds)}


def hash_of(value: Any) -> int:
    import re
    import zlib

    said = re.sub(r"seconds=[^,)]*", "", value) if isinstance(value, str) else repr(value)
    return zlib.crc32(said.encode())


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def not_finite() -> Any:
    """A loss that is no number, in one of the processes only."""
    torch.manual_seed(0)
    ff.WSN(nn.Sequential(nn.Linear(12, 24), Sick()), capacity=0.4, recipe=RECIPE).learn(task(0))


def other_data() -> Any:
    """Every process has data of its own."""
    learner("wsn", "mlp").learn(task(rank()))


def broken_module() -> Any:
    """A module that fails in one of the processes."""
    made = learner("wsn", "mlp")

    def fail(progress: ff.Progress) -> None:
        if rank() == 1 and progress.epoch == 2:
            raise ValueError("the disk is full")

    made.learn(task(0), progress=fail)


def odd_share() -> Any:
    learner("wsn", "mlp", ff.Recipe(epochs=1, accumulate=3)).learn(task(0))


def resumed(path: str) -> Any:
    """Learn from a checkpoint that another number of processes has left, or leave one."""
    made, file = learner("wsn", "dropout"), Path(path)

    def stop(progress: ff.Progress) -> None:
        if progress.finished and progress.epoch == 1 and os.environ.get("STOP"):
            raise KeyboardInterrupt

    try:
        made.learn(task(0, "dropout"), checkpoint=file if rank() == 0 else file.with_name("elsewhere"), progress=stop)
    except KeyboardInterrupt:
        return "stopped"
    return {name: str(hash_of(value)) for name, value in kept_by(made).items()}


def perform(scenario: str) -> Any:
    name, *words = scenario.split(":")
    if name == "learned":
        return learned(*words)
    return (
        {"not_finite": not_finite, "other_data": other_data, "broken_module": broken_module, "odd_share": odd_share}[
            name
        ]()
        if name != "resumed"
        else resumed(":".join(words))
    )


def main() -> None:
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("gloo")
    found = {}
    for scenario in sys.argv[2:]:
        try:
            found[scenario] = perform(scenario)
        except ff.ForgetfreeError as error:
            found[scenario] = f"{type(error).__name__}: {error}"
        except Exception:
            found[scenario] = traceback.format_exc()
    Path(f"{sys.argv[1]}.{rank()}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
