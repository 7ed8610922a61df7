"""Heads: from features to answers. Each task has its own; a learned one is no parameter of anybody.

In few-shot sessions one head answers for all classes met: mostly `Prototypes`, the nearest class mean.
"""

import ast
import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forgetfree.base_heads import CosineBase
from forgetfree.class_heads import (
    LDA,
    TEEN,
    Bayes,
    CentredCosine,
    Chosen,
    Means,
    Metric,
    NormalisedMeans,
    Ridge,
    RootedMeans,
)
from forgetfree.contracts import Task
from forgetfree.copies import Copies, copy_tensor
from forgetfree.errors import InputError
from forgetfree.modules import clone, copy_module, freeze, full_name, named_tensors, refuse
from forgetfree.rng import preserved_rng

HeadFactory = Callable[[int, Task], nn.Module]
"""(width of the features, task) -> the task's head."""


def linear_head(features: int, task: Task) -> nn.Module:
    """A linear layer with bias: the default."""
    return nn.Linear(features, task.width)


def linear_head_without_bias(features: int, task: Task) -> nn.Module:
    """A linear layer without bias, as in the paper's experiments."""
    return nn.Linear(features, task.width, bias=False)


def similarity(features: Tensor, means: Tensor, metric: Metric) -> Tensor:
    """How close each row of features is to each mean, [rows, means]: minus the squared distance, or the cosine."""
    if metric == "cosine":
        return F.normalize(features, dim=1) @ F.normalize(means, dim=1).T
    # not by a product of matrices: its last bits would depend on how many means there are
    return -(features.unsqueeze(1) - means).square().sum(2)


class Prototypes(nn.Module):
    """Nearest class mean: a score per class, the higher the closer the features are to the mean of its own."""

    def __init__(self, means: Tensor, metric: Metric = "euclidean"):
        super().__init__()
        self.register_buffer("means", means.detach().clone())
        self.means: Tensor
        self.metric: Metric = metric

    def forward(self, features: Tensor) -> Tensor:
        return similarity(features, self.means, self.metric)


class CosineClassifier(nn.Module):
    """A score per class: the cosine between the features and its weights, times one learned scale."""

    def __init__(self, features: int, classes: int, scale: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features))
        nn.init.uniform_(self.weight, -(features**-0.5), features**-0.5)
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * similarity(features, self.weight, "cosine")


def nearest_mean(features: int, task: Task) -> nn.Module:
    """The nearest class mean by Euclidean distance, as in the paper; its means are given later."""
    return Prototypes(torch.zeros(task.width, features))


def nearest_direction(features: int, task: Task) -> nn.Module:
    """The class mean with the smallest angle, as in the released code."""
    return Prototypes(torch.zeros(task.width, features), "cosine")


def cosine_classifier(features: int, task: Task) -> nn.Module:
    """A linear classifier of directions, with a learned scale."""
    return CosineClassifier(features, task.width)


HEADS: dict[str, HeadFactory] = {
    "linear": linear_head,
    "linear_without_bias": linear_head_without_bias,
    "euclidean": nearest_mean,
    "cosine": nearest_direction,
    "cosine_classifier": cosine_classifier,
    "cosine_base": CosineBase(),
    "means": Means(),
    "normalised": NormalisedMeans(),
    "rooted": RootedMeans(),
    "centred": CentredCosine(),
    "teen": TEEN(),
    "lda": LDA(),
    "ridge": Ridge(),
    "bayes": Bayes(),
}
"""Heads by name, for configurations."""


def head_name(factory: HeadFactory) -> str:
    """The name of what makes heads: one of HEADS, with its settings, or where the caller's own factory lives."""
    for name, made in HEADS.items():
        if made is factory:
            return name
        if isinstance(factory, Chosen) and type(made) is type(factory):
            return f"{name}({', '.join(_changed(factory, made))})" if factory != made else name
    return full_name(factory)


LONGEST = 300
"""Letters of a head's name with its settings."""


def head_by_name(text: str) -> HeadFactory | None:
    """What makes heads of this name, as in `euclidean`, or of this name and settings, as in `bayes(directions=32)`."""
    if text in HEADS:
        return HEADS[text]
    name, parenthesis, _ = text.partition("(")
    kind = HEADS.get(name.strip())
    if not parenthesis or not isinstance(kind, Chosen) or len(text) > LONGEST:
        return None
    known = {field.name: getattr(kind, field.name) for field in dataclasses.fields(kind)}
    try:
        call = ast.parse(text.strip(), mode="eval").body
        assert isinstance(call, ast.Call)
        assert not call.args
        given: dict[str, Any] = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
        raise InputError(f"settings of a head are written as in {name}(offset=0.5); got {text!r}.") from None
    for key in given:
        if key not in known:
            raise InputError(f"the head {name} has no {key!r}; it has {', '.join(known)}.")
    return dataclasses.replace(kind, **given)


def _changed(factory: Chosen, usual: Chosen) -> list[str]:
    values = {field.name: getattr(factory, field.name) for field in dataclasses.fields(factory)}
    return [f"{name}={value!r}" for name, value in values.items() if value != getattr(usual, name)]


def check_heads(factory: HeadFactory, kind: type[nn.Module] | tuple[type[nn.Module], ...], words: str) -> HeadFactory:
    """The factory itself, if it makes heads of this kind; `words` say which these are."""
    head = example_head(factory)
    if not isinstance(head, kind):
        raise InputError(f"{words}, not a {type(head).__name__}.")
    return factory


def example_head(factory: HeadFactory) -> nn.Module:
    """A head of the kind that a factory makes, of no particular size."""
    with preserved_rng(torch.device("cpu")):
        example = Task("an example", ("a class",), (torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)))
        return check_factory(factory)(1, example)


