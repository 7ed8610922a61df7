"""METHODS: every method of the laboratory, the whole list at a glance; a class is imported when it is asked for.

An entry says what lists, legends and the laboratory show of a method without importing it. A test holds it to its
class: the title is the first line of the docstring, scenario and forget_free are the same.
"""

from typing import TYPE_CHECKING

from forgetfree.registry import MethodEntry, Table, lazy_names

if TYPE_CHECKING:
    from forgetfree.methods.bayes_means import BayesMeans
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
    from forgetfree.methods.warp import WaRP
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
    "BayesMeans",
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
    "WaRP",
]

_ENTRIES = {
    "wsn": MethodEntry(
        "forgetfree.methods.wsn:WSN",
        "Learn tasks one after another in one network; a learned task's answers stay bit-identical on the same batch.",
        label="WSN", colour="#0060a8", marker="o",
        forget_free=True, capacity=True, tickets=True, reuses=True,
    ),
    "finetune": MethodEntry(
        "forgetfree.methods.finetune:Finetune",
        "One network, one head per task; every task moves all weights, so earlier ones are forgotten.",
        label="fine-tuning", colour="#c04a00", marker="s", badge="reference",
    ),
    "single_task": MethodEntry(
        "forgetfree.methods.single_task:SingleTask",
        "T tasks, T networks: the reference for what a task can reach alone, at T times the capacity.",
        label="STL", colour="#00795c", marker="^", badge="reference",
        forget_free=True, upper_bound=True,
    ),
    "multitask": MethodEntry(
        "forgetfree.methods.multitask:Multitask",
        "One network and a head per task, trained on everything together when `finish()` is called.",
        label="MTL", colour="#a4387e", marker="D", badge="reference",
        upper_bound=True,
    ),
    "ewc": MethodEntry(
        "forgetfree.methods.ewc:EWC",
        "One network, one head per task; what earlier tasks need is held by a quadratic penalty, `reg_weight` strong.",
        label="EWC", colour="#7a6000", marker="v",
    ),
    "hat": MethodEntry(
        "forgetfree.methods.hat:HAT",
        "Units gated per task; old answers move a little where a gate is neither 0 nor 1, with `hard` gates not at "
        "all.",
        label="HAT", colour="#5b4fc4", marker="P",
    ),
    "gpm": MethodEntry(
        "forgetfree.methods.gpm:GPM",
        "One network, one head per task; gradients are projected off the inputs of earlier tasks.",
        label="GPM", colour="#5e6670", marker="X",
    ),
    "packnet": MethodEntry(
        "forgetfree.methods.packnet:PackNet",
        "Every task trains what is free, keeps the largest of it and retrains that; later tasks see all earlier ones.",
        label="PackNet", colour="#007f98", marker="<",
        forget_free=True, tickets=True, reuses=True, nested=True,
    ),
    "supsup": MethodEntry(
        "forgetfree.methods.supsup:SupSup",
        "One random network that never moves; every task learns which of its weights to see.",
        label="SupSup", colour="#b03030", marker=">",
        forget_free=True, tickets=True,
    ),
    "piggyback": MethodEntry(
        "forgetfree.methods.piggyback:Piggyback",
        "Your network, which never moves; every task starts from all of it and learns which weights to leave out.",
        label="Piggyback", colour="#3f7f00", marker="*",
        forget_free=True, tickets=True,
    ),
    "bayes_means": MethodEntry(
        "forgetfree.methods.bayes_means:BayesMeans",
        "A frozen network and the posterior of every class mean; scores of old classes never change by one bit.",
        scenario="fscil", label="Bayes means", colour="#3f7f00", marker="h", forget_free=True, badge="ours",
    ),
    "softnet": MethodEntry(
        "forgetfree.methods.softnet:SoftNet",
        "Learn a large first session, then classes from a few images each; one answer for all classes met.",
        scenario="fscil", label="SoftNet", colour="#0060a8", marker="s", capacity=True,
    ),
    "hardnet": MethodEntry(
        "forgetfree.methods.softnet:HardNet",
        "SoftNet without minor weights: a binary mask; later sessions add class means, and nothing moves.",
        scenario="fscil", label="HardNet", colour="#c04a00", marker="o", capacity=True,
    ),
    "ncm": MethodEntry(
        "forgetfree.methods.ncm:NCM",
        "Features of the first session, and the mean of every class met.",
        scenario="fscil", label="NCM", colour="#00795c", marker="D", badge="reference",
    ),
    "joint": MethodEntry(
        "forgetfree.methods.joint:Joint",
        "One network for all classes, trained on everything together when `finish()` is called.",
        scenario="fscil", label="joint training", colour="#a4387e", marker="^", badge="reference", upper_bound=True,
    ),
    "crt": MethodEntry(
        "forgetfree.methods.joint:CRT",
        "Classifier re-training: the network of joint training, and a classifier that sees all classes equally often.",
        scenario="fscil", label="cRT", colour="#7a6000", marker="P", badge="reference", upper_bound=True,
    ),
    "icarl": MethodEntry(
        "forgetfree.methods.icarl:ICaRL",
        "One network that all sessions move, `exemplars` images of every class met, and the nearest class mean.",
        scenario="fscil", label="iCaRL", colour="#5b4fc4", marker="v",
    ),
    "rebalance": MethodEntry(
        "forgetfree.methods.rebalance:Rebalance",
        "One network that all sessions move, a cosine classifier that grows, and `exemplars` images of every "
        "class met.",
        scenario="fscil", label="Rebalance", colour="#5e6670", marker="<",
    ),
    "fsll": MethodEntry(
        "forgetfree.methods.fsll:FSLL",
        "Move the least important weights in a session, hold all others bit for bit; answer by the nearest class mean.",
        scenario="fscil", label="FSLL", colour="#007f98", marker="X",
    ),
    "f2m": MethodEntry(
        "forgetfree.methods.f2m:F2M",
        "A flat place for the last layers, found in the first session; later sessions stay within it.",
        scenario="fscil", label="F2M", colour="#b03030", marker="*",
    ),
    "warp": MethodEntry(
        "forgetfree.methods.warp:WaRP",
        "Freeze the coefficients that matter most, in a basis of each layer's inputs; sessions move the others.",
        scenario="fscil", label="WaRP", colour="#7d4a1e", marker=">",
    ),
    "s3c": MethodEntry(
        "forgetfree.methods.s3c:S3C",
        "A cosine classifier of noisy rows over classes and rotations; sessions train rows, the network stands still.",
        scenario="fscil", label="S3C", colour="#9b2fae", marker="p",
    ),
}  # fmt: skip

METHODS: Table[MethodEntry] = Table("methods", _ENTRIES, entry_type=MethodEntry)

__getattr__, __dir__ = lazy_names(__name__, {entry.place.partition(":")[2]: entry.place for entry in _ENTRIES.values()})
