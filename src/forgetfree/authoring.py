"""What a method is written with, in one place: the two hosts, and what their hooks are given and give.

    from forgetfree.authoring import Context, Number, Session, Task, TaskLearner, TaskModel, learner

Fields and their rules are explained in `settings`, models that several methods share in `views`; few-shot parts are in
`few_shot`. A method takes what is here from here, or, where that would not fit a line, from its own room.
"""

from forgetfree.batches import Batch
from forgetfree.contracts import Inputs, Task
from forgetfree.engine import Context, ProgressCallback
from forgetfree.errors import InputError, LearningError
from forgetfree.few_shot.learner import BaseClassifier, FewShotLearner
from forgetfree.settings import (
    FIRST,
    FIXED,
    LATER,
    NAMES_BASE,
    Capacity,
    Exemplars,
    Fraction,
    Number,
    Was,
    Whole,
    learner,
)  # fmt: skip
from forgetfree.task_incremental import TaskLearner
from forgetfree.training.recipe import Recipe
from forgetfree.training.session import Phase, Session, TaskModel, task_loss
from forgetfree.views import Plain, SeenThrough, Selected

__all__ = [
    "FIRST",
    "FIXED",
    "LATER",
    "NAMES_BASE",
    "BaseClassifier",
    "Batch",
    "Capacity",
    "Context",
    "Exemplars",
    "FewShotLearner",
    "Fraction",
    "InputError",
    "Inputs",
    "LearningError",
    "Number",
    "Phase",
    "Plain",
    "ProgressCallback",
    "Recipe",
    "SeenThrough",
    "Selected",
    "Session",
    "Task",
    "TaskLearner",
    "TaskModel",
    "Was",
    "Whole",
    "learner",
    "task_loss",
]
