"""Leaving the house: a learned task as a plain torch module, or as a file for other runtimes.

`extract` gives backbone and head of one task with its weights written in, made of torch's classes and the user's own.
Pickled or copied, it lives on where forgetfree is not installed:

    module = extract(learner, "digits")
    assert torch.equal(module(images), learner.predict(images, task="digits"))

`export` writes such a module as `.onnx` or `.pt2`, for batches of any size. What will be written is first read back and
asked, for several sizes of batch, and must answer as the learner does; else there is an error and no file.

Where torch has no layer for what is needed, its graphs serve: a `torch.fx.GraphModule` is torch's own class, and what
it does is in its code, which `print(module.code)` shows. Two are built here: one joins backbone and head where inputs
are several tensors, one is a linear layer in compressed rows.
"""

import io
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from forgetfree.batches import convert, rows, tensors_of
from forgetfree.contracts import Inputs, Learner, TaskRecord
from forgetfree.errors import FileError, InputError, ModuleError, TaskError
from forgetfree.files import write_atomically
from forgetfree.modules import as_call, freeze, named_tensors
from forgetfree.sparse import SparseLinear, compress

EXAMPLE_ROWS, COMPARED_ROWS = 3, (1, 2, 7)
"""A file is traced with one size of batch and compared with others."""

ONNX_BYTES = 1 << 31
"""What one .onnx file can hold: its format counts bytes with a sign, in 32 bits."""


