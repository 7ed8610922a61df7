"""iCaRL: a few images of every class are kept; a growing classifier learns on them, and class means answer.

    first session    a dense network by cross-entropy
    sessions         new images and kept ones, by binary cross-entropy of every column: for a new class whether the
                     image is of it, for an old class what the network before said (its sigmoid)
    images kept      by herding: one after another, so that their mean stays closest to the mean of their class
    answers          the nearest class mean, of kept and new images seen by the network as it is now

With heads="cosine" features are brought to length one before they are averaged, as when iCaRL was first described; with
"euclidean" they are taken as they are, as in its few-shot variant.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forgetfree import incremental, learners
from forgetfree.batches import Batch
from forgetfree.checks import check_whole
from forgetfree.contracts import LearnerState, Memory, Task
from forgetfree.heads import HeadFactory, nearest_mean
from forgetfree.incremental import Exemplars
from forgetfree.modules import named_tensors
from forgetfree.network import Masked, SharedNetwork
from forgetfree.training import Recipe, Session

SESSION = Recipe(
    epochs=90, batch_size=120, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, milestones=(50, 70), factor=0.1
)
"""How a session is trained in few-shot comparisons."""


class ICaRL:
    """One network that all sessions move, `exemplars` images of every class met, and the nearest class mean."""

    scenario: Literal["fscil"] = "fscil"
    forget_free = False
    base = "dense"

    def __init__(
        self,
        backbone: nn.Module,
        *,
        exemplars: int = 2,
        recipe: Recipe | None = None,
        session: Recipe | None = None,
        heads: HeadFactory = nearest_mean,
        masked: Masked = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        cache_bytes: int = 1 << 30,
    ):
        # a class without any would have no mean
        self.exemplars = Exemplars(check_whole("exemplars, how many images of a class are kept,", exemplars, 1))
        self.classifier: Mapping[str, Tensor] = {}
        """Weight and bias of the linear classifier that sessions grow; answers do not use it."""
        self.session = session or SESSION
        self.network = SharedNetwork(backbone, masked=masked, device=device)
        self.lessons = incremental.lessons(self, recipe, incremental.by_means(heads), seed, cache_bytes)

    learn, predict, remove, classes = incremental.learn, incremental.predict, incremental.remove, incremental.classes
    verify, parts, tasks, layout = learners.verify, learners.parts, learners.tasks, learners.layout
    learning, _place, _answer = incremental.learning, learners.place, incremental.answer

    @contextmanager
    def _base(self, task: Task) -> Iterator[Session]:
        with incremental.dense_base(self, task, lambda session: self._answering(session, task)) as session:
            yield session

    @contextmanager
    def _session(self, task: Task) -> Iterator[Session]:
        task = incremental.rehearsing(task, self.exemplars)
        network, classifier = self._answer(), self.classifier
        lent = self.network.lend_again(incremental.ticket_of(self))

        def loss(batch: Batch) -> Tensor:
            before = incremental.seen_by(self, network, batch.inputs)
            with torch.no_grad():
                said = F.linear(before, classifier["weight"], classifier["bias"])
            return distilled_loss(session(batch.inputs), said, batch.labels.to(said.device))

        def head(width: int, wide: Task) -> nn.Module:
            return grown(classifier, nn.Linear(width, wide.width))

        settings = {"exemplars": self.exemplars.count}
        with incremental.later_session(
            self, task, lent, lambda session: self._answering(session, task), loss=loss, head=head, settings=settings
        ) as session:
            yield session

    def _answering(self, session: Session, task: Task) -> nn.Module:
        """Keep the classifier and images of the new classes; the head that answers has the means of all classes."""
        features, labels = incremental.features_of(self, self._answer(), task, task.train)
        if incremental.metric_of(self, task) == "cosine":
            features = F.normalize(features, dim=1)
        means = incremental.means_by_class(features, labels, range(len(task.classes)))
        exemplars = self.exemplars
        for label in range(len(self.lessons.met), len(task.classes)):
            at = (labels == label).nonzero().flatten()
            best = at[incremental.herd(features[at], exemplars.count)]
            exemplars = exemplars.with_class(label, incremental.samples_at(task.train, best.tolist()))
        head = session.parts["head"]
        assert isinstance(head, nn.Linear)
        self.exemplars = exemplars
        self.classifier = {name: value.detach().clone() for name, value in named_tensors(head)}
        return incremental.nearest(self, task, means)

    def memory(self) -> Memory:
        classifier = {f"classifier.{name}": value for name, value in self.classifier.items()}
        return incremental.memory(self, training=classifier)

    def stored(self, *, resumable: bool = False) -> LearnerState:
        training = {"classifier": dict(self.classifier)}
        return incremental.stored(
            self, resumable=resumable, arguments={"exemplars": self.exemplars.count}, training=training
        )

    @classmethod
    def revived(cls, backbone: nn.Module, stored: LearnerState, **others: Any) -> "ICaRL":
        """A learner made again from what was stored."""
        learner: ICaRL = incremental.revived(cls, backbone, stored, **others)
        learner.classifier = dict(stored.training["classifier"])
        return learner

    def to(self, device: torch.device | str) -> "ICaRL":
        with self.lessons.moved(device):
            self.network.to(device)
            self.classifier = {name: value.to(device) for name, value in self.classifier.items()}
        return self


def distilled_loss(outputs: Tensor, said: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of every column: new ones by the labels, old ones by what was `said` [rows, old classes]."""
    targets = F.one_hot(labels, outputs.shape[1]).to(outputs)
    targets[:, : said.shape[1]] = said.sigmoid()
    return F.binary_cross_entropy_with_logits(outputs, targets)


def grown(classifier: Mapping[str, Tensor], wider: nn.Linear) -> nn.Linear:
    """`wider` with the old rows put in first; the others are as it was drawn."""
    wider = wider.to(classifier["weight"])
    with torch.no_grad():
        for name, row in classifier.items():
            getattr(wider, name)[: len(row)] = row
    return wider
