"""Finetune: train on, task after task, with nothing to protect the old ones. The floor every method must beat."""

from forgetfree.authoring import Context, Plain, Session, Task, TaskLearner, TaskModel, learner
from forgetfree.dense import MovingNetwork


@learner
class Finetune(TaskLearner):
    """One network, one head per task; every task moves all weights, so earlier ones are forgotten."""

    network_kind = MovingNetwork

    def view(self, task: Task, context: Context) -> TaskModel:
        return Plain(self.network.trainable_view())

    def keep(self, session: Session, context: Context) -> None:
        self.network.keep(session.task.name, session.model.network)
