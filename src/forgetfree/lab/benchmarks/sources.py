"""Where raw data comes from and how it is read: the one file that downloads or opens a data set.

A data root holds one folder per source, with the files exactly as their authors published them:

    ROOT/mnist/train-images-idx3-ubyte.gz

A new data set is one row of SOURCES and one reader. What takes long to decode is decoded once, into the user's cache
folder, and mapped into memory from there.
"""

import gzip
import hashlib
import io
import json
import logging
import math
import os
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from forgetfree.errors import DataError, FileError, InputError
from forgetfree.files import write_atomically

ENVIRONMENT = "FORGETFREE_DATA"
Progress = Callable[[str, int, int], None]
"""Called while a file comes in: its name, bytes so far, bytes in all."""


@dataclass(frozen=True)
class Original:
    """One file as it was published."""

    sha256: str
    size: int
    rows: int
    """How many samples it holds."""
    unpacked: Mapping[str, str] = field(default_factory=dict)
    """What an archive holds, path → SHA-256: laid out in the same folder, it stands in for the archive."""
    members: str = ""
    """Digest of the names, sizes and CRC-32 of a zip's images: the same ones packed anew stand in for the archive."""


@dataclass(frozen=True)
class Source:
    """A data set: its files by name, the addresses that serve them all, and what may be done with them."""

    title: str
    homepage: str
    licence: str
    mirrors: tuple[str, ...]
    """A file's address is a mirror followed by its name."""
    files: Mapping[str, Original]
    rows: Callable[[Path], int]
    """How many samples a file holds; a `DataError` if it cannot be read."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(original.size for original in self.files.values())


SOURCES: dict[str, Source] = {
    "mnist": Source(
        title="MNIST: 60 000 and 10 000 handwritten digits, 28×28, grey",
        homepage="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0; copyright Yann LeCun and Corinna Cortes, derived from NIST",
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        files={
            "train-images-idx3-ubyte.gz": Original(
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422, 60_000
            ),
            "train-labels-idx1-ubyte.gz": Original(
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881, 60_000
            ),
            "t10k-images-idx3-ubyte.gz": Original(
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877, 10_000
            ),
            "t10k-labels-idx1-ubyte.gz": Original(
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542, 10_000
            ),
        },
        rows=lambda path: len(read_idx(path)),
    ),
    "cifar100": Source(
        title="CIFAR-100: 50 000 and 10 000 photographs of 100 classes in 20 superclasses, 32×32, colour",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        files={
            "cifar-100-binary.tar.gz": Original(
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                168_513_733,
                60_000,
                unpacked={
                    "cifar-100-binary/train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                    "cifar-100-binary/test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
                },
            )
        },
        rows=lambda path: sum(len(_cifar100_records(path, part)) for part in ("train", "test")),
    ),
    "omniglot": Source(
        title="Omniglot: 1 623 handwritten characters of 50 alphabets, 20 drawings each, 105×105, black on white",
        homepage="https://github.com/brendenlake/omniglot",
        licence="MIT; copyright Brenden Lake",
        mirrors=(
            "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
            "https://github.com/brendenlake/omniglot/raw/master/python/",
        ),
        files={
            "images_background.zip": Original(
                "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
                9_464_212,
                19_280,
                members="976a485db5c9a8f1fef6bee96a66cc9327ef5588de9a6bfb18b846f53dc18f09",
            ),
            "images_evaluation.zip": Original(
                "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
                6_462_886,
                13_180,
                members="34c0ee36535f56810814ab60955da1eb7268f5046fbe5047b90f9cb1f8660092",
            ),
        },
        rows=lambda path: len(_png_members(path)),
    ),
}


def data_root(explicit: str | Path | None = None) -> Path:
    """The folder of all data: the one given, else the environment's FORGETFREE_DATA, else the user's cache folder."""
    chosen = explicit or os.environ.get(ENVIRONMENT)
    return Path(chosen).expanduser() if chosen else _cache()


def locate(source: str, root: str | Path | None = None, *, subset: bool = False) -> dict[str, Path]:
    """The files of a source by name, all there and all with the right digest, or a `DataError` that says what to do.

    A digest is computed once and remembered as long as size and time of the file stay. `subset` also takes readable
    files with fewer samples than the original: numbers measured on them must say so. Where an archive lies unpacked,
    its path is that of the folder it unpacks to.
    """
    row, folder = _row(source), data_root(root) / source
    places = {name: _place(folder, name, original) for name, original in row.files.items()}
    missing = [name for name, path in places.items() if not path.exists()]
    if missing:
        raise DataError(
            f"{source}: {len(missing)} of {len(row.files)} files are missing.\n{_looked_for(folder, missing)}\n"
            f"Download them: {_command('fetch', source, root)}\n{_by_hand(source, folder)}\n{_which_root()}"
        )
    for name, original in row.files.items():
        path = places[name]
        if path.is_dir():
            _check_unpacked(source, folder, original, root)
            continue
        found = _remembered_digest(path)
        if found == original.sha256 or _packed_anew(path, original):
            continue
        status = _status(row, name, path, found)
        if status.state != "subset":
            raise DataError(
                f"{path} is not the original of {source}.\n  expected SHA-256 {original.sha256}, {original.size} bytes"
                f"\n  found    SHA-256 {found}, {path.stat().st_size} bytes\n"
                f"Replace it: {_command('fetch', source, root)}\n{_by_hand(source, folder)}"
            )
        if not subset:
            raise DataError(
                f"{path} is a subset: {status.rows} of {original.rows} samples. What asked for it needs the whole.\n"
                f"Replace it: {_command('fetch', source, root)}\n{_by_hand(source, folder)}"
            )
    return places


State = Literal["ok", "missing", "wrong digest", "subset"]


@dataclass(frozen=True)
class FileStatus:
    """What `check` found of one file."""

    name: str
    path: Path
    state: State
    expected: str
    found: str | None
    """SHA-256 of what is there; None where nothing is, and of an archive that lies unpacked."""
    rows: int | None
    """Samples in a subset."""


def check(source: str, root: str | Path | None = None) -> list[FileStatus]:
    """The state of every file, each digest computed anew."""
    row, folder = _row(source), data_root(root) / source
    found = []
    for name, original in row.files.items():
        path = _place(folder, name, original)
        if path.is_dir():
            right = all(_digest(folder / part) == digest for part, digest in original.unpacked.items())
            state: State = "ok" if right else "wrong digest"
            found.append(FileStatus(name, path, state, original.sha256, None, None))
        else:
            found.append(_status(row, name, path, _digest(path) if path.is_file() else None))
    return found


def fetch(source: str, root: str | Path | None = None, progress: Progress | None = None) -> dict[str, Path]:
    """Download what is missing or wrong; a file is replaced only by one with the right digest."""
    row, folder = _row(source), data_root(root) / source
    wanted = [status.name for status in check(source, root) if status.state != "ok"]
    for position, name in enumerate(wanted):
        failures = _download(row, name, folder, progress)
        if failures:
            raise DataError(
                f"{source}: cannot download {len(wanted) - position} of {len(row.files)} files.\n"
                f"{_looked_for(folder, wanted[position:])}\n"
                + "\n".join(f"  tried      {url}: {reason}" for url, reason in failures.items())
                + f"\nTry again later: {_command('fetch', source, root)}\n{_by_hand(source, folder)}\n{_which_root()}"
            )
    return locate(source, root)


class Images(NamedTuple):
    """Images [n, height, width] and labels [n] as they are stored, uint8."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def mnist(root: str | Path | None = None) -> Images:
    """MNIST in its original order."""
    return _idx_images(locate("mnist", root))


