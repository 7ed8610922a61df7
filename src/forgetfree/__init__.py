"""forgetfree: any PyTorch module learns task after task and never forgets."""

from forgetfree.archive import Inspection, Verification, inspect, load, save, verify
from forgetfree.contracts import Data, Learner, Memory, Task, TaskRecord
from forgetfree.errors import (
    ArchiveError,
    DataError,
    FileError,
    ForgetfreeError,
    InputError,
    LearningError,
    ModuleError,
    TaskError,
)
from forgetfree.exporting import Exported, export, extract
from forgetfree.heads import linear_head, linear_head_without_bias, nearest_direction, nearest_mean
from forgetfree.methods import METHODS, WSN, SoftNet
from forgetfree.network import SharedNetwork
from forgetfree.training import Progress, Recipe, Session

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "WSN",
    "ArchiveError",
    "Data",
    "DataError",
    "Exported",
    "FileError",
    "ForgetfreeError",
    "InputError",
    "Inspection",
    "Learner",
    "LearningError",
    "Memory",
    "ModuleError",
    "Progress",
    "Recipe",
    "Session",
    "SharedNetwork",
    "SoftNet",
    "Task",
    "TaskError",
    "TaskRecord",
    "Verification",
    "__version__",
    "export",
    "extract",
    "inspect",
    "linear_head",
    "linear_head_without_bias",
    "load",
    "nearest_direction",
    "nearest_mean",
    "save",
    "verify",
]
