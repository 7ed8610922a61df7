"""SharedNetwork: any nn.Module seen through masks. A task learns in a view, and answers with a module of its own.

Each tensor of a wrapped module is of one of three kinds, and there is no fourth:

    masked   one value for all tasks; each task sees it through its mask
    owned    every task has its own: biases, norms, running statistics, counters
    fixed    `requires_grad=False` when wrapped: taken as it is, stored once

While a task learns, a private copy of the module runs on ONE dict of tensors that is put into it for every call:

    effective weight = where(used, kept, free) · mask          θ ⊙ m_t, with M_{t-1} as `used`

`kept` is a plain tensor, not a parameter: no optimizer, weight decay, momentum or stray user code can move what a
learned task uses. `keep` makes the ticket. To answer, a task gets a plain module with its weights written into it.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from forgetfree import deprecation
from forgetfree.contracts import Inputs, LearnerState, Memory
from forgetfree.copies import Copies, copy_memory, copy_tensor, copy_ticket, copy_tree
from forgetfree.errors import InputError, ModuleError, TaskError
from forgetfree.forms import mapping, numbers
from forgetfree.masked_weights import Shared, masked_weights
from forgetfree.masks import Masks, as_mask
from forgetfree.modules import (
    Lending,
    Placement,
    TensorTree,
    as_call,
    copy_module,
    freeze,
    laid_out,
    named_tensors,
    refuse,
    same_values,
)
from forgetfree.python_state import same_bits
from forgetfree.recomputing import in_backward, lend_again
from forgetfree.recurrent import without_autocast
from forgetfree.tickets import CapacityReport, PackedMask, Ticket, capacity_report
from forgetfree.tickets import used as used_by

log = logging.getLogger("forgetfree")

Kind = Literal["masked", "owned", "fixed", "moving"]
Masked = Iterable[str] | Callable[[str, nn.Parameter, nn.Module], bool] | None
"""Which tensors tasks share: name patterns like "*.weight", or a predicate (name, parameter, module) -> bool."""

SHARED_LAYERS = (
    nn.Linear,
    nn.Bilinear,
    nn.modules.conv._ConvNd,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
    nn.Embedding,
    nn.EmbeddingBag,
)
OWNED_WARNING = 0.10


@dataclass(frozen=True)
class Entry:
    """One tensor of the wrapped module: what kind it is, and why."""

    name: str
    shape: torch.Size
    kind: Kind
    why: str


class Layout(tuple[Entry, ...]):
    """Every tensor of a wrapped module with its kind; printed, it is a table."""

    def __str__(self) -> str:
        cells = [(entry.name, "×".join(map(str, entry.shape)) or "scalar", entry.kind, entry.why) for entry in self]
        widths = [max(len(row[i]) for row in [("tensor", "shape", "kind", "why"), *cells]) for i in range(4)]
        lines = [("tensor", "shape", "kind", "why"), *cells]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
        )

    def of(self, kind: Kind) -> list[str]:
        return [entry.name for entry in self if entry.kind == kind]


@dataclass(frozen=True)
class Kept:
    """What the network remembers between tasks; replaced as a whole, never written into."""

    weights: Mapping[str, Tensor]
    used: Mapping[str, Tensor]
    tickets: Mapping[str, Ticket]


class Origin:
    """Tells the views of one network from those of another; copies of a view are still its views."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Origin":
        return self


