"""Mutated archives: damaged as they are, or changed in one field and signed again by somebody who knows how."""

import json
import random
import tempfile
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

import forgetfree as ff
from forgetfree import archive
from forgetfree.certificate import _probe
from forgetfree.files import flatten, unflatten
from soak.mutants import damaged, mutated

BEFORE = Path(__file__).parents[1] / "before" / "archives"
ITEMS = {1: ["uint8", "int8", "bool"], 2: ["float16", "bfloat16", "int16"], 4: ["float32", "int32"],
         8: ["float64", "int64", "complex64"]}  # fmt: skip
SIZES = {name: size for size, names in ITEMS.items() for name in names}
ROWS = 5
SIGNED = 3
"""Every so many-th mutant is signed again; the others are damaged as they are, and refused in no time."""


@cache
def originals() -> dict[str, bytes]:
    """Small archives of every method, in both formats."""
    before = {path.stem: path.read_bytes() for path in sorted(BEFORE.iterdir())}
    anew = {f"{name}-anew": archive.pack(ff.load(BEFORE / f"{name}.ticket")) for name in ("wsn", "softnet", "gpm")}
    coded = {f"wsn-{codec}": archive.pack(ff.load(BEFORE / "wsn.ticket"), codec=codec) for codec in ("huffman", "ans")}
    return before | anew | coded


