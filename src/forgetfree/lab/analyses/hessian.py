"""Hessian: the leading eigenpairs of the second derivative of a loss, which is multiplied by and never written out.

Lanczos: a Krylov basis that is kept orthogonal grows until the residual of every wanted pair is below a tolerance, so
that what is given back is converged, however many products that takes.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

TOLERANCE = 1e-6
"""Largest residual |Hv - λv| of a pair, over the largest |λ|."""
CLOSED = 1e-12
"""Where a new direction is shorter than this, over the largest |λ|, there is none."""

Function = Callable[[Tensor], Tensor]


class Eigenpairs(NamedTuple):
    """Eigenvalues, the largest in magnitude first, and their unit eigenvectors."""

    values: Tensor
    """[pairs]"""
    vectors: Tensor
    """[pairs, coordinates], each with its largest entry above zero."""


def hessian_product(loss: Function, point: Tensor) -> Function:
    """The function v → Hv at a point."""
    gradient = torch.func.grad(loss)

    def product(vector: Tensor) -> Tensor:
        slope: Tensor = torch.func.grad(lambda at: gradient(at) @ vector)(point)
        return slope

    return product


def leading_eigenpairs(
    product: Function, size: int, *, count: int = 2, generator: torch.Generator, tolerance: float = TOLERANCE
) -> Eigenpairs:
    """The `count` eigenpairs of largest magnitude of the symmetric matrix behind `product`, in double precision.

    Of eigenvalues that are equal to the last bit one is found.
    """
    basis = _unit(torch.randn(size, generator=generator, dtype=torch.float64))[None]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        image = product(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        rest = _beside(basis, image)
        length = float(rest.norm())
        values, within = torch.linalg.eigh(_tridiagonal(diagonal, beside))
        order = values.abs().argsort(descending=True)[:count]
        scale = float(values.abs().max())
        settled = bool((length * within[-1, order].abs() <= tolerance * scale).all())
        if len(diagonal) == size or (len(diagonal) >= count and settled):
            break
        if length <= CLOSED * scale:  # fewer different eigenvalues than wanted: go on in what is left
            rest, length = _beside(basis, torch.randn(size, generator=generator, dtype=torch.float64)), 0.0
        beside.append(length)
        basis = torch.cat([basis, _unit(rest)[None]])
    vectors = within[:, order].T @ basis
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return Eigenpairs(values[order], vectors * largest.sign() / vectors.norm(dim=1, keepdim=True))


def _beside(basis: Tensor, vector: Tensor) -> Tensor:
    """What is left of a vector beside an orthonormal basis."""
    for _ in range(2):  # once leaves rounding errors that grow
        vector = vector - (vector @ basis.T) @ basis
    return vector


def _unit(vector: Tensor) -> Tensor:
    return vector.div(vector.norm())


def _tridiagonal(diagonal: list[float], beside: list[float]) -> Tensor:
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for at, value in enumerate(beside):
        matrix[at, at + 1] = matrix[at + 1, at] = value
    return matrix
