"""5-Datasets and TinyImageNet: made as published, and honest about data that is not the published one."""

import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import loadmat, savemat
from sklearn.utils import shuffle
from torch import Tensor

import forgetfree as ff
from forgetfree.lab.benchmarks import sources
from forgetfree.lab.benchmarks.five_datasets import five_datasets
from forgetfree.lab.benchmarks.tiny_imagenet import tiny_imagenet
from forgetfree.testing import check_benchmark

Content = dict[str, bytes]
Packed = Callable[[Path, Content], None]
with_data = pytest.mark.skipif(not os.environ.get(sources.ENVIRONMENT), reason="needs a data root in FORGETFREE_DATA")
SIZES = [(300, 100), (300, 100), (200, 100), (200, 100), (160, 40)]
STATISTICS = [
    ([125.3 / 255, 123.0 / 255, 113.9 / 255], [63.0 / 255, 62.1 / 255, 66.7 / 255]),
    ([0.1], [0.2752]),
    ([0.4377, 0.4438, 0.4728], [0.198, 0.201, 0.197]),
    ([0.2190], [0.3318]),
    ([0.4254], [0.4501]),
]


@pytest.fixture
def five(
    miniature_cifar10: Path,
    miniature_mnist: Path,
    miniature_svhn: Path,
    miniature_fashion_mnist: Path,
    miniature_notmnist: Path,
) -> Path:
    """A data root with all five in miniature."""
    return miniature_mnist


# 5-Datasets


@pytest.mark.usefixtures("five")
def test_five_datasets_are_read_split_and_normalised_as_published() -> None:
    benchmark = five_datasets(seed=3)
    read = [
        sources.cifar10(),
        sources.mnist(),
        sources.svhn(),
        sources.fashion_mnist(),
        sources.notmnist(),
    ]
    assert len(benchmark.tasks) == 5
    assert "subset" not in benchmark.notes
    for task, data, (learned, tested), (mean, deviation) in zip(benchmark.tasks, read, SIZES, STATISTICS, strict=True):
        assert [len(data.train), len(data.test)] == [learned, tested]
        exam, order = benchmark.tests[task.name], shuffle(np.arange(learned), random_state=3)
        held_out = int(0.05 * learned)
        for (inputs, labels), images, answers in (
            (task.valid, data.train[order[:held_out]], data.train_labels[order[:held_out]]),
            (task.train, data.train[order[held_out:]], data.train_labels[order[held_out:]]),
            ((exam.inputs, exam.labels), data.test, data.test_labels),
        ):
            raw = images.numpy()
            if raw.ndim == 3:
                edge = (32 - raw.shape[1]) // 2
                raw = np.repeat(np.pad(raw, ((0, 0), (edge, edge), (edge, edge)))[:, None], 3, axis=1)
            ready = (raw / 255 - np.array(mean).reshape(-1, 1, 1)) / np.array(deviation).reshape(-1, 1, 1)
            assert inputs.shape[1:] == (3, 32, 32)
            assert torch.allclose(inputs.double(), torch.from_numpy(ready), atol=1e-5)
            assert torch.equal(labels, answers.long())


@pytest.mark.usefixtures("five")
def test_each_of_the_five_has_ten_classes_of_its_own_in_the_published_order() -> None:
    classes = [task.classes for task in five_datasets().tasks]
    assert [names[0] for names in classes] == ["airplane", "mnist 0", "svhn 0", "t-shirt", "A"]
    assert len({name for names in classes for name in names}) == 50


def test_cifar10_holds_its_batches_in_their_order(miniature_cifar10: Path, cifar10_content: Content) -> None:
    data = sources.cifar10()
    names = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    raw = np.frombuffer(b"".join(cifar10_content[name] for name in names), np.uint8).reshape(-1, 3073)
    assert torch.equal(data.train.flatten(1), torch.tensor(raw[:, 1:]))
    assert torch.equal(data.train_labels, torch.tensor(raw[:, 0]))
    assert data.test.shape == (100, 3, 32, 32)


