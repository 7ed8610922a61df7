"""Masks by a context model: every bit is guessed from what is known before it, and costs what the guess was off by.

    known       the masks of earlier tasks; the magnitudes of the weights they use; how full rows and columns were, and
                seem to be in the part of this mask that is coded already
    guess       a logistic regression on these, that learns while it codes, in the same way on both sides: no tables
    coder       asymmetric numeral systems, with the guess as the chance of a one

Decoding repeats every guess, so a guess must be the same number on every machine. Hence the unusual arithmetic below:
features and coefficients on a grid, a table for the logistic function, an elimination and a logarithm of our own.
"""

from collections.abc import Callable, Iterator, Sequence
from math import isqrt, prod

import constriction
import numpy as np
from numpy.typing import NDArray

from forgetfree.codec.blocks import (
    Codec,
    CodecError,
    Flags,
    Floats,
    Masks,
    Numbers,
    Weights,
    check_blocks,
    check_end,
    coder_of,
    first_use,
    flatten,
    stream_of,
)
from forgetfree.errors import InputError


def context() -> Codec:
    """Every mask given the earlier masks, the magnitudes of the weights they use, and how full rows and columns are."""
    return _Context()


class _Context:
    """Every bit is guessed by a regression that learns while it codes, in the same way on both sides: no tables."""

    def encode(self, masks: Masks, weights: Weights | None = None) -> list[bytes]:
        flat, shape = flatten(masks)
        if flat and weights is not None and weights.shape != shape:
            raise InputError(f"the masks have shape {shape}, the weights {weights.shape}.")
        known = _Known(shape, None if weights is None else weights.reshape(-1)[first_use(masks)])
        blocks = []
        for mask in flat:
            blocks.append(_mask_to_block(known, mask))
            known.add(mask)
        return blocks

    def decode(self, blocks: Sequence[bytes], tasks: int, shape: Sequence[int], values: Weights | None = None) -> Flags:
        check_blocks(blocks, tasks, tasks)
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
    # an ANS coder is a stack, what goes in last comes out first; but guesses are made in the order of decoding. So all
    # of them are made before the first bit is coded
    for bits, guess in reversed(guesses):
        coder.encode_reverse(bits, BIT, guess)
    return stream_of(coder)


def _block_to_mask(known: "_Known", block: bytes) -> Flags:
    coder, mask = coder_of(block), np.zeros(known.size, bool)

    def read(places: Numbers, guess: Floats) -> Flags:
        bits: Flags = coder.decode(BIT, guess).astype(bool)
        mask[places] = bits
        return bits

    known.walk(read)
    check_end(coder)
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
            # leans start anew for each half: a full row among weights that stay says little about those that come
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
                # leans are measured against guesses that do not know of them: against the full guess, a row that is
                # fuller than the others would stop looking fuller as soon as the regression had learned it
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
        # not row by row: then nothing would be known of a row until it is reached, and nothing of use once it is done.
        # A stripe samples every row and column; the sort must be stable, for both sides to walk the same way
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
        # Newton's step rather than the gradient's: there is one pass and no rate to tune, and the curvature of all that
        # was seen makes later steps as small as they should be
        self._curvature += (features * _spread(guess)) @ features.T
        # on the grid again: the sums of the next guess must be exact, whichever way BLAS adds them up
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
