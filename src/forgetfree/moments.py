"""Moments: what is known of classes from their features, gathered batch by batch in float64.

    moments = gather(batches_of_features, classes=range(60), lift=head.lift)
    moments.means, moments.counts, moments.within()

Never all features at once: a class costs one row, all of them one square matrix.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forgetfree.errors import InputError, LearningError

Lift = Callable[[Tensor], Tensor]
"""Features as a head sees them, [rows, features] → [rows, directions]."""


@dataclass(frozen=True)
class Moments:
    """Means and counts of classes, and the scatter of their images around them; in float64."""

    means: Tensor
    """[classes, d]"""
    counts: Tensor
    """[classes], whole numbers"""
    scatter: Tensor | None = None
    """[d, d]: Σ (z - m)(z - m)', over all images; None where nobody asked for it."""
    weights: Tensor | None = None
    """[classes]: what each image of a class counts for in the scatter; one if not said."""

    def within(self) -> Tensor:
        """The covariance of images around the mean of their own class, pooled: W."""
        assert self.scatter is not None
        assert self.weights is None
        freedom = int(self.counts.sum()) - len(self.counts)
        return self.scatter / max(freedom, 1)  # of single images the scatter is zero

    def between(self) -> Tensor:
        """The covariance of the true means: that of the means seen, less what within adds to means of few images."""
        centred = self.means - self.means.mean(0)
        noise = self.within() * (1 / self.counts).mean()  # harmonic: rare classes add most of it
        return centred.T @ centred / (len(centred) - 1) - noise


def gather(
    features: Iterable[tuple[Tensor, Tensor]],
    classes: Sequence[int],
    lift: Lift,
    *,
    scatter: bool = False,
    counts: Tensor | None = None,
) -> Moments:
    """Moments of these classes in batches of features and labels; other classes in them are passed over.

    With `counts` of the classes, known before, every class has the same say in the scatter, however many its images.
    """
    row_of = {label: row for row, label in enumerate(classes)}
    seen = torch.zeros(len(classes), dtype=torch.long)
    weights = None if counts is None else 1 / counts.double()
    sums = squares = shift = None
    for given, labels in features:
        rows = torch.tensor([row_of.get(label, -1) for label in labels.tolist()], dtype=torch.long)
        z = lift(given.detach().double().cpu())[rows >= 0]
        rows = rows[rows >= 0]
        if sums is None:
            sums = z.new_zeros(len(classes), z.shape[1])
        sums.index_add_(0, rows, z)
        seen += torch.bincount(rows, minlength=len(classes))
        if scatter and len(z):
            shift = z.mean(0) if shift is None else shift
            near = z - shift  # so that little is lost when the means are taken out of the sum of squares
            squared = near.T @ (near if weights is None else near * weights[rows].unsqueeze(1))
            squares = squared if squares is None else squares + squared
    if sums is None or bool((seen == 0).any()):
        missing = classes[int((seen == 0).nonzero()[0])] if len(classes) else "of any class"
        raise InputError(f"no training image has label {missing}, so that its class has no mean.")
    means = sums / seen.unsqueeze(1)
    if squares is not None:
        assert shift is not None
        near, share = means - shift, seen if weights is None else seen * weights
        squares = squares - near.T @ (near * share.unsqueeze(1))
        squares = (squares + squares.T) / 2
    return _finite(Moments(means, seen, squares, weights))


def joined(parts: Sequence[Moments]) -> Moments:
    """The moments of classes that were gathered apart."""
    scatters = [part.scatter for part in parts if part.scatter is not None]
    weights = [part.weights for part in parts if part.weights is not None]
    return Moments(
        torch.cat([part.means for part in parts]),
        torch.cat([part.counts for part in parts]),
        torch.stack(scatters).sum(0) if scatters else None,
        torch.cat(weights) if weights else None,
    )


def around(means: Tensor, features: Iterable[tuple[Tensor, Tensor]], classes: Sequence[int], lift: Lift) -> Tensor:
    """The covariance of other images around these means of their classes."""
    row_of = {label: row for row, label in enumerate(classes)}
    squares, count = means.new_zeros(means.shape[1], means.shape[1]), 0
    for given, labels in features:
        apart = lift(given.detach().double().cpu()) - means[[row_of[label] for label in labels.tolist()]]
        squares += apart.T @ apart
        count += len(apart)
    return squares / max(count, 1)


def _finite(moments: Moments) -> Moments:
    if not bool(moments.means.isfinite().all()):
        raise LearningError(
            "a class mean is not finite. The learner is as it was before. Check the inputs for NaN, or lower the "
            "learning rate."
        )
    return moments
