"""Completion: what a shell offers after a tab, from tables and files that need no torch.

`forgetfree --install-completion` sets it up. A plug-in counts if it is installed, or named on the line already.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path

import typer

from forgetfree.errors import ForgetfreeError

FIGURES = (
    "accuracy_over_capacity", "accuracy_per_task", "task_bars", "transfer_matrix", "session_curves",
    "method_comparison", "capacity_growth", "weight_reuse", "reuse_ablation", "mask_correlation", "loss_landscape",
    "convergence", "embedding_map",
)  # fmt: skip
"""The names of lab.report.figures.FIGURES, which would import matplotlib; a test holds them equal."""
TABLES = ("1", "2", "3", "transfer", "cifar100", "mini_imagenet", "cub200", "omniglot", "digits", "sessions")
"""Those of lab.report.contents.NAMES, likewise."""
ANALYSES = ("tickets", "codes", "reuse", "landscape", "convergence", "embedding")
"""Those of lab.analyses.ANALYSES, likewise."""
SECTIONS = ("benchmark", "backbone", "recipe", "session", "protocol")
"""Of an experiment, beside its methods."""
SCALES = ("smoke", "cpu", "paper")

Offer = list[tuple[str, str]]
"""Words, each with what a shell shows beside it."""


def quietly(offer: Callable[[typer.Context, str], Offer]) -> Callable[[typer.Context, str], Offer]:
    """Load the plug-ins that are on the line; what is wrong with the line is said when it is run, not before."""

    @wraps(offer)
    def offered(context: typer.Context, incomplete: str) -> Offer:
        from forgetfree.lab.experiment.plugins import load_plugins

        try:
            load_plugins([*(context.find_root().params.get("plugin") or []), *(context.params.get("plugin") or [])])
            return offer(context, incomplete)
        except ForgetfreeError:
            return []

    return offered


@quietly
def experiments(context: typer.Context, incomplete: str) -> Offer:
    """Experiments by name, and TOML files."""
    from forgetfree.lab.experiment.experiments import catalog

    before, slash, start = incomplete.rpartition("/")
    folder = Path(f"{before}{slash}" or ".")
    here = sorted(path for path in folder.iterdir() if path.name.startswith(start)) if folder.is_dir() else []
    files = [(f"{before}{slash}{path.name}", "a file") for path in here if path.suffix == ".toml"]
    folders = [(f"{before}{slash}{path.name}/", "a folder") for path in here if incomplete and path.is_dir()]
    return [*catalog().items(), *files, *folders]


@quietly
def methods(context: typer.Context, incomplete: str) -> Offer:
    """Methods that learn as the experiment asks for."""
    from forgetfree.lab.experiment.experiments import read
    from forgetfree.methods import METHODS

    given = _experiment(context)
    scenario = read(given)[0].partition("/")[0] if given else None
    return [(name, entry.label) for name, entry in METHODS.entries.items() if scenario in (None, entry.scenario)]


@quietly
def scales(context: typer.Context, incomplete: str) -> Offer:
    """Scales of the experiment."""
    from forgetfree.lab.experiment.experiments import read

    given = _experiment(context)
    return [(name, "") for name in (read(given)[1]["scales"] if given else SCALES)]


@quietly
def settings(context: typer.Context, incomplete: str) -> Offer:
    """What the experiment sets; where several methods are asked for, those of each behind its name."""
    from forgetfree.lab.experiment.experiments import read

    given = _experiment(context)
    if not given:
        return []
    content = read(given)[1]
    shared = [f"{section}.{key}" for section in SECTIONS for key in content.get(section, {}) if key != "name"]
    chosen = context.params.get("method") or [*content["methods"]][:1]
    own = [
        (key if len(chosen) == 1 else f"{method}.{key}")
        for method in chosen
        for key in [*content.get("method", {}), *content["methods"].get(method, {})]
        if key not in SECTIONS
    ]
    return [(f"{key}=", "") for key in dict.fromkeys([*own, *shared])]


def figures(incomplete: str) -> list[str]:
    return [name for name in (*FIGURES, "all") if name.startswith(incomplete)]


def analyses(incomplete: str) -> list[str]:
    return [name for name in ANALYSES if name.startswith(incomplete)]


def tables(incomplete: str) -> list[str]:
    return [name for name in TABLES if name.startswith(incomplete)]


def _experiment(context: typer.Context) -> str | None:
    """The experiment on the line; before an option that still lacks its value, words are not told apart yet."""
    given: str | None = context.params.get("experiment") or next(iter(context.args), None)
    return given
