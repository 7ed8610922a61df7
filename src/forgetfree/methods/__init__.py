"""METHODS: every method of the laboratory, name → constructor, the whole list at a glance."""

from forgetfree.methods.ewc import EWC
from forgetfree.methods.finetune import Finetune
from forgetfree.methods.gpm import GPM
from forgetfree.methods.hat import HAT
from forgetfree.methods.multitask import Multitask
from forgetfree.methods.packnet import PackNet
from forgetfree.methods.piggyback import Piggyback
from forgetfree.methods.single_task import SingleTask
from forgetfree.methods.supsup import SupSup
from forgetfree.methods.wsn import WSN

__all__ = [
    "EWC",
    "GPM",
    "HAT",
    "METHODS",
    "WSN",
    "Finetune",
    "Multitask",
    "PackNet",
    "Piggyback",
    "SingleTask",
    "SupSup",
]

METHODS = {
    "wsn": WSN,
    "finetune": Finetune,
    "single_task": SingleTask,
    "multitask": Multitask,
    "ewc": EWC,
    "hat": HAT,
    "gpm": GPM,
    "packnet": PackNet,
    "supsup": SupSup,
    "piggyback": Piggyback,
}
