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
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
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


def write_idx(folder: Path, parts: dict[str, int], seed: int) -> dict[str, sources.Original]:
    """Random images of 28×28 and their labels in the files of MNIST, so many for each part."""
    draw, files = torch.Generator().manual_seed(seed), {}
    folder.mkdir(parents=True)
    for part, count in parts.items():
        images = torch.randint(256, (count, 28, 28), generator=draw).to(torch.uint8)
        labels = (torch.arange(count) % 10).to(torch.uint8)
        for name, values in ((f"{part}-images-idx3-ubyte.gz", images), (f"{part}-labels-idx1-ubyte.gz", labels)):
            (folder / name).write_bytes(gzip.compress(idx_bytes(values), mtime=0))
            files[name] = original(folder / name, count)
    return files


def original(path: Path, rows: int, **more: object) -> sources.Original:
    """The file at `path` as if it had been published so."""
    return sources.Original(hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size, rows, **more)


@pytest.fixture
def miniature_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 300 and 100 random images in MNIST's files; SOURCES and the environment know of it."""
    files = write_idx(tmp_path / "data" / "mnist", {"train": 300, "t10k": 100}, 0)
    return register(monkeypatch, tmp_path, "mnist", files)


@pytest.fixture
def miniature_fashion_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 200 and 100 random images in Fashion-MNIST's files."""
    files = write_idx(tmp_path / "data" / "fashion-mnist", {"train": 200, "t10k": 100}, 1)
    return register(monkeypatch, tmp_path, "fashion-mnist", files)


@pytest.fixture
def miniature_notmnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 200 random images in notMNIST's files."""
    return register(monkeypatch, tmp_path, "notmnist", write_idx(tmp_path / "data" / "notmnist", {"t10k": 200}, 2))


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


def pack_tar(path: Path, members: dict[str, bytes]) -> None:
    """Write a compressed archive of these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def miniature_cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 20 and 2 random images of each class in CIFAR-100's binary archive."""
    path = tmp_path / "data" / "cifar100" / "cifar-100-binary.tar.gz"
    members = {
        f"cifar-100-binary/{part}.bin": cifar100_records(of_each, of_each)
        for part, of_each in (("train", 20), ("test", 2))
    }
    pack_tar(path, members)
    unpacked = {name: hashlib.sha256(records).hexdigest() for name, records in members.items()}
    return register(monkeypatch, tmp_path, "cifar100", {path.name: original(path, 2200, unpacked=unpacked)})


def cifar10_members() -> dict[str, bytes]:
    """Five batches of 60 random images and one of 100 to test."""
    draw, members = torch.Generator().manual_seed(3), {}
    for name, count in [(f"data_batch_{i}", 60) for i in range(1, 6)] + [("test_batch", 100)]:
        records = torch.randint(256, (count, 3073), generator=draw).to(torch.uint8)
        records[:, 0] = torch.arange(count) % 10
        members[f"cifar-10-batches-bin/{name}.bin"] = records.numpy().tobytes()
    return members


@pytest.fixture
def miniature_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 300 and 100 random images in CIFAR-10's binary archive."""
    path = tmp_path / "data" / "cifar10" / "cifar-10-binary.tar.gz"
    pack_tar(path, cifar10_members())
    return register(monkeypatch, tmp_path, "cifar10", {path.name: original(path, 400)})


@pytest.fixture
def miniature_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 200 and 100 random digits in SVHN's MATLAB files; a 0 is labelled 10, as published."""
    folder, draw, files = tmp_path / "data" / "svhn", np.random.default_rng(4), {}
    folder.mkdir(parents=True)
    for part, count in (("train", 200), ("test", 100)):
        path = folder / f"{part}_32x32.mat"
        images = draw.integers(0, 256, (32, 32, 3, count)).astype(np.uint8)
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        savemat(path, {"X": images, "y": labels}, do_compression=True)
        files[path.name] = original(path, count)
    return register(monkeypatch, tmp_path, "svhn", files)


