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

from forgetfree.codec.blocks import Codec, CodecError, Flags, Floats, Masks, Weights, first_use, raw_bits, scatter
from forgetfree.codec.context_model import context
from forgetfree.codec.symbols import PAPER_BITS, ans, entropy_bound, huffman

CODECS: dict[str, Codec] = {"huffman": huffman(), "ans": ans(), "context": context()}

__all__ = [
    "CODECS",
    "PAPER_BITS",
    "Codec",
    "CodecError",
    "Flags",
    "Floats",
    "Masks",
    "Weights",
    "ans",
    "context",
    "entropy_bound",
    "first_use",
    "huffman",
    "raw_bits",
    "scatter",
]
