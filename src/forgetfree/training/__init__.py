"""Training: a Recipe says how, a Session is one task being learned, `fit` is the only optimisation loop."""

from forgetfree.training.loop import Progress, ProgressCallback, evaluate, fit, standing_in
from forgetfree.training.recipe import Recipe
from forgetfree.training.session import Fitted, Phase, Session, TaskModel, task_loss

__all__ = [
    "Fitted",
    "Phase",
    "Progress",
    "ProgressCallback",
    "Recipe",
    "Session",
    "TaskModel",
    "evaluate",
    "fit",
    "standing_in",
    "task_loss",
]
