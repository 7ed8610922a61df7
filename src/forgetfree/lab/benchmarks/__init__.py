"""BENCHMARKS: every stream of tasks, name → function of its settings and a seed."""

from collections.abc import Callable

from forgetfree.lab.benchmarks.cifar100_split import cifar100_split
from forgetfree.lab.benchmarks.cifar100_superclass import cifar100_superclass
from forgetfree.lab.benchmarks.digits import digits_permuted, digits_split
from forgetfree.lab.benchmarks.five_datasets import five_datasets
from forgetfree.lab.benchmarks.fscil_cifar100 import fscil_cifar100
from forgetfree.lab.benchmarks.fscil_cub200 import fscil_cub200
from forgetfree.lab.benchmarks.fscil_digits import fscil_digits
from forgetfree.lab.benchmarks.fscil_iris import fscil_iris
from forgetfree.lab.benchmarks.fscil_mini_imagenet import fscil_mini_imagenet
from forgetfree.lab.benchmarks.fscil_omniglot import fscil_omniglot
from forgetfree.lab.benchmarks.omniglot_rotation import omniglot_rotation
from forgetfree.lab.benchmarks.permuted_mnist import permuted_mnist
from forgetfree.lab.benchmarks.stream import Benchmark
from forgetfree.lab.benchmarks.tiny_imagenet import tiny_imagenet

BENCHMARKS: dict[str, Callable[..., Benchmark]] = {
    "cifar100_split": cifar100_split,
    "cifar100_superclass": cifar100_superclass,
    "digits_permuted": digits_permuted,
    "digits_split": digits_split,
    "five_datasets": five_datasets,
    "fscil_cifar100": fscil_cifar100,
    "fscil_cub200": fscil_cub200,
    "fscil_digits": fscil_digits,
    "fscil_iris": fscil_iris,
    "fscil_mini_imagenet": fscil_mini_imagenet,
    "fscil_omniglot": fscil_omniglot,
    "omniglot_rotation": omniglot_rotation,
    "permuted_mnist": permuted_mnist,
    "tiny_imagenet": tiny_imagenet,
}
