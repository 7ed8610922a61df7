"""Methods that figures and tables of the paper are about, by name.

Nearly all that the laboratory asks of a method is in its entry of METHODS. These names stand for what no entry can say:
that the paper shows this one method, and no other would do in its place.
"""

WSN = "wsn"
"""Whose capacities, tickets and codes the task-incremental figures are of."""
SOFTNET = "softnet"
"""Whose capacities the few-shot figures are of. In task-incremental tables the paper calls WSN with noise behind its
masks by this name."""
HARDNET = "hardnet"
"""What SoftNet is compared with: the same subnetwork, its mask without minor weights."""
DENSE = "ncm"
"""The same network without a mask, trained and answering like HardNet and SoftNet; the paper calls it dense."""
STL = "single_task"
"""A network for each task: what is learned beyond it was transferred."""
CRT = "crt"
"""From which the few-shot tables count their gaps."""

SUBNETWORKS = (HARDNET, SOFTNET)
"""Behind a binary and behind a soft mask."""
SMALL_NETWORKS = (DENSE, *SUBNETWORKS)
"""Compared by loss landscapes and by the convergence of gradients."""

SUGGESTED_TIL = (WSN, "packnet", "finetune")
"""What to run for a comparison of task-incremental methods."""
SUGGESTED_FSCIL = (SOFTNET, HARDNET, DENSE, "joint")
"""And for one of few-shot methods."""
DEMONSTRATED = (WSN, "finetune", "single_task", "multitask")
"""Shown by the demo: the paper's method, one that forgets, and two upper bounds."""


def options(methods: tuple[str, ...]) -> str:
    """Methods as one names them to `forgetfree run`."""
    return " ".join(f"--method {method}" for method in methods)
