"""Prototypes: the mean features of each class, how they are made, extended and updated, and losses over them.

All are functions of values: a module that stands still, data, and the context of the session.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from forgetfree.class_heads import ClassHead, Metric
from forgetfree.contracts import Data, Inputs, Task
from forgetfree.engine import Context
from forgetfree.errors import InputError, LearningError
from forgetfree.features import feature_batches
from forgetfree.few_shot.exemplars import with_shots
from forgetfree.heads import HeadFactory, Prototypes, nearest_mean, similarity
from forgetfree.modules import as_call, clone
from forgetfree.moments import Moments, around, gather, joined
from forgetfree.replay import ReplayStore
from forgetfree.rng import generator
from forgetfree.samples import labels_of, samples_of


def learning_head(heads: HeadFactory | None, means: Tensor) -> HeadFactory:
    """Makes the head that a session learns with: these class means, as they were before it."""
    return lambda _, task: prototype_head(heads, task, means)


def frozen_head(heads: HeadFactory | None, module: nn.Module, task: Task, context: Context) -> nn.Module:
    """The head that answers after a session in which no feature moved."""
    if metric_of(heads, task) is not None:
        return prototype_head(heads, task, all_means(module, task, context))
    return class_head(heads, module, task, context)


def first_head(heads: HeadFactory | None, module: nn.Module, task: Task, context: Context) -> nn.Module:
    """The head that answers after the first session, where later ones train against class means."""
    return moved_head(heads, module, task, all_means(module, task, context), context)


def moved_head(
    heads: HeadFactory | None,
    module: nn.Module,
    task: Task,
    means: Tensor,
    context: Context,
    again: Sequence[int] = (),
) -> nn.Module:
    """The head that answers by these class means, where sessions train against them; classes seen `again` are renewed.

    A head that sees features in another way than they are has the means beside what it answers by.
    """
    if metric_of(heads, task) is not None:
        return prototype_head(heads, task, means)
    head = class_head(heads, module, task, context, again)
    head.means = _finite(task, means)
    return head


def class_head(
    heads: HeadFactory | None, module: nn.Module, task: Task, context: Context, again: Sequence[int] = ()
) -> ClassHead:
    """A head that knows classes by moments of their images: fitted by the first session, then extended."""
    assert heads is not None
    if context.known:
        assert isinstance(context.head, ClassHead)
        head = cast(ClassHead, clone(context.head)).cpu()
        if again:
            head.replace(list(again), moments_by_class(head, module, task, again, context))
        new = range(context.known, len(task.classes))
        return head.extended(moments_by_class(head, module, task, new, context)).to(context.placement.device)
    width = next(iter(_features(module, task, task.train, context)))[0].shape[1]
    head = cast(ClassHead, heads(width, task)).cpu()
    every = range(len(task.classes))
    counts = torch.bincount(labels_of(task.train), minlength=len(every)) if head.balanced else None
    base = gather(
        _features(module, task, task.train, context), every, head.lift, scatter=head.scatters, counts=counts
    )  # fmt: skip
    return head.fitted(base, _spread(heads, head, base, module, task, context)).to(context.placement.device)


def moments_by_class(
    head: ClassHead, module: nn.Module, task: Task, classes: Sequence[int], context: Context
) -> Moments:
    """Moments of these classes, each from a batch of its own images: what else is in the session changes no bit."""
    found = []
    for label in classes:
        images = samples_of(task.train, label)
        data = images, torch.full((len(images),), label)
        counts = torch.tensor([len(images)]) if head.balanced else None
        seen = _features(module, task, data, context)
        found.append(gather(seen, [label], head.lift, scatter=head.scatters, counts=counts))
    return joined(found)


def _spread(
    heads: Any, head: ClassHead, base: Moments, module: nn.Module, task: Task, context: Context
) -> Tensor | None:
    """The spread within classes around their means, on images that the network was not fitted to."""
    which = getattr(heads, "within", "train")
    if which == "train":
        return None
    every = range(len(base.counts))
    if which == "held_out":
        if task.valid is None:
            raise InputError(f"within='held_out' measures on validation images, and task {task.name!r} has none.")
        found = _features(module, task, task.valid, context)
    else:
        if task.augment is None:
            raise InputError(f"within='augmented' measures on augmented images, and task {task.name!r} has no augment.")
        augment, chance = task.augment, generator(context.seed, "augmented spread")
        found = _features(module, task, task.train, context, lambda inputs: augment(inputs, chance))
    return around(base.means, found, every, head.lift)


def _features(
    module: nn.Module, task: Task, data: Data, context: Context, change: Callable[[Inputs], Inputs] | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    recipe = context.recipe
    return feature_batches(
        module, data, batch_size=recipe.eval_batch_size, cast=context.placement.cast, loader=recipe.loader, task=task,
        learned_on=context.first_inputs, learned=context.first, change=change,
    )  # fmt: skip


def prototype_head(heads: HeadFactory | None, task: Task, means: Tensor) -> Prototypes:
    """The head that answers by these class means, as the learner's heads measure how near they are."""
    return Prototypes(_finite(task, means), metric_of(heads, task) or "euclidean")


def _finite(task: Task, means: Tensor) -> Tensor:
    if not bool(means.isfinite().all()):
        raise LearningError(
            f"task {task.name!r}: a class mean is not finite. The learner is as it was before. Check the inputs for "
            "NaN, or lower the learning rate."
        )
    return means


def metric_of(heads: HeadFactory | None, task: Task) -> Metric | None:
    """How near is measured, by the heads that a learner was built with; None if they see features in another way."""
    head = (heads or nearest_mean)(1, task)
    return head.metric if isinstance(head, Prototypes) else None


def class_means(module: nn.Module, task: Task, data: Data, classes: Sequence[int], context: Context) -> Tensor:
    """The mean features of these classes (as `task` labels them), without augmentation."""
    features, labels = features_of(module, task, data, context)
    return means_by_class(features, labels, classes)


def means_by_class(features: Tensor, labels: Tensor, classes: Sequence[int]) -> Tensor:
    """The mean of the features of each of these classes."""
    missing = [label for label in classes if not bool((labels == label).any())]
    if missing:
        raise InputError(f"no training image has label {missing[0]}, so that its class has no mean.")
    return torch.stack([features[labels == label].double().mean(0) for label in classes]).to(features.dtype)


def features_of(module: nn.Module, task: Task, data: Data, context: Context) -> tuple[Tensor, Tensor]:
    """Features of all samples, in their order, in eval mode and without gradient; and their labels."""
    found = list(_features(module, task, data, context))
    if not found:
        raise InputError("there is no sample to take features of.")
    features, labels = zip(*found, strict=True)
    return torch.cat(features), torch.cat(labels)


def without_gradient(module: nn.Module, inputs: Inputs) -> Any:
    """What a module that does not learn, the network before a session, makes of a batch that is in place."""
    args, kwargs = as_call(inputs)
    with torch.no_grad():
        return module(*args, **kwargs)


def known_means(context: Context) -> Tensor:
    """The class means that the learner answers with now, [classes seen, features]."""
    assert isinstance(context.head, Prototypes | ClassHead)
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
