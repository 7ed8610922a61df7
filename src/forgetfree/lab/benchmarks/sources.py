"""Where raw data is and what is in it: files are located, checked and fetched, and each data set has a reader.

A data root holds one folder per source, with the files exactly as their authors published them:

    ROOT/mnist/train-images-idx3-ubyte.gz

A new data set is one row of SOURCES (`originals.py`) and one reader here. What takes long to decode is decoded once,
into the user's cache folder, and mapped into memory from there.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from forgetfree.errors import DataError, FileError, InputError
from forgetfree.files import write_atomically
from forgetfree.lab.benchmarks.downloads import Progress, download
from forgetfree.lab.benchmarks.formats import (
    CIFAR10_BYTES,
    CIFAR10_TEST,
    CIFAR10_TRAIN,
    CIFAR100_BYTES,
    Bytes,
    check_labels,
    drawings,
    enlarged,
    members_digest,
    open_zip,
    photographs,
    read_idx,
    read_idx_pair,
    read_member,
    read_picture,
    read_records,
    read_svhn,
    reduced,
    tar_members,
)
from forgetfree.lab.benchmarks.fscil_formats import (
    CUB_IMAGES,
    Bird,
    birds,
    named_photographs,
    read_list,
    square,
)
from forgetfree.lab.benchmarks.originals import SOURCES, Original, Source

__all__ = [
    "ENVIRONMENT", "SOURCES", "TINY_CLASSES", "Cifar100", "FileStatus", "Images", "NamedImages", "Omniglot", "Original",
    "Progress", "Source", "State", "TinyImageNet", "check", "cifar10", "cifar100", "cub200", "data_root",
    "fashion_mnist", "fetch", "locate", "members_digest", "mini_imagenet", "mnist", "notmnist", "omniglot", "read_idx",
    "session_lists", "svhn", "tiny_imagenet",
]  # fmt: skip

ENVIRONMENT = "FORGETFREE_DATA"


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
        if found == original.sha256 or _packed_anew(row, path, original):
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
        original, urls = row.files[name], [mirror + name for mirror in row.mirrors]
        failures = download(urls, folder / name, sha256=original.sha256, size=original.size, progress=progress)
        if failures:
            raise DataError(
                f"{source}: cannot download {len(wanted) - position} of {len(row.files)} files.\n"
                f"{_looked_for(folder, wanted[position:])}\n"
                + "\n".join(f"  tried      {url}: {reason}" for url, reason in failures.items())
                + f"\nTry again later: {_command('fetch', source, root)}\n{_by_hand(source, folder)}\n{_which_root()}"
            )
    return locate(source, root)


class Images(NamedTuple):
    """Images, grey [n, height, width] or in colour [n, 3, height, width], and labels [n] as stored, uint8."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    def subset_of(self, source: str) -> str | None:
        """What a reader of numbers must know where these are fewer than the source was published with."""
        here, published = len(self.train) + len(self.test), SOURCES[source].samples
        return None if here == published else f"{source}: {here} of {published} samples, not the original files"


def mnist(root: str | Path | None = None, *, subset: bool = False) -> Images:
    """MNIST in its original order."""
    return _idx_images(locate("mnist", root, subset=subset))


def fashion_mnist(root: str | Path | None = None, *, subset: bool = False) -> Images:
    """Fashion-MNIST in its original order."""
    return _idx_images(locate("fashion-mnist", root, subset=subset))


def _idx_images(files: Mapping[str, Path]) -> Images:
    pairs = [
        read_idx_pair(files[f"{part}-images-idx3-ubyte.gz"], files[f"{part}-labels-idx1-ubyte.gz"])
        for part in ("train", "t10k")
    ]
    return Images(*pairs[0], *pairs[1])


def notmnist(root: str | Path | None = None, *, subset: bool = False) -> Images:
    """The letters of notMNIST, enlarged to 32×32; the first four fifths train, the rest tests: 8 000 and 2 000."""
    files = list(locate("notmnist", root, subset=subset).values())
    images, labels = read_idx_pair(*files)
    large = _decoded("notmnist-32", [_remembered_digest(files[0])], lambda: enlarged(list(images.numpy())))
    learned = 4 * len(labels) // 5
    return Images(large[:learned], labels[:learned], large[learned:], labels[learned:])


