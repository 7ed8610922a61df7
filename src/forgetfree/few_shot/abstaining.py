"""Abstaining: no answer where no class known makes an image likely.

The best score of Bayes means is a log density, so an image that no class expects, of a class never met, say, has a low
one. A threshold is calibrated on labelled images that nothing was learned from: the lowest at which so few of the
answers given are wrong.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from forgetfree.checks import check_number
from forgetfree.errors import InputError

NO_ANSWER = -1


@dataclass(frozen=True)
class Abstention:
    """From which score on an answer is given, and what that costs on the images it was calibrated on."""

    threshold: float
    answered: float
    """The part of the images that is answered."""
    error: float
    """The part of the answers given that is wrong."""
    error_of_all: float
    """The same if every image is answered."""
    images: int
    """How many it was calibrated on."""

    def answers(self, scores: Tensor) -> Tensor:
        """The class of every image, as its place in `classes`; -1 where none is likely enough."""
        best, label = scores.max(1)
        return torch.where(best >= self.threshold, label, NO_ANSWER)

    def __str__(self) -> str:
        return (
            f"answers {self.answered:.1%} of {self.images} images with {self.error:.1%} wrong; all of them would be "
            f"{self.error_of_all:.1%} wrong (threshold {self.threshold:.4g})"
        )


def calibrated(scores: Tensor, labels: Tensor, error: float) -> Abstention:
    """The lowest threshold at which at most the part `error` of the answers given is wrong."""
    check_number("error, the part of answers that may be wrong,", error, 0, 1)
    if scores.dim() != 2 or labels.shape != scores.shape[:1] or not len(labels):
        raise InputError(
            f"scores are [images, classes] and labels [images], at least one; got {tuple(scores.shape)} and "
            f"{tuple(labels.shape)}."
        )
    best, label = scores.detach().double().cpu().max(1)
    order = best.argsort(descending=True, stable=True)
    best, wrong = best[order], (label[order] != labels.cpu()[order]).double()
    given = torch.arange(1, len(best) + 1)
    rate = wrong.cumsum(0) / given
    whole = torch.cat([best[1:] < best[:-1], torch.ones(1, dtype=torch.bool)])  # images of one score go together
    allowed = (rate <= error) & whole
    if not bool(allowed.any()):
        raise InputError(
            f"no threshold has at most {error:.1%} wrong answers: the images of the highest score are wrong already. "
            "Allow more, or calibrate on more images."
        )
    last = int(allowed.nonzero()[-1])
    return Abstention(
        float(best[last]), (last + 1) / len(best), float(rate[last]), float(wrong.mean()), len(best)
    )  # fmt: skip
