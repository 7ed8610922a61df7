"""Masks as symbols: the bits of up to n tasks over one weight, by Huffman's code or asymmetric numeral systems (ANS).

A block is a table, of the symbols that occur and how long their words or how large their counts are, and a stream. A
layer of one symbol is its table alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import constriction
import numpy as np
from bitarray import bitarray
from bitarray.util import ba2int, canonical_decode, huffman_code, int2ba
from numpy.typing import NDArray

from forgetfree.codec.blocks import (
    Codec,
    CodecError,
    Flags,
    Masks,
    Numbers,
    Weights,
    check_blocks,
    check_end,
    check_nothing_left,
    coder_of,
    flatten,
    stream_of,
)
from forgetfree.errors import InputError

PAPER_BITS = 7
"""How many tasks share a symbol (the paper's n)."""


def huffman(bits: int = PAPER_BITS) -> Codec:
    """The canonical Huffman code over symbols of `bits` tasks."""
    return _Symbols(bits, _huffman_block, _huffman_symbols)


def ans(bits: int = PAPER_BITS) -> Codec:
    """Asymmetric numeral systems over symbols of `bits` tasks: as close to the entropy as whole streams allow."""
    return _Symbols(bits, _ans_block, _ans_symbols)


def entropy_bound(masks: Masks, bits: int = PAPER_BITS) -> float:
    """The order-0 entropy of the symbols, in bits: what no code of single symbols can go below."""
    flat, _ = flatten(masks)
    counts = [np.unique(symbols, return_counts=True)[1] for symbols in _symbols_of(flat, bits)]
    return float(sum((count * np.log2(count.sum() / count)).sum() for count in counts))


@dataclass(frozen=True)
class _Symbols:
    """The bits of up to `bits` tasks over one weight are a symbol; the symbols of all weights are a block."""

    bits: int
    pack: Callable[[NDArray[np.uint16]], bytes]
    unpack: Callable[[bytes, int, int], NDArray[np.uint16]]  # block, weights, tasks in the block

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 16:
            raise InputError(f"a symbol has 1 to 16 bits, one per task; got {self.bits}. The paper takes {PAPER_BITS}.")

    def encode(self, masks: Masks, weights: Weights | None = None) -> list[bytes]:
        flat, shape = flatten(masks)
        return [self.pack(symbols) if prod(shape) else b"" for symbols in _symbols_of(flat, self.bits)]

    def decode(self, blocks: Sequence[bytes], tasks: int, shape: Sequence[int], values: Weights | None = None) -> Flags:
        check_blocks(blocks, -(-tasks // self.bits), tasks)
        size = prod(shape)
        masks = np.zeros((tasks, size), bool)
        for start, block in zip(range(0, tasks, self.bits), blocks, strict=True):
            together = masks[start : start + self.bits]
            symbols = self.unpack(block, size, len(together)) if size else check_nothing_left(block)
            for t, mask in enumerate(together):
                mask[:] = symbols >> t & 1
        return masks.reshape(tasks, *shape)


def _symbols_of(flat: Sequence[Flags], bits: int) -> Iterator[NDArray[np.uint16]]:
    for start in range(0, len(flat), bits):
        symbols = np.zeros(flat[0].size, np.uint16)
        for t, mask in enumerate(flat[start : start + bits]):
            symbols |= mask.astype(np.uint16) << t
        yield symbols


def _huffman_block(symbols: NDArray[np.uint16]) -> bytes:
    counts = np.bincount(symbols)
    present = np.flatnonzero(counts)
    if present.size == 1:
        return _table(present, [0], LENGTH_BITS)
    lengths = _code_lengths(counts[present].tolist())
    stream = bitarray()
    stream.encode(_canonical_code(present.tolist(), lengths), symbols.tolist())
    return _table(present, lengths, LENGTH_BITS) + stream.tobytes()


def _huffman_symbols(block: bytes, size: int, bits: int) -> NDArray[np.uint16]:
    present, lengths, stream = _read_table(block, LENGTH_BITS, bits)
    if present.size == 1:
        check_nothing_left(stream)
        return np.full(size, present[0], np.uint16)
    if not all(lengths) or sum(1 << LONGEST - length for length in lengths) != 1 << LONGEST:
        raise CodecError(f"damaged block: the {len(lengths)} lengths in its table are not those of a Huffman code.")
    in_order = [symbol for _, symbol in sorted(zip(lengths, present.tolist(), strict=True))]
    of_each_length = np.bincount(lengths).tolist()
    try:
        symbols = np.fromiter(canonical_decode(_bits(stream), of_each_length, in_order), np.uint16, size)
    except ValueError as error:
        raise CodecError(f"damaged block: its stream ends before {size} symbols.") from error
    spent = int(np.bincount(symbols, minlength=1 << bits)[present] @ np.array(lengths))
    if len(stream) != -(-spent // 8):
        raise CodecError(f"damaged block: {size} symbols take {spent} bits; there are {len(stream)} bytes.")
    return symbols


LENGTH_BITS = 5
LONGEST = (1 << LENGTH_BITS) - 1
"""The longest code word: what the table has room for, and what bitarray decodes."""


def _code_lengths(counts: list[int]) -> list[int]:
    code = huffman_code(dict(enumerate(counts)))
    lengths = [len(code[rank]) for rank in range(len(counts))]
    # only counts that grow like Fibonacci's numbers get here; evened out they cost next to nothing more
    return lengths if max(lengths) <= LONGEST else _code_lengths([(count + 1) // 2 for count in counts])


def _canonical_code(present: Iterable[int], lengths: Iterable[int]) -> dict[int, bitarray]:
    """Code words by length, then by symbol, each one more than the one before: the lengths say it all."""
    code, word, previous = {}, 0, 0
    for length, symbol in sorted(zip(lengths, present, strict=True)):
        word <<= length - previous
        code[symbol] = int2ba(word, length)
        word, previous = word + 1, length
    return code


def _ans_block(symbols: NDArray[np.uint16]) -> bytes:
    counts = np.bincount(symbols)
    present = np.flatnonzero(counts)
    if present.size == 1:
        return _table(present, [0], COUNT_BITS)
    short = _short_counts(counts[present])
    rank = np.zeros(counts.size, np.int32)
    rank[present] = np.arange(present.size)
    coder = constriction.stream.stack.AnsCoder()
    coder.encode_reverse(rank[symbols], _chances(short))
    return _table(present, short, COUNT_BITS) + stream_of(coder)


def _ans_symbols(block: bytes, size: int, bits: int) -> NDArray[np.uint16]:
    present, short, stream = _read_table(block, COUNT_BITS, bits)
    if present.size == 1:
        check_nothing_left(stream)
        return np.full(size, present[0], np.uint16)
    coder = coder_of(stream)
    symbols: NDArray[np.uint16] = present.astype(np.uint16)[coder.decode(_chances(short), size)]
    check_end(coder)
    return symbols


COUNT_BITS = 8
"""A count in the table: five bits of exponent, three of mantissa. Exact ones would cost more than they save."""


def _short_counts(counts: Numbers) -> list[int]:
    mantissa, exponent = np.frexp(counts)  # mantissa in [1/2, 1)
    return (np.rint(mantissa * 16).astype(np.int64) - 8 + 8 * (exponent - 1)).tolist()  # type: ignore[no-any-return]


def _chances(short: list[int]) -> Any:
    """The model of the symbols.

    constriction makes fixed-point numbers of cumulated chances by one sum, one division and one product in float64.
    The sum is over whole numbers and exact; the others are rounded in the one way IEEE allows. So all machines agree.
    """
    counts = [(8 + code % 8) << code // 8 for code in short]
    return constriction.stream.model.Categorical(np.array(counts, np.float64), perfect=False)


def _table(present: Numbers, entries: Iterable[int], width: int) -> bytes:
    """How many symbols occur, and for each the gap to the one before it and its entry of `width` bits."""
    gaps = np.diff(present, prepend=-1).tolist()
    parts = (f"{_gamma(gap)}{entry:0{width}b}" for gap, entry in zip(gaps, entries, strict=True))
    return bitarray(_gamma(len(gaps)) + "".join(parts)).tobytes()


def _gamma(number: int) -> str:
    """Elias' gamma code: as many zeros as the number has bits after its first one, then the number."""
    return "0" * (number.bit_length() - 1) + f"{number:b}"


def _read_table(block: bytes, width: int, bits: int) -> tuple[Numbers, list[int], bytes]:
    """The symbols that occur, their entries, and the bytes after the table."""
    stream, at = _bits(block), 0

    def read(length: int) -> int:
        nonlocal at
        if length < 1 or at + length > len(stream):
            raise CodecError(f"damaged block: its table does not fit in {len(block)} bytes.")
        at += length
        return ba2int(stream[at - length : at])

    def read_gamma() -> int:
        nonlocal at
        zeros = stream.find(1, at, at + bits + 1) - at
        at += max(zeros, 0)
        return read(zeros + 1)

    gaps, entries = [], []
    for _ in range(read_gamma()):
        gaps.append(read_gamma())
        entries.append(read(width))
    present = np.cumsum(gaps) - 1
    if present[-1] >= 1 << bits:
        raise CodecError(f"damaged block: symbol {present[-1]} of {bits} tasks.")
    return present, entries, block[-(-at // 8) :]


def _bits(block: bytes) -> bitarray:
    bits = bitarray()
    bits.frombytes(block)
    return bits
