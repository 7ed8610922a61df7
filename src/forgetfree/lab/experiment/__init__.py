"""Experiments: a TOML, a method, a scale, a seed and overrides become a plan; a plan is performed.

`experiments` knows the files, `schema` the settings, `planning` makes plans of them, `performing` runs one and
`estimating` says what it would cost. A name is imported when it is used: a list of experiments needs no torch.
"""

from typing import TYPE_CHECKING

from forgetfree.registry import lazy_names

if TYPE_CHECKING:
    from forgetfree.lab.experiment.estimating import estimate
    from forgetfree.lab.experiment.experiments import EXPERIMENTS, catalog, describe
    from forgetfree.lab.experiment.performing import build, perform
    from forgetfree.lab.experiment.planning import Plan, parse_overrides, plan
    from forgetfree.lab.experiment.plugins import load_plugins
    from forgetfree.lab.experiment.provenance import versions
    from forgetfree.lab.experiment.schema import known_keys

__all__ = [
    "EXPERIMENTS",
    "Plan",
    "build",
    "catalog",
    "describe",
    "estimate",
    "known_keys",
    "load_plugins",
    "parse_overrides",
    "perform",
    "plan",
    "versions",
]

_MODULES = {
    "estimating": ("estimate",),
    "experiments": ("EXPERIMENTS", "catalog", "describe"),
    "performing": ("build", "perform"),
    "planning": ("Plan", "parse_overrides", "plan"),
    "plugins": ("load_plugins",),
    "provenance": ("versions",),
    "schema": ("known_keys",),
}

__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{module}:{name}" for module, names in _MODULES.items() for name in names}
)
