"""S3C: rows of a cosine classifier that are noisy while they learn, one for every class in every rotation.

    base        cross-entropy of 16·cos over classes and rotations; a row is mu + softplus(sigma - 4)·eps, eps drawn
                anew in every step
    sessions    the network stands still; rows of a new class begin at the means of its images in each rotation; all
                rows learn from the new images, and from the stored mean of every old class in each rotation
    answers     the mean over all rotations of 16·cos(features of the turned image, mu of the class turned so)

How many rotations there are, and whether rows are noisy, are settings of its heads, for images
cosine_base(rotations=4, noise=True); vectors are not turned.
"""

from collections.abc import Mapping
from typing import Annotated, cast

import torch
from torch import Tensor, nn

from forgetfree.authoring import Batch, Context, FewShotLearner, InputError, Recipe, Session, Task, TaskModel
from forgetfree.base_heads import BaseHead, CosineBase
from forgetfree.few_shot import prototypes, viewing
from forgetfree.heads import HeadFactory, example_head
from forgetfree.settings import LATER, Number, learner
from forgetfree.views import SeenThrough


@learner
class S3C(FewShotLearner):
    """A cosine classifier of noisy rows over classes and rotations; sessions train rows, the network stands still."""

    replay_weight: Annotated[float, Number("the weight of old means", 0), LATER] = 5.0

    default_heads = CosineBase(noise=True)
    default_session = Recipe(epochs=100, batch_size=512, optimizer="sgd", lr=0.01, momentum=0.9)
    head_kind = BaseHead
    head_words = "S3C answers by angles to noisy rows: heads are 'cosine_base' with its settings"
    state = ("means",)

    def start(self) -> None:
        self.means: Mapping[str, Tensor] = {}
        """Mean features of every class in every rotation, [classes · rotations, features]; answers do not use them."""

    def check(self) -> None:
        for kept in self.means.values():
            if kept.dim() != 2 or len(kept) != self.turns * len(self.classes):
                raise InputError("the stored means are not those of the classes met.")

    @property
    def turns(self) -> int:
        """In how many rotations an image is seen."""
        return cast(BaseHead, example_head(self.heads or CosineBase())).settings.rotations

    def first_head(self) -> HeadFactory:
        return self.heads or CosineBase()

    def later(self, task: Task, context: Context) -> TaskModel:
        new = self._means(task, context)
        model = Replayed(self, new, context)
        model.head = lambda *_: grown(cast(BaseHead, context.head), new)
        return model

    def answers(self, session: Session, context: Context) -> nn.Module:
        new = session.model.new if isinstance(session.model, Replayed) else self._means(session.task, context)
        self.means = {"rows": torch.cat([*self.means.values(), new])}
        return session.head

    def answer(self, task: str) -> nn.Module:
        return viewing.seen_in(viewing.TURNED[self.turns], self.network.answer(next(iter(self.network.tickets))))

    def _means(self, task: Task, context: Context) -> Tensor:
        """Of the new classes in every rotation, a row for each."""
        new = range(context.known, len(task.classes))
        means = prototypes.class_means(self.answer(context.first), task, task.train, new, context)
        return means.view(len(new) * self.turns, -1)


class Replayed(SeenThrough):
    """A session that trains rows: the network stands still, and old classes are there as their means."""

    def __init__(self, method: S3C, new: Tensor, context: Context):
        super().__init__(method.network.view_of(context.first, movable={}), method.network.everything)
        self.old, self.new, self.weight = method.means["rows"], new, method.replay_weight

    def loss(self, batch: Batch, head: nn.Module) -> Tensor:
        if not isinstance(head, BaseHead):
            raise InputError(f"S3C's sessions train rows of 'cosine_base', not a {type(head).__name__}.")
        old = torch.arange(len(self.old), device=self.old.device)
        return head.session_loss(self, batch) + self.weight * nn.functional.cross_entropy(head.joint(self.old), old)


def grown(head: BaseHead, means: Tensor) -> BaseHead:
    """The head with rows for more classes, which begin in the direction of these means, as long as its rows are."""
    length = head.weight.norm(dim=1).mean()
    rows = torch.cat([head.weight, length * nn.functional.normalize(means.to(head.weight), dim=1)])
    return head.with_rows(rows)
