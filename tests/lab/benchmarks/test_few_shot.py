"""Few-shot streams: no class comes twice, the shots are the listed ones or drawn, and no test image is ever learned."""

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, default_collate

import forgetfree as ff
from forgetfree.lab.benchmarks import BENCHMARKS, sources
from forgetfree.lab.benchmarks.few_shot import Labelled, sessions
from forgetfree.lab.benchmarks.fscil_cifar100 import fscil_cifar100
from forgetfree.lab.benchmarks.fscil_cub200 import fscil_cub200
from forgetfree.lab.benchmarks.fscil_digits import fscil_digits
from forgetfree.lab.benchmarks.fscil_mini_imagenet import fscil_mini_imagenet
from forgetfree.lab.benchmarks.fscil_omniglot import fscil_omniglot
from forgetfree.lab.benchmarks.stream import Benchmark
from forgetfree.testing import check_benchmark

Content = dict[str, bytes]
Packed = Callable[[Path, Content], None]
Lists = Callable[[str, int], list[str]]
with_data = pytest.mark.skipif(not os.environ.get(sources.ENVIRONMENT), reason="needs a data root in FORGETFREE_DATA")
MINIATURES = {
    "fscil_digits": [],
    "fscil_iris": [],
    "fscil_omniglot": ["miniature_omniglot"],
    "fscil_cifar100": ["miniature_cifar100", "miniature_fscil_splits"],
    "fscil_mini_imagenet": ["miniature_mini_imagenet"],
    "fscil_cub200": ["miniature_cub200"],
}
"""What each stream is made of."""
SPLIT = ["fscil_cifar100", "fscil_mini_imagenet", "fscil_cub200"]
IMAGENET = {"mean": (0.485, 0.456, 0.406), "deviation": (0.229, 0.224, 0.225)}


@pytest.fixture
def miniature(request: pytest.FixtureRequest) -> Callable[..., Benchmark]:
    """The stream that the test's parameter names, on its miniature."""
    name = request.node.callspec.params["name"]
    for fixture in MINIATURES[name]:
        request.getfixturevalue(fixture)
    few = {"base": 10, "ways": 2, "tasks": 4} if name == "fscil_omniglot" else {}  # of 26 characters
    return lambda **settings: BENCHMARKS[name](**few | settings)


def pair(data: Any) -> tuple[Tensor, Tensor]:
    assert isinstance(data, tuple)
    return data


def prints(inputs: Tensor) -> list[bytes]:
    return [hashlib.sha256(row.contiguous().numpy().tobytes()).digest() for row in inputs]


def learned(benchmark: Benchmark) -> Iterator[bytes]:
    for task in benchmark.tasks:
        yield from prints(pair(task.train)[0])
        yield from prints(pair(task.valid)[0]) if task.valid else ()


