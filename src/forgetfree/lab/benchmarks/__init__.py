"""BENCHMARKS: every stream of tasks, by name; the function of its settings and a seed is imported when asked for."""

from forgetfree.registry import Entry, Table

_ENTRIES = {
    "cifar100_split": Entry(
        "forgetfree.lab.benchmarks.cifar100_split:cifar100_split",
        "CIFAR-100 Split: ten tasks of ten classes, in the order of their labels.",
    ),
    "cifar100_superclass": Entry(
        "forgetfree.lab.benchmarks.cifar100_superclass:cifar100_superclass",
        "CIFAR-100 Superclass: twenty tasks, the five classes of one superclass each.",
    ),
    "digits_permuted": Entry(
        "forgetfree.lab.benchmarks.digits:digits_permuted",
        "The same ten digits in every task, the 64 pixels each time in another order.",
    ),
    "digits_split": Entry(
        "forgetfree.lab.benchmarks.digits:digits_split",
        "Five tasks of two digits each: 0 or 1, 2 or 3, and so on to 8 or 9.",
    ),
    "five_datasets": Entry(
        "forgetfree.lab.benchmarks.five_datasets:five_datasets",
        "5-Datasets: CIFAR-10, MNIST, SVHN, Fashion-MNIST and notMNIST, ten classes each, in this order.",
    ),
    "fscil_cifar100": Entry(
        "forgetfree.lab.benchmarks.fscil_cifar100:fscil_cifar100",
        "Few-shot CIFAR-100: 60 base classes, then eight sessions of five classes, five images each.",
    ),
    "fscil_cub200": Entry(
        "forgetfree.lab.benchmarks.fscil_cub200:fscil_cub200",
        "Few-shot CUB-200-2011: 100 species of birds as base classes, then ten sessions of ten, five photographs each.",
    ),
    "fscil_digits": Entry(
        "forgetfree.lab.benchmarks.fscil_digits:fscil_digits",
        "Few-shot digits: scikit-learn's handwritten digits, 0 to 4 as base classes, then one a session, "
        "five images each.",
    ),
    "fscil_iris": Entry(
        "forgetfree.lab.benchmarks.fscil_iris:fscil_iris",
        "Iris: scikit-learn's flowers, three species by four lengths, as one base session that no other follows.",
    ),
    "fscil_mini_imagenet": Entry(
        "forgetfree.lab.benchmarks.fscil_mini_imagenet:fscil_mini_imagenet",
        "Few-shot miniImageNet: 60 base classes, then eight sessions of five classes, five photographs each, 3×84×84.",
    ),
    "fscil_omniglot": Entry(
        "forgetfree.lab.benchmarks.fscil_omniglot:fscil_omniglot",
        "Few-shot Omniglot: 200 handwritten characters as base classes, then ten sessions of five, five drawings each.",
    ),
    "omniglot_rotation": Entry(
        "forgetfree.lab.benchmarks.omniglot_rotation:omniglot_rotation",
        "Omniglot Rotation: a hundred tasks of twelve characters, every drawing in four rotations under one label.",
    ),
    "permuted_mnist": Entry(
        "forgetfree.lab.benchmarks.permuted_mnist:permuted_mnist",
        "Permuted MNIST: the ten digits in every task, the 784 pixels each time in another order.",
    ),
    "tiny_imagenet": Entry(
        "forgetfree.lab.benchmarks.tiny_imagenet:tiny_imagenet",
        "TinyImageNet: forty tasks of five classes, in an order that the seed draws.",
    ),
}

BENCHMARKS: Table[Entry] = Table("benchmarks", _ENTRIES)
