"""Archives: a learner in one small file, without pickle, that says by itself whether it is whole.

    file.ticket     a safetensors container of byte sections
      manifest      what the learner is: method, arguments, tasks, certificates, what lies where (JSON, compressed)
      masks         the tickets, coded (see `codec`), layer by layer
      weights       of the shared weights only those that some task uses, in order of first use
      own           the tensors that each task owns; one that it left unchanged is not there
      heads         the tensors of each task's head
      answers       what each task answered to its probe when it was learned
      training      what learning goes on from: the start of own tensors, fixed tensors, how scores are spread
      free          only with `resumable`: the weights that no task uses
      padding       only where next to nothing is used of a huge network: what a small file claims is not believed

Every section has a digest in the manifest, and the file one over everything. Nothing in it is executed: a backbone is
built by a function that is installed here and looked up by name, or handed in by the caller.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from math import isfinite, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from forgetfree.certificate import Verified, difference
from forgetfree.class_heads import ClassHeads
from forgetfree.codec import CODECS, CodecError, first_use
from forgetfree.contracts import Certificate, LearnerState, Memory, Task, TaskRecord
from forgetfree.errors import ArchiveError, FileError, ForgetfreeError, InputError, PluginError
from forgetfree.files import flatten, read_plain, unflatten, write_atomically
from forgetfree.forms import short
from forgetfree.heads import HeadFactory, head_by_name, head_name
from forgetfree.locks import settle_after_fork
from forgetfree.manifests import (
    TREES,
    allowed,
    check_claims,
    check_manifest,
    claims,
    padding,
    texts_in,
    ticket_names,
    words_of,
)
from forgetfree.modules import STATISTICS, copy_module, full_name, named_tensors, origin_of
from forgetfree.registry import backbone_builder, methods
from forgetfree.rng import preserved_rng, threads
from forgetfree.tickets import PackedMask, Ticket
from forgetfree.tickets import used as used_by
from forgetfree.training.recipe import Recipe

FORMAT = 2
OLDEST = 1
KIND = "forgetfree.ticket"
CODEC = "context"
MOST_THREADS = 1 << 8
MOST_CALLS = 64
"""Calls of torch for each tensor that a backbone has: whoever needs more to build it would never end."""

Rounding = Literal["float16", "bfloat16"]
Shelf = list[tuple[str, list[int]]]
"""Type and shape of the tensors that lie one after the other in a section."""


@dataclass(frozen=True)
class Inspection:
    """What an archive holds; no backbone is needed to see it."""

    path: Path
    nbytes: int
    method: str
    arguments: Mapping[str, Any]
    backbone: str
    version: str
    """Of forgetfree, when it was written."""
    learning: str
    """How learning goes on from it, in words."""
    resumable: bool
    rounded: Mapping[str, Any] | None
    """Type of the stored weights, and by how much each task's answers differ from those before rounding."""
    sections: Mapping[str, int]
    """Bytes of every part."""
    layers: Mapping[str, tuple[int, int]]
    """Shared tensors: how many weights some task uses, and how many there are."""
    tasks: tuple[Mapping[str, Any], ...]
    """Name, classes, weights it uses (new and reused), values it owns, values of its head."""


@dataclass(frozen=True)
class Verification:
    """Every task of an archive beside its certificate."""

    tasks: tuple[Verified, ...]
    rounded: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return all(task.ok for task in self.tasks)


def save(
    learner: Any, path: Path | str, *, resumable: bool = False, dtype: Rounding | None = None, codec: str = CODEC
) -> int:
    """Write a learner to `path`, whole or not at all; how many bytes that are.

    `resumable` adds all that learning needs to go on to the same bits. `dtype` rounds the shared weights: answers then
    change, and the archive says by how much.
    """
    content = pack(learner, resumable=resumable, dtype=dtype, codec=codec)
    write_atomically(Path(path), content)
    return len(content)


def load(
    path: Path | str,
    backbone: nn.Module | None = None,
    *,
    heads: HeadFactory | None = None,
    recipe: Recipe | None = None,
) -> Any:
    """The learner in `path`. A backbone of your own is passed in: only its tensors' names and shapes count.

    `heads` and `recipe` are needed where the learner had functions of its own for them.
    """
    path = Path(path)
    return _restored(_read(path), path, backbone, heads, recipe)