class Cifar100(NamedTuple):
    """Images [n, 3, 32, 32] as they are stored, uint8, mapped from the disk, and their labels [n]."""

    train: Tensor
    fine: Tensor
    coarse: Tensor
    test: Tensor
    test_fine: Tensor
    test_coarse: Tensor


def cifar100(root: str | Path | None = None) -> Cifar100:
    """CIFAR-100 in its original order; a record is a coarse label, a fine label, and red, green and blue planes."""
    (path,) = locate("cifar100", root).values()
    parts = []
    for part in ("train", "test"):
        if path.is_dir():
            records = torch.from_numpy(_cifar100_records(path, part))
        else:
            key = _remembered_digest(path)
            records = _decoded(f"cifar100-{part}", [key], lambda part=part: _cifar100_records(path, part))  # type: ignore[misc]
        coarse, fine = records[:, 0].long(), records[:, 1].long()
        if int(coarse.max()) > 19 or int(fine.max()) > 99:
            raise DataError(f"{path}: {part}.bin has labels beyond 19 (coarse) or 99 (fine): not CIFAR-100.")
        parts += [records[:, 2:].view(-1, 3, 32, 32), fine, coarse]
    return Cifar100(*parts)


class Omniglot(NamedTuple):
    """Drawings [characters, drawings, 32, 32], uint8, mapped from the disk, and the names of the characters."""

    drawings: Tensor
    names: tuple[str, ...]


