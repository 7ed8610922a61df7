"""What can go wrong, by name. Every error forgetfree raises on purpose is a `ForgetfreeError`.

Each also inherits the built-in error a caller would expect, so `except ValueError` keeps working.
"""


class ForgetfreeError(Exception):
    """The root of all our errors."""


class InputError(ForgetfreeError, ValueError):
    """A value, shape or label that cannot be used."""


class TaskError(ForgetfreeError, LookupError):
    """A task name that is unknown, taken, or busy."""


class ModuleError(ForgetfreeError, TypeError):
    """A module that cannot be wrapped without risking that it forgets."""


class LearningError(ForgetfreeError, RuntimeError):
    """Learning went wrong: the learner is as it was before."""


class FileError(ForgetfreeError, OSError):
    """A file that cannot be written, or that is not what it should be."""


class ArchiveError(FileError):
    """An archive that is damaged, not one of ours, of a newer format, or not of this backbone."""


class PluginError(ForgetfreeError, ImportError):
    """A plug-in that cannot be loaded, or that brings a name which is taken."""


class DataError(ForgetfreeError, OSError):
    """A data set that is not there, cannot be downloaded, or is not what its authors published."""
