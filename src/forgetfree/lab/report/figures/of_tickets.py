"""What figures of tickets share: which runs they are of, at which capacity, and how layers are called."""

from collections.abc import Sequence

from forgetfree.lab.report.figures.figure import Missing, Seen, Series, analysed, having, series

USUAL = 0.1
"""The capacity at which the paper looks into a network."""


def series_of(runs: Sequence[Seen], methods: Sequence[str], analysis: str) -> list[Series]:
    """The series of some methods, by the runs that have the analysis; of the first method one must be there."""
    settings = runs[0].plan["run"]
    run = f"forgetfree run {settings['experiment']} --method {methods[0]} --scale {settings['scale']}"
    first = having(runs, lambda seen: seen.method == methods[0], f"this needs a run, made with: {run}")
    if len(first[0].record.tasks) < 2:
        raise Missing(f"a single task has nothing to reuse; a run of several is made with: {run}")
    if not any(seen.folder.analysis(analysis) for seen in first):
        analysed(first[0], analysis)  # says how to make it
    return series([seen for seen in runs if seen.method in methods and seen.folder.analysis(analysis)])


def nearest(members: Sequence[Series], capacity: float = USUAL) -> Series:
    """The series whose capacity is nearest to the one that is asked for."""
    return min(members, key=lambda one: abs((one.capacity or 0.0) - capacity))


def short(layer: str) -> str:
    """The name of a layer as it stands at an axis."""
    return layer.removesuffix(".weight")
