"""HAT, hard attention to the task: every unit has a gate per task, and what used units share keeps still.

The gate of a unit is a = sigmoid(s e), with an embedding e that the task learns. Within an epoch s grows from 1/smax to
smax, so that gates begin soft and end almost hard. A weight between units that learned tasks use keeps still as far as
they use them: its gradient is multiplied by 1 - min(A[out], A[in]), with A the largest gate of a unit so far. A penalty
makes a task prefer units that are used already.

Linear and convolution layers of any module are gated, each output unit or channel; `forgetfree.units` says where a gate
sits and which units feed which layer. Beyond the paper: norms and all buffers are each task's own, starting from the
wrapped ones; all other parameters (embeddings, recurrent and attention layers, layers with a tied weight) are learned
with the first task and stay as it left them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from forgetfree import learners
from forgetfree.checks import check_number, check_switch
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.errors import InputError, ModuleError
from forgetfree.heads import HeadFactory
from forgetfree.lessons import Lessons, Place
from forgetfree.modules import as_call, clone, copy_module, freeze, named_tensors, refuse, with_tensors
from forgetfree.rng import generator
from forgetfree.tickets import Ticket
from forgetfree.training import Recipe, Session
from forgetfree.units import Layer, Wiring, along, ends, layer_at, wiring

LARGEST_EMBEDDING = 6.0
LARGEST_EXPONENT = 50.0
"""Of the cosh that compensates for annealing."""
Norm = nn.modules.batchnorm._NormBase
NORMS = (Norm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class HAT:
    """Units gated per task; old answers move a little where a gate is neither 0 nor 1, with `hard` gates not at all.

    `smax` is the steepness gates end with, `sparsity` the weight of the penalty (the paper's c). `hard` gates are 0 or
    1 in answers and in what is kept; under plain SGD old answers are then bit-identical. A loop of one's own says in
    `session.through` how far the epoch has come; otherwise gates are as steep as they get from the start.
    """

    scenario: Literal["til"] = "til"
    forget_free = False

    def __init__(
        self,
        backbone: nn.Module,
        *,
        smax: float = 400.0,
        sparsity: float = 0.75,
        hard: bool = False,
        recipe: Recipe | None = None,
        heads: HeadFactory | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        refuse(backbone)
        self.smax = check_number("smax, the steepness of a gate,", smax, 1)
        self.sparsity = check_number("sparsity, the weight of the penalty on newly used units,", sparsity, 0)
        self.hard = check_switch("hard", hard)
        self.backbone = clone(backbone).to(device)
        """The shared weights; norms and buffers in it are what a task starts from."""
        self.wiring = wiring(self.backbone)
        self.tickets: Mapping[str, Ticket] = {}
        """Gates, norms and buffers of every task."""
        recipe = recipe or Recipe(optimizer="sgd", lr=0.05)
        _refuse_what_moves_without_gradient(recipe)
        self.lessons = Lessons(
            self._answer, self._place, recipe=recipe, heads=heads, seed=seed, cache_bytes=cache_bytes
        )

    learn, predict, guess = learners.learn, learners.predict, learners.guess
    verify, parts, tasks = learners.verify, learners.parts, learners.tasks

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Learn a task in your own loop: `session.parameters()`, `session(inputs)`, and at the end `session.keep()`."""
        with self.lessons.turn(task):
            used = self.used()
            trained = self._trainable()
            gated = Gated(trained, self.wiring, used)
            gates = Gates(self.wiring.units, self.smax, generator(self.lessons.seed, self.lessons.position, "gates"))
            gates.to(self._place().device)
            price = self._price(used)

            def features(inputs: Inputs) -> Any:
                if trained.training:
                    return gated(inputs, gates(1 / self.smax + (self.smax - 1 / self.smax) * session.through))
                return gated(inputs, gates.final(hard=self.hard))

            def penalty() -> Tensor:
                return torch.dot(gates.now if trained.training else gates.settled(hard=self.hard), price)

            def keep() -> None:
                self._keep(task.name, trained, gates.final(hard=self.hard))
                self.lessons.forget_answers()

            settings = {"smax": self.smax, "sparsity": self.sparsity, "hard": self.hard}
            with self.lessons.session(
                task, {"network": trained, "gates": gates}, features, keep, holders=(self,), penalty=penalty,
                settings=settings,
            ) as session:  # fmt: skip
                yield session

    def gates(self, task: str) -> dict[str, Tensor]:
        """The gates of a learned task, by layer."""
        self.lessons.refuse_unknown([task])
        return _gates_of(self.tickets[task], self.wiring)

    def used(self) -> dict[str, Tensor]:
        """A: the largest gate of every unit over all learned tasks, by layer."""
        device = self._place().device
        nothing = {layer: torch.zeros(count, device=device) for layer, count in self.wiring.units.items()}
        every = [nothing, *(_gates_of(ticket, self.wiring) for ticket in self.tickets.values())]
        return {layer: torch.stack([gates[layer] for gates in every]).amax(0) for layer in nothing}

    def memory(self) -> Memory:
        start = self._start()
        unchanged = {name for ticket in self.tickets.values() for name in start.keys() - ticket.own.keys()}
        return Memory(
            {name: tensor.detach() for name, tensor in named_tensors(self.backbone) if name not in start},
            {},
            {name: start[name] for name in start if name in unchanged},
            self.tickets,
            self.lessons.heads.tensors(),
            training={f"start.{name}": start[name] for name in start if name not in unchanged},
        )

    def remove(self, task: str) -> None:
        """Forget a task: its gates, norms and head go, and units that only it used are free again.

        What it did to the shared weights stays in them.
        """
        with self.lessons.removing(task, self):
            self.tickets = {name: ticket for name, ticket in self.tickets.items() if name != task}

    def stored(self, *, resumable: bool = False) -> LearnerState:
        arguments = {"smax": self.smax, "sparsity": self.sparsity, "hard": self.hard}
        with self.lessons.still():
            memory, gates = self.memory(), {name: self.gates(name) for name in self.tickets}
            # in an archive the own tensors of a ticket are tensors of the backbone, so gates go beside them
            without = {
                name: Ticket({}, {key: value for key, value in ticket.own.items() if not key.startswith(GATES)})
                for name, ticket in self.tickets.items()
            }
            return self.lessons.stored(
                self.backbone, replace(memory, tickets=without), resumable=resumable, arguments=arguments,
                training={"start": self._start(), "gates": gates},
            )  # fmt: skip

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "HAT":
        """A learner made again from what was stored."""
        learner = cls(backbone, **{**stored.arguments, **others})
        learner.backbone = with_tensors(learner.backbone, {**stored.memory.shared, **stored.training["start"]})
        for name, gates in stored.training["gates"].items():
            if {layer: len(gate) for layer, gate in gates.items()} != learner.wiring.units:
                raise ModuleError(f"the gates of task {name!r} are not those of this backbone.")
        learner.tickets = {
            name: Ticket({}, {**ticket.own, **_named(stored.training["gates"][name])})
            for name, ticket in stored.memory.tickets.items()
        }
        learner.lessons.restore(stored)
        return learner

    def to(self, device: torch.device | str) -> "HAT":
        with self.lessons.moved(device):
            self.backbone = clone(self.backbone).to(device)
            self.tickets = {
                name: Ticket({}, {key: value.to(device) for key, value in ticket.own.items()})
                for name, ticket in self.tickets.items()
            }
        return self

    def _start(self) -> dict[str, Tensor]:
        """What norms and buffers are before a task learns."""
        norms = [part for part in self.backbone.modules() if isinstance(part, NORMS)]
        owned = {id(value) for value in (*self.backbone.buffers(), *(v for norm in norms for v in norm.parameters()))}
        return {name: tensor.detach() for name, tensor in named_tensors(self.backbone) if id(tensor) in owned}

    def _price(self, used: Mapping[str, Tensor]) -> Tensor:
        """What a unit costs: the penalty is c Σ a (1 - A) / Σ (1 - A), for the first task c times the mean gate."""
        free = 1 - torch.cat([*used.values(), torch.zeros(0, device=self._place().device)])
        return self.sparsity * free / free.sum().clamp_min(torch.finfo(free.dtype).tiny)

    def _trainable(self) -> nn.Module:
        """A copy of the network to learn in; after the first task only gated layers and a task's own tensors move."""
        trained = clone(self.backbone)
        if self.tickets:
            layers = [trained.get_submodule(layer) for layer in self.wiring.units]
            movable = {id(value) for layer in layers for value in layer.parameters()}
            for name, value in trained.named_parameters():
                value.requires_grad_(value.requires_grad and (id(value) in movable or name in self._start()))
        return trained

    def _keep(self, name: str, trained: nn.Module, gates: Mapping[str, Tensor]) -> None:
        tensors, start = {name: value.detach().clone() for name, value in named_tensors(trained)}, self._start()
        own = {key: tensors[key] for key in start if not _same(tensors[key], start[key])}
        self.tickets = {**self.tickets, name: Ticket({}, {**own, **_named(gates)})}
        self.backbone = copy_module(self.backbone, lambda key, old: old.detach() if key in start else tensors[key])

    def _answer(self, name: str) -> nn.Module:
        """The network of a task with its gates written into weights and norms: a (W x + b) = (a W) x + a b."""
        ticket, gates = self.tickets[name], self.gates(name)
        module = copy_module(self.backbone, lambda key, old: ticket.own.get(key, old).detach().clone())
        with torch.no_grad():
            for layer, host in self.wiring.hosts.items():
                norm = cast(Norm, module.get_submodule(host)) if host != layer else None
                _write_gate(layer_at(module, layer), gates[layer], self.wiring.into(layer, gates), norm)
        return freeze(module)

    def _place(self) -> Place:
        return Place.of(self.backbone.parameters())


class Gates(nn.Module):
    """The gates of the task that is being learned, those of all layers in one row."""

    now: Tensor
    """What was given last."""

    def __init__(self, units: Mapping[str, int], smax: float, chance: torch.Generator):
        super().__init__()
        self.units, self.smax, self.s = units, smax, smax
        self.embedding = nn.Parameter(torch.randn(sum(units.values()), generator=chance))
        self.embedding.register_hook(self._compensated)  # type: ignore[no-untyped-call]

    def forward(self, s: float) -> dict[str, Tensor]:
        """sigmoid(s e), by layer."""
        with torch.no_grad():
            self.embedding.clamp_(-LARGEST_EMBEDDING, LARGEST_EMBEDDING)
        self.s = s
        self.now = torch.sigmoid(s * self.embedding)
        return self._by_layer(self.now)

    def final(self, *, hard: bool) -> dict[str, Tensor]:
        """The gates of answers, by layer."""
        return self._by_layer(self.settled(hard=hard))

    def settled(self, *, hard: bool) -> Tensor:
        """All gates in one row: as steep as they get, or steps."""
        embedding = self.embedding.detach()
        return (embedding > 0).to(embedding.dtype) if hard else torch.sigmoid(self.smax * embedding)

    def _by_layer(self, gates: Tensor) -> dict[str, Tensor]:
        rows = gates.split_with_sizes(list(self.units.values())) if self.units else ()
        return dict(zip(self.units, rows, strict=True))

    def _compensated(self, gradient: Tensor) -> Tensor:
        """As large as if s had been smax, whatever it was: where a gate is steep, its own gradient vanishes."""
        embedding = self.embedding.detach()
        steep = (self.s * embedding).clamp_(-LARGEST_EXPONENT, LARGEST_EXPONENT).cosh_().add_(1)
        return gradient * steep.div_(embedding.cosh().add_(1)).mul_(self.smax / self.s)


class Gated:
    """A module in which gates multiply units, and weights between used units get no gradient."""

    def __init__(self, module: nn.Module, wiring: Wiring, used: Mapping[str, Tensor]):
        self.module = module
        self._gates: Mapping[str, Tensor] = {}
        self._reached: set[str] = set()
        for part in module.modules():
            if isinstance(part, nn.TransformerEncoder):
                part.use_nested_tensor = False  # which no gate could multiply
        for layer, host in wiring.hosts.items():
            part = layer_at(module, layer)
            multiply = partial(self._multiply, layer, part, host != layer)
            module.get_submodule(host).register_forward_hook(multiply)
            out, into = ends(part, used[layer], wiring.into(layer, used))
            for value, free in ((part.weight, 1 - torch.minimum(out, into)), (part.bias, 1 - used[layer])):
                if value is not None and value.requires_grad:
                    some = free.to(value.dtype) if bool((free != 1).any()) else None
                    value.register_hook(partial(self._protected, layer, some))  # type: ignore[no-untyped-call]

    def __call__(self, inputs: Inputs, gates: Mapping[str, Tensor]) -> Any:
        self._gates, self._reached = gates, set()
        args, kwargs = as_call(inputs)
        return self.module(*args, **kwargs)

    def _multiply(self, layer: str, part: Layer, on_norm: bool, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        if on_norm and type(part) is nn.Linear and output.dim() != 2:
            raise ModuleError(
                f"the norm behind {layer} takes an output of shape {tuple(output.shape)}, whose units are not its "
                "channels. Use nn.LayerNorm, or put the norm elsewhere."
            )
        self._reached.add(layer)
        return output * along(part, self._gates[layer]).to(output.dtype)

    def _protected(self, layer: str, free: Tensor | None, gradient: Tensor) -> Tensor:
        if layer not in self._reached:
            raise ModuleError(
                f"the weight of {layer} is used, but the layer is not called, so that no gate reaches its units. Call "
                "the layer, or hold the weight as a parameter of your own module."
            )
        return gradient if free is None else gradient * free


GATES = "gates."


def _named(gates: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gates by the names they have among a task's own tensors."""
    return {f"{GATES}{layer}": gate.detach().clone() for layer, gate in gates.items()}


def _gates_of(ticket: Ticket, wiring: Wiring) -> dict[str, Tensor]:
    return {layer: ticket.own[f"{GATES}{layer}"] for layer in wiring.units}


def _write_gate(part: Layer, gate: Tensor, into: Tensor | None, norm: Norm | None) -> None:
    """Multiply the units of a layer by their gates, or those of the norm behind it.

    Weights at a closed gate become zero. A product would not do: it keeps the sign of a weight that later tasks move.
    """
    out, inputs = ends(part, gate, into)
    is_open = (out != 0) & (inputs != 0)
    if norm is None:
        part.weight.copy_((part.weight * out.to(part.weight.dtype)).where(is_open, 0))
        gated = [part.bias]
    else:
        part.weight.copy_(part.weight.where(is_open, 0))
        if part.bias is not None:
            part.bias.copy_(part.bias.where(gate != 0, 0))
        if norm.weight is None:
            ones = torch.ones_like(gate, dtype=part.weight.dtype)
            norm.weight, norm.bias, norm.affine = nn.Parameter(ones), nn.Parameter(torch.zeros_like(ones)), True
        gated = [norm.weight, norm.bias]
    for value in gated:
        if value is not None:
            value.copy_((value * gate.to(value.dtype)).where(gate != 0, 0))


def _same(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype) and torch.equal(one, other)


def _refuse_what_moves_without_gradient(recipe: Recipe) -> None:
    faults = {
        f"optimizer={recipe.optimizer!r}": not callable(recipe.optimizer) and recipe.optimizer != "sgd",
        f"momentum={recipe.momentum}": not callable(recipe.optimizer) and recipe.momentum > 0,
        f"weight_decay={recipe.weight_decay}": not callable(recipe.optimizer) and recipe.weight_decay > 0,
        "carry_optimizer=True": recipe.carry_optimizer,
    }
    found = [fault for fault, there in faults.items() if there]
    if found:
        raise InputError(
            f"HAT protects used weights by a gradient of zero, and {', '.join(found)} moves weights without one. Use "
            "Recipe(optimizer='sgd', lr=0.05), without momentum and weight decay."
        )
