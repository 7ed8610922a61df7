"""Mutants: bytes and trees with something wrong in them, each from a number."""

import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

GONE = object()
"""In place of a value: it is left out."""

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 2**15, 2**31, 2**40, 2**63, 2**100, 10**400, 0.5, -0.5, 1e308, -1e-320,
    math.nan, math.inf, -math.inf, "", "x", "load", "float16", "int8", "complex64", "float32", "wsn", "hat", "huffman",
    "ans", "linear", "euclidean", "cosine", "mlp", "til", "fscil", "/dev/zero", "../../x", "\x1b[31mred\x07", "\ud800",
    "a\0b", "[/bold]", "x" * 5000, [], [-1], [2**40], [0], ["x"], {}, {"x": 1}, (), (1, 2), (0, 2**70),
    ("float32", [2**40]), ("float64", [3]), ((2**33,), "float32"), ((2**20,), "float32"), [[[[[]]]]], "[" * 5000,
    '{"dict": []}', [None] * 3000, {str(i): i for i in range(500)},
]  # fmt: skip


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, lost, doubled, zeroed or put elsewhere, as disks, cables and editors do it."""
    size, changed = len(content), bytearray(content)
    if not size:
        return chance.randbytes(8)
    at = chance.randrange(min(size, 2000) if chance.random() < 0.3 else size)
    length = min(chance.choice([1, 2, 8, 100, 1000]), size - at)
    match chance.randrange(9):
        case 0 | 1 | 2:
            for _ in range(chance.choice([1, 1, 1, 3])):
                changed[chance.randrange(size)] ^= 1 << chance.randrange(8)
        case 3:
            changed[at:] = b""
        case 4:
            changed[at : at + length] = b""
        case 5:
            changed[at:at] = chance.randbytes(length)
        case 6:
            source = chance.randrange(size - length + 1)
            changed[at : at + length] = content[source : source + length]
        case 7:
            changed[at : at + length] = bytes(length)
        case _:
            changed[: min(8, size)] = chance.choice([0, 1, size, 2**20, 2**40, 2**63]).to_bytes(8, "little")
    return bytes(changed)


def mutated(tree: Any, chance: random.Random) -> Any:
    """A tree of plain values with one thing in it that is not as it was."""
    path = _place(tree, chance)
    if chance.random() < 0.08:  # a value from elsewhere in it
        other = _at(tree, _place(tree, chance))
        return put(tree, path, lambda _: other)
    return put(tree, path, lambda value: _other(value, chance))


def put(tree: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """The tree with something else at one place."""
    if not path:
        return change(tree)
    if isinstance(tree, dict):
        return {k: new for k, v in tree.items() if (new := put(v, path[1:], change) if k == path[0] else v) is not GONE}
    kind = list if isinstance(tree, list) else tuple
    changed = (put(value, path[1:], change) if key == path[0] else value for key, value in enumerate(tree))
    return kind(value for value in changed if value is not GONE)


def _place(tree: Any, chance: random.Random) -> tuple[Any, ...]:
    """A place in a tree: every child of a branch is as likely as any other, so that small fields are not forgotten."""
    path: tuple[Any, ...] = ()
    while isinstance(tree, dict | list | tuple) and len(tree) and (not path or chance.random() < 0.75):
        key = chance.choice(list(tree)) if isinstance(tree, dict) else chance.randrange(len(tree))
        path, tree = (*path, key), tree[key]
    return path


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _other(value: Any, chance: random.Random) -> Any:
    return chance.choice([*_near(value, chance), *_near(value, chance), GONE, chance.choice(ODD), chance.choice(ODD)])


def _near(value: Any, chance: random.Random) -> Iterator[Any]:
    """Values that are almost the same: of another type, a little more or less, twice."""
    yield [value]
    yield (value,)
    yield {"x": value}
    yield repr(value)[:10_000]
    match value:
        case bool():
            yield from (not value, int(value))
        case int():
            yield from (value + 1, value - 1, -value, float(value) if abs(value) < 2**60 else 0.5, value * 2**20)
        case float():
            yield from (value + 1, -value, math.nan, 1 / 3, str(value))
        case str():
            yield from (value + "x", value[:-1], value.encode().hex()[:1000], value + "\x1b[2J\n")
        case list() | tuple() if value:
            kind = type(value)
            one = chance.choice(list(value))
            yield from (kind([*value, one]), kind(value[:-1]), kind(reversed(value)), list(value), tuple(value))
        case dict() if value:
            key = chance.choice(list(value))
            yield {**value, "more": value[key]}
            yield {k: v for k, v in value.items() if k != key}
            yield {f"{k}x" if k == key else k: v for k, v in value.items()}
            yield dict(reversed(value.items()))
        case _:
            yield 0


def as_json(tree: Any) -> str:
    """JSON of any tree, also of one with values that JSON should not have; what cannot be a key becomes text."""
    return json.dumps(tree, skipkeys=True)
