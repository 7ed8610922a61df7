"""The formats raw data is published in: idx, binary records, MATLAB, images in a zip. Each from a file to arrays.

Nothing is unpacked to the disk and nothing is unpickled. What comes out of a compressed file is bounded by its size.
What is damaged, or is not what it should be, is a `DataError` that names the file.
"""

import gzip
import hashlib
import io
import math
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from forgetfree.errors import DataError, FileError
from forgetfree.files import open_plain, read_plain

Bytes = NDArray[np.uint8]

ALWAYS, TIMES = 1 << 26, 8
"""So many bytes may come out of any file, and so many more for each of its own; photographs hardly shrink at all."""
LARGEST_PICTURE = 1 << 25
"""Bytes of one member of a zip: a photograph or a list of them."""


def content_of(path: Path) -> bytes:
    """What is in a plain file."""
    try:
        return read_plain(path)
    except FileError as error:
        raise DataError(str(error)) from error


def allowed(path: Path) -> int:
    """How many bytes may come out of a compressed file."""
    return ALWAYS + TIMES * path.stat().st_size


class Bounded(io.RawIOBase):
    """A stream that ends with an error where more comes out of it than is allowed."""

    def __init__(self, stream: Any, most: int):
        self._stream, self._left = stream, most

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._stream.read(self._left + 1 if size < 0 else size)
        self._left -= len(content)
        if self._left < 0:
            raise DataError("far more is packed into it than a file of its size can hold")
        return content


# idx: MNIST and what looks like it


def read_idx(path: Path) -> Tensor:
    """The tensor in an idx file, compressed or not: two zero bytes, type, dimensions, sizes, then big-endian values."""
    content = _decompressed(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise DataError(f"{path} is not an idx file: it begins with {content[:4].hex(' ') or 'nothing'}.")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{path} is damaged: it ends within its header, after {len(content)} of {start} bytes.")
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    kind = np.dtype(_IDX_TYPES[content[2]])
    expected = math.prod(shape) * kind.itemsize
    if len(content) - start != expected:
        raise DataError(
            f"{path} is damaged: its header says {' × '.join(map(str, shape))} values, {expected} bytes; "
            f"{len(content) - start} bytes follow."
        )
    values = np.frombuffer(content, kind, offset=start).reshape(shape)
    return torch.from_numpy(values.astype(kind.newbyteorder("=")))


_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx_pair(pictures: Path, answers: Path) -> tuple[Tensor, Tensor]:
    """Images [n, 28, 28] and labels [n] of ten classes."""
    images, labels = read_idx(pictures), read_idx(answers)
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise DataError(
            f"{pictures} holds {tuple(images.shape)} and {answers} {tuple(labels.shape)}: not one label per image."
        )
    if images.shape[1:] != (28, 28) or {images.dtype, labels.dtype} != {torch.uint8}:
        raise DataError(f"{pictures}: images are 28 × 28 bytes; here {tuple(images.shape[1:])} of {images.dtype}.")
    check_labels(labels.numpy(), range(10), answers)
    return images, labels


def check_labels(labels: NDArray[Any], allowed: range, where: object) -> None:
    """Refuse labels that no class has."""
    if not np.isin(labels, allowed).all():
        raise DataError(
            f"{where}: labels are {allowed[0]} to {allowed[-1]}; here are {labels.min()} to {labels.max()}."
        )


def _decompressed(path: Path) -> bytes:
    content = content_of(path)
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return Bounded(gzip.GzipFile(fileobj=io.BytesIO(content)), allowed(path)).read()
    except (EOFError, zlib.error, gzip.BadGzipFile, DataError) as error:
        raise DataError(f"{path} is damaged: {error}") from error


# Binary records: CIFAR

CIFAR10_TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6))
CIFAR10_TEST = ("cifar-10-batches-bin/test_batch.bin",)
CIFAR10_BYTES, CIFAR100_BYTES = 1 + 3072, 2 + 3072
"""Of a record: one label or two, then red, green and blue planes of 32×32 pixels."""


