"""GPM, gradient projection memory: a task may move a weight only across the inputs that earlier tasks gave its layer.

After a task, the inputs of every linear and convolutional layer are looked at: the few directions that hold most of
their energy join the layer's bases M. From then on the gradient of its weight is projected, g <- g - g M M^T, so that
W x stays what it was for every x that M spans. What a projection cannot hold is frozen after the first task: biases,
affine parameters and running statistics of norms (which stay in eval mode), embeddings, recurrent and attention
weights, layers with a forward of their own, and weights that such a part shares. Buffers that a module writes by itself
still move.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from forgetfree import learners
from forgetfree.batches import batches
from forgetfree.contracts import Inputs, LearnerState, Memory, Task
from forgetfree.errors import InputError
from forgetfree.heads import HeadFactory
from forgetfree.lessons import Lessons
from forgetfree.modules import as_call, clone, named_tensors, refuse, with_tensors
from forgetfree.rng import generator
from forgetfree.training import Recipe, Session

FORWARDS = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
"""Of layers that multiply their inputs, or patches of them, by their weight."""
NO_ENERGY = 1e-12
"""A direction with less of the inputs' energy than this is one that they do not have."""


class GPM:
    """One network, one head per task; gradients are projected off the inputs of earlier tasks.

    `threshold` is the part of the energy of its inputs that a layer's bases hold after the first task, in [0, 1]: one
    for all layers or one for each, in the order of the module. It grows by `threshold_step` with every task. The inputs
    are those of `samples` training samples, or in every layer of the first so many of them (`samples_per_layer`).
    """

    scenario: Literal["til"] = "til"
    forget_free = False

    def __init__(
        self,
        backbone: nn.Module,
        *,
        threshold: float | tuple[float, ...] = 0.97,
        threshold_step: float = 0.003,
        samples: int = 125,
        samples_per_layer: tuple[int, ...] | None = None,
        recipe: Recipe | None = None,
        heads: HeadFactory | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        refuse(backbone)
        self.backbone = clone(backbone).to(device)
        layers = list(_layers(self.backbone))
        self.threshold, self.threshold_step = _check_thresholds(threshold, threshold_step, layers)
        self.samples, self.samples_per_layer = _check_samples(samples, samples_per_layer, layers)
        self.bases: Mapping[str, Tensor] | None = None
        """M of every weight that may still move, [inputs of the layer, directions]; None before the first task."""
        self.lessons = Lessons(
            self._answer, self._place, recipe=_check_recipe(recipe), heads=heads, seed=seed, cache_bytes=cache_bytes
        )

    learn, predict, guess = learners.learn, learners.predict, learners.guess
    verify, parts, tasks = learners.verify, learners.parts, learners.tasks
    remove, _answer, _place = learners.remove_head, learners.moving_answer, learners.moving_place

    @contextmanager
    def learning(self, task: Task) -> Iterator[Session]:
        """Learn a task in your own loop, with SGD: gradients come projected. At the end `session.keep()`."""
        with self.lessons.turn(task):
            trained = clone(self.backbone)
            norms = []
            if self.bases is not None:
                _protect(trained, self.bases)
                norms = [part for part in trained.modules() if getattr(part, "running_mean", None) is not None]

            def features(inputs: Inputs) -> Any:
                for norm in norms:  # session.train() puts them in training mode, and they would take statistics
                    norm.eval()
                args, kwargs = as_call(inputs)
                return trained(*args, **kwargs)

            def keep() -> None:
                learned = with_tensors(self.backbone, dict(named_tensors(trained)))  # nothing in it is frozen or hooked
                self.bases = self._bases_after(task, learned)
                self.backbone = learned
                self.lessons.forget_answers()

            with self.lessons.session(
                task,
                {"network": trained},
                features,
                keep,
                holders=(self,),
                lasting=[f"network.{name}" for name, _ in trained.named_parameters()],
                settings=self._arguments(),
            ) as session:
                yield session

    def _bases_after(self, task: Task, learned: nn.Module) -> dict[str, Tensor]:
        """The bases with the directions of this task's inputs added, as many as the threshold asks for."""
        layers = list(_layers(learned))
        thresholds = self.threshold if isinstance(self.threshold, tuple) else [self.threshold] * len(layers)
        later = self.threshold_step * self.lessons.position
        enough = {name: threshold + later for name, threshold in zip(layers, thresholds, strict=True)}
        seen = self._representation(task, learned)
        if self.bases is None:
            return {name: _first(inputs, enough[name]) for name, inputs in seen.items()}
        return {
            name: _grown(basis, seen[name], enough[name]) if name in seen else basis
            for name, basis in self.bases.items()
        }

    def _representation(self, task: Task, learned: nn.Module) -> dict[str, Tensor]:
        """What every layer takes in, [rows, inputs of the layer], for some training samples drawn at random."""
        lessons = self.lessons
        order = generator(lessons.seed, lessons.position, "representation")
        batch = next(batches(task, task.train, self.samples, order=order, loader=lessons.recipe.loader))
        looked_at = clone(learned).eval()
        layers = _layers(looked_at)
        counts = dict(zip(layers, self.samples_per_layer or [self.samples] * len(layers), strict=True))
        seen: dict[str, list[Tensor]] = {}

        def watch(name: str, layer: nn.Module) -> None:
            def note(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
                inputs = args[0] if args else kwargs["input"]
                fraction = min(1.0, counts[name] / len(batch))
                seen.setdefault(name, []).append(_rows(layer, inputs.detach(), fraction))

            layer.register_forward_pre_hook(note, with_kwargs=True)

        for name, sharing in layers.items():
            for layer in sharing:
                watch(name, layer)
        args, kwargs = as_call(self._place().admit(batch.inputs))
        with torch.no_grad():
            looked_at(*args, **kwargs)
        return {name: torch.cat(seen[name]) for name in layers if name in seen}

    def memory(self) -> Memory:
        bases = {f"bases.{name}": value for name, value in (self.bases or {}).items()}
        return learners.moving_memory(self, bases)

    def stored(self, *, resumable: bool = False) -> LearnerState:
        with self.lessons.still():
            training = {"bases": self.bases and dict(self.bases)}
            return self.lessons.stored(
                self.backbone, self.memory(), resumable=resumable, arguments=self._arguments(), training=training
            )

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "GPM":
        """A learner made again from what was stored."""
        learner = cls(backbone, **{**stored.arguments, **others})
        learner.backbone = with_tensors(learner.backbone, stored.memory.shared)
        learner.bases = stored.training["bases"]
        widths = {name: _width(sharing[0]) for name, sharing in _layers(learner.backbone).items()}
        for name, basis in (learner.bases or {}).items():
            if basis.dim() != 2 or widths.get(name) != len(basis) or basis.shape[1] > len(basis):
                raise InputError(f"the stored bases of {name!r} are not of a layer of this backbone.")
        learner.lessons.restore(stored)
        return learner

    def to(self, device: torch.device | str) -> "GPM":
        with self.lessons.moved(device):
            self.backbone = clone(self.backbone).to(device)
            self.bases = self.bases and {name: value.to(device) for name, value in self.bases.items()}
        return self

    def _arguments(self) -> dict[str, Any]:
        return {
            "threshold": self.threshold,
            "threshold_step": self.threshold_step,
            "samples": self.samples,
            "samples_per_layer": self.samples_per_layer,
        }


def _layers(module: nn.Module) -> dict[str, list[nn.Module]]:
    """The weights whose gradients can be projected, each with its layer, or with all layers that share it."""
    parts = list(module.modules())
    # attention uses the weights of the layers inside it without calling them
    hidden = {
        id(part) for attention in parts if isinstance(attention, nn.MultiheadAttention) for part in attention.modules()
    }
    layers = {}
    for name, weight in module.named_parameters():
        owners = [part for part in parts if any(own is weight for own in part._parameters.values())]
        plain = all(type(owner).forward in FORWARDS and owner.weight is weight for owner in owners)
        if plain and weight.requires_grad and not any(id(owner) in hidden for owner in owners):
            layers[name] = owners
    return layers


def _protect(module: nn.Module, bases: Mapping[str, Tensor]) -> None:
    """Project the gradients of weights that have bases with room beside them; freeze all others."""
    for name, parameter in module.named_parameters():
        basis = bases.get(name)
        if basis is None or basis.shape[1] == len(basis):
            parameter.requires_grad_(False)
        elif parameter.requires_grad and basis.shape[1]:
            parameter.register_hook(_Projection(basis))  # type: ignore[no-untyped-call]


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


def _rows(layer: nn.Module, inputs: Tensor, fraction: float) -> Tensor:
    """The vectors that a layer multiplies by its weight, [rows, width], from the first fraction of its inputs."""
    if inputs.is_nested:  # a transformer leaves padding out; rows of zeros have no energy
        inputs = inputs.to_padded_tensor(0.0)
    if isinstance(layer, nn.Linear):
        flat = inputs.reshape(-1, inputs.shape[-1])
        return flat[: _part(flat, fraction)]
    convolution = cast(nn.Conv2d, layer)
    batch = inputs if inputs.dim() == convolution.weight.dim() else inputs.unsqueeze(0)
    return _patches(convolution, batch[: _part(batch, fraction)])


def _part(inputs: Tensor, fraction: float) -> int:
    return max(1, round(len(inputs) * fraction))


def _patches(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """[batch, channels, *size] -> [patches, channels * kernel]; groups have the same patches, of fewer channels."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    windows = nn.functional.pad(images, layer._reversed_padding_repeated_twice, mode=mode)
    for axis, size in enumerate(layer.kernel_size):
        reach = layer.dilation[axis] * (size - 1) + 1
        windows = windows.unfold(axis + 2, reach, layer.stride[axis])
    apart = [slice(None, None, step) for step in layer.dilation]
    windows = windows[(slice(None),) * images.dim() + tuple(apart)]
    by_group = windows.reshape(len(windows), layer.groups, -1, *windows.shape[2:])
    # [batch, groups, channels, *places, *kernel] -> [batch, groups, *places, channels, *kernel]
    return by_group.movedim(2, -len(apart) - 1).reshape(-1, _width(layer))


def _width(layer: nn.Module) -> int:
    """How many inputs each output of a layer multiplies."""
    return cast(Tensor, layer.weight)[0].numel()


def _check_thresholds(
    threshold: float | tuple[float, ...], step: float, layers: list[str]
) -> tuple[float | tuple[float, ...], float]:
    several = isinstance(threshold, list | tuple)
    given: tuple[float, ...] = tuple(threshold) if isinstance(threshold, list | tuple) else (threshold,)
    if not all(_is_number(value) and 0 <= value <= 1 for value in given):
        raise InputError(
            f"threshold is the part of a layer's inputs that is protected, in [0, 1], or one for each layer; got "
            f"{threshold!r}. For 97% pass 0.97."
        )
    if several and len(given) != len(layers):
        raise InputError(f"threshold has {len(given)} values for the {len(layers)} layers {layers}; pass one for each.")
    if not _is_number(step) or not 0 <= step <= 1:
        raise InputError(f"threshold_step is added to the threshold after every task, in [0, 1]; got {step!r}.")
    return (tuple(map(float, given)) if several else float(given[0])), float(step)


def _check_samples(
    samples: int, per_layer: tuple[int, ...] | None, layers: list[str]
) -> tuple[int, tuple[int, ...] | None]:
    if not _is_count(samples):
        raise InputError(
            f"samples is how many samples bases are made from, a whole number of at least 1; got {samples!r}."
        )
    if per_layer is None:
        return samples, None
    if not isinstance(per_layer, list | tuple) or not all(_is_count(count) and count <= samples for count in per_layer):
        raise InputError(f"samples_per_layer are whole numbers from 1 to samples={samples}; got {per_layer!r}.")
    if len(per_layer) != len(layers):
        raise InputError(
            f"samples_per_layer has {len(per_layer)} values for the {len(layers)} layers {layers}; pass one for each."
        )
    return samples, tuple(per_layer)


def _check_recipe(recipe: Recipe | None) -> Recipe:
    """A recipe that leaves a projected step projected; an optimizer of the caller's own is the caller's to judge."""
    if recipe is None:
        return Recipe(optimizer="sgd", lr=0.01)
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
    return recipe


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
