"""A task that leaves the house: the same bits as a plain module, the same answers from a file, or no file at all."""

import copy
import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import forgetfree as ff
from forgetfree import exporting
from forgetfree.class_heads import LDA, TEEN, Bayes, ClassHeads, Means, Ridge
from forgetfree.contracts import Inputs
from forgetfree.exporting import Exported, export, extract
from forgetfree.modules import as_call, named_tensors
from zoo import TIL, ZOO

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")

QUICK = ff.Recipe(epochs=1, batch_size=8, lr=0.03)
ROWS, LABELS = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 2


def taught(backbone: nn.Module, inputs: Inputs = ROWS, method: str = "wsn", **settings: object) -> ff.Learner:
    """A learner of two tasks, "first" on `inputs` and "second" on the same with other labels."""
    if method in ("wsn", "packnet", "supsup"):
        settings = {"capacity": 0.3, **settings}
    recipe = replace(QUICK, optimizer="sgd") if method in ("hat", "gpm") else QUICK
    learner = ff.METHODS[method](backbone, recipe=recipe, **settings)
    learner.learn(ff.Task("first", (0, 1), (inputs, LABELS)))
    learner.learn(ff.Task("second", (0, 1), (inputs, 1 - LABELS)))
    if method == "multitask":
        learner.finish()
    return learner


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8))


def ask(module: Callable[..., Tensor], inputs: Inputs) -> Tensor:
    args, kwargs = as_call(inputs)
    return module(*args, **kwargs)


def saved_and_loaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.view(torch.int32), other.view(torch.int32))


def has_ours(module: nn.Module) -> bool:
    classes = {kind for part in module.modules() for kind in type(part).__mro__}
    return any(kind.__module__.split(".")[0] == "forgetfree" for kind in classes)


# ---- extract


@pytest.mark.parametrize("kind", ZOO)
def test_an_extracted_task_gives_the_bits_of_predict_and_holds_no_class_of_ours(kind: str) -> None:
    entry = ZOO[kind]
    learner = ff.WSN(entry.build(), capacity=0.3, recipe=QUICK)
    batch = entry.inputs(5, seed=99)
    learner.learn(entry.task("first"))
    early = extract(learner, "first")
    learner.learn(entry.task("second", seed=1))
    right = {name: learner.predict(batch, task=name) for name in ("first", "second")}
    assert not torch.equal(right["first"], right["second"])
    for name, module in [
        ("first", early),
        ("first", extract(learner, "first")),
        ("second", extract(learner, "second")),
    ]:
        twins = copy.deepcopy(module), saved_and_loaded(module)
        for one in (module, *twins):
            assert not has_ours(one)
            assert same_bits(ask(one, batch), right[name])


@pytest.mark.parametrize("method", TIL)
def test_a_task_of_every_method_can_be_extracted_and_the_learner_shares_nothing_with_it(method: str) -> None:
    learner = taught(mlp(), method=method)
    right = {name: learner.predict(ROWS, name) for name in learner.tasks}
    for name in learner.tasks:
        module = extract(learner, name)
        assert not has_ours(module)
        assert not module.training
        assert not any(
            part.training or tensor.requires_grad for part in module.modules() for tensor in part.parameters()
        )
        answer = module(ROWS)
        assert same_bits(answer, right[name])
        with torch.no_grad():
            for _, tensor in named_tensors(module):
                tensor.fill_(7)
        assert not torch.equal(module(ROWS), right[name])
        for other in learner.tasks:
            assert same_bits(copy.deepcopy(learner).predict(ROWS, other), right[other])
            assert same_bits(extract(learner, other)(ROWS), right[other])


def test_inputs_by_position_and_by_name_are_taken_as_the_backbone_takes_them(tmp_path: Path) -> None:
    by_position = taught(nn.Bilinear(6, 6, 8), (ROWS, ROWS.flip(0)))
    module = extract(by_position, "first")
    assert same_bits(module(ROWS, ROWS.flip(0)), by_position.predict((ROWS, ROWS.flip(0)), "first"))
    assert export(by_position, "first", tmp_path / "first.pt2").difference <= 1e-6
    by_name = taught(nn.Bilinear(6, 6, 8), {"input2": ROWS, "input1": ROWS.flip(0)})
    module = extract(by_name, "first")
    right = by_name.predict({"input1": ROWS.flip(0), "input2": ROWS}, "first")
    assert same_bits(module(input1=ROWS.flip(0), input2=ROWS), right)


