"""Rebalance (LUCIR): a classifier of directions, so that classes with many images do not outweigh those with few.

    scores      σ·cos(features, class weights), with one learned scale σ
    sessions    cross-entropy of the scores, on new images and the few that are kept of every class
                + λ·√(old classes / new classes)·(1 - cos(features, features before))        less-forget
                + max(0, margin - cos of the own class + cos of a new class)                 margin ranking, for images
                  of old classes, against the new classes that come closest
    weights     of old classes stand; those of new classes begin at the mean direction of their images

The first session learns with this classifier too, or takes the dense network that other methods start from and puts the
mean directions of its classes in place of the linear classifier.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forgetfree.authoring import Batch, Context, FewShotLearner, SeenThrough, Session, Task, TaskModel
from forgetfree.few_shot.exemplars import REHEARSAL, herding, with_chosen
from forgetfree.few_shot.prototypes import features_of, means_by_class, without_gradient
from forgetfree.heads import CosineClassifier, HeadFactory, cosine_classifier, linear_head, similarity
from forgetfree.replay import ReplayStore
from forgetfree.rng import generator
from forgetfree.settings import FIRST, LATER, NAMES_BASE, Exemplars, Number, Was, Whole, learner


@learner
class Rebalance(FewShotLearner):
    """One network that all sessions move, a cosine classifier that grows, and `exemplars` images of every class met.

    `less_forget` is λ, the weight of what holds features where they were. An image of an old class is to be closer to
    it than to the `closest` new classes by `margin`; `ranking` is the weight of that. Images are kept by chance, or by
    herding: those whose mean direction stays closest to that of their class.
    """

    first_classifier: Annotated[Literal["cosine", "dense"], FIRST, NAMES_BASE, Was("first")] = "cosine"
    exemplars: Exemplars = 2
    choose: Annotated[Literal["random", "herding"], LATER] = "random"
    less_forget: Annotated[float, Number("the weight of what holds features", 0), LATER] = 4.0
    ranking: Annotated[float, Number("the weight of the margin ranking", 0), LATER] = 1.0
    margin: Annotated[float, Number("by which the own class is to be closer", 0), LATER] = 0.5
    closest: Annotated[int, Whole("how many new classes are ranked", 1), LATER] = 2

    default_session = REHEARSAL
    default_heads = staticmethod(cosine_classifier)
    head_kind = CosineClassifier
    head_words = "this method answers by the angles to class weights: heads are 'cosine_classifier'"

    def base_kind(self) -> str:
        return self.first_classifier

    def first_head(self) -> HeadFactory:
        return self.heads or cosine_classifier if self.first_classifier == "cosine" else linear_head

    def later(self, task: Task, context: Context) -> TaskModel:
        before, new = self.network.answer(context.first), range(context.known, len(task.classes))
        directions = imprinted(*features_of(before, task, task.train, context), new)
        assert isinstance(context.head, CosineClassifier)
        start = Grown(context.head, directions)
        model = Rebalanced(self, before, len(new), context)
        model.head = lambda *_: start
        return model

    def answers(self, session: Session, context: Context) -> nn.Module:
        features, labels = features_of(self.network.answer(context.first), session.task, session.task.train, context)
        self.replay = self._kept(session.task, features, labels, context)
        match session.head:
            case Grown() as head:
                assert isinstance(context.head, CosineClassifier)
                return head.whole(context.head.weight)
            case nn.Linear() as head:
                return in_place_of(head, features, labels)
            case head:
                return head

    def _kept(self, task: Task, features: Tensor, labels: Tensor, context: Context) -> ReplayStore:
        """The exemplars, and some of the new classes."""

        def chosen(label: int, at: Tensor) -> list[int]:
            if self.choose == "herding":
                return herding(F.normalize(features[at], dim=1), self.exemplars)
            chance = generator(context.seed, context.position, "exemplars", label)
            return torch.randperm(len(at), generator=chance)[: self.exemplars].tolist()

        return with_chosen(self.replay, task, context.known, labels.cpu(), chosen)


class Rebalanced(SeenThrough):
    """A session by cross-entropy of cosines, less-forget and margin ranking."""

    def __init__(self, method: Rebalance, before: nn.Module, new: int, context: Context):
        super().__init__(method.network.view_of(context.first), method.network.everything)
        self._before, self.known = (before,), context.known  # no child: it does not learn
        self.pull = method.less_forget * math.sqrt(context.known / new)
        self.ranking, self.margin, self.closest = method.ranking, method.margin, method.closest

    def loss(self, batch: Batch, head: nn.Module) -> Tensor:
        assert isinstance(head, Grown)
        before = without_gradient(self._before[0], batch.inputs)
        features, labels = self(batch.inputs), batch.labels
        cosines = head.cosines(features)
        value = F.cross_entropy(head.scale * cosines, labels)
        value = value + self.pull * less_forget(features, before)
        return value + self.ranking * margin_ranking(cosines, labels, self.known, self.margin, self.closest)


class Grown(nn.Module):
    """A cosine classifier in a session: old class weights are no parameters, new ones and the scale are."""

    def __init__(self, old: CosineClassifier, directions: Tensor):
        super().__init__()
        self.register_buffer("old", old.weight.detach().clone(), persistent=False)
        self.old: Tensor
        self.new = nn.Parameter(directions * self.old.norm(dim=1).mean())
        self.scale = nn.Parameter(old.scale.detach().clone())

    def cosines(self, features: Tensor) -> Tensor:
        return similarity(features, torch.cat([self.old, self.new]), "cosine")

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * self.cosines(features)

    def whole(self, old: Tensor | None = None) -> CosineClassifier:
        """Old and new class weights as one classifier; a learner has its own record of the `old` ones."""
        return as_classifier(torch.cat([self.old if old is None else old, self.new]), self.scale)


def as_classifier(weight: Tensor, scale: Tensor) -> CosineClassifier:
    """The cosine classifier with these class weights and this scale."""
    classes, width = weight.shape
    classifier = CosineClassifier(width, classes).to(weight)
    classifier.load_state_dict({"weight": weight.detach(), "scale": scale.detach()})
    return classifier


def in_place_of(linear: nn.Linear, features: Tensor, labels: Tensor) -> CosineClassifier:
    """The mean directions of these features; the scale is what a linear classifier's scores have beside the cosine."""
    weight = imprinted(features, labels, range(linear.out_features))
    return as_classifier(weight, features.norm(dim=1).mean() * linear.weight.norm(dim=1).mean())


def imprinted(features: Tensor, labels: Tensor, classes: Sequence[int]) -> Tensor:
    """The mean direction of the features of each class, of length one."""
    return F.normalize(means_by_class(F.normalize(features, dim=1), labels, classes), dim=1)


def less_forget(features: Tensor, before: Tensor) -> Tensor:
    """How far features have turned: one minus the cosine, on average."""
    return (1 - F.cosine_similarity(features, before, dim=1)).mean()


def margin_ranking(cosines: Tensor, labels: Tensor, known: int, margin: float, closest: int) -> Tensor:
    """By how much images of the `known` classes miss the margin to the new classes that come closest, on average."""
    old = labels < known
    if not bool(old.any()):
        return cosines.new_zeros(())
    own = cosines[old].gather(1, labels[old, None])
    rivals = cosines[old, known:].topk(min(closest, cosines.shape[1] - known), dim=1).values
    return (margin - own + rivals).clamp_min(0).mean()
