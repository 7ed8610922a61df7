"""A slice of the soak (`make soak` runs all of it), and what it once found, each by itself."""

import gzip
import io
import json
import math
import os
import random
import tarfile
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import forgetfree as ff
from forgetfree import archive, manifests
from forgetfree.files import load_tree, read_plain, save_tree, unflatten
from forgetfree.lab import cli
from forgetfree.lab.backbones import BACKBONES
from forgetfree.lab.benchmarks import formats
from forgetfree.lab.following import Follower
from forgetfree.lab.records import RunFolder
from forgetfree.training.checkpoint import CHECKPOINT
from made_up_runs import write_events, write_run
from soak import archives, checkpoints, folders, kills, recalled
from soak.mutants import mutated

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ARCHIVES = Path(__file__).parent / "before" / "archives"


@pytest.mark.parametrize("number", range(0, 120, archives.SIGNED))
def test_an_archive_changed_in_one_field_and_signed_again_is_refused_or_found_out(number: int, tmp_path: Path) -> None:
    archives.attempt(number, tmp_path / "mutant.ticket")


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    for number in range(1, 181, archives.SIGNED):
        archives.attempt(number, tmp_path / "mutant.ticket")


def test_a_mutated_checkpoint_is_refused_or_gone_on_from(tmp_path: Path) -> None:
    for number in range(8):
        checkpoints.attempt(number, tmp_path / "task.safetensors")


QUICK = (0, 1, 4)
"""Changed folders that are reported or watched; figures and pages take longer."""


def test_commands_end_well_whatever_is_in_a_run_folder(tmp_path: Path) -> None:
    folders.lay_out(tmp_path / "runs")
    for number in QUICK:
        folders.attempt(number, tmp_path / "runs")


def test_a_killed_save_or_report_leaves_what_was_there(tmp_path: Path) -> None:
    found = kills.survey(range(8), tmp_path, {"save": 0.5, "report": 0.5})
    assert (found.failures, found.tried) == ([], 8)


def test_thirty_thousand_old_answers_are_the_same(tmp_path: Path) -> None:
    found = recalled.survey(range(30_000), tmp_path)
    assert found.failures == []
    assert found.tried >= 30_000


# archives that name files, or claim much


def changed(name: str, path: Path, **fields: Any) -> Path:
    """An archive of before with other fields, signed again."""
    manifest, sections = archives.opened((ARCHIVES / f"{name}.ticket").read_bytes())
    path.write_bytes(archives.signed({**manifest, **fields}, sections))
    return path


@pytest.mark.parametrize("backbone", ["resnet18", "resnet20", "conv4"])
def test_no_archive_names_a_file_to_be_read(backbone: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # whoever opens it waits for ever
    arguments = {"init": str(tmp_path / "pipe")}
    path = changed("wsn", tmp_path / "file", backbone={"name": backbone, "arguments": arguments})
    for door in (ff.load, ff.verify):
        with pytest.raises(ff.ArchiveError, match=r"Only sizes are taken from a file.*load\(path, backbone\)"):
            door(path)


def test_words_that_a_builder_offers_may_come_from_a_file() -> None:
    build = BACKBONES["lenet"]
    assert manifests.words_of(build, "size") == ("small", "large")
    assert manifests.words_of(build, "channels") == ()
    archive._check_arguments(build, {"size": "large", "channels": 3}, Path("file"))
    for wrong in ({"size": "/dev/zero"}, {"channels": "3"}, {"size": ["large"]}, {"size": {"large": 1}}):
        with pytest.raises(ff.ArchiveError, match="Only sizes"):
            archive._check_arguments(build, wrong, Path("file"))


def test_a_pipe_or_a_device_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ff.ArchiveError, match=r"no plain file|Is a directory"):
            ff.inspect(path)


def huge(width: int, depth: int) -> dict[str, Any]:
    """What an archive says of a network of so many layers of this width."""
    forms = {f"{2 * layer + 1}.weight": ("float32", [width, width]) for layer in range(depth)}
    return {
        "backbone": {"name": "mlp", "arguments": {"inputs": width, "hidden": [width] * depth}},
        "tensors": forms, "shared": forms, "blocks": {name: [4] * 3 for name in forms}, "frozen": [],
    }  # fmt: skip


CLAIMS = {
    "masks of 0.67e9 weights": huge(15_000, 1),
    "ten thousand layers": huge(1, 10_000),
    "a backbone that never ends": {"backbone": {"name": "mlp", "arguments": {"inputs": 1, "hidden": [1] * 50_000}}},
    "layers of many gigabytes": {"backbone": {"name": "mlp", "arguments": {"inputs": 1, "hidden": [2**40]}}},
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS.keys())
def test_what_a_small_file_claims_costs_little(claim: dict[str, Any], tmp_path: Path) -> None:
    path = changed("wsn", tmp_path / "file", **claim)
    started = time.process_time()
    for door in (ff.load, ff.verify):
        with pytest.raises(ff.ArchiveError):
            door(path)
    assert time.process_time() - started < 2