def inspect(path: Path | str) -> Inspection:
    """What is in an archive."""
    path = Path(path)
    archive = _read(path)
    with _explained(path):
        archive.check_claims(vouched=False)
        return _inspected(path, archive)


def sizes(path: Path | str) -> dict[str, int]:
    """Bytes of every part of an archive, and of the "file" as a whole; nothing is decoded."""
    path = Path(path)
    return {
        **{name: len(content) for name, content in sorted(_read(path).sections.items())},
        "file": path.stat().st_size,
    }


def verify(path: Path | str, backbone: nn.Module | None = None, *, heads: HeadFactory | None = None) -> Verification:
    """Read an archive and put every task beside its certificate."""
    path = Path(path)
    archive = _read(path)
    learner = _restored(archive, path, backbone, heads, None)
    with _explained(path), _threads_of(learner.tasks):
        rounded = archive.manifest["rounded"]
        return Verification(tuple(_as_rounded(found, rounded) for found in learner.verify()), rounded)


def _as_rounded(found: Verified, rounded: Mapping[str, Any] | None) -> Verified:
    """A task whose answers were lost when its weights were rounded does not hold, though these were certified."""
    apart = rounded["difference"].get(found.task) if rounded else None
    if apart is None or isfinite(apart):
        return found
    return replace(found, rule="rounding made its answers infinite: they are not finite", ok=False)


def pack(learner: Any, *, resumable: bool = False, dtype: Rounding | None = None, codec: str = CODEC) -> bytes:
    """The bytes of an archive."""
    method = methods().name_of(type(learner))
    if method is None:
        raise InputError(
            f"a {type(learner).__name__} cannot be stored: an archive finds its method by name, and no table of "
            "methods has it. Offer it by an entry point of the group forgetfree.methods, or by METHODS.plug(…)."
        )
    if codec not in CODECS:
        raise InputError(f"there is no codec {codec!r}; there are {', '.join(CODECS)}.")
    if dtype not in (None, "float16", "bfloat16"):
        raise InputError(f"dtype is None, 'float16' or 'bfloat16'; got {dtype!r}.")
    if dtype is not None and resumable:
        raise InputError("rounded weights cannot go on to the same bits: leave out either dtype or resumable.")
    stored = learner.to_state(resumable=resumable)
    factory = head_by_name(stored.arguments["heads"]) or learner.engine.heads.factory
    if not learner.forget_free:  # what a task was when it was learned is gone: it is certified as it is stored
        stored = replace(stored, learned=_certified(_packed(method, stored, None, codec, None), stored, factory))
    if dtype is None:
        return _packed(method, stored, None, codec, None)
    content = _packed(method, stored, dtype, codec, {"dtype": dtype, "difference": {}})
    rounded = _certified(content, stored, factory)
    apart = {name: _apart(rounded[name], stored.learned[name]) for name in rounded}
    _refuse_lost_answers(apart, dtype)
    return _packed(method, replace(stored, learned=rounded), dtype, codec, {"dtype": dtype, "difference": apart})


def _refuse_overflow(
    exact: Mapping[str, Tensor], rounded: Mapping[str, Tensor], chosen: Mapping[str, PackedMask], dtype: str
) -> None:
    """Refuse to store a weight as infinity; of a tensor with a mask only what is chosen is stored."""
    for name, value in exact.items():
        lost = rounded[name].isinf() & value.detach().cpu().isfinite()
        if name in chosen:
            lost &= chosen[name].unpack()
        if bool(lost.any()):
            raise InputError(
                f"{name} holds {float(value.detach().cpu()[lost].flatten()[0]):g}, which {dtype} cannot: the largest "
                f"number that it has is {torch.finfo(getattr(torch, dtype)).max:g}. Nothing was written. "
                + ("Use dtype='bfloat16', or leave dtype out." if dtype == "float16" else "Leave dtype out.")
            )