def omniglot(root: str | Path | None = None) -> Omniglot:
    """Both sets of Omniglot together, reduced to 32×32; black is 0, white 255.

    Characters are in the order of their names (`Alphabet/character01`, by code point), drawings in that of their files.
    """
    files = list(locate("omniglot", root).values())
    drawings: dict[str, list[tuple[Path, str]]] = {}
    for path in files:
        for member in sorted(_png_members(path)):
            character = "/".join(member.split("/")[-3:-1])
            drawings.setdefault(character, []).append((path, member))
    uneven = {name: len(found) for name, found in drawings.items() if len(found) != _DRAWINGS}
    if uneven:
        name, count = next(iter(uneven.items()))
        raise DataError(
            f"{' and '.join(map(str, files))}: {len(uneven)} characters do not have {_DRAWINGS} drawings each; "
            f"{name} has {count}."
        )
    names = tuple(sorted(drawings))

    def decode() -> NDArray[np.uint8]:
        archives = {path: zipfile.ZipFile(path) for path in files}
        try:
            return np.stack(
                [_reduced([_member(archives[path], png) for path, png in drawings[name]]) for name in names]
            )
        finally:
            for archive in archives.values():
                archive.close()

    return Omniglot(_decoded("omniglot-32", [_remembered_digest(path) for path in files], decode), names)


_DRAWINGS = 20  # of each character of Omniglot


