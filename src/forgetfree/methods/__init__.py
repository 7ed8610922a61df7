"""METHODS: every method of the laboratory, name → constructor, the whole list at a glance."""

from typing import Any

from forgetfree.methods.ewc import EWC
from forgetfree.methods.f2m import F2M
from forgetfree.methods.finetune import Finetune
from forgetfree.methods.fsll import FSLL
from forgetfree.methods.gpm import GPM
from forgetfree.methods.hat import HAT
from forgetfree.methods.icarl import ICaRL
from forgetfree.methods.joint import CRT, Joint
from forgetfree.methods.multitask import Multitask
from forgetfree.methods.ncm import NCM
from forgetfree.methods.packnet import PackNet
from forgetfree.methods.piggyback import Piggyback
from forgetfree.methods.rebalance import Rebalance
from forgetfree.methods.single_task import SingleTask
from forgetfree.methods.softnet import HardNet, SoftNet
from forgetfree.methods.supsup import SupSup
from forgetfree.methods.wsn import WSN

__all__ = [
    "CRT",
    "EWC",
    "F2M",
    "FSLL",
    "GPM",
    "HAT",
    "METHODS",
    "NCM",
    "WSN",
    "Finetune",
    "HardNet",
    "ICaRL",
    "Joint",
    "Multitask",
    "PackNet",
    "Piggyback",
    "Rebalance",
    "SingleTask",
    "SoftNet",
    "SupSup",
]

METHODS: dict[str, Any] = {
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
    "softnet": SoftNet,
    "hardnet": HardNet,
    "ncm": NCM,
    "joint": Joint,
    "crt": CRT,
    "icarl": ICaRL,
    "rebalance": Rebalance,
    "fsll": FSLL,
    "f2m": F2M,
}