def _refuse_lost_answers(apart: Mapping[str, float | None], dtype: str) -> None:
    """Refuse to store tasks that could not answer with rounded weights."""
    lost = [name for name, difference in apart.items() if difference is not None and not isfinite(difference)]
    if lost:
        raise InputError(
            f"task {lost[0]!r} answers with numbers, and with weights rounded to {dtype} its answers are not finite. "
            "Nothing was written. Leave dtype out."
        )


def _certified(content: bytes, stored: LearnerState, heads: HeadFactory | None) -> Mapping[str, TaskRecord]:
    """What was learned, certified by what was written: the learner itself may have gone on meanwhile."""
    path = Path("the archive being written")
    learned: Mapping[str, TaskRecord] = _restored(
        _parsed(content, path), path, stored.module, heads, None
    ).engine.certified()
    return learned


def _packed(
    method: str, stored: LearnerState, dtype: str | None, codec: str, rounded: Mapping[str, Any] | None
) -> bytes:
    memory = stored.memory
    shared = {name: value.detach().cpu() for name, value in memory.shared.items()}
    if dtype is not None:  # counters and indices stay whole
        kind = getattr(torch, dtype)
        shared = {name: value.to(kind) if value.is_floating_point() else value for name, value in shared.items()}
    weights, blocks = dict(shared), {}
    for name in memory.used if memory.tickets else ():  # layer by layer: all masks at once would be large
        masks = [ticket.mask(name).numpy() for ticket in memory.tickets.values()]
        blocks[name] = CODECS[codec].encode(masks, _magnitudes(shared[name]).numpy())
        weights[name] = shared[name].reshape(-1)[torch.from_numpy(first_use(masks))]
    trees: dict[str, Any] = {
        "weights": weights,
        "own": {name: dict(ticket.own) for name, ticket in memory.tickets.items()},
        "heads": {name: dict(head) for name, head in memory.heads.items()},
        "answers": {name: known.certificate.answers for name, known in stored.learned.items() if known.certificate},
        "training": dict(stored.training),
    }
    chosen = {name: PackedMask.pack(mask) for name, mask in used_by(memory.tickets).items()}
    if stored.resumable or not all(torch.equal(memory.used[name].bits, mask.bits) for name, mask in chosen.items()):
        # what no mask has may be needed too: to learn on, or to answer with a soft mask
        trees["free"] = {name: shared[name][~mask.unpack()] for name, mask in chosen.items()}
    if dtype is not None:
        _refuse_overflow(memory.shared, shared, {} if "free" in trees else chosen, dtype)
    shelved = {name: _shelve(tree) for name, tree in trees.items()}
    sections = {name: content for name, (content, _) in shelved.items()}
    sections["masks"] = b"".join(block for layer in blocks.values() for block in layer)
    manifest: dict[str, Any] = {
        "version": version("forgetfree"),
        "method": method,
        "package": methods().entry(method).source,
        "scenario": methods().entry(method).scenario,
        "arguments": stored.arguments,
        "backbone": origin_of(stored.module),
        "module": type(stored.module).__name__,
        "tensors": {name: _form(value) for name, value in named_tensors(stored.module)},
        "frozen": [name for name, value in stored.module.named_parameters() if not value.requires_grad],
        "shared": {name: _form(value) for name, value in memory.shared.items()},
        "codec": codec,
        "blocks": {name: [len(block) for block in layer] for name, layer in blocks.items()},
        "tasks": [_as_tree(known) for known in stored.learned.values()],
        "tickets": list(memory.tickets),
        "resumable": stored.resumable,
        "rounded": rounded,
        "shelves": {name: entry for name, (_, entry) in shelved.items()},
    }
    told = json.dumps(flatten(manifest, {}), separators=(",", ":"))
    missing = padding(claims(manifest, len(told) + SIGNED * len(sections)), sum(map(len, sections.values())))
    if missing > 0:
        sections["padding"] = bytes(missing)
    manifest["digests"] = {name: _digest(content) for name, content in sections.items()}
    sections["manifest"] = zlib.compress(json.dumps(flatten(manifest, {}), separators=(",", ":")).encode(), 9)
    tensors = {name: torch.from_numpy(np.frombuffer(content, np.uint8).copy()) for name, content in sections.items()}
    header = {"kind": KIND, "format": str(FORMAT), "digest": _digest_of_all(sections)}
    return _in_order(bytes(save_tensors(tensors, header)))