class SharedNetwork:
    """A module whose weights many tasks share; the module handed in is never written to."""

    def __init__(
        self,
        module: nn.Module,
        *,
        masked: Masked = None,
        own_from: Literal["wrapped", "previous"] = "wrapped",
        device: torch.device | str | None = None,
    ):
        if own_from not in ("wrapped", "previous"):
            raise InputError(f"own_from is 'wrapped' or 'previous'; got {own_from!r}.")
        refuse(module)
        self.own_from = own_from
        self._origin = Origin()
        self._layout = _layout(module, masked)
        whole = copy_module(module, lambda _, tensor: _copy(tensor, device))
        _reset_running_statistics(whole)
        tensors = dict(named_tensors(whole))
        self._start = {name: tensors[name].detach() for name in self._layout.of("owned")}
        self._fixed = {name: tensors[name].detach() for name in self._layout.of("fixed")}
        weights = {name: tensors[name].detach() for name in self._layout.of("masked")}
        self._template = copy_module(whole, lambda name, tensor: _empty(tensor) if name in weights else tensor)
        self._kept = Kept(
            weights, {name: torch.zeros_like(value, dtype=torch.bool) for name, value in weights.items()}, {}
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedNetwork":
        # a copy of a network is another one: it takes back its own views only
        twin = memo[id(self)] = object.__new__(type(self))
        copied = {name: copy.deepcopy(value, memo) for name, value in vars(self).items() if name != "_origin"}
        vars(twin).update(copied, _origin=Origin())
        return twin

    def __getattr__(self, name: str) -> Any:
        return deprecation.by_old_name(self, name, deprecation.NETWORK)

    def layout(self) -> Layout:
        return self._layout

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The shared weights: values that tasks use, and free ones; copies, like all tensors that are handed out."""
        return Copies(self._kept.weights, copy_tensor)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Of the shared weights."""
        return {name: value.shape for name, value in self._kept.weights.items()}

    @property
    def tickets(self) -> Mapping[str, Ticket]:
        return Copies(self._kept.tickets, copy_ticket)

    @property
    def used(self) -> Mapping[str, Tensor]:
        """True where some task uses a weight: M_t."""
        return Copies(self._kept.used, copy_tensor)

    @property
    def fixed(self) -> Mapping[str, Tensor]:
        """What no task moves."""
        return Copies(self._fixed, copy_tensor)

    @property
    def common(self) -> Mapping[str, Tensor]:
        """What is stored once for all: fixed tensors, and the start of own tensors that some task left unchanged."""
        return Copies(self._common(), copy_tensor)

    def _common(self) -> dict[str, Tensor]:
        unchanged = {name for ticket in self._kept.tickets.values() for name in self._start if name not in ticket.own}
        return self._fixed | {name: self._start[name] for name in sorted(unchanged)}

    @property
    def placement(self) -> Placement:
        """Where the weights live."""
        return Placement.of([*self._kept.weights.values(), *self._fixed.values()])

    @property
    def everything(self) -> Masks:
        """The mask of a dense network: one, for every weight."""
        return {
            name: torch.ones((), dtype=value.dtype, device=value.device) for name, value in self._kept.weights.items()
        }

    def trainable_view(self, *, frozen: bool = False) -> "TrainableView":
        """A view of the network for one more task to learn in; in a `frozen` one no shared weight can move."""
        previous = list(self._kept.tickets.values())[-1:] if self.own_from == "previous" else []
        own = self._start | (dict(previous[0].own) if previous else {})
        used = {name: torch.ones_like(mask) for name, mask in self._kept.used.items()} if frozen else self._kept.used
        return TrainableView(self._template, replace(self._kept, used=used), own, self._fixed, self._origin)

    def view_of(self, name: str, movable: Mapping[str, Tensor] | None = None) -> "TrainableView":
        """A view in which a learned task learns on: all of it, or no more than the `movable` entries.

        With `movable` (where it names no tensor, nothing of that tensor) its own tensors and norms stand still too.
        """
        used = {
            tensor: torch.zeros_like(mask) if movable is None else ~movable.get(tensor, torch.zeros_like(mask))
            for tensor, mask in self._kept.used.items()
        }
        own = self._start | dict(self._kept.tickets[name].own)
        kept = replace(self._kept, used=used)
        return TrainableView(self._template, kept, own, self._fixed, self._origin, standing=movable is not None)

    def view_from(self, weights: Mapping[str, Tensor]) -> "TrainableView":
        """A view with these weights in place of the kept ones: all of it may move, own tensors are as at the start."""
        free = {name: torch.zeros_like(used) for name, used in self._kept.used.items()}
        return TrainableView(self._template, Kept(weights, free, {}), self._start, self._fixed, self._origin)

    def commit(self, name: str, view: "TrainableView") -> None:
        """Take over what task `name` has learned on: its ticket stays, weights and own tensors are the new ones."""
        weights = self._taken_from(view)
        own = self._own_of(view)
        tickets = {**self._kept.tickets, name: replace(self._kept.tickets[name], own=own)}
        self._kept = replace(self._kept, weights=weights, tickets=tickets)

    def keep(self, name: str, view: "TrainableView", masks: Masks) -> None:
        """Make the ticket of task `name` (Algorithm 1, line 9): what it uses of the weights never moves again."""
        if name in self._kept.tickets:
            raise TaskError(f"task {name!r} has a ticket already; tickets are for {list(self._kept.tickets)}.")
        if set(masks) != set(self._kept.weights):
            raise InputError(
                f"a ticket has one mask for each of {list(self._kept.weights)}; got masks for {list(masks)}."
            )
        weights = self._taken_from(view)
        chosen = {tensor: as_mask(mask).expand(weights[tensor].shape) for tensor, mask in masks.items()}
        own = self._own_of(view)
        ticket = Ticket({tensor: PackedMask.pack(mask) for tensor, mask in chosen.items()}, own)
        self._kept = Kept(
            weights,
            {tensor: self._kept.used[tensor] | mask for tensor, mask in chosen.items()},
            {**self._kept.tickets, name: ticket},
        )

    def _own_of(self, view: "TrainableView") -> dict[str, Tensor]:
        """The own tensors of a view that are not as at the start."""
        own = {name: laid_out(value, self._start[name]) for name, value in view.own().items()}
        return {name: value for name, value in own.items() if not same_values(value, self._start[name])}

    def _taken_from(self, view: "TrainableView") -> dict[str, Tensor]:
        """The weights of a view of this network, in memory as they were: the bits of an answer depend on that too."""
        if view.origin is not self._origin:
            raise ModuleError("the network of the session is that of another learner; train the one it came with.")
        view.refuse_moved(self._fixed)
        return {name: torch.empty_like(self._kept.weights[name]).copy_(value) for name, value in view.weights().items()}

    @property
    def module(self) -> nn.Module:
        """The wrapped module's structure, without the shared weights."""
        return copy_module(self._template, lambda _, tensor: copy_tensor(tensor))

    @property
    def start(self) -> Mapping[str, Tensor]:
        """What own tensors are before a task learns."""
        return Copies(self._start, copy_tensor)

    def to_state(self, memory: Memory) -> tuple[Memory, dict[str, Any]]:
        """The memory as an archive has it, and what goes beside it."""
        return memory, {"start": copy_tree(self._start), "fixed": copy_tree(self._fixed)}

    def from_state(self, state: LearnerState) -> None:
        """Become a network that was stored."""
        start, fixed = state.training["start"], state.training["fixed"]
        self._start = {name: laid_out(value, self._start.get(name, value)) for name, value in start.items()}
        self._fixed = {name: laid_out(value, self._fixed.get(name, value)) for name, value in fixed.items()}
        values = {**self._start, **self._fixed}
        self._template = copy_module(self._template, lambda name, old: values[name].clone() if name in values else old)
        weights = {
            name: laid_out(value, self._kept.weights.get(name, value)) for name, value in state.memory.shared.items()
        }
        tickets = {
            name: replace(
                ticket, own={key: laid_out(value, self._start.get(key, value)) for key, value in ticket.own.items()}
            )
            for name, ticket in state.memory.tickets.items()
        }
        self._kept = Kept(weights, _used(tickets, weights), tickets)

    def check_like(self, what: str, tensors: Mapping[str, Tensor]) -> None:
        """Refuse what are no tensors of the shapes that some shared weights have."""
        mapping(numbers)(tensors, what)
        if any(
            name not in self._kept.weights or self._kept.weights[name].shape != value.shape
            for name, value in tensors.items()
        ):
            raise InputError(f"the stored {what} are not of this backbone's weights.")

    def renew(self, fresh: Callable[[str], Tensor]) -> None:
        """Give all free weights the values that `fresh` has for their tensor."""
        used = self._kept.used
        weights = {name: value.where(used[name], fresh(name).to(value)) for name, value in self._kept.weights.items()}
        self._kept = replace(self._kept, weights=weights)

    def unused(self) -> dict[str, Tensor]:
        """The values of weights that no task uses yet, in their order."""
        return {name: value[~self._kept.used[name]] for name, value in self._kept.weights.items()}

    def refill(self, unused: Mapping[str, Tensor]) -> None:
        """Put values back where no task uses a weight, in their order."""
        self.renew(lambda name: self._kept.weights[name].masked_scatter(~self._kept.used[name], unused[name]))

    def memory(
        self,
        heads: Mapping[str, Mapping[str, Tensor]],
        training: Mapping[str, Tensor],
        extras: Mapping[str, Tensor] | None = None,
    ) -> Memory:
        """All that is kept to answer, with these heads and `extras`; and what is kept for `training` only."""
        used = {name: PackedMask.pack(mask) for name, mask in self._kept.used.items()}
        kept = self._kept
        return copy_memory(Memory(kept.weights, used, self._common(), kept.tickets, heads, extras or {}, training))

    def remaining_capacity(self) -> CapacityReport:
        return capacity_report(self._kept.tickets, self.shapes)

    def remove(self, name: str, fresh: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Drop the ticket of a task; entries that it alone used take `fresh` values. Where these are, by tensor."""
        tickets = {other: ticket for other, ticket in self._kept.tickets.items() if other != name}
        used = _used(tickets, self._kept.weights)
        alone = {
            tensor: mask.to(used[tensor].device) & ~used[tensor]
            for tensor, mask in _masks(self._kept.tickets[name]).items()
        }
        weights = {
            tensor: value.where(~alone[tensor], fresh(tensor).to(value)) if bool(alone[tensor].any()) else value
            for tensor, value in self._kept.weights.items()
        }
        self._kept = Kept(weights, used, tickets)
        return alone

    def answer(self, name: str, background: Callable[[str], Tensor] | None = None) -> nn.Module:
        """A plain module, in eval mode, with the weights of task `name` written into it.

        Weights that the task does not use are zero, or multiplied by what `background` gives for their tensor.
        """
        kept = self._kept
        if name not in kept.tickets:
            raise TaskError(f"no ticket for task {name!r}; there are tickets for {list(kept.tickets)}.")
        ticket = kept.tickets[name]

        def tensor_for(tensor: str, old: Tensor) -> Tensor:
            if tensor in ticket.masks:
                # not a product: zero times a free weight has that weight's sign, which a later task may turn
                weight = kept.weights[tensor]
                others = weight * background(tensor).to(weight) if background else 0
                return weight.where(ticket.mask(tensor, weight.device), others)
            return (ticket.own.get(tensor, old)).detach().clone()

        return freeze(copy_module(self._template, tensor_for))

    def to(self, device: torch.device | str) -> None:
        """Move everything that is kept."""

        def moved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: value.to(device) for name, value in tensors.items()}

        tickets = {name: replace(ticket, own=moved(ticket.own)) for name, ticket in self._kept.tickets.items()}
        self._template = copy_module(
            self._template, lambda name, tensor: tensor if name in self._kept.weights else _copy(tensor, device)
        )
        self._start, self._fixed = moved(self._start), moved(self._fixed)
        self._kept = Kept(moved(self._kept.weights), moved(self._kept.used), tickets)


class TrainableView(nn.Module):
    """The network while one task learns: free weights and the task's own tensors may move, nothing else can."""

    def __init__(
        self,
        template: nn.Module,
        kept: Kept,
        own: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        origin: Origin,
        *,
        standing: bool = False,
    ):
        super().__init__()
        self.origin = origin
        self._module: nn.Module
        self._lending: Lending
        # the module holds no values but those put into it: what goes around them fails instead of leaking. It is no
        # child of this one: what may move are the tensors below, and nothing else is to be found among parameters
        module = copy_module(template, lambda _, tensor: _empty(tensor))
        without_autocast(module)
        vars(self)["_module"], vars(self)["_lending"] = module, Lending(module)
        self._standing = standing
        trainable = {} if standing else dict(template.named_parameters())
        module.train(not standing)
        self._fixed = {name: value.clone() for name, value in fixed.items()}
        self._ran = False
        self._home = next(iter(kept.weights.values())).device
        parts = {name: _to_move(value, kept.used[name]) for name, value in kept.weights.items()}
        self._kept = {
            name: (part.free if not isinstance(part.free, nn.Parameter) else part.kept, part.used)
            for name, part in parts.items()
        }
        """Values that learned tasks use, and where: plain tensors, no parameters and no buffers."""
        self.shared_weights = TensorTree(
            {name: part.free for name, part in parts.items() if isinstance(part.free, nn.Parameter)}
        )
        self.own_tensors = TensorTree(
            {name: nn.Parameter(value.clone()) if name in trainable else value.clone() for name, value in own.items()}
        )
        self._own = dict(own) if standing else None
        """Own tensors of a learned task that stand still: what is kept of them, whatever becomes of the buffers."""
        if standing:
            self.own_tensors.leave_out_of_state_dict()

    def forward(
        self,
        inputs: Inputs,
        masks: Masks | Callable[[], Masks],
        shifts: Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]] | None = None,
    ) -> Any:
        """What the module gives for `inputs` through `masks`, with `shifts` added to some weights.

        What has a graph of its own comes as a function: a reentrant gradient checkpoint needs that graph twice.
        In training, statistics and counters land in the own tensors; in eval mode nothing does.
        """
        if not in_backward():
            self._lending.take_back()  # also what a backward() that failed has left there
        learning = self._module.training
        buffers = [name for name in self.own_tensors if self.own_tensors.is_buffer(name)]
        make = partial(self._to_lend, masks, shifts or {})
        lent = make()
        versions = {name: value._version for name, value in self._fixed.items()}
        features = self._lending(lent, *as_call(inputs))
        for name, value in self._fixed.items():
            if lent[name] is not value or value._version != versions[name]:
                raise _written_to(name)
        if learning:
            self._refuse_late(lent)
            for name in buffers:
                self.own_tensors[name] = lent[name].detach()  # a module may have assigned a new tensor
        lend_again(features, lent, self._lending.may_ask, self._lending.take_back, make, buffers)
        return features

    def _to_lend(
        self,
        masks: Masks | Callable[[], Masks],
        shifts: Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]],
    ) -> dict[str, Tensor]:
        """All tensors of the module for one call: effective weights, what is fixed, and the task's own."""
        shared = self._shared(shifts() if callable(shifts) else shifts)
        lent = masked_weights(masks() if callable(masks) else masks, shared)
        lent.update(self._fixed)
        learning = self._module.training
        for name, value in self.own_tensors.items():
            lent[name] = value if learning else value.clone()
        return lent

    def _shared(self, shifts: Mapping[str, Tensor]) -> dict[str, Shared]:
        moving, shared = self.shared_weights, {}
        for name, (kept, used) in self._kept.items():
            shared[name] = Shared(moving[name], kept, used) if name in moving else Shared(cast(Tensor, kept))
        for name, shift in shifts.items():
            shared[name] = Shared(shared[name].values() + shift)
        return shared

    def _refuse_late(self, lent: Mapping[str, Tensor]) -> None:
        """Refuse a module that makes its buffers as it goes: nobody would own them."""
        late = [] if self._ran else [name for name, _ in named_tensors(self._module) if name not in lent]
        if late:
            raise ModuleError(
                f"{', '.join(late)}: made by the module in its first call, so no task could own it. Register it with "
                "its values before wrapping, or run one batch through the module first."
            )
        self._ran = True

    def refuse_moved(self, fixed: Mapping[str, Tensor]) -> None:
        """Refuse a module that has written to a fixed tensor without its version telling."""
        for name, value in self._fixed.items():
            if not same_bits(value.to(fixed[name].device), fixed[name]):
                raise _written_to(name)

    @property
    def private_copy(self) -> nn.Module:
        """The module that it runs, which holds no values of its own."""
        return self._module

    def weights(self) -> dict[str, Tensor]:
        """The shared weights as they stand, as plain tensors that nobody else holds."""
        with torch.no_grad():
            shared = self._shared({})
            return {name: part.values().detach().to(self._home, copy=True) for name, part in shared.items()}

    def own(self) -> dict[str, Tensor]:
        """The task's own tensors as they stand, as plain tensors that nobody else holds."""
        own = self.own_tensors.items() if self._own is None else self._own.items()
        return {name: value.detach().to(self._home, copy=True) for name, value in own}

    def train(self, mode: bool = True) -> "TrainableView":
        """Training or eval mode; norms that stand still are always in the latter."""
        super().train(mode)
        self._module.train(mode and not self._standing)
        return self

    def stand_still(self) -> None:
        """Let nothing of it move any more."""
        self._standing = True
        self._module.eval()
        self.shared_weights.stand_still()
        self.own_tensors.stand_still()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TrainableView":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = fn(torch.empty(0, device=self._home)).device  # kept values follow to a device, never to a type
        self._kept = {
            name: (None if kept is None else kept.to(device), None if used is None else used.to(device))
            for name, (kept, used) in self._kept.items()
        }
        self._fixed = {name: value.to(device) for name, value in self._fixed.items()}
        return self


