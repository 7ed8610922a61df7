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

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn

from forgetfree.authoring import Context, Inputs, Number, Recipe, Session, Task, TaskLearner, TaskModel, learner
from forgetfree.dense import MovingNetwork, Norm
from forgetfree.errors import InputError, ModuleError, TaskError
from forgetfree.modules import GradientHooks, as_call, freeze
from forgetfree.recomputing import lend_again
from forgetfree.rng import generator
from forgetfree.units import Layer, Wiring, along, ends, layer_at, wiring

LARGEST_EMBEDDING = 6.0
LARGEST_EXPONENT = 50.0
"""Of the cosh that compensates for annealing."""
GATES = "gates."


@learner
class HAT(TaskLearner):
    """Units gated per task; old answers move a little where a gate is neither 0 nor 1, with `hard` gates not at all.

    `smax` is the steepness gates end with, `sparsity` the weight of the penalty (the paper's c). `hard` gates are 0 or
    1 in answers and in what is kept; under plain SGD old answers are then bit-identical. A loop of one's own says in
    `session.through` how far the epoch has come; otherwise gates are as steep as they get from the start. With
    `validate_penalty` an epoch is chosen by the loss with the penalty in it, as the released code does.
    """

    smax: Annotated[float, Number("the steepness of a gate", 1)] = 400.0
    sparsity: Annotated[float, Number("the weight of the penalty on newly used units", 0)] = 0.75
    hard: bool = False
    validate_penalty: bool = True

    network_kind = partial(MovingNetwork, own_norms=True)  # a task's ticket: its norms and buffers, and its gates
    default_recipe = Recipe(optimizer="sgd", lr=0.05)

    def start(self) -> None:
        self.wiring = wiring(self.network.module)

    def check(self) -> None:
        refuse_what_moves_without_gradient(self.recipe or self.default_recipe)
        for task, ticket in self.network.tickets.items():
            gates = {name.removeprefix(GATES): len(row) for name, row in ticket.own.items() if name.startswith(GATES)}
            if gates != self.wiring.units:
                raise ModuleError(f"the gates of task {task!r} are not those of this backbone.")

    def view(self, task: Task, context: Context) -> TaskModel:
        used = self.used()
        gates = Gates(self.wiring.units, self.smax, generator(context.seed, context.position, "gates"))
        gates.to(context.placement.device)
        free = 1 - torch.cat([*used.values(), torch.zeros(0, device=context.placement.device)])
        # the penalty is c Σ a (1 - A) / Σ (1 - A), for the first task c times the mean gate
        price = self.sparsity * free / free.sum().clamp_min(torch.finfo(free.dtype).tiny)
        view = self.network.trainable_view(self._still())
        model = Gated(view, gates, self.wiring, used, price, hard=self.hard)
        model.validates_penalty = self.validate_penalty
        return model

    def keep(self, session: Session, context: Context) -> None:
        model = session.model
        assert isinstance(model, Gated)
        gates = model.gates.final(hard=self.hard)
        beside = {f"{GATES}{layer}": gate.detach().clone() for layer, gate in gates.items()}
        self.network.keep(session.task.name, model.network, beside)

    def gates(self, task: str) -> dict[str, Tensor]:
        """The gates of a learned task, by layer."""
        if task not in self.network.tickets:
            raise TaskError(f"no task {task!r} is learned; learned tasks are {list(self.network.tickets)}.")
        own = self.network.tickets[task].own
        return {layer: own[f"{GATES}{layer}"] for layer in self.wiring.units}

    def used(self) -> dict[str, Tensor]:
        """A: the largest gate of every unit over all learned tasks, by layer."""
        device = self.network.placement.device
        nothing = {layer: torch.zeros(count, device=device) for layer, count in self.wiring.units.items()}
        every = [nothing, *(self.gates(task) for task in self.network.tickets)]
        return {layer: torch.stack([gates[layer] for gates in every]).amax(0) for layer in nothing}

    def answer(self, task: str) -> nn.Module:
        """The network of a task with its gates written into weights and norms: a (W x + b) = (a W) x + a b."""
        module, gates = self.network.answer(task), self.gates(task)
        with torch.no_grad():
            for layer, host in self.wiring.hosts.items():
                norm = cast(Norm, module.get_submodule(host)) if host != layer else None
                _write_gate(layer_at(module, layer), gates[layer], self.wiring.into(layer, gates), norm)
        return freeze(module)

    def zero_shot_backbone(self, task: str, position: int) -> nn.Module:
        return self.answer(task)

    def _still(self) -> frozenset[str]:
        """After the first task only gated layers and a task's own tensors move."""
        if not self.network.tickets:
            return frozenset()
        module = self.network.module
        layers = [module.get_submodule(layer) for layer in self.wiring.units]
        movable = {id(value) for layer in layers for value in layer.parameters()}
        own = self.network.start
        return frozenset(n for n, value in module.named_parameters() if id(value) not in movable and n not in own)