SIGNED = 100
"""At most so many bytes of a manifest are the name and the digest of a section."""


def _in_order(content: bytes) -> bytes:
    """The same file with its header sorted: safetensors leaves the order to chance, and equal learners are equal."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    ordered = {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **dict(sorted(header.items()))}
    text = json.dumps(ordered, separators=(",", ":")).encode().ljust(length)
    return content[:8] + text + content[8 + length :]


@dataclass(frozen=True)
class _Archive:
    """An archive whose digests are right; its tensors and masks are not unpacked yet."""

    manifest: Mapping[str, Any]
    sections: Mapping[str, bytes]
    claims: Mapping[str, int]
    nbytes: int
    format: int = FORMAT

    def check_claims(self, *, vouched: bool) -> None:
        """Refuse an archive that asks for more than its size allows, before anything is made of it."""
        check_claims(self.claims, self.nbytes, vouched=vouched)

    def tree(self, name: str) -> Any:
        """The tensors of a section, in their tree."""
        tree = _unshelve(self.sections[name], self.manifest["shelves"][name])
        TREES[name](tree, name)
        return tree

    def training(self) -> dict[str, Any]:
        """What learning goes on from, as it is called today."""
        tree = dict(self.tree("training"))
        if self.format < 2 and "gates" in tree:
            gates = tree.pop("gates")
            tree["beside"] = {
                task: {f"gates.{layer}": row for layer, row in rows.items()} for task, rows in gates.items()
            }
        return tree

    def masks(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """The masks of every layer, [tasks, *shape]."""
        content, at, masks = self.sections["masks"], 0, {}
        for name, lengths in self.manifest["blocks"].items():
            blocks = []
            for length in lengths:
                blocks.append(content[at : at + length])
                at += length
            shape, values = self.manifest["shared"][name][1], _magnitudes(weights[name]).numpy()
            masks[name] = CODECS[self.manifest["codec"]].decode(blocks, len(ticket_names(self.manifest)), shape, values)
        if at != len(content):
            raise CodecError(f"the masks take {at} bytes, their section has {len(content)}.")
        return masks


def _read(path: Path) -> _Archive:
    settle_after_fork()
    try:
        content = read_plain(path)
    except FileError as error:
        raise ArchiveError(str(error)) from error
    return _parsed(content, path)


def _parsed(content: bytes, path: Path) -> _Archive:
    with _explained(path):
        tensors = load_tensors(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
        if header.get("kind") != KIND:
            raise ArchiveError(f"{path} is not an archive of forgetfree.")
        if int(header["format"]) > FORMAT:
            raise ArchiveError(
                f"{path} is of format {header['format']}; this version of forgetfree reads up to {FORMAT}. Update it."
            )
        if header["format"] not in map(str, range(OLDEST, FORMAT + 1)):
            raise ValueError(f"there was never a format {header['format']}")
        if any(value.dtype != torch.uint8 or value.dim() != 1 for value in tensors.values()):
            raise ValueError("a section does not consist of bytes")
        sections = {name: value.numpy().tobytes() for name, value in tensors.items()}
        if _digest_of_all(sections) != header["digest"]:
            raise ValueError("its content does not match its digest")
        told = _unzipped(sections["manifest"], allowed("bytes of manifest", len(content)))
        manifest = unflatten(json.loads(told), {})
        check_manifest(manifest)
        wrong = [name for name, digest in manifest["digests"].items() if _digest(sections[name]) != digest]
        if wrong or set(manifest["digests"]) != set(sections) - {"manifest"}:
            raise ValueError(f"sections do not match their digests: {', '.join(wrong) or 'some are missing'}")
        return _Archive(manifest, sections, claims(manifest, len(told)), len(content), int(header["format"]))


def _unzipped(content: bytes, most: int) -> bytes:
    reader = zlib.decompressobj()
    plain = reader.decompress(content, most)
    if not reader.eof or reader.unused_data:
        raise ValueError("its manifest is too large, or not whole")
    return plain


@contextmanager
def _threads_of(tasks: Mapping[str, TaskRecord]) -> Iterator[None]:
    """As many threads as when the tasks were certified, if that was one number: then the bits must be the same."""
    counts = {known.certificate.fingerprint.get("threads") for known in tasks.values() if known.certificate}
    said = int(counts.pop() or 0) if len(counts) == 1 else 0
    with threads(min(said or torch.get_num_threads(), MOST_THREADS)):
        yield


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Whatever goes wrong with an archive is said in a sentence."""
    try:
        yield
    except ArchiveError:
        raise
    except (
        SafetensorError, ForgetfreeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
        RuntimeError, MemoryError, AssertionError, zlib.error,
    ) as error:  # fmt: skip
        reason = f"{error} is unknown or missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        said = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}…"
        raise ArchiveError(f"{path} is damaged, or not an archive of forgetfree: {said.rstrip('.')}.") from error


