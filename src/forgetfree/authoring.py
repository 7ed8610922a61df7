"""What a method is written with, in one place: the two hosts, and what their hooks are given and give.

    from forgetfree.authoring import Context, Session, Task, TaskLearner, TaskModel
    from forgetfree.settings import Number, learner

Fields and their rules are in `settings`, models that several methods share in `views`, few-shot parts in `few_shot`,
errors in `errors`.
"""

from forgetfree.batches import Batch
from forgetfree.contracts import Inputs, Task
from forgetfree.engine import Context, ProgressCallback
from forgetfree.few_shot.learner import BaseClassifier, FewShotLearner
from forgetfree.task_incremental import TaskLearner
from forgetfree.training.recipe import Recipe
from forgetfree.training.session import Phase, Session, TaskModel, task_loss

__all__ = [
    "BaseClassifier",
    "Batch",
    "Context",
    "FewShotLearner",
    "Inputs",
    "Phase",
    "ProgressCallback",
    "Recipe",
    "Session",
    "Task",
    "TaskLearner",
    "TaskModel",
    "task_loss",
]
