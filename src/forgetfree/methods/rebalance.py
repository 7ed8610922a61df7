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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forgetfree import incremental, learners
from forgetfree.batches import Batch
from forgetfree.checks import check_number, check_one_of, check_whole
from forgetfree.contracts import LearnerState, Task
from forgetfree.heads import CosineClassifier, HeadFactory, check_heads, cosine_classifier, linear_head, similarity
from forgetfree.incremental import Exemplars
from forgetfree.network import Masked, SharedNetwork
from forgetfree.rng import generator
from forgetfree.training import Recipe, Session

SESSION = Recipe(
    epochs=90, batch_size=120, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, milestones=(50, 70), factor=0.1
)
"""How a session is trained in few-shot comparisons."""


class Rebalance:
    """One network that all sessions move, a cosine classifier that grows, and `exemplars` images of every class met.

    `less_forget` is λ, the weight of what holds features where they were. An image of an old class is to be closer to
    it than to the `closest` new classes by `margin`; `ranking` is the weight of that. Images are kept by chance, or by
    herding: those whose mean direction stays closest to that of their class.
    """

    scenario: Literal["fscil"] = "fscil"
    forget_free = False

    def __init__(
        self,
        backbone: nn.Module,
        *,
        first: Literal["cosine", "dense"] = "cosine",
        exemplars: int = 2,
        choose: Literal["random", "herding"] = "random",
        less_forget: float = 4.0,
        ranking: float = 1.0,
        margin: float = 0.5,
        closest: int = 2,
        recipe: Recipe | None = None,
        session: Recipe | None = None,
        heads: HeadFactory = cosine_classifier,
        masked: Masked = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        self.base = self.first = check_one_of("first, how the first session learns,", first, "cosine", "dense")
        self.choose = check_one_of("choose, how images are kept,", choose, "random", "herding")
        self.closest = check_whole("closest, how many new classes are ranked,", closest, 1)
        self.less_forget = check_number("less_forget, the weight of what holds features,", less_forget, 0)
        self.ranking = check_number("ranking, the weight of the margin ranking,", ranking, 0)
        self.margin = check_number("margin, by which the own class is to be closer,", margin, 0)
        self.exemplars = Exemplars(exemplars)
        self.session = session or SESSION
        self.network = SharedNetwork(backbone, masked=masked, device=device)
        check_heads(
            heads, CosineClassifier, "this method answers by the angles to class weights: heads are 'cosine_classifier'"
        )
        self.lessons = incremental.lessons(self, recipe, heads, seed, cache_bytes)

    learn, predict, remove, classes = incremental.learn, incremental.predict, incremental.remove, incremental.classes
    verify, parts, tasks, layout = learners.verify, learners.parts, learners.tasks, learners.layout
    to, memory, _place, _answer = learners.to, incremental.memory, learners.place, incremental.answer
    learning = incremental.learning

    @contextmanager
    def _base(self, task: Task) -> Iterator[Session]:
        def answering(session: Session) -> nn.Module:
            features, labels = self._look(task)
            self.exemplars = self._kept(task, features, labels)
            head = session.parts["head"]
            if isinstance(head, CosineClassifier):
                return head
            assert isinstance(head, nn.Linear)
            return in_place_of(head, features, labels)

        head = self._classifier if self.first == "cosine" else linear_head
        with incremental.dense_base(self, task, answering, head=head) as session:
            yield session

    @contextmanager
    def _session(self, task: Task) -> Iterator[Session]:
        known = len(self.lessons.met)
        network, masks = self._answer(), incremental.everything(self.network)
        start = Grown(self._head(), imprinted(*self._look(task), range(known, len(task.classes))))
        pull = self.less_forget * math.sqrt(known / (len(task.classes) - known))
        lent = self.network.lend_again(incremental.ticket_of(self))
        task = incremental.rehearsing(task, self.exemplars)

        def loss(batch: Batch) -> Tensor:
            before = incremental.seen_by(self, network, batch.inputs)
            features = lent(self._place().admit(batch.inputs), masks)
            head, labels = session.parts["head"], batch.labels.to(features.device)
            assert isinstance(head, Grown)
            cosines = head.cosines(features)
            value = F.cross_entropy(head.scale * cosines, labels)
            value = value + pull * less_forget(features, before)
            return value + self.ranking * margin_ranking(cosines, labels, known, self.margin, self.closest)

        def answering(session: Session) -> nn.Module:
            self.exemplars = self._kept(task, *self._look(task))
            head = session.parts["head"]
            assert isinstance(head, Grown)
            return head.whole()

        settings = {name: value for name, value in self._arguments().items() if name != "first"}
        with incremental.later_session(
            self, task, lent, answering, loss=loss, head=lambda *_: start, settings=settings
        ) as session:
            yield session

    def _look(self, task: Task) -> tuple[Tensor, Tensor]:
        """What the network as it is kept makes of a session's images; and their labels."""
        return incremental.features_of(self, self._answer(), task, task.train)

    def _kept(self, task: Task, features: Tensor, labels: Tensor) -> Exemplars:
        """The exemplars, and some of the new classes."""
        exemplars = self.exemplars
        for label in range(len(self.lessons.met), len(task.classes)) if exemplars.count else ():
            at = (labels == label).nonzero().flatten().cpu()
            if self.choose == "herding":
                order = incremental.herd(F.normalize(features[at], dim=1), exemplars.count)
            else:
                chance = generator(self.lessons.seed, self.lessons.position, "exemplars", label)
                order = torch.randperm(len(at), generator=chance)[: exemplars.count].tolist()
            exemplars = exemplars.with_class(label, incremental.samples_at(task.train, at[order].tolist()))
        return exemplars

    def _classifier(self, width: int, task: Task) -> CosineClassifier:
        head = (self.lessons.heads.factory or cosine_classifier)(width, task)
        assert isinstance(head, CosineClassifier)
        return head

    def _head(self) -> CosineClassifier:
        """The classifier that answers now."""
        head = incremental.head_of(self)
        assert isinstance(head, CosineClassifier)
        return head

    def _arguments(self) -> dict[str, Any]:
        return {
            "first": self.first, "exemplars": self.exemplars.count, "choose": self.choose, "margin": self.margin,
            "less_forget": self.less_forget, "ranking": self.ranking, "closest": self.closest,
        }  # fmt: skip

    def stored(self, *, resumable: bool = False) -> LearnerState:
        return incremental.stored(self, resumable=resumable, arguments=self._arguments())

    revived = classmethod(incremental.revived)


class Grown(nn.Module):
    """A cosine classifier in a session: old class weights are no parameters, new ones and the scale are."""

    def __init__(self, old: CosineClassifier, directions: Tensor):
        super().__init__()
        self.register_buffer("old", old.weight.detach().clone())
        self.old: Tensor
        self.new = nn.Parameter(directions * self.old.norm(dim=1).mean())
        self.scale = nn.Parameter(old.scale.detach().clone())

    def cosines(self, features: Tensor) -> Tensor:
        return similarity(features, torch.cat([self.old, self.new]), "cosine")

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * self.cosines(features)

    def whole(self) -> CosineClassifier:
        """Old and new class weights as one classifier."""
        return as_classifier(torch.cat([self.old, self.new]), self.scale)


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
    return F.normalize(incremental.means_by_class(F.normalize(features, dim=1), labels, classes), dim=1)


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