@cache
def expected(name: str) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    """A batch, what an original answers to it, and what is known of its tasks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "original.ticket"
        path.write_bytes(originals()[name])
        learner = ff.load(path)
    known = next(iter(learner.tasks.values()))
    batch = _probe(known.inputs, known.certificate.ranges if known.certificate else None, 4711)
    return batch, answers(learner, batch), dict(learner.tasks)


def answers(learner: Any, batch: Any) -> dict[str, Tensor]:
    """All that a learner says to a batch."""
    if learner.scenario == "fscil":
        return {list(learner.tasks)[-1]: learner.predict(batch)} if learner.tasks else {}
    return {task: learner.predict(batch, task=task) for task in learner.tasks}


def opened(content: bytes) -> tuple[Any, dict[str, bytes]]:
    """Manifest and sections of an archive."""
    sections = {name: value.numpy().tobytes() for name, value in sorted(load_tensors(content).items())}
    return unflatten(json.loads(zlib.decompress(sections.pop("manifest"))), {}), sections


def signed(manifest: Any, sections: Mapping[str, bytes]) -> bytes:
    """An archive whose digests are right, whatever is in it."""
    if isinstance(manifest, dict) and isinstance(manifest.get("digests"), dict):
        manifest = {**manifest, "digests": {name: archive._digest(content) for name, content in sections.items()}}
    whole = {**sections, "manifest": zlib.compress(json.dumps(flatten(manifest, {})).encode())}
    tensors = {name: torch.from_numpy(np.frombuffer(content, np.uint8).copy()) for name, content in whole.items()}
    header = {"kind": archive.KIND, "format": str(archive.FORMAT), "digest": archive._digest_of_all(whole)}
    return bytes(save_tensors(tensors, header))


def mutant(number: int) -> tuple[str, bytes, bool]:
    """The name of an original, what became of it, and whether it was signed again."""
    chance = random.Random(f"archive {number}")
    name = chance.choice(list(originals()))
    content = originals()[name]
    if number % SIGNED:
        return name, damaged(content, chance), False
    manifest, sections = opened(content)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        manifest, sections = chance.choice(CHANGES)(manifest, dict(sections), chance)
        if not isinstance(manifest, dict):
            break
    try:
        return name, signed(manifest, sections), True
    except ff.ForgetfreeError:  # a value that no manifest can hold
        return name, damaged(content, chance), False


def _field(manifest: Any, sections: Any, chance: random.Random) -> tuple[Any, Any]:
    return mutated(manifest, chance), sections


def _structure(manifest: Any, sections: Any, chance: random.Random) -> tuple[Any, Any]:
    """The tree that the tensors of a section are the leaves of."""

    def change(shelf: Any) -> Any:
        tree = mutated(json.loads(shelf["structure"]), chance)
        return {**shelf, "structure": json.dumps(tree, skipkeys=True)}

    return _on_a_shelf(manifest, change, chance), sections


def _tensor(manifest: Any, sections: Any, chance: random.Random) -> tuple[Any, Any]:
    """Type, shape or values of a tensor, its bytes to match."""
    shelves = manifest.get("shelves")
    filled = [name for name, shelf in shelves.items() if shelf.get("tensors")] if _is_dict(shelves) else []
    if not filled:
        return manifest, sections
    name = chance.choice(filled)
    tensors = [list(each) for each in shelves[name]["tensors"]]
    at = chance.randrange(len(tensors))
    try:
        starts = [0]
        for kind, shape in tensors:
            starts.append(starts[-1] + SIZES[kind] * int(np.prod(shape)))
    except (KeyError, TypeError, ValueError):  # changed before
        return manifest, sections
    content = bytearray(sections.get(name, b"").ljust(starts[-1], b"\0"))
    kind, shape = tensors[at]
    piece = content[starts[at] : starts[at + 1]]
    match chance.randrange(6):
        case 0:
            tensors[at][0] = chance.choice(ITEMS[SIZES[kind]])
        case 1:
            count = int(np.prod(shape))
            tensors[at][1] = chance.choice([[count], [1, *shape], shape[::-1], [*shape, 1], [count, 1]])
        case 2:
            odd = {"float32": [np.nan, np.inf, -np.inf, 3e38, 1e-44, -0.0, 0.0], "float64": [np.nan, 1e300]}
            value = chance.choice(odd.get(kind, [0, 1, 127, -1]))
            array = np.frombuffer(bytes(piece), kind if kind in ("float32", "float64", "int64", "int32") else "u1")
            array = array.copy()
            where = slice(None) if chance.random() < 0.3 else chance.randrange(max(1, array.size))
            if array.size:
                array[where] = value if array.dtype != np.uint8 else 255
            piece[:] = array.tobytes()
        case 3:
            del tensors[at]
            piece = bytearray()
        case 4:
            tensors.insert(at, list(tensors[at]))
            piece = piece + piece
        case _:
            longer = [2 * shape[0] if shape else 2, *shape[1:]]
            tensors[at][1] = longer
            piece = piece + piece
    content[starts[at] : starts[at + 1]] = piece
    shelf = {**shelves[name], "tensors": [tuple(each) for each in tensors]}
    return {**manifest, "shelves": {**shelves, name: shelf}}, {**sections, name: bytes(content)}


def _section(manifest: Any, sections: Any, chance: random.Random) -> tuple[Any, Any]:
    """The bytes of a section."""
    name = chance.choice(list(sections)) if sections else "masks"
    match chance.randrange(4):
        case 0:
            sections.pop(name, None)
        case 1:
            other = chance.choice(list(sections) or ["masks"])
            sections[name], sections[other] = sections.get(other, b""), sections.get(name, b"")
        case _:
            sections[name] = damaged(sections.get(name, b""), chance)
    return manifest, sections


def _masks(manifest: Any, sections: Any, chance: random.Random) -> tuple[Any, Any]:
    """Blocks of other lengths, or other bits in them."""
    sections["masks"] = damaged(sections.get("masks", b""), chance)
    return manifest, sections


def _backbone(manifest: Any, sections: Any, chance: random.Random) -> tuple[Any, Any]:
    """What is built, in its arguments and in all that is said of its tensors."""
    wide = chance.choice([0, 1, 17, 2**10, 2**16, 2**24, 2**33])
    arguments: Any = chance.choice([
        {"hidden": [wide] * chance.choice([0, 1, 2, 300]), "inputs": 12}, {"inputs": wide}, {"init": "/dev/zero"},
        {"hidden": (wide, 8), "inputs": 12, "bias": True}, {"width": wide}, {"norm": "task"}, {"stem": "/dev/zero"}, {},
    ])  # fmt: skip
    name = chance.choice(["mlp", "mlp", "conv4", "resnet20", "lenet", "alexnet", "resnet18"])
    manifest = {**manifest, "backbone": {"name": name, "arguments": arguments}}
    if chance.random() < 0.5 and isinstance(manifest.get("tensors"), dict):
        grown = {key: ("float32", [wide, 12]) for key in manifest["tensors"]}
        there = manifest.get("shared")
        shared = {key: grown[key] for key in there if key in grown} if isinstance(there, dict) else {}
        manifest = {**manifest, "tensors": grown, "shared": shared}
    return manifest, sections


def _certificate(manifest: Any, sections: Any, chance: random.Random) -> tuple[Any, Any]:
    """What a task was learned on, or how it is probed."""
    tasks = manifest.get("tasks")
    if not _whole(tasks):
        return manifest, sections
    at = chance.randrange(len(tasks))
    side = chance.choice([1, 12, 2**8, 2**12, 2**20, 2**30])
    inputs: Any = chance.choice([((side,), "float32"), ((3, side, side), "float32"), {"x": ((side,), "int64")},
                                 (((side,), "float32"),) * 3, ((12,), "float64"), ((12,), "int64")])  # fmt: skip
    task = {**tasks[at], "inputs": inputs}
    if task.get("certificate") and chance.random() < 0.5:
        task["certificate"] = mutated(task["certificate"], chance)
    return {**manifest, "tasks": [*tasks[:at], task, *tasks[at + 1 :]]}, sections


CHANGES: list[Callable[[Any, Any, random.Random], tuple[Any, Any]]] = [
    _field, _field, _field, _field, _field, _structure, _structure, _tensor, _tensor, _section, _masks, _backbone,
    _certificate,
]  # fmt: skip


def _on_a_shelf(manifest: Any, change: Callable[[Any], Any], chance: random.Random) -> Any:
    shelves = manifest.get("shelves")
    if not _is_dict(shelves):
        return manifest
    name = chance.choice(list(shelves))
    try:
        return {**manifest, "shelves": {**shelves, name: change(shelves[name])}}
    except (KeyError, TypeError, ValueError):  # changed before
        return manifest


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict) and _whole(value)


def _whole(value: Any) -> bool:
    """Whether a part of a manifest is still what it was: a list or dict of dicts, not empty."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return bool(inside) and all(isinstance(each, dict) for each in inside)