def extract(learner: Learner, task: str, *, sparse: bool = False) -> nn.Module:
    """A plain module that answers `task`, in eval mode, without gradients; the learner shares no tensor with it.

    It gives the very bits of `predict` on the same batch, called as the backbone is: by position or by name. What
    `predict` does around it is the caller's: tensors of the right type on the right device, no autocast. A module that
    writes to its buffers even in eval mode does so here from call to call; the first answer is that of `predict`.

    With `sparse=True`, linear layers on the CPU that `forgetfree.sparse` finds large and empty enough hold their
    weights in compressed rows; the others stay dense. Answers then differ from `predict` by up to 1e-5 of the largest;
    so do those of a dense module from `predict` with `sparse_answers=True`. Such a layer can be called, but has no
    `weight` for a backbone that reads it; torch's transformer layers do, and stay dense.
    """
    _refuse_unknown(learner, task)
    with torch.inference_mode(False):
        module = _joined(_parts(learner, task), learner.tasks[task].inputs)
        if sparse:
            _compress(module)
        return freeze(module)


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how well it answers."""

    path: Path
    format: str
    """"onnx" or "pt2"."""
    bytes: int
    difference: float
    """The largest difference from an answer of the learner, as a fraction of the largest answer in its batch."""
    batch_sizes: tuple[int, ...]
    """The sizes of the batches that were compared."""


def export(learner: Learner, task: str, path: Path | str, *, inputs: Inputs | None = None) -> Exported:
    """Write the module of `task` to one file, for the CPU and batches of any size: `.onnx` or `.pt2`, by its suffix.

    The file is compared with the learner on rows of `inputs`; without them on normally distributed numbers, and whole
    ones from the range that the task was learned on. All sizes but that of the batch are fixed: those the task was
    learned on, or those of `inputs`. After an error there is no new file, and an old one is untouched.

    A .onnx file is for onnxruntime and its like; its input is called `input`, or as the backbone's arguments if the
    task is learned on a dict (`input_0`, `input_1`, … on a tuple), its output `answer`. A .pt2 file is for
    `torch.export.load`, which may unpickle: load only your own.
    """
    path = Path(path)
    target = _target(path)
    module = extract(learner, task).cpu()
    learned = learner.tasks[task]
    with torch.no_grad(), torch.autocast("cpu", enabled=False):  # whatever the caller does
        if inputs is not None:
            _ask(learner, inputs, task)  # knows best what is wrong with them
        example = _admitted(inputs if inputs is not None else _drawn(learned), module)
        _refuse_empty(example)
        right = {count: _ask(learner, _take(example, count), task).cpu() for count in COMPARED_ROWS}
        _refuse_infinite(right.values(), task)
        example = _in_order(example, learned.inputs)
        with _silence():
            content = _encoded(target, module, _take(example, EXAMPLE_ROWS), task)
            given = {count: _read_back(target, content, _take(example, count), path) for count in COMPARED_ROWS}
    difference = max(_difference(given[count], right[count]) for count in COMPARED_ROWS)
    if difference > target.tolerance:
        raise FileError(
            f"{path} was not written: its answers differ from the learner's by {difference:.1e} of the largest, more "
            f"than {target.tolerance:.0e}, in batches of {', '.join(map(str, COMPARED_ROWS))}. Does the forward of "
            "the backbone decide by the values or the number of its inputs? extract(learner, task) gives the module "
            "itself."
        )
    write_atomically(path, content)
    return Exported(path, path.suffix[1:], len(content), difference, COMPARED_ROWS)


def _ask(learner: Learner, inputs: Inputs, task: str) -> Tensor:
    """The answer of a task; few-shot sessions are not asked by name."""
    return learner.predict(inputs, task) if learner.scenario == "til" else learner.predict(inputs)


def _refuse_unknown(learner: Learner, task: str) -> None:
    if not isinstance(task, str):
        raise TaskError(f"one task leaves the house at a time, by its name; got {task!r}.")
    if task not in learner.tasks:
        _ask(learner, torch.empty(0), task)  # knows best what to say
        raise TaskError(f"no task {task!r} is learned; learned tasks are {list(learner.tasks)}.")


def _parts(learner: Learner, task: str) -> dict[str, nn.Module]:
    """Backbone and head of a task, with tensors of their own."""
    parts = getattr(learner, "task_modules", None) or getattr(learner, "parts", None)  # its name before
    if parts is None:
        raise InputError(
            f"{type(learner).__name__} does not say what its tasks are made of. Give it task_modules(task), which "
            "returns {'backbone': module, 'head': module}, as forgetfree.engine.Engine.task_modules does."
        )
    made: dict[str, nn.Module] = parts(task)
    return made


def _joined(parts: dict[str, nn.Module], kind: Any) -> nn.Module:
    """Head after backbone, for inputs of this kind (a signature)."""
    if _is_one(kind):
        return nn.Sequential(OrderedDict(backbone=parts["backbone"], head=parts["head"]))
    graph = fx.Graph()
    placeholders: dict[str, Any] = {name: graph.placeholder(name) for name in _names(kind)}
    by_position, by_name = ((), placeholders) if isinstance(kind, dict) else (tuple(placeholders.values()), {})
    features = graph.call_module("backbone", by_position, by_name)
    graph.output(graph.call_module("head", (features,)))
    return fx.GraphModule(parts, graph)


def _compress(module: nn.Module) -> None:
    """Put compressed layers in place of those that `forgetfree.sparse` chooses, under every name they have."""
    # in eval mode it hands the weights of its layers to one kernel, which takes dense ones only
    readers = [part for part in module.modules() if isinstance(part, nn.TransformerEncoderLayer)]
    read = {layer for part in readers for layer in part.children()}
    compress(module, {f"{path}.weight" for path, layer in module.named_modules() if layer not in read})
    chosen = {layer: _compressed(layer) for layer in module.modules() if isinstance(layer, SparseLinear)}
    for parent in list(module.modules()):
        for name, layer in parent._modules.items():
            if isinstance(layer, SparseLinear):
                parent._modules[name] = chosen[layer]


def _compressed(layer: SparseLinear) -> fx.GraphModule:
    """The same layer in compressed rows.

    Not an `nn.Linear` whose weight is a CSR tensor: torch cannot deepcopy such a tensor, and multiplies by it from the
    right, which in large batches is slower than a dense layer. Here it is made anew in every call, in microseconds,
    from three plain tensors. The values must be a parameter: an fx graph that was pickled is traced again when it is
    loaded, and only what depends on a parameter or an input is then traced.
    """
    held = {"starts": layer.starts, "columns": layer.columns, "values": nn.Parameter(layer.values, requires_grad=False)}
    if layer.bias is not None:
        held["bias"] = layer.bias
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    inputs: Any = fx.Proxy(graph.placeholder("input"), tracer)
    tensors: dict[str, Any] = {name: fx.Proxy(graph.get_attr(name), tracer) for name in held}
    weight = torch.ops.aten.sparse_csr_tensor.crow_col_value_size(
        *(tensors[name] for name in ("starts", "columns", "values")),
        (layer.out_features, layer.in_features),
        dtype=layer.values.dtype,
    )
    turned = inputs.reshape(-1, layer.in_features).t()  # [rows, inputs] -> [inputs, rows]
    answer: Any = torch.addmm(tensors["bias"].unsqueeze(1), weight, turned) if "bias" in tensors else weight @ turned
    shape = inputs.shape[:-1] + (layer.out_features,)  # noqa: RUF005 - a proxy cannot be unpacked
    graph.output(answer.t().contiguous().view(shape).node)
    return fx.GraphModule(held, graph, "CompressedLinear")


@dataclass(frozen=True)
class _Target:
    """A kind of file: from a traced module to bytes, and from bytes to answers."""

    tolerance: float
    most_bytes: float
    encode: Callable[[ExportedProgram], bytes]
    answer: Callable[[bytes, Inputs], Tensor]


def _target(path: Path) -> _Target:
    targets = {
        ".onnx": _Target(1e-5, ONNX_BYTES, _encode_onnx, _answer_onnx),
        ".pt2": _Target(1e-6, torch.inf, _encode_pt2, _answer_pt2),
    }
    if path.suffix not in targets:
        raise InputError(f"a task is exported to a file that ends in .onnx or .pt2; got {str(path)!r}.")
    if path.suffix == ".onnx":
        _refuse_without_onnx()
    return targets[path.suffix]


def _encoded(target: _Target, module: nn.Module, example: Inputs, task: str) -> bytes:
    size = sum(tensor.nbytes for _, tensor in named_tensors(module))
    if size >= target.most_bytes:
        raise InputError(
            f"one .onnx file holds less than {target.most_bytes / 1e9:.1f} GB, and the tensors of task {task!r} have "
            f"{size / 1e9:.1f} GB: write a .pt2 file."
        )
    args, kwargs = as_call(example)
    batch = Dim("batch")
    sizes = [{0: batch} for _ in tensors_of(example)]
    try:
        program = torch.export.export(
            module, args, kwargs, dynamic_shapes=dict(zip(kwargs, sizes, strict=True)) if kwargs else tuple(sizes)
        )
        return target.encode(program)
    except _REFUSALS as error:
        raise ModuleError(
            f"torch cannot export the module of task {task!r} for batches of any size: its forward must not decide by "
            "the values or the number of its inputs. extract(learner, task) gives the module itself. torch says: "
            f"{_first_line(error)}"
        ) from error


def _read_back(target: _Target, content: bytes, inputs: Inputs, path: Path) -> Tensor:
    try:
        return target.answer(content, inputs)
    except _REFUSALS as error:
        raise FileError(
            f"{path} was not written: read back, it cannot answer a batch of {rows(inputs)}. extract(learner, task) "
            f"gives the module itself. The runtime says: {_first_line(error)}"
        ) from error


_REFUSALS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError)
"""What torch's exporters, and what they made, raise where they cannot go on."""


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _encode_pt2(program: ExportedProgram) -> bytes:
    content = io.BytesIO()
    torch.export.save(program, content)
    return content.getvalue()


