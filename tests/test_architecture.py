"""The house as drawn in docs/architecture.md: its rooms, its arrows, and what is never in a room."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "forgetfree"
FILES = sorted(SOURCE.rglob("*.py"))
FEWEST_FILES, FEWEST_IMPORTS = 30, 120


def test_enough_files_and_imports_were_looked_at():
    assert len(FILES) >= FEWEST_FILES
    assert sum(len(list(imports(file))) for file in FILES) >= FEWEST_IMPORTS
    assert len(drawn()) >= 20


def test_every_room_is_drawn_and_every_drawn_room_exists():
    folders = [SOURCE, SOURCE / "lab"]
    found = {room_of(path) for folder in folders for path in folder.iterdir() if _holds_something(path)}
    assert found == set(drawn())


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_what_its_room_may(file):
    room = room_of(file)
    used = {target for target, _ in imports(file)} - {room}
    assert used <= drawn()[room], f"{room} may not import {sorted(used - drawn()[room])}: see docs/architecture.md"


DOOR = "__main__.py"
"""Of `python -m forgetfree`, which is the laboratory's command line."""


def test_the_core_never_imports_the_laboratory():
    core = [file for file in FILES if "lab" not in file.relative_to(SOURCE).parts and file.name != DOOR]
    assert len(core) >= 18
    for file in core:
        assert not [module for _, module in imports(file) if module.startswith("forgetfree.lab")], file
    for room, allowed in drawn().items():
        opens = room.startswith("lab") or f"{room}.py" == DOOR
        assert opens or not any(target.startswith("lab") for target in allowed), room


def test_no_method_imports_another():
    methods = [file for file in (SOURCE / "methods").glob("*.py") if file.name != "__init__.py"]
    assert len(methods) >= 4
    for file in methods:
        assert not [module for _, module in imports(file) if module.startswith("forgetfree.methods")], file


def test_arrows_never_run_in_a_circle():
    arrows, order = {room: allowed & set(drawn()) for room, allowed in drawn().items()}, []
    while len(order) < len(arrows):
        ready = [room for room in arrows if room not in order and arrows[room] <= set(order)]
        assert ready, f"these rooms may import each other in a circle: {sorted(set(arrows) - set(order))}"
        order += ready


def test_nothing_happens_on_import():
    done = subprocess.run([sys.executable, "-c", WATCHED_IMPORT], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"changed": [], "loaded": []}


def test_importing_every_room_of_the_core_leaves_no_trace():
    core = [room for room in drawn() if not room.startswith(("lab", "__init__"))]
    everything = WATCHED_IMPORT.replace(
        "import forgetfree\n", "".join(f"import forgetfree.{room}\n" for room in ["errors", *core])
    )
    assert everything.count("import forgetfree.") > 15
    done = subprocess.run([sys.executable, "-c", everything], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"changed": [], "loaded": []}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_holds_nothing_that_is_never_in_a_room(file):
    assert list(faults(ast.parse(file.read_text()), room_of(file))) == []


@pytest.mark.parametrize(
    ("code", "room", "fault"),
    [
        ("try:\n    x\nexcept Exception:\n    pass", "masks", "except Exception"),
        ("try:\n    x\nexcept (ValueError, Exception):\n    pass", "lab/cli", "except Exception"),
        ("try:\n    x\nexcept:\n    pass", "masks", "bare except"),
        ("try:\n    x\nexcept BaseException:\n    pass", "masks", "except BaseException"),
        ("def f():\n    print(1)", "masks", "print"),
        ("import pickle", "lab/report", "pickle"),
        ("def f():\n    from pickle import loads", "files", "pickle"),
        ("import torch\ntorch.load('x')", "files", "torch.load"),
        ("from torch import load", "files", "torch.load"),
        ("import importlib\nimportlib.import_module('x')", "files", "import_module"),
        ("import torch\ntorch.manual_seed(0)", "training", "torch.manual_seed"),
    ],
)
def test_each_fault_would_be_seen(code, room, fault):
    assert any(fault in found for found in faults(ast.parse(code), room))


