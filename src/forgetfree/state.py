"""State: what a method keeps from task to task beside its network; named once, then stored, moved and counted for it.

A value is a number, a tensor, a mapping of values by name, a module, or something that says by itself how it is stored
(`Scores`, a replay store). It is replaced as a whole, never written into, so that a rollback is a reference put back.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from forgetfree.contracts import LearnerState
from forgetfree.forms import Form, anything, flag, number, plain_or_tensor, tensor, whole
from forgetfree.modules import clone, named_tensors, with_tensors
from forgetfree.tickets import Ticket


@runtime_checkable
class Storable(Protocol):
    """A value of a class of its own: how it is stored, and how it is made again from what was."""

    own_names: bool
    """Whether its state has names of its own in an archive; otherwise it stands there under the name it has here."""

    def to_state(self, *, resumable: bool) -> dict[str, Any]: ...
    def from_state(self, state: Mapping[str, Any], tickets: Mapping[str, Ticket], seed: int) -> Any: ...
    def plain(self) -> Mapping[str, Tensor]: ...
    def on(self, device: torch.device | str) -> Any: ...


def counted(learner: Any, names: Iterable[str]) -> dict[str, Tensor]:
    """All tensors of what a learner keeps under these names."""
    return {full: tensor for name in names for full, tensor in tensors_in(name, getattr(learner, name)).items()}


def stored(learner: Any, names: Iterable[str], *, resumable: bool) -> dict[str, Any]:
    """What a learner keeps under these names, as plain trees of tensors."""
    trees = [to_state(name, getattr(learner, name), resumable=resumable) for name in names]
    return {key: tree for each in trees for key, tree in each.items()}


def restore(learner: Any, names: Iterable[str], state: LearnerState) -> None:
    """Give a new learner what was stored of another under these names."""
    for name in names:
        fresh = getattr(learner, name)
        value = from_state(name, fresh, state.training, state.memory.tickets, learner.seed)
        _form_of(fresh)(value, name)
        object.__setattr__(learner, name, value)


def move(learner: Any, names: Iterable[str], device: torch.device | str) -> None:
    """Put what a learner keeps under these names on another device."""
    for name in names:
        object.__setattr__(learner, name, moved(getattr(learner, name), device))


def tensors_in(name: str, value: Any) -> dict[str, Tensor]:
    """All tensors of a value, by name: what it costs."""
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, Storable):
        return {f"{name}.{key}": tensor for key, tensor in value.plain().items()}
    if isinstance(value, nn.Module):
        return {f"{name}.{key}": tensor.detach() for key, tensor in named_tensors(value)}
    if isinstance(value, Mapping):
        return {full: each for key, item in value.items() for full, each in tensors_in(f"{name}.{key}", item).items()}
    return {}


def to_state(name: str, value: Any, *, resumable: bool) -> dict[str, Any]:
    """A value as plain trees of tensors, by the names an archive has for it."""
    if isinstance(value, Storable):
        stored = value.to_state(resumable=resumable)
        return stored if value.own_names else {name: stored}
    if isinstance(value, nn.Module):
        return {name: dict(named_tensors(value))}
    return {name: _plain(value)}


def from_state(name: str, value: Any, state: Mapping[str, Any], tickets: Mapping[str, Ticket], seed: int) -> Any:
    """The value that was stored; `value` is what a new learner has in its place."""
    if isinstance(value, Storable):
        return value.from_state(state if value.own_names else state[name], tickets, seed)
    if isinstance(value, nn.Module):
        return with_tensors(value, state[name])
    return state[name]


def moved(value: Any, device: torch.device | str) -> Any:
    """The same value on another device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Storable):
        return value.on(device)
    if isinstance(value, nn.Module):
        return clone(value).to(device)
    if isinstance(value, Mapping):
        return {key: moved(item, device) for key, item in value.items()}
    return value


def _form_of(fresh: Any) -> Form:
    """What may take the place of the value that a new learner has; shapes are for the method to check."""
    if isinstance(fresh, bool):
        return flag
    if isinstance(fresh, int | float):
        return whole() if isinstance(fresh, int) else number(finite=False)
    if isinstance(fresh, Tensor):
        return tensor
    return _values if fresh is None or isinstance(fresh, Mapping) else anything


def _values(value: Any, where: str) -> None:
    """Nothing, a tensor, a plain value, or several of these by name."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            _values(each, f"{where}.{name}")
    else:
        plain_or_tensor(value, where)


def _plain(value: Any) -> Any:
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
