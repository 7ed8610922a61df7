"""Networks without masks: one that all tasks move, or one for every task.

They keep what SharedNetwork keeps for masked ones, in the same words: a view to learn in, `keep`, a module to answer
with, a memory, and what an archive holds.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forgetfree.contracts import LearnerState, Memory
from forgetfree.copies import Copies, copy_memory, copy_tensor, copy_ticket, copy_tree
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
        self._module = clone(module).to(device)
        """As the last task left it; what tasks own is in it as it was at the start."""
        self._tickets: Mapping[str, Ticket] = {}
        self._own_norms = own_norms

    @property
    def module(self) -> nn.Module:
        """The network as the last task left it; a copy, like all tensors that are handed out."""
        return clone(self._module)

    @property
    def tickets(self) -> Mapping[str, Ticket]:
        return Copies(self._tickets, copy_ticket)

    @property
    def placement(self) -> Placement:
        return Placement.of(self._module.parameters())

    @property
    def start(self) -> Mapping[str, Tensor]:
        """What a task's own tensors are before it learns."""
        return Copies(self._start(), copy_tensor)

    def _start(self) -> dict[str, Tensor]:
        if not self._own_norms:
            return {}
        norms = [part for part in self._module.modules() if isinstance(part, NORMS)]
        owned = {id(value) for value in (*self._module.buffers(), *(v for norm in norms for v in norm.parameters()))}
        return {name: tensor.detach() for name, tensor in named_tensors(self._module) if id(tensor) in owned}

    def layout(self) -> Layout:
        """Every tensor, and why it is what it is."""
        return _layout(self._module, self._start(), "all tasks move it")

    def trainable_view(self, still: frozenset[str] = frozenset()) -> nn.Module:
        """A copy to learn in; parameters that are `still`, or ask for no gradient, cannot move in it."""
        view = clone(self._module)
        for name, parameter in view.named_parameters():
            if name in still:
                parameter.requires_grad_(False)
        vars(view)["still"] = still
        return only_movable(view)

    def keep(self, name: str, view: nn.Module, beside: Mapping[str, Tensor] | None = None) -> None:
        """Take over what a task has made of the network, and what it has `beside` it."""
        start = self._start()
        still: frozenset[str] = getattr(view, "still", frozenset())
        # of what could not move, nothing is taken: whoever wrote to it had no business there
        stood = {
            key: value for key, value in self._module.named_parameters() if key in still or not value.requires_grad
        }
        tensors = {key: stood.get(key, value).detach().clone() for key, value in named_tensors(view)}
        own = {key: tensors[key] for key in start if not same_values(tensors[key], start[key])}
        self._module = copy_module(self._module, lambda key, old: old.detach() if key in start else tensors[key])
        self._tickets = {**self._tickets, name: Ticket({}, {**own, **(beside or {})})}

    def answer(self, name: str) -> nn.Module:
        """What a task sees: all of the network, as it is now, with the tensors of its own."""
        own = self._tickets[name].own if name in self._tickets else {}
        return freeze(copy_module(self._module, lambda key, old: own.get(key, old).detach().clone()))

    def remove(self, name: str) -> None:
        """Forget what a task owns; what it did to the network stays in it."""
        self._tickets = {other: ticket for other, ticket in self._tickets.items() if other != name}

    def memory(self, heads: Mapping[str, Mapping[str, Tensor]], training: Mapping[str, Tensor]) -> Memory:
        start = self._start()
        unchanged = {name for ticket in self._tickets.values() for name in start.keys() - ticket.own.keys()}
        return copy_memory(Memory(
            {name: tensor for name, tensor in named_tensors(self._module) if name not in start},
            {},
            {name: start[name] for name in start if name in unchanged},
            self._tickets,
            heads,
            training={**training, **{f"start.{name}": start[name] for name in start if name not in unchanged}},
        ))  # fmt: skip

    def to_state(self, memory: Memory) -> tuple[Memory, dict[str, Any]]:
        """The memory as an archive has it, and what goes beside it: a ticket there holds tensors of the module only."""
        if not self._own_norms:
            return memory, {}
        names = {name for name, _ in named_tensors(self._module)}
        tickets, beside = {}, {}
        for task, ticket in memory.tickets.items():
            tickets[task] = Ticket({}, {key: value for key, value in ticket.own.items() if key in names})
            beside[task] = {key: value for key, value in ticket.own.items() if key not in names}
        start = {"start": copy_tree(self._start()), "beside": beside}
        return Memory(memory.shared, memory.used, memory.common, tickets, memory.heads, training=memory.training), start

    def from_state(self, state: LearnerState) -> None:
        """Become a network that was stored."""
        self._module = with_tensors(self._module, {**state.memory.shared, **state.training.get("start", {})})
        beside = state.training.get("beside", {})
        self._tickets = {
            name: Ticket({}, {**ticket.own, **beside.get(name, {})}) for name, ticket in state.memory.tickets.items()
        }

    def to(self, device: torch.device | str) -> None:
        self._module = clone(self._module).to(device)
        self._tickets = {
            name: Ticket({}, {key: value.to(device) for key, value in ticket.own.items()})
            for name, ticket in self._tickets.items()
        }


