"""WaRP, a warped parameter space: every layer in a basis of its inputs, where few coefficients hold what is known.

    base        a dense network learns the first session
    its end     Q of every layer, the directions of what it takes in: weights are coefficients now, W = C Q^T;
                the fraction `keep` of C that matters most, where |∂loss/∂C| is largest, is frozen
    sessions    all other coefficients move, by a cross-entropy over the cosines of features to all class means, those
                of new classes as they were before; then the fraction that matters most to the session is frozen too
    answers     the nearest class mean

SoftNet holds the weights with the highest scores and moves others; WaRP does so in the rotated basis. Linear and
convolutional layers are rotated; all else stands still in sessions: biases, norms, other weights. What matters is
told by the loss of sessions, after the first one too: its class means answer from then on, not its classifier.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from math import ceil
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from forgetfree.authoring import BaseClassifier, Context, FewShotLearner, Inputs, Recipe, Session, Task, TaskModel
from forgetfree.batches import Batch, batches
from forgetfree.errors import InputError
from forgetfree.few_shot import prototypes
from forgetfree.forms import mapping, numbers, tensor
from forgetfree.layer_inputs import gram, refuse_infinite, watched
from forgetfree.masks import select
from forgetfree.modules import TensorTree, as_call
from forgetfree.network import TrainableView
from forgetfree.rng import generator
from forgetfree.settings import LATER, Fraction, Number, Whole, learner
from forgetfree.views import SeenThrough

SMALLEST = 1e-12


@learner
class WaRP(FewShotLearner):
    """Freeze the coefficients that matter most, in a basis of each layer's inputs; sessions move the others.

    `keep` is the part of every layer that is frozen after each session: with 1, later ones only add class means.
    """

    keep: Annotated[float, Fraction("the part of each layer that a session freezes", zero=True), LATER] = 0.1
    samples: Annotated[int | None, Whole("how many samples bases and importance are made from", 1), LATER] = None
    """Of each session, drawn at random in batches of one size; all of them if not said."""
    temperature: Annotated[float, Number("by which distances are divided", SMALLEST), LATER] = 1 / 16
    base_classifier: BaseClassifier = "linear"

    default_session = Recipe(epochs=30, batch_size=512, optimizer="sgd", lr=0.01, momentum=0.9)  # thirty full batches
    state = ("bases", "frozen")

    def start(self) -> None:
        self.bases: Mapping[str, Tensor] = {}
        """Q of every layer, [inputs, directions], the direction with most energy first."""
        self.frozen: Mapping[str, Tensor] = {}
        """True where a coefficient never moves again, [outputs, directions]."""

    def check(self) -> None:
        mapping(numbers)(self.bases, "bases")
        mapping(tensor)(self.frozen, "frozen")
        flat = {name: (shape[:1].numel(), shape[1:].numel()) for name, shape in self.network.shapes.items()}
        bases = {name: basis.shape == flat.get(name, ())[1:] * 2 for name, basis in self.bases.items()}
        frozen = {name: (mask.dtype, mask.shape) == (torch.bool, flat.get(name)) for name, mask in self.frozen.items()}
        if bases.keys() != frozen.keys() or not all([*bases.values(), *frozen.values()]):
            raise InputError("the stored bases and frozen coefficients are not of this backbone's layers.")

    def later(self, task: Task, context: Context) -> TaskModel:
        start = prototypes.extend_prototypes(self.network.answer(context.first), task, context)
        model = Rotated(self, start, context)
        model.head = prototypes.learning_head(self.heads, start)
        return model

    def answers(self, session: Session, context: Context) -> nn.Module:
        network, task = self.learnable(context.first), session.task
        if isinstance(session.model, Rotated):
            means = prototypes.update_prototypes(session.model.start, network, task, (), context)
        else:
            means = prototypes.all_means(network, task, context)
            self.bases = bases_of(network, task, self.looked_at(task, context))
        loss = partial(prototypes.metric_loss, means=means, known=len(means), temperature=self.temperature)
        importance = importance_of(network, self.bases, loss, self.looked_at(task, context))
        most = {name: select(each, round(self.keep * each.numel())) for name, each in importance.items()}
        self.frozen = {name: self.frozen.get(name, False) | mask for name, mask in most.items()}
        return prototypes.moved_head(self.heads, network, task, means, context)

    def learnable(self, first: str) -> nn.Module:
        """The network as it answers, with gradients of the shared weights."""
        network = self.network.answer(first)
        for name in self.network.weights:
            network.get_parameter(name).requires_grad_(True)
        return network

    def looked_at(self, task: Task, context: Context) -> Iterator[Batch]:
        """The images of a session that bases and importance are made from, in batches as the first session has them."""
        order, recipe = generator(context.seed, context.position, "warp"), context.recipe
        size, count = recipe.batch_size, None
        if self.samples is not None:
            count = ceil(self.samples / size)
            size = ceil(self.samples / count)
        for batch in islice(batches(task, task.train, size, order=order, loader=recipe.loader), count):
            yield Batch(context.placement.cast(batch.inputs), batch.labels.to(context.placement.device))


class Rotated(SeenThrough):
    """A later session: the coefficients of every layer move from where they are, those that are frozen cannot."""

    def __init__(self, method: WaRP, start: Tensor, context: Context):
        weights = method.network.weights
        every = {name: torch.ones_like(weights[name], dtype=torch.bool) for name in method.bases}
        super().__init__(method.network.view_of(context.first, every), method.network.everything)
        self.network.stand_still()  # what moves are coefficients
        self.start, self.temperature, self.bases = start, method.temperature, dict(method.bases)
        self.free = {name: ~method.frozen[name] for name in self.network.shared_weights}
        self.moves = TensorTree(
            {
                name: nn.Parameter(torch.zeros_like(free, dtype=self.bases[name].dtype))
                for name, free in self.free.items()
                if bool(free.any())
            }
        )

    def shifts(self) -> dict[str, Tensor]:
        """By how much every weight is moved: (move of C) Q^T, nothing where it is frozen."""
        turned = {name: (move * self.free[name]) @ self.bases[name].T for name, move in self.moves.items()}
        weights = self.network.shared_weights
        return {name: shift.view_as(weights[name]).to(weights[name]) for name, shift in turned.items()}

    def forward(self, inputs: Inputs) -> Any:
        return self.network(inputs, self.masks, self.shifts)

    def loss(self, batch: Batch, head: nn.Module) -> Tensor:
        seen, every = self(batch.inputs), len(self.start)
        return prototypes.metric_loss(seen, batch.labels, self.start, every, temperature=self.temperature)

    def settled(self) -> TrainableView:
        """The network with its weights moved."""
        network: TrainableView = copy.deepcopy(self.network)
        with torch.no_grad():
            for name, shift in self.shifts().items():
                network.shared_weights[name].add_(shift)
        return network


def bases_of(network: nn.Module, task: Task, images: Iterator[Batch]) -> dict[str, Tensor]:
    """Q of every layer: the eigenvectors of the uncentred covariance of what it takes in, the largest first."""
    covariance: dict[str, Tensor] = {}

    def note(name: str, layer: nn.Module, inputs: Tensor) -> None:
        covariance[name] = covariance.get(name, 0) + gram(layer, inputs)

    with watched(network, note):
        for batch in images:
            prototypes.without_gradient(network, batch.inputs)
    found = {}
    for name, energy in covariance.items():
        refuse_infinite(task.name, name, energy)
        fine = torch.promote_types(network.get_parameter(name).dtype, torch.float32)
        # in the usual order in memory, as an archive has it: the bits of a product depend on that
        found[name] = torch.linalg.eigh(energy).eigenvectors.flip(1).to(fine).contiguous()
    return found


def importance_of(
    network: nn.Module, bases: Mapping[str, Tensor], loss: Callable[..., Tensor], images: Iterator[Batch]
) -> dict[str, Tensor]:
    """|∂loss/∂C| of every coefficient, the sum over batches; the loss is that of sessions."""
    found = {name: basis.new_zeros(len(network.get_parameter(name)), len(basis)) for name, basis in bases.items()}
    for batch in images:
        args, kwargs = as_call(batch.inputs)
        network.zero_grad()
        with torch.enable_grad():  # not by autograd.grad, which a reentrant gradient checkpoint refuses
            loss(network(*args, **kwargs), batch.labels).backward()  # type: ignore[no-untyped-call]
        for name, basis in bases.items():
            gradient = network.get_parameter(name).grad
            if gradient is not None:
                found[name] += (gradient.flatten(1).to(basis) @ basis).abs()  # ∂loss/∂C = ∂loss/∂W Q
    return found
