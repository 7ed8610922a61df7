"""Where raw data comes from and how it is read: the one file that downloads or opens a data set.

A data root holds one folder per source, with the files exactly as their authors published them:

    ROOT/mnist/train-images-idx3-ubyte.gz

A new data set is one row of SOURCES and one reader.
"""

import gzip
import hashlib
import json
import logging
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
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
}


def data_root(explicit: str | Path | None = None) -> Path:
    """The folder of all data: the one given, else the environment's FORGETFREE_DATA, else the user's cache folder."""
    chosen = explicit or os.environ.get(ENVIRONMENT)
    return Path(chosen).expanduser() if chosen else _cache()


def locate(source: str, root: str | Path | None = None, *, subset: bool = False) -> dict[str, Path]:
    """The files of a source by name, all there and all with the right digest, or a `DataError` that says what to do.

    A digest is computed once and remembered as long as size and time of the file stay. `subset` also takes readable
    files with fewer samples than the original: numbers measured on them must say so.
    """
    row, folder = _row(source), data_root(root) / source
    missing = [name for name in row.files if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{source}: {len(missing)} of {len(row.files)} files are missing.\n{_looked_for(folder, missing)}\n"
            f"Download them: {_command('fetch', source, root)}\n{_by_hand(source, folder)}\n{_which_root()}"
        )
    for name, original in row.files.items():
        path = folder / name
        found = _remembered_digest(path)
        if found == original.sha256:
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
    return {name: folder / name for name in row.files}


State = Literal["ok", "missing", "wrong digest", "subset"]


@dataclass(frozen=True)
class FileStatus:
    """What `check` found of one file."""

    name: str
    path: Path
    state: State
    expected: str
    found: str | None
    """SHA-256 of what is there."""
    rows: int | None
    """Samples in a subset."""


def check(source: str, root: str | Path | None = None) -> list[FileStatus]:
    """The state of every file, each digest computed anew."""
    row, folder = _row(source), data_root(root) / source
    return [
        _status(row, name, folder / name, _digest(folder / name) if (folder / name).is_file() else None)
        for name in row.files
    ]


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


def _status(row: Source, name: str, path: Path, found: str | None) -> FileStatus:
    original, rows = row.files[name], None
    state: State = "ok" if found == original.sha256 else "missing" if found is None else "wrong digest"
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
