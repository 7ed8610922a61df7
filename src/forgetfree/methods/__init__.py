"""METHODS: every method of the laboratory, name → constructor, the whole list at a glance."""

from forgetfree.methods.finetune import Finetune
from forgetfree.methods.wsn import WSN

__all__ = ["METHODS", "WSN", "Finetune"]

METHODS = {
    "wsn": WSN,
    "finetune": Finetune,
}