def scaled(pixels: np.ndarray, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """Pixels [n, 3, h, w] as the published code normalises them."""
    return torch.from_numpy((pixels / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(deviation, (3, 1, 1))).float()


# Every stream


@pytest.mark.parametrize("name", MINIATURES)
def test_every_few_shot_stream_keeps_the_contract(name: str, miniature: Callable[..., Benchmark]) -> None:
    check_benchmark(lambda seed: miniature(seed=seed))


@pytest.mark.parametrize("name", SPLIT[:2])
def test_random_splits_keep_the_contract_too(name: str, miniature: Callable[..., Benchmark]) -> None:
    check_benchmark(lambda seed: miniature(seed=seed, split="random"))


def test_every_few_shot_stream_is_looked_at_here() -> None:
    assert set(MINIATURES) == {name for name in BENCHMARKS if name.startswith("fscil_")}


@pytest.mark.parametrize("name", MINIATURES)
def test_no_class_comes_twice_and_no_test_image_is_learned(name: str, miniature: Callable[..., Benchmark]) -> None:
    benchmark = miniature()
    classes = [label for task in benchmark.tasks for label in task.classes]
    assert len(set(classes)) == len(classes)
    assert benchmark.tasks[0].valid is not None
    assert all(task.valid is None for task in benchmark.tasks[1:])
    tested = {digest for exam in benchmark.tests.values() for digest in prints(exam.inputs)}
    everything = list(learned(benchmark))
    assert not tested & set(everything)
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize(
    ("name", "base", "ways", "tasks", "images"),
    [
        ("fscil_digits", 5, 1, 6, None),
        ("fscil_omniglot", 10, 2, 4, (14, 1, 5)),
        ("fscil_cifar100", 60, 5, 9, (19, 1, 2)),
        ("fscil_mini_imagenet", 6, 2, 9, (6, 1, 2)),
        ("fscil_cub200", 4, 1, 11, (5, 1, 1)),
    ],
)
def test_sessions_have_their_ways_and_shots(
    name: str,
    base: int,
    ways: int,
    tasks: int,
    images: tuple[int, int, int] | None,
    miniature: Callable[..., Benchmark],
) -> None:
    benchmark = miniature()
    assert [len(task.classes) for task in benchmark.tasks] == [base] + [ways] * (tasks - 1)
    assert all(pair(task.train)[1].bincount().tolist() == [5] * ways for task in benchmark.tasks[1:])
    first = benchmark.tasks[0]
    if images:
        parts = pair(first.train)[1], pair(first.valid)[1], benchmark.tests[first.name].labels
        assert [part.bincount().tolist() for part in parts] == [[count] * base for count in images]


@pytest.mark.parametrize("name", ["fscil_digits", "fscil_omniglot", *SPLIT])
def test_a_draw_changes_the_shots_and_nothing_else(name: str, miniature: Callable[..., Benchmark]) -> None:
    settings = {"split": "drawn_shots"} if name in SPLIT else {}
    one, other, again = (miniature(draw=draw, seed=3, **settings) for draw in (0, 1, 0))
    assert [task.classes for task in one.tasks] == [task.classes for task in other.tasks]
    assert all(torch.equal(one.tests[title].inputs, other.tests[title].inputs) for title in one.names)
    assert torch.equal(pair(one.tasks[0].train)[0], pair(other.tasks[0].train)[0])
    shots = [torch.cat([pair(task.train)[0] for task in made.tasks[1:]]) for made in (one, other, again)]
    assert set(prints(shots[0])) != set(prints(shots[1]))
    assert torch.equal(shots[0], shots[2])


@pytest.mark.usefixtures("miniature_cifar100")
def test_random_classes_are_drawn_by_the_seed() -> None:
    one, again, other = (fscil_cifar100(split="random", seed=seed) for seed in (1, 1, 2))
    assert [task.classes for task in one.tasks] == [task.classes for task in again.tasks]
    assert one.tasks[0].classes != other.tasks[0].classes
    assert {name for task in one.tasks for name in task.classes} == {
        name for task in other.tasks for name in task.classes
    }


@pytest.mark.parametrize("name", SPLIT)
def test_with_drawn_shots_classes_come_in_the_order_of_labels_as_published(
    name: str, miniature: Callable[..., Benchmark]
) -> None:
    listed, drawn, both = (miniature(split=split, seed=3) for split in ("topic", "drawn_shots", "random"))
    assert [task.classes for task in drawn.tasks] == [task.classes for task in listed.tasks]
    assert [task.classes for task in drawn.tasks] != [task.classes for task in both.tasks]
    assert torch.equal(pair(drawn.tasks[0].train)[0], pair(listed.tasks[0].train)[0])
    shots = [torch.cat([pair(task.train)[0] for task in made.tasks[1:]]) for made in (listed, drawn)]
    assert set(prints(shots[0])) != set(prints(shots[1]))


@pytest.mark.parametrize("name", SPLIT)
def test_later_sessions_are_augmented_where_that_is_asked_for(name: str, miniature: Callable[..., Benchmark]) -> None:
    plain, augmented = miniature(), miniature(augment_sessions=True)
    assert [task.augment is not None for task in plain.tasks[:3]] == [True, False, False]
    assert all(task.augment is not None for task in augmented.tasks)
    assert all(task.augment is None for task in miniature(augment_sessions=True, augmentation="none").tasks)


@pytest.mark.parametrize("name", SPLIT)
def test_wrong_settings_are_refused(name: str, miniature: Callable[..., Benchmark]) -> None:
    for wrong, words in (
        ({"split": "topics"}, "'drawn_shots' or 'random'; got 'topics'"),
        ({"draw": 1}, "TOPIC's lists have one. Got 1"),
        ({"draw": -1, "split": "random"}, "Got -1"),
        ({"tasks": 12}, "whole number"),
        ({"limit": 0}, "whole number"),
        ({"held_out": 1.0}, "held_out is the fraction"),
    ):
        with pytest.raises(ff.InputError, match=words):
            miniature(**wrong)


# One by one


def test_the_shots_of_cifar100_are_exactly_the_listed_images(
    miniature_cifar100: Path, miniature_fscil_splits: Path, listed_images: Lists
) -> None:
    benchmark, data = fscil_cifar100(), sources.cifar100()
    assert benchmark.tasks[0].classes[::59] == ("apple", "pine_tree")
    assert benchmark.tasks[8].classes == ("whale", "willow_tree", "wolf", "woman", "worm")
    for t, task in enumerate(benchmark.tasks[1:], 2):
        inputs, labels = pair(task.train)
        listed = torch.tensor([int(at) for at in listed_images("cifar100", t)])
        mean, deviation = (0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)
        assert torch.allclose(inputs, scaled(data.train[listed].numpy(), mean, deviation), atol=1e-5)
        assert torch.equal(labels + 60 + 5 * (t - 2), data.fine[listed])


def test_the_shots_of_mini_imagenet_are_exactly_the_listed_photographs(
    miniature_mini_imagenet: Path, mini_imagenet_content: Content, listed_images: Lists
) -> None:
    benchmark = fscil_mini_imagenet()
    assert list(benchmark.tasks[0].classes) == sorted(benchmark.tasks[0].classes, key=str)
    assert benchmark.notes == {}
    for t, task in enumerate(benchmark.tasks[1:], 2):
        files = [line.rpartition("/")[2] for line in listed_images("mini_imagenet", t)]
        contents = [mini_imagenet_content[f"mini-imagenet/images/{file}"] for file in files]
        pixels = np.stack([np.asarray(Image.open(io.BytesIO(content))) for content in contents])
        inputs, labels = pair(task.train)
        assert torch.allclose(inputs, scaled(pixels.transpose(0, 3, 1, 2), **IMAGENET), atol=1e-5)
        assert [task.classes[label] for label in labels] == [file[:9] for file in files]


def test_the_shots_of_cub200_are_listed_and_its_tests_are_the_official_ones(
    miniature_cub200: Path, cub200_content: Content, listed_images: Lists
) -> None:
    benchmark = fscil_cub200(tasks=2)
    task, base = benchmark.tasks[1], benchmark.tasks[0]
    assert base.classes[0] == "001.Species_1"
    assert task.classes == ("005.Species_5",)

    def middle(content: bytes) -> np.ndarray:
        """As torchvision does it: Resize(256), CenterCrop(224)."""
        image = Image.open(io.BytesIO(content))
        width, height = (256 * length // min(image.size) for length in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - 224) / 2), round((height - 224) / 2)
        return np.asarray(image.crop((left, top, left + 224, top + 224))).transpose(2, 0, 1)

    listed = [middle(cub200_content[line]) for line in listed_images("cub200", 2)]
    near = (pair(task.train)[0] - scaled(np.stack(listed), **IMAGENET)).abs().mean()
    assert float(near) < 0.05  # the longer edge may be rounded the other way
    exam = benchmark.tests[base.name]
    first = middle(cub200_content["CUB_200_2011/images/001.Species_1/Species_1_0000.jpg"])
    assert float((exam.inputs[0] - scaled(first[None], **IMAGENET)[0]).abs().mean()) < 0.05
    assert exam.labels.tolist() == list(range(4))


@pytest.mark.usefixtures("miniature_omniglot")
def test_omniglot_is_inked_and_a_character_keeps_its_drawings() -> None:
    data, benchmark = sources.omniglot(), fscil_omniglot(base=10, ways=2, tasks=3, seed=4)
    inputs, labels = pair(benchmark.tasks[2].train)
    assert inputs.shape == (10, 1, 32, 32)
    assert float(inputs.mean()) < 0.3
    for label, name in enumerate(benchmark.tasks[2].classes):
        drawings = set(prints(1 - data.drawings[data.names.index(str(name))].unsqueeze(1).float() / 255))
        exam = benchmark.tests[benchmark.tasks[2].name]
        assert set(prints(inputs[labels == label])) | set(prints(exam.inputs[exam.labels == label])) <= drawings
    with pytest.raises(ff.DataError, match="11 sessions of 200 and then 5 classes need 250 characters; there are 26"):
        fscil_omniglot()


@pytest.mark.usefixtures("miniature_cifar100", "miniature_fscil_splits")
def test_a_limit_is_for_each_class_and_named() -> None:
    benchmark = fscil_cifar100(limit=1)
    first = benchmark.tasks[0]
    assert len(pair(first.train)[1]) == len(pair(first.valid)[1]) == len(benchmark.tests[first.name].labels) == 60
    assert len(pair(benchmark.tasks[1].train)[1]) == 25
    assert benchmark.notes == {"subset": "1 images of each class in every part but the shots"}


# The common part, on images that are numbers


def numbered(of_each: int, classes: int = 6, start: int = 0) -> Labelled:
    """Image n holds nothing but start + n; classes take turns."""
    count = of_each * classes
    return Labelled(start + torch.arange(count), torch.arange(count) % classes)


def small(**other: Any) -> Benchmark:
    settings = {
        "order": range(6), "base": 2, "ways": 2, "shots": 3, "tasks": 3, "seed": 0, "prepare": Tensor.float,
    }  # fmt: skip
    data = {"train": numbered(40), "test": numbered(2, start=1000), "names": "abcdef"}
    return sessions("small", **data | settings | other)


@pytest.mark.parametrize(("held_out", "validated"), [(0.05, 2), (0.001, 1), (0.5, 20), (0.999, 39)])
def test_a_fraction_of_each_base_class_validates_at_least_one(held_out: float, validated: int) -> None:
    first = small(held_out=held_out).tasks[0]
    assert pair(first.valid)[1].bincount().tolist() == [validated] * 2
    assert pair(first.train)[1].bincount().tolist() == [40 - validated] * 2
    seen = torch.cat([pair(first.train)[0], pair(first.valid)[0]])
    assert sorted(seen.tolist()) == [n for n in range(240) if n % 6 < 2]


def test_classes_come_in_the_given_order_with_labels_of_their_own() -> None:
    benchmark = small(order=[5, 0, 3, 1, 2, 4])
    assert [task.classes for task in benchmark.tasks] == [("f", "a"), ("d", "b"), ("c", "e")]
    inputs, labels = pair(benchmark.tasks[1].train)
    assert (inputs % 6).tolist() == [[3, 1][label] for label in labels]
    assert benchmark.tests["small 3"].inputs.tolist() == [1002, 1008, 1004, 1010]
    assert benchmark.tests["small 3"].labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tasks": 4}, "session 4 needs 2 classes; 0 of 6 are left"),
        ({"tasks": 3, "ways": 3}, "session 3 needs 3 classes; 1 of 6 are left"),
        ({"order": [0, 1, 2, 3, 1, 4]}, "session 3 needs new classes; b is in session 1 already"),
        ({"shots": 41}, "session 2 needs 41 images of c; there are 40"),
        ({"train": numbered(1)}, "session 1 needs 2 images of a; there are 1"),
        ({"test": numbered(2, classes=5)}, "session 3 has no image of f to test"),
        ({"listed": [torch.arange(6)]}, "session 3 has no list"),
        ({"listed": [torch.tensor([2, 3, 8, 9, 14, 0])] * 2}, "session 2 lists an image of a, which is not one of"),
        ({"listed": [torch.tensor([2, 3, 8, 9, 14])] * 2}, "session 2 needs 3 images of d; its list has 2"),
        ({"listed": [torch.tensor([2, 2, 8, 3, 9, 15])] * 2}, "session 2 needs 3 images of c; its list has 2"),
    ],
)
def test_what_is_missing_is_an_error_that_names_the_session(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ff.DataError, match=f"small: {words}"):
        small(**wrong)


def test_large_base_sessions_come_one_by_one_and_are_the_same() -> None:
    held, streamed = small().tasks, small(in_memory=100).tasks
    data = streamed[0].train
    assert isinstance(data, Dataset)
    inputs, labels = default_collate([data[at] for at in range(len(data))])  # type: ignore[arg-type]
    assert torch.equal(inputs, pair(held[0].train)[0])
    assert torch.equal(labels, pair(held[0].train)[1])
    assert isinstance(streamed[0].valid, tuple)  # 2 of each class fit
    check_benchmark(lambda seed: small(seed=seed, in_memory=100))


# Files


def test_a_part_of_mini_imagenet_is_taken_and_named(
    miniature_mini_imagenet: Path, mini_imagenet_content: Content, packed: Packed
) -> None:
    path = miniature_mini_imagenet / "mini-imagenet" / "mini-imagenet.zip"
    names = sorted(mini_imagenet_content)
    packed(path, {name: mini_imagenet_content[name] for name in names if not name.endswith("2.jpg")})
    assert fscil_mini_imagenet().notes == {"subset": "mini-imagenet: 176 of 198 samples, not the original files"}
    with pytest.raises(ff.DataError, match="is a subset: 176 of 198 samples"):
        sources.mini_imagenet()
    last = f"n{7919 * 11:08}00000008.jpg"
    packed(path, {name: mini_imagenet_content[name] for name in names if not name.endswith(last)})
    fscil_mini_imagenet(tasks=3)
    with pytest.raises(ff.DataError, match=f"session 4 lacks 1 of 10 images, as {last}"):
        fscil_mini_imagenet(tasks=4)


def test_all_of_mini_imagenet_in_other_folders_is_as_good(
    miniature_mini_imagenet: Path, mini_imagenet_content: Content, packed: Packed
) -> None:
    before = fscil_mini_imagenet()
    path = miniature_mini_imagenet / "mini-imagenet" / "mini-imagenet.zip"
    packed(path, {f"{name[-20:-11]}/{name[-21:]}": content for name, content in mini_imagenet_content.items()})
    after = fscil_mini_imagenet()
    assert after.notes == {}
    assert {status.state for status in sources.check("mini-imagenet")} == {"ok"}
    assert torch.equal(pair(before.tasks[0].train)[0], pair(after.tasks[0].train)[0])
    packed(path, {"photographs/1.jpg": b""})
    with pytest.raises(ff.DataError, match=r"mini-imagenet\.zip is not the original"):
        fscil_mini_imagenet()


def test_damaged_photographs_are_named(
    miniature_mini_imagenet: Path,
    miniature_cub200: Path,
    mini_imagenet_content: Content,
    cub200_content: Content,
    packed: Packed,
) -> None:
    dropped, member = sorted(mini_imagenet_content)[:2]
    content = {**mini_imagenet_content, member: mini_imagenet_content[member][:300]}
    del content[dropped]
    packed(miniature_mini_imagenet / "mini-imagenet" / "mini-imagenet.zip", content)
    with pytest.raises(ff.DataError, match=f"{member} is not a JPEG file or a damaged one"):
        fscil_mini_imagenet()
    path, member = miniature_cub200 / "cub200" / "CUB_200_2011.tgz", "CUB_200_2011/images.txt"
    few = "".join(f"{line}\n" for line in cub200_content[member].decode().splitlines()[:-1]).encode()
    split = b"".join(cub200_content["CUB_200_2011/train_test_split.txt"].splitlines(keepends=True)[:-1])
    tables = {member: few, "CUB_200_2011/train_test_split.txt": split}
    packed(path, {**cub200_content, **tables})
    assert fscil_cub200(tasks=1).notes == {"subset": "cub200: 97 of 98 samples, not the original files"}
    with pytest.raises(ff.DataError, match=r"session 11 lacks 1 of 5 images, as 014\.Species_14/Species_14_0006\.jpg"):
        fscil_cub200()
    packed(path, {**{name: body for name, body in cub200_content.items() if "0002.jpg" not in name}, **tables})
    with pytest.raises(ff.DataError, match="14 of 83 photographs of its tables are missing"):
        fscil_cub200(tasks=1)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ff.DataError, match=r"CUB_200_2011\.tgz is not the original of cub200"):
        fscil_cub200(tasks=1)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("fscil_cifar100", "fscil-splits/cifar100/session_7.txt"),
        ("fscil_mini_imagenet", "mini-imagenet/mini-imagenet.zip"),
        ("fscil_mini_imagenet", "fscil-splits/mini_imagenet/test.txt"),
        ("fscil_cub200", "cub200/CUB_200_2011.tgz"),
    ],
)
def test_a_missing_file_is_an_error_that_says_what_to_do(
    name: str, file: str, miniature: Callable[..., Benchmark]
) -> None:
    (sources.data_root() / file).unlink()
    source = file.partition("/")[0]
    with pytest.raises(ff.DataError, match=rf"looked for .*{file}(.|\n)*forgetfree data fetch {source}"):
        miniature()


