"""CIFAR-100 and Omniglot: read from their original formats, split into tasks as published or as documented."""

import os
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.utils import shuffle
from torch import Tensor

import forgetfree as ff
from forgetfree.lab.benchmarks import sources
from forgetfree.lab.benchmarks.cifar100_split import cifar100_split
from forgetfree.lab.benchmarks.cifar100_superclass import cifar100_superclass
from forgetfree.lab.benchmarks.omniglot_rotation import omniglot_rotation
from forgetfree.lab.benchmarks.stream import Benchmark
from forgetfree.testing import check_benchmark

with_data = pytest.mark.skipif(not os.environ.get(sources.ENVIRONMENT), reason="needs a data root in FORGETFREE_DATA")


def unpack(root: Path) -> Path:
    """Lay the miniature CIFAR-100 out as its archive unpacks."""
    archive = root / "cifar100" / "cifar-100-binary.tar.gz"
    with tarfile.open(archive) as content:
        for member in content.getmembers():  # not extractall: its filters are younger than Python 3.11.0
            (archive.parent / member.name).parent.mkdir(exist_ok=True)
            (archive.parent / member.name).write_bytes(content.extractfile(member).read())
    archive.unlink()
    return archive.parent / "cifar-100-binary"


# CIFAR-100


def test_cifar100_split_is_made_as_published(miniature_cifar100: Path) -> None:
    raw = np.frombuffer((unpack(miniature_cifar100) / "train.bin").read_bytes(), np.uint8).reshape(-1, 3074)
    benchmark = cifar100_split(seed=3)
    assert len(benchmark.tasks) == 10
    for t, task in enumerate(benchmark.tasks):
        mine = raw[raw[:, 1] // 10 == t]
        order = shuffle(np.arange(len(mine)), random_state=3)
        mean, deviation = (np.array(v).reshape(3, 1, 1) / 255 for v in ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)))
        ready = (mine[:, 2:].reshape(-1, 3, 32, 32) / 255 - mean) / deviation
        assert len(task.valid[1]) == 10
        for (inputs, labels), chosen in ((task.train, order[10:]), (task.valid, order[:10])):
            assert torch.allclose(inputs.double(), torch.from_numpy(ready[chosen]), atol=1e-5)
            assert labels.tolist() == (mine[chosen, 1] - 10 * t).tolist()
    assert benchmark.tasks[0].classes[:2] == ("apple", "aquarium_fish")
    assert benchmark.tasks[9].classes[-1] == "worm"


@pytest.mark.parametrize("scrambled", [False, True])
def test_a_superclass_holds_its_classes_and_each_pixel_where_it_belongs(
    miniature_cifar100: Path, scrambled: bool
) -> None:
    raw = np.frombuffer((unpack(miniature_cifar100) / "test.bin").read_bytes(), np.uint8).reshape(-1, 3074)
    benchmark = cifar100_superclass(scrambled=scrambled)
    assert len(benchmark.tasks) == 20
    assert ("pixels" in benchmark.notes) == scrambled
    exam, mine = benchmark.tests["cifar100_superclass 4"], raw[raw[:, 0] == 3]
    assert [(3, 23, 43, 63, 83)[label] for label in exam.labels.tolist()] == mine[:, 1].tolist()
    for c, h, w in ((0, 0, 0), (1, 2, 3), (2, 31, 30)):
        byte = 96 * h + 3 * w + c if scrambled else 1024 * c + 32 * h + w
        assert (exam.inputs[:, c, h, w] * 255).round().tolist() == mine[:, 2 + byte].tolist()


def test_wide_heads_limits_and_fewer_tasks(miniature_cifar100: Path) -> None:
    wide = cifar100_superclass(tasks=3, wide_heads=True, limit=4)
    assert [task.width for task in wide.tasks] == [100] * 3
    assert [len(wide.tasks[0].train[1]), len(wide.tests[wide.names[0]].labels)] == [4, 4]
    assert "4" in str(wide.notes["subset"])
    assert cifar100_split().tasks[0].width == 10
    for wrong in ({"tasks": 0}, {"tasks": 11}, {"limit": 0}):
        with pytest.raises(ff.InputError, match="whole number"):
            cifar100_split(**wrong)


def test_the_archive_and_what_it_unpacks_to_are_the_same(miniature_cifar100: Path) -> None:
    packed = sources.cifar100()
    folder = unpack(miniature_cifar100)
    assert sources.locate("cifar100") == {"cifar-100-binary.tar.gz": folder}
    assert [status.state for status in sources.check("cifar100")] == ["ok"]
    assert all(torch.equal(one, other) for one, other in zip(packed, sources.cifar100(), strict=True))


def test_a_damaged_or_missing_cifar100_is_an_error_that_says_what_to_do(miniature_cifar100: Path) -> None:
    folder = unpack(miniature_cifar100)
    content = bytearray((folder / "test.bin").read_bytes())
    content[5] ^= 1
    (folder / "test.bin").write_bytes(content)
    assert [status.state for status in sources.check("cifar100")] == ["wrong digest"]
    with pytest.raises(ff.DataError, match=r"test\.bin is not the original(.|\n)*forgetfree data fetch cifar100"):
        cifar100_split()
    (folder / "test.bin").unlink()
    with pytest.raises(ff.DataError, match=r"looked for .*cifar-100-binary\.tar\.gz(.|\n)*data fetch cifar100"):
        cifar100_split()


