"""BENCHMARKS: every stream of tasks, name → function of its settings and a seed."""

from collections.abc import Callable

from forgetfree.lab.benchmarks.digits import digits_permuted, digits_split
from forgetfree.lab.benchmarks.permuted_mnist import permuted_mnist
from forgetfree.lab.benchmarks.stream import Benchmark

BENCHMARKS: dict[str, Callable[..., Benchmark]] = {
    "digits_permuted": digits_permuted,
    "digits_split": digits_split,
    "permuted_mnist": permuted_mnist,
}
