"""forgetfree: any PyTorch module learns task after task and never forgets."""

from forgetfree.contracts import Data, Learned, Learner, Memory, Task
from forgetfree.errors import DataError, FileError, ForgetfreeError, InputError, LearningError, ModuleError, TaskError
from forgetfree.heads import linear_head, linear_head_without_bias
from forgetfree.methods import METHODS, WSN
from forgetfree.network import SharedNetwork
from forgetfree.training import Progress, Recipe, Session

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "WSN",
    "Data",
    "DataError",
    "FileError",
    "ForgetfreeError",
    "InputError",
    "Learned",
    "Learner",
    "LearningError",
    "Memory",
    "ModuleError",
    "Progress",
    "Recipe",
    "Session",
    "SharedNetwork",
    "Task",
    "TaskError",
    "__version__",
    "linear_head",
    "linear_head_without_bias",
]
