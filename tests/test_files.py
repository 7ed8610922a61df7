"""Files are whole or not there: atomic writes, trees without pickle, damage and full disks told in words."""

import errno
import json
import math
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save as save_tensors
from torch import Tensor

import forgetfree as ff
from forgetfree.files import digest_of, load_tree, save_tree, write_atomically
from snapshots import assert_same, learner, snapshot, task

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = st.integers(-3, 3)
    size = math.prod(shape)
    made = (
        torch.tensor(draw(st.lists(values, min_size=size, max_size=size)))
        .reshape(shape)
        .to(draw(st.sampled_from(TYPES)))
    )
    return made.transpose(0, -1) if made.dim() > 1 and draw(st.booleans()) else made


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | tensors()
KEYS = st.text(max_size=3) | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text(max_size=2))
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.lists(inner, min_size=1, max_size=1).map(lambda one: one * 2)  # the same object twice
    ),
    max_leaves=12,
)
SOME_TREE = {"weights": torch.arange(12.0).reshape(3, 4), "name": "some", "numbers": [1, 2.5, None, (True, "x")]}


def same(one: Any, other: Any) -> bool:
    """Equal in type, structure and bits; NaN equals NaN and 0.0 does not equal -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return [*map(repr, one)] == [*map(repr, other)] and all(map(same, one.values(), other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_makes_folders_and_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert files_in(path.parent) == ["file"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_no_partial_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", refuse) if broken == "fsync" else monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(ff.FileError, match=r"cannot write .*file.*No space left.*before is untouched"):
        write_atomically(path, b"new")
    with pytest.raises(ff.FileError, match="Nothing was written"):
        write_atomically(tmp_path / "other", b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert files_in(tmp_path) == ["file"]


def test_an_interrupted_write_leaves_the_old_file_and_no_partial_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> NoReturn:
        raise KeyboardInterrupt

    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert files_in(tmp_path) == ["file"]


def test_a_place_that_cannot_be_written_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(ff.FileError, match="cannot write"):
        write_atomically(tmp_path / "file" / "below", b"new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ff.FileError, match="cannot write"):
        write_atomically(tmp_path / "folder", b"new")
    assert files_in(tmp_path) == ["file", "folder"]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES)
def test_a_tree_comes_back_as_it_went_in(tmp_path: Path, tree: Any) -> None:
    save_tree(tmp_path / "tree", "thing", tree)
    assert same(load_tree(tmp_path / "tree", "thing"), tree)


def test_what_needs_pickle_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ff.FileError, match="without pickle: a object"):
        save_tree(tmp_path / "tree", "thing", {"one": [object()]})
    assert files_in(tmp_path) == []


def test_a_tensor_and_its_views_can_be_saved_together(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    save_tree(tmp_path / "tree", "thing", [whole, whole[2:], whole.reshape(2, 3).T, whole])
    assert same(load_tree(tmp_path / "tree", "thing"), [whole, whole[2:], whole.reshape(2, 3).T, whole])


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_is_found(tmp_path: Path, at: float, flip: int) -> None:
    path = tmp_path / "tree"
    save_tree(path, "thing", SOME_TREE)
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= flip
    path.write_bytes(content)
    try:
        unharmed = same(load_tree(path, "thing"), SOME_TREE)  # the byte was padding
    except ff.FileError as error:
        unharmed = str(path) in str(error)
    assert unharmed


def test_a_truncated_file_is_found_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    save_tree(path, "thing", SOME_TREE)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ff.FileError, match=r"damaged|not a thing"):
            load_tree(path, "thing")


def test_a_changed_value_is_found_by_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    save_tree(path, "thing", SOME_TREE)
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ff.FileError, match="does not match its digest"):
        load_tree(path, "thing")


FOREIGN = {
    "nothing": b"",
    "text": b"hello, this is a text that has nothing to do with it",
    "pickle": pickle.dumps({"weights": [1, 2, 3]}),
    "safetensors of somebody else": save_tensors({"w": torch.zeros(3)}),
    "safetensors with other words": save_tensors({"w": torch.zeros(3)}, {"format": "pt"}),
    "a header without end": (2**62).to_bytes(8, "little") + b"{}",
    "json": json.dumps({"kind": "thing"}).encode(),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_file_is_told_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tree").write_bytes(content)
    with pytest.raises(ff.FileError, match=r"not a thing of forgetfree"):
        load_tree(tmp_path / "tree", "thing")


def test_a_file_of_another_kind_a_folder_and_no_file_are_told_in_words(tmp_path: Path) -> None:
    save_tree(tmp_path / "tree", "archive", SOME_TREE)
    with pytest.raises(ff.FileError, match="is a archive, not a thing"):
        load_tree(tmp_path / "tree", "thing")
    with pytest.raises(ff.FileError, match="cannot read"):
        load_tree(tmp_path, "thing")
    with pytest.raises(ff.FileError, match="No such file"):
        load_tree(tmp_path / "none", "thing")


def test_a_digest_sees_names_types_shapes_and_bits() -> None:
    base = torch.zeros(4)
    others = [
        {"v": base},
        {"w": base.double()},
        {"w": base.reshape(2, 2)},
        {"w": -base},
        {"w": base, "v": base},
        {"w": base.to(torch.int32)},
    ]
    assert len({digest_of({"w": base}), *map(digest_of, others)}) == 7
    assert digest_of({"w": base.reshape(2, 2).T}) == digest_of({"w": base.reshape(2, 2)})


def test_a_checkpoint_is_saved_and_resumed_without_any_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("pickle was used")

    class Refused:
        def __init__(self, *_: Any, **__: Any):
            refuse()

    for name in ("load", "loads", "dump", "dumps"):
        monkeypatch.setattr(pickle, name, refuse)
    for name in ("Unpickler", "Pickler"):
        monkeypatch.setattr(pickle, name, type(name, (Refused, getattr(pickle, name)), {}))
    for name in ("load", "save"):
        monkeypatch.setattr(torch, name, refuse)
        monkeypatch.setattr(torch.serialization, name, refuse)

    class Stop(Exception):
        pass

    def stop_after_two(event: ff.Progress) -> None:
        if event.finished and event.epoch == 2:
            raise Stop

    plain, stopped = learner(), learner()
    plain.learn(task("a"))
    with pytest.raises(Stop):
        stopped.learn(task("a"), checkpoint=tmp_path / "checkpoint", progress=stop_after_two)
    epochs = []
    stopped.learn(task("a"), checkpoint=tmp_path / "checkpoint", progress=lambda event: epochs.append(event.epoch))
    assert epochs == [3]
    assert_same(snapshot(stopped), snapshot(plain))


FULL_DISK = """
import resource, sys
from pathlib import Path