def check_factory(factory: HeadFactory) -> HeadFactory:
    """The factory itself, if it can be called: a name is not enough."""
    if not callable(factory):
        raise InputError(
            f"heads is a function, (width, task) -> Module; got {factory!r}. By name there are "
            f"{', '.join(HEADS)}: forgetfree.heads.HEADS[name]."
        )
    return factory


CLASSIFIERS = frozenset({"fc", "classifier", "head", "heads", "score", "logits"})
"""What the last layer of a network is called that was trained for classes of its own."""
PASSED = (nn.Dropout, nn.Identity, nn.Flatten, nn.Softmax, nn.LogSoftmax)
"""Layers behind a classifier."""


def warn_of_classifier(backbone: nn.Module | None, features: Tensor, task: Task) -> None:
    """Warn of a backbone that still ends in its classifier: scores of other classes would be the features of a task."""
    parts = [] if backbone is None or not isinstance(features, Tensor) else list(backbone.named_modules())[1:]
    leaves = [(path, part) for path, part in parts if next(part.children(), None) is None]
    ends = [(path.removeprefix("_orig_mod."), part) for path, part in leaves if not isinstance(part, PASSED)][-1:]
    for path, part in ends:
        if not isinstance(part, nn.Linear) or features.shape[-1] != part.out_features:
            continue
        if part.out_features != len(task.classes) and not CLASSIFIERS & set(path.split(".")):
            continue
        cut = f"backbone.{path} = nn.Identity()"
        if not all(word.isidentifier() for word in path.split(".")):
            cut = f"backbone.set_submodule({path!r}, nn.Identity())"
        warnings.warn(
            f"the backbone ends in {path} ({type(part).__name__}, {part.out_features} outputs), which looks like the "
            f"classifier it was trained with: its scores would be the features that every task learns from. Cut it off "
            f"before wrapping, {cut}; each task gets a head of its own. If it is meant to be there: "
            "warnings.filterwarnings('ignore', 'the backbone ends in').",
            stacklevel=2,
        )


class TaskHeads:
    """One head per task."""

    def __init__(self, factory: HeadFactory | None = None):
        self.factory = None if factory is None else check_factory(factory)
        self._kept: Mapping[str, nn.Module] = {}
        self.widths: Mapping[str, int] = {}
        """Of the features that each head takes."""

    @property
    def kept(self) -> Mapping[str, nn.Module]:
        """The head of every task; copies, like all tensors that are handed out."""
        return Copies(self._kept, lambda head: freeze(clone(head)))

    @kept.setter
    def kept(self, heads: Mapping[str, nn.Module]) -> None:
        self._kept = heads

    def new(self, task: Task, features: Tensor, factory: HeadFactory | None = None) -> nn.Module:
        """A head for `task` that learns from features like these; nothing of it is shared with the factory's.

        `factory` makes it where it is not the kind of head that is kept."""
        if not isinstance(features, Tensor) or features.dim() < 2:
            raise InputError(
                "a backbone gives one tensor of features, [batch, features]; got "
                + (
                    f"shape {tuple(features.shape)}."
                    if isinstance(features, Tensor)
                    else f"a {type(features).__name__}."
                )
            )
        given = factory or self.factory
        if given is None and (features.dim() not in (2, 3) or (task.classifies and features.dim() != 2)):
            raise InputError(
                f"the backbone gives features of shape {tuple(features.shape)}; a linear head needs [batch, features]. "
                "Flatten or pool them at the end of the backbone, or pass heads=factory, (width, task) -> Module."
            )
        made = (given or linear_head)(features.shape[-1], task)
        refuse(made, "head")
        head = clone(made).to(features.device, features.dtype)
        _try(head, task, features)
        return head

    def keep(self, name: str, head: nn.Module, width: int) -> None:
        """Store the head of features of this width as it stands, in tensors that no optimizer has seen."""
        self._kept = {**self._kept, name: freeze(clone(head))}
        self.widths = {**self.widths, name: width}

    def keep_only(self, name: str) -> None:
        """Drop all other heads."""
        self._kept, self.widths = {name: self._kept[name]}, {name: self.widths[name]}

    def remove(self, name: str) -> None:
        self._kept = {other: head for other, head in self._kept.items() if other != name}
        self.widths = {other: width for other, width in self.widths.items() if other != name}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of every head, by task."""
        return {
            name: {key: copy_tensor(value) for key, value in named_tensors(head)} for name, head in self._kept.items()
        }

    def to(self, device: torch.device | str) -> "TaskHeads":
        self._kept = {
            name: copy_module(head, lambda _, value: value.detach().to(device)) for name, head in self._kept.items()
        }
        return self


def _try(head: nn.Module, task: Task, features: Tensor) -> None:
    """Refuse a head that cannot take the features or gives too few answers."""
    try:
        answer = freeze(clone(head))(features)
    except RuntimeError as error:
        raise InputError(
            f"the head of task {task.name!r} cannot take features of shape {tuple(features.shape)}. It says: {error}"
        ) from error
    shape = tuple(answer.shape) if isinstance(answer, Tensor) else ()
    if task.classifies and (len(shape) != 2 or shape[0] != len(features) or shape[1] < task.width):
        raise InputError(
            f"the head of task {task.name!r} gives shape {shape} for {len(features)} samples; it needs a row for each "
            f"and {task.width} outputs."
        )


class Whole(nn.Module):
    """Backbone and head of one task as one plain module."""

    def __init__(self, backbone: nn.Module, head: nn.Module):
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        answer: Tensor = self.head(self.backbone(*args, **kwargs))
        return answer
