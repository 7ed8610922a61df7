"""What a checkpoint or an archive remembers of a training, looked at before it is used.

A digest says that a file is as somebody wrote it, not that they meant well. Tensors must be those of the session, and
what an optimizer or a scheduler kept must be of the form that a new one has.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from forgetfree.forms import (
    FormError,
    anything,
    fields,
    flag,
    listed,
    mapping,
    number,
    optional,
    plain,
    short,
    tensor,
    text,
    whole,
)
from forgetfree.modules import STATISTICS
from forgetfree.training.recipe import Recipe
from forgetfree.training.session import Session

CHECKPOINT = fields(
    {
        "identity": mapping(plain),
        "circumstances": mapping(plain),
        "state": mapping(tensor),
        "best": optional(mapping(tensor)),
        "best_epoch": whole(0),
        "best_loss": number(finite=False),
        "patience": optional(whole(0)),
        "seconds": number(0, 1e12),
        "curves": listed(mapping(number(finite=False)), kind=list),
        "complete": flag,
        "optimizer": optional(
            fields(
                {"state": mapping(mapping(anything), whole(0)), "param_groups": listed(mapping(anything))}, others=True
            )
        ),
    },
    {"scheduler": optional(mapping(anything)), "mean": optional(mapping(tensor))},
)

KEPT = {"adam": {"step", "exp_avg", "exp_avg_sq"}, "sgd": {"momentum_buffer"}, "rmsprop": {"step", "square_avg"}}
KEPT["adamw"] = KEPT["adam"]
"""What our optimizers keep of a parameter; rmsprop with momentum also its buffer."""
COUNTED = (torch.float32, torch.float64)
"""The types in which they count their steps."""


def check_checkpoint(saved: Any, session: Session, recipe: Recipe) -> None:
    """Refuse a checkpoint that this session could not go on from; whose it is, is asked elsewhere."""
    CHECKPOINT(saved, "it")
    epochs, best = len(saved["curves"]), saved["best_epoch"]
    faults = {
        "it has more epochs than the recipe": epochs > recipe.epochs,
        "its best epoch is none of its epochs": best > epochs or (best > 0) is not (saved["best"] is not None),
        "its patience is not that of the recipe": (saved["patience"] is None) is not (recipe.patience is None),
        "it does not say whether it is complete": not saved["complete"] and epochs >= recipe.epochs,
        "its mean is not that of the recipe": (saved.get("mean") is None) is not (recipe.average is None),
        "it lacks what its optimizer knew": saved["optimizer"] is None and not saved["complete"],
    }
    for fault, there in faults.items():
        if there:
            raise FormError(fault)
    now, moving = session.state(), session.moving()
    for state in filter(None, (saved["state"], saved["best"], saved.get("mean"))):
        if state.keys() != now.keys():
            raise FormError("its tensors are not those of the session")
        for name, value in state.items():
            if value.dtype != now[name].dtype or (
                value.shape != now[name].shape and (name in moving or not _grown(value, now[name], name))
            ):
                raise FormError(f"{name} is not of the shape and type that the session has")
            if name in moving and not bool(value.isfinite().all()):
                raise FormError(f"{name} has values that are not finite")


def _grown(value: Tensor, before: Tensor, name: str) -> bool:
    """Whether a buffer of the module's own can have become this one: larger or smaller, not of another form."""
    settled = name.endswith((*STATISTICS, ".weight", ".bias"))
    return not settled and value.dim() == before.dim() and value.numel() != before.numel()


def check_optimizer(saved: Mapping[str, Any], fresh: Mapping[str, Any], recipe: Recipe, sizes: list[Tensor]) -> None:
    """Refuse what an optimizer kept, unless it is of the form that a `fresh` one has for parameters of these sizes."""
    if [group.get("params") for group in saved["param_groups"]] != [group["params"] for group in fresh["param_groups"]]:
        raise FormError("its groups have other parameters")
    for now, then in zip(fresh["param_groups"], saved["param_groups"], strict=True):
        for name in now.keys() & then.keys():  # versions of torch differ in what else a group has
            check_alike(then[name], now[name], f"{name} of a group of parameters")
    for at, kept in saved["state"].items():
        if at >= len(sizes):
            raise FormError(f"it remembers a parameter {at} of {len(sizes)}")
        check_kept(kept, sizes[at], recipe, f"what it knew of parameter {at}")


def check_kept(kept: Mapping[str, Any], parameter: Tensor, recipe: Recipe, where: str) -> None:
    """Refuse what an optimizer kept of one parameter, unless it is as large as that."""
    if not isinstance(recipe.optimizer, str):
        return  # an optimizer of the caller's own, which may keep anything
    if not is_of(kept, recipe):
        raise FormError(f"{where} is {short(', '.join(map(str, kept)))}, which is not what {recipe.optimizer} keeps")
    for name, value in kept.items():
        if name == "step":
            number(0)(float(value) if isinstance(value, Tensor) and value.numel() == 1 else value, f"{where}, {name},")
            if isinstance(value, Tensor) and value.dtype not in COUNTED:
                raise FormError(f"{where}, {name}, is of type {value.dtype}, in which no optimizer counts")
        elif value is not None or recipe.optimizer != "sgd":
            tensor(value, f"{where}, {name},")
            if (value.shape, value.dtype) != (parameter.shape, parameter.dtype):
                raise FormError(f"{where}, {name}, is not of the shape and type of the parameter")


def is_of(kept: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether the names of what was kept of a parameter are those that the recipe's optimizer has for it."""
    if not isinstance(recipe.optimizer, str):
        return True
    buffer = {"momentum_buffer"} if recipe.optimizer == "rmsprop" and recipe.momentum else set()
    wanted = KEPT[recipe.optimizer] | buffer
    return kept.keys() <= wanted if recipe.optimizer == "sgd" else kept.keys() == wanted


def check_alike(found: Any, fresh: Any, where: str) -> None:
    """Refuse values of another form than fresh ones: other names, other types, lists of another length."""
    if isinstance(fresh, dict):
        if not isinstance(found, dict) or found.keys() != fresh.keys():
            raise FormError(f"{where} are not what they should be")
        for name, value in fresh.items():
            check_alike(found[name], value, f"{where}, {name},")
    elif isinstance(fresh, list | tuple):
        listed(anything, len(fresh), len(fresh))(found, where)
        for at, value in enumerate(fresh):
            check_alike(found[at], value, f"{where}, {at},")
    elif isinstance(fresh, Tensor):
        tensor(found, where)
        if found.shape != fresh.shape or found.dtype != fresh.dtype:
            raise FormError(f"{where} is not of the shape and type of a new one")
    else:
        form = {bool: flag, int: number(), float: number(finite=False), str: text()}.get(type(fresh), plain)
        form(found, where)