def test_names_that_are_no_arguments_are_refused() -> None:
    class Anything(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)

        def forward(self, **inputs: Tensor) -> Tensor:
            return self.layer(inputs["left-hand"])

    with pytest.raises(ff.InputError, match=r"\['left-hand'\]"):
        extract(taught(Anything(), {"left-hand": ROWS}), "first")


def test_a_saved_module_lives_where_forgetfree_is_not_installed(tmp_path: Path) -> None:
    wide = taught(nn.Sequential(nn.Linear(6, 1024), nn.Linear(1024, 2048)), capacity=0.05)
    pair = taught(nn.Bilinear(6, 6, 8), (ROWS, ROWS))
    cases = [
        (extract(wide, "first"), (ROWS,), wide.predict(ROWS, "first")),
        (extract(wide, "first", sparse=True), (ROWS,), extract(wide, "first", sparse=True)(ROWS)),
        (extract(pair, "first"), (ROWS, ROWS), pair.predict((ROWS, ROWS), "first")),
    ]
    torch.save(cases, tmp_path / "cases")
    code = (
        "import sys, torch; sys.modules['forgetfree'] = None; torch.set_num_threads(1)\n"
        f"cases = torch.load({str(tmp_path / 'cases')!r}, weights_only=False)\n"
        "print([torch.equal(module(*inputs), right) for module, inputs, right in cases])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, True]"


def test_an_unknown_task_is_refused_as_predict_refuses_it() -> None:
    learner = taught(mlp())
    with pytest.raises(ff.TaskError) as by_predict:
        learner.predict(ROWS, "third")
    with pytest.raises(ff.TaskError) as by_extract:
        extract(learner, "third")
    assert str(by_extract.value) == str(by_predict.value)
    with pytest.raises(ff.TaskError, match="by its name"):
        extract(learner, ["first"])  # type: ignore[arg-type]
    collected = ff.METHODS["multitask"](mlp(), recipe=QUICK)
    collected.learn(ff.Task("first", (0, 1), (ROWS, LABELS)))
    with pytest.raises(ff.TaskError, match="finish"):
        extract(collected, "first")


def test_extracting_in_inference_mode_gives_ordinary_tensors_and_moves_no_random_state() -> None:
    learner = taught(nn.Sequential(nn.Linear(6, 1024), nn.Linear(1024, 2048)), capacity=0.05, sparse_answers=True)
    chance = torch.get_rng_state()
    with torch.inference_mode():
        module = extract(learner, "first")
    assert not any(tensor.is_inference() for tensor in module.parameters())
    assert torch.equal(torch.get_rng_state(), chance)


# ---- extract(sparse=True)


class Wide(nn.Module):
    """Two large layers, one of them used twice, and a small one."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.small = nn.Linear(6, 1024)
        self.large = nn.Linear(1024, 2048, bias=bias)
        self.back = nn.Linear(2048, 1024, bias=bias)
        self.again = self.large

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.large(torch.tanh(self.small(inputs)).unsqueeze(1).expand(-1, 3, -1))  # [rows, 3, 2048]
        return self.again(torch.tanh(self.back(hidden))).mean(1)


@pytest.mark.parametrize("bias", [True, False])
def test_large_layers_with_few_weights_are_held_in_compressed_rows(bias: bool) -> None:
    learner = taught(Wide(bias), capacity=0.05)
    module, dense = extract(learner, "first", sparse=True), extract(learner, "first")
    assert type(module.backbone.small) is nn.Linear
    assert type(module.head) is nn.Linear
    assert module.backbone.large is module.backbone.again
    held = dict(module.backbone.large.named_buffers()) | dict(module.backbone.large.named_parameters())
    assert set(held) == {"starts", "columns", "values"} | ({"bias"} if bias else set())
    assert len(held["values"]) == int(dense.backbone.large.weight.count_nonzero()) < 0.06 * 1024 * 2048
    twins = [module, copy.deepcopy(module), saved_and_loaded(module), copy.deepcopy(saved_and_loaded(module))]
    emptied = copy.deepcopy(module)
    for _, tensor in named_tensors(emptied):
        tensor.zero_()
    emptied.load_state_dict(module.state_dict())
    for count in (1, 2, 16):
        right = learner.predict(ROWS[:count], "first")
        for one in (*twins, emptied):
            assert not has_ours(one)
            answer = one(ROWS[:count])
            assert not answer.requires_grad
            assert (answer - right).abs().max() <= 1e-5 * right.abs().max()
        assert not torch.equal(module(ROWS), dense(ROWS)), "compressed rows were not used"
    alone = torch.randn(1024, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(module.backbone.large(alone), dense.backbone.large(alone), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        module.backbone.large.values.fill_(7)
    assert same_bits(extract(learner, "first")(ROWS), dense(ROWS))


def test_a_learner_with_sparse_answers_gives_plain_layers_too() -> None:
    backbone = Wide(bias=True)
    learner, plain = taught(backbone, capacity=0.05, sparse_answers=True), taught(backbone, capacity=0.05)
    assert not torch.equal(learner.predict(ROWS, "first"), plain.predict(ROWS, "first"))
    module = extract(learner, "first")
    assert not has_ours(module)
    assert same_bits(module(ROWS), plain.predict(ROWS, "first"))


def test_layers_of_a_transformer_stay_dense_because_it_reads_their_weights() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(256, 4, dim_feedforward=8192, batch_first=True)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs.repeat(1, 43)[:, None, :256]).mean(1)

    learner = taught(Encoder(), capacity=0.05)
    module = extract(learner, "first", sparse=True)
    assert not has_ours(module)
    assert same_bits(module(ROWS), learner.predict(ROWS, "first"))


# ---- export


def by_onnxruntime(path: Path) -> Callable[[Inputs], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def answer(inputs: Inputs) -> Tensor:
        named = inputs if isinstance(inputs, dict) else {"input": inputs}
        return torch.from_numpy(session.run(["answer"], {name: value.numpy() for name, value in named.items()})[0])

    return answer


def by_torch(path: Path) -> Callable[[Inputs], Tensor]:
    module = torch.export.load(path).module()
    return lambda inputs: ask(module, inputs)


def heard(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def levels_of_torch() -> dict[str, int]:
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.onnx")]
    return {name: logging.getLogger(name).level for name in ("torch", "torch.fx.experimental.symbolic_shapes", *names)}


FORMATS = {"onnx": (by_onnxruntime, 1e-5), "pt2": (by_torch, 1e-6)}
needs_onnx = pytest.mark.skipif(
    not all(map(exporting.find_spec, ("onnx", "onnxscript", "onnxruntime"))), reason="needs forgetfree[onnx]"
)
BOTH = [pytest.param("onnx", marks=needs_onnx), "pt2"]


@pytest.mark.parametrize("format", BOTH)
def test_a_convolutional_ticket_answers_from_a_file_in_batches_of_any_size(
    format: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    entry = ZOO["cnn with batch norm"]
    learner = ff.WSN(entry.build(), capacity=0.3, recipe=QUICK)
    learner.learn(entry.task("first"))
    chance, path = torch.get_rng_state(), tmp_path / "new" / f"first.{format}"
    capfd.readouterr(), caplog.clear(), recwarn.clear()
    levels = levels_of_torch()
    exported = export(learner, "first", str(path))
    assert (capfd.readouterr(), heard(caplog), list(recwarn)) == (("", ""), [], [])
    assert levels.items() <= levels_of_torch().items()
    assert torch.equal(torch.get_rng_state(), chance)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    opened, tolerance = FORMATS[format]
    assert exported == Exported(path, format, path.stat().st_size, exported.difference, (1, 2, 7))
    assert 0 <= exported.difference <= tolerance
    answer = opened(path)
    for count in (1, 4, 33):
        batch = entry.inputs(count, seed=99)
        right = learner.predict(batch, task="first")
        assert (answer(batch) - right).abs().max() <= tolerance * right.abs().max()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(9, 8), nn.Linear(6, 8)

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        return torch.tanh(self.layer(numbers)) * self.words(words).mean(1)


@pytest.mark.parametrize("format", BOTH)
def test_inputs_by_name_are_exported_by_an_example_in_any_order(format: str, tmp_path: Path) -> None:
    words = torch.randint(9, (16, 4), generator=torch.Generator().manual_seed(0))
    inputs = {"words": words, "numbers": ROWS}
    learner, path = taught(Words(), inputs), tmp_path / f"words.{format}"
    example = {"numbers": ROWS[:1].double(), "words": words[:1]}
    assert export(learner, "first", path, inputs=example).path == path
    opened, tolerance = FORMATS[format]
    right = learner.predict(inputs, "first")
    for asked in (inputs, {"numbers": ROWS, "words": words}):
        assert (opened(path)(asked) - right).abs().max() <= tolerance * right.abs().max()


def test_whole_numbers_are_drawn_from_the_range_a_task_was_learned_on(tmp_path: Path) -> None:
    words = torch.randint(2, 9, (16, 4), generator=torch.Generator().manual_seed(0))
    learner, path = taught(Words(), {"words": words, "numbers": ROWS}), tmp_path / "words.pt2"
    drawn = exporting._drawn(learner.tasks["first"])
    assert (int(drawn["words"].min()), int(drawn["words"].max())) == (2, 8)
    assert export(learner, "first", path).difference <= 1e-6
    path.unlink()
    unknown = {name: replace(known, certificate=None) for name, known in learner.tasks.items()}
    learner.engine._learned = unknown
    with pytest.raises(ff.InputError, match=r"takes inputs of int64.*inputs=a_batch"):
        export(learner, "first", path)
    assert list(tmp_path.iterdir()) == []


def test_answers_that_are_no_numbers_are_not_compared(tmp_path: Path) -> None:
    learner = taught(nn.Sequential(mlp(), nn.LayerNorm(8)))
    with pytest.raises(ff.InputError, match="not finite"):
        export(learner, "first", tmp_path / "first.pt2", inputs=ROWS * torch.nan)
    assert list(tmp_path.iterdir()) == []


def test_the_callers_autocast_does_not_get_into_the_file(tmp_path: Path) -> None:
    learner = taught(mlp())
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert export(learner, "first", tmp_path / "first.pt2").difference <= 1e-6
    assert same_bits(by_torch(tmp_path / "first.pt2")(ROWS), learner.predict(ROWS, "first"))


def test_a_module_that_counts_its_calls_is_exported_as_it_was_learned(tmp_path: Path) -> None:
    entry = ZOO["counting"]
    learner = ff.WSN(entry.build(), capacity=0.3, recipe=QUICK)
    learner.learn(entry.task("first"))
    assert export(learner, "first", tmp_path / "first.pt2").difference <= 1e-6


class Choosy(nn.Module):
    """Decides by the size of the batch, by which is given."""

    def __init__(self, decide: Callable[[int], bool]) -> None:
        super().__init__()
        self.layer, self.decide = nn.Linear(6, 8), decide

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) * (2 if self.decide(inputs.shape[0]) else 1)


@pytest.mark.parametrize("format", BOTH)
@pytest.mark.parametrize("old", [None, b"what was there before"])
def test_a_file_that_would_answer_otherwise_is_not_written(format: str, old: bytes | None, tmp_path: Path) -> None:
    learner, path = taught(Choosy(lambda size: size == 1)), tmp_path / f"first.{format}"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(ff.FileError, match=r"was not written: its answers differ .* 1, 2, 7"):
        export(learner, "first", path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([] if old is None else [old])


@pytest.mark.parametrize("format", BOTH)
def test_a_module_that_cannot_be_traced_is_refused_and_nothing_is_written(
    format: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Hopeful(nn.Module):
        """Decides by the values."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs) * (2 if inputs.sum() > 0 else 1)

    learners = taught(Choosy(lambda size: size > 4)), taught(Hopeful())
    capfd.readouterr(), caplog.clear()
    for learner in learners:
        with pytest.raises(ff.ModuleError, match=r"cannot export the module of task 'first' .* torch says: \w+"):
            export(learner, "first", tmp_path / f"first.{format}")
    assert list(tmp_path.iterdir()) == []
    assert (capfd.readouterr(), heard(caplog)) == (("", ""), [])


def test_what_cannot_be_read_back_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(content: bytes, inputs: Inputs) -> Tensor:
        raise RuntimeError("no such operator\nat all")

    monkeypatch.setattr(exporting, "_answer_pt2", broken)
    with pytest.raises(ff.FileError, match=r"cannot answer a batch of 1\..* says: no such operator$"):
        export(taught(mlp()), "first", tmp_path / "first.pt2")
    assert list(tmp_path.iterdir()) == []


@needs_onnx
def test_what_onnxruntime_has_no_kernel_for_is_not_written(tmp_path: Path) -> None:
    backbone = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.Flatten()).double()
    learner = taught(backbone, ROWS.double())
    with pytest.raises(ff.FileError, match=r"cannot answer a batch of 1\..*NOT_IMPLEMENTED"):
        export(learner, "first", tmp_path / "first.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, path = taught(mlp()), tmp_path / "first.pt2"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ff.FileError, match="No space left"):
        export(learner, "first", path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("first.pt2", b"old")]


@pytest.mark.parametrize("name", ["first.pt", "first", "first.onnx.gz", "first.ONNX"])
def test_another_suffix_is_refused_and_both_are_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ff.InputError, match=r"\.onnx or \.pt2; got .*first"):
        export(taught(mlp()), "first", tmp_path / name)