def test_a_changed_list_is_refused(miniature_cifar100: Path, miniature_fscil_splits: Path) -> None:
    path = miniature_fscil_splits / "fscil-splits" / "cifar100" / "session_3.txt"
    path.write_text(path.read_text().replace("1", "2"))
    with pytest.raises(ff.DataError, match=r"session_3\.txt is not the original of fscil-splits"):
        fscil_cifar100()
    fscil_cifar100(split="random")


# Real data


@pytest.mark.data
@with_data
def test_real_cifar100_in_sessions() -> None:
    benchmark, data = fscil_cifar100(), sources.cifar100()
    listed = sources.locate("fscil-splits")["cifar100/session_1.txt"].read_text().split()
    assert sorted(map(int, listed)) == (data.fine < 60).nonzero().flatten().tolist()
    assert [len(pair(benchmark.tasks[0].train)[1]), len(pair(benchmark.tasks[0].valid)[1])] == [28_500, 1_500]
    assert [len(exam.labels) for exam in benchmark.tests.values()] == [6_000] + [500] * 8
    for t, task in enumerate(benchmark.tasks[1:], 2):
        chosen = sources.locate("fscil-splits")[f"cifar100/session_{t}.txt"].read_text().split()
        raw = data.train[torch.tensor([int(at) for at in chosen])].numpy()
        expected = scaled(raw, (0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023))
        assert torch.allclose(pair(task.train)[0], expected, atol=1e-5)
    check_benchmark(lambda seed: fscil_cifar100(seed=seed, limit=20), duplicates=0.02)


