"""Memory that is used again: a large new tensor costs ten times more to fill than one that was filled before.

The system gives and takes back large pieces page by page, in every step anew. Here a piece is handed out again as soon
as nobody holds the tensor that was in it; whoever does hold it keeps it, and a new piece is taken.
"""

import sys
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNED = 64
"""Bytes: where torch's own tensors begin, and what its kernels are fastest with."""
ALONE = 2
"""References to an array that only its owner holds: the owner's, and the one that asks."""


class Reused:
    """Hands out CPU tensors in one piece of memory, in a new one while somebody holds the last."""

    def __init__(self) -> None:
        self._shaped: Any = None
        self._flat: Any = None
        self._lock = threading.Lock()

    def like(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """An uninitialised tensor of the shape and type of `tensor`, and the same memory as a flat array."""
        with self._lock:
            shaped = self._shaped
            del self._shaped  # so that one reference less is to be counted
            if shaped is None or sys.getrefcount(shaped) > ALONE or shaped.shape != tensor.shape:
                self._flat = _aligned(tensor)
                shaped = self._flat.reshape(tensor.shape)
            self._shaped = shaped
            return torch.from_numpy(shaped), self._flat

    def __deepcopy__(self, memo: dict[int, Any]) -> "Reused":
        return Reused()


def _aligned(tensor: Tensor) -> Any:
    kind = np.dtype(str(tensor.dtype).removeprefix("torch."))
    memory = np.empty(tensor.numel() * kind.itemsize + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + tensor.numel() * kind.itemsize].view(kind)
