"""Miniature data sets in their original formats, so that everything that reads raw data is tested without any."""

import gzip
import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forgetfree.lab.benchmarks import sources

IDX_CODES = {
    torch.uint8: 0x08,
    torch.int8: 0x09,
    torch.int16: 0x0B,
    torch.int32: 0x0C,
    torch.float32: 0x0D,
    torch.float64: 0x0E,
}


def idx_bytes(values: Tensor) -> bytes:
    header = bytes([0, 0, IDX_CODES[values.dtype], values.dim()]) + struct.pack(f">{values.dim()}I", *values.shape)
    array = values.numpy()
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def as_idx() -> Callable[[Tensor], bytes]:
    """The bytes of an idx file, not compressed."""
    return idx_bytes


@pytest.fixture
def miniature_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 300 and 100 random images in MNIST's files; SOURCES and the environment know of it."""
    draw = torch.Generator().manual_seed(0)
    contents = {}
    for part, count in (("train", 300), ("t10k", 100)):
        contents[f"{part}-images-idx3-ubyte.gz"] = torch.randint(256, (count, 28, 28), generator=draw).to(torch.uint8)
        contents[f"{part}-labels-idx1-ubyte.gz"] = (torch.arange(count) % 10).to(torch.uint8)
    root, files = tmp_path / "data", {}
    (root / "mnist").mkdir(parents=True)
    for name, values in contents.items():
        content = gzip.compress(idx_bytes(values), mtime=0)
        (root / "mnist" / name).write_bytes(content)
        files[name] = sources.Original(hashlib.sha256(content).hexdigest(), len(content), len(values))
    row = replace(sources.SOURCES["mnist"], files=files, mirrors=("http://127.0.0.1:9/",))
    monkeypatch.setitem(sources.SOURCES, "mnist", row)
    monkeypatch.setattr(sources, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setenv(sources.ENVIRONMENT, str(root))
    return root