def test_tasks_and_examples_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    learner, path = taught(mlp()), tmp_path / "first.pt2"
    with pytest.raises(ff.TaskError, match="learned tasks are"):
        export(learner, "third", path)
    with pytest.raises(ff.InputError, match=r"one row or more.*\(0, 6\)"):
        export(learner, "first", path, inputs=ROWS[:0])
    with pytest.raises(ff.InputError, match=r"was learned on inputs \[batch, 6\]"):
        export(learner, "first", path, inputs=(ROWS, ROWS))
    with pytest.raises(ff.InputError, match="got a list"):
        export(learner, "first", path, inputs=[[1.0] * 6])  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_without_the_packages_of_onnx_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ff.InputError, match=r"missing here: onnxscript\. pip install 'forgetfree\[onnx\]'"):
        export(taught(mlp()), "first", tmp_path / "first.onnx")


@needs_onnx
def test_a_module_too_large_for_one_onnx_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "ONNX_BYTES", 100)
    learner = taught(mlp())
    with pytest.raises(ff.InputError, match=r"one \.onnx file holds less than .* write a \.pt2 file"):
        export(learner, "first", tmp_path / "first.onnx")
    assert export(learner, "first", tmp_path / "first.pt2").bytes > 100


def test_a_learner_that_does_not_give_its_modules_is_told_how() -> None:
    class Other:
        tasks = taught(mlp()).tasks

    with pytest.raises(ff.InputError, match=r"Other does not say .*task_modules\(task\)"):
        extract(Other(), "first")  # type: ignore[arg-type]


@needs_onnx
@pytest.mark.parametrize("heads", [Bayes(offset=0.5), LDA(), TEEN(), Means(metric="cosine"), Ridge(features=32)])
def test_few_shot_heads_answer_from_a_file_in_batches_of_any_size(heads: ClassHeads, tmp_path: Path) -> None:
    learner = ff.METHODS["ncm"](nn.Sequential(nn.Linear(6, 8), nn.ReLU()), recipe=QUICK, heads=heads)
    learner.learn(ff.Task("first", (0, 1), (ROWS, LABELS)))
    learner.learn(ff.Task("second", (2, 3), (ROWS[:4], LABELS[:4])))
    export(learner, "second", tmp_path / "task.onnx")
    asked = by_onnxruntime(tmp_path / "task.onnx")
    for rows in (1, 16):
        assert torch.allclose(asked(ROWS[:rows]), learner.predict(ROWS[:rows]), rtol=1e-4, atol=1e-4)
