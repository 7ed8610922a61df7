"""Networks without masks: one that all tasks move, or one for every task.

They keep what SharedNetwork keeps for masked ones, in the same words: a view to learn in, `keep`, a module to answer
with, a memory, and what an archive holds.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forgetfree.contracts import LearnerState, Memory
from forgetfree.modules import (
    Placement,
    clone,
    copy_module,
    freeze,
    named_tensors,
    only_movable,
    refuse,
    reset,
    same_values,
    with_tensors,
)
from forgetfree.network import Entry, Kind, Layout
from forgetfree.tickets import Ticket

Norm = nn.modules.batchnorm._NormBase
NORMS = (Norm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class MovingNetwork:
    """One module that all tasks move. Norms and buffers may be each task's own; what else a task has stands beside."""

    def __init__(self, module: nn.Module, *, own_norms: bool = False, device: torch.device | str | None = None):
        refuse(module)
        self.module = clone(module).to(device)
        """As the last task left it; what tasks own is in it as it was at the start."""
        self.tickets: Mapping[str, Ticket] = {}
        self._own_norms = own_norms

    @property
    def placement(self) -> Placement:
        return Placement.of(self.module.parameters())

    @property
    def start(self) -> dict[str, Tensor]:
        """What a task's own tensors are before it learns."""
        if not self._own_norms:
            return {}
        norms = [part for part in self.module.modules() if isinstance(part, NORMS)]
        owned = {id(value) for value in (*self.module.buffers(), *(v for norm in norms for v in norm.parameters()))}
        return {name: tensor.detach() for name, tensor in named_tensors(self.module) if id(tensor) in owned}

    def layout(self) -> Layout:
        """Every tensor, and why it is what it is."""
        return _layout(self.module, self.start, "all tasks move it")

    def trainable_view(self, still: frozenset[str] = frozenset()) -> nn.Module:
        """A copy to learn in; parameters that are `still`, or ask for no gradient, cannot move in it."""
        view = clone(self.module)
        for name, parameter in view.named_parameters():
            if name in still:
                parameter.requires_grad_(False)
        vars(view)["still"] = still
        return only_movable(view)

    def keep(self, name: str, view: nn.Module, beside: Mapping[str, Tensor] | None = None) -> None:
        """Take over what a task has made of the network, and what it has `beside` it."""
        start = self.start
        still: frozenset[str] = getattr(view, "still", frozenset())
        # of what could not move, nothing is taken: whoever wrote to it had no business there
        stood = {key: value for key, value in self.module.named_parameters() if key in still or not value.requires_grad}
        tensors = {key: stood.get(key, value).detach().clone() for key, value in named_tensors(view)}
        own = {key: tensors[key] for key in start if not same_values(tensors[key], start[key])}
        self.module = copy_module(self.module, lambda key, old: old.detach() if key in start else tensors[key])
        self.tickets = {**self.tickets, name: Ticket({}, {**own, **(beside or {})})}

    def answer(self, name: str) -> nn.Module:
        """What a task sees: all of the network, as it is now, with the tensors of its own."""
        own = self.tickets[name].own if name in self.tickets else {}
        return freeze(copy_module(self.module, lambda key, old: own.get(key, old).detach().clone()))

    def remove(self, name: str) -> None:
        """Forget what a task owns; what it did to the network stays in it."""
        self.tickets = {other: ticket for other, ticket in self.tickets.items() if other != name}

    def memory(self, heads: Mapping[str, Mapping[str, Tensor]], training: Mapping[str, Tensor]) -> Memory:
        start = self.start
        unchanged = {name for ticket in self.tickets.values() for name in start.keys() - ticket.own.keys()}
        return Memory(
            {name: tensor.detach() for name, tensor in named_tensors(self.module) if name not in start},
            {},
            {name: start[name] for name in start if name in unchanged},
            self.tickets,
            heads,
            training={**training, **{f"start.{name}": start[name] for name in start if name not in unchanged}},
        )

    def to_state(self, memory: Memory) -> tuple[Memory, dict[str, Any]]:
        """The memory as an archive has it, and what goes beside it: a ticket there holds tensors of the module only."""
        if not self._own_norms:
            return memory, {}
        names = {name for name, _ in named_tensors(self.module)}
        tickets, beside = {}, {}
        for task, ticket in self.tickets.items():
            tickets[task] = Ticket({}, {key: value for key, value in ticket.own.items() if key in names})
            beside[task] = {key: value for key, value in ticket.own.items() if key not in names}
        start = {"start": self.start, "beside": beside}
        return Memory(memory.shared, memory.used, memory.common, tickets, memory.heads, training=memory.training), start

    def from_state(self, state: LearnerState) -> None:
        """Become a network that was stored."""
        self.module = with_tensors(self.module, {**state.memory.shared, **state.training.get("start", {})})
        beside = state.training.get("beside", {})
        self.tickets = {
            name: Ticket({}, {**ticket.own, **beside.get(name, {})}) for name, ticket in state.memory.tickets.items()
        }

    def to(self, device: torch.device | str) -> None:
        self.module = clone(self.module).to(device)
        self.tickets = {
            name: Ticket({}, {key: value.to(device) for key, value in ticket.own.items()})
            for name, ticket in self.tickets.items()
        }


