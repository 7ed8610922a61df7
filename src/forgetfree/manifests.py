"""Manifests: what an archive says of itself, and how much of that a file of its size is believed.

Whoever writes an archive can sign it, so digests protect nobody: every field has a form (type, range, what it must
agree with), and every claim of size a limit. A limit is an allowance for any file plus so much for each of its bytes,
so that a small file cannot ask for much memory or time. Where a network is sparser than that, `save` pads the file;
where the caller hands in a backbone, which vouches for its size, more is believed.
"""

import typing
from collections.abc import Mapping
from math import ceil, prod
from typing import Any, Literal

from forgetfree.certificate import LARGEST_PROBE, ROWS
from forgetfree.codec import CODECS
from forgetfree.forms import (
    LARGEST,
    Form,
    FormError,
    anything,
    either,
    fields,
    flag,
    listed,
    mapping,
    number,
    optional,
    plain,
    row,
    tensor,
    text,
    whole,
    word,
)

LIMITS: Mapping[str, tuple[int, float]] = {
    "bytes of manifest": (1 << 18, 1 << 4),
    "tensors in tickets": (1 << 11, 1 / 16),  # building and decoding take a millisecond for each
    "weights behind masks": (1 << 22, 1 << 9),  # decoding takes half a microsecond for each
    "values of probes": (1 << 20, 1 << 6),
    "products in answers to probes": (1 << 40, 1 << 26),
}
"""What a file may claim: so many in any file, and so many more for each of its bytes."""
VOUCHED = 32
"""So many times more is believed where the caller hands in the backbone."""

DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
SHAPE = listed(whole(0, 1 << 40), most=16)
TENSOR = row(word(*DTYPES), SHAPE)
INPUT = row(listed(whole(0, 1 << 40), most=16, kind=tuple), word(*DTYPES), kind=tuple)
RANGE = row(whole(), whole(), kind=tuple)

CERTIFICATE = fields({
    "digest": text(64),
    "probe": whole(0),
    "ranges": optional(either(mapping(optional(RANGE)), RANGE, listed(optional(RANGE), kind=tuple))),
    "fingerprint": fields({}, {"threads": whole(1)}, others=True),
})  # fmt: skip

TASK = fields(
    {
        "name": text(),
        "classes": listed(either(whole(), text()), kind=tuple),
        "outputs": whole(1, 1 << 31),
        "position": whole(0, 1 << 31),
        "inputs": either(mapping(INPUT), INPUT, listed(INPUT, 1, kind=tuple)),
        "threads": whole(1),
        "selection": text(),
        "curves": listed(mapping(number(finite=False))),
        "certificate": optional(CERTIFICATE),
    },
    {"features": optional(whole(1, 1 << 31)), "given": mapping(plain), "seconds": number(0)},
)

MANIFEST = fields(
    {
        "version": text(1000),
        "method": text(1000),
        "arguments": fields({"heads": text(1000), "recipe": mapping(plain)}, others=True),
        "backbone": optional(fields({"name": text(1000), "arguments": mapping(plain)})),
        "module": text(1000),
        "tensors": mapping(TENSOR),
        "frozen": listed(text()),
        "shared": mapping(TENSOR),
        "codec": word(*CODECS),
        "blocks": mapping(listed(whole(0))),
        "tasks": listed(TASK),
        "resumable": flag,
        "rounded": optional(
            fields({"dtype": word("float16", "bfloat16"), "difference": mapping(optional(number(0, finite=False)))})
        ),
        "shelves": mapping(fields({"structure": text(LARGEST), "tensors": listed(TENSOR)})),
        "digests": mapping(text(64)),
    },
    {"package": text(1000), "scenario": word("til", "fscil"), "tickets": listed(text())},
)

TREES: Mapping[str, Form] = {
    "weights": mapping(tensor),
    "own": mapping(mapping(tensor)),
    "heads": mapping(mapping(tensor)),
    "answers": mapping(optional(tensor)),
    "training": mapping(anything),
    "free": mapping(tensor),
}
"""What the tensors of each section are the leaves of."""


