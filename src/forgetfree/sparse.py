"""Sparse answers: linear layers that multiply by the few weights of a ticket instead of all of them.

A ticket of 5 % leaves a linear layer with one weight in twenty. In compressed rows (CSR: the weights, the column of
each, where each row begins) a large layer answers two to eight times faster than in full. Another order of adding means
other last bits, so which way a call goes is a fixed rule of shape, density, rows and threads (`is_faster`) and never
of a stopwatch: the same call takes the same way for ever. One more difference: an input that is not finite reaches only
the outputs that use it.

`is_faster` says yes only where compressed rows won every time on one thread, with a margin. Two threads were measured
beside other work only, where waiting hides differences (2500-1500 at batch 64: 1.6 at 5 %, 1.5 at 10 %), so the rule
asks for twice the weights that pay on one. The time of a dense layer divided by that of compressed rows, one thread,
float32, in a batch of

    layer        density     1     2    10    64   256  1024
    8192-2500        5 %   2.9   6.2   8.1   3.9   3.4
    8192-2500       10 %   1.5   2.7   3.5   1.8   1.7
    2500-1500        5 %   3.7   5.2   4.5   3.5   3.9   3.6
    2500-1500       10 %   2.0   3.3   2.9   3.5   2.2   2.0
    3072-768         5 %   2.5   2.7   4.0   3.0   4.1   2.2
    8192-512         5 %   2.2   3.6   3.8   2.1   2.0   1.4
    8192-512        10 %   1.2   2.1   2.5   1.4   1.0   0.7     refused
    1024-1024        5 %   1.4   2.3   3.9   2.9   4.0   2.0     refused: a tie on two threads
    1024-1024       10 %   0.8   1.4   2.6   2.0   1.7   1.3     refused
    8192-128         5 %   0.7   1.3   1.9   0.9   1.1   0.6     refused
    128-8192         5 %   1.9   1.7   2.5   2.3   0.7   0.8     refused
     800-500        10 %   0.9   1.4   2.2   2.1   1.9           refused
     784-100        10 %   0.7   0.8   1.1   1.1   1.4           refused
"""

import warnings
from collections import Counter
from collections.abc import Container
from functools import cache

import torch
from torch import Tensor, nn

from forgetfree.modules import is_watched

FEWEST_OUTPUTS, FEWEST_INPUTS, FEWEST_WEIGHTS = 512, 256, 1 << 21
VERY_SPARSE, SPARSE = 0.05, 0.10
MANY_OUTPUTS, MANY_ROWS = 1024, 256


def is_faster(outputs: int, inputs: int, density: float, *, rows: int, threads: int) -> bool:
    """Whether a linear layer with this fraction of its weights answers this many rows faster in compressed rows.

    One row is multiplied by a dense layer on one thread, by compressed rows on all of them, which wait for each other.
    """
    weights, density = outputs * inputs, round(density, 3)  # a ticket of 10 % may hold one weight more than that
    if rows < 1 or outputs < FEWEST_OUTPUTS or inputs < FEWEST_INPUTS or weights < FEWEST_WEIGHTS:
        return False
    if rows == 1:
        return threads == 1 and density <= VERY_SPARSE
    return density <= (SPARSE if outputs >= MANY_OUTPUTS and rows <= MANY_ROWS else VERY_SPARSE)


def compress(module: nn.Module, masked: Container[str]) -> nn.Module:
    """The module itself, its large linear layers with few weights turned into `SparseLinear`.

    Only plain `nn.Linear` layers on the CPU whose weight is among `masked`, belongs to no other layer, and has no hook
    near it; the others stay as they are.
    """
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return module
    parts = list(module.modules())
    owners = Counter(id(tensor) for part in parts for tensor in part._parameters.values())
    for path, part in module.named_modules():
        name = f"{path}.weight" if path else "weight"
        if type(part) is nn.Linear and name in masked and owners[id(part.weight)] == 1 and not is_watched(part):
            SparseLinear.take_over(part)
    return module


class SparseLinear(nn.Linear):
    """A linear layer that also holds its weights in compressed rows, and uses them where that is faster."""

    starts: Tensor
    columns: Tensor
    values: Tensor
    _density: float
    _taken_from: tuple[Tensor, int]

    @classmethod
    def take_over(cls, layer: nn.Linear) -> None:
        """Make `layer` one of these, where it is and for all who hold it, if that can ever be faster."""
        weight = layer.weight.detach()
        density = int(weight.count_nonzero()) / max(1, weight.numel())
        usable = weight.device.type == "cpu" and weight.dtype == torch.float32
        if not usable or not is_faster(layer.out_features, layer.in_features, density, rows=2, threads=1):
            return
        _quiet()
        compressed = weight.to_sparse_csr()
        layer.__class__ = cls
        assert isinstance(layer, SparseLinear)
        # torch's kernel counts in 32 bits, and would convert 64 in every call
        layer.register_buffer("starts", compressed.crow_indices().int(), persistent=False)
        layer.register_buffer("columns", compressed.col_indices().int(), persistent=False)
        layer.register_buffer("values", compressed.values(), persistent=False)
        layer._density = density
        layer._taken_from = layer.weight, layer.weight._version

    def forward(self, input: Tensor) -> Tensor:
        if not self._applies_to(input):
            return super().forward(input)
        size = (self.out_features, self.in_features)
        weight = torch.sparse_csr_tensor(self.starts, self.columns, self.values, size, check_invariants=False)
        turned = input.reshape(-1, self.in_features).t()  # [rows, inputs] -> [inputs, rows]
        answer = weight @ turned if self.bias is None else torch.addmm(self.bias.unsqueeze(1), weight, turned)
        return answer.t().contiguous().view(*input.shape[:-1], self.out_features)

    def _applies_to(self, input: Tensor) -> bool:
        weight, version = self._taken_from
        as_taken = self.weight is weight and weight._version == version
        plain = input.dtype == torch.float32 and input.dim() > 0 and input.shape[-1] == self.in_features
        if not as_taken or not plain or torch.is_autocast_enabled("cpu"):
            return False
        if torch.is_grad_enabled() and (input.requires_grad or (self.bias is not None and self.bias.requires_grad)):
            return False
        rows, threads = input.numel() // self.in_features, torch.get_num_threads()
        return is_faster(self.out_features, self.in_features, self._density, rows=rows, threads=threads)


@cache
def _quiet() -> None:
    """Let torch say once, unheard, that it calls compressed rows a beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.zeros(1, 1).to_sparse_csr()
