"""Models of a session that several methods share: the shared network through masks that stay, or that scores choose."""

from typing import Any

from torch import nn

from forgetfree.contracts import Inputs
from forgetfree.masks import Masks, Selection
from forgetfree.modules import as_call
from forgetfree.network import TrainableView
from forgetfree.scores import Scores
from forgetfree.training.session import TaskModel


class SeenThrough(TaskModel):
    """The network through masks that stay as they are; through ones, it is dense."""

    def __init__(self, network: TrainableView, masks: Masks):
        super().__init__()
        self.network = network
        self.masks = masks

    def forward(self, inputs: Inputs) -> Any:
        return self.network(inputs, self.masks)


class Selected(TaskModel):
    """The network through the top fraction of scores that learn with it (Algorithm 1, lines 4 and 5)."""

    def __init__(self, network: TrainableView, scores: Scores, capacity: float):
        super().__init__()
        self.network, self.scores, self.capacity = network, scores, capacity

    def masks(self) -> dict[str, Selection]:
        return self.scores.top(self.capacity)

    def forward(self, inputs: Inputs) -> Any:
        return self.network(inputs, self.masks())


class Plain(TaskModel):
    """A module that learns as it is."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, inputs: Inputs) -> Any:
        args, kwargs = as_call(inputs)
        return self.network(*args, **kwargs)
