"""Landscape (Figure 3 of the paper): the training loss around a network, along its two leading Hessian eigenvectors.

Coordinates are the weights that count, θ where m > 0, and those of the linear head, which no mask is on. The loss is
R(θ ⊙ m), and its Hessian is taken in θ, as an optimizer sees it.

A mask makes such a Hessian smaller by itself: hidden weights are no coordinates, and minor ones move what is seen by
less than they move. So the leading eigenvalues of R at the same place in all weights, the same coordinates for every
network, are given beside them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from forgetfree.lab.analyses.hessian import Eigenpairs, Function, hessian_product, leading_eigenpairs
from forgetfree.lab.analyses.replay import Replay, Snapshot, replay, small, trained_epochs
from forgetfree.lab.analyses.subject import Advance, Subject
from forgetfree.lab.experiment import Plan
from forgetfree.rng import generator

WHEN = (0.7, 1.0)
"""Which parts of the training are over: epochs 70 and 100 of 100, as in the paper."""
SPAN = 1.0
"""How far the grid reaches along each unit eigenvector; the same for all networks."""
STEPS = 31
"""Points of the grid along each eigenvector."""
DIGITS = 5


def applies(plan: Plan) -> bool:
    return small(plan)


def analyse(subject: Subject, advance: Advance) -> Mapping[str, Any]:
    """`steps`: the offsets along both eigenvectors; `networks`: one for each epoch, see `surroundings`."""
    last = trained_epochs(subject)
    epochs = sorted({max(1, round(part * last)) for part in WHEN})
    found = replay(subject, epochs, lambda done: advance(done / 2))
    networks = []
    for number, snapshot in enumerate(found.snapshots):
        networks.append(surroundings(found, snapshot, subject.plan.seed))
        advance(0.5 + (number + 1) / (2 * len(epochs)))
    return {"steps": [rounded(float(step)) for step in offsets()], "networks": networks}


def surroundings(found: Replay, snapshot: Snapshot, seed: int) -> dict[str, Any]:
    """A network and the loss around it.

    `weights` counts its coordinates, `norm` is the length of θ ⊙ m, `gradient` that of the slope; `eigenvalues` are
    those in θ, `eigenvalues_in_all` those of R in all weights; `grid` has the loss row by row, a row for each offset
    along the second eigenvector.
    """
    counting = snapshot.counting.nonzero()[:, 0]
    point, mask, nothing = snapshot.weights[counting], snapshot.mask[counting], torch.zeros_like(snapshot.mask)

    def loss(values: Tensor) -> Tensor:
        return found.loss(nothing.index_copy(0, counting, values * mask))

    pairs = _leading(loss, point, seed)
    in_all = pairs if bool((snapshot.mask == 1).all()) else _leading(found.loss, snapshot.seen, seed)
    return {
        "epoch": snapshot.epoch,
        "loss": rounded(float(loss(point))),
        "accuracy": rounded(found.accuracy(snapshot.seen)),
        "weights": len(counting),
        "norm": rounded(float(snapshot.seen.norm())),
        "gradient": rounded(float(torch.func.grad(loss)(point).norm())),
        "eigenvalues": [rounded(value) for value in pairs.values.tolist()],
        "eigenvalues_in_all": [rounded(value) for value in in_all.values.tolist()],
        "grid": [[rounded(value) for value in row] for row in around(loss, point, pairs.vectors).tolist()],
    }


def around(loss: Function, point: Tensor, directions: Tensor) -> Tensor:
    """The loss at point + x·first + y·second, [offsets y, offsets x]."""
    first, second = directions
    with torch.no_grad():
        rows = [torch.stack([loss(point + x * first + y * second) for x in offsets()]) for y in offsets()]
    return torch.stack(rows)


def offsets() -> Tensor:
    return torch.linspace(-SPAN, SPAN, STEPS, dtype=torch.float64)


def rounded(value: float) -> float:
    """A value with as many digits as a figure can show."""
    return float(f"{value:.{DIGITS}g}")


def _leading(loss: Function, point: Tensor, seed: int) -> Eigenpairs:
    return leading_eigenpairs(hessian_product(loss, point), len(point), generator=generator(seed, "hessian"))