LONGEST_REASON = 500
"""In characters: names in a file may be long."""


def _restored(
    archive: _Archive, path: Path, backbone: nn.Module | None, heads: HeadFactory | None, recipe: Recipe | None
) -> Any:
    manifest = archive.manifest
    method = _method(manifest, path)
    with _explained(path):
        archive.check_claims(vouched=backbone is not None)
        module = backbone if backbone is not None else _built(manifest, path)
        _check_backbone(module, manifest, path)
        module = _frozen_as(module, manifest["frozen"])
        factory = heads or _head_factory(manifest["arguments"]["heads"], method)
        if factory is None:
            raise ArchiveError(
                f"{path}: its heads were made by {short(manifest['arguments']['heads'])}, a function of its owner. "
                "Pass it: load(path, heads=…)."
            )
        stored = _stored(archive, module)
        _check_tasks(stored, method)
        _check_tensors(stored, manifest)
        return method.from_state(
            module, stored, heads=factory, recipe=recipe or Recipe.from_described(manifest["arguments"]["recipe"])
        )


def _stored(archive: _Archive, module: nn.Module) -> LearnerState:
    manifest, weights = archive.manifest, archive.tree("weights")
    masks, own, heads = archive.masks(weights), archive.tree("own"), archive.tree("heads")
    free = archive.tree("free") if "free" in archive.sections else {}
    shared, used = {}, {}
    for name, (kind, shape) in manifest["shared"].items():
        rounded = manifest["rounded"]["dtype"] if manifest["rounded"] else kind
        if _form(weights[name])[0] not in (kind, rounded):
            raise ValueError(f"{name} is stored in another type than it is said to have")
        value = weights[name].to(getattr(torch, kind))
        if name in masks:
            union = masks[name].any(0)
            full = torch.zeros(prod(shape), dtype=value.dtype)
            full[torch.from_numpy(first_use(masks[name]))] = _as_many(value, int(union.sum()), name)
            if name in free:
                full[torch.from_numpy(~union.reshape(-1))] = _as_many(free[name], int((~union).sum()), name)
            value = full.view(shape)
            used[name] = PackedMask.pack(torch.from_numpy(union))
        shared[name] = value
    tickets = {
        task: Ticket({name: PackedMask.pack(torch.from_numpy(mask[t])) for name, mask in masks.items()}, own[task])
        for t, task in enumerate(ticket_names(manifest))
    }
    answers = archive.tree("answers")
    learned = {task["name"]: _from_tree(task, answers.get(task["name"])) for task in manifest["tasks"]}
    memory = Memory(shared, used, {}, tickets, heads)
    return LearnerState(module, manifest["arguments"], memory, learned, archive.training(), manifest["resumable"])


def _as_many(values: Tensor, count: int, name: str) -> Tensor:
    if values.shape != (count,):
        raise ValueError(f"{name} has {count} weights to be filled, and {tuple(values.shape)} values are stored")
    return values


def _method(manifest: Mapping[str, Any], path: Path) -> Any:
    """The class of the learner, by the name it has in the table of methods."""
    with _explained(path):
        name, package = str(manifest["method"]), str(manifest.get("package", "forgetfree"))
    try:
        return methods().required(name)
    except PluginError as error:
        raise ArchiveError(
            f"{path} was written by {name!r}, a method of {package}, which is not here. {error}"
        ) from error


