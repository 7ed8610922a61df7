"""Bayes means: no weight moves after the first session; a class is what its images say, weighed by how many there are.

    first session   any network: dense, or a hard or soft subnetwork of the fraction `capacity`
    its end         z = sign(f)|f|^p of the features f, of every view of an image
                    W, the spread within classes, shrunk: S = (1-a) W + a tr(W)/d I
                    psi, the spread of true class means, in units of S; the directions P where it is largest
    sessions        of a new class the mean along P, in bytes, and the number of its images; nothing else changes
    answers         the density of P'z under each class: the posterior of its mean, and what it does not know yet

The statistics are those of probabilistic linear discriminant analysis. A class's score depends on its own images
and on what was fixed at the end of the first session, so that the scores of old classes keep their bits for ever, and a
session can be removed again.
"""

from typing import Annotated, Any

from torch import Tensor, nn

from forgetfree.authoring import BaseClassifier, Context, FewShotLearner, Inputs, SeenThrough, Session, Task, TaskModel
from forgetfree.class_heads import Bayes
from forgetfree.few_shot import abstaining, prototypes, subnetwork, viewing
from forgetfree.scores import Minor, Scores
from forgetfree.settings import FIRST, LATER, NAMES_BASE, Fraction, learner


@learner
class BayesMeans(FewShotLearner):
    """A frozen network and the posterior of every class mean; scores of old classes never change by one bit."""

    capacity: Annotated[float | None, Fraction("the fraction of weights kept"), FIRST] = None
    """Of the first session's subnetwork; a dense network if not said."""
    soft: Annotated[bool, FIRST, NAMES_BASE] = False
    """Whether the subnetwork has minor weights, as SoftNet's, or none, as HardNet's."""
    views: Annotated[viewing.Views, LATER] = "one"
    """In which views an image is seen when it is answered."""
    base_classifier: BaseClassifier = "linear"

    forget_free = True
    default_heads = Bayes()
    state = ("drawn",)

    def start(self) -> None:
        self.scores = Scores.random(self.network.weights, self.seed)
        self.drawn = Minor.NONE

    def base_kind(self) -> str:
        return "dense" if self.capacity is None else "soft" if self.soft else "hard"

    def base_fields(self) -> dict[str, Any]:
        usual = {"by": "magnitude", "resample": "epoch", "soft_from_epoch": 0}  # as in other subnetworks
        return {} if self.capacity is None else {"capacity": self.capacity, **usual}

    def first(self, task: Task, context: Context) -> TaskModel:
        if self.capacity is None:
            return SeenThrough(self.network.trainable_view(), self.network.everything)
        start = 0 if self.soft else None
        minor = subnetwork.minor_weights(self.network, self.seed, Minor.NONE)
        return subnetwork.Soft(self.network, self.scores, self.capacity, minor, soft_from_epoch=start)

    def later(self, task: Task, context: Context) -> TaskModel:
        return SeenThrough(self.network.view_of(context.first, movable={}), self.network.everything)

    def answers(self, session: Session, context: Context) -> nn.Module:
        if isinstance(session.model, subnetwork.Soft):
            self.drawn = session.model.minor.draw
        return prototypes.frozen_head(self.heads, self.answer(context.first), session.task, context)

    def answer(self, task: str) -> nn.Module:
        return viewing.seen_in(self.views, subnetwork.answering_network(self.network, self.seed, self.drawn))

    def abstention(self, images: Inputs, labels: Tensor, error: float = 0.05) -> abstaining.Abstention:
        """From which density on to answer, so that at most the part `error` of the answers to such images is wrong.

        Labels are places in `classes`; the images are those of nobody's training.
        """
        return abstaining.calibrated(self.predict(images), labels, error)

    def uses_all_weights(self) -> bool:
        return self.drawn != Minor.NONE