def test_probes_are_bounded_by_the_size_of_the_file(tmp_path: Path) -> None:
    manifest, _ = archives.opened((ARCHIVES / "wsn.ticket").read_bytes())
    three = ((1 << 22,), "float32")
    tasks = [{**task, "inputs": (three,) * 3} for task in manifest["tasks"]]
    for task in tasks:
        task["certificate"] = {**task["certificate"], "ranges": (None,) * 3}
    with pytest.raises(ff.ArchiveError, match="values of probes"):
        ff.verify(changed("wsn", tmp_path / "file", tasks=tasks))


def test_what_the_caller_vouches_for_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that was written before limits were so low still opens where its backbone is handed in."""
    path = ARCHIVES / "wsn.ticket"
    backbone = ff.load(path).network.module
    monkeypatch.setattr(manifests, "LIMITS", {**manifests.LIMITS, "weights behind masks": (100, 0)})
    with pytest.raises(ff.ArchiveError, match="pass its backbone, which vouches for its size"):
        ff.load(path)
    assert ff.verify(path, backbone).ok


WRONG = {
    "a position twice": lambda task: {**task, "position": 0},
    "inputs of another form": lambda task: {**task, "inputs": [[12], "float32"]},
    "a width that is no number": lambda task: {**task, "features": "8"},
    "no width": lambda task: {**task, "features": None},
    "threads that are a text": lambda task: {**task, "threads": "one"},
    "classes that are a list": lambda task: {**task, "classes": list(task["classes"])},
    "a certificate of texts": lambda task: {**task, "certificate": {**task["certificate"], "probe": "7"}},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_field_of_another_type_is_refused_on_reading(wrong: Any, tmp_path: Path) -> None:
    manifest, _ = archives.opened((ARCHIVES / "wsn.ticket").read_bytes())
    path = changed("wsn", tmp_path / "file", tasks=[manifest["tasks"][0], *map(wrong, manifest["tasks"][1:])])
    with pytest.raises(ff.ArchiveError):
        ff.load(path)


RECIPES: list[dict[str, Any]] = [
    {"groups": [1]}, {"groups": {"head": 5}}, {"groups": {"head": {"lr": "x"}}}, {"loader": 5}, {"lr": 10**400},
    {"accumulate": 2**70}, {"carry_optimizer": "yes"}, {"epochs": 2**80},
]  # fmt: skip


@pytest.mark.parametrize("wrong", RECIPES, ids=lambda wrong: next(iter(wrong)))
def test_a_recipe_that_cannot_be_is_refused_on_reading(wrong: dict[str, Any], tmp_path: Path) -> None:
    manifest, _ = archives.opened((ARCHIVES / "wsn.ticket").read_bytes())
    arguments = {**manifest["arguments"], "recipe": {**manifest["arguments"]["recipe"], **wrong}}
    with pytest.raises(ff.ArchiveError, match=r"Recipe\(|has no attribute"):
        ff.load(changed("wsn", tmp_path / "file", arguments=arguments))


def reshaped(name: str, path: Path, section: str, keys: tuple[str, ...], change: Any) -> Path:
    """An archive of before in which one tensor is said to be of another type or shape."""
    manifest, sections = archives.opened((ARCHIVES / f"{name}.ticket").read_bytes())
    shelf = manifest["shelves"][section]
    at: Any = unflatten(json.loads(shelf["structure"]), {str(i): i for i in range(len(shelf["tensors"]))})
    for key in keys:
        at = at[key]
    tensors = [change(*each) if i == at else each for i, each in enumerate(shelf["tensors"])]
    shelves = {**manifest["shelves"], section: {**shelf, "tensors": tensors}}
    path.write_bytes(archives.signed({**manifest, "shelves": shelves}, sections))
    return path


def flat(kind: str, shape: list[int]) -> tuple[str, list[int]]:
    return kind, [math.prod(shape)]


def whole(kind: str, shape: list[int]) -> tuple[str, list[int]]:
    return kind.replace("float", "int"), shape


KEPT = {
    "exemplars that are no images": ("fsll", "training", ("exemplars", "exemplars.3"), flat),
    "a classifier of whole numbers": ("icarl", "training", ("classifier", "weight"), whole),
    "scores of another shape": ("wsn-resumable", "training", ("scores", "1.weight"), flat),
    "quantiles of whole numbers": ("wsn", "training", ("quantiles", "1.weight"), whole),
    "a head of another shape": ("wsn", "heads", ("task 1", "weight"), flat),
    "class means of another shape": ("softnet", "heads", ("task 2", "means"), flat),
    "own tensors of another type": ("wsn", "own", ("task 1", "1.bias"), whole),
}


@pytest.mark.parametrize(("name", "section", "keys", "change"), KEPT.values(), ids=KEPT.keys())
def test_what_a_learner_keeps_is_looked_at_on_reading(
    name: str, section: str, keys: tuple[str, ...], change: Any, tmp_path: Path
) -> None:
    """Else learning on, or answering, would fail later, and not in a sentence."""
    with pytest.raises(ff.ArchiveError):
        ff.load(reshaped(name, tmp_path / "file", section, keys, change))


def test_steps_that_an_optimizer_cannot_count_on_from_are_refused(tmp_path: Path) -> None:
    keys = ("optimizer", "network.1.bias", "step")
    path = reshaped("ewc-carried-resumable", tmp_path / "file", "training", keys, whole)
    batch, _, _ = archives.expected("ewc-carried-resumable")
    with pytest.raises(ff.ForgetfreeError, match="in which no optimizer counts"):
        ff.load(path).learn(ff.Task("more", ("one", "two"), (batch, torch.arange(len(batch)) % 2)))


CHECKPOINTS: dict[str, Any] = {
    "no best epoch": lambda tree: {key: value for key, value in tree.items() if key != "best_epoch"},
    "a state that is a list": lambda tree: {**tree, "state": list(tree["state"].values())},
    "half of an optimizer": lambda tree: {**tree, "optimizer": {"state": {}}},
    "seconds that are a text": lambda tree: {**tree, "seconds": "many"},
    "more epochs than the recipe": lambda tree: {**tree, "curves": tree["curves"] * 100},
    "a tree that is none": lambda tree: [tree],
    "no identity": lambda tree: {**tree, "identity": None},
}


@pytest.mark.parametrize("wrong", CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def test_a_checkpoint_with_a_field_that_cannot_be_is_refused(wrong: Any, tmp_path: Path) -> None:
    name = "wsn-resumable-1"
    path = tmp_path / "task.safetensors"
    path.write_bytes(checkpoints.originals()[name])
    save_tree(path, CHECKPOINT, wrong(load_tree(path, CHECKPOINT)))
    with pytest.raises(ff.FileError, match=r"Delete it to start again"):
        checkpoints._go_on(name, path)


# run folders


def run(*words: Any) -> Any:
    found = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert found.exception is None or isinstance(found.exception, SystemExit), repr(found.exception)
    return found


RECORDS = {
    "no JSON": "{",
    "another type": "7",
    "deep brackets": "[" * 100_000,
    "a number that is none": '{"tasks": NaN}',
    "tasks that are numbers": lambda record: {**record, "tasks": [1, 2]},
    "an accuracy that is a text": lambda record: {**record, "accuracy": [["0.9", None], [0.8, 0.7]]},
    "an accuracy of two": lambda record: {**record, "accuracy": [[2.0, None], [0.8, 0.7]]},
    "a row too few": lambda record: {**record, "accuracy": [[0.8, 0.7]]},
    "no footprint": lambda record: {**record, "footprints": []},
    "a name that cannot be written": lambda record: {**record, "tasks": ["\ud800", "two"]},
    "a huge number": lambda record: {**record, "compared": 10**300},
    "transfer of texts": lambda record: {**record, "transfer": {"random": ["x"], "guesses": []}},
}


@pytest.mark.parametrize("wrong", RECORDS.values(), ids=RECORDS.keys())
def test_a_record_that_cannot_be_is_named_and_the_other_runs_are_shown(wrong: Any, tmp_path: Path) -> None:
    file = write_run(tmp_path / "runs", "wsn").path / "record.json"
    write_run(tmp_path / "runs", "finetune", seed=3)
    file.write_text(wrong if isinstance(wrong, str) else json.dumps(wrong(json.loads(file.read_text()))))
    found = run("report", tmp_path / "runs", "--to", tmp_path)
    assert found.exit_code == 0
    assert str(file) in "".join(found.output.split("\n"))
    assert [row["method"] for row in json.loads((tmp_path / "report.json").read_text())] == ["finetune"]
    assert run("watch", tmp_path / "runs", "--once").exit_code == 0


PLANS = {
    "no TOML": "x = ",
    "no run": "[other]\nx = 1\n",
    "a method that is a number": '[run]\nexperiment = "til/x"\nmethod = 7\n',
    "a benchmark that is a list": '[run]\nexperiment = "til/x"\nmethod = "wsn"\n[benchmark]\nname = ["x"]\n',
    "deep brackets": "x = " + "[" * 50_000,
    "much": "x = 1\n" * 20_000,
}


@pytest.mark.parametrize("wrong", PLANS.values(), ids=PLANS.keys())
def test_a_plan_that_cannot_be_is_named(wrong: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "wsn").path
    (folder / "run.toml").write_text(wrong)
    for words in (("report", "--to", tmp_path), ("analyse",), ("resume",)):
        found = run(words[0], tmp_path / "runs", *words[1:])
        if words[0] != "resume":  # which has nothing to do in finished runs
            assert found.exit_code == 2
            assert "run.toml" in found.output
    assert run("watch", tmp_path / "runs", "--once").exit_code == 0


def test_pipes_and_devices_in_a_run_folder_are_not_read(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "finetune")
    for name in ("run.toml", "record.json", "events.jsonl"):
        folder = write_run(tmp_path / "runs", f"wsn-{name}").path
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    found = run("report", tmp_path / "runs", "--to", tmp_path)
    assert found.exit_code == 0
    assert run("watch", tmp_path / "runs", "--once").exit_code in (0, 2)


def test_events_that_are_none_are_left_out(tmp_path: Path) -> None:
    good = {"time": 1.0, "event": "task", "task": "a", "position": 0, "tasks": 2}
    events: list[Any] = [
        good, {**good, "time": "now"}, {**good, "tasks": 10**9}, {**good, "position": None}, {**good, "task": ["a"]},
        {"time": 2.0, "event": "tested", "accuracy": ["x"]}, {"time": 2.0, "event": "epoch", "epoch": 1, "done": "all"},
        [], 7, None,
    ]  # fmt: skip
    folder = write_events(tmp_path, events)
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b"[" * 100_000 + b"\n" + b"x" * (3 << 20) + b"\n" + json.dumps(good).encode() + b"\n")
    assert Follower(folder / "events.jsonl").news().events == [good, good]


def test_an_analysis_that_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "wsn", capacity=0.1)
    for wrong in ("7", "{}", '{"capacity": [1, "x"]}', "[" * 100_000):
        for name in ("tickets", "codes"):
            (folder.path / "analysis").mkdir(exist_ok=True)
            (folder.path / "analysis" / f"{name}.json").write_text(wrong)
        for figure in ("weight_reuse", "capacity_growth"):
            found = run("report", tmp_path / "runs", "--figure", figure, "--to", tmp_path)
            assert found.exit_code == 2
            assert str(folder.path) in "".join(found.output.split("\n"))


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert read_plain(tmp_path / "file", 100) == b"x" * 100
    with pytest.raises(ff.FileError, match="at most 99"):
        read_plain(tmp_path / "file", 99)
    assert RunFolder(tmp_path / "nowhere").started is False


# data


def blanks(times: int) -> bytes:
    """So many megabytes of zeros, compressed to a thousandth."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(times)), packer.flush()])