class SeparateNetworks:
    """A network for every task, each drawn anew from the wrapped module's own initialisation."""

    def __init__(self, module: nn.Module, *, device: torch.device | str | None = None):
        refuse(module)
        self._module = clone(module).to(device)
        self._networks: Mapping[str, nn.Module] = {}

    @property
    def module(self) -> nn.Module:
        """The wrapped module; a copy, like all tensors that are handed out."""
        return clone(self._module)

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """The network of every task."""
        return Copies(self._networks, lambda network: freeze(clone(network)))

    @property
    def placement(self) -> Placement:
        return Placement.of(self._module.parameters())

    def layout(self) -> Layout:
        """Every tensor, and why it is what it is."""
        return _layout(self._module, dict(named_tensors(self._module)), "")

    def trainable_view(self) -> nn.Module:
        """A fresh network; who calls this has seeded what it draws from."""
        fresh = clone(self._module)
        reset(fresh)
        return only_movable(fresh)

    def keep(self, name: str, view: nn.Module) -> None:
        learned = with_tensors(self._module, dict(named_tensors(view)))
        self._networks = {**self._networks, name: freeze(learned)}

    def answer(self, name: str) -> nn.Module:
        return freeze(clone(self._networks[name]))

    def remove(self, name: str) -> None:
        self._networks = {other: network for other, network in self._networks.items() if other != name}

    def memory(self, heads: Mapping[str, Mapping[str, Tensor]], training: Mapping[str, Tensor]) -> Memory:
        shared = {
            f"{task}/{name}": tensor
            for task, network in self._networks.items()
            for name, tensor in named_tensors(network)
        }
        tickets = {name: Ticket({}) for name in self._networks}
        return copy_memory(Memory(shared, {}, {}, tickets, heads, training=training))

    def to_state(self, memory: Memory) -> tuple[Memory, dict[str, Any]]:
        return memory, {}

    def from_state(self, state: LearnerState) -> None:
        names = [name for name, _ in named_tensors(self._module)]
        shared = state.memory.shared
        self._networks = {
            task: freeze(with_tensors(self._module, {name: shared[f"{task}/{name}"] for name in names}))
            for task in state.learned
        }

    def to(self, device: torch.device | str) -> None:
        self._module = clone(self._module).to(device)
        self._networks = {name: freeze(clone(network).to(device)) for name, network in self._networks.items()}


def _layout(module: nn.Module, own: Mapping[str, Tensor], why: str) -> Layout:
    return Layout(Entry(name, value.shape, *_kind(name, value, own, why)) for name, value in named_tensors(module))


def _kind(name: str, tensor: Tensor, own: Mapping[str, Tensor], why: str) -> tuple[Kind, str]:
    if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
        return "fixed", "requires_grad was False when wrapped"
    return ("owned", "every task has its own") if name in own else ("moving", why)
