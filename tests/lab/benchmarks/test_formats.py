"""Formats: what was written comes back, and what is damaged, hostile or something else is an error that names it."""

import gzip
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import loadmat, savemat
from torch import Tensor

import forgetfree as ff
from forgetfree.lab.benchmarks import formats

Content = dict[str, bytes]
Packed = Callable[[Path, Content], None]
ANSWERS = "tiny-imagenet-200/val/val_annotations.txt"


# idx


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (torch.zeros(9, 28, 28), torch.zeros(10), "not one label per image"),
        (torch.zeros(10, 784), torch.zeros(10), "not one label per image"),
        (torch.zeros(10, 32, 32), torch.zeros(10), r"28 × 28 bytes; here \(32, 32\)"),
        (torch.zeros(10, 28, 28), torch.full((10,), 10), "labels are 0 to 9; here are 10 to 10"),
    ],
)
def test_images_and_labels_that_do_not_belong_together_are_refused(
    tmp_path: Path, as_idx: Callable[[Tensor], bytes], images: Tensor, labels: Tensor, words: str
) -> None:
    pictures, answers = tmp_path / "pictures", tmp_path / "answers"
    pictures.write_bytes(as_idx(images.to(torch.uint8)))
    answers.write_bytes(as_idx(labels.to(torch.uint8)))
    with pytest.raises(ff.DataError, match=words) as caught:
        formats.read_idx_pair(pictures, answers)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("wrong", ["pictures", "answers"])
def test_images_and_labels_are_bytes(tmp_path: Path, as_idx: Callable[[Tensor], bytes], wrong: str) -> None:
    values = {"pictures": torch.zeros(3, 28, 28), "answers": torch.zeros(3)}
    for name, tensor in values.items():
        (tmp_path / name).write_bytes(as_idx(tensor.to(torch.float32 if name == wrong else torch.uint8)))
    with pytest.raises(ff.DataError, match="bytes"):
        formats.read_idx_pair(tmp_path / "pictures", tmp_path / "answers")


# Binary records


def test_records_come_back_in_their_order(tmp_path: Path, cifar10_content: Content, packed: Packed) -> None:
    path = tmp_path / "cifar.tar.gz"
    packed(path, cifar10_content)
    train = formats.read_records(path, formats.CIFAR10_TRAIN, formats.CIFAR10_BYTES)
    assert [batch.tobytes() for batch in train] == [cifar10_content[name] for name in formats.CIFAR10_TRAIN]


def test_damaged_archives_of_records_are_errors_that_name_them(
    tmp_path: Path, cifar10_content: Content, packed: Packed
) -> None:
    path, test = tmp_path / "cifar.tar.gz", formats.CIFAR10_TEST[0]
    packed(path, cifar10_content)
    whole = path.read_bytes()
    damaged: dict[str, tuple[bytes | Content, str]] = {
        "no archive": (b"not an archive", "damaged"),
        "cut off": (whole[: len(whole) // 2], "damaged"),
        "empty": (b"", "damaged"),
        "without a batch": ({name: b for name, b in cifar10_content.items() if name != test}, "test_batch"),
        "half a record": (cifar10_content | {test: cifar10_content[test][:-1]}, "not a number of records of 3073"),
        "an empty batch": (cifar10_content | {test: b""}, "has 0 bytes"),
        "an archive of something else": ({f"../{test}": cifar10_content[test]}, "data_batch_1"),
    }
    for what, (content, words) in damaged.items():
        if isinstance(content, dict):
            packed(path, content)
        else:
            path.write_bytes(content)
        with pytest.raises(ff.DataError, match=words) as caught:
            formats.read_records(path, formats.CIFAR10_TRAIN + formats.CIFAR10_TEST, formats.CIFAR10_BYTES)
        assert str(path) in str(caught.value), what


# MATLAB


def digits(count: int = 20) -> dict[str, np.ndarray]:
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, count)).astype(np.uint8)
    return {"X": images, "y": (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_the_label_ten_of_svhn_is_the_digit_zero(tmp_path: Path, compressed: bool, kind: type) -> None:
    path, content = tmp_path / "digits.mat", digits()
    savemat(path, content | {"y": content["y"].astype(kind)}, do_compression=compressed)
    records = formats.read_svhn(path)
    assert records.shape == (20, 3073)
    assert records[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0] * 2
    for i, c, h, w in ((0, 0, 0, 0), (7, 1, 2, 3), (19, 2, 31, 30)):
        assert records[i, 1 + 1024 * c + 32 * h + w] == content["X"][h, w, c, i]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": None}, r"arrays X and y are needed; here are \['y'\]"),
        ({"y": None}, r"here are \['X'\]"),
        ({"X": np.zeros((32, 32, 3, 20))}, "of float64"),
        ({"X": np.zeros((20, 3, 32, 32), np.uint8)}, "32 × 32 × 3 × n"),
        ({"X": np.zeros((32, 32, 3), np.uint8)}, "32 × 32 × 3 × n"),
        ({"y": np.ones((19, 1), np.uint8)}, "not one label per image"),
        ({"y": np.ones((1, 20), np.uint8)}, "not one label per image"),
        ({"y": {"a": "struct"}}, r"here are \['X'\]"),
        ({"y": np.array(["a"] * 20, object)}, r"here are \['X'\]"),
        ({"y": "a text"}, r"here are \['X'\]"),
        ({"y": np.ones((20, 1)) * 1j}, r"here are \['X'\]"),
        ({"y": np.full((20, 1), 11, np.uint8)}, "labels are 1 to 10; here are 11 to 11"),
        ({"y": np.zeros((20, 1), np.uint8)}, "labels are 1 to 10; here are 0 to 0"),
        ({"y": np.full((20, 1), np.nan)}, "labels are 1 to 10"),
        ({"y": np.full((20, 1), 1.5)}, "labels are 1 to 10"),
    ],
)
def test_a_matlab_file_of_something_else_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = tmp_path / "digits.mat"
    savemat(path, {name: value for name, value in (digits() | change).items() if value is not None})
    with pytest.raises(ff.DataError, match=words) as caught:
        formats.read_svhn(path)
    assert str(path) in str(caught.value)