def cifar10(root: str | Path | None = None, *, subset: bool = False) -> Images:
    """CIFAR-10 in its original order."""
    (path,) = locate("cifar10", root, subset=subset).values()
    key = [_remembered_digest(path)]
    train = _decoded("cifar10-train", key, lambda: np.concatenate(read_records(path, CIFAR10_TRAIN, CIFAR10_BYTES)))
    test = _decoded("cifar10-test", key, lambda: read_records(path, CIFAR10_TEST, CIFAR10_BYTES)[0])
    check_labels(torch.cat([train[:, 0], test[:, 0]]).numpy(), range(10), path)
    return _from_records(train, test, size=32)


def svhn(root: str | Path | None = None, *, subset: bool = False) -> Images:
    """The cropped digits of SVHN in their original order, without its extra ones."""
    parts = []
    for name, path in locate("svhn", root, subset=subset).items():

        def decode(path: Path = path) -> Bytes:
            return read_svhn(path)

        parts.append(_decoded(f"svhn-{name}", [_remembered_digest(path)], decode))
    return _from_records(*parts, size=32)


def _from_records(train: Tensor, test: Tensor, *, size: int) -> Images:
    """Images and labels from records of a label and three planes of size × size pixels."""
    pixels = (-1, 3, size, size)
    return Images(train[:, 1:].view(pixels), train[:, 0], test[:, 1:].view(pixels), test[:, 0])


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

        def decode(member: str = f"cifar-100-binary/{part}.bin") -> Bytes:
            return read_records(path, [member], CIFAR100_BYTES)[0]

        if path.is_dir():
            records = torch.from_numpy(decode())
        else:
            records = _decoded(f"cifar100-{part}", [_remembered_digest(path)], decode)
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
    found: dict[str, list[tuple[Path, str]]] = {}
    for path in files:
        for member in sorted(drawings(path)):
            character = "/".join(member.split("/")[-3:-1])
            found.setdefault(character, []).append((path, member))
    uneven = {name: len(members) for name, members in found.items() if len(members) != _DRAWINGS}
    if uneven:
        name, count = next(iter(uneven.items()))
        raise DataError(
            f"{' and '.join(map(str, files))}: {len(uneven)} characters do not have {_DRAWINGS} drawings each; "
            f"{name} has {count}."
        )
    names = tuple(sorted(found))

    def decode() -> Bytes:
        with ExitStack() as stack:
            archives = {path: stack.enter_context(open_zip(path)) for path in files}
            return np.stack([reduced([_drawing(archives[path], png) for path, png in found[name]]) for name in names])

    return Omniglot(_decoded("omniglot-32", [_remembered_digest(path) for path in files], decode), names)


_DRAWINGS = 20  # of each character of Omniglot


def _drawing(archive: zipfile.ZipFile, name: str) -> Bytes:
    return read_picture(read_member(archive, name), "PNG", "L", 105, f"{archive.filename}: {name}")


class TinyImageNet(NamedTuple):
    """Images [n, 3, 64, 64], mapped from the disk, labels [n] that are positions in `names`, uint8."""

    images: Images
    names: tuple[str, ...]
    """Of the classes: WordNet's numbers, ascending."""


def tiny_imagenet(root: str | Path | None = None, *, subset: bool = False) -> TinyImageNet:
    """Tiny ImageNet by class and number; its `val/` is the test, because its `test/` has no labels."""
    (path,) = locate("tiny-imagenet", root, subset=subset).values()
    index = photographs(path)
    names = tuple(sorted({name for _, name in index.train}))
    if len(names) > TINY_CLASSES:
        raise DataError(f"{path}: Tiny ImageNet has {TINY_CLASSES} classes; here are {len(names)}.")
    parts = []
    for part, members in zip(("train", "test"), index, strict=True):

        def decode(members: list[tuple[str, str]] = members) -> Bytes:
            records = np.empty((len(members), 1 + 3 * 64 * 64), np.uint8)
            with open_zip(path) as archive:
                for record, (member, name) in zip(records, members, strict=True):
                    picture = read_picture(read_member(archive, member), "JPEG", "RGB", 64, f"{path}: {member}")
                    record[0], record[1:] = names.index(name), picture.transpose(2, 0, 1).reshape(-1)
            return records

        parts.append(_decoded(f"tiny-imagenet-{part}", [_remembered_digest(path)], decode))
    return TinyImageNet(_from_records(*parts, size=64), names)


TINY_CLASSES = 200


class NamedImages(NamedTuple):
    """Photographs, mapped from the disk, with labels that are positions in `names`, and files to find them by."""

    images: Images
    names: tuple[str, ...]
    """Of the classes, ascending."""
    files: tuple[str, ...]
    """Of the training images, in their order."""


