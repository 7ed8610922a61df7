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
CRT = "crt"
"""From which the few-shot tables count their gaps."""

SUBNETWORKS = (HARDNET, SOFTNET)
"""Behind a binary and behind a soft mask."""
SMALL_NETWORKS = (DENSE, *SUBNETWORKS)
"""Compared by loss landscapes and by the convergence of gradients."""
SMALL_NETWORK_NAMES = {DENSE: "Dense", HARDNET: "HardNet", SOFTNET: "SoftNet"}
"""As those figures call them."""

SUGGESTED_TIL = (WSN, "packnet", "finetune")
"""What to run for a comparison of task-incremental methods."""
SUGGESTED_FSCIL = (SOFTNET, HARDNET, DENSE, "joint")
"""And for one of few-shot methods."""
DEMONSTRATED = {
    WSN: "WSN (forgetfree)",
    "finetune": "fine-tuning",
    "single_task": "single task",
    "multitask": "multitask",
}
"""Shown by the demo: the paper's method, one that forgets, and two upper bounds. Named for those who do not know the
paper, which calls the last two STL and MTL."""


def options(methods: tuple[str, ...]) -> str:
    """Methods as one names them to `forgetfree run`."""
    return " ".join(f"--method {method}" for method in methods)
