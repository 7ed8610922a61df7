"""Prototypes: the mean features of each class, how they are made, extended and updated, and losses over them.

All are functions of values: a module that stands still, data, and the context of the session.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from forgetfree.contracts import Data, Inputs, Task
from forgetfree.engine import Context
from forgetfree.errors import InputError, LearningError
from forgetfree.features import extract_features
from forgetfree.few_shot.exemplars import with_shots
from forgetfree.heads import HeadFactory, Metric, Prototypes, example_head, nearest_mean, similarity
from forgetfree.modules import as_call
from forgetfree.replay import ReplayStore


def learning_head(heads: HeadFactory | None, means: Tensor) -> HeadFactory:
    """Makes the head that a session learns with: these class means, as they were before it."""
    return lambda _, task: prototype_head(heads, task, means)


def prototype_head(heads: HeadFactory | None, task: Task, means: Tensor) -> Prototypes:
    """The head that answers by these class means, as the learner's heads measure how near they are."""
    if not bool(means.isfinite().all()):
        raise LearningError(
            f"task {task.name!r}: a class mean is not finite. The learner is as it was before. Check the inputs for "
            "NaN, or lower the learning rate."
        )
    kind = kind_of(heads, task)
    return Prototypes(means, kind.metric, unit=kind.unit)


def metric_of(heads: HeadFactory | None, task: Task) -> Metric:
    """How near is measured, by the heads that a learner was built with."""
    return kind_of(heads, task).metric


def kind_of(heads: HeadFactory | None, task: Task) -> Prototypes:
    """An example of the heads that a learner was built with."""
    head = (heads or nearest_mean)(1, task)
    assert isinstance(head, Prototypes)
    return head


def has_unit_means(heads: HeadFactory | None) -> bool:
    """Whether these heads answer by means of features of length one."""
    head = example_head(heads or nearest_mean)
    return isinstance(head, Prototypes) and head.unit


def refuse_unit_means(heads: HeadFactory | None, words: str) -> None:
    """Refuse means of features of length one where features are compared with them as they are; `words` say why."""
    if has_unit_means(heads):
        raise InputError(f"{words}, so that heads are 'euclidean' or 'cosine', not 'normalised'.")


def class_means(module: nn.Module, task: Task, data: Data, classes: Sequence[int], context: Context) -> Tensor:
    """The mean features of these classes (as `task` labels them), as the heads want them; no augmentation."""
    features, labels = features_of(module, task, data, context)
    if has_unit_means(context.heads):
        features = nn.functional.normalize(features, dim=1)
    return means_by_class(features, labels, classes)


def means_by_class(features: Tensor, labels: Tensor, classes: Sequence[int]) -> Tensor:
    """The mean of the features of each of these classes."""
    missing = [label for label in classes if not bool((labels == label).any())]
    if missing:
        raise InputError(f"no training image has label {missing[0]}, so that its class has no mean.")
    return torch.stack([features[labels == label].double().mean(0) for label in classes]).to(features.dtype)


def features_of(module: nn.Module, task: Task, data: Data, context: Context) -> tuple[Tensor, Tensor]:
    """Features of all samples, in their order, in eval mode and without gradient; and their labels."""
    recipe = context.recipe
    return extract_features(
        module, data, batch_size=recipe.eval_batch_size, cast=context.placement.cast, loader=recipe.loader,
        task=task, learned_on=context.first_inputs, learned=context.first,
    )  # fmt: skip


def without_gradient(module: nn.Module, inputs: Inputs) -> Any:
    """What a module that does not learn, the network before a session, makes of a batch that is in place."""
    args, kwargs = as_call(inputs)
    with torch.no_grad():
        return module(*args, **kwargs)


def known_means(context: Context) -> Tensor:
    """The class means that the learner answers with now, [classes seen, features]."""
    assert isinstance(context.head, Prototypes)
    return context.head.means


def extend_prototypes(module: nn.Module, task: Task, context: Context) -> Tensor:
    """The class means before a session, and after them those of its new classes."""
    known = known_means(context)
    new = class_means(module, task, task.train, range(len(known), len(task.classes)), context)
    return torch.cat([known, new])


def all_means(module: nn.Module, task: Task, context: Context) -> Tensor:
    """The means of all classes after a session in which no feature moved: those that were known, and the new ones."""
    if not context.known:
        return class_means(module, task, task.train, range(len(task.classes)), context)
    return extend_prototypes(module, task, context)


def update_prototypes(
    means: Tensor, module: nn.Module, task: Task, rehearsed: Sequence[int], context: Context
) -> Tensor:
    """The class means after a session: of its new classes and of those it rehearsed anew, all others as they were."""
    again = [*rehearsed, *range(context.known, len(means))]
    moved = means.clone()
    moved[again] = class_means(module, task, task.train, again, context)
    return moved


def rehearsed(
    means: Tensor, module: nn.Module, task: Task, replay: ReplayStore, context: Context
) -> tuple[Tensor, ReplayStore]:
    """The class means after a session that rehearsed these exemplars, and the exemplars with its own among them."""
    moved = update_prototypes(means, module, task, list(replay.kept), context)
    return moved, with_shots(replay, task, context.known)


def metric_loss(
    features: Tensor,
    labels: Tensor,
    means: Tensor,
    known: int,
    *,
    temperature: float = 1.0,
    metric: Metric = "cosine",
) -> Tensor:
    """Cross-entropy over minus the distance to all class means: of cosines (Equation 12 of the paper), or Euclidean.

    Means of classes from `known` on are those of this batch where it has images of them, with gradient; all others are
    as they were stored.
    """
    near = similarity(features, batch_means(features, labels, means, known), metric)
    distance = 1 - near if metric == "cosine" else -near
    return nn.functional.cross_entropy(-distance / temperature, labels)


def batch_means(features: Tensor, labels: Tensor, means: Tensor, known: int) -> Tensor:
    """The class means, from class `known` on those of this batch where it has images of them, with gradient."""
    rows = [
        features[labels == label].mean(0) if label >= known and bool((labels == label).any()) else means[label]
        for label in range(len(means))
    ]
    return torch.stack(rows)


def wide(features: Tensor) -> Tensor:
    """Half types as float32, for operations that half types lack."""
    return features if features.dtype in (torch.float32, torch.float64) else features.float()
