"""A forked child: locks that it finds open, and torch without threads, because none of the parent's live there."""

import os
import threading
from contextlib import AbstractContextManager
from types import TracebackType

import torch

_FIRST = os.getpid()


def forked() -> bool:
    """Whether this process was forked from one that had imported this package."""
    return os.getpid() != _FIRST


def settle_after_fork() -> None:
    """Let torch compute on one thread in a forked child: its pool was the parent's, and it would wait for it for ever.

    The workers of torch's own DataLoader do the same.
    """
    if forked():
        torch.set_num_threads(1)


class ProcessLock(AbstractContextManager[None]):
    """A lock that the thread which holds it may take again; in a forked child only that thread holds it still."""

    def __init__(self) -> None:
        self._locks = {os.getpid(): threading.RLock()}

    def acquire(self, blocking: bool = True) -> bool:
        return self._here().acquire(blocking)

    def release(self) -> None:
        self._here().release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _here(self) -> threading.RLock:
        found = self._locks.get(os.getpid())
        if found is None:
            # the thread that forked is the only one here, and is called as it was there
            (inherited,) = self._locks.values()
            lock = inherited if inherited._is_owned() else threading.RLock()  # type: ignore[attr-defined]
            found = self._locks.setdefault(os.getpid(), lock)
            self._locks = {os.getpid(): found}
            settle_after_fork()
        return found