@pytest.mark.data
@with_data
def test_real_mini_imagenet_in_sessions() -> None:
    benchmark, data = fscil_mini_imagenet(), sources.mini_imagenet(subset=True)
    assert len({name for task in benchmark.tasks for name in task.classes}) == 100
    (state,) = {status.state for status in sources.check("mini-imagenet")}
    assert ("subset" in benchmark.notes) == (state == "subset")
    lists = sources.locate("fscil-splits")
    base = {line.rpartition("/")[2] for line in lists["mini_imagenet/session_1.txt"].read_text().split()}
    names = {str(name) for name in benchmark.tasks[0].classes}
    assert {file for file in data.files if file[:9] in names} <= base
    with zipfile.ZipFile(sources.locate("mini-imagenet", subset=True)["mini-imagenet.zip"]) as archive:
        members = {member.rpartition("/")[2]: member for member in archive.namelist()}
        line = lists["mini_imagenet/session_9.txt"].read_text().split()[-1]
        pixels = np.asarray(Image.open(io.BytesIO(archive.read(members[line.rpartition("/")[2]]))).convert("RGB"))
    if pixels.shape == (84, 84, 3):
        expected = scaled(pixels.transpose(2, 0, 1)[None], **IMAGENET)[0]
        assert torch.allclose(pair(benchmark.tasks[8].train)[0][-1], expected, atol=1e-5)
    check_benchmark(lambda seed: fscil_mini_imagenet(seed=seed, limit=20), duplicates=0.02)


@pytest.mark.data
@with_data
def test_real_omniglot_in_sessions() -> None:
    benchmark = fscil_omniglot(seed=1)
    assert [len(task.classes) for task in benchmark.tasks] == [200] + [5] * 10
    check_benchmark(lambda seed: fscil_omniglot(seed=seed), duplicates=0.01)


def test_digits_in_sessions() -> None:
    benchmark = fscil_digits(shots=2)
    assert [task.classes for task in benchmark.tasks] == [(0, 1, 2, 3, 4), (5,), (6,), (7,), (8,), (9,)]
    assert all(len(pair(task.train)[1]) == 2 for task in benchmark.tasks[1:])
    assert sum(len(exam.labels) for exam in benchmark.tests.values()) == 449