def test_what_is_allowed_is_no_fault():
    code = "try:\n    x\nexcept BaseException:\n    undo()\n    raise\nprint(1)"
    assert list(faults(ast.parse(code), "lab/demo")) == []


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("from forgetfree.masks import Scores", "masks"),
        ("from forgetfree import masks", "masks"),
        ("from forgetfree import WSN", "__init__"),
        ("import forgetfree.lab.cli", "lab/cli"),
        ("def f():\n    from forgetfree.lab.report import tables", "lab/report"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from forgetfree.network import Layout", "network"),
        ("from . import tickets", "tickets"),
        ("from .tickets import Ticket", "tickets"),
        ("import sklearn.datasets", "sklearn"),
    ],
)
def test_every_kind_of_import_is_seen(code, target):
    assert target in {room for room, _ in _imports(ast.parse(code), ["forgetfree"])}


def drawn() -> dict[str, set[str]]:
    """The table of the page: room → what it may import."""
    rows = re.findall(
        r"^\| `([\w/]+)` \|[^|]*\| (.*) \|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
    return {room: set(re.findall(r"`([\w/]+)`", allowed)) for room, allowed in rows}


def room_of(path: Path) -> str:
    """The room a file or folder of the package belongs to."""
    return _room(path.relative_to(SOURCE).with_suffix("").parts)


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """Every import of a file that is not of the standard library, as (room or package, module)."""
    package = ["forgetfree", *file.relative_to(SOURCE).parent.parts]
    yield from _imports(ast.parse(file.read_text()), package)


def faults(tree: ast.AST, room: str) -> Iterator[str]:
    """What a room may never hold, by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)} if node.type else set()
            again = isinstance(node.body[-1], ast.Raise)
            if node.type is None:
                yield "bare except"
            if "Exception" in caught:
                yield "except Exception"
            if "BaseException" in caught and not again:
                yield "except BaseException that does not raise again"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if "pickle" in [name.split(".")[0] for name in names] or getattr(node, "module", None) == "pickle":
                yield "pickle"
            if getattr(node, "module", None) == "torch" and "load" in names:
                yield "torch.load"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "print" and not room.startswith("lab"):
                yield "print in the core"
            if called in ("torch.load", "__import__") or called.endswith("import_module"):
                yield called
            if called in ("torch.manual_seed", "random.seed", "np.random.seed") and room not in ("rng", "testing"):
                yield f"{called} outside rng"


def _imports(tree: ast.AST, package: list[str]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            modules = [f"{base}.{alias.name}" if _is_module(f"{base}.{alias.name}") else base for alias in node.names]
        else:
            continue
        for module in modules:
            top, *rest = module.split(".")
            if top == "forgetfree":
                yield _room(rest), module
            elif top not in sys.stdlib_module_names:
                yield top, module


def _room(parts: tuple[str, ...] | list[str]) -> str:
    if not parts:
        return "__init__"
    if parts[0] == "lab" and len(parts) > 1 and parts[1] != "__init__":
        return f"lab/{parts[1]}"
    return parts[0]


def _is_module(name: str) -> bool:
    path = ROOT / "src" / Path(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _holds_something(path: Path) -> bool:
    if path.name in ("__pycache__", "py.typed"):
        return False
    return path.is_file() or any(part.is_file() and "__pycache__" not in part.parts for part in path.rglob("*"))


WATCHED_IMPORT = """
import json, logging, os, random, sys, threading, warnings
import numpy, torch

def state():
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": str(numpy.random.get_state()),
        "random": str(random.getstate()),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "handlers": [str(logging.getLogger(name).handlers) for name in (None, "forgetfree")],
        "level": [logging.getLogger(name).level for name in (None, "forgetfree")],
        "warnings": len(warnings.filters),
        "torch settings": [torch.get_num_threads(), str(torch.get_default_dtype()), torch.is_grad_enabled()],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": threading.active_count(),
    }

before, loaded = state(), set(sys.modules)
import forgetfree
after, new = state(), set(sys.modules) - loaded
unwanted = ("sklearn", "PIL", "pooch", "requests", "typer", "rich", "matplotlib", "jinja2", "tomli_w", "filelock")
print(json.dumps({
    "changed": [key for key in before if before[key] != after[key]],
    "loaded": sorted(name for name in new if name.split(".")[0] in unwanted or name.startswith("forgetfree.lab")),
}))
"""