def jpeg_bytes(pixels: np.ndarray) -> bytes:
    """A JPEG of [height, width, 3] or, grey, [height, width]."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=95)
    return content.getvalue()


def tiny_imagenet_members(classes: int = 15, of_each: int = 12, tests: int = 2) -> dict[str, bytes]:
    """Random photographs, the classes not in the order of their names; one of them is grey."""
    draw, members, lines = np.random.default_rng(5), {}, []
    names = [f"n{(7919 * i) % 10**8:08}" for i in range(classes, 0, -1)]
    for name in names:
        for i in range(of_each):
            pixels = draw.integers(0, 256, (64, 64, 3)).astype(np.uint8)
            member = f"tiny-imagenet-200/train/{name}/images/{name}_{i}.JPEG"
            members[member] = jpeg_bytes(pixels[..., 0] if i == 11 else pixels)
    for i in range(classes * tests):
        pixels = draw.integers(0, 256, (64, 64, 3)).astype(np.uint8)
        members[f"tiny-imagenet-200/val/images/val_{i}.JPEG"] = jpeg_bytes(pixels)
        lines.append(f"val_{i}.JPEG\t{names[i % classes]}\t0\t0\t63\t63\n")
    members["tiny-imagenet-200/val/val_annotations.txt"] = "".join(lines).encode()
    members["tiny-imagenet-200/test/images/test_0.JPEG"] = jpeg_bytes(np.zeros((64, 64, 3), np.uint8))
    return members


def pack_zip(path: Path, members: dict[str, bytes]) -> None:
    """Write a zip of these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.fixture
def miniature_tiny_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with 15 classes of 12 and 2 random photographs in Tiny ImageNet's archive."""
    path = tmp_path / "data" / "tiny-imagenet" / "tiny-imagenet-200.zip"
    pack_zip(path, tiny_imagenet_members())
    return register(monkeypatch, tmp_path, "tiny-imagenet", {path.name: original(path, 210)})


@pytest.fixture
def tiny_imagenet_content() -> dict[str, bytes]:
    """What the miniature Tiny ImageNet is packed of."""
    return tiny_imagenet_members()


@pytest.fixture
def packed() -> Callable[[Path, dict[str, bytes]], None]:
    """Write a zip or a tar.gz of members, by the ending of its name."""
    return lambda path, members: (pack_zip if path.suffix == ".zip" else pack_tar)(path, members)


@pytest.fixture
def as_jpeg() -> Callable[[np.ndarray], bytes]:
    """The bytes of a JPEG file."""
    return jpeg_bytes


@pytest.fixture
def cifar10_content() -> dict[str, bytes]:
    """What the miniature CIFAR-10 is packed of."""
    return cifar10_members()


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
        files[path.name] = original(path, 20 * characters, members=sources.members_digest(path))
    return register(monkeypatch, tmp_path, "omniglot", files)


SESSIONS = {"cifar100": (60, 5, 9), "mini_imagenet": (6, 2, 9), "cub200": (4, 1, 11)}
"""Base classes, ways and tasks of the miniature few-shot streams: with as many as published, tests would take long."""


def fewer_classes(monkeypatch: pytest.MonkeyPatch, images: str) -> None:
    """Let the stream of these images have as many classes as its miniature."""
    module, (base, ways, _) = import_module(f"forgetfree.lab.benchmarks.fscil_{images}"), SESSIONS[images]
    monkeypatch.setattr(module, "BASE", base)
    monkeypatch.setattr(module, "WAYS", ways)


def mini_imagenet_name(label: int, number: int) -> str:
    """A photograph's file: WordNet's number of its class, then its own."""
    return f"n{7919 * (label + 1):08}{number:08}.jpg"


@cache
def mini_imagenet_members() -> dict[str, bytes]:
    """Nine random photographs of each of 22 classes, the first two to test; one is large and one grey."""
    draw, members = np.random.default_rng(6), {}
    strange = {(0, 0): (120, 100, 3), (0, 1): (84, 84)}
    for label in range(22):
        for number in range(9):
            pixels = draw.integers(0, 256, strange.get((label, number), (84, 84, 3))).astype(np.uint8)
            members[f"mini-imagenet/images/{mini_imagenet_name(label, number)}"] = jpeg_bytes(pixels)
    return members