def mini_imagenet(root: str | Path | None = None, *, subset: bool = False) -> NamedImages:
    """miniImageNet by file name, 84×84; TOPIC's list says what tests. A class is the WordNet number in the name."""
    (path,), lists = locate("mini-imagenet", root, subset=subset).values(), locate("fscil-splits", root)
    found, test_list = named_photographs(path), lists["mini_imagenet/test.txt"]
    tested = found.keys() & {file.rpartition("/")[2] for file in read_list(test_list)}
    names, parts = tuple(sorted({file[:9] for file in found})), []
    for part, files in (("train", sorted(found.keys() - tested)), ("test", sorted(tested))):

        def decode(files: list[str] = files) -> Bytes:
            records = np.empty((len(files), 1 + 3 * 84 * 84), np.uint8)
            with open_zip(path) as archive:
                for record, file in zip(records, files, strict=True):
                    content = read_member(archive, found[file])
                    pixels = square(content, f"{path}: {found[file]}", edge=92, size=84)
                    record[0], record[1:] = names.index(file[:9]), pixels.reshape(-1)
            return records

        digests = [_remembered_digest(path), _remembered_digest(test_list)]
        parts.append(_decoded(f"mini-imagenet-{part}", digests, decode))
    return NamedImages(_from_records(*parts, size=84), names, tuple(sorted(found.keys() - tested)))


def cub200(root: str | Path | None = None, *, subset: bool = False) -> NamedImages:
    """CUB-200-2011 in its official split, 224×224; a class is the folder, `001.Black_footed_Albatross`."""
    (path,) = locate("cub200", root, subset=subset).values()
    digests = [_remembered_digest(path)]
    # the archive is compressed as a whole: its tables are kept apart, not to read a gigabyte for them again
    table = _decoded("cub200-birds", digests, lambda: _birds_as_bytes(birds(path)))
    rows = [line.split(" ", 1) for line in bytes(table.numpy()).decode().splitlines()]
    names, parts = tuple(sorted({file.partition("/")[0] for _, file in rows})), []
    for part, tests in (("train", "0"), ("test", "1")):
        files = [file for mark, file in rows if mark == tests]

        def decode(files: list[str] = files) -> Bytes:
            places = {CUB_IMAGES + file: at for at, file in enumerate(files)}
            records = np.empty((len(files), 1 + 3 * 224 * 224), np.uint8)
            met = 0
            for member, content in tar_members(path, set(places)):
                record, name = records[places[member]], member.removeprefix(CUB_IMAGES).partition("/")[0]
                pixels = square(content, f"{path}: {member}", edge=256, size=224)
                record[0], record[1:] = names.index(name), pixels.reshape(-1)
                met += 1
            if met < len(files):
                raise DataError(f"{path}: {len(files) - met} of {len(files)} photographs of its tables are missing.")
            return records

        parts.append(_decoded(f"cub200-{part}", digests, decode))
    learned = tuple(file for tests, file in rows if tests == "0")
    return NamedImages(_from_records(*parts, size=224), names, learned)


def _birds_as_bytes(found: list[Bird]) -> Bytes:
    text = "\n".join(f"{bird.tests:d} {bird.file}" for bird in found)
    return np.frombuffer(text.encode(), np.uint8)


def session_lists(
    images: Literal["cifar100", "mini_imagenet", "cub200"], root: str | Path | None = None
) -> list[tuple[str, ...]]:
    """TOPIC's shots of session 2, 3, …: positions in CIFAR-100's original order, or paths of files."""
    files = locate("fscil-splits", root)
    listed = [path for name, path in files.items() if name.startswith(f"{images}/session_")]
    return [read_list(path) for path in listed if path.name != "session_1.txt"]


def _decoded(name: str, digests: list[str], decode: Callable[[], Bytes]) -> Tensor:
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
            partial = path.with_suffix(".partial")  # not through memory: a decoded data set may fill half of it
            try:
                with partial.open("wb") as file:
                    np.save(file, decode(), allow_pickle=False)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
            return torch.from_numpy(np.load(path, mmap_mode="c"))
    except DataError:
        raise
    except OSError:  # no place to keep it: it is decoded again next time
        return torch.from_numpy(np.array(decode()))


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


def _packed_anew(row: Source, path: Path, original: Original) -> bool:
    """Whether a zip holds what the original holds, however it was packed."""
    with suppress(DataError):  # unreadable: not the same
        if original.members:
            return members_digest(path) == original.members
        return original.counted and row.rows(path) == original.rows
    return False


def _status(row: Source, name: str, path: Path, found: str | None) -> FileStatus:
    original, rows = row.files[name], None
    state: State = "missing" if found is None else "ok" if found == original.sha256 else "wrong digest"
    if state == "wrong digest" and _packed_anew(row, path, original):
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
