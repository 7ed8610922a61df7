"""Small learners for tests, and all that a learner is as one flat dict, to compare bit for bit."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import forgetfree as ff

FEATURES = 6


def backbone(seed: int = 1) -> nn.Module:
    """Dropout, batch norm and a counter: everything that can move by itself. Leaves the random state alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(FEATURES, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 8), nn.ReLU()
        )


def pair(seed: int, samples: int = 40, classes: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % classes
    centres = 2 * torch.randn(classes, FEATURES, generator=draw)
    return centres[labels] + torch.randn(samples, FEATURES, generator=draw), labels


def task(name: str, seed: int = 0, *, valid: bool = True, **options: Any) -> ff.Task:
    classes = (f"{name} 0", f"{name} 1", f"{name} 2")
    return ff.Task(name, classes, pair(2 * seed), pair(2 * seed + 1, 20) if valid else None, **options)


def learner(recipe: ff.Recipe | None = None, **options: Any) -> ff.WSN:
    recipe = recipe or ff.Recipe(epochs=3, batch_size=16, lr=0.02)
    return ff.WSN(backbone(), **({"capacity": 0.4, "recipe": recipe, "seed": 7} | options))


def snapshot(learner: ff.WSN) -> dict[str, Any]:
    """Weights, scores, tickets, own tensors, heads and what is said of the tasks; tensors as their bytes."""
    memory = learner.memory()
    tensors: dict[str, Tensor] = {}
    for place, held in (("shared", memory.shared), ("common", memory.common), ("scores", learner.scores.state_dict())):
        tensors |= {f"{place}/{name}": value for name, value in held.items()}
    tensors |= {f"used/{name}": mask.bits for name, mask in memory.used.items()}
    for name, ticket in memory.tickets.items():
        tensors |= {f"mask/{name}/{key}": mask.bits for key, mask in ticket.masks.items()}
        tensors |= {f"own/{name}/{key}": value for key, value in ticket.own.items()}
    for name, head in memory.heads.items():
        tensors |= {f"head/{name}/{key}": value for key, value in head.items()}
    frozen: dict[str, Any] = {
        name: (
            str(value.dtype),
            tuple(value.shape),
            value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
        )
        for name, value in tensors.items()
    }
    return frozen | {f"task/{name}": repr(learned) for name, learned in learner.tasks.items()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The same snapshot; the message names what differs instead of showing bytes."""
    different = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    assert not different, f"these differ: {different}"


def random_state() -> tuple[Any, ...]:
    """The global random state of torch, numpy and Python."""
    legacy = np.random.get_state()
    return bytes(torch.get_rng_state().tolist()), legacy[1].tobytes(), legacy[2:], random.getstate()
