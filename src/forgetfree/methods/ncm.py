"""NCM: a dense network learns the first session and never moves again; later classes are their means, the nearest wins.

The plainest few-shot learner, and a strong one: what moves no feature forgets none.
"""

from torch import nn

from forgetfree.authoring import BaseClassifier, Context, FewShotLearner, SeenThrough, Session, Task, TaskModel, learner
from forgetfree.few_shot.prototypes import frozen_head


@learner
class NCM(FewShotLearner):
    """Features of the first session, and the mean of every class met."""

    base_classifier: BaseClassifier = "linear"

    def later(self, task: Task, context: Context) -> TaskModel:
        return SeenThrough(self.network.view_of(context.first, movable={}), self.network.everything)

    def answers(self, session: Session, context: Context) -> nn.Module:
        return frozen_head(self.heads, self.network.answer(context.first), session.task, context)
