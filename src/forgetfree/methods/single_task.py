"""Single task (STL): a fresh network for every task. Nothing is shared, so nothing is forgotten or saved."""

from forgetfree.authoring import Context, Plain, Session, Task, TaskLearner, TaskModel, learner
from forgetfree.dense import SeparateNetworks
from forgetfree.rng import seed_all


@learner
class SingleTask(TaskLearner):
    """T tasks, T networks: the reference for what a task can reach alone, at T times the capacity."""

    forget_free = True
    network_kind = SeparateNetworks

    def view(self, task: Task, context: Context) -> TaskModel:
        seed_all(context.placement.device, context.seed, context.position, "fresh network")
        return Plain(self.network.trainable_view())

    def keep(self, session: Session, context: Context) -> None:
        self.network.keep(session.task.name, session.model.network)