# Omniglot


def test_characters_are_in_the_order_of_their_names_and_rotations_share_a_label(miniature_omniglot: Path) -> None:
    benchmark = omniglot_rotation(tasks=2)
    names = [f"Angelic/character{i:02}" for i in range(1, 11)] + [f"Latin/character{i:02}" for i in range(1, 17)]
    assert benchmark.tasks[0].classes == tuple(names[:12])
    assert benchmark.tasks[1].classes == tuple(names[12:24])
    task, exam = benchmark.tasks[0], benchmark.tests["omniglot_rotation 1"]
    assert [len(task.train[1]), len(task.valid[1]), len(exam.labels)] == [672, 48, 240]
    first = task.train[0][:4, 0]
    assert all(torch.equal(first[k], torch.rot90(first[0], k, (0, 1))) for k in range(4))


def upright(inputs: Tensor) -> set[bytes]:
    """Each image in the one of its four rotations that comes first."""
    turned = [[torch.rot90(image[0], k, (0, 1)).numpy().tobytes() for k in range(4)] for image in inputs]
    return {min(four) for four in turned}


def test_only_the_released_split_lets_rotations_of_a_drawing_on_both_sides(miniature_omniglot: Path) -> None:
    for split, counts in (("drawing", [672, 48, 240]), ("released", [684, 36, 240])):
        benchmark = omniglot_rotation(tasks=1, split=split)
        task, exam = benchmark.tasks[0], benchmark.tests["omniglot_rotation 1"]
        assert [len(task.train[1]), len(task.valid[1]), len(exam.labels)] == counts
        learned, validated, tested = upright(task.train[0]), upright(task.valid[0]), upright(exam.inputs)
        assert bool(learned & tested) == (split == "released")
        assert bool(learned & validated) == (split == "released")
    check_benchmark(lambda seed: omniglot_rotation(tasks=2, split="released", seed=seed))
    with pytest.raises(ff.InputError, match="split is"):
        omniglot_rotation(tasks=1, split="other")  # type: ignore[arg-type]
    with pytest.raises(ff.DataError, match="3 tasks need 36 characters"):
        omniglot_rotation(tasks=3)


def test_drawings_are_decoded_once_also_by_many_at_a_time(
    miniature_omniglot: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decoded, reduced = [], sources.reduced
    monkeypatch.setattr(sources, "reduced", lambda images: decoded.append(1) or reduced(images))
    threads = [threading.Thread(target=sources.omniglot) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decoded) == 26
    (kept,) = (tmp_path / "cache" / ".decoded").glob("*.npy")
    whole = sources.omniglot().drawings.clone()
    kept.write_bytes(kept.read_bytes()[:1000])
    assert torch.equal(sources.omniglot().drawings, whole)
    assert len(decoded) == 52


def test_a_cache_that_cannot_be_written_only_costs_time(miniature_omniglot: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert sources.omniglot().drawings.shape == (26, 20, 32, 32)


def test_the_same_images_packed_anew_are_the_original_and_others_are_not(miniature_omniglot: Path) -> None:
    path = miniature_omniglot / "omniglot" / "images_evaluation.zip"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            archive.writestr(name, members[name])
    assert {status.state for status in sources.check("omniglot")} == {"ok"}
    assert len(sources.omniglot().names) == 26
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(members)[:-1]:
            archive.writestr(name, members[name])
    assert [status.state for status in sources.check("omniglot")] == ["ok", "subset"]
    with pytest.raises(ff.DataError, match=r"images_evaluation\.zip is a subset: 199 of 200"):
        sources.omniglot()


# Real data


@pytest.mark.data
@with_data
@pytest.mark.parametrize(
    ("make", "counts"), [(cifar100_split, [4750, 250, 1000]), (cifar100_superclass, [2375, 125, 500])]
)
def test_real_cifar100(make: Callable[..., Benchmark], counts: list[int]) -> None:
    data, benchmark = sources.cifar100(), make(seed=1)
    assert data.fine.bincount().tolist() == [500] * 100
    assert data.test_coarse.bincount().tolist() == [500] * 20
    for task in benchmark.tasks:
        exam = benchmark.tests[task.name]
        assert [len(task.train[1]), len(task.valid[1]), len(exam.labels)] == counts
    if make is cifar100_superclass:
        assert benchmark.tasks[0].classes == ("beaver", "dolphin", "otter", "seal", "whale")
        assert benchmark.tasks[19].classes == ("lawn_mower", "rocket", "streetcar", "tank", "tractor")
    check_benchmark(lambda seed: make(seed=seed, tasks=2), duplicates=0.01)  # CIFAR-100 holds some images twice


@pytest.mark.data
@with_data
def test_real_omniglot() -> None:
    assert {status.state for status in sources.check("omniglot")} == {"ok"}
    data = sources.omniglot()
    assert data.drawings.shape == (1623, 20, 32, 32)
    assert len({name.split("/")[0] for name in data.names}) == 50
    assert 0.9 < float(data.drawings.float().mean()) / 255 < 0.95
    check_benchmark(lambda seed: omniglot_rotation(seed=seed))
