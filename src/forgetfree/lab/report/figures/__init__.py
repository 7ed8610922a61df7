"""FIGURES: every figure by name; one file each, which measures first and draws then."""

from forgetfree.lab.report.figures import (
    accuracy_over_capacity,
    accuracy_per_task,
    capacity_growth,
    convergence,
    embedding_map,
    loss_landscape,
    mask_correlation,
    method_comparison,
    reuse_ablation,
    session_curves,
    task_bars,
    transfer_matrix,
    weight_reuse,
)
from forgetfree.lab.report.figures.figure import Figure

FIGURES: dict[str, Figure] = {
    "accuracy_over_capacity": accuracy_over_capacity,
    "accuracy_per_task": accuracy_per_task,
    "task_bars": task_bars,
    "transfer_matrix": transfer_matrix,
    "session_curves": session_curves,
    "method_comparison": method_comparison,
    "capacity_growth": capacity_growth,
    "weight_reuse": weight_reuse,
    "reuse_ablation": reuse_ablation,
    "mask_correlation": mask_correlation,
    "loss_landscape": loss_landscape,
    "convergence": convergence,
    "embedding_map": embedding_map,
}