def used_words(network: Any) -> str:
    """How much of a shared network tasks use, as the end of a sentence; nothing where none is shared, or used."""
    if not isinstance(network, SharedNetwork) or not network.tickets:
        return ""
    taken = network.remaining_capacity()
    return f"; {sum(taken.used.values()) / sum(taken.total.values()):.0%} of the shared weights used".replace("%", " %")


def _layout(module: nn.Module, masked: Masked) -> Layout:
    homes: dict[int, list[nn.Module]] = {}
    for part in module.modules():
        for parameter in part._parameters.values():
            homes.setdefault(id(parameter), []).append(part)
    chosen = _chosen_by(module, masked, homes)
    entries = []
    for name, parameter in module.named_parameters():
        layer = type(homes[id(parameter)][0]).__name__
        if not parameter.requires_grad:
            entries.append(Entry(name, parameter.shape, "fixed", "requires_grad was False when wrapped"))
        elif name in chosen:
            entries.append(Entry(name, parameter.shape, "masked", chosen[name]))
        else:
            entries.append(Entry(name, parameter.shape, "owned", f"{parameter.dim()}-d parameter of {layer}"))
    for name, buffer in module.named_buffers():
        entries.append(Entry(name, buffer.shape, "owned", "buffer"))
    layout = Layout(entries)
    if not layout.of("masked"):
        raise ModuleError(
            "nothing to share: the module has no linear, convolution, recurrent, attention or embedding weight that "
            "requires a gradient. Choose tensors with masked=…, for example masked=['*.weight']."
        )
    _warn_of_much_owned(module, layout)
    return layout