class Gates(nn.Module):
    """The gates of the task that is being learned, those of all layers in one row."""

    now: Tensor
    """What was given last."""

    def __init__(self, units: Mapping[str, int], smax: float, chance: torch.Generator):
        super().__init__()
        self.units, self.smax, self.s = units, smax, smax
        self.embedding = nn.Parameter(torch.randn(sum(units.values()), generator=chance))
        self._hooks = GradientHooks({"embedding": self._compensated})

    def forward(self, s: float) -> dict[str, Tensor]:
        """sigmoid(s e), by layer."""
        self._hooks.put_on(self)
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

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "now"}  # of a graph, which has no copy


class Gated(TaskModel):
    """A module in which gates multiply units, and weights between used units get no gradient."""

    def __init__(
        self,
        network: nn.Module,
        gates: Gates,
        wiring: Wiring,
        used: Mapping[str, Tensor],
        price: Tensor,
        *,
        hard: bool = False,
    ):
        super().__init__()
        self.network, self.gates = network, gates
        self.price, self.hard = price, hard
        self._now: Mapping[str, Tensor] = {}
        self._reached: set[str] = set()
        for part in network.modules():
            if isinstance(part, nn.TransformerEncoder):
                part.use_nested_tensor = False  # which no gate could multiply
        hooks: dict[str, Callable[[Tensor], Tensor]] = {}
        for layer, host in wiring.hosts.items():
            part = layer_at(network, layer)
            multiply = partial(self._multiply, layer, part, host != layer)
            network.get_submodule(host).register_forward_hook(multiply)
            out, into = ends(part, used[layer], wiring.into(layer, used))
            for name, free in (("weight", 1 - torch.minimum(out, into)), ("bias", 1 - used[layer])):
                value = part._parameters.get(name)
                if value is not None and value.requires_grad:
                    some = free.to(value.dtype) if bool((free != 1).any()) else None
                    hooks[f"{layer}.{name}".lstrip(".")] = partial(self._protected, layer, some)
        self._hooks = GradientHooks(hooks)

    def forward(self, inputs: Inputs) -> Any:
        self._hooks.put_on(self.network)
        smax = self.gates.smax
        steep = 1 / smax + (smax - 1 / smax) * self.through
        gates = partial(self.gates, steep) if self.training else partial(self.gates.final, hard=self.hard)
        self._put(gates)
        self._reached = set()
        args, kwargs = as_call(inputs)
        features = self.network(*args, **kwargs)
        lend_again(features, self._now, self._put, partial(self._put, dict), gates)
        return features

    def _put(self, gates: Callable[[], Mapping[str, Tensor]]) -> None:
        self._now = gates()

    def penalty(self) -> Tensor:
        """Σ a (1 - A), priced: a task prefers units that are used already."""
        return torch.dot(self.gates.now if self.training else self.gates.settled(hard=self.hard), self.price)

    def _multiply(self, layer: str, part: Layer, on_norm: bool, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        if on_norm and type(part) is nn.Linear and output.dim() != 2:
            raise ModuleError(
                f"the norm behind {layer} takes an output of shape {tuple(output.shape)}, whose units are not its "
                "channels. Use nn.LayerNorm, or put the norm elsewhere."
            )
        self._reached.add(layer)
        return output * along(part, self._now[layer]).to(output.dtype)

    def _protected(self, layer: str, free: Tensor | None, gradient: Tensor) -> Tensor:
        if layer not in self._reached:
            raise ModuleError(
                f"the weight of {layer} is used, but the layer is not called, so that no gate reaches its units. Call "
                "the layer, or hold the weight as a parameter of your own module."
            )
        return gradient if free is None else gradient * free.to(gradient.device)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_now": {}}


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


def refuse_what_moves_without_gradient(recipe: Recipe) -> None:
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