def _answer_pt2(content: bytes, inputs: Inputs) -> Tensor:
    args, kwargs = as_call(inputs)
    answer: Tensor = torch.export.load(io.BytesIO(content)).module()(*args, **kwargs)
    return answer


def _refuse_without_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"a .onnx file is made with onnx, onnxscript and onnxruntime; missing here: {', '.join(missing)}. "
            "pip install 'forgetfree[onnx]', or write a .pt2 file."
        )


def _encode_onnx(program: ExportedProgram) -> bytes:
    translated = torch.onnx.export(program, dynamo=True, output_names=["answer"], verbose=False)
    assert translated is not None
    content: bytes = translated.model_proto.SerializeToString()
    return content


def _answer_onnx(content: bytes, inputs: Inputs) -> Tensor:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    named = dict(zip(_names(inputs), tensors_of(inputs), strict=True))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        (answer,) = session.run(["answer"], {entry.name: named[entry.name].numpy() for entry in session.get_inputs()})
    except (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.NotImplemented,
        state.RuntimeException,
    ) as error:
        raise RuntimeError(str(error)) from error  # theirs have no root but Exception
    return torch.from_numpy(answer)


def _difference(given: Tensor, right: Tensor) -> float:
    if (given.shape, given.dtype) != (right.shape, right.dtype):
        return torch.inf
    largest = right.abs().max().clamp(min=torch.finfo(right.dtype).tiny)
    return float(((given - right).abs().max() / largest).nan_to_num(nan=torch.inf))


