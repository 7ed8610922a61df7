"""METHODS: every method of the laboratory, name → constructor, the whole list at a glance."""

from forgetfree.methods.finetune import Finetune
from forgetfree.methods.multitask import Multitask
from forgetfree.methods.single_task import SingleTask
from forgetfree.methods.wsn import WSN

__all__ = ["METHODS", "WSN", "Finetune", "Multitask", "SingleTask"]

METHODS = {
    "wsn": WSN,
    "finetune": Finetune,
    "single_task": SingleTask,
    "multitask": Multitask,
}
