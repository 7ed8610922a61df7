"""Plug-ins: modules that the user names, and what they add to the tables of methods, benchmarks and the rest."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.benchmarks import BENCHMARKS
from forgetfree.lab.experiment.experiments import EXPERIMENTS
from forgetfree.methods import METHODS
from forgetfree.registry import Table, load_plugin

TABLES: dict[str, Table[Any]] = {
    "methods": METHODS,
    "benchmarks": BENCHMARKS,
    "backbones": BACKBONES,
    "experiments": EXPERIMENTS,
}


def load_plugins(places: Iterable[str], *, here: bool = True) -> None:
    """Import modules by name and take in the tables they have; `here` also looks in the current folder."""
    for place in places:
        if here and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        load_plugin(place, TABLES)