def test_svhn_holds_its_digits_upright(miniature_svhn: Path) -> None:
    raw = loadmat(miniature_svhn / "svhn" / "test_32x32.mat")["X"]
    assert torch.equal(sources.svhn().test, torch.tensor(raw.transpose(3, 2, 0, 1)))
    assert sources.svhn().test_labels[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_the_letters_are_parted_without_chance_and_the_notes_say_how(five: Path) -> None:
    data, images = sources.notmnist(), sources.read_idx(five / "notmnist" / "t10k-images-idx3-ubyte.gz")
    assert [data.train.shape, data.test.shape] == [(160, 32, 32), (40, 32, 32)]
    assert torch.equal(torch.cat([data.train_labels, data.test_labels]), (torch.arange(200) % 10).to(torch.uint8))
    assert torch.equal(data.test, torch.from_numpy(sources.enlarged(list(images.numpy()[160:]))))
    assert five_datasets().notes == {
        "notmnist": "160 letters to learn and validate, 40 to test; the released code has 16853 and 1873 others"
    }
    assert five_datasets(tasks=4).notes == {}


def test_fewer_tasks_need_fewer_data_sets_and_a_limit_says_so(five: Path) -> None:
    for name in ("svhn", "fashion-mnist", "notmnist"):
        for path in (five / name).iterdir():
            path.unlink()
    whole, part = five_datasets(tasks=2), five_datasets(tasks=2, limit=12)
    assert part.notes == {"subset": "the first 12 images of each part of a task"}
    for all_of_it, task in zip(whole.tasks, part.tasks, strict=True):
        for full, limited in ((all_of_it.train, task.train), (all_of_it.valid, task.valid)):
            assert torch.equal(full[0][:12], limited[0])
            assert torch.equal(full[1][:12], limited[1])
        assert torch.equal(whole.tests[task.name].inputs[:12], part.tests[task.name].inputs)
    with pytest.raises(ff.DataError, match=r"looked for .*svhn/train_32x32\.mat(.|\n)*forgetfree data fetch svhn"):
        five_datasets(tasks=3)
    for wrong in ({"tasks": 0}, {"tasks": 6}, {"limit": 0}):
        with pytest.raises(ff.InputError, match="whole number"):
            five_datasets(**wrong)


def test_a_subset_is_taken_and_named_with_how_many_of_how_many(
    five: Path, cifar10_content: Content, packed: Packed
) -> None:
    fewer = {name: content[: 3073 * 40] for name, content in cifar10_content.items()}
    packed(five / "cifar10" / "cifar-10-binary.tar.gz", fewer)
    digits = five / "svhn" / "train_32x32.mat"
    content = loadmat(digits)
    savemat(digits, {"X": content["X"][..., :150], "y": content["y"][:150]})
    benchmark = five_datasets()
    assert benchmark.notes["subset"] == (
        "cifar10: 240 of 400 samples, not the original files; svhn: 250 of 300 samples, not the original files"
    )
    assert five_datasets(limit=5).notes["subset"] == f"{benchmark.notes['subset']}; " + (
        "the first 5 images of each part of a task"
    )
    assert [len(task.train[1]) + len(task.valid[1]) for task in benchmark.tasks] == [200, 300, 150, 200, 160]
    for read in (sources.cifar10, sources.svhn):
        with pytest.raises(ff.DataError, match=r"is a subset: \d+ of \d+ samples"):
            read()


def test_as_many_other_samples_as_published_are_no_subset(five: Path) -> None:
    digits = five / "svhn" / "train_32x32.mat"
    content = loadmat(digits)
    savemat(digits, {"X": content["X"][..., ::-1], "y": content["y"][::-1]})
    with pytest.raises(ff.DataError, match=r"train_32x32\.mat is not the original of svhn"):
        five_datasets()


def test_a_subset_with_labels_of_no_class_is_refused(five: Path, cifar10_content: Content, packed: Packed) -> None:
    test = "cifar-10-batches-bin/test_batch.bin"
    strange = cifar10_content | {test: b"\x0a" + cifar10_content[test][1 : 3073 * 10]}
    packed(five / "cifar10" / "cifar-10-binary.tar.gz", strange)
    with pytest.raises(ff.DataError, match=r"cifar-10-binary\.tar\.gz: labels are 0 to 9; here are 0 to 10"):
        five_datasets()


def test_what_was_decoded_is_not_decoded_again(five: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = sources.svhn()
    kept = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "cache" / ".decoded").glob("*.npy"))
    assert kept == ["svhn-test_32x32.mat", "svhn-train_32x32.mat"]
    assert not list((tmp_path / "cache" / ".decoded").glob("*.partial"))
    monkeypatch.setattr(sources, "read_svhn", lambda path: pytest.fail("decoded again"))
    assert all(torch.equal(one, other) for one, other in zip(first, sources.svhn(), strict=True))


