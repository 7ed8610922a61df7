"""A classifier that grows: new classes get rows of their own, and the rows of old classes stay as they are.

wider = grown(classifier, 5)                        # five more classes, drawn as a new layer draws its weights
wider = grown(classifier, means)                    # a row for each class mean (imprinting)
"""

from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from forgetfree.checks import check_whole
from forgetfree.errors import InputError
from forgetfree.heads import CosineClassifier
from forgetfree.modules import copy_module

Classifier = TypeVar("Classifier", bound=nn.Linear | CosineClassifier)
Rule = Callable[[Tensor, int], Tensor]
"""(rows of the old classes, how many new ones) -> rows of the new classes, [new, features]."""
Init = Literal["default", "mean", "zeros"] | Rule


def grown(classifier: Classifier, rows: Tensor | int, *, init: Init = "default") -> Classifier:
    """The classifier with more classes: as many as `rows` says, begun by a rule, or with these very rows, [new, width].

    Old rows are equal bit for bit; bias and scale are kept, and all of it may be trained. By rule:

        "default"   as a new layer of the full width draws them from the current random state, bias too
        "mean"      the mean of the old rows, and of their biases
        "zeros"     nothing, no bias
        a function  (old rows, how many) -> new rows; no bias, nor where the rows are given
    """
    old = classifier.weight.detach()
    if isinstance(rows, Tensor):
        if init != "default":
            raise InputError("new rows are given or begun by a rule, not both: leave init out, or say how many rows.")
        weight, bias = rows.detach(), None
    else:
        weight, bias = _begun(classifier, check_whole("rows, how many classes are new,", rows), init)
    if weight.dim() != 2 or weight.shape[1] != old.shape[1]:
        raise InputError(
            f"a new row has {old.shape[1]} weights, [rows, {old.shape[1]}], as many as features; got shape "
            f"{tuple(weight.shape)}."
        )
    new = {"weight": weight, "bias": weight.new_zeros(len(weight)) if bias is None else bias}

    def widened(name: str, value: Tensor) -> Tensor:
        if name in new:
            return nn.Parameter(torch.cat([value.detach(), new[name].to(value)]))
        return nn.Parameter(value.detach().clone()) if isinstance(value, nn.Parameter) else value.detach().clone()

    wider = copy_module(classifier, widened)
    if isinstance(wider, nn.Linear):
        wider.out_features = len(wider.weight)
    return wider  # type: ignore[return-value]


def _begun(classifier: nn.Linear | CosineClassifier, count: int, init: Init) -> tuple[Tensor, Tensor | None]:
    """Weights and biases of new rows, by rule."""
    old = classifier.weight.detach()
    known, width = old.shape
    bias = classifier.bias if isinstance(classifier, nn.Linear) else None
    if init == "default":
        # all rows are drawn, also those that are there already: a layer of this size draws the same numbers
        drawn = (
            nn.Linear(width, known + count, bias=bias is not None)
            if isinstance(classifier, nn.Linear)
            else CosineClassifier(width, known + count)
        )
        bias = drawn.bias if isinstance(drawn, nn.Linear) else None
        return drawn.weight.detach()[known:], None if bias is None else bias.detach()[known:]
    if init == "mean":
        return old.mean(0).expand(count, width), None if bias is None else bias.detach().mean().expand(count)
    if init == "zeros":
        return old.new_zeros(count, width), None
    if not callable(init):
        raise InputError(
            f"init is 'default', 'mean', 'zeros' or a function, (old rows, how many) -> rows; got {init!r}."
        )
    made = init(old, count).detach()
    if made.shape != (count, width):
        raise InputError(f"init is to give {count} rows of {width} weights; it gave shape {tuple(made.shape)}.")
    return made, None
