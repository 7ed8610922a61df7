"""GPM, gradient projection memory: a task may move a weight only across the inputs that earlier tasks gave its layer.

After a task, the inputs of every linear and convolutional layer are looked at: the few directions that hold most of
their energy join the layer's bases M. From then on the gradient of its weight is projected, g <- g - g M M^T, so that
W x stays what it was for every x that M spans. What a projection cannot hold is frozen after the first task: biases,
affine parameters and running statistics of norms (which stay in eval mode), embeddings, recurrent and attention
weights, layers with a forward of their own, and weights that such a part shares. Buffers that a module writes by itself
still move.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from forgetfree.authoring import Context, InputError, Inputs, Plain, Recipe, Session, Task, TaskLearner, TaskModel
from forgetfree.batches import batches
from forgetfree.dense import MovingNetwork
from forgetfree.layer_inputs import layers, refuse_infinite, rows, watched, width
from forgetfree.modules import GradientHooks, as_call
from forgetfree.rng import generator
from forgetfree.settings import Fraction, Whole, learner

NO_ENERGY = 1e-12
"""A direction with less of the inputs' energy than this is one that they do not have."""


def protected_part(name: str, given: Any) -> float | tuple[float, ...]:
    """The rule of `threshold`: one part of the energy for all layers, or one for each."""
    parts = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not all(isinstance(part, int | float) and not isinstance(part, bool) and 0 <= part <= 1 for part in parts):
        raise InputError(
            f"{name} is the part of a layer's inputs that is protected, in [0, 1], or one for each layer; got "
            f"{given!r}. For 97% pass 0.97."
        )
    return tuple(map(float, parts)) if isinstance(given, list | tuple) else float(given)


def several(_: str, given: Any) -> Any:
    """The rule of `samples_per_layer`: a list, as files have it, is a tuple; `check` sees to the rest."""
    return tuple(given) if isinstance(given, list) else given


@learner
class GPM(TaskLearner):
    """One network, one head per task; gradients are projected off the inputs of earlier tasks.

    `threshold` is the part of the energy of its inputs that a layer's bases hold after the first task, in [0, 1]: one
    for all layers or one for each, in the order of the module. It grows by `threshold_step` with every task. The inputs
    are those of `samples` training samples, or in every layer of the first so many of them (`samples_per_layer`).
    """

    threshold: Annotated[float | tuple[float, ...], protected_part] = 0.97
    threshold_step: Annotated[float, Fraction("what is added to the threshold after every task", zero=True)] = 0.003
    samples: Annotated[int, Whole("how many samples bases are made from", 1)] = 125
    samples_per_layer: Annotated[tuple[int, ...] | None, several] = None

    network_kind = MovingNetwork
    default_recipe = Recipe(optimizer="sgd", lr=0.01)
    state = ("bases",)

    def start(self) -> None:
        self.bases: Mapping[str, Tensor] | None = None
        """M of every weight that may still move, [inputs of the layer, directions]; None before the first task."""

    def check(self) -> None:
        refuse_unprojected(self.recipe or self.default_recipe)
        found = layers(self.network.module)
        check_per_layer("threshold", self.threshold, list(found))
        check_samples(self.samples, self.samples_per_layer, list(found))
        widths = {name: width(sharing[0]) for name, sharing in found.items()}
        for name, basis in (self.bases or {}).items():
            if basis.dim() != 2 or widths.get(name) != len(basis) or basis.shape[1] > len(basis):
                raise InputError(f"the stored bases of {name!r} are not of a layer of this backbone.")

    def view(self, task: Task, context: Context) -> TaskModel:
        return Projected(self.network, self.bases)

    def keep(self, session: Session, context: Context) -> None:
        self.network.keep(session.task.name, session.model.network)
        self.bases = self._bases_after(session.task, context)

    def _bases_after(self, task: Task, context: Context) -> dict[str, Tensor]:
        """The bases with the directions of this task's inputs added, as many as the threshold asks for."""
        names = list(layers(self.network.module))
        thresholds = self.threshold if isinstance(self.threshold, tuple) else [self.threshold] * len(names)
        later = self.threshold_step * context.position
        enough = {name: threshold + later for name, threshold in zip(names, thresholds, strict=True)}
        seen = self._representation(task, context)
        if self.bases is None:
            return {name: _first(inputs, enough[name]) for name, inputs in seen.items()}
        return {
            name: _grown(basis, seen[name], enough[name]) if name in seen else basis
            for name, basis in self.bases.items()
        }

    def _representation(self, task: Task, context: Context) -> dict[str, Tensor]:
        """What every layer takes in, [rows, inputs of the layer], for some training samples drawn at random."""
        order = generator(context.seed, context.position, "representation")
        batch = next(batches(task, task.train, self.samples, order=order, loader=context.recipe.loader))
        looked_at = self.network.module.eval()
        names = layers(looked_at)
        counts = dict(zip(names, self.samples_per_layer or [self.samples] * len(names), strict=True))
        seen: dict[str, list[Tensor]] = {}

        def note(name: str, layer: nn.Module, inputs: Tensor) -> None:
            fraction = min(1.0, counts[name] / len(batch))
            seen.setdefault(name, []).append(rows(layer, inputs, fraction))

        args, kwargs = as_call(context.placement.cast(batch.inputs))
        with torch.no_grad(), watched(looked_at, note):
            looked_at(*args, **kwargs)
        taken_in = {name: torch.cat(seen[name]) for name in counts if name in seen}
        for name, inputs in taken_in.items():
            refuse_infinite(task.name, name, inputs)
        return taken_in


