"""BENCHMARKS: every stream of tasks, name → function of its settings and a seed."""

from forgetfree.lab.benchmarks.digits import digits_permuted, digits_split

BENCHMARKS = {
    "digits_permuted": digits_permuted,
    "digits_split": digits_split,
}
