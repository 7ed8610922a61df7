"""FSLL, few-shot lifelong learning: in a session only the weights that matter least move, those nearest to zero.

    base        a dense network learns the first session
    sessions    the `fraction` of each tensor that is smallest in magnitude moves, chosen anew every time, by
                triplets + mean cosine between new and old class means + reg_weight · mean |w - w_old|
    answers     the nearest class mean

The released variant is that of the code published with F2M: whole tensors move, those without a weight above
`threshold`; the cosines are a cross-entropy over all class means, and the pull to the old weights has no gradient, so
there is none. In both, biases and norms stand still; the released code lets norms take statistics of the few images.

The L1 pull is a mean over the weights that move: as a sum, its slope is so much steeper than that of the images that a
step of the session jumps over the old value, and the pull drives weights away from where it should hold them.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from forgetfree.authoring import BaseClassifier, Batch, Context, FewShotLearner, Recipe, Session, Task, TaskModel
from forgetfree.few_shot import prototypes
from forgetfree.heads import similarity
from forgetfree.masks import select
from forgetfree.settings import LATER, Exemplars, Fraction, Number, Was, learner
from forgetfree.views import SeenThrough


@learner
class FSLL(FewShotLearner):
    """Move the least important weights in a session, hold all others bit for bit; answer by the nearest class mean.

    `fraction` of every tensor moves in the paper's variant, tensors up to `threshold` in the released one. With
    `exemplars`, so many images of every class of the later sessions are kept, learned again, and their means renewed.
    """

    variant: Annotated[Literal["paper", "released"], LATER] = "paper"
    fraction: Annotated[float, Fraction("the part of each tensor that a session moves", zero=True), LATER] = 0.1
    threshold: Annotated[float, Number("the largest weight of a tensor that moves", 0), LATER] = 0.4
    reg_weight: Annotated[float, Number("the weight of what pulls weights back", 0), LATER, Was("strength")] = 5.0
    margin: Annotated[float, Number("by which other classes are to be farther", 0), LATER] = 0.0
    exemplars: Exemplars = 0
    base_classifier: BaseClassifier = "linear"

    # how the released code trains a session: all images of five classes in one step
    default_session = Recipe(epochs=15, batch_size=25, optimizer="sgd", lr=1e-3, momentum=0.9, weight_decay=5e-4)

    def later(self, task: Task, context: Context) -> TaskModel:
        start = prototypes.extend_prototypes(self.network.answer(context.first), task, context)
        model = LeastImportant(self, self.movable(), start, context)
        model.head = prototypes.learning_head(self.heads, start)
        return model

    def answers(self, session: Session, context: Context) -> nn.Module:
        network, task = self.network.answer(context.first), session.task
        if not context.known:
            return prototypes.first_head(self.heads, network, task, context)
        assert isinstance(session.model, LeastImportant)
        again = list(self.replay.kept)
        means, self.replay = prototypes.rehearsed(session.model.start, network, task, self.replay, context)
        return prototypes.moved_head(self.heads, network, task, means, context, again)

    def movable(self) -> dict[str, Tensor]:
        """True where the next session may move a weight."""
        sizes = {name: weight.abs() for name, weight in self.network.weights.items()}
        if self.variant == "released":
            return {name: size >= 0 for name, size in sizes.items() if float(size.max()) <= self.threshold}
        counts = {name: round(self.fraction * size.numel()) for name, size in sizes.items()}
        return {name: select(-size, counts[name]) for name, size in sizes.items() if counts[name]}


class LeastImportant(SeenThrough):
    """A session in which few weights move: triplets, cosines of class means, and a pull to the old weights."""

    def __init__(self, method: FSLL, movable: Mapping[str, Tensor], start: Tensor, context: Context):
        super().__init__(method.network.view_of(context.first, movable), method.network.everything)
        self.before, self.movable, self.start = dict(method.network.weights), movable, start
        self.known, self.base = context.known, context.base
        self.margin, self.reg_weight, self.variant = method.margin, method.reg_weight, method.variant

    def loss(self, batch: Batch, head: nn.Module) -> Tensor:
        features, labels = self(batch.inputs), batch.labels
        value = triplet_loss(features, labels, self.margin)
        if self.variant == "released":
            return value + prototypes.metric_loss(features, labels, self.start, self.base)
        means = prototypes.batch_means(features, labels, self.start, self.base)
        new = means[torch.unique(labels[labels >= self.known])]
        if len(new):
            value = value + similarity(new, self.start[: self.known], "cosine").mean()
        moved = [(w - self.before[n]).abs()[self.movable[n]] for n, w in self.network.shared_weights.items()]
        return value + self.reg_weight * torch.cat(moved).mean() if moved else value


def triplet_loss(features: Tensor, labels: Tensor, margin: float) -> Tensor:
    """How much farther than another class, less a margin, the own class is: the mean over all triplets, none mined.

    A triplet is an image, another one of its class, and one of another class.
    """
    rows = prototypes.wide(features)
    distance = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    alike = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    anchor, positive = (alike & ~itself).nonzero(as_tuple=True)
    hinge = (distance[anchor, positive][:, None] - distance[anchor] + margin).clamp_min(0)  # [pairs, batch]
    negative = ~alike[anchor]
    return hinge[negative].mean() if bool(negative.any()) else features.sum() * 0