def _chosen_by(module: nn.Module, masked: Masked, homes: Mapping[int, list[nn.Module]]) -> dict[str, str]:
    """Names of the tensors to mask, each with the reason."""
    learnable = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if masked is None:
        return {
            name: f"weight of {type(home).__name__}"
            for name, value in learnable.items()
            for home in homes[id(value)]
            if value.dim() >= 2 and isinstance(home, SHARED_LAYERS)
        }
    if callable(masked):
        return {
            name: "chosen by masked=" for name, value in learnable.items() if masked(name, value, homes[id(value)][0])
        }
    patterns = [masked] if isinstance(masked, str) else list(masked)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in learnable):
            raise InputError(
                f"masked: no parameter that requires a gradient matches {pattern!r}; there are {list(learnable)}."
            )
    return {name: f"matches {pattern!r}" for name in learnable for pattern in patterns if fnmatchcase(name, pattern)}


def _warn_of_much_owned(module: nn.Module, layout: Layout) -> None:
    sizes = {name: value.numel() for name, value in module.named_parameters()}
    owned = {name: sizes[name] for name in layout.of("owned") if name in sizes}
    share = sum(owned.values()) / max(1, sum(sizes.values()))
    if share > OWNED_WARNING:
        largest = max(owned, key=owned.__getitem__)
        log.warning(
            "%.0f %% of the parameters are owned by each task, which makes every task large (the largest is %r, %d "
            "values). masked=… says which tensors tasks share instead: name patterns or a predicate, in place of the "
            "default choice; layout() lists every tensor.",
            100 * share,
            largest,
            owned[largest],
        )


