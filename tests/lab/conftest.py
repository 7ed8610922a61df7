"""Miniature data sets in their original formats, so that everything that reads raw data is tested without any."""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
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


def register(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, files: dict[str, sources.Original]) -> Path:
    """Let SOURCES and the environment know of a miniature; its data root."""
    row = replace(sources.SOURCES[name], files=files, mirrors=("http://127.0.0.1:9/",))
    monkeypatch.setitem(sources.SOURCES, name, row)
    monkeypatch.setattr(sources, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setenv(sources.ENVIRONMENT, str(tmp_path / "data"))
    return tmp_path / "data"


def cifar100_records(of_each: int, seed: int) -> bytes:
    """Random images of all 100 classes, class c in superclass c % 20."""
    draw = torch.Generator().manual_seed(seed)
    fine = torch.arange(100).repeat(of_each)[torch.randperm(100 * of_each, generator=draw)]
    pixels = torch.randint(256, (len(fine), 3072), generator=draw)
    return torch.cat([(fine % 20)[:, None], fine[:, None], pixels], 1).to(torch.uint8).numpy().tobytes()


@pytest.fixture
def miniature_cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 20 and 2 random images of each class in CIFAR-100's binary archive."""
    folder, content = tmp_path / "data" / "cifar100", io.BytesIO()
    folder.mkdir(parents=True)
    unpacked = {}
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as archive:
        for part, of_each in (("train", 20), ("test", 2)):
            records = cifar100_records(of_each, of_each)
            member = tarfile.TarInfo(f"cifar-100-binary/{part}.bin")
            member.size = len(records)
            archive.addfile(member, io.BytesIO(records))
            unpacked[member.name] = hashlib.sha256(records).hexdigest()
    packed = content.getvalue()
    (folder / "cifar-100-binary.tar.gz").write_bytes(packed)
    original = sources.Original(hashlib.sha256(packed).hexdigest(), len(packed), 2200, unpacked)
    return register(monkeypatch, tmp_path, "cifar100", {"cifar-100-binary.tar.gz": original})


def png_bytes(pixels: Tensor) -> bytes:
    """A grey PNG of one bit a pixel from zeros and ones."""
    packed = np.packbits(pixels.numpy().astype(np.uint8), axis=1)
    rows = np.concatenate([np.zeros((len(packed), 1), np.uint8), packed], 1)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


@pytest.fixture
def as_png() -> Callable[[Tensor], bytes]:
    """The bytes of a PNG file like Omniglot's."""
    return png_bytes


@pytest.fixture
def miniature_omniglot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 26 random characters in Omniglot's two archives, packed in another order than that of names."""
    draw, files = torch.Generator().manual_seed(0), {}
    folder = tmp_path / "data" / "omniglot"
    folder.mkdir(parents=True)
    for part, alphabet, characters in (("background", "Latin", 16), ("evaluation", "Angelic", 10)):
        path = folder / f"images_{part}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for character in range(characters, 0, -1):
                for drawing in range(20, 0, -1):
                    image = (torch.rand(105, 105, generator=draw) < 0.9).to(torch.uint8)
                    name = f"images_{part}/{alphabet}/character{character:02}/{character:04}_{drawing:02}.png"
                    archive.writestr(name, png_bytes(image))
        digest, size = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
        files[path.name] = sources.Original(digest, size, 20 * characters, members=sources.members_digest(path))
    return register(monkeypatch, tmp_path, "omniglot", files)