def attempt(number: int, path: Path) -> str:
    """What came of one mutant; an assertion fails where a promise was broken."""
    name, content, again = mutant(number)
    path.write_bytes(content)
    kind = "signed" if again else "raw"
    try:
        verified = ff.verify(path)
        learner = ff.load(path)
    except ff.ForgetfreeError as error:
        judge_refusal(error, path)
        if number % 2 == 0:
            try:
                ff.inspect(path)
            except ff.ForgetfreeError as other:
                judge_refusal(other, path)
        return f"{kind}, refused"
    try:
        ff.inspect(path)
    except ff.ForgetfreeError as error:
        raise AssertionError(f"it loads, but inspect says: {error}") from error
    batch, right, known = expected(name)
    if not again:
        assert verified.ok, "a raw mutant is accepted and does not verify"
        assert same(answers(learner, batch), right), "a raw mutant is accepted and answers otherwise"
        return f"{kind}, the same"
    found = asked(learner, batch)
    held = {task.task: task.ok for task in verified.tasks}
    for task, answer in (found or {}).items():
        if held.get(task) and task in known and certified_alike(learner.tasks[task], known[task]):
            assert same({task: answer}, {task: right[task]}), f"{name}, {task}: verified, and answers otherwise"
    use(learner, batch, random.Random(number))
    return f"{kind}, verified" if verified.ok else f"{kind}, found out"


def judge_refusal(error: ff.ForgetfreeError, path: Path) -> None:
    cause: BaseException | None = error
    while cause is not None:
        assert not isinstance(cause, MemoryError), f"memory: {error}"
        cause = cause.__cause__
    assert str(path) in str(error), f"it does not name the file: {error}"
    assert len(str(error)) < 5000, f"a very long sentence: {str(error)[:200]}"


def asked(learner: Any, batch: Any) -> dict[str, Tensor] | None:
    """All answers to a batch; None where it is not what the learner takes, which it says."""
    try:
        return answers(learner, batch)
    except ff.ForgetfreeError:
        return None


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    def bits(value: Tensor) -> tuple[Any, ...]:
        return value.dtype, tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    return one.keys() == other.keys() and all(bits(one[name]) == bits(other[name]) for name in one)


def certified_alike(one: Any, other: Any) -> bool:
    """Whether two records have the same certificate, of the same inputs."""
    mine, its = one.certificate, other.certificate
    if mine is None or its is None or mine.answers is None or its.answers is None:
        return False
    alike = (mine.digest, mine.probe, mine.ranges, one.inputs) == (its.digest, its.probe, its.ranges, other.inputs)
    return alike and same({"": mine.answers}, {"": its.answers})


def use(learner: Any, batch: Any, chance: random.Random) -> None:
    """Do with a learner what can be done: every error is one of ours."""
    labels = torch.arange(ROWS - 1) % 2
    classes = ("one/of the soak", "two/of the soak")
    steps: list[Callable[[], Any]] = [
        lambda: learner.learn(ff.Task("of the soak", classes, (batch, labels)), recipe=None),
        lambda: archive.pack(learner, resumable=chance.random() < 0.5),
        lambda: learner.remove(next(iter(learner.tasks))),
        lambda: learner.memory(),
        lambda: repr(learner),
        lambda: answers(learner, batch),
    ]
    for step in [step for step in steps if chance.random() < 0.4]:
        try:
            step()
        except ff.ForgetfreeError:
            continue
