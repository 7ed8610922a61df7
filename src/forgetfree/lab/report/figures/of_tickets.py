"""What figures of tickets share: which runs they are of, at which capacity, and how layers are called."""

from collections.abc import Callable, Sequence

from forgetfree.lab import legend
from forgetfree.lab.paper import WSN
from forgetfree.lab.report.columns import noisy
from forgetfree.lab.report.figures.figure import Missing, Run, Series, analysed, having, series
from forgetfree.registry import MethodEntry

USUAL = 0.1
"""The capacity at which the paper looks into a network."""


def series_of(runs: Sequence[Run], wanted: Callable[[str, MethodEntry], bool], analysis: str) -> list[Series]:
    """The series of the methods that are `wanted`, by the runs that have the analysis.

    One of them must choose what it reuses, as WSN does: tickets that never or always reuse only stand beside it.
    """
    settings = runs[0].plan["run"]
    command = f"forgetfree run {settings['experiment']} --method {WSN} --scale {settings['scale']}"
    fitting = [run for run in runs if not noisy(run) and wanted(run.method, legend.entry(run.method))]
    choosing = [run for run in fitting if _chooses(legend.entry(run.method))]
    having(runs, lambda run: run in choosing, f"this needs a run, made with: {command}")
    if len(choosing[0].record.tasks) < 2:
        raise Missing(f"a single task has nothing to reuse; a run of several is made with: {command}")
    if not any(run.folder.analysis(analysis) for run in choosing):
        analysed(choosing[0], analysis)  # says how to make it
    return series([run for run in fitting if run.folder.analysis(analysis)])


def _chooses(method: MethodEntry) -> bool:
    return method.reuses and not method.nested


def nearest(members: Sequence[Series], capacity: float = USUAL) -> Series:
    """The series whose capacity is nearest to the one that is asked for."""
    return min(members, key=lambda one: abs((one.capacity or 0.0) - capacity))


def short(layer: str) -> str:
    """The name of a layer as it stands at an axis."""
    return layer.removesuffix(".weight")