class Projected(Plain):
    """The network with gradients projected off the bases; what has none, or full ones, stands still."""

    def __init__(self, network: MovingNetwork, bases: Mapping[str, Tensor] | None):
        names = [entry.name for entry in network.layout()]
        roomy = {name for name, basis in (bases or {}).items() if basis.shape[1] < len(basis)}
        super().__init__(network.trainable_view(frozenset() if bases is None else frozenset(set(names) - roomy)))
        # session.train() puts norms in training mode, and they would take statistics
        parts = self.network.modules() if bases is not None else ()
        self._norms = [part for part in parts if getattr(part, "running_mean", None) is not None]
        moving = dict(self.network.named_parameters())
        self._hooks = GradientHooks(
            {name: _Projection(basis) for name, basis in (bases or {}).items() if name in moving and basis.shape[1]}
        )

    def forward(self, inputs: Inputs) -> Any:
        self._hooks.put_on(self.network)
        for norm in self._norms:
            norm.eval()
        return super().forward(inputs)


class _Projection:
    """g - g M M^T, each output's gradient as a row; by whichever of M and M M^T has fewer numbers to multiply by."""

    def __init__(self, basis: Tensor):
        self.basis = basis
        self.kept = torch.eye(len(basis)).to(basis) - basis @ basis.T if 2 * basis.shape[1] > len(basis) else None

    def __call__(self, gradient: Tensor) -> Tensor:
        flat = gradient.flatten(1).to(self.basis.dtype)
        if self.kept is not None:
            projected = flat @ self.kept
        else:
            projected = torch.addmm(flat, flat @ self.basis, self.basis.T, alpha=-1)
        return projected.view(gradient.shape).to(gradient.dtype)


def _first(inputs: Tensor, threshold: float) -> Tensor:
    """Bases after the first task: the strongest directions as long as together they hold less than the threshold."""
    energies, directions = _spectrum(inputs.double())
    if threshold < 1:
        directions = directions[:, : int((energies.cumsum(0) < threshold * energies.sum()).sum())]
    return directions.to(torch.promote_types(inputs.dtype, torch.float32))


def _grown(basis: Tensor, inputs: Tensor, threshold: float) -> Tensor:
    """Bases after a later task: as few directions more as it takes to hold the threshold."""
    held, _ = torch.linalg.qr(basis.double())  # as stored it is only nearly orthonormal
    fine = inputs.double()
    total = fine.square().sum()
    energies, directions = _spectrum(fine - (fine @ held) @ held.T, total)
    before = (total - energies.sum()).clamp_min(0) + energies.cumsum(0) - energies
    count = int((before < threshold * total).sum())
    return torch.cat([basis, directions[:, :count].to(basis)], dim=1)[:, : len(basis)]


def _spectrum(inputs: Tensor, total: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Energies (squared singular values), largest first, and their directions as columns; no direction without any."""
    if len(inputs) < inputs.shape[1]:
        directions, values, _ = torch.linalg.svd(inputs.T, full_matrices=False)
        energies = values.square()
    else:
        energies, directions = (found.flip(-1) for found in torch.linalg.eigh(inputs.T @ inputs))
    some = energies > NO_ENERGY * (inputs.square().sum() if total is None else total)
    return energies[some], directions[:, some]


def check_per_layer(name: str, given: Any, layers: list[str]) -> None:
    if isinstance(given, tuple) and len(given) != len(layers):
        raise InputError(f"{name} has {len(given)} values for the {len(layers)} layers {layers}; pass one for each.")


def check_samples(samples: int, per_layer: Any, layers: list[str]) -> None:
    if per_layer is None:
        return
    whole = isinstance(per_layer, list | tuple) and all(
        isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= samples for count in per_layer
    )
    if not whole:
        raise InputError(f"samples_per_layer are whole numbers from 1 to samples={samples}; got {per_layer!r}.")
    check_per_layer("samples_per_layer", tuple(per_layer), layers)


def refuse_unprojected(recipe: Recipe) -> None:
    """Refuse a recipe that leaves a projected step unprojected; an optimizer of the caller's own is theirs to judge."""
    if not callable(recipe.optimizer) and recipe.optimizer != "sgd":
        raise InputError(
            f"GPM needs Recipe(optimizer='sgd'); got {recipe.optimizer!r}, which rescales every entry of a gradient, "
            "so that a projected one is none any more and old tasks are forgotten."
        )
    if recipe.weight_decay > 0:
        raise InputError(
            f"GPM needs Recipe(weight_decay=0); got {recipe.weight_decay}. Decay moves weights past the projection."
        )
    if recipe.carry_optimizer:
        raise InputError(
            "GPM needs Recipe(carry_optimizer=False): momentum of the task before is not projected off its own bases."
        )