@pytest.fixture
def mini_imagenet_content() -> dict[str, bytes]:
    """What the miniature miniImageNet is packed of."""
    return dict(mini_imagenet_members())


@pytest.fixture
def miniature_mini_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, miniature_fscil_splits: Path) -> Path:
    """A data root with 22 classes of seven and two random photographs in miniImageNet's archive, and the lists."""
    path = tmp_path / "data" / "mini-imagenet" / "mini-imagenet.zip"
    pack_zip(path, mini_imagenet_members())
    fewer_classes(monkeypatch, "mini_imagenet")
    return register(monkeypatch, tmp_path, "mini-imagenet", {path.name: original(path, 198, counted=True)})


def bird(label: int, number: int) -> str:
    """A photograph's file in the folder of its class."""
    return f"{label + 1:03}.Species_{label + 1}/Species_{label + 1}_{number:04}.jpg"


@cache
def cub200_members() -> dict[str, bytes]:
    """Seven random photographs of each of 14 species, wide or tall; the first tests."""
    draw, images, files, split = np.random.default_rng(7), {}, [], []
    for label in range(14):
        for number in range(7):
            pixels = draw.integers(0, 256, (24, 40, 3) if number % 2 else (40, 24, 3)).astype(np.uint8)
            images[f"CUB_200_2011/images/{bird(label, number)}"] = jpeg_bytes(pixels)
            files.append(f"{len(files) + 1} {bird(label, number)}\n")
            split.append(f"{len(files)} {int(number > 0)}\n")
    tables = {"images": files, "train_test_split": split}
    return images | {f"CUB_200_2011/{name}.txt": "".join(lines).encode() for name, lines in tables.items()}


@pytest.fixture
def cub200_content() -> dict[str, bytes]:
    """What the miniature CUB-200-2011 is packed of."""
    return dict(cub200_members())


@pytest.fixture
def miniature_cub200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, miniature_fscil_splits: Path) -> Path:
    """A data root with 14 species in the archive of CUB-200-2011, and the lists."""
    path = tmp_path / "data" / "cub200" / "CUB_200_2011.tgz"
    pack_tar(path, cub200_members())
    fewer_classes(monkeypatch, "cub200")
    return register(monkeypatch, tmp_path, "cub200", {path.name: original(path, 98)})


@cache
def session_list(images: str, session: int) -> list[str]:
    """Five images of each class of a session, as TOPIC lists them: these are for the miniatures."""
    base, ways, _ = SESSIONS[images]
    classes = range(base + ways * (session - 2), base + ways * (session - 1))
    if images == "cifar100":
        return [str(at) for label in classes for at in np.flatnonzero(cifar100_fine() == label)[[7, 3, 19, 4, 0]]]
    if images == "mini_imagenet":
        names = [mini_imagenet_name(label, number) for label in classes for number in (8, 3, 4, 6, 5)]
        return [f"MINI-ImageNet/train/{name[:9]}/{name}" for name in names]
    return [f"CUB_200_2011/images/{bird(label, number)}" for label in classes for number in (6, 3, 4, 2, 1)]


@cache
def cifar100_fine() -> np.ndarray:
    """The labels of the miniature CIFAR-100's training images."""
    return np.frombuffer(cifar100_records(20, 20), np.uint8).reshape(-1, 3074)[:, 1].copy()


@pytest.fixture
def listed_images() -> Callable[[str, int], list[str]]:
    """The images of a session in the miniature lists."""
    return session_list


@pytest.fixture
def miniature_fscil_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with lists like TOPIC's for the miniatures of CIFAR-100, miniImageNet and CUB-200."""
    lists = {
        f"{images}/session_{session}.txt": session_list(images, session)
        for images, (_, _, tasks) in SESSIONS.items()
        for session in range(2, tasks + 1)
    }
    tested = [mini_imagenet_name(label, number) for label in range(22) for number in (0, 1)]
    lists["mini_imagenet/test.txt"] = [f"MINI-ImageNet/test/{name[:9]}/{name}" for name in tested]
    files = {}
    for name, lines in lists.items():
        path = tmp_path / "data" / "fscil-splits" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
        files[name] = original(path, len(lines))
    return register(monkeypatch, tmp_path, "fscil-splits", files)
