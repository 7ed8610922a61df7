"""Files that are whole or not there: atomic writes, and trees of tensors and plain values without pickle.

A tree is any nesting of dicts, lists, tuples, tensors, numbers, texts and None. Its tensors go into a safetensors
file, its structure as JSON into that file's header, with a digest over both.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from forgetfree.errors import FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


LONGEST_NAME = 255
"""Bytes that a name in a folder has at most."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, or leave it as it was: temporary file, fsync, rename.

    A link is followed, and what it leads to is replaced; a file that was there keeps its permissions. What is no plain
    file (a device, a pipe, a folder) is refused: it would be gone.
    """
    if not path.name:
        raise FileError(f"cannot write {str(path)!r}: it names no file.")
    partial = None
    try:
        target = path.resolve() if path.is_symlink() else path
        mode = _mode_of(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial_of(target)
        with _alone(partial, mode) as file:
            file.truncate(0)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(target)
        _sync_folder(target.parent)
    except BaseException as error:
        if partial is not None and is_there(partial) and partial.is_file() and not partial.is_symlink():
            partial.unlink()
        if not isinstance(error, OSError | ValueError):
            raise
        if isinstance(error, FileError):
            raise
        said = getattr(error, "strerror", None) or str(error)
        raise FileError(
            f"cannot write {str(path)!r} ({len(content) / 1e6:.1f} MB): {said}. "
            + ("What was there before is untouched." if is_there(path) else "Nothing was written.")
        ) from error


def is_there(path: Path) -> bool:
    """Whether something is there; never under a name that no file can have."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def open_plain(path: Path) -> BinaryIO:
    """A plain file, open to read; a device or a pipe, at which one could wait for ever, is refused."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # the latter: a name that no file can have
        raise FileError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}.") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileError(f"cannot read {str(path)!r}: it is no plain file.")
    return os.fdopen(handle, "rb")


def read_plain(path: Path, most: int | None = None) -> bytes:
    """The content of a plain file of at most so many bytes."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise FileError(f"cannot read {str(path)!r}: it has {size} bytes; at most {most} are read.")
            return file.read() if most is None else file.read(most)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error


def save_tree(path: Path, kind: str, tree: Any) -> None:
    """Write `tree` to `path`; `kind` says what it is and is asked for again on the way in."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(flatten(tree, tensors), sort_keys=True, allow_nan=True)
    header = {"kind": kind, "structure": structure, "digest": _digest(structure, tensors)}
    write_atomically(path, save_tensors(tensors, header))


def load_tree(path: Path, kind: str) -> Any:
    """The tree in `path`; a `FileError` if it is not a whole file of this kind."""
    return tree_of(read_plain(path), path, kind)


def tree_of(content: bytes, path: Path, kind: str) -> Any:
    """The tree in what a file holds; `path` says which, for errors."""
    try:
        tensors = load_tensors(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        structure = header["structure"]
        if header["kind"] != kind:
            raise FileError(f"{path} is a {header['kind']}, not a {kind}.")
        if header["digest"] != _digest(structure, tensors):
            raise FileError(f"{path} is damaged: its content does not match its digest. Delete it to start again.")
        return unflatten(json.loads(structure), tensors)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{path} is not a {kind} of forgetfree, or it is damaged. Delete it to start again.") from error


def digest_of(tensors: dict[str, Tensor]) -> str:
    """A digest of names, types, shapes and bits."""
    return _digest("", tensors)


def flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON for everything but the tensors; every container is tagged, so that what comes back is what went in."""
    if isinstance(value, Tensor):
        key = str(len(tensors))
        # a copy: safetensors refuses tensors that share memory
        tensors[key] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": key}
    if isinstance(value, dict):
        return {"dict": [[flatten(key, tensors), flatten(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [flatten(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FileError(f"cannot be written without pickle: a {type(value).__name__}.")


def unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "tensor":
        return tensors[content]
    if tag == "dict":
        return {unflatten(key, tensors): unflatten(item, tensors) for key, item in content}
    return {"list": list, "tuple": tuple}[tag](unflatten(item, tensors) for item in content)


def _digest(structure: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(structure.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _mode_of(path: Path) -> int | None:
    """The permissions of the file that is there; None if there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"cannot write {str(path)!r}: it is no plain file, and writing would put one in its place.")
    return stat.S_IMODE(found.st_mode)


def _partial_of(target: Path) -> Path:
    """The temporary file beside a file, by whose name a second writer finds it; a name may be too long for more."""
    name = f".{target.name}.partial"
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = f".{hashlib.blake2b(os.fsencode(target.name), digest_size=16).hexdigest()}.partial"
    return target.with_name(name)


@contextmanager
def _alone(partial: Path, mode: int | None) -> Iterator[BinaryIO]:
    """The temporary file, open to write; whoever else writes to the same path waits.

    It is opened without following a link: one that somebody planted under this name would lead out of the folder.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    while True:
        try:
            handle = os.open(partial, flags, 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise FileError(
                    f"cannot write beside {str(partial)!r}: that is the name of our temporary file, and a link or a "
                    "pipe is there. Remove it."
                ) from error
            raise
        with os.fdopen(handle, "ab") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileError(f"cannot write beside {str(partial)!r}: it is no plain file. Remove it.")
            if mode is not None:
                os.fchmod(file.fileno(), mode) if hasattr(os, "fchmod") else partial.chmod(mode)
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, partial):
                yield file
                return
        # the one before has renamed it meanwhile: this is the finished file, not to be written to


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a system where folders cannot be opened (Windows)
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
