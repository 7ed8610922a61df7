"""Collected sessions: the data of methods that train on everything together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from forgetfree.batches import check_data
from forgetfree.contracts import Task
from forgetfree.errors import InputError
from forgetfree.forms import anything, fields, listed, optional, row, tensor, text
from forgetfree.samples import sized
from forgetfree.tickets import Ticket

DATA = row(tensor, tensor, kind=tuple)
SESSIONS = listed(
    fields({"name": text(), "classes": listed(anything, 1, kind=tuple), "train": DATA, "valid": optional(DATA)})
)
"""As an archive has them."""


@dataclass(frozen=True, eq=False)
class Collected:
    """All sessions met, by name, as they were given."""

    own_names: ClassVar[bool] = True
    tasks: Mapping[str, Task] = field(default_factory=dict)

    def with_task(self, task: Task) -> "Collected":
        return replace(self, tasks={**self.tasks, task.name: task})

    def plain(self) -> dict[str, Tensor]:
        """All data, to be counted."""
        return {
            f"{name}.{part}.{kind}": value
            for name, task in self.tasks.items()
            for part, given in (("train", task.train), ("valid", task.valid))
            if given is not None
            for kind, value in zip(("inputs", "labels"), sized(given), strict=True)
        }

    def to_state(self, *, resumable: bool) -> dict[str, Any]:
        return {"sessions": [_stored(task) for task in self.tasks.values()]}

    def from_state(self, state: Mapping[str, Any], tickets: Mapping[str, Ticket], seed: int) -> "Collected":
        SESSIONS(state["sessions"], "sessions")
        tasks = {known["name"]: Task(**known) for known in state["sessions"]}
        for task in tasks.values():
            check_data(task)
        return Collected(tasks)

    def on(self, device: torch.device | str) -> "Collected":
        return self


def _stored(task: Task) -> dict[str, Any]:
    """A session as an archive can hold it."""
    if task.augment is not None or any(isinstance(data, Dataset) for data in (task.train, task.valid)):
        raise InputError(
            f"the data of {task.name!r} is a Dataset, or augmented by a function, which an archive cannot hold. Save "
            "without resumable: what is read from it can answer, not learn."
        )
    valid = None if task.valid is None else tuple(task.valid)  # type: ignore[arg-type]
    return {"name": task.name, "classes": task.classes, "train": tuple(task.train), "valid": valid}  # type: ignore[arg-type]