class SeparateNetworks:
    """A network for every task, each drawn anew from the wrapped module's own initialisation."""

    def __init__(self, module: nn.Module, *, device: torch.device | str | None = None):
        refuse(module)
        self.module = clone(module).to(device)
        self.networks: Mapping[str, nn.Module] = {}

    @property
    def placement(self) -> Placement:
        return Placement.of(self.module.parameters())

    def layout(self) -> Layout:
        """Every tensor, and why it is what it is."""
        return _layout(self.module, dict(named_tensors(self.module)), "")

    def trainable_view(self) -> nn.Module:
        """A fresh network; who calls this has seeded what it draws from."""
        fresh = clone(self.module)
        reset(fresh)
        return only_movable(fresh)

    def keep(self, name: str, view: nn.Module) -> None:
        learned = with_tensors(self.module, dict(named_tensors(view)))
        self.networks = {**self.networks, name: freeze(learned)}

    def answer(self, name: str) -> nn.Module:
        return freeze(clone(self.networks[name]))

    def remove(self, name: str) -> None:
        self.networks = {other: network for other, network in self.networks.items() if other != name}

    def memory(self, heads: Mapping[str, Mapping[str, Tensor]], training: Mapping[str, Tensor]) -> Memory:
        shared = {
            f"{task}/{name}": tensor.detach()
            for task, network in self.networks.items()
            for name, tensor in named_tensors(network)
        }
        return Memory(shared, {}, {}, {name: Ticket({}) for name in self.networks}, heads, training=training)

    def to_state(self, memory: Memory) -> tuple[Memory, dict[str, Any]]:
        return memory, {}

    def from_state(self, state: LearnerState) -> None:
        names = [name for name, _ in named_tensors(self.module)]
        shared = state.memory.shared
        self.networks = {
            task: freeze(with_tensors(self.module, {name: shared[f"{task}/{name}"] for name in names}))
            for task in state.learned
        }

    def to(self, device: torch.device | str) -> None:
        self.module = clone(self.module).to(device)
        self.networks = {name: freeze(clone(network).to(device)) for name, network in self.networks.items()}


def _layout(module: nn.Module, own: Mapping[str, Tensor], why: str) -> Layout:
    return Layout(Entry(name, value.shape, *_kind(name, value, own, why)) for name, value in named_tensors(module))


def _kind(name: str, tensor: Tensor, own: Mapping[str, Tensor], why: str) -> tuple[Kind, str]:
    if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
        return "fixed", "requires_grad was False when wrapped"
    return ("owned", "every task has its own") if name in own else ("moving", why)
