"""Beside: runs of several methods that may stand beside each other: at one capacity, seed by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forgetfree.lab.paper import SMALL_NETWORKS, options
from forgetfree.lab.report.figures.figure import Missing, Run, Series, having, series


@dataclass(frozen=True)
class Beside:
    """Seed → method → run, by the seeds that all methods have, in their order."""

    capacity: float
    by_seed: Mapping[int, Mapping[str, Run]]


def small_networks(runs: Sequence[Run]) -> Beside:
    """Dense network, HardNet and SoftNet where they are small; the paper shows them at c = 10 %."""
    fitting = having(
        runs,
        lambda run: bool(run.record.sessions) and run.plan["backbone"]["name"] == "mlp",
        "this figure is of small networks with few-shot sessions; make some with: forgetfree run fscil/iris "
        + options(SMALL_NETWORKS),
    )
    return beside(fitting, SMALL_NETWORKS, near=0.1)


def beside(runs: Sequence[Run], methods: tuple[str, ...], *, near: float) -> Beside:
    """One run of each method for each seed; of several capacities that the methods share, the one nearest to `near`."""
    plan = runs[0].plan["run"]
    command = f"forgetfree run {plan['experiment']} --scale {plan['scale']} --seed {plan['seed']}"
    every = series(runs)
    found = {method: [one for one in every if one.method == method] for method in methods}
    for method, members in found.items():
        if not members:
            raise Missing(f"there is no run of {method}; make one with: {command} --method {method}")
    shared = set.intersection(*({one.capacity for one in members} - {None} for members in _masked(found)))
    capacities = sorted((value for value in shared if value is not None), key=lambda value: (abs(value - near), value))
    words = options(methods)
    if not capacities:
        raise Missing(f"no capacity is the same for all; make runs with: {command} {words} --set capacity={near:g}")
    chosen = {
        method: next(one for one in members if one.capacity in (None, capacities[0]))
        for method, members in found.items()
    }
    runs_of = {method: {run.plan["run"]["seed"]: run for run in reversed(one.runs)} for method, one in chosen.items()}
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in runs_of.values())))
    if not seeds:
        raise Missing(f"no seed is the same for all; make runs with: {command} {words}")
    return Beside(capacities[0], {seed: {method: runs_of[method][seed] for method in methods} for seed in seeds})


def _masked(found: Mapping[str, Sequence[Series]]) -> list[Sequence[Series]]:
    return [members for members in found.values() if any(one.capacity is not None for one in members)]