def check_manifest(manifest: Any) -> None:
    """Refuse a manifest with a field that cannot be, or with two that contradict each other."""
    MANIFEST(manifest, "its manifest")
    names, tickets = [task["name"] for task in manifest["tasks"]], ticket_names(manifest)
    positions = [task["position"] for task in manifest["tasks"]]
    tensors, shared, blocks = manifest["tensors"], manifest["shared"], manifest["blocks"]
    faults = {
        "two tasks have one name": len(set(names)) != len(names),
        "its tasks are not in the order of their positions": positions != sorted(set(positions)),
        "a ticket is of no task, or there are two": len(set(tickets)) != len(tickets) or not {*tickets} <= {*names},
        "a section is missing, or there is one too many": {*manifest["shelves"]} - {"free"} != {*TREES} - {"free"},
        "masks are of other tensors than the backbone's": any(
            name not in shared or shared[name] != tensors.get(name) for name in blocks
        ),
        "what is frozen is no tensor of the backbone": not {*manifest["frozen"]} <= {*tensors},
        "a task has fewer outputs than classes": any(
            task["outputs"] < len(task["classes"]) for task in manifest["tasks"]
        ),
        "a class is named twice in a task": any(
            len(set(task["classes"])) != len(task["classes"]) for task in manifest["tasks"]
        ),
        "a probe is not of the form of the inputs": not all(map(_probed_like_inputs, manifest["tasks"])),
    }
    for fault, there in faults.items():
        if there:
            raise FormError(fault)


def ticket_names(manifest: Mapping[str, Any]) -> list[str]:
    """Names of the tasks that have a ticket; few-shot sessions after the first learn on in that one."""
    return list(manifest.get("tickets", [task["name"] for task in manifest["tasks"]]))


def claims(manifest: Mapping[str, Any], length: int) -> dict[str, int]:
    """What a manifest of this length, in bytes, asks for, in the words of LIMITS."""
    weights = sum(prod(shape) for _, shape in manifest["tensors"].values())
    probes = [_values(task["inputs"]) for task in manifest["tasks"] if task["certificate"]]
    drawn = sum(ROWS * values for values in probes if ROWS * values <= LARGEST_PROBE)
    tickets = max(1, len(ticket_names(manifest)))
    return {
        "bytes of manifest": length,
        "tensors in tickets": len(manifest["tensors"]) * tickets,
        "weights behind masks": weights * tickets,
        "values of probes": drawn,
        "products in answers to probes": drawn * weights,
    }


def allowed(claim: str, nbytes: int, times: int = 1) -> int:
    """How much of this a file of so many bytes may claim."""
    always, each = LIMITS[claim]
    return times * int(always + each * nbytes)


def check_claims(found: Mapping[str, int], nbytes: int, *, vouched: bool) -> None:
    """Refuse what so small a file could not be believed; a backbone of the caller's own has `vouched` for more."""
    for claim, count in found.items():
        most = allowed(claim, nbytes, VOUCHED if vouched else 1)
        if count > most:
            hint = "" if vouched else ". If you trust it, pass its backbone, which vouches for its size"
            raise FormError(f"it claims {count} {claim} in {nbytes} bytes, which may claim {most}{hint}")


def padding(found: Mapping[str, int], nbytes: int) -> int:
    """How many bytes more a file needs to be believed."""
    wanted = [ceil((found[claim] - always) / each) for claim, (always, each) in LIMITS.items()]
    return max(0, max(wanted) - nbytes)


def texts_in(value: Any) -> bool:
    """Whether there is a text in a plain value."""
    if isinstance(value, dict):
        return any(texts_in(each) for pair in value.items() for each in pair)
    return any(map(texts_in, value)) if isinstance(value, list | tuple) else isinstance(value, str)


def words_of(build: Any, argument: str) -> tuple[Any, ...]:
    """The words that a function offers for an argument, by a Literal in its annotation."""
    try:
        hint = typing.get_type_hints(build).get(argument)
    except (NameError, TypeError, AttributeError):  # annotations of a package that cannot be resolved here
        return ()
    return _words(hint)


def _words(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return tuple(each for part in typing.get_args(hint) for each in _words(part))


def _values(inputs: Any) -> int:
    """How many values a sample has."""
    each = inputs.values() if isinstance(inputs, dict) else [inputs] if one_tensor(inputs) else inputs
    return sum(prod(shape) for shape, _ in each)


def _probed_like_inputs(task: Mapping[str, Any]) -> bool:
    """Whether the ranges of a certificate are of the form of the inputs, each from low to high."""
    if task["certificate"] is None:
        return True
    inputs, ranges = task["inputs"], task["certificate"]["ranges"]
    if isinstance(inputs, dict):
        pairs = [ranges.get(name) for name in inputs] if isinstance(ranges, dict) and {*ranges} == {*inputs} else [()]
    elif one_tensor(inputs):
        pairs = [ranges]
    else:
        pairs = list(ranges) if isinstance(ranges, tuple) and len(ranges) == len(inputs) else [()]
    return all(
        pair is None or (isinstance(pair, tuple) and len(pair) == 2 and all(type(end) is int for end in pair)
        and pair[0] <= pair[1]) for pair in pairs
    )  # fmt: skip


def one_tensor(inputs: Any) -> bool:
    """Whether a signature is that of one tensor: its shape and its type."""
    return isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], str)