def _head_factory(name: str, method: Any) -> HeadFactory | None:
    """What makes heads of this name: one of ours, or what the method makes where nobody says otherwise."""
    usual: HeadFactory | None = method.default_heads
    return head_by_name(name) or (usual if usual is not None and full_name(usual) == name else None)


def _built(manifest: Mapping[str, Any], path: Path) -> nn.Module:
    """The backbone, by a function that an installed package offers under its name."""
    origin = manifest["backbone"]
    if origin is None:
        raise ArchiveError(
            f"{path} holds tasks of a {manifest['module']}, which an archive cannot build. Pass one of the same shape: "
            "load(path, backbone)."
        )
    try:
        build = backbone_builder(origin["name"])
    except PluginError as error:
        raise ArchiveError(
            f"{path} needs the backbone {origin['name']!r}: {error} Install the package it comes from, or pass a "
            "backbone: load(path, backbone)."
        ) from error
    arguments = origin["arguments"]
    _check_arguments(build, arguments, path)
    with preserved_rng(torch.device("cpu")):
        with torch.device("meta"), _Counted(MOST_CALLS * (len(manifest["tensors"]) + 1)):  # no memory, little time
            _check_backbone(build(**arguments), manifest, path)
        built: nn.Module = build(**arguments)
        return built


def _check_arguments(build: Any, arguments: Mapping[str, Any], path: Path) -> None:
    """Let only sizes, and words that the builder itself offers, come from a file: a text could name another file."""
    for name, value in arguments.items():
        if texts_in(value) and not (isinstance(value, str) and value in words_of(build, name)):
            raise ArchiveError(
                f"{path} asks for a backbone {build.__name__}({short(name)}={short(value)}). Only sizes are taken from "
                "a file, and words that the function offers by a Literal: build it and pass it, load(path, backbone)."
            )


class _Counted(TorchFunctionMode):
    """Ends the building of a module that calls torch more often than its tensors could need."""

    def __init__(self, most: int):
        super().__init__()
        self._left = most

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("its backbone would have more tensors than are stored")
        return func(*args, **(kwargs or {}))


