"""Heads: from features to the answers of one task. Each task has its own; a learned one is no parameter of anybody."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from forgetfree.contracts import Task
from forgetfree.errors import InputError
from forgetfree.modules import copy_module, freeze, named_tensors, refuse

HeadFactory = Callable[[int, Task], nn.Module]
"""(width of the features, task) -> the task's head."""


def linear_head(features: int, task: Task) -> nn.Module:
    """A linear layer with bias: the default."""
    return nn.Linear(features, task.width)


def linear_head_without_bias(features: int, task: Task) -> nn.Module:
    """A linear layer without bias, as in the paper's experiments."""
    return nn.Linear(features, task.width, bias=False)


HEADS: dict[str, HeadFactory] = {"linear": linear_head, "linear_without_bias": linear_head_without_bias}
"""Heads by name, for configurations."""


class TaskHeads:
    """One head per task."""

    def __init__(self, factory: HeadFactory | None = None):
        self.factory = factory
        self.kept: Mapping[str, nn.Module] = {}

    def new(self, task: Task, features: Tensor) -> nn.Module:
        """A head for `task` that learns from features like these; nothing of it is shared with the factory's."""
        if not isinstance(features, Tensor) or features.dim() < 2:
            raise InputError(
                "a backbone gives one tensor of features, [batch, features]; got "
                + (
                    f"shape {tuple(features.shape)}."
                    if isinstance(features, Tensor)
                    else f"a {type(features).__name__}."
                )
            )
        factory = self.factory or linear_head
        if self.factory is None and (features.dim() not in (2, 3) or (task.classifies and features.dim() != 2)):
            raise InputError(
                f"the backbone gives features of shape {tuple(features.shape)}; a linear head needs [batch, features]. "
                "Flatten or pool them at the end of the backbone, or pass heads=factory, (width, task) -> Module."
            )
        made = factory(features.shape[-1], task)
        refuse(made)
        return copy_module(made, lambda _, tensor: tensor.detach().clone()).to(features.device, features.dtype)

    def keep(self, name: str, head: nn.Module) -> None:
        """Store the head as it stands, in tensors that no optimizer has seen."""
        self.kept = {**self.kept, name: freeze(copy_module(head, lambda _, tensor: tensor.detach().clone()))}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of every head, by task."""
        return {name: {key: value.detach() for key, value in named_tensors(head)} for name, head in self.kept.items()}

    def to(self, device: torch.device | str) -> "TaskHeads":
        self.kept = {
            name: copy_module(head, lambda _, value: value.detach().to(device)) for name, head in self.kept.items()
        }
        return self


class Whole(nn.Module):
    """Backbone and head of one task as one plain module."""

    def __init__(self, backbone: nn.Module, head: nn.Module):
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        answer: Tensor = self.head(self.backbone(*args, **kwargs))
        return answer