def test_compressed_data_is_not_unpacked_without_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "ALWAYS", 1 << 20)
    monkeypatch.setattr(formats, "LARGEST_PICTURE", 1 << 20)
    (tmp_path / "images.gz").write_bytes(blanks(8))
    with pytest.raises(ff.DataError if hasattr(ff, "DataError") else OSError, match="far more is packed"):
        formats.read_idx(tmp_path / "images.gz")
    with gzip.open(tmp_path / "data.tar.gz", "wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("before", "wanted"):
            about = tarfile.TarInfo(name)
            about.size = 8 << 20
            tar.addfile(about, io.BytesIO(bytes(8 << 20)))
    with pytest.raises(OSError, match="far more is packed"):
        formats.read_records(tmp_path / "data.tar.gz", ["wanted"], 8)
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w", zipfile.ZIP_DEFLATED) as pictures:
        pictures.writestr("one.png", bytes(8 << 20))
    with formats.open_zip(tmp_path / "pictures.zip") as pictures, pytest.raises(OSError, match="a member of 8388608"):
        formats.read_member(pictures, "one.png")
    element = zlib.compress(bytes(8 << 20))
    header = b"MATLAB".ljust(124) + b"\0\1IM" + np.array([15, len(element)], "<u4").tobytes()
    (tmp_path / "digits.mat").write_bytes(header + element)
    with pytest.raises(OSError, match="far more is packed"):
        formats.read_matlab(tmp_path / "digits.mat")


def test_mutants_follow_from_their_number() -> None:
    tree = {"a": [1, 2.0, "x", None], "b": {"c": (True, [])}}
    assert repr(mutated(tree, random.Random(7))) == repr(mutated(tree, random.Random(7)))
    assert archives.mutant(5) == archives.mutant(5)
    assert archive.KIND in str(archives.originals()["wsn"][:400])