def read_png(content: bytes, where: str) -> NDArray[np.uint8]:
    """The grey image in a PNG file, 1 or 8 bits a pixel and not interlaced, as 0..255; all that Omniglot needs."""
    if content[:8] != b"\x89PNG\r\n\x1a\n" or content[12:16] != b"IHDR":
        raise DataError(f"{where} is not a PNG file: it begins with {content[:8].hex(' ') or 'nothing'}.")
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    depth, colour, _, _, interlaced = content[24:29]
    if depth not in (1, 8) or colour != 0 or interlaced:
        raise DataError(f"{where}: depth {depth}, colour type {colour}; read are grey images of 1 or 8 bits.")
    at, packed = 8, b""
    while at + 8 <= len(content):
        length, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        packed += content[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    try:
        raw = zlib.decompress(packed)
    except zlib.error as error:
        raise DataError(f"{where} is damaged: {error}") from error
    stride = (width * depth + 7) // 8
    if len(raw) != height * (stride + 1):
        raise DataError(f"{where} is damaged: {len(raw)} bytes for {height} × {width} pixels.")
    rows = np.frombuffer(raw, np.uint8).reshape(height, stride + 1)
    pixels = _unfiltered(rows[:, 0], rows[:, 1:], where)
    return np.unpackbits(pixels, axis=1, count=width) * np.uint8(255) if depth == 1 else pixels


def _unfiltered(filters: NDArray[np.uint8], rows: NDArray[np.uint8], where: str) -> NDArray[np.uint8]:
    """Rows of bytes from what a PNG holds: each the difference to a guess from the byte to the left and those above."""
    lines = np.zeros((len(rows) + 1, rows.shape[1]), np.uint8)  # above the first row are zeros
    for i, (kind, row) in enumerate(zip(filters.tolist(), rows, strict=True), 1):
        if kind == 0:
            lines[i] = row
        elif kind == 1:
            lines[i] = np.cumsum(row, dtype=np.uint8)
        elif kind == 2:
            lines[i] = row + lines[i - 1]
        elif kind in (3, 4):
            left = corner = 0
            for j, (value, above) in enumerate(zip(row.tolist(), lines[i - 1].tolist(), strict=True)):
                left = (value + ((left + above) // 2 if kind == 3 else _paeth(left, above, corner))) % 256
                lines[i, j], corner = left, above
        else:
            raise DataError(f"{where} is damaged: there is no PNG filter {kind}.")
    return lines[1:]


def _paeth(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    return min((left, above, corner), key=lambda value: abs(guess - value))  # of equals the first


def _reduced(images: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Images of one size as [n, 32, 32]: bilinear, each pixel the mean of those it covers."""
    large = torch.from_numpy(np.stack(images)).float().unsqueeze(1)
    small = torch.nn.functional.interpolate(large, (32, 32), mode="bilinear", antialias=True, align_corners=False)
    reduced: NDArray[np.uint8] = small.squeeze(1).round().clamp(0, 255).to(torch.uint8).numpy()
    return reduced


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[np.uint8]:
    try:
        content = archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive.filename} is damaged at {name}: {error}") from error
    return read_png(content, f"{archive.filename}: {name}")


def _png_members(path: Path) -> dict[str, zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            found = {info.filename: info for info in archive.infolist()}
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    return {
        name: info
        for name, info in found.items()
        if name.endswith(".png") and name.count("/") >= 2 and not name.startswith("__MACOSX")
    }


def _cifar100_records(path: Path, part: str) -> NDArray[np.uint8]:
    """The records [n, 3074] of train.bin or test.bin, in the folder or the archive at `path`."""
    try:
        if path.is_dir():
            # copy on write: torch wants memory it may write to, and the file stays as it is
            content: NDArray[np.uint8] = np.memmap(path / f"{part}.bin", np.uint8, mode="c")
        else:
            with tarfile.open(path) as archive:
                member = archive.extractfile(f"cifar-100-binary/{part}.bin")
                content = np.frombuffer(member.read() if member else b"", np.uint8)
    except (tarfile.TarError, KeyError, ValueError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: cannot read {part}.bin ({error}).") from error
    except OSError as error:
        raise DataError(f"cannot read {part}.bin of {path}: {error.strerror or error}.") from error
    if not len(content) or len(content) % 3074:
        raise DataError(f"{path}: {part}.bin has {len(content)} bytes, not a number of records of 3074.")
    return content.reshape(-1, 3074)


def _decoded(name: str, digests: list[str], decode: Callable[[], NDArray[np.uint8]]) -> Tensor:
    """What `decode` gives, made once for files with these digests and then mapped from the user's cache folder."""
    key = hashlib.blake2b(" ".join(digests).encode(), digest_size=8).hexdigest()
    path = _cache() / ".decoded" / f"{name}-{key}.npy"
    with suppress(OSError, ValueError):  # not there, or damaged: decode
        return torch.from_numpy(np.load(path, mmap_mode="c"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            with suppress(OSError, ValueError):  # another process was faster
                return torch.from_numpy(np.load(path, mmap_mode="c"))
            buffer = io.BytesIO()
            np.save(buffer, decode(), allow_pickle=False)
            write_atomically(path, buffer.getvalue())
            return torch.from_numpy(np.load(path, mmap_mode="c"))
    except DataError:
        raise
    except OSError:  # no place to keep it: it is decoded again next time
        return torch.from_numpy(np.array(decode()))


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


def _idx_images(files: Mapping[str, Path]) -> Images:
    parts = []
    for part in ("train", "t10k"):
        pictures, answers = files[f"{part}-images-idx3-ubyte.gz"], files[f"{part}-labels-idx1-ubyte.gz"]
        images, labels = read_idx(pictures), read_idx(answers)
        if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
            raise DataError(
                f"{pictures} holds {tuple(images.shape)} and {answers} {tuple(labels.shape)}: not one label per image."
            )
        parts += [images, labels]
    return Images(*parts)


def _decompressed(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error


def _row(source: str) -> Source:
    if source not in SOURCES:
        raise InputError(f"no data set is called {source!r}; there are {sorted(SOURCES)}.")
    return SOURCES[source]


def _place(folder: Path, name: str, original: Original) -> Path:
    """Where a file is: itself, or the folder it unpacks to if all that is needed of it lies there."""
    if original.unpacked and not (folder / name).is_file():
        parts = [folder / part for part in original.unpacked]
        if all(part.is_file() for part in parts):
            return parts[0].parent
    return folder / name


def _check_unpacked(source: str, folder: Path, original: Original, root: str | Path | None) -> None:
    for part, digest in original.unpacked.items():
        found = _remembered_digest(folder / part)
        if found != digest:
            raise DataError(
                f"{folder / part} is not the original of {source}.\n  expected SHA-256 {digest}\n"
                f"  found    SHA-256 {found}, {(folder / part).stat().st_size} bytes\n"
                f"Get the archive: {_command('fetch', source, root)}\n{_by_hand(source, folder)}"
            )


def _packed_anew(path: Path, original: Original) -> bool:
    """Whether a zip holds exactly what the original holds, however it was packed."""
    if not original.members:
        return False
    with suppress(DataError):  # unreadable: not the same
        return members_digest(path) == original.members
    return False


def members_digest(path: Path) -> str:
    """SHA-256 of the sorted names, sizes and CRC-32 of a zip's images."""
    members = _png_members(path).items()
    text = "\n".join(f"{name} {info.file_size} {info.CRC:08x}" for name, info in sorted(members))
    return hashlib.sha256(text.encode()).hexdigest()


def _status(row: Source, name: str, path: Path, found: str | None) -> FileStatus:
    original, rows = row.files[name], None
    state: State = "missing" if found is None else "ok" if found == original.sha256 else "wrong digest"
    if state == "wrong digest" and _packed_anew(path, original):
        state = "ok"
    if state == "wrong digest":
        with suppress(DataError):  # unreadable: no subset either
            rows = row.rows(path)
        if rows is not None and 0 < rows < original.rows:
            state = "subset"
    return FileStatus(name, path, state, original.sha256, found, rows if state == "subset" else None)


# Digests, remembered in the user's cache folder because a data root may be read-only.


def _remembered_digest(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):  # no stamp, or a damaged one: compute
        stamp = json.loads(_stamp(path).read_text())
        if stamp["file"] == _appearance(path):
            return str(stamp["sha256"])
    return _digest(path)


def _digest(path: Path) -> str:
    try:
        seen = _appearance(path)
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    with suppress(FileError):  # no place to remember it: it is computed again next time
        write_atomically(_stamp(path), json.dumps({"file": seen, "sha256": found}).encode())
    return found


def _appearance(path: Path) -> list[str | int]:
    facts = path.stat()
    return [str(path.resolve()), facts.st_size, facts.st_mtime_ns]


def _stamp(path: Path) -> Path:
    return _cache() / ".digests" / f"{hashlib.blake2b(str(path.resolve()).encode(), digest_size=16).hexdigest()}.json"


def _cache() -> Path:
    import pooch

    return Path(pooch.os_cache("forgetfree"))


# Downloads: each mirror in turn, and once more those whose failure may have been chance.

_ROUNDS = 2
_PAUSE = 1.0  # seconds between the rounds
_TIMEOUT = (4.0, 30.0)  # seconds to connect, and between two pieces
_PIECE = 1 << 16


def _download(row: Source, name: str, folder: Path, progress: Progress | None) -> dict[str, str]:
    """Bring one file into `folder`; what went wrong by address, nothing if one of them worked."""
    import pooch
    import requests

    urls, failures = [mirror + name for mirror in row.mirrors], dict[str, str]()
    for attempt in range(_ROUNDS):
        if attempt and urls:
            time.sleep(_PAUSE)
        worth_another_try = []
        for url in urls:
            meter = _Meter(name, row.files[name].size, progress)
            # not compressed on the way: the digest is that of the file as it is stored
            loader = pooch.HTTPDownloader(
                progressbar=meter, chunk_size=_PIECE, timeout=_TIMEOUT, headers={"Accept-Encoding": "identity"}
            )
            try:
                with _quiet(pooch.get_logger()):
                    pooch.retrieve(url, f"sha256:{row.files[name].sha256}", name, folder, downloader=loader)
                (folder / name).chmod(0o644)  # pooch's temporary files are for their owner only
                return {}
            except requests.HTTPError as error:
                status = getattr(error.response, "status_code", 0)
                failures[url] = f"the server answers {status}"
                if status >= 500:
                    worth_another_try.append(url)
            except (requests.ConnectionError, requests.Timeout) as error:
                failures[url] = f"no connection ({type(error).__name__})"
            except requests.RequestException as error:
                failures[url] = f"the transfer broke off ({type(error).__name__})"
                worth_another_try.append(url)
            except ValueError:  # pooch: another digest
                failures[url] = f"what comes is not the original (expected SHA-256 {row.files[name].sha256})"
                worth_another_try.append(url)
            except OSError as error:
                raise DataError(f"cannot write {folder / name}: {error.strerror or error}.") from error
        urls = worth_another_try
    return failures


class _Meter:
    """What pooch expects of a progress bar, as calls of `progress`."""

    def __init__(self, name: str, size: int, progress: Progress | None) -> None:
        self.name, self.total, self._size, self._done, self._progress = name, size, size, 0, progress

    def update(self, amount: int) -> None:
        self._done = min(self._done + amount, self._size)
        if self._progress is not None:
            self._progress(self.name, self._done, self._size)

    def reset(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


# The words of the errors.


def _looked_for(folder: Path, names: list[str]) -> str:
    return "\n".join(f"  looked for {folder / name}" for name in names)


def _by_hand(source: str, folder: Path) -> str:
    addresses = " or ".join(SOURCES[source].mirrors)
    return (
        f"By hand: get the files from {addresses} and put them, unchanged, into {folder}\n"
        f"Then see whether they are right: {_command('check', source, folder.parent)}"
    )


def _command(verb: str, source: str, root: str | Path | None) -> str:
    chosen = f" --data-root {root}" if root and Path(root).expanduser() != data_root() else ""
    return f"forgetfree data {verb} {source}{chosen}"


def _which_root() -> str:
    value = os.environ.get(ENVIRONMENT)
    return (
        f"The data root is the one given (--data-root, data_root=…), else {ENVIRONMENT} "
        f"({f'now {value}' if value else 'not set'}), else {_cache()}."
    )
