"""Leading eigenpairs without the matrix: as those of the exact Hessian, converged, whatever the spectrum is like."""

import pytest
import torch
from torch.nn import functional as F

from forgetfree.lab.analyses.hessian import hessian_product, leading_eigenpairs
from forgetfree.rng import generator


def found(matrix, **settings):
    return leading_eigenpairs(lambda v: matrix @ v, len(matrix), generator=generator(0, "test"), **settings)


def with_spectrum(values, seed=0):
    """A symmetric matrix with these eigenvalues, and its eigenvectors as columns."""
    draw = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=draw, dtype=torch.float64))
    return basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T, basis


def test_the_pairs_of_a_small_network_are_those_of_its_exact_hessian():
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 3, generator=draw, dtype=torch.float64)
    labels = torch.randint(3, (40,), generator=draw)

    def loss(weights):
        first, second = torch.split(weights, [15, 15])
        return F.cross_entropy(torch.relu(inputs @ first.view(3, 5)) @ second.view(5, 3), labels)

    point = torch.randn(30, generator=draw, dtype=torch.float64)
    pairs = leading_eigenpairs(hessian_product(loss, point), 30, generator=generator(0, "test"))
    values, vectors = torch.linalg.eigh(torch.autograd.functional.hessian(loss, point))
    order = values.abs().argsort(descending=True)[:2]
    assert pairs.values.tolist() == pytest.approx(values[order].tolist(), rel=1e-4)
    for vector, exact in zip(pairs.vectors, vectors[:, order].T, strict=True):
        assert float((vector @ exact).abs()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "leading"),
    [
        ([5.0, 3.0, 1.0, 0.0, 0.0, 0.0], [5.0, 3.0]),
        ([-7.0, 4.0, 1.0, 0.5], [-7.0, 4.0]),
        ([2.0, 1.999, *[1.99 - 0.01 * i for i in range(60)]], [2.0, 1.999]),
        ([1.0, *[0.0] * 20], [1.0, 0.0]),
        ([3.0, 3.0], [3.0, 3.0]),
        ([0.0, 0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_the_two_of_largest_magnitude_are_found(values, leading):
    matrix, _ = with_spectrum(values)
    pairs = found(matrix)
    assert pairs.values.tolist() == pytest.approx(leading, abs=1e-5)
    assert torch.allclose(pairs.vectors @ pairs.vectors.T, torch.eye(2, dtype=torch.float64), atol=1e-8)


def test_every_pair_is_converged_to_the_tolerance():
    matrix, _ = with_spectrum([10 * 0.97**i for i in range(200)])
    for tolerance in (1e-3, 1e-6, 1e-9):
        pairs = found(matrix, tolerance=tolerance)
        residual = pairs.vectors @ matrix - pairs.values[:, None] * pairs.vectors
        assert float(residual.norm(dim=1).max()) <= 2 * tolerance * 10


def test_signs_do_not_depend_on_chance():
    matrix, _ = with_spectrum([4.0, 2.0, 1.0, 0.5, 0.1])
    one, other = (leading_eigenpairs(lambda v: matrix @ v, 5, generator=generator(seed, "test")) for seed in (1, 2))
    assert torch.allclose(one.vectors, other.vectors, atol=1e-5)
    assert bool((one.vectors.gather(1, one.vectors.abs().argmax(1, keepdim=True)) > 0).all())