def _check_backbone(module: nn.Module, manifest: Mapping[str, Any], path: Path) -> None:
    if not isinstance(module, nn.Module):
        raise ArchiveError(f"{path}: a backbone is an nn.Module; got {type(module).__name__}.")
    there, here = manifest["tensors"], {name: _form(value) for name, value in named_tensors(module)}
    buffers = {name for name, _ in module.named_buffers()}  # which may have grown
    wrong = [
        f"{name} is {_words(here.get(name))} in this backbone and {_words(there.get(name))} in the archive"
        for name in {**there, **here}
        if here.get(name) != there.get(name) and not (name in buffers and name in there)
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ArchiveError(f"{path} is of another backbone: {'; '.join(wrong[:3])}{more}.")


def _check_tasks(stored: LearnerState, method: Any) -> None:
    """Refuse an archive in which a task lacks what it answers with, or has what belongs to none."""
    heads, last = set(stored.memory.heads), list(stored.learned)[-1:]
    if heads != set(last if method.scenario == "fscil" else stored.learned):
        raise ValueError("some tasks have no head, or there are heads of no task")
    if method.scenario == "fscil" and last:
        classes = sum(len(known.classes) for known in stored.learned.values())
        if stored.learned[last[0]].outputs != classes:
            raise ValueError(f"its one head is not of the {classes} classes met")
    for name in heads:
        if stored.learned[name].features is None:
            raise ValueError(f"task {name!r} does not say how wide the features are that its head takes")


def _check_tensors(stored: LearnerState, manifest: Mapping[str, Any]) -> None:
    """Refuse tensors that would not fit where they belong; of another shape than the backbone's are only buffers."""
    fixed, start = stored.training.get("fixed", {}), stored.training.get("start", {})
    buffers = {name for name, _ in stored.module.named_buffers()}
    for tree in (fixed, start, *(ticket.own for ticket in stored.memory.tickets.values())):
        growing = {name for name in buffers if not name.endswith(STATISTICS)}
        wrong = [name for name, value in tree.items() if not _fits(value, manifest["tensors"][name], name in growing)]
        if wrong:
            raise ValueError(f"{wrong[0]} is stored in another shape or type than the backbone has")
    if stored.memory.used and {*fixed, *start, *stored.memory.shared} != set(manifest["tensors"]):
        raise ValueError("some tensors of the backbone are not there")
    for name, tensors in stored.memory.heads.items():
        _check_head(stored.learned[name], tensors, head_by_name(stored.arguments["heads"]))


def _check_head(known: TaskRecord, tensors: Mapping[str, Tensor], factory: HeadFactory | None) -> None:
    """Refuse the tensors of a head that is to be wider than they are; what our own heads have is known exactly."""
    outputs, features = known.outputs, known.features or 1
    if factory is None:
        if outputs * features > LARGEST_HEAD:
            raise ValueError(f"the head of task {known.name!r} would have {outputs} × {features} values")
        return
    if isinstance(factory, ClassHeads):
        if (wrong := factory.misfit(tensors, features, outputs)) is not None:
            raise ValueError(f"the head of task {known.name!r}, {head_name(factory)}, {wrong}")
        return
    nothing = torch.empty(0), torch.empty(0, dtype=torch.long)
    with preserved_rng(torch.device("cpu")), torch.device("meta"):
        head = factory(features, Task(known.name, (), nothing, loss="mse", outputs=outputs))
    right = {name: value.shape for name, value in named_tensors(head)}
    kinds = {value.dtype for value in tensors.values()}
    if {name: value.shape for name, value in tensors.items()} != right or not all(
        kind.is_floating_point for kind in kinds
    ):
        raise ValueError(f"the head of task {known.name!r} is not one from {features} features to {outputs} outputs")


LARGEST_HEAD = 1 << 26
"""Outputs times features of a head that a function of the caller's own makes."""


def _fits(value: Tensor, form: tuple[str, list[int]], may_have_grown: bool) -> bool:
    """Whether a tensor is of this form."""
    kind, shape = _form(value)
    return kind == form[0] and (shape == list(form[1]) or may_have_grown)


def _frozen_as(module: nn.Module, frozen: list[str]) -> nn.Module:
    """The same module, asking for gradients where the stored one did."""

    def tensor_for(name: str, old: Tensor) -> Tensor:
        return nn.Parameter(old.detach(), name not in frozen) if isinstance(old, nn.Parameter) else old

    return copy_module(module, tensor_for)


def _inspected(path: Path, archive: _Archive) -> Inspection:
    manifest, weights = archive.manifest, archive.tree("weights")
    masks, own, heads = archive.masks(weights), archive.tree("own"), archive.tree("heads")
    tasks = []
    places = {name: t for t, name in enumerate(ticket_names(manifest))}
    for task in manifest["tasks"]:
        t = places.get(task["name"])
        if t is None:  # a few-shot session, which learned on in the ticket of the first
            nothing = dict.fromkeys(("weights", "new", "reused", "own"), 0) | {"density": 0.0}
            head = sum(value.numel() for value in heads.get(task["name"], {}).values())
            tasks.append({"name": task["name"], "classes": list(task["classes"]), **nothing, "head": head})
            continue
        uses = sum(int(mask[t].sum()) for mask in masks.values())
        new = sum(int((mask[t] & ~mask[:t].any(0)).sum()) for mask in masks.values())
        tasks.append({
            "name": task["name"],
            "classes": list(task["classes"]),
            "weights": uses,
            "density": uses / max(1, sum(mask[t].size for mask in masks.values())),
            "new": new,
            "reused": uses - new,
            "own": sum(value.numel() for value in own[task["name"]].values()),
            "head": sum(value.numel() for value in heads.get(task["name"], {}).values()),
        })  # fmt: skip
    origin = manifest["backbone"]
    soft = "free" in archive.sections and not manifest["resumable"]  # weights outside of the masks are needed to answer
    shared = {name: prod(shape) for name, (_, shape) in manifest["shared"].items()}
    return Inspection(
        path,
        path.stat().st_size,
        manifest["method"],
        manifest["arguments"],
        f"{origin['name']} {origin['arguments']}" if origin else f"{manifest['module']} (to be passed in)",
        manifest["version"],
        _learning(manifest),
        manifest["resumable"],
        manifest["rounded"],
        {name: len(content) for name, content in sorted(archive.sections.items())},
        {
            name: (int(masks[name].any(0).sum()) if name in masks and not soft else size, size)
            for name, size in shared.items()
        },
        tuple(tasks),
    )


def _learning(manifest: Mapping[str, Any]) -> str:
    if manifest["resumable"]:
        return "goes on to the same bits"
    if _scenario(manifest) == "fscil":
        return "goes on with what the method kept"
    return "goes on with free weights and scores drawn anew"


def _scenario(manifest: Mapping[str, Any]) -> str:
    """How the method learns; archives of format 1 do not say it."""
    return str(manifest["scenario"]) if "scenario" in manifest else str(methods().entry(manifest["method"]).scenario)


def _magnitudes(values: Tensor) -> Tensor:
    return values.detach().abs().float()


def _shelve(tree: Any) -> tuple[bytes, dict[str, Any]]:
    """The tensors of a tree one after the other, and where they belong."""
    tensors: dict[str, Tensor] = {}
    structure = flatten(tree, tensors)
    shelf = [_form(value) for value in tensors.values()]
    return b"".join(map(_raw, tensors.values())), {"structure": json.dumps(structure), "tensors": shelf}


def _unshelve(content: bytes, entry: Mapping[str, Any]) -> Any:
    tensors: dict[str, Tensor] = {}
    at = 0
    for number, (kind, shape) in enumerate(entry["tensors"]):
        dtype: torch.dtype = getattr(torch, kind)
        length = prod(shape) * dtype.itemsize
        piece = bytearray(content[at : at + length])
        if len(piece) != length:
            raise ValueError(f"a section ends after {len(content)} bytes")
        if kind == "bool" and not {*piece} <= {0, 1}:
            raise ValueError("a section has bits that are neither true nor false")
        tensors[str(number)] = (
            torch.frombuffer(piece, dtype=dtype).view(shape) if piece else torch.empty(shape, dtype=dtype)
        )
        at += length
    if at != len(content):
        raise ValueError(f"a section has {len(content)} bytes, its tensors take {at}")
    return unflatten(json.loads(entry["structure"]), tensors)


def _as_tree(learned: TaskRecord) -> dict[str, Any]:
    """What is known of a task as plain values; its answers are tensors and lie elsewhere."""
    # not the seconds: the same learner is the same bytes
    tree = {entry.name: getattr(learned, entry.name) for entry in fields(TaskRecord) if entry.name != "seconds"}
    tree["curves"] = [dict(epoch) for epoch in learned.curves]
    known = learned.certificate
    tree["certificate"] = known and {
        entry.name: getattr(known, entry.name) for entry in fields(Certificate) if entry.name != "answers"
    }
    if tree["certificate"]:
        tree["certificate"]["fingerprint"] = dict(tree["certificate"]["fingerprint"])
    return tree


def _from_tree(tree: Mapping[str, Any], answers: Tensor | None) -> TaskRecord:
    known = tree["certificate"]
    certificate = Certificate(**known, answers=answers) if known else None
    return TaskRecord(**{**tree, "curves": tuple(tree["curves"]), "certificate": certificate})


def _apart(one: TaskRecord, other: TaskRecord) -> float | None:
    answers = [known.certificate.answers if known.certificate else None for known in (one, other)]
    return None if answers[0] is None or answers[1] is None else difference(answers[0], answers[1])


def _form(value: Tensor) -> tuple[str, list[int]]:
    return str(value.dtype).removeprefix("torch."), list(value.shape)


def _words(form: tuple[str, list[int]] | None) -> str:
    return f"{form[0]} {'×'.join(map(str, form[1])) or 'scalar'}" if form else "not there"


def _raw(value: Tensor) -> bytes:
    return bytes(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _digest_of_all(sections: Mapping[str, bytes]) -> str:
    return _digest("".join(f"{name} {_digest(content)}\n" for name, content in sorted(sections.items())).encode())