def read_records(path: Path, members: Sequence[str], width: int) -> list[Bytes]:
    """The records [n, width] of each member of the archive at `path`, or of the folder it unpacks to."""
    try:
        if path.is_dir():
            # copy on write: torch wants memory it may write to, and the file stays as it is
            contents: list[Bytes] = [np.memmap(path.parent / member, np.uint8, mode="c") for member in members]
        else:
            found = dict(tar_members(path, set(members)))
            lacking = [member for member in members if member not in found]
            if lacking:
                raise DataError(f"{path} is damaged: cannot read {', '.join(lacking)}.")
            contents = [np.frombuffer(found[member], np.uint8) for member in members]
    except DataError:
        raise
    except ValueError as error:  # an empty file cannot be mapped
        raise DataError(f"{path} is damaged: cannot read {', '.join(members)} ({error}).") from error
    except OSError as error:
        raise DataError(f"cannot read {', '.join(members)} of {path}: {error.strerror or error}.") from error
    for member, content in zip(members, contents, strict=True):
        if not len(content) or len(content) % width:
            raise DataError(f"{path}: {member} has {len(content)} bytes, not a number of records of {width}.")
    return [content.reshape(-1, width) for content in contents]


def tar_members(path: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """The wanted members of a tar archive and their contents, in one pass and in its order, until all were met."""
    left = set(wanted)
    try:
        with open_plain(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream: Any = Bounded(gzip.GzipFile(fileobj=file), allowed(path)) if packed else file
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    # a link or a device has no content
                    if member.name in left and member.isfile() and (content := archive.extractfile(member)):
                        left.remove(member.name)
                        yield member.name, content.read()
                        if not left:
                            return
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, DataError) as error:
        raise DataError(f"{path} is damaged: {error}.") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error


# MATLAB: SVHN


def read_svhn(path: Path) -> Bytes:
    """Records like CIFAR-10's, [n, 3073]; the file's label 10 stands for the digit 0."""
    arrays = read_matlab(path)
    if "X" not in arrays or "y" not in arrays:
        raise DataError(f"{path}: arrays X and y are needed; here are {sorted(arrays)}.")
    images, labels = arrays["X"], arrays["y"]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise DataError(f"{path}: X is 32 × 32 × 3 × n bytes; here {images.shape} of {images.dtype}.")
    count = images.shape[3]
    if labels.shape != (count, 1):
        raise DataError(f"{path}: X holds {count} images and y {labels.shape}: not one label per image.")
    check_labels(labels, range(1, 11), path)
    records = np.empty((count, CIFAR10_BYTES), np.uint8)
    records[:, 0] = labels[:, 0] % 10
    records[:, 1:] = images.transpose(3, 2, 0, 1).reshape(count, -1)  # [h, w, c, n] -> [n, c·h·w]
    return records


def read_matlab(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of real numbers in a MATLAB file of version 5; cells, structs, functions and objects are passed over.

    A file is a header of 128 bytes and elements, each with its type and size; an array is an element of elements:
    flags, sizes, name, values.
    """
    content = content_of(path)
    if content[124:128] != b"\0\1IM":
        raise DataError(f"{path} is no MATLAB file of version 5, little-endian: it begins with {content[:19]!r}.")
    arrays: dict[str, NDArray[Any]] = {}
    most = allowed(path)
    try:
        for kind, element in _matlab_elements(memoryview(content)[128:]):
            if kind == _COMPRESSED:
                ((kind, element),) = _matlab_elements(memoryview(_inflated(element, most)))
                most -= len(element)
            if kind == _MATRIX:
                arrays |= _matlab_array([*_matlab_elements(element)])
    except (ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    return arrays


def _inflated(content: memoryview, most: int) -> bytes:
    reader = zlib.decompressobj()
    plain = reader.decompress(content, max(1, most))
    if not reader.eof:
        raise ValueError("an element is not whole, or far more is packed into it than a file of its size can hold")
    return plain


_MATRIX, _COMPRESSED = 14, 15
_MATLAB_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
_MATLAB_NUMBERS = range(6, 16)  # classes of arrays that are numbers


def _matlab_elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Type and content of each element; one of up to four bytes shares eight with its tag, others are padded."""
    at = 0
    while at < len(content):
        kind, size = struct.unpack_from("<II", content, at)
        start = at + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        if size > len(content) - start or (start == at + 4 and size > 4):
            raise ValueError(f"an element of {size} bytes, {len(content) - start} follow")
        yield kind, content[start : start + size]
        at = at + 8 if start == at + 4 else start + size + (-size % 8 if kind != _COMPRESSED else 0)


def _matlab_array(parts: list[tuple[int, memoryview]]) -> dict[str, NDArray[Any]]:
    """An array by its name; nothing if it is not one of real numbers."""
    if len(parts) != 4 or len(parts[0][1]) < 4:  # complex numbers have five
        return {}
    (_, head), (_, sizes), (_, name), (kind, values) = parts
    flags = int.from_bytes(head[:4], "little")
    if flags & 0xFF not in _MATLAB_NUMBERS or kind not in _MATLAB_TYPES:
        return {}
    shape = tuple(np.frombuffer(sizes, "<i4").tolist())
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of {shape}")
    return {
        bytes(name).decode("ascii", "replace"): np.frombuffer(values, _MATLAB_TYPES[kind]).reshape(shape, order="F")
    }


# Images in a zip: Omniglot and Tiny ImageNet


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """The zip at `path`."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    with archive:
        yield archive


def drawings(path: Path) -> dict[str, zipfile.ZipInfo]:
    """The drawings in a zip of Omniglot, by their paths: `…/Alphabet/character01/0001_01.png`."""
    with open_zip(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
    return {
        name: info
        for name, info in members.items()
        if name.endswith(".png") and name.count("/") >= 2 and not name.startswith("__MACOSX")
    }


def members_digest(path: Path) -> str:
    """SHA-256 of the sorted names, sizes and CRC-32 of the drawings in a zip of Omniglot."""
    members = drawings(path).items()
    text = "\n".join(f"{name} {info.file_size} {info.CRC:08x}" for name, info in sorted(members))
    return hashlib.sha256(text.encode()).hexdigest()


class Photographs(NamedTuple):
    """The labelled images in a zip of Tiny ImageNet: of each its path and its class."""

    train: list[tuple[str, str]]
    test: list[tuple[str, str]]


def photographs(path: Path) -> Photographs:
    """Training images by class and number, and those of `val/`, which have labels, as tests; `test/` has none."""
    with open_zip(path) as archive:
        names, text = archive.namelist(), read_member(archive, _TINY_ANSWERS).decode("ascii", "replace")
    learned = [match for match in map(_TINY_TRAIN.fullmatch, names) if match]
    tested = {match[1]: match[0] for match in map(_TINY_TEST.fullmatch, names) if match}
    answers = dict(re.findall(r"^(\S+)\t(n\d{8})\b", text, re.MULTILINE))
    if set(answers) != set(tested):
        raise DataError(f"{path}: {_TINY_ANSWERS} gives classes to {len(answers)} images; there are {len(tested)}.")
    classes = {match[1] for match in learned}
    if not classes or set(answers.values()) != classes:
        raise DataError(f"{path}: {len(classes)} classes to learn, {len(set(answers.values()))} to test; not the same.")
    train = sorted((match[1], int(match[2]), match[0]) for match in learned)
    test = [(tested[image], name) for image, name in answers.items()]
    return Photographs([(member, name) for name, _, member in train], test)


_TINY_TRAIN = re.compile(r"tiny-imagenet-200/train/(n\d{8})/images/\1_(\d{1,6})\.JPEG")
_TINY_TEST = re.compile(r"tiny-imagenet-200/val/images/(val_\d{1,6}\.JPEG)")
_TINY_ANSWERS = "tiny-imagenet-200/val/val_annotations.txt"


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The content of one member, its CRC-32 checked."""
    try:
        size = archive.getinfo(name).file_size
        if size > LARGEST_PICTURE:
            raise DataError(f"{archive.filename} is damaged at {name}: a member of {size} bytes.")
        return archive.read(name)
    except DataError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, OSError) as error:
        raise DataError(f"{archive.filename} is damaged at {name}: {error}") from error


def read_picture(
    content: bytes, kind: Literal["PNG", "JPEG"], mode: Literal["L", "RGB"], size: int, where: str
) -> Bytes:
    """The pixels of an image of size × size, grey [h, w] or in colour [h, w, 3]."""
    try:
        with Image.open(io.BytesIO(content), formats=[kind]) as image:
            if image.size != (size, size):  # known from the header, before anything is decoded
                raise DataError(f"{where}: images are {size} × {size} pixels; here {image.height} × {image.width}.")
            return np.asarray(image.convert(mode))
    except DataError:
        raise
    except UnidentifiedImageError as error:
        begins = content[:8].hex(" ") or "nothing"
        raise DataError(f"{where} is not a {kind} file or a damaged one: it begins with {begins}.") from error
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise DataError(f"{where} is damaged: {error}") from error


def reduced(images: Sequence[Bytes]) -> Bytes:
    """Images of one size as [n, 32, 32]: bilinear, each pixel the mean of those it covers."""
    large = torch.from_numpy(np.stack(images)).float().unsqueeze(1)
    small = torch.nn.functional.interpolate(large, (32, 32), mode="bilinear", antialias=True, align_corners=False)
    pixels: Bytes = small.squeeze(1).round().clamp(0, 255).to(torch.uint8).numpy()
    return pixels


def enlarged(images: Sequence[Bytes]) -> Bytes:
    """Images of one size as [n, 32, 32], by Lanczos' filter."""
    size = (32, 32)
    return np.stack([np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS)) for image in images])