def _drawn(learned: TaskRecord) -> Inputs:
    """Inputs like those a task was learned on, always the same."""
    chance = torch.Generator().manual_seed(0)
    count = max(COMPARED_ROWS)

    def draw(part: tuple[tuple[int, ...], str], limits: tuple[int, int] | None) -> Tensor:
        shape, dtype = (count, *part[0]), getattr(torch, part[1])
        if dtype.is_floating_point:
            return torch.randn(shape, generator=chance).to(dtype)
        if limits is None:
            raise InputError(
                f"task {learned.name!r} takes inputs of {part[1]}, and which values are allowed is not known: pass an "
                "example, export(learner, task, path, inputs=a_batch)."
            )
        return torch.randint(limits[0], limits[1] + 1, shape, generator=chance).to(dtype)

    kind, ranges = learned.inputs, learned.certificate.ranges if learned.certificate else None
    if isinstance(kind, dict):
        return {name: draw(part, ranges and ranges[name]) for name, part in kind.items()}
    if _is_one(kind):
        return draw(kind, ranges)
    return tuple(draw(part, ranges and ranges[i]) for i, part in enumerate(kind))


def _admitted(inputs: Inputs, module: nn.Module) -> Inputs:
    """Inputs as `predict` takes them: floating-point numbers in the type of the weights."""
    kinds = {tensor.dtype for tensor in module.parameters() if tensor.is_floating_point()}
    dtype = kinds.pop() if len(kinds) == 1 else None
    return convert(inputs, lambda value: value.detach().to("cpu", dtype if value.is_floating_point() else None))


def _take(inputs: Inputs, count: int) -> Inputs:
    """The first rows; where there are fewer, again from the first."""
    at = torch.arange(count) % rows(inputs)
    return convert(inputs, lambda value: value.index_select(0, at))


def _in_order(inputs: Inputs, kind: Any) -> Inputs:
    """The same inputs; if they have names, in the order of the module's arguments, by which torch traces them."""
    return {name: inputs[name] for name in kind} if isinstance(inputs, dict) else inputs


def _refuse_empty(inputs: Inputs) -> None:
    if any(value.dim() == 0 or not len(value) for value in tensors_of(inputs)):
        shapes = [tuple(value.shape) for value in tensors_of(inputs)]
        raise InputError(f"an example has one row or more, batch first; got shapes {shapes}.")


def _refuse_infinite(answers: Iterable[Tensor], task: str) -> None:
    if not all(bool(answer.isfinite().all()) for answer in answers):
        raise InputError(
            f"task {task!r} answers the example with numbers that are not finite, so nothing can be compared: pass "
            "inputs it can take, export(learner, task, path, inputs=a_batch)."
        )


def _names(inputs: Any) -> list[str]:
    """What inputs, or those of a signature, are called from outside."""
    if isinstance(inputs, dict):
        unusable = [name for name in inputs if not name.isidentifier() or iskeyword(name)]
        if unusable:
            raise InputError(
                f"inputs are named as arguments of Python; {unusable} cannot be. Rename them and learn anew."
            )
        return list(inputs)
    return ["input"] if isinstance(inputs, Tensor) else [f"input_{i}" for i in range(len(inputs))]


def _is_one(kind: Any) -> bool:
    """Whether a signature is that of one tensor."""
    return isinstance(kind, tuple) and isinstance(kind[-1], str)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep to themselves what exporters tell their own developers."""
    families = ("torch", "onnxscript", "onnx_ir")
    known = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in families]
    levels = {name: logging.getLogger(name).level for name in (*families, *known)}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