def test_a_damaged_matlab_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "digits.mat"
    savemat(path, digits(), do_compression=True)
    whole = path.read_bytes()
    cuts = [0, 1, 100, 127, 128, 130, 136, 150, 1000, len(whole) // 2, len(whole) - 1]
    contents = [whole[:at] for at in cuts] + [b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(64), b"\xff" * 300]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ff.DataError, match=r"digits\.mat"):
            formats.read_svhn(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(ff.DataError, match=r"an element of \d+ bytes, \d+ follow"):
        formats.read_svhn(path)
    with pytest.raises(ff.DataError, match="cannot read"):
        formats.read_svhn(tmp_path / "absent.mat")


@pytest.mark.parametrize("compressed", [False, True])
def test_flipped_bytes_of_a_matlab_file_are_read_or_refused_and_nothing_else(tmp_path: Path, compressed: bool) -> None:
    path, draw, refused = tmp_path / "digits.mat", np.random.default_rng(0), 0
    savemat(path, digits(2), do_compression=compressed)
    whole = path.read_bytes()
    for at in [*range(120, 220), *range(len(whole) - 80, len(whole)), *draw.integers(0, len(whole), 50).tolist()]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << int(draw.integers(8)))]) + whole[at + 1 :])
        try:
            records = formats.read_svhn(path)
        except ff.DataError:
            refused += 1
        else:
            assert records.shape == (2, 3073)
            assert records[:, 0].max() <= 9
    assert refused > 40


def test_arrays_of_every_type_of_number_come_back_as_scipy_reads_them(tmp_path: Path) -> None:
    path, draw = tmp_path / "numbers.mat", np.random.default_rng(0)
    kinds = ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8", "i8", "u8"]
    content = {f"a_{kind}": (100 * draw.random((2, 3, 4))).astype(kind) for kind in kinds}
    savemat(path, content | {"one": np.uint8(7), "none": np.zeros((0, 3)), "a name of more than eight": "text"})
    found, expected = formats.read_matlab(path), loadmat(path)
    assert set(found) == {*content, "one", "none"}
    for name, values in found.items():
        assert values.dtype == expected[name].dtype
        assert np.array_equal(values, expected[name])


# Images


def test_grey_drawings_of_one_bit_come_back_as_black_and_white(as_png: Callable[[Tensor], bytes]) -> None:
    pixels = (torch.rand(13, 13, generator=torch.Generator().manual_seed(0)) < 0.5).to(torch.uint8)
    assert np.array_equal(formats.read_picture(as_png(pixels), "PNG", "L", 13, "here"), pixels.numpy() * 255)


def test_grey_photographs_get_three_equal_colours(as_jpeg: Callable[[np.ndarray], bytes]) -> None:
    picture = formats.read_picture(as_jpeg(np.full((8, 8), 77, np.uint8)), "JPEG", "RGB", 8, "here")
    assert picture.tolist() == [[[77, 77, 77]] * 8] * 8


