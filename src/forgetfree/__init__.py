"""forgetfree: any PyTorch module learns task after task and never forgets.

A public name is imported when it is first used: `import forgetfree` alone imports neither torch nor numpy.
"""

from typing import TYPE_CHECKING

from forgetfree.registry import lazy_names

if TYPE_CHECKING:
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
        PluginError,
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
    "PluginError",
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

_MODULES = {
    "archive": ("Inspection", "Verification", "inspect", "load", "save", "verify"),
    "contracts": ("Data", "Learner", "Memory", "Task", "TaskRecord"),
    "errors": (
        "ArchiveError", "DataError", "FileError", "ForgetfreeError", "InputError", "LearningError", "ModuleError",
        "PluginError", "TaskError",
    ),
    "exporting": ("Exported", "export", "extract"),
    "heads": ("linear_head", "linear_head_without_bias", "nearest_direction", "nearest_mean"),
    "methods": ("METHODS", "WSN", "SoftNet"),
    "network": ("SharedNetwork",),
    "training": ("Progress", "Recipe", "Session"),
}  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {name: f"forgetfree.{module}:{name}" for module, names in _MODULES.items() for name in names},
    renamed={"Learned": "TaskRecord"},
)
