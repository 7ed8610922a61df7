"""iCaRL: a few images of every class are kept; a growing classifier learns on them, and class means answer.

    first session    a dense network by cross-entropy
    sessions         new images and kept ones, by binary cross-entropy of every column: for a new class whether the
                     image is of it, for an old class what the network before said (its sigmoid)
    images kept      by herding: one after another, so that their mean stays closest to the mean of their class
    answers          the nearest class mean, of kept and new images seen by the network as it is now

With heads="cosine" features are brought to length one before they are averaged, as when iCaRL was first described; with
"euclidean" they are taken as they are, as in its few-shot variant.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forgetfree.authoring import Batch, Context, FewShotLearner, InputError, SeenThrough, Session, Task, TaskModel
from forgetfree.classifiers import grown
from forgetfree.few_shot.exemplars import REHEARSAL, herding, with_chosen
from forgetfree.few_shot.prototypes import features_of, means_by_class, metric_of, moved_head, without_gradient
from forgetfree.masks import Masks
from forgetfree.modules import named_tensors
from forgetfree.network import TrainableView
from forgetfree.settings import FIXED, LATER, Whole, learner


@learner
class ICaRL(FewShotLearner):
    """One network that all sessions move, `exemplars` images of every class met, and the nearest class mean."""

    exemplars: Annotated[int, Whole("how many images of a class are kept", 1), LATER, FIXED] = 2

    default_session = REHEARSAL
    state = ("classifier",)

    def start(self) -> None:
        self.classifier: Mapping[str, Tensor] = {}
        """Weight and bias of the linear classifier that sessions grow; answers do not use it."""

    def check(self) -> None:
        shapes = {name: value.is_floating_point() * value.dim() for name, value in self.classifier.items()}
        if shapes and (shapes != {"weight": 2, "bias": 1} or len(self.classifier["bias"]) != len(self.classes)):
            raise InputError("the stored classifier is not one of the classes met.")

    def later(self, task: Task, context: Context) -> TaskModel:
        view = self.network.view_of(context.first)
        return Distilled(view, self.network.everything, self.network.answer(context.first), self.classifier)

    def answers(self, session: Session, context: Context) -> nn.Module:
        """Keep the classifier and images of the new classes; the head that answers has the means of all classes."""
        task = session.task
        network = self.network.answer(context.first)
        features, labels = features_of(network, task, task.train, context)
        if metric_of(self.heads, task) == "cosine":
            features = F.normalize(features, dim=1)
        means = means_by_class(features, labels, range(len(task.classes)))
        self.replay = with_chosen(
            self.replay, task, context.known, labels, lambda _, at: herding(features[at], self.exemplars)
        )
        self.classifier = {name: value.detach().clone() for name, value in named_tensors(session.head)}
        return moved_head(self.heads, network, task, means, context, again=range(context.known))


class Distilled(SeenThrough):
    """A session that learns new columns by the labels, and old ones by what the network before said."""

    def __init__(self, network: TrainableView, masks: Masks, before: nn.Module, classifier: Mapping[str, Tensor]):
        super().__init__(network, masks)
        self._before = (before,)  # no child: it does not learn
        self._classifier = classifier

    def head(self, width: int, task: Task) -> nn.Module:
        """The classifier before, with drawn rows for the new classes."""
        known = len(self._classifier["weight"])
        old: nn.Linear = nn.utils.skip_init(nn.Linear, width, known)  # type: ignore[no-untyped-call]
        old.weight, old.bias = (nn.Parameter(self._classifier[name]) for name in ("weight", "bias"))
        return grown(old, task.width - known)

    def loss(self, batch: Batch, head: nn.Module) -> Tensor:
        before = without_gradient(self._before[0], batch.inputs)
        with torch.no_grad():
            said = F.linear(before, self._classifier["weight"], self._classifier["bias"])
        return distilled_loss(head(self(batch.inputs)), said, batch.labels)


def distilled_loss(outputs: Tensor, said: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of every column: new ones by the labels, old ones by what was `said` [rows, old classes]."""
    targets = F.one_hot(labels, outputs.shape[1]).to(outputs)
    targets[:, : said.shape[1]] = said.sigmoid()
    return F.binary_cross_entropy_with_logits(outputs, targets)
