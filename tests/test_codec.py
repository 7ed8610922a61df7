"""Masks come back bit for bit from few bytes, from old blocks after new tasks, and damage is told."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from forgetfree.codec import (
    CODECS,
    PAPER_BITS,
    Codec,
    CodecError,
    Flags,
    Floats,
    ans,
    context,
    entropy_bound,
    first_use,
    huffman,
    raw_bits,
    scatter,
)
from forgetfree.errors import ForgetfreeError, InputError

SHAPES = [(40,), (1,), (0,), (3, 0), (1, 1), (), (6, 7), (1, 30), (30, 1), (4, 3, 3, 3), (64, 50)]
WIDTHS = [1, 8, 16]
EVERY = [*CODECS.items(), *((f"huffman{n}", huffman(n)) for n in WIDTHS), *((f"ans{n}", ans(n)) for n in WIDTHS)]


def every_codec(test):
    return pytest.mark.parametrize("codec", [codec for _, codec in EVERY], ids=[name for name, _ in EVERY])(test)


def persisting(tasks: int, shape: Sequence[int], *, density: float, keep: float, seed: int) -> tuple[Flags, Floats]:
    """Masks of which each keeps part of the one before, and weights; some columns change nothing, as at a black border.

    Rows differ in how full they are, and large weights stay used.
    """
    chance = np.random.default_rng(seed)
    weights = chance.normal(size=shape).astype(np.float32)
    taste = chance.normal(size=(shape[0], *(1,) * (len(shape) - 1)))
    border = chance.random(shape[1:]) < 0.3
    masks = [chance.random(shape) < density]
    for _ in range(tasks - 1):
        wanted = chance.random(shape) < 1 / (1 + np.exp(-taste) * (1 - density) / density)
        stays = chance.random(shape) < keep * np.where(masks[-1], np.minimum(1, 0.2 + np.abs(weights)), 1)
        masks.append(np.where(stays | border, masks[-1], wanted))
    return np.array(masks), weights


def size_of(codec: Codec, masks: Flags, weights: Floats | None = None) -> int:
    return sum(len(block) for block in codec.encode(masks, weights))


def round_trip(codec: Codec, masks: Flags, weights: Floats | None = None) -> Flags:
    values = None if weights is None else weights.reshape(-1)[first_use(masks)]
    return codec.decode(codec.encode(masks, weights), len(masks), masks.shape[1:], values)


def assert_same(found: Flags, masks: Flags) -> None:
    assert found.dtype == bool
    assert found.shape == masks.shape
    assert np.array_equal(found, masks)


@st.composite
def layers(draw: st.DrawFn) -> tuple[Flags, Floats | None]:
    shape = draw(some.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=9))
    tasks, density = draw(st.integers(1, 17)), draw(st.sampled_from([0.0, 0.03, 0.3, 0.9, 1.0]))
    keep, seed = draw(st.sampled_from([0.0, 0.7, 1.0])), draw(st.integers(0, 99))
    masks, weights = persisting(tasks, shape, density=np.clip(density, 1e-6, 1 - 1e-6), keep=keep, seed=seed)
    return masks, draw(st.sampled_from([None, weights]))


@every_codec
@settings(max_examples=25, deadline=None)
@given(layer=layers())
def test_masks_come_back_bit_for_bit(codec, layer):
    masks, weights = layer
    assert_same(round_trip(codec, masks, weights), masks)


@every_codec
@settings(max_examples=25, deadline=None)
@given(masks=some.arrays(bool, some.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=8)))
def test_any_masks_come_back_bit_for_bit(codec, masks):
    assert_same(round_trip(codec, masks), masks)


@every_codec
@pytest.mark.parametrize("tasks", [0, 1, 7, 8])
def test_layers_of_one_symbol_come_back_and_cost_next_to_nothing(codec, tasks):
    for shape in SHAPES:
        for fill in (False, True):
            masks = np.full((tasks, *shape), fill)
            assert_same(round_trip(codec, masks, np.ones(shape, np.float32)), masks)
            assert size_of(codec, masks) <= min(16 * tasks, 3 * masks.size)


@every_codec
def test_a_hundred_tasks_come_back(codec):
    masks, weights = persisting(100, (13, 17), density=0.3, keep=0.8, seed=3)
    assert_same(round_trip(codec, masks, weights), masks)


@every_codec
def test_a_list_of_masks_is_as_good_as_an_array(codec):
    masks, weights = persisting(9, (5, 6), density=0.3, keep=0.8, seed=3)
    assert codec.encode(list(masks), weights) == codec.encode(masks, weights)
    assert codec.encode([], weights) == []


@pytest.mark.parametrize("name", CODECS)
def test_a_new_task_leaves_full_blocks_as_they_are(name):
    masks, weights = persisting(17, (20, 30), density=0.2, keep=0.8, seed=5)
    per_block = 1 if name == "context" else PAPER_BITS
    chance = np.random.default_rng(0)
    everything = CODECS[name].encode(masks, weights)
    assert len(everything) == math.ceil(17 / per_block)
    for tasks in (1, 6, 7, 8, 13, 14, 16):
        # weights that no task uses yet are still moving
        moving = np.where(masks[:tasks].any(0), weights, chance.normal(size=weights.shape).astype(np.float32))
        full = tasks // per_block
        assert CODECS[name].encode(masks[:tasks], moving)[:full] == everything[:full]


def test_weights_are_stored_by_first_use_and_go_back_to_their_places():
    masks = np.array([[[0, 1, 0], [0, 0, 1]], [[1, 1, 0], [0, 0, 0]], [[0, 0, 0], [1, 0, 1]]], bool)
    weights = np.arange(10, 16, dtype=np.float16).reshape(2, 3)
    order = first_use(masks)
    assert order.tolist() == [1, 5, 0, 3]
    back = scatter(weights.reshape(-1)[order], masks)
    assert back.dtype == np.float16
    assert back.tolist() == [[10, 11, 0], [13, 0, 15]]
    with pytest.raises(InputError, match="use 4 weights"):
        scatter(np.ones(5), masks)


def test_the_entropy_is_that_of_the_symbols_of_each_block():
    masks = np.zeros((8, 4), bool)
    masks[0, :2] = masks[3, :1] = masks[7, :2] = True  # symbols of block one: 2 of 4, 1, 1; of block two: 2, 2
    assert entropy_bound(masks) == pytest.approx((2 * 1 + 2 + 2) + 4)
    assert entropy_bound(masks, bits=8) == pytest.approx(2 * 1 + 2 + 2)
    assert raw_bits(masks) == 32


@pytest.mark.parametrize("density", [0.05, 0.3, 0.7])
def test_huffman_and_ans_are_as_close_to_the_entropy_as_they_can_be(density):
    masks, _ = persisting(7, (100, 300), density=density, keep=0.7, seed=1)
    bound = entropy_bound(masks)
    table = 128 * (8 + 2) + 16
    assert bound <= 8 * size_of(ans(), masks) <= 1.002 * bound + table + 64
    assert bound <= 8 * size_of(huffman(), masks) <= bound + masks[0].size + table
    if 2 * bound > masks.size:
        assert 8 * size_of(huffman(), masks) <= 1.03 * bound + table


def test_huffman_is_canonical_and_its_words_are_as_long_as_they_should_be():
    symbols = np.repeat([0, 1, 2, 3], [8, 2, 4, 2])
    masks = np.array([symbols & 1, symbols >> 1], bool)
    (block,) = huffman(2).encode(masks)
    # four symbols, each the next one, lengths 1 3 2 3; then words 0, 110, 10 and 111
    table = "00100" + "100001" + "100011" + "100010" + "100011"
    stream = "0" * 8 + "110" * 2 + "10" * 4 + "111" * 2
    padded = [part + "0" * (-len(part) % 8) for part in (table, stream)]
    assert block == int("".join(padded), 2).to_bytes(sum(map(len, padded)) // 8)


def test_code_words_are_never_longer_than_the_table_can_say():
    from forgetfree.codec.symbols import LONGEST, _code_lengths

    fibonacci = [1, 1]
    while len(fibonacci) < 40:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    lengths = _code_lengths(fibonacci)
    assert max(lengths) <= LONGEST
    assert sum(2.0**-length for length in lengths) == 1


def test_context_is_smaller_where_masks_persist_and_rows_columns_and_weights_tell():
    masks, weights = persisting(10, (60, 200), density=0.3, keep=0.7, seed=2)
    blind, seeing = size_of(context(), masks), size_of(context(), masks, weights)
    assert blind < 0.92 * size_of(ans(), masks)
    assert seeing < 0.995 * blind


def test_context_costs_hardly_more_than_the_bits_where_nothing_can_be_known():
    masks = np.random.default_rng(0).random((6, 80, 100)) < 0.5
    assert size_of(context(), masks) < 1.02 * masks.size / 8
    masks[::2] = False  # what was learned from one mask is wrong for the next
    assert size_of(context(), masks) < 1.1 * masks.size / 16


def small_layer() -> tuple[Flags, Floats]:
    """Masks and weights that no random generator can change."""
    t, row, column = np.ogrid[:9, :12, :10]
    masks = (row * row * 7 + column * 5 + t // (1 + column % 4)) % 11 < 3 + row % 3
    return masks, ((np.arange(120, dtype=np.float32) * 37 % 101 - 50) / 64).reshape(12, 10)


VECTORS = {
    "huffman": [
        "09452a210c73c834ece19310c8f248080810188210cc60e8d3e84a9543bf43978c5c54747703ca10a0649a791fe2ded0f1fc"
        "2cee07950324d3c8da1e3171650841c150efd0e5fe367d91a6",
        "2431c7102018a9fd4a871b153c205b15106c7843152ac543e2a7f10560",
    ],
    "ans": [
        "094a6248588107008a0d0060019082042008c450100a0407040a10318f00686b9c59d82c32eff019c626760e62c56db08c00"
        "d8d339f418609c751cd82f699758482185bc51c1dbf4dd02545f4422b2286aa41c5e01",
        "24c23718950006d9efcb9bd3253ae80b86a0d4678f2ade65df11e7035f62a40d06",
    ],
    "context": [
        "234ae6c403abe6bb6def98b432acb308b5",
        "7bbed1fbaf33a31706",
        "84f4a3fcccd6b7b953d241",
        "3ba5e15b7422162016",
        "12bcfcbd8883057d1065cf1910",
        "5b85e4dc8fe830a0",
        "6ae6bd2c496aea49f0f1bbb602",
        "075860545eb5bc",
        "0a6720d7d77c8bed842b040d03",
    ],
}


@pytest.mark.parametrize("name", CODECS)
def test_the_bytes_are_what_they_have_always_been(name):
    """A change of any byte is a change of format: files in the world could no longer be read."""
    masks, weights = small_layer()
    assert [block.hex() for block in CODECS[name].encode(masks, weights)] == VECTORS[name]
    values = weights.reshape(-1)[first_use(masks)]
    assert_same(CODECS[name].decode([bytes.fromhex(block) for block in VECTORS[name]], 9, (12, 10), values), masks)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_the_type_of_the_values_does_not_matter_only_the_values(kind):
    masks, weights = small_layer()  # these weights are exact in half precision
    assert context().encode(masks, weights.astype(kind)) == context().encode(masks, weights)
    values = weights.reshape(-1)[first_use(masks)].astype(kind)
    assert_same(context().decode(context().encode(masks, weights), 9, (12, 10), values), masks)


def test_values_that_are_rounded_huge_or_not_numbers_are_fine_if_both_sides_see_them():
    masks, weights = persisting(6, (20, 20), density=0.3, keep=0.8, seed=8)
    like_bfloat16 = (weights.view(np.uint32) & 0xFFFF0000).view(np.float32)
    odd = weights.astype(np.float64)
    odd.reshape(-1)[first_use(masks)[:5]] = [np.nan, np.inf, -np.inf, 1e300, -0.0]
    for seen in (like_bfloat16, odd):
        assert_same(round_trip(context(), masks, seen), masks)


def test_only_magnitudes_count_and_only_to_eight_bits():
    masks, weights = persisting(6, (20, 20), density=0.3, keep=0.8, seed=8)
    like_bfloat16 = (weights.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert context().encode(masks, -like_bfloat16) == context().encode(masks, weights)
    assert context().encode(masks, weights[::-1]) != context().encode(masks, weights)


def test_sums_over_the_weights_are_exact_so_that_no_order_of_summation_can_change_a_guess(monkeypatch):
    """BLAS sums in an order of its own on every machine. Here it goes forwards and backwards, to the same last bit."""
    import forgetfree.codec.context_model as module

    class BothWays(module._Regression):
        pieces = 0

        def learn(self, features, guess, bits):
            there, back = slice(None), slice(None, None, -1)
            spread, miss = module._spread(guess), bits - guess
            curvatures = [(features * spread)[:, way].copy() @ features[:, way].T.copy() for way in (there, back)]
            slopes = [features[:, way].copy() @ miss[way].copy() for way in (there, back)]
            log_odds = [self._coefficients[way].copy() @ features[way].copy() for way in (there, back)]
            for one, other in (curvatures, slopes, log_odds):
                assert np.array_equal(one, other)
            BothWays.pieces += 1
            super().learn(features, guess, bits)

    monkeypatch.setattr(module, "_Regression", BothWays)
    context().encode(*persisting(5, (50, 90), density=0.3, keep=0.8, seed=4))
    assert BothWays.pieces > 100


def test_the_table_of_chances_is_the_logistic_function():
    from forgetfree.codec.context_model import CERTAIN, CHANCE_STEPS, CHANCES

    log_odds = np.arange(-CERTAIN * CHANCE_STEPS, CERTAIN * CHANCE_STEPS + 1) / CHANCE_STEPS
    assert np.abs(CHANCES - 1 / (1 + np.exp(-log_odds))).max() < 3e-4
    assert np.array_equal(CHANCES * 2**16, np.rint(CHANCES * 2**16))
    assert 0 < CHANCES.min() < CHANCES.max() < 1
    assert (np.diff(CHANCES) >= 0).all()


@pytest.mark.parametrize("name", CODECS)
def test_damage_is_told_or_gives_masks_of_the_right_shape(name):
    masks, weights = persisting(9, (12, 10), density=0.3, keep=0.8, seed=6)
    values, codec = weights.reshape(-1)[first_use(masks)], CODECS[name]
    good, chance = codec.encode(masks, weights), np.random.default_rng(1)
    told = 0
    for _ in range(200):
        blocks = list(good)
        which = chance.integers(len(blocks))
        blocks[which] = damaged(blocks[which], chance)
        try:
            found = codec.decode(blocks, 9, (12, 10), values)
        except CodecError:
            told += 1
        else:
            assert found.shape == masks.shape
            assert found.dtype == bool
            if blocks == good:
                assert np.array_equal(found, masks)
    assert told > 100


def damaged(block: bytes, chance: np.random.Generator) -> bytes:
    """Some bits flipped, cut short, made longer, or all made up."""
    kind, at = chance.integers(5), int(chance.integers(len(block)))
    flipped = bytes([block[at] ^ 1 << int(chance.integers(8))])
    return [
        block[:at] + flipped + block[at + 1 :],
        block[:at],
        block + chance.bytes(1 + at % 9),
        chance.bytes(len(block)),
        b"\0" * at + block[at:],
    ][kind]


@pytest.mark.parametrize("name", CODECS)
def test_blocks_that_are_cut_missing_or_too_many_are_told(name):
    masks, weights = persisting(9, (12, 10), density=0.3, keep=0.8, seed=6)
    values, codec = weights.reshape(-1)[first_use(masks)], CODECS[name]
    good = codec.encode(masks, weights)
    for blocks in (good[:-1], [*good, b""], []):
        with pytest.raises(CodecError, match="9 tasks are"):
            codec.decode(blocks, 9, (12, 10), values)
    with pytest.raises(CodecError):
        codec.decode([block[:2] for block in good], 9, (12, 10), values)
    with pytest.raises(CodecError):
        codec.decode([block + b"\1" for block in good], 9, (12, 10), values)
    with pytest.raises(CodecError, match="nothing is left" if name != "context" else "damaged"):
        codec.decode(good, 9, (0,), None)


def test_tables_that_no_encoder_writes_are_told():
    of_eight_tasks = np.repeat([[0], [0], [0], [1], [0], [0], [1], [1]], 5, axis=1).astype(bool)
    for seven, eight in ((huffman(7), huffman(8)), (ans(7), ans(8))):
        with pytest.raises(CodecError, match="symbol 200 of 7 tasks"):
            seven.decode(eight.encode(of_eight_tasks), 7, (5,))
    two_words_of_two_bits = int("010" + "100010" + "100010" + "0", 2).to_bytes(2)
    with pytest.raises(CodecError, match="not those of a Huffman code"):
        huffman().decode([two_words_of_two_bits + b"\x11"], 1, (4,))


def test_context_needs_the_weights_it_was_encoded_with():
    masks, weights = persisting(9, (12, 10), density=0.3, keep=0.8, seed=6)
    blocks, values = context().encode(masks, weights), weights.reshape(-1)[first_use(masks)]
    for wrong in (None, values[::-1], values[:-1], values[:3], np.append(values, 1), values.reshape(1, -1)):
        with pytest.raises(CodecError):
            context().decode(blocks, 9, (12, 10), wrong)


def test_what_cannot_be_encoded_is_told():
    masks = np.zeros((2, 3, 4), bool)
    assert issubclass(CodecError, ForgetfreeError)
    assert issubclass(CodecError, ValueError)
    for codec in CODECS.values():
        with pytest.raises(InputError, match="boolean arrays of one shape"):
            codec.encode([masks[0], masks[1].T])
        with pytest.raises(InputError, match="boolean arrays of one shape"):
            codec.encode(masks.astype(np.uint8))
    with pytest.raises(InputError, match=r"shape \(3, 4\), the weights \(4, 3\)"):
        context().encode(masks, np.zeros((4, 3), np.float32))
    for bits in (0, 17):
        with pytest.raises(InputError, match="1 to 16 bits"):
            huffman(bits)
