"""The files few-shot streams are made of: lists of images, and photographs in an archive by the names in those lists.

Archives are read where they are; what is damaged is a `DataError` that names the file.
"""

import io
import re
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from forgetfree.errors import DataError
from forgetfree.lab.benchmarks.formats import Bytes, content_of, open_zip, tar_members


def read_list(path: Path) -> tuple[str, ...]:
    """The lines of a list."""
    try:
        return tuple(content_of(path).decode("ascii").split())
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no list of images: {error}.") from error


def named_photographs(path: Path) -> dict[str, str]:
    """The photographs in a zip of miniImageNet, name → member; a name is `n0153282900000007.jpg`, in any folder."""
    with open_zip(path) as archive:
        members = [name for name in archive.namelist() if not name.startswith("__MACOSX")]
    found = {match[1]: match[0] for match in map(_MINI_NAME.fullmatch, members) if match}
    if not found:
        raise DataError(f"{path} holds no photographs with names like n0153282900000007.jpg.")
    return found


_MINI_NAME = re.compile(r"(?:.*/)?(n\d{16}\.jpg)")


class Bird(NamedTuple):
    """One photograph of CUB-200-2011: `001.Black_footed_Albatross/….jpg`, and whether the official split tests it."""

    file: str
    tests: bool


CUB_IMAGES = "CUB_200_2011/images/"
_CUB_FILES, _CUB_SPLIT = "CUB_200_2011/images.txt", "CUB_200_2011/train_test_split.txt"


def birds(path: Path) -> list[Bird]:
    """The photographs of CUB-200-2011 in the order of their numbers, from its tables."""
    tables = {name: content.decode("ascii", "replace") for name, content in tar_members(path, {_CUB_FILES, _CUB_SPLIT})}
    lacking = {_CUB_FILES, _CUB_SPLIT} - set(tables)
    if lacking:
        raise DataError(f"{path}: {' and '.join(sorted(lacking))} is missing.")
    files = dict(re.findall(r"^(\d+) (\S+/\S+\.jpg)\s*$", tables[_CUB_FILES], re.MULTILINE))
    learned = dict(re.findall(r"^(\d+) ([01])\s*$", tables[_CUB_SPLIT], re.MULTILINE))
    if not files or set(files) != set(learned):
        raise DataError(f"{path}: {_CUB_FILES} has {len(files)} images, {_CUB_SPLIT} {len(learned)}; not the same.")
    return [Bird(files[number], learned[number] == "0") for number in sorted(files, key=int)]


def square(content: bytes, where: str, *, edge: int, size: int) -> Bytes:
    """The middle [3, size, size] of a JPEG whose shorter edge is made `edge` long; one of that size is left alone."""
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            picture = image.convert("RGB")
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise DataError(f"{where} is not a JPEG file or a damaged one: {error}") from error
    if picture.size != (size, size):
        scale = edge / min(picture.size)
        width, height = (max(edge, round(scale * length)) for length in picture.size)
        left, top = (width - size) // 2, (height - size) // 2
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        picture = picture.crop((left, top, left + size, top + size))
    return np.asarray(picture).transpose(2, 0, 1)
