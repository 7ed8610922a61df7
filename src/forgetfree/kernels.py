"""One pass over the weights where torch takes ten: numba kernels for a CPU.

Imported when a network is large enough to gain from it. Loops without branches are vectorised: both values are loaded,
then one is chosen. Everything here gives the same bits as the plain-torch path in `masks`.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]

BLOCK = 128
ROOM = 2048
"""The most scores that are looked at one by one around the threshold; in a large tensor, a hundredth of them."""
AIM = 128
"""How many scores the band around the threshold should hold."""

fast = numba.njit(nogil=True, error_model="numpy", cache=True)


class Cut:
    """A selection: every |score| at or above `threshold`, except the `losers` among those equal to it."""

    def __init__(self, threshold: Any, losers: NDArray[np.int64]):
        self.threshold = threshold
        self.losers = losers


NOBODY = np.empty(0, np.int64)


class Search:
    """Finds the cut of one tensor again and again, from where it was the last time.

    Scores move little from step to step, and so does the threshold. One pass counts what lies above a narrow band
    around the old one and lists what lies inside; the list is ranked exactly. If the cut is not in the band, everything
    is ranked. So the result never depends on where the search started.
    """

    def __init__(self, size: int) -> None:
        self._last, self._centre, self._width, self._stir = 0.0, 0.0, 0.0, 0.0
        self._room = max(ROOM, size // 100)
        self._inside = np.empty(self._room, np.int64)

    def cut(self, scores: Floats, count: int) -> Cut:
        """The cut that keeps `count` of the flat `scores`, ties by lower index. NaN is never kept, and not noticed."""
        if count >= scores.size:
            return Cut(scores.dtype.type(0), NOBODY)
        return self._near(scores, count) or self._anywhere(scores, count)

    def _near(self, scores: Floats, count: int) -> Cut | None:
        if not self._width:
            return None
        kind = scores.dtype.type
        low, high = kind(self._centre - self._width), kind(self._centre + self._width)
        above, found = _band(scores, low, high, self._inside)
        need = count - above
        if not 0 <= need <= found <= self._room:
            self._width = 0.0
            return None
        if not need:
            self._aim(float(high), found)
            return Cut(high, NOBODY)
        threshold, losers = _ranked(scores, self._inside[:found], need)
        self._aim(float(threshold), found)
        return Cut(threshold, losers)

    def _anywhere(self, scores: Floats, count: int) -> Cut:
        values = np.abs(scores)
        threshold = np.partition(values, scores.size - count)[scores.size - count]
        ties = np.flatnonzero(values == threshold)
        surplus = int(np.count_nonzero(values >= threshold)) - count
        here, before = float(threshold), self._last
        self._stir = abs(here - self._centre) if before else 0.0
        self._centre, self._last = max(2 * here - before, 0.0) if before else here, here
        self._width = max(1e-3 * here, self._stir)
        return Cut(threshold, ties[ties.size - surplus :] if surplus > 0 else NOBODY)

    def _aim(self, threshold: float, found: int) -> None:
        """Centre the next band where the same move again would lead, wide enough for errors like the latest."""
        self._stir = max(abs(threshold - self._centre), 0.8 * self._stir)
        dense = max(found, 1) / (2 * self._width)
        wanted = max(2 * self._stir, AIM / (2 * dense), 0.25 * self._width)
        self._width = min(wanted, self._room / (4 * dense), 4 * self._width)
        self._centre, self._last = max(2 * threshold - self._last, 0.0), threshold


@fast
def _band(scores: Floats, low: Any, high: Any, inside: NDArray[np.int64]) -> tuple[int, int]:
    """How many |scores| are at or above `high`, and how many in [low, high), whose indices go to `inside`."""
    above: Any = 0
    found, room = 0, inside.size
    whole = scores.size // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        upper, both = np.int32(0), np.int32(0)
        for j in range(BLOCK):
            value = abs(scores[start + j])
            upper += np.int32(value >= high)
            both += np.int32(value >= low)
        above += upper
        if both != upper:
            for i in range(start, start + BLOCK):
                value = abs(scores[i])
                if value >= low and value < high:
                    if found < room:
                        inside[found] = i
                    found += 1
    for i in range(whole, scores.size):
        value = abs(scores[i])
        above += value >= high
        if value >= low and value < high:
            if found < room:
                inside[found] = i
            found += 1
    return above, found


@fast
def _ranked(scores: Floats, inside: NDArray[np.int64], need: int) -> tuple[Any, NDArray[np.int64]]:
    """The `need`-th largest |score| among those `inside`, and the indices of equal ones that came too late."""
    values = np.abs(scores[inside])
    threshold = np.sort(values)[values.size - need]
    winners = need
    for value in values:
        winners -= value > threshold
    losers = np.empty(values.size, np.int64)
    count = 0
    for i in range(values.size):
        if values[i] == threshold:
            if winners > 0:
                winners -= 1
            else:
                losers[count] = inside[i]
                count += 1
    return threshold, losers[:count]


@fast
def see(free: Floats, kept: Floats, used: Flags, scores: Floats, threshold: Any, effective: Floats) -> None:
    """where(used, kept, free) where |score| >= threshold, else 0."""
    nothing = effective.dtype.type(0)
    for i in range(effective.size):
        own, old = free[i], kept[i]
        weight = old if used[i] else own
        effective[i] = weight if abs(scores[i]) >= threshold else nothing


@fast
def see_alone(free: Floats, scores: Floats, threshold: Any, effective: Floats) -> None:
    """The same where no task uses anything yet."""
    nothing = effective.dtype.type(0)
    for i in range(effective.size):
        weight = free[i]
        effective[i] = weight if abs(scores[i]) >= threshold else nothing


@fast
def back(
    gradient: Floats, free: Floats, kept: Floats, used: Flags, scores: Floats, threshold: Any,
    free_gradient: Floats, score_gradient: Floats,
) -> None:  # fmt: skip
    """m·G on weights that are free, sign(s)·θ·G on all scores, with sign(0) = +1."""
    nothing = gradient.dtype.type(0)
    for i in range(gradient.size):
        arriving, own, old, taken, score = gradient[i], free[i], kept[i], used[i], scores[i]
        change = (old if taken else own) * arriving
        movable = nothing if taken else arriving
        free_gradient[i] = movable if abs(score) >= threshold else nothing
        score_gradient[i] = change if score >= 0 else -change


@fast
def back_alone(
    gradient: Floats, free: Floats, scores: Floats, threshold: Any, free_gradient: Floats, score_gradient: Floats
) -> None:
    """The same where no task uses anything yet."""
    nothing = gradient.dtype.type(0)
    for i in range(gradient.size):
        arriving, score = gradient[i], scores[i]
        change = free[i] * arriving
        free_gradient[i] = arriving if abs(score) >= threshold else nothing
        score_gradient[i] = change if score >= 0 else -change
