"""How fast a network fills up at c = 70 %: ours, and the released mechanics in plain torch, task after task.

    FORGETFREE_DATA=… python -m bench.filling --json results/bench/filling.json

The published density of this row leaves more weights free than we measure. Two habits of the released code could
matter where little is left: it keeps all scores at the threshold, ties included, and stores the mask of the last batch
with the weights of the best epoch. `released` has the first, `last batch` both. Permuted MNIST, batches of 64.
"""

import argparse
import copy
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from bench.loop import validation_loss
from bench.nets import MLP
from bench.released import Used, adam, masks_of, through_masks, with_masks_of, zero_used
from bench.rivals import Effort
from bench.tables import WIDTH, Cell, Table, store
from forgetfree import WSN, Recipe, Task
from forgetfree.batches import batches
from forgetfree.heads import linear_head_without_bias
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.rng import generator
from forgetfree.tickets import density, used

CAPACITY, BATCH, EPOCHS = 0.7, 64, 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.filling", description="How fast a network fills up.")
    parser.add_argument("--tasks", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--images", type=int, help="of each part (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of permutations, weights and batches (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    words = parser.parse_args()
    torch.set_num_threads(1)
    tasks = list(BENCHMARKS["permuted_mnist"](tasks=words.tasks, seed=words.seed, limit=words.images).tasks)
    ways = {
        "ours": ours(tasks, words.seed),
        "released": released(tasks, words.seed),
        "released, last batch": released(tasks, words.seed, last_batch=True),
    }
    rows: list[Mapping[str, Cell]] = [
        {"way": way, **{f"after {t}": f"{100 * part:.1f}" for t, part in enumerate(found, 1)}}
        for way, found in ways.items()
    ]
    note = Effort().said(f"{EPOCHS} epochs of batch {BATCH}, seed {words.seed}; percent of the weights in use")
    table = Table(f"filling: density at c = {CAPACITY:.0%}", rows, note)
    table.show(Console(width=WIDTH))
    if words.json:
        store([table], words.json)


def ours(tasks: list[Task], seed: int) -> list[float]:
    """The part of the weights in use after each task."""
    torch.manual_seed(seed)
    recipe = Recipe(epochs=EPOCHS, batch_size=BATCH, lr=1e-3)
    learner = WSN(MLP.build(), capacity=CAPACITY, recipe=recipe, heads=linear_head_without_bias, seed=seed)
    found = []
    for task in tasks:
        learner.learn(task)
        found.append(density(used(learner.network.tickets)))
    return found


def released(tasks: list[Task], seed: int, *, last_batch: bool = False) -> list[float]:
    """The same by the released mechanics, with the mask of the best epoch or of the last batch."""
    torch.manual_seed(seed)
    net, taken, found = through_masks(MLP.build(), CAPACITY), {}, []
    for position, task in enumerate(tasks):
        whole = nn.Sequential(net, nn.Linear(100, task.width, bias=False))
        frozen: Used = {f"0.{name}": mask for name, mask in taken.items()}
        masks = _fitted(whole, task, seed, position, frozen)
        if last_batch:
            net.load_state_dict(masks, strict=False)
        taken = with_masks_of(net, taken)
        found.append(_density(taken))
    return found


def _fitted(whole: nn.Sequential, task: Task, seed: int, position: int, frozen: Used) -> dict[str, Tensor]:
    """Train as the scripts do and restore the best epoch; the masks of the last batch."""
    parameters, lowest, best = list(whole.parameters()), math.inf, None
    optimizer, after_backward = adam(parameters), partial(zero_used, whole, frozen)
    for epoch in range(EPOCHS):
        whole.train()
        for batch in batches(task, task.train, BATCH, order=generator(seed, position, "order", epoch)):
            optimizer.zero_grad()
            F.cross_entropy(whole(batch.inputs), batch.labels).backward()
            after_backward()
            optimizer.step()
        if (loss := validation_loss(whole, task.valid, Recipe.eval_batch_size)) < lowest:
            lowest, best = loss, copy.deepcopy(whole.state_dict())
    masks = masks_of(whole[0])
    whole.load_state_dict(best)
    return masks


def _density(taken: Used) -> float:
    return sum(int(mask.sum()) for mask in taken.values()) / sum(mask.numel() for mask in taken.values())


if __name__ == "__main__":
    main()