# TinyImageNet


def test_classes_are_drawn_by_the_seed_as_python_shuffles(miniature_tiny_imagenet: Path) -> None:
    names = sources.tiny_imagenet().names
    assert list(names) == sorted(names)
    for seed in (0, 7):
        order = list(range(15))
        random.Random(seed).shuffle(order)
        expected = [tuple(names[label] for label in order[5 * t : 5 * t + 5]) for t in range(3)]
        assert [task.classes for task in tiny_imagenet(tasks=3, seed=seed).tasks] == expected


def decoded(content: bytes) -> Tensor:
    """As the released code reads an image: three colours, scaled, normalised as ImageNet."""
    from io import BytesIO

    from PIL import Image

    pixels = torch.from_numpy(np.array(Image.open(BytesIO(content)).convert("RGB"))).permute(2, 0, 1) / 255
    return (pixels - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / (
        torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    )


def test_every_image_is_in_one_part_of_the_task_of_its_class(
    miniature_tiny_imagenet: Path, tiny_imagenet_content: Content
) -> None:
    benchmark = tiny_imagenet(tasks=3, seed=2)
    answers = dict(
        line.split("\t")[:2]
        for line in tiny_imagenet_content["tiny-imagenet-200/val/val_annotations.txt"].decode().splitlines()
    )
    expected: dict[str, dict[str, list[Tensor]]] = {}
    for member, content in tiny_imagenet_content.items():
        if "/train/" in member:
            expected.setdefault(member.split("/")[2], {}).setdefault("train", []).append(decoded(content))
        elif "/val/images/" in member:
            name = answers[member.rpartition("/")[2]]
            expected.setdefault(name, {}).setdefault("test", []).append(decoded(content))
    for task in benchmark.tasks:
        exam = benchmark.tests[task.name]
        assert [len(task.train[1]), len(task.valid[1]), len(exam.labels)] == [55, 5, 10]
        assert task.train[1][:5].tolist() == [0, 1, 2, 3, 4]
        for label, name in enumerate(task.classes):
            learned = torch.cat([inputs[labels == label] for inputs, labels in (task.train, task.valid)])
            assert same_images(learned, torch.stack(expected[str(name)]["train"]))
            assert same_images(exam.inputs[exam.labels == label], torch.stack(expected[str(name)]["test"]))


def same_images(ours: Tensor, theirs: Tensor) -> bool:
    """In any order."""
    near = torch.cdist(ours.flatten(1), theirs.flatten(1)) < 0.05
    return len(ours) == len(theirs) and bool((near.sum(0) == 1).all() and (near.sum(1) == 1).all())


def test_training_images_are_cropped_and_mirrored_where_that_is_asked_for(miniature_tiny_imagenet: Path) -> None:
    plain, cropped = (tiny_imagenet(tasks=1, augmentation=name).tasks[0] for name in ("none", "crop_and_flip"))
    assert plain.augment is None
    assert cropped.augment is not None
    images = cropped.train[0]
    assert torch.equal(images, plain.train[0])
    changed = cropped.augment(images, torch.Generator().manual_seed(0))
    assert changed.shape == images.shape
    assert not torch.equal(changed, images)


def test_wide_heads_limits_and_a_part_of_the_classes(miniature_tiny_imagenet: Path) -> None:
    wide = tiny_imagenet(tasks=2, wide_heads=True, limit=10)
    assert [task.width for task in wide.tasks] == [200, 200]
    assert wide.notes == {"subset": "10 images of each part of a task"}
    assert wide.tasks[0].train[1].tolist() == [0, 1, 2, 3, 4] * 2
    assert tiny_imagenet(tasks=1).tasks[0].width == 5
    assert tiny_imagenet(tasks=1).notes == {}
    with pytest.raises(ff.DataError, match="40 tasks need 200 classes; there are 15"):
        tiny_imagenet()
    for wrong in ({"tasks": 0}, {"tasks": 41}, {"limit": 0}):
        with pytest.raises(ff.InputError, match="whole number"):
            tiny_imagenet(**wrong)


def test_a_subset_of_the_photographs_is_taken_and_named(
    miniature_tiny_imagenet: Path, tiny_imagenet_content: Content, packed: Packed
) -> None:
    path = miniature_tiny_imagenet / "tiny-imagenet" / "tiny-imagenet-200.zip"
    fewer = [name for name in tiny_imagenet_content if "/train/" not in name or not name.endswith("_11.JPEG")]
    packed(path, {name: tiny_imagenet_content[name] for name in fewer})
    benchmark = tiny_imagenet(tasks=3)
    assert benchmark.notes == {"subset": "tiny-imagenet: 195 of 210 samples, not the original files"}
    with pytest.raises(ff.DataError, match="is a subset: 195 of 210 samples"):
        sources.tiny_imagenet()
    few = {
        name: content
        for name, content in tiny_imagenet_content.items()
        if not ("/n00015838_" in name and name.endswith(("_3.JPEG", "_4.JPEG", "_5.JPEG")))
    }
    packed(path, few)
    with pytest.raises(ff.DataError, match="a class needs 10 images, so that one validates; n00015838 has 9"):
        tiny_imagenet(tasks=3)


@pytest.mark.parametrize(
    ("pixels", "words"), [((64, 64), "damaged at|damaged"), ((32, 32, 3), "64 × 64 pixels; here 32 × 32")]
)
def test_a_damaged_photograph_is_an_error_that_names_it(
    miniature_tiny_imagenet: Path,
    tiny_imagenet_content: Content,
    packed: Packed,
    as_jpeg: Callable[[np.ndarray], bytes],
    pixels: tuple[int, ...],
    words: str,
) -> None:
    path = miniature_tiny_imagenet / "tiny-imagenet" / "tiny-imagenet-200.zip"
    member, dropped = sorted(name for name in tiny_imagenet_content if "/train/" in name)[:2]
    content = as_jpeg(np.zeros(pixels, np.uint8))
    strange = tiny_imagenet_content | {member: content[: len(content) // 2] if len(pixels) == 2 else content}
    del strange[dropped]
    packed(path, strange)
    with pytest.raises(ff.DataError, match=words) as caught:
        tiny_imagenet(tasks=1)
    assert f"{path}: {member}" in str(caught.value)


def test_a_missing_archive_is_an_error_that_says_what_to_do(miniature_tiny_imagenet: Path) -> None:
    (miniature_tiny_imagenet / "tiny-imagenet" / "tiny-imagenet-200.zip").unlink()
    with pytest.raises(ff.DataError, match=r"looked for .*tiny-imagenet-200\.zip(.|\n)*data fetch tiny-imagenet"):
        tiny_imagenet()


# Real data


@pytest.mark.data
@with_data
def test_real_five_datasets() -> None:
    benchmark = five_datasets(seed=1)
    assert len(benchmark.tasks) == 5
    for task in benchmark.tasks:
        inputs, labels = task.train
        assert inputs.shape[1:] == (3, 32, 32)
        assert set(labels.tolist()) == set(range(10))
        assert float(inputs.mean()) == pytest.approx(0, abs=0.1)  # each by its own mean and deviation
        assert float(inputs.std()) == pytest.approx(1, abs=0.05)
    letters = benchmark.tasks[4]
    assert len(letters.train[1]) + len(letters.valid[1]) == 8_000
    assert len(benchmark.tests[letters.name].labels) == 2_000
    lacking = [
        name for name in ("cifar10", "svhn", "fashion-mnist") if {s.state for s in sources.check(name)} != {"ok"}
    ]
    assert all(f"{name}: " in str(benchmark.notes.get("subset", "")) for name in lacking)
    # notMNIST holds many letters twice
    check_benchmark(lambda seed: five_datasets(seed=seed, limit=2000), duplicates=0.2)


@pytest.mark.data
@with_data
def test_real_tiny_imagenet() -> None:
    images, names = sources.tiny_imagenet(subset=True)
    assert len(names) == 200
    assert images.train.shape[1:] == (3, 64, 64)
    benchmark = tiny_imagenet(seed=1)
    assert len(benchmark.tasks) == 40
    assert len({name for task in benchmark.tasks for name in task.classes}) == 200
    (state,) = {status.state for status in sources.check("tiny-imagenet")}
    assert ("subset" in benchmark.notes) == (state == "subset")
    with zipfile.ZipFile(sources.locate("tiny-imagenet", subset=True)["tiny-imagenet-200.zip"]) as archive:
        wanted = archive.read("tiny-imagenet-200/wnids.txt").decode().split()
    assert set(names) == set(wanted)
    check_benchmark(lambda seed: tiny_imagenet(seed=seed, tasks=4), duplicates=0.02)
