"""Tickets as bytes: what the masks in archives take by every codec, and how long coding takes.

    python -m bench.codes runs/til-permuted_mnist/*/memory.ticket --json codes.json

Sizes are exact and the same on every machine. `bound` is the order-0 entropy of the 7-bit symbols of each layer and
block: what no code of single symbols goes below, tables not counted. Alpha is the part of the raw bits that a codec
saves; the paper's capacity formula assumes 0.78. Speeds are in millions of mask bits per second of one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.tables import WIDTH, Cell, Table, store
from forgetfree import inspect, load
from forgetfree.codec import CODECS, entropy_bound, first_use, raw_bits
from forgetfree.lab.metrics import footprint

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.codes", description="What masks take by every codec.")
    parser.add_argument("archives", nargs="+", type=Path, help="archives of WSN learners with named backbones")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    words = parser.parse_args()
    console = Console(width=WIDTH)
    sizes, speeds = [], []
    for path in sorted(words.archives, key=lambda path: inspect(path).arguments["capacity"]):
        size, speed = measure(path)
        sizes.append(size)
        speeds.append(speed)
    tables = [
        Table("codes: bytes of all masks", sizes, "CAP in percent of one dense float32 network"),
        Table("codes: speed, million mask bits per second", speeds, f"median of {ROUNDS} rounds, one thread"),
    ]
    for table in tables:
        table.show(console)
    if words.json:
        store(tables, words.json)


def measure(path: Path) -> tuple[dict[str, Cell], dict[str, Cell]]:
    """One archive: sizes, and speeds."""
    learner, found = load(path), inspect(path)
    layers = {
        name: (np.stack([ticket.mask(name).numpy() for ticket in learner.network.tickets.values()]), weight.numpy())
        for name, weight in learner.network.weights.items()
    }
    raw = sum(raw_bits(masks) for masks, _ in layers.values())
    dense = sum(weight.size for _, weight in layers.values())
    cost = footprint(learner.memory(), dense, sections=found.sections, nbytes=found.nbytes)
    size: dict[str, Cell] = {
        "capacity": f"{found.arguments['capacity']:.0%}",
        "raw": raw // 8,
        "bound": round(sum(entropy_bound(masks) for masks, _ in layers.values()) / 8),
    }
    speed: dict[str, Cell] = {"capacity": size["capacity"]}
    for name, codec in CODECS.items():
        blocks = {layer: codec.encode(masks, weights) for layer, (masks, weights) in layers.items()}
        size[name] = sum(len(block) for layer in blocks.values() for block in layer)
        for layer, (masks, weights) in layers.items():
            values = weights.reshape(-1)[first_use(masks)]
            decoded = codec.decode(blocks[layer], len(masks), masks.shape[1:], values)
            assert np.array_equal(decoded, masks), f"{name} does not give {layer} of {path} back"
        speed[f"{name}, encode"] = raw / 1e6 / _seconds(lambda c=codec: [c.encode(m, w) for m, w in layers.values()])
        speed[f"{name}, decode"] = raw / 1e6 / _seconds(lambda c=codec, b=blocks: _decode(c, b, layers))
    size |= {f"alpha {name}": round(1 - 8 * int(size[name]) / raw, 3) for name in CODECS}
    size |= {
        "CAP by formula": round(100 * cost.formula, 2),
        "CAP written, no heads": round(100 * (cost.written_without_heads or 0), 2),
        "CAP written": round(100 * (cost.written or 0), 2),
    }
    return size, speed


def _decode(codec: Any, blocks: dict[str, list[bytes]], layers: dict[str, Any]) -> None:
    for layer, (masks, weights) in layers.items():
        codec.decode(blocks[layer], len(masks), masks.shape[1:], weights.reshape(-1)[first_use(masks)])


def _seconds(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        call()
        times.append(time.thread_time() - started)
    return statistics.median(times)


if __name__ == "__main__":
    main()
