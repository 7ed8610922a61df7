"""Masks as few bytes: the tickets of many tasks over one layer, packed without loss and bit for bit restored.

Each task has one bit per weight. What is close together is similar: a weight that one task used, the next uses again.

                  weight   0 1 2 3 4 5 …
        mask of task 0     1 0 0 1 0 0      huffman, ans: the bits of 7 tasks over one weight are a symbol (columns);
        mask of task 1     1 0 0 0 0 1      frequent symbols get few bits. One block of bytes for every 7 tasks.
        mask of task 2     1 1 0 0 0 1      context: every bit is guessed from all that lies above it, and costs what
              …                             the guess was off by. One block of bytes per task.

`huffman` is the paper's code, `ans` the same symbols without Huffman's rounding to whole bits, `context` the smallest.
A block that is full never changes when tasks are added. Blocks are all there is to store: their tables and the ends of
their streams are in them.

Decoding gives the same masks on every machine. Whatever decides about a probability is a whole number, a multiple of a
power of two that float64 sums without rounding in any order, or one IEEE operation per element.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any, Protocol

import constriction
import numpy as np
from bitarray import bitarray
from bitarray.util import ba2int, canonical_decode, huffman_code, int2ba
from numpy.typing import NDArray

from forgetfree.errors import ForgetfreeError, InputError

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Numbers = NDArray[np.signedinteger[Any]]
Weights = NDArray[np.floating[Any]]
Masks = Sequence[Flags] | Flags
"""One boolean array per task, all of one shape."""

PAPER_BITS = 7
"""How many tasks share a symbol (the paper's n)."""


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


def huffman(bits: int = PAPER_BITS) -> Codec:
    """The canonical Huffman code over symbols of `bits` tasks."""
    return _Symbols(bits, _huffman_block, _huffman_symbols)


def ans(bits: int = PAPER_BITS) -> Codec:
    """Asymmetric numeral systems over symbols of `bits` tasks: as close to the entropy as whole streams allow."""
    return _Symbols(bits, _ans_block, _ans_symbols)


def context() -> Codec:
    """Every mask given the earlier masks, the magnitudes of the weights they use, and how full rows and columns are."""
    return _Context()


def first_use(masks: Masks) -> Numbers:
    """Flat indices of all used weights: those of the first mask, then those new in the second, and so on."""
    flat, shape = _flat(masks)
    used = np.zeros(prod(shape), bool)
    order = [np.empty(0, np.int64)]
    for mask in flat:
        order.append(np.flatnonzero(mask & ~used))
        used |= mask
    return np.concatenate(order)


def scatter(values: Weights, masks: Masks) -> Weights:
    """Weights back in their places, from `values` by `first_use`; zero where no mask is."""
    places, shape = first_use(masks), _flat(masks)[1]
    if values.shape != places.shape:
        raise InputError(f"the masks use {places.size} weights, the values have shape {values.shape}.")
    weights = np.zeros(prod(shape), values.dtype)
    weights[places] = values
    return weights.reshape(shape)


def entropy_bound(masks: Masks, bits: int = PAPER_BITS) -> float:
    """The order-0 entropy of the symbols, in bits: what no code of single symbols can go below."""
    flat, _ = _flat(masks)
    counts = [np.unique(symbols, return_counts=True)[1] for symbols in _symbols_of(flat, bits)]
    return float(sum((count * np.log2(count.sum() / count)).sum() for count in counts))


def raw_bits(masks: Masks) -> int:
    """One bit per weight and task."""
    flat, shape = _flat(masks)
    return len(flat) * prod(shape)


def _flat(masks: Masks) -> tuple[list[Flags], tuple[int, ...]]:
    """Each mask in one dimension, and the shape of all."""
    arrays = [np.asarray(mask) for mask in masks]
    shapes = {array.shape for array in arrays} or {np.shape(masks)[1:]}
    if len(shapes) > 1 or any(array.dtype != np.bool_ for array in arrays):
        raise InputError(
            "the masks of a layer are boolean arrays of one shape; "
            f"got {sorted({f'{array.dtype} {array.shape}' for array in arrays})}."
        )
    return [np.ascontiguousarray(array).reshape(-1) for array in arrays], shapes.pop()


def _check_blocks(blocks: Sequence[bytes], expected: int, tasks: int) -> None:
    if len(blocks) != expected:
        raise CodecError(
            f"{tasks} tasks are {expected} blocks; got {len(blocks)}. Some are missing, or not of this layer."
        )


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
        flat, shape = _flat(masks)
        return [self.pack(symbols) if prod(shape) else b"" for symbols in _symbols_of(flat, self.bits)]

    def decode(self, blocks: Sequence[bytes], tasks: int, shape: Sequence[int], values: Weights | None = None) -> Flags:
        _check_blocks(blocks, -(-tasks // self.bits), tasks)
        size = prod(shape)
        masks = np.zeros((tasks, size), bool)
        for start, block in zip(range(0, tasks, self.bits), blocks, strict=True):
            together = masks[start : start + self.bits]
            symbols = self.unpack(block, size, len(together)) if size else _nothing(block)
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
        _nothing(stream)
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
    return _table(present, short, COUNT_BITS) + _words_to_bytes(coder)


def _ans_symbols(block: bytes, size: int, bits: int) -> NDArray[np.uint16]:
    present, short, stream = _read_table(block, COUNT_BITS, bits)
    if present.size == 1:
        _nothing(stream)
        return np.full(size, present[0], np.uint16)
    coder = _coder_of(stream)
    symbols: NDArray[np.uint16] = present.astype(np.uint16)[coder.decode(_chances(short), size)]
    _check_end(coder)
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


def _words_to_bytes(coder: Any) -> bytes:
    """The words of a coder, least significant byte first. The last word is not zero: its upper zeros can go."""
    words: NDArray[np.uint32] = coder.get_compressed()
    return words.astype("<u4").tobytes().rstrip(b"\0")


def _coder_of(stream: bytes) -> Any:
    if stream.endswith(b"\0"):
        raise CodecError("damaged block: a stream never ends in a zero byte.")
    words = np.frombuffer(stream + b"\0" * (-len(stream) % 4), "<u4")
    return constriction.stream.stack.AnsCoder(words.astype(np.uint32))


def _check_end(coder: Any) -> None:
    if not coder.is_empty():
        raise CodecError("damaged block, or decoded with other weights than it was encoded with.")


def _nothing(stream: bytes) -> NDArray[np.uint16]:
    if stream:
        raise CodecError(f"damaged block: {len(stream)} bytes where nothing is left to decode.")
    return np.empty(0, np.uint16)


class _Context:
    """Every bit is guessed by a regression that learns while it codes, in the same way on both sides: no tables."""

    def encode(self, masks: Masks, weights: Weights | None = None) -> list[bytes]:
        flat, shape = _flat(masks)
        if flat and weights is not None and weights.shape != shape:
            raise InputError(f"the masks have shape {shape}, the weights {weights.shape}.")
        known = _Known(shape, None if weights is None else weights.reshape(-1)[first_use(masks)])
        blocks = []
        for mask in flat:
            blocks.append(_mask_to_block(known, mask))
            known.add(mask)
        return blocks

    def decode(self, blocks: Sequence[bytes], tasks: int, shape: Sequence[int], values: Weights | None = None) -> Flags:
        _check_blocks(blocks, tasks, tasks)
        known = _Known(shape, values)
        masks = np.zeros((tasks, prod(shape)), bool)
        for mask, block in zip(masks, blocks, strict=True):
            mask[:] = _block_to_mask(known, block)
            known.add(mask)
        if values is not None and known.used != values.size:
            raise CodecError(f"the masks use {known.used} weights; there are {values.size} values.")
        return masks.reshape(tasks, *shape)


def _mask_to_block(known: "_Known", mask: Flags) -> bytes:
    guesses: list[tuple[NDArray[np.int32], Floats]] = []

    def look_up(places: Numbers, guess: Floats) -> Flags:
        bits = mask[places]
        guesses.append((bits.astype(np.int32), guess))
        return bits

    known.walk(look_up)
    coder = constriction.stream.stack.AnsCoder()
    for bits, guess in reversed(guesses):  # what goes in last comes out first
        coder.encode_reverse(bits, BIT, guess)
    return _words_to_bytes(coder)


def _block_to_mask(known: "_Known", block: bytes) -> Flags:
    coder, mask = _coder_of(block), np.zeros(known.size, bool)

    def read(places: Numbers, guess: Floats) -> Flags:
        bits: Flags = coder.decode(BIT, guess).astype(bool)
        mask[places] = bits
        return bits

    known.walk(read)
    _check_end(coder)
    return mask


BIT = constriction.stream.model.Bernoulli(perfect=False)
"""A bit by the chance of a one. Ours are multiples of 2^-16: constriction's product with 2^24 - 2 needs no rounding."""

STRIPES = 32
"""A mask is coded in diagonal stripes: each tells a little about every row and every column, for the next to use."""
FIRST_PIECE, LARGEST_PIECE = 16, 1 << 20
"""Learning starts after few weights; and no piece is so large that float64 would round the sums over it."""
FADING = 0.5
"""What a mask says about how full rows and columns are, next to the mask after it."""
PRIOR_WEIGHTS = 4
"""A row or column starts as full as the layer, as if that many of its weights had been seen."""


class _Known:
    """What both sides know of a layer before its next mask, and the guesses they make from it."""

    def __init__(self, shape: Sequence[int], values: Weights | None):
        self.size, self.tasks, self.used = prod(shape), 0, 0
        columns = prod(shape[1:])
        # a single row or column has no others to compare it with: fold it
        self._columns = columns if 1 < columns < self.size else isqrt(self.size) + 1
        self._rows = -(-self.size // self._columns)
        self._uses = np.zeros(self.size, np.uint16)
        self._last = self._before_last = np.zeros(self.size, bool)
        self._masks_seen, self._uses_seen = 0.0, 0.0
        self._row_uses, self._column_uses = np.zeros(self._rows), np.zeros(self._columns)
        self._magnitudes = None if values is None else _Magnitudes(self.size, values)
        self._of_last, self._of_others = _Regression(), _Regression()

    def walk(self, ask: Callable[[Numbers, Floats], Flags]) -> None:
        """Guess every bit of the next mask. `ask` takes places and the chance of a one at each, and returns the bits.

        The weights of the last ticket come first: most stay, and have a regression of their own.
        """
        row_fullness = self._fullness(self._row_uses, self._columns)
        column_fullness = self._fullness(self._column_uses, self._rows)
        ranks = self._magnitudes.ranks() if self._magnitudes else None
        for regression, members in ((self._of_last, self._last), (self._of_others, ~self._last)):
            regression.fade()
            row_lean, column_lean = _Lean(self._rows), _Lean(self._columns)
            for places in _pieces(self._striped(members)):
                rows, columns = np.divmod(places, self._columns)
                share = self._uses[places] / max(self.tasks, 1)
                rank = ranks(places) * (share > 0) if ranks else np.zeros(places.size)
                by_row, by_column = row_lean.of(rows), column_lean.of(columns)
                features = [
                    np.ones(places.size),
                    self._before_last[places], share,  # who used the weight
                    rank, rank * rank, rank * share,  # how large it is
                    row_fullness[rows], column_fullness[columns],  # how full its row and column were before
                    by_row, by_column, by_column * by_column,  # and seem to be now
                ]  # fmt: skip
                exact = _on_grid(np.array(features), FEATURE_BITS)
                guess = regression.guess(exact)
                bits = ask(places, guess)
                # against guesses that do not know of leans: they would seem to vanish once they are learned
                plain = regression.guess_without_leans(exact)
                row_lean.add(rows, bits - plain, _spread(plain))
                column_lean.add(columns, bits - plain, _spread(plain))
                regression.learn(exact, guess, bits)

    def add(self, mask: Flags) -> None:
        """The next mask is known, and so are the values of the weights it is the first to use."""
        new = np.flatnonzero(mask & (self._uses == 0))
        if self._magnitudes:
            self._magnitudes.add(new)
        self.used += new.size
        self.tasks += 1
        self._uses += mask
        self._before_last, self._last = self._last, mask
        rows, columns = np.divmod(np.flatnonzero(mask), self._columns)
        self._row_uses = self._row_uses * FADING + np.bincount(rows, minlength=self._rows)
        self._column_uses = self._column_uses * FADING + np.bincount(columns, minlength=self._columns)
        self._masks_seen = self._masks_seen * FADING + 1
        self._uses_seen = self._uses_seen * FADING + rows.size

    def _fullness(self, uses: Floats, length: int) -> Floats:
        """How much fuller than the layer each line of `length` weights was in earlier masks, as the log of odds."""
        if not self.tasks:
            return np.zeros(uses.size)
        overall = (self._uses_seen / self._masks_seen + 0.5) / (self.size + 1)
        each = (uses / self._masks_seen + PRIOR_WEIGHTS * overall) / (length + PRIOR_WEIGHTS)
        return _log2(each / (1 - each)) - _log2(np.array(overall / (1 - overall)))

    def _striped(self, members: Flags) -> Numbers:
        places: Numbers = np.flatnonzero(members).astype(np.int32 if self.size < 1 << 31 else np.int64)
        rows, columns = np.divmod(places, self._columns)
        return places[np.argsort(((rows + columns) % STRIPES).astype(np.uint8), kind="stable")]


class _Magnitudes:
    """Which weights are large among those whose values are known, told as values arrive by first use."""

    def __init__(self, size: int, values: Weights):
        if values.ndim != 1:
            raise CodecError(f"values come in one dimension, by first use; got shape {values.shape}.")
        self._patterns = np.zeros(size, np.uint16)
        with np.errstate(over="ignore"):
            bits = np.abs(values.astype(np.float32)).view(np.uint32)
        # the upper half of a float's bits is in the order of its size; all above infinity is not a number
        self._arriving = np.minimum(bits >> 16, INFINITY_PATTERN).astype(np.uint16)
        self._known = 0
        self._counts = np.zeros(INFINITY_PATTERN + 1, np.int64)

    def add(self, places: Numbers) -> None:
        fresh = self._arriving[self._known : self._known + places.size]
        if fresh.size < places.size:
            raise CodecError(f"the masks use more weights than the {self._arriving.size} values that there are.")
        self._patterns[places] = fresh
        self._counts += np.bincount(fresh, minlength=self._counts.size)
        self._known += places.size

    def ranks(self) -> Callable[[Numbers], Floats]:
        """Where the weights at some places stand among the known: the smallest at -1, the largest at 1."""
        middles = 2 * np.cumsum(self._counts) - self._counts
        rank_of = middles / max(self._known, 1) - 1
        return lambda places: rank_of[self._patterns[places]]


INFINITY_PATTERN = 0x7F80
"""The upper 16 bits of infinity in float32."""


class _Lean:
    """How far the bits of each line, a row or a column, went beyond the guesses so far, in log-odds."""

    def __init__(self, lines: int):
        self._excess, self._spread = np.zeros(lines), np.full(lines, LEAN_PRIOR)

    def of(self, lines: Numbers) -> Floats:
        lean: Floats = (self._excess / self._spread)[lines]
        return lean

    def add(self, lines: Numbers, excess: Floats, spread: Floats) -> None:
        self._excess += np.bincount(lines, excess, self._excess.size)
        self._spread += np.bincount(lines, spread, self._spread.size)


LEAN_PRIOR = 4.0
"""As if so much spread had been seen without any excess: a line leans only after it has shown it."""


class _Regression:
    """A logistic regression that learns online: after each piece one Newton step, with the curvature of all pieces."""

    def __init__(self) -> None:
        self._coefficients: Floats = np.zeros(FEATURES)
        self._coefficients[-LEANS:-1] = 1
        self._curvature: Floats = np.eye(FEATURES)

    def fade(self) -> None:
        """What was learned from the masks before stays where it is, and is easier to change."""
        self._curvature = MEMORY * self._curvature + (1 - MEMORY) * np.eye(FEATURES)

    def guess(self, features: Floats) -> Floats:
        return _chance(self._coefficients @ features)

    def guess_without_leans(self, features: Floats) -> Floats:
        return _chance(self._coefficients[:-LEANS] @ features[:-LEANS])

    def learn(self, features: Floats, guess: Floats, bits: Flags) -> None:
        self._curvature += (features * _spread(guess)) @ features.T
        step = _on_grid(_solve(self._curvature, features @ (bits - guess)), COEFFICIENT_BITS)
        change = np.abs(step @ features).max()
        shortened = step * (LARGEST_CHANGE / max(change, LARGEST_CHANGE))
        self._coefficients = _on_grid(self._coefficients + shortened, COEFFICIENT_BITS)


FEATURES = 11
LEANS = 3
"""The last features are how rows and columns lean; the last of all is a square."""
MEMORY = 0.02
"""How firmly the next mask holds on to what was learned from those before: masks differ in how much they keep."""
LARGEST_CHANGE = 3.0
"""The most that one step moves a guess, in log-odds: a step too far would cost many bits in the next piece."""

# float64 has 53 bits. With features up to 16 in steps of 2^-6, spreads up to 1/4 in steps of 2^-14 and 2^20 weights
# in a piece, the sums of the curvature stay below 2^26 in steps of 2^-26, and all others are shorter: none is rounded.
FEATURE_BITS, COEFFICIENT_BITS, SPREAD_BITS, CHANCE_BITS = 6, 10, 14, 16
LARGEST = 16.0


def _on_grid(values: Floats, bits: int) -> Floats:
    """Multiples of 2^-bits: their products and sums are exact, so it does not matter in which order BLAS takes them."""
    rounded: Floats = np.rint(np.clip(values, -LARGEST, LARGEST) * 2.0**bits) / 2.0**bits
    return rounded


def _spread(chance: Floats) -> Floats:
    return _on_grid(chance * (1 - chance), SPREAD_BITS)


def _chance(log_odds: Floats) -> Floats:
    """The logistic function, by table."""
    steps = np.rint((np.clip(log_odds, -CERTAIN, CERTAIN) + CERTAIN) * CHANCE_STEPS)
    return CHANCES[steps.astype(np.int64)]


def _chances_of_log_odds() -> Floats:
    """1 / (1 + e^-x) in steps of 2^-16, never 0 nor 1. e^x is (1 + x/1024)^1024: only products, the same everywhere."""
    power = 1 + np.arange(-CERTAIN * CHANCE_STEPS, CERTAIN * CHANCE_STEPS + 1) / CHANCE_STEPS / 1024
    for _ in range(10):
        power = power * power
    chances: Floats = np.clip(np.rint(power / (1 + power) * 2**CHANCE_BITS), 1, 2**CHANCE_BITS - 1) / 2**CHANCE_BITS
    return chances


CERTAIN, CHANCE_STEPS = 12, 64
CHANCES = _chances_of_log_odds()


def _log2(values: Floats) -> Floats:
    """The logarithm, as straight lines between powers of two: exact operations only, unlike numpy's."""
    mantissa, exponent = np.frexp(values)
    logarithm: Floats = exponent + 2 * mantissa
    return logarithm


def _solve(matrix: Floats, vector: Floats) -> Floats:
    """Gauss and Jordan's elimination, in one fixed order; LAPACK's depends on the machine."""
    rows = np.column_stack([matrix, vector])
    for k in range(len(vector)):
        rows[k] /= rows[k, k]
        factors = rows[:, k].copy()
        factors[k] = 0
        rows -= np.multiply.outer(factors, rows[k])
    return rows[:, -1]


def _pieces(places: Numbers) -> Iterator[Numbers]:
    """Small pieces first, each as large as all before it together, until they are as large as a stripe."""
    stripe = min(max(-(-places.size // STRIPES), FIRST_PIECE), LARGEST_PIECE)
    start = 0
    while start < places.size:
        end = start + min(max(start, FIRST_PIECE), stripe)
        yield places[start:end]
        start = end


CODECS: dict[str, Codec] = {"huffman": huffman(), "ans": ans(), "context": context()}
