"""Downloads: each address in turn, and once more those whose failure may have been chance."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from forgetfree.errors import DataError

Progress = Callable[[str, int, int], None]
"""Called while a file comes in: its name, bytes so far, bytes in all."""

ROUNDS = 2
PAUSE = 1.0  # seconds between the rounds
TIMEOUT = (4.0, 30.0)  # seconds to connect, and between two pieces
PIECE = 1 << 16


def download(
    urls: Sequence[str], to: Path, *, sha256: str, size: int, progress: Progress | None = None
) -> dict[str, str]:
    """Bring one file to its place; what went wrong by address, nothing if one of them worked."""
    import pooch
    import requests

    failures = dict[str, str]()
    for attempt in range(ROUNDS):
        if attempt and urls:
            time.sleep(PAUSE)
        worth_another_try = []
        for url in urls:
            meter = _Meter(to.name, size, progress)
            # not compressed on the way: the digest is that of the file as it is stored
            loader = pooch.HTTPDownloader(
                progressbar=meter, chunk_size=PIECE, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"}
            )
            try:
                with _quiet(pooch.get_logger()):
                    pooch.retrieve(url, f"sha256:{sha256}", to.name, to.parent, downloader=loader)
                to.chmod(0o644)  # pooch's temporary files are for their owner only
                return {}
            except requests.HTTPError as error:
                status = getattr(error.response, "status_code", 0)
                failures[url] = f"the server answers {status}"
                if status >= 500:
                    worth_another_try.append(url)
            except (requests.ConnectionError, requests.Timeout) as error:
                failures[url] = f"no connection ({type(error).__name__})"
            except requests.RequestException as error:
                failures[url] = f"the transfer broke off ({type(error).__name__})"
                worth_another_try.append(url)
            except ValueError:  # pooch: another digest
                failures[url] = f"what comes is not the original (expected SHA-256 {sha256})"
                worth_another_try.append(url)
            except OSError as error:
                raise DataError(f"cannot write {to}: {error.strerror or error}.") from error
        urls = worth_another_try
    return failures


class _Meter:
    """What pooch expects of a progress bar, as calls of `progress`."""

    def __init__(self, name: str, size: int, progress: Progress | None) -> None:
        self.name, self.total, self._size, self._done, self._progress = name, size, size, 0, progress

    def update(self, amount: int) -> None:
        self._done = min(self._done + amount, self._size)
        if self._progress is not None:
            self._progress(self.name, self._done, self._size)

    def reset(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
