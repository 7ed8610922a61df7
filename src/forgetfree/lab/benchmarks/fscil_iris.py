"""Iris: scikit-learn's flowers, three species by four lengths, as one base session that no other follows.

The data of the paper's loss landscapes (Figure 3), embedded. One flower is listed twice and counts once, so that none
is both learned and tested. The seed draws a fifth of each species to test; lengths are standardised by the others.
"""

import torch

from forgetfree.lab.benchmarks.few_shot import Labelled, sessions
from forgetfree.lab.benchmarks.stream import Benchmark
from forgetfree.rng import generator

TESTED = 0.2


def fscil_iris(*, held_out: float = 0.2, seed: int = 0) -> Benchmark:
    """The three species in one session; `held_out` is the fraction of flowers not tested that validates."""
    from sklearn.datasets import load_iris  # half a second, and only needed here

    iris = load_iris()
    lengths, labels = torch.from_numpy(iris.data), torch.from_numpy(iris.target).long()
    different = torch.unique(torch.column_stack([lengths, labels]), dim=0)
    flowers = Labelled(different[:, :-1], different[:, -1].long())
    learned, tested = [], []
    for label, found in enumerate(flowers.of_each_class(len(iris.target_names))):
        order = found[torch.randperm(len(found), generator=generator(seed, "iris", label))]
        count = int(TESTED * len(found) + 0.5)
        learned.append(order[count:])
        tested.append(order[:count])
    train, test = (Labelled(*(values[torch.cat(part)] for values in flowers)) for part in (learned, tested))
    middle, width = train.images.mean(0), train.images.std(0)
    names = [str(name) for name in iris.target_names]
    return sessions(
        "fscil_iris", train, test, names, order=range(len(names)), base=len(names), ways=1, shots=1, tasks=1,
        seed=seed, held_out=held_out, prepare=lambda values: ((values - middle) / width).float(),
    )  # fmt: skip
