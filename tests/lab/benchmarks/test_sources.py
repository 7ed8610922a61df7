"""Sources: raw data is found, checked, downloaded and read, or an error says which file, where, and what to do."""

import gzip
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import forgetfree as ff
from forgetfree.lab.benchmarks import downloads, sources

IMAGES = "train-images-idx3-ubyte.gz"
AsIdx = Callable[[Tensor], bytes]


@dataclass
class Server:
    """A real web server: what it serves, what it was asked for, and how often it is to fail first."""

    folder: Path
    address: str = ""
    asked: list[str] = field(default_factory=list)
    failures: int = 0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    served = Server(tmp_path / "served")
    served.folder.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path.rpartition("/")[2])
            if served.failures:
                served.failures -= 1
                self.send_error(503)
            else:
                super().do_GET()

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(downloads, "PAUSE", 0.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(served.folder))) as listening:
        served.address = f"http://127.0.0.1:{listening.server_port}/"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        listening.shutdown()
        thread.join()


@pytest.fixture
def published(miniature_mnist: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root; the miniature MNIST is on the server."""
    for path in (miniature_mnist / "mnist").iterdir():
        path.rename(server.folder / path.name)
    (miniature_mnist / "mnist").rmdir()
    row = replace(sources.SOURCES["mnist"], mirrors=(server.address,))
    monkeypatch.setitem(sources.SOURCES, "mnist", row)
    return miniature_mnist


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def states(root: Path) -> dict[str, str]:
    return {status.name: status.state for status in sources.check("mnist", root)}


# The table


@pytest.mark.parametrize("name", sources.SOURCES)
def test_every_source_is_complete(name: str) -> None:
    source = sources.SOURCES[name]
    assert source.title
    assert source.licence
    assert source.files
    assert source.mirrors
    assert all(re.fullmatch(r"https?://[^ ]+/", mirror) for mirror in source.mirrors)
    for original in source.files.values():
        assert re.fullmatch(r"[0-9a-f]{64}", original.sha256)
        assert original.size > 0
        assert original.rows > 0


def test_an_unknown_source_is_refused_with_the_known_ones() -> None:
    for call in (sources.locate, sources.check, sources.fetch):
        with pytest.raises(ff.InputError, match=r"'mnits'.*mnist"):
            call("mnits")


# The data root


def test_an_explicit_root_comes_before_the_environment_and_that_before_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sources.ENVIRONMENT, str(tmp_path / "environment"))
    assert sources.data_root(tmp_path / "given") == tmp_path / "given"
    assert sources.data_root(str(tmp_path / "given")) == tmp_path / "given"
    assert sources.data_root() == tmp_path / "environment"
    for empty in (lambda: monkeypatch.setenv(sources.ENVIRONMENT, ""), lambda: monkeypatch.delenv(sources.ENVIRONMENT)):
        empty()
        assert sources.data_root() == Path(pooch.os_cache("forgetfree"))


def test_a_root_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.data_root("~/data") == tmp_path / "data"


# Locating


def test_all_files_are_found_in_the_folder_of_their_source(miniature_mnist: Path) -> None:
    files = sources.locate("mnist")
    assert files == {name: miniature_mnist / "mnist" / name for name in sources.SOURCES["mnist"].files}
    assert files == sources.locate("mnist", miniature_mnist)


def test_missing_files_are_all_named_with_where_they_were_looked_for_and_what_to_do(miniature_mnist: Path) -> None:
    gone = [IMAGES, "t10k-labels-idx1-ubyte.gz"]
    for name in gone:
        (miniature_mnist / "mnist" / name).unlink()
    with pytest.raises(ff.DataError) as caught:
        sources.locate("mnist")
    text = str(caught.value)
    assert "2 of 4 files are missing" in text
    assert all(f"looked for {miniature_mnist / 'mnist' / name}" in text for name in gone)
    assert "train-labels" not in text
    assert "forgetfree data fetch mnist\n" in text
    assert f"unchanged, into {miniature_mnist / 'mnist'}" in text
    assert "FORGETFREE_DATA" in text
    assert isinstance(caught.value, OSError)


def test_the_command_in_an_error_names_a_root_that_is_not_the_default(miniature_mnist: Path, tmp_path: Path) -> None:
    with pytest.raises(ff.DataError, match=f"forgetfree data fetch mnist --data-root {tmp_path / 'elsewhere'}"):
        sources.locate("mnist", tmp_path / "elsewhere")


def test_a_wrong_digest_is_an_error_with_file_expected_found_and_what_to_do(miniature_mnist: Path) -> None:
    path = miniature_mnist / "mnist" / IMAGES
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ff.DataError) as caught:
        sources.locate("mnist")
    text = str(caught.value)
    assert str(path) in text
    assert sources.SOURCES["mnist"].files[IMAGES].sha256 in text
    assert sha256(path) in text
    assert "forgetfree data fetch mnist" in text


def test_a_digest_is_computed_once_and_again_when_the_file_looks_different(
    miniature_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    digest = sources._digest
    monkeypatch.setattr(sources, "_digest", lambda path: computed.append(path.name) or digest(path))
    sources.locate("mnist")
    assert sorted(computed) == sorted(sources.SOURCES["mnist"].files)
    sources.locate("mnist")
    assert len(computed) == 4
    os.utime(miniature_mnist / "mnist" / IMAGES, ns=(1, 1))
    sources.locate("mnist")
    assert computed[4:] == [IMAGES]


def test_check_does_not_trust_what_is_remembered(miniature_mnist: Path) -> None:
    path = miniature_mnist / "mnist" / IMAGES
    sources.locate("mnist")
    facts, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert states(miniature_mnist)[IMAGES] == "wrong digest"
    with pytest.raises(ff.DataError, match="not the original"):
        sources.locate("mnist")


def test_damaged_stamps_and_a_cache_that_cannot_be_written_only_cost_time(
    miniature_mnist: Path, tmp_path: Path
) -> None:
    sources.locate("mnist")
    stamps = list((tmp_path / "cache").rglob("*.json"))
    assert len(stamps) == 4
    for stamp, content in zip(stamps, ("", "[]", '{"file": 1}', "null"), strict=True):
        stamp.write_text(content)
    assert len(sources.locate("mnist")) == 4
    for stamp in stamps:
        stamp.unlink()
    stamps[0].parent.rmdir()
    stamps[0].parent.write_text("a file where the folder should be")
    assert len(sources.locate("mnist")) == 4


def test_check_tells_ok_missing_wrong_and_subset_apart(miniature_mnist: Path, as_idx: AsIdx) -> None:
    folder = miniature_mnist / "mnist"
    (folder / IMAGES).write_bytes(gzip.compress(as_idx(torch.zeros(7, 28, 28, dtype=torch.uint8))))
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(labels.read_bytes()[:-9])
    assert states(miniature_mnist) == {
        IMAGES: "subset",
        "train-labels-idx1-ubyte.gz": "missing",
        "t10k-images-idx3-ubyte.gz": "ok",
        "t10k-labels-idx1-ubyte.gz": "wrong digest",
    }
    assert [status.rows for status in sources.check("mnist")] == [7, None, None, None]
    assert all((status.found is None) == (status.state == "missing") for status in sources.check("mnist"))


def test_a_subset_is_taken_only_where_it_is_asked_for(miniature_mnist: Path, as_idx: AsIdx) -> None:
    path = miniature_mnist / "mnist" / IMAGES
    path.write_bytes(gzip.compress(as_idx(torch.zeros(7, 28, 28, dtype=torch.uint8))))
    with pytest.raises(ff.DataError, match="7 of 300 samples"):
        sources.locate("mnist")
    assert sources.locate("mnist", subset=True)[IMAGES] == path
    path.write_bytes(b"not a subset but rubbish")
    with pytest.raises(ff.DataError, match="not the original"):
        sources.locate("mnist", subset=True)


# Downloading, from a real server


def test_fetch_brings_every_file_into_its_place(published: Path, server: Server) -> None:
    heard: list[tuple[str, int, int]] = []
    files = sources.fetch("mnist", published, lambda *news: heard.append(news))
    assert set(states(published).values()) == {"ok"}
    assert sorted(path.name for path in (published / "mnist").iterdir()) == sorted(files)
    assert files == sources.locate("mnist")
    for name, original in sources.SOURCES["mnist"].files.items():
        done = [so_far for file, so_far, _ in heard if file == name]
        assert done == sorted(done)
        assert done[-1] == original.size
        assert {total for file, _, total in heard if file == name} == {original.size}
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in files.values())


def test_fetch_asks_only_for_what_is_missing_or_wrong(published: Path, server: Server) -> None:
    sources.fetch("mnist", published)
    server.asked.clear()
    sources.fetch("mnist", published)
    assert server.asked == []
    (published / "mnist" / IMAGES).write_bytes(b"wrong")
    (published / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    sources.fetch("mnist", published)
    assert server.asked == [IMAGES, "t10k-labels-idx1-ubyte.gz"]
    assert set(states(published).values()) == {"ok"}


def test_fetch_is_silent(published: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    logger = pooch.get_logger()
    logger.addHandler(caplog.handler)
    level = logger.level
    sources.fetch("mnist", published)
    logger.removeHandler(caplog.handler)
    assert caplog.records == []
    assert logger.level == level
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("broken", ["corrupted", "truncated", "not found"])
def test_a_bad_file_on_the_server_is_an_error_and_leaves_what_was_there(
    published: Path, server: Server, broken: str
) -> None:
    served = server.folder / IMAGES
    content = served.read_bytes()
    if broken == "not found":
        served.unlink()
    else:
        served.write_bytes(content[:-100] if broken == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    before = published / "mnist" / IMAGES
    before.parent.mkdir()
    before.write_bytes(b"what was there before")
    with pytest.raises(ff.DataError) as caught:
        sources.fetch("mnist", published)
    text = str(caught.value)
    assert "404" in text if broken == "not found" else "not the original" in text
    assert f"{server.address}{IMAGES}" in text
    assert all(str(published / "mnist" / name) in text for name in sources.SOURCES["mnist"].files)
    assert list(before.parent.iterdir()) == [before]
    assert before.read_bytes() == b"what was there before"
    assert server.asked == [IMAGES] * (1 if broken == "not found" else 2)


def test_the_next_mirror_is_tried_when_one_fails(
    published: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrors = (f"{server.address}nothing-here/", server.address)
    monkeypatch.setitem(sources.SOURCES, "mnist", replace(sources.SOURCES["mnist"], mirrors=mirrors))
    sources.fetch("mnist", published)
    assert set(states(published).values()) == {"ok"}


def test_a_server_that_is_busy_for_a_moment_is_asked_again(published: Path, server: Server) -> None:
    server.failures = 1
    sources.fetch("mnist", published)
    assert server.asked[:2] == [IMAGES, IMAGES]
    assert set(states(published).values()) == {"ok"}


def test_without_network_fetch_soon_ends_with_files_addresses_and_where_to_put_them(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrors = ("http://127.0.0.1:9/mnist/", "http://no-such-host.invalid/mnist/")
    monkeypatch.setitem(sources.SOURCES, "mnist", replace(sources.SOURCES["mnist"], mirrors=mirrors))
    start = time.monotonic()
    with pytest.raises(ff.DataError) as caught:
        sources.fetch("mnist", published)
    assert time.monotonic() - start < 10
    text = str(caught.value)
    assert all(f"{mirror}{IMAGES}: no connection" in text for mirror in mirrors)
    assert all(f"looked for {published / 'mnist' / name}" in text for name in sources.SOURCES["mnist"].files)
    assert f"unchanged, into {published / 'mnist'}" in text
    assert "forgetfree data check mnist" in text


def test_a_place_that_cannot_be_written_is_an_error_with_its_name(published: Path) -> None:
    (published / "mnist").write_text("a file where the folder should be")
    with pytest.raises(ff.DataError, match=f"cannot write {published / 'mnist'}"):
        sources.fetch("mnist", published)


# Reading


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    kind=st.sampled_from([torch.uint8, torch.int8, torch.int16, torch.int32, torch.float32, torch.float64]),
    compressed=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_idx_files_of_every_type_come_back_as_they_were_written(
    tmp_path: Path, as_idx: AsIdx, shape: list[int], kind: torch.dtype, compressed: bool, seed: int
) -> None:
    values = (1000 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(kind)
    path = tmp_path / "values"
    path.write_bytes(gzip.compress(as_idx(values)) if compressed else as_idx(values))
    back = sources.read_idx(path)
    assert back.dtype == kind
    assert torch.equal(back, values)


def test_a_damaged_idx_file_is_an_error_that_names_it(tmp_path: Path, as_idx: AsIdx) -> None:
    good = as_idx(torch.arange(24, dtype=torch.int16).reshape(2, 3, 4))
    packed = gzip.compress(good)
    damaged = {
        "nothing in it": (b"", "not an idx file"),
        "wrong magic": (b"\1\0" + good[2:], "not an idx file"),
        "unknown type": (good[:2] + b"\x0a" + good[3:], "not an idx file"),
        "a picture": (b"\x89PNG\r\n\x1a\n", "not an idx file"),
        "ends in the header": (good[:9], "ends within its header"),
        "too short": (good[:-1], "2 × 3 × 4 values, 48 bytes; 47 bytes follow"),
        "too long": (good + b"\0", "49 bytes follow"),
        "sizes too large": (good[:4] + b"\xff" * 12 + good[16:], "48 bytes follow"),
        "gzip cut off": (packed[: len(packed) // 2], "damaged"),
        "gzip header only": (packed[:5], "damaged"),
        "gzip with a flipped bit": (packed[:-5] + bytes([packed[-5] ^ 1]) + packed[-4:], "damaged"),
        "gzip with rubbish inside": (packed[:12] + b"\xff" * 20 + packed[32:], "damaged"),
    }
    for what, (content, words) in damaged.items():
        path = tmp_path / what
        path.write_bytes(content)
        with pytest.raises(ff.DataError, match=words) as caught:
            sources.read_idx(path)
        assert str(path) in str(caught.value), what
    with pytest.raises(ff.DataError, match=r"cannot read .*absent"):
        sources.read_idx(tmp_path / "absent")


def test_mnist_gives_images_and_labels_in_their_order(miniature_mnist: Path) -> None:
    train, train_labels, test, test_labels = sources.mnist()
    assert train.shape == (300, 28, 28)
    assert test.shape == (100, 28, 28)
    assert {part.dtype for part in (train, train_labels, test, test_labels)} == {torch.uint8}
    assert train_labels.tolist() == [i % 10 for i in range(300)]
    raw = gzip.decompress((miniature_mnist / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    assert test.numpy().tobytes() == raw


def test_images_without_one_label_each_are_refused(
    miniature_mnist: Path, as_idx: AsIdx, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    path = miniature_mnist / "mnist" / name
    path.write_bytes(as_idx(torch.zeros(99, dtype=torch.uint8)))
    row = sources.SOURCES["mnist"]
    files = {**row.files, name: replace(row.files[name], sha256=sha256(path))}
    monkeypatch.setitem(sources.SOURCES, "mnist", replace(row, files=files))
    with pytest.raises(ff.DataError, match="not one label per image"):
        sources.mnist()
