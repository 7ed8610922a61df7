"""A run in several processes, on one machine or on many: each is started by torchrun with the same command.

    torchrun --nproc-per-node 2 -m forgetfree run til/digits_split --set recipe.accumulate=2

The first process leads: it alone locks the run folder, writes to it and speaks. The others learn their share and need
no shared disk.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from forgetfree.errors import InputError


@contextmanager
def joined(jobs: int = 1) -> Iterator[None]:
    """Join the processes that torchrun has started, if it has."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if jobs > 1:
        raise InputError(
            f"--jobs {jobs} is for runs in processes of their own, and torchrun has started "
            f"{os.environ['WORLD_SIZE']} processes for each run: leave one of the two out."
        )
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
