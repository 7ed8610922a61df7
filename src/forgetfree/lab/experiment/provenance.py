"""Provenance: what the numbers of a run come from, written to its run.toml: versions, the commit, a digest of the data.

None of it makes two runs different: a run goes on under another version. On other data it does not.
"""

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import forgetfree
from forgetfree.batches import convert, count_samples
from forgetfree.contracts import Data, Task
from forgetfree.errors import InputError
from forgetfree.lab.benchmarks.stream import Benchmark, TestSet

DIGESTED_BYTES, DIGESTED_TASKS = 256 << 20, 200
"""So much of the inputs goes into a digest, evenly spread over the tasks and their samples; of labels all."""
PATIENCE = 5.0
"""Seconds that git may take."""


def provenance(benchmark: Benchmark) -> dict[str, str | bool]:
    """All that is known of where the numbers of a run come from."""
    return {**versions(), **commit(), "data": data_digest(benchmark)}


def versions() -> dict[str, str | bool]:
    """What the numbers of a run may depend on."""
    return {
        "forgetfree": forgetfree.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def commit(package: Path | None = None) -> dict[str, str | bool]:
    """The commit of the work tree that the package runs from, and whether its files were `changed` since.

    Nothing where it does not run from a work tree of its own, or git is not there: a folder of packages inside of
    somebody else's work tree is none.
    """
    folder = package or Path(forgetfree.__file__).parent
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {}
    head = _git(folder, "rev-parse", "--verify", "HEAD")
    status = _git(folder, "status", "--porcelain", "--untracked-files=normal", "--", ".")
    if not head or status is None:
        return {}
    return {"commit": head.strip(), "changed": bool(status.strip())}


def _git(folder: Path, *words: str) -> str | None:
    """What git says of a folder, without locks, hooks, monitors and questions; None where it says nothing."""
    program = shutil.which("git")
    if program is None:
        return None
    quiet = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
    alone = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    alone |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [program, *quiet, "-C", str(folder), *words], stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=PATIENCE, env=alone,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def data_digest(benchmark: Benchmark) -> str:
    """A digest of the stream: names, classes and labels of its tasks, and what is learned, validated and tested.

    Of a large stream a part of the inputs is taken, always the same. It does not depend on the machine.
    """
    found = hashlib.sha256()
    tasks = benchmark.tasks[:DIGESTED_TASKS]
    share = DIGESTED_BYTES // max(1, len(tasks))
    for task in tasks:
        found.update(repr((task.name, task.classes, task.outputs)).encode())
        for part in _parts(task, benchmark.tests[task.name], share):
            found.update(part)
    found.update(repr(benchmark.names).encode())
    return f"sha256:{found.hexdigest()}"


def check_same_data(stored: Any, here: str, folder: Path) -> None:
    """Refuse to go on with a run on other data than it began with; runs of before do not say what that was."""
    if stored is not None and stored != here:
        raise InputError(
            f"{folder} was begun on other data: its digest is {stored} there, {here} here. Nothing was changed: give "
            "it the data it began with (--data-root, or FORGETFREE_DATA), or choose another --out."
        )


def _parts(task: Task, test: TestSet, share: int) -> Iterator[bytes]:
    given: list[Data] = [task.train, *([] if task.valid is None else [task.valid]), (test.inputs, test.labels)]
    samples = sum(map(count_samples, given))
    for data in given:
        yield from _bytes(data, share * count_samples(data) // max(1, samples))


def _bytes(data: Data, share: int) -> Iterator[bytes]:
    """All labels of tensors, and of the inputs as many as fit into the share, evenly spread; at least one."""
    count = count_samples(data)
    yield str(count).encode()
    if not count:  # a stream, which cannot be read twice
        return
    whole = isinstance(data, tuple | list)
    if whole:
        yield from _tensors(data[1])
    first = _sample(data, 0)
    few = max(1, min(count, share // max(1, sum(map(len, first)))))
    chosen = [at * count // few for at in range(few)]
    if whole:
        yield from _tensors(convert(data[0], lambda tensor: tensor[torch.tensor(chosen).to(tensor.device)]))
        return
    for at in chosen:
        yield from _sample(data, at)


def _sample(data: Data, at: int) -> list[bytes]:
    """One sample: of a pair of tensors its inputs, of a Dataset its label too."""
    if isinstance(data, tuple | list):
        return list(_tensors(convert(data[0], lambda tensor: tensor[at])))
    inputs, label = data[at]
    return [*_tensors(inputs), *_tensors(label)]


def _tensors(inputs: Any) -> Iterator[bytes]:
    parts = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple | list) else (inputs,)
    for part in parts:
        try:
            tensor = torch.as_tensor(part).detach().cpu().contiguous()
        except (TypeError, ValueError, RuntimeError):  # what only a collate function of the user's understands
            yield type(part).__name__.encode()
            continue
        yield repr((tuple(tensor.shape), str(tensor.dtype))).encode()
        yield tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
