"""The subnetwork that a first few-shot session learns (Algorithm 2, lines 2 to 8): weights and scores together.

Major weights, the top c of the scores, are as they are; minor ones are multiplied by random numbers in [0, 1), drawn
anew every epoch or step (soft), or are not there (hard).
"""

from functools import partial
from typing import Any, Literal

from torch import nn

from forgetfree.contracts import Inputs
from forgetfree.masks import Masks
from forgetfree.network import SharedNetwork
from forgetfree.scores import Minor, Scores
from forgetfree.training.session import TaskModel

Resample = Literal["epoch", "forward"]


class Soft(TaskModel):
    """The network through soft masks, whose minor weights are drawn anew now and then; hard where they never are."""

    def __init__(
        self,
        network: SharedNetwork,
        scores: Scores,
        capacity: float,
        minor: Minor,
        *,
        resample: Resample = "epoch",
        soft_from_epoch: int | None = 0,
    ):
        super().__init__()
        self.network = network.trainable_view()
        self.scores = scores.on(network.placement.device)
        self.minor = minor
        self.capacity, self.resample, self.soft_from_epoch = capacity, resample, soft_from_epoch

    def forward(self, inputs: Inputs) -> Any:
        if self.training and self.soft_from_epoch is not None and self.epoch >= self.soft_from_epoch:
            self.minor.resample(self.epoch if self.resample == "epoch" else self.minor.draw + 1)
        masks = partial(self.scores.soft, self.capacity, self.minor)
        return self.network(inputs, masks)  # lines 4 and 6; 7-8: the optimizer

    def ticket(self) -> Masks:
        return self.scores.top(self.capacity)


def minor_weights(network: SharedNetwork, seed: int, number: int) -> Minor:
    """Minor weights of the draw with this number."""
    return Minor(network.shapes, seed, number)


def answering_network(network: SharedNetwork, seed: int, drawn: int) -> nn.Module:
    """The network of the first session's ticket, with the minor weights of this draw, or none."""
    minor = minor_weights(network, seed, drawn).value if drawn != Minor.NONE else None
    return network.answer(next(iter(network.tickets)), background=minor)