import torch

import forgetfree as ff
from snapshots import assert_same, learner, snapshot, task

torch.set_num_threads(1)
path = Path(sys.argv[1])
plain = learner()
plain.learn(task("a"))
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

def fill(learner, limit):
    before = snapshot(learner)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
    try:
        learner.learn(task("a"), checkpoint=path)
    except ff.FileError as error:
        print(error)
    else:
        raise SystemExit("the kernel did not refuse the write")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert_same(snapshot(learner), before)
    assert learner.tasks == {}

full = learner()
fill(full, 1000)
assert list(path.parent.iterdir()) == [], "a partial file is left"

class Stop(Exception):
    pass

def stop(event):
    raise Stop

try:
    full.learn(task("a"), checkpoint=path, progress=stop)
except Stop:
    pass
old = path.read_bytes()
fill(full, 1000)
assert path.read_bytes() == old, "the old checkpoint is not intact"
assert list(path.parent.iterdir()) == [path], "a partial file is left"

epochs = []
full.learn(task("a"), checkpoint=path, progress=lambda event: epochs.append(event.epoch))
assert epochs == [2, 3], epochs
assert_same(snapshot(full), snapshot(plain))
print("whole")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits on the size of a file are the kernel's")
def test_a_disk_that_is_full_for_real_is_told_in_words_and_nothing_is_lost(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FULL_DISK)
    (tmp_path / "disk").mkdir()
    done = subprocess.run(
        [sys.executable, script, tmp_path / "disk" / "checkpoint"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, second, last = done.stdout.splitlines()
    assert "File too large" in first
    assert "Nothing was written." in first
    assert "What was there before is untouched." in second
    assert last == "whole"


def test_many_who_write_to_one_path_leave_one_whole_file(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([number]) * (200_000 + number) for number in range(8)]
    write_atomically(path, contents[0])

    def write(content: bytes) -> None:
        for _ in range(12):
            write_atomically(path, content)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(write, contents))
    assert path.read_bytes() in contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_is_no_plain_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(ff.FileError, match=r"no plain file|names no file"):
            write_atomically(tmp_path / name, b"content")
    assert (tmp_path / "pipe").is_fifo()


def test_a_private_file_stays_private(tmp_path):
    path = tmp_path / "private"
    write_atomically(path, b"one")
    path.chmod(0o600)
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "link", tmp_path / "elsewhere" / "target"
    target.write_bytes(b"before")
    link.symlink_to(target)
    write_atomically(link, b"after")
    assert link.is_symlink()
    assert target.read_bytes() == b"after"


@pytest.mark.parametrize("plant", ["link", "pipe"])
def test_what_is_planted_under_the_name_of_the_temporary_file_is_not_written_to(tmp_path, plant):
    victim, planted = tmp_path / "victim", tmp_path / ".file.partial"
    victim.write_bytes(b"precious")
    planted.symlink_to(victim) if plant == "link" else os.mkfifo(planted)
    with pytest.raises(ff.FileError, match="Remove it"):
        write_atomically(tmp_path / "file", b"content")
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\udcff\ud800"])
def test_a_name_that_no_file_can_have_is_refused_in_a_sentence(tmp_path, name):
    with pytest.raises(ff.FileError, match="cannot write"):
        write_atomically(tmp_path / name, b"content")
