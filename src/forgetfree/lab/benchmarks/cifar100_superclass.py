"""CIFAR-100 Superclass: twenty tasks, the five classes of one superclass each.

Superclasses in their standard order (aquatic mammals first, vehicles 2 last), classes inside by ascending label; 2 375
images to learn, 125 (5 %) to validate, 500 to test; pixels are divided by 255 and no more.
"""

from pathlib import Path

from torch import Tensor

from forgetfree.errors import DataError
from forgetfree.lab.benchmarks.cifar100_split import class_groups
from forgetfree.lab.benchmarks.sources import Cifar100, cifar100
from forgetfree.lab.benchmarks.stream import Benchmark, Notes, check_count


def cifar100_superclass(
    *,
    tasks: int = 20,
    scrambled: bool = False,
    wide_heads: bool = False,
    seed: int = 0,
    data_root: str | Path | None = None,
    limit: int | None = None,
) -> Benchmark:
    """Twenty tasks, or the first few of them; the seed chooses what validates.

    `scrambled` reads the three colour planes as if they were pixels of three bytes, as the code behind the published
    numbers did: hardly a pixel is in its place. `wide_heads` gives every task 100 outputs, as there. `limit` takes
    the first so many images of each part of a task, for a quick look.
    """
    check_count("tasks", tasks, 20)
    data = cifar100(data_root)
    notes: Notes = {"pixels": "scrambled as in the released code"} if scrambled else {}
    return class_groups(
        "cifar100_superclass", data, _superclasses(data)[:tasks], _scrambled if scrambled else _scaled,
        seed=seed, wide_heads=wide_heads, limit=limit, notes=notes,
    )  # fmt: skip


def _superclasses(data: Cifar100) -> list[tuple[int, ...]]:
    """The fine labels of each coarse one, ascending."""
    groups = [tuple(sorted(set(data.fine[data.coarse == coarse].tolist()))) for coarse in range(20)]
    if {len(group) for group in groups} != {5} or len(set().union(*groups)) != 100:
        raise DataError(f"CIFAR-100 has 20 superclasses of 5 classes; these files have {groups}.")
    return groups


def _scaled(images: Tensor) -> Tensor:
    return images.float().div_(255)


def _scrambled(images: Tensor) -> Tensor:
    # channel c of pixel (h, w) is byte 96h + 3w + c of a record that holds plane after plane
    return _scaled(images.reshape(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous())
