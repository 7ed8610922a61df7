"""Chance: every random stream comes from a seed and a few words that say what it is for.

`derive(seed, 3, "order", 7)` is the seed of the order of batches in epoch 7 of the fourth task. Nothing else is
remembered, so an epoch can be started again without a saved random state.
"""

import hashlib
import inspect
import json
import operator
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forgetfree.errors import InputError
from forgetfree.locks import ProcessLock, forked

_BORROWER = ProcessLock()


def check_seed(seed: int) -> int:
    """`seed` itself, as a plain number."""
    try:
        return operator.index(seed)
    except TypeError as error:
        raise InputError(f"a seed is a whole number; got {seed!r}.") from error


def derive(seed: int, *words: int | str) -> int:
    """A 63-bit seed that depends on nothing but its arguments."""
    text = json.dumps([check_seed(seed), *words]).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(seed: int, *words: int | str) -> torch.Generator:
    """A CPU generator seeded by `derive`: the same numbers whatever device learns."""
    return torch.Generator().manual_seed(derive(seed, *words))


def philox_uniform(size: int, seed: int, *words: int | str) -> NDArray[np.float32]:
    """`size` numbers in [0, 1) that are the same on every machine and in every version of its libraries.

    Philox-4x64 with ten rounds, counted from one, its key from `derive`; of each 64-bit number the upper 24 bits.
    For what an archive relies on. `generator` is torch's own generator, which promises less.
    """
    raw = np.random.Philox(key=derive(seed, *words)).random_raw(size)
    return (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def layer_init(shape: torch.Size, seed: int, *words: int | str) -> Tensor:
    """Weights drawn as PyTorch draws a linear layer, U(-1/√fan_in, 1/√fan_in), by `philox_uniform` numbers."""
    fan_in = shape[1:].numel() if len(shape) > 1 else shape.numel()
    bound = max(fan_in, 1) ** -0.5
    return torch.from_numpy(bound * (2 * philox_uniform(shape.numel(), seed, *words) - 1)).view(shape)


def seed_all(device: torch.device, seed: int, *words: int | str) -> None:
    """Set the global random state (torch, numpy, Python); call it inside `preserved_rng` only."""
    number = derive(seed, *words)
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)


@contextmanager
def preserved_rng(device: torch.device) -> Iterator[None]:
    """Give the global random state back, on leaving, exactly as it was.

    There is one such state in a process, so one thread at a time may borrow it; others wait.
    """
    with _BORROWER:
        python, legacy = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng(devices=[]), _preserved_on(device):
                yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


@contextmanager
def _preserved_on(device: torch.device) -> Iterator[None]:
    """The random state of a device that is no CPU; not by `fork_rng`, since torch.mps has but one device to ask."""
    if device.type == "cpu":
        yield
        return
    backend = torch.get_device_module(device)
    which = (device,) if inspect.signature(backend.get_rng_state).parameters else ()
    state = backend.get_rng_state(*which)
    try:
        yield
    finally:
        backend.set_rng_state(state, *which)


def agree_on_threads() -> None:
    """Let this Python thread compute with as many threads as torch says, before a library asks for the number itself.

    torch tells a Python thread its number when that thread first needs it; MKL's Fourier transform does not wait for
    that, takes the number of cores, and has other last bits.
    """
    torch.get_num_threads()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads: sums in another order have other last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if forked() else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