def test_pictures_that_are_damaged_or_something_else_are_refused(
    as_png: Callable[[Tensor], bytes], as_jpeg: Callable[[np.ndarray], bytes]
) -> None:
    png = as_png(torch.ones(13, 13, dtype=torch.uint8))
    jpeg = as_jpeg(np.random.default_rng(0).integers(0, 256, (13, 13, 3)).astype(np.uint8))
    vast = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 1, 0, 0, 0, 0)
    bomb = png[:12] + vast + struct.pack(">I", zlib.crc32(vast)) + png[33:]
    refused = [
        (b"", "PNG", "not a PNG"),
        (b"GIF89a" + png, "PNG", "not a PNG"),
        (jpeg, "PNG", "not a PNG file"),
        (png, "JPEG", "not a JPEG file"),
        (png[:45], "PNG", "damaged"),
        (png[:40] + b"\xff" * 9 + png[49:], "PNG", "damaged"),
        (jpeg[: len(jpeg) // 2], "JPEG", "damaged"),
        (as_png(torch.ones(13, 14, dtype=torch.uint8)), "PNG", "images are 13 × 13 pixels; here 13 × 14"),
        (bomb, "PNG", "damaged"),
    ]
    for content, kind, words in refused:
        with pytest.raises(ff.DataError, match=words) as caught:
            formats.read_picture(content, kind, "L", 13, "here")  # type: ignore[arg-type]
        assert str(caught.value).startswith("here")


def test_enlarged_letters_keep_their_black_and_white() -> None:
    letters = np.zeros((2, 28, 28), np.uint8)
    letters[1] = 255
    assert formats.enlarged(list(letters)).tolist() == [[[0] * 32] * 32, [[255] * 32] * 32]
    half = np.zeros((28, 28), np.uint8)
    half[:, 14:] = 255
    (large,) = formats.enlarged([half])
    expected = np.asarray(Image.fromarray(half).resize((32, 32), Image.Resampling.LANCZOS))
    assert np.array_equal(large, expected)
    assert large[:, :12].max() == 0
    assert large[:, 20:].min() == 255


# Tiny ImageNet's archive


def test_photographs_are_in_the_order_of_class_and_number(
    tmp_path: Path, tiny_imagenet_content: Content, packed: Packed
) -> None:
    path = tmp_path / "tiny.zip"
    packed(path, tiny_imagenet_content)
    train, test = formats.photographs(path)
    assert [len(train), len(test)] == [180, 30]
    assert [name for _, name in train] == sorted(name for _, name in train)
    assert [int(member.split("_")[-1][:-5]) for member, _ in train[:12]] == list(range(12))
    assert test[1][0] == "tiny-imagenet-200/val/images/val_1.JPEG"
    assert f"val_1.JPEG\t{test[1][1]}\t" in tiny_imagenet_content[ANSWERS].decode()


def test_members_with_other_paths_are_never_read_nor_written(
    tmp_path: Path, tiny_imagenet_content: Content, packed: Packed
) -> None:
    path = tmp_path / "inside" / "tiny.zip"
    strange = [
        "../outside.JPEG",
        "/tmp/outside.JPEG",
        "tiny-imagenet-200/train/n00007919/images/../../../../n00007919_99.JPEG",
        "tiny-imagenet-200/train/n00007919/images/n00015838_1.JPEG",
        "tiny-imagenet-200/train/n00007919/images/n00007919_1.JPEG.exe",
        "__MACOSX/tiny-imagenet-200/train/n00007919/images/n00007919_1.JPEG",
    ]
    packed(path, tiny_imagenet_content | dict.fromkeys(strange, b"strange"))
    found = formats.photographs(path)
    assert [len(part) for part in found] == [180, 30]
    assert not {member for part in found for member, _ in part} & set(strange)
    assert list(tmp_path.iterdir()) == [path.parent]


def test_an_archive_of_photographs_that_does_not_fit_together_is_refused(
    tmp_path: Path, tiny_imagenet_content: Content, packed: Packed
) -> None:
    path, whole = tmp_path / "tiny.zip", tiny_imagenet_content
    lines = whole[ANSWERS].decode().splitlines(keepends=True)
    first = "tiny-imagenet-200/val/images/val_0.JPEG"
    wrong: dict[str, tuple[Content, str]] = {
        "no answers": ({name: content for name, content in whole.items() if name != ANSWERS}, "val_annotations"),
        "an answer too few": (whole | {ANSWERS: "".join(lines[1:]).encode()}, "to 29 images; there are 30"),
        "an image too few": ({name: content for name, content in whole.items() if name != first}, "there are 29"),
        "another class": (whole | {ANSWERS: whole[ANSWERS].replace(b"n00007919", b"n99999999")}, "not the same"),
        "no text": (whole | {ANSWERS: b"\xff\xfe\0"}, "to 0 images"),
        "nothing": ({ANSWERS: b""}, "0 classes"),
    }
    for what, (content, words) in wrong.items():
        packed(path, content)
        with pytest.raises(ff.DataError, match=words) as caught:
            formats.photographs(path)
        assert str(path) in str(caught.value), what
    for content in (b"", b"PK", gzip.compress(b"no zip")):
        path.write_bytes(content)
        with pytest.raises(ff.DataError, match="damaged"):
            formats.photographs(path)
    with pytest.raises(ff.DataError, match="cannot read"):
        formats.photographs(tmp_path / "absent.zip")


def test_a_member_with_another_checksum_is_an_error_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "one.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a member", b"its content")
    path.write_bytes(path.read_bytes().replace(b"its content", b"not content"))
    with formats.open_zip(path) as archive, pytest.raises(ff.DataError, match=r"one\.zip is damaged at a member"):
        formats.read_member(archive, "a member")
