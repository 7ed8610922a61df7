"""Estimating: what a plan will cost, from timing a few steps of it."""

import time
from dataclasses import replace
from pathlib import Path

import torch

from forgetfree.batches import batches, count_samples, repeated
from forgetfree.lab.experiment.performing import build
from forgetfree.lab.experiment.planning import Plan
from forgetfree.lab.experiment.schema import RECIPES
from forgetfree.lab.protocols.contracts import Collecting
from forgetfree.rng import threads
from forgetfree.training import Recipe

PATIENCE = 5.0
"""Seconds: where ten steps take longer, fewer are timed."""


def estimate(plan: Plan, data_root: Path | None = None) -> dict[str, float]:
    """What a plan will cost: training steps, and seconds by timing a few of them (testing and start-up apart)."""
    benchmark, learner, _ = build(plan, data_root)
    sizes = [count_samples(task.train) for task in benchmark.tasks]
    recipes = [Recipe(**plan.settings[section]) for section in RECIPES if section in plan.settings]
    followed = [*recipes, *recipes[-1:] * len(sizes)][: len(sizes)]
    each = [recipe.epochs * -(-size // recipe.batch_size) for recipe, size in zip(followed, sizes, strict=True)]
    if len(recipes) > 1 and isinstance(learner, Collecting):  # few-shot sessions that are trained together at the end
        each[1:] = [recipes[0].epochs * -(-sum(sizes) // recipes[0].batch_size)]
    counts = (10, 110) if _timed(plan, data_root, 10) < PATIENCE else (2, 12)
    few, more = (min(_timed(plan, data_root, count) for _ in range(2)) for count in counts)
    steps = sum(each)
    return {"tasks": len(sizes), "steps": steps, "seconds": steps * max(more - few, 0.0) / (counts[1] - counts[0])}


def _timed(plan: Plan, data_root: Path | None, steps: int) -> float:
    """Seconds to learn so many batches of the first task."""
    short = {**plan.settings, "recipe": {**plan.settings["recipe"], "epochs": 1}}
    benchmark, learner, _ = build(replace(plan, settings=short), data_root)
    samples = steps * int(short["recipe"].get("batch_size", Recipe.batch_size))
    first = benchmark.tasks[0]
    (batch,) = batches(first, repeated(first.train, samples), samples)
    some = first.classes[:samples]  # every class has a sample, however few there are
    labels = torch.arange(samples) % len(some)
    train = (batch.inputs, labels if first.classifies else batch.labels)
    started = time.monotonic()
    with threads(plan.threads):
        learner.learn(replace(first, classes=some, train=train, valid=None))
        if isinstance(learner, Collecting):
            learner.finish()
    return time.monotonic() - started
