"""Convergence (Equations 3 to 6 of the paper): by how much the gradient changes where the weights do.

    |∇R(θ⊙m) - ∇R(θ'⊙m)| / |(θ - θ')⊙m|

The proposition says that the ratio is smaller for subnetworks than for a dense network, and smaller for soft ones than
for hard ones. It is measured here for pairs of two kinds: networks one epoch apart in training, both seen through the
mask of the later one, and the network at the end beside others at some distance in random directions. That is evidence
about these networks and no proof.

∇R is read in two ways: as printed, the slope in all weights, also those that the mask hides; and the slope that
training follows, m ⊙ ∇R, in the weights that count. Coordinates are those of the landscape, the linear head among them.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from forgetfree.lab.analyses.hessian import Function
from forgetfree.lab.analyses.landscape import rounded
from forgetfree.lab.analyses.replay import Snapshot, replay, small, trained_epochs
from forgetfree.lab.analyses.subject import Advance, Subject
from forgetfree.lab.experiment import Plan
from forgetfree.rng import generator

RADII = (0.01, 0.1, 1.0)
"""Distances |(θ - θ')⊙m| of the random pairs; the same for all networks."""
DRAWS = 200
"""Random pairs of each distance."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Which quantiles of the ratios are given."""
READINGS = ("printed", "followed")
"""The slope in all weights, and the one that training follows."""

Pair = tuple[Tensor, Tensor]


def applies(plan: Plan) -> bool:
    return small(plan)


def analyse(subject: Subject, advance: Advance) -> Mapping[str, Any]:
    """`ratios`: kind of pair → reading → quantiles, mean and largest; kinds are "epochs" and the distances."""
    epochs = trained_epochs(subject)
    found = replay(subject, range(1, epochs + 1), lambda done: advance(done / 2))
    end = found.snapshots[-1]
    kinds: dict[str, Iterable[tuple[Pair, Tensor]]] = {}
    if epochs > 1:
        kinds["epochs"] = (((one.weights, next_.weights), next_.mask) for one, next_ in pairwise(found.snapshots))
    for radius in RADII:
        kinds[f"{radius:g}"] = ((pair, end.mask) for pair in random_pairs(end, radius, subject.plan.seed))
    ratios = {}
    for number, (kind, pairs) in enumerate(kinds.items()):
        both = [ratio(found.loss, pair, mask) for pair, mask in pairs]
        ratios[kind] = {
            reading: _spread(values) for reading, values in zip(READINGS, zip(*both, strict=True), strict=True)
        }
        advance(0.5 + (number + 1) / (2 * len(kinds)))
    return {
        "levels": list(LEVELS),
        "draws": DRAWS,
        "loss": rounded(float(found.loss(end.seen))),
        "weights": int(end.counting.sum()),
        "ratios": ratios,
    }


def ratio(loss: Function, pair: Pair, mask: Tensor) -> tuple[float, float]:
    """The change of the slope over that of the weights, by both readings."""
    slope = torch.func.grad(loss)
    one, other = (weights * mask for weights in pair)
    change, distance = slope(one) - slope(other), float((one - other).norm())
    return float(change.norm()) / distance, float((mask * change).norm()) / distance


def random_pairs(snapshot: Snapshot, radius: float, seed: int) -> Iterator[Pair]:
    """The network and others, as seen `radius` away from it, in random directions of the weights that count."""
    draw = generator(seed, "convergence", f"{radius:g}")
    for _ in range(DRAWS):
        step = torch.randn(len(snapshot.mask), generator=draw, dtype=torch.float64) * snapshot.counting
        yield snapshot.weights, snapshot.weights + radius * step / (step * snapshot.mask).norm()


def _spread(values: tuple[float, ...]) -> dict[str, Any]:
    found = torch.tensor(values, dtype=torch.float64)
    quantiles = found.quantile(torch.tensor(LEVELS, dtype=torch.float64)).tolist()
    return {
        "quantiles": [rounded(value) for value in quantiles],
        "mean": rounded(float(found.mean())),
        "largest": rounded(float(found.max())),
    }