def _reset_running_statistics(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            part.reset_running_stats()


def _written_to(name: str) -> ModuleError:
    return ModuleError(
        f"{name} asks for no gradient, so it is fixed for all tasks, but the module writes to it. Make it a buffer "
        "(self.register_buffer): then every task has its own."
    )


def _masks(ticket: Ticket) -> dict[str, Tensor]:
    return {tensor: ticket.mask(tensor) for tensor in ticket.masks}


def _used(tickets: Mapping[str, Ticket], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """M_t of some tickets, where the weights are."""
    union = used_by(tickets)
    return {
        name: union[name].to(value.device) if name in union else torch.zeros_like(value, dtype=torch.bool)
        for name, value in weights.items()
    }


def _to_move(value: Tensor, used: Tensor) -> Shared:
    """A shared tensor for one more task: a parameter where something is free, what is used apart from it."""
    if not bool(used.any()):
        return Shared(nn.Parameter(value.detach().clone()))
    if bool(used.all()):
        return Shared(value)  # nothing can move, so there is nothing to learn, to step or to keep twice
    return Shared(nn.Parameter(value.detach().clone()), value, used)


def _empty(tensor: Tensor) -> Tensor:
    """A tensor like this one, without values."""
    return torch.empty_like(tensor, device="meta")


def _copy(tensor: Tensor, device: torch.device | str | None) -> Tensor:
    return tensor.detach().clone() if device is None else tensor.detach().to(device, copy=True)
