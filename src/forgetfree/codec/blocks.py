"""What all codecs share: the masks of one layer, the order of first use, and the blocks of bytes they become."""

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import constriction
import numpy as np
from numpy.typing import NDArray

from forgetfree.errors import ForgetfreeError, InputError

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Numbers = NDArray[np.signedinteger[Any]]
Weights = NDArray[np.floating[Any]]
Masks = Sequence[Flags] | Flags
"""One boolean array per task, all of one shape."""


class CodecError(ForgetfreeError, ValueError):
    """Bytes that are not the masks they should be."""


class Codec(Protocol):
    """Masks of one layer to blocks of bytes and back."""

    def encode(self, masks: Masks, weights: Weights | None = None) -> list[bytes]:
        """The blocks. Of `weights`, in the shape of a mask, only those that an earlier task used are looked at."""
        ...

    def decode(self, blocks: Sequence[bytes], tasks: int, shape: Sequence[int], values: Weights | None = None) -> Flags:
        """The masks, [tasks, *shape]. `values` are the used weights by `first_use`, if weights helped to encode."""
        ...


def first_use(masks: Masks) -> Numbers:
    """Flat indices of all used weights: those of the first mask, then those new in the second, and so on."""
    flat, shape = flatten(masks)
    used = np.zeros(prod(shape), bool)
    order = [np.empty(0, np.int64)]
    for mask in flat:
        order.append(np.flatnonzero(mask & ~used))
        used |= mask
    return np.concatenate(order)


def scatter(values: Weights, masks: Masks) -> Weights:
    """Weights back in their places, from `values` by `first_use`; zero where no mask is."""
    places, shape = first_use(masks), flatten(masks)[1]
    if values.shape != places.shape:
        raise InputError(f"the masks use {places.size} weights, the values have shape {values.shape}.")
    weights = np.zeros(prod(shape), values.dtype)
    weights[places] = values
    return weights.reshape(shape)


def raw_bits(masks: Masks) -> int:
    """One bit per weight and task."""
    flat, shape = flatten(masks)
    return len(flat) * prod(shape)


def flatten(masks: Masks) -> tuple[list[Flags], tuple[int, ...]]:
    """Each mask in one dimension, and the shape of all."""
    arrays = [np.asarray(mask) for mask in masks]
    shapes = {array.shape for array in arrays} or {np.shape(masks)[1:]}
    if len(shapes) > 1 or any(array.dtype != np.bool_ for array in arrays):
        raise InputError(
            "the masks of a layer are boolean arrays of one shape; "
            f"got {sorted({f'{array.dtype} {array.shape}' for array in arrays})}."
        )
    return [np.ascontiguousarray(array).reshape(-1) for array in arrays], shapes.pop()


def check_blocks(blocks: Sequence[bytes], expected: int, tasks: int) -> None:
    if len(blocks) != expected:
        raise CodecError(
            f"{tasks} tasks are {expected} blocks; got {len(blocks)}. Some are missing, or not of this layer."
        )


def stream_of(coder: Any) -> bytes:
    """The words of a coder, least significant byte first. The last word is not zero: its upper zeros can go."""
    words: NDArray[np.uint32] = coder.get_compressed()
    return words.astype("<u4").tobytes().rstrip(b"\0")


def coder_of(stream: bytes) -> Any:
    if stream.endswith(b"\0"):
        raise CodecError("damaged block: a stream never ends in a zero byte.")
    words = np.frombuffer(stream + b"\0" * (-len(stream) % 4), "<u4")
    return constriction.stream.stack.AnsCoder(words.astype(np.uint32))


def check_end(coder: Any) -> None:
    if not coder.is_empty():
        raise CodecError("damaged block, or decoded with other weights than it was encoded with.")


def check_nothing_left(stream: bytes) -> NDArray[np.uint16]:
    if stream:
        raise CodecError(f"damaged block: {len(stream)} bytes where nothing is left to decode.")
    return np.empty(0, np.uint16)
