"""One pass over the weights where torch takes ten: numba kernels for a CPU.

Imported when a network is large enough to gain from it. Loops without branches are vectorised: both values are loaded,
then one is chosen. An argument that is None costs nothing: numba leaves its branch out. Everything here gives the same
bits as the plain-torch path in `masks`.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
Maybe = Any
"""An array or None."""

BLOCK = 64
ROOM = 2048
"""The most scores that are looked at one by one around the threshold; in a large tensor, a hundredth of them."""
AIM = 64
"""How many scores the band around the threshold should hold."""
LAST, CENTRE, WIDTH, STIR = range(4)
"""The course of a threshold: where it was, where it is expected, within which band, and how wrong that was lately."""

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def fast(kernel: Kernel) -> Kernel:
    """Compiled at its first call, and remembered on disk."""
    return cast(Kernel, numba.njit(nogil=True, error_model="numpy", cache=True)(kernel))


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
        self._course = np.zeros(4)
        self._room = max(ROOM, size // 100)

    def cut(self, scores: Floats, count: int) -> Cut:
        """The cut that keeps `count` of the flat `scores`, ties by lower index. NaN is never kept, and not noticed."""
        if count >= scores.size:
            return Cut(scores.dtype.type(0), NOBODY)
        found, threshold, losers = _near(scores, count, self._course, self._room)
        return Cut(threshold, losers) if found else self._anywhere(scores, count, np.empty_like(scores))

    def look(self, arrays: tuple[Any, ...], count: int, effective: Floats) -> Cut:
        """The same cut for `arrays` = (free, kept, used, scores), and what is seen through it, in `effective`."""
        free, kept, used, scores = arrays
        if count < scores.size:
            found, threshold, losers = _look_near(free, kept, used, scores, count, self._course, self._room, effective)
            if found:
                return Cut(threshold, losers)
            cut = self._anywhere(scores, count, effective)
        else:
            cut = Cut(scores.dtype.type(0), NOBODY)
        _see(free, kept, used, scores, cut.threshold, cut.losers, effective)
        return cut

    def _anywhere(self, scores: Floats, count: int, scratch: Floats) -> Cut:
        """The cut by ranking everything, in memory that is given: a large tensor is not copied twice."""
        np.abs(scores, out=scratch)
        scratch.partition(scores.size - count)
        threshold = scratch[scores.size - count]
        course, here = self._course, float(threshold)
        before, expected = float(course[LAST]), float(course[CENTRE])
        if not before or not math.isfinite(here + before):
            course[:] = here, here, 1e-3 * here if math.isfinite(here) else 0.0, 0.0
        else:
            stir = abs(here - expected)
            course[:] = here, max(2 * here - before, 0.0), max(1e-3 * here, stir), stir
        return Cut(threshold, _late(scores, threshold, count))


@fast
def _near(scores: Floats, count: int, course: NDArray[np.float64], room: int) -> tuple[bool, Any, NDArray[np.int64]]:
    """Whether the cut lies in the band of `course`, which moves on; its threshold, and its losers."""
    low = scores.dtype.type(course[CENTRE] - course[WIDTH])
    high = scores.dtype.type(course[CENTRE] + course[WIDTH])
    inside = np.empty(room, np.int64)
    if not course[WIDTH]:
        return False, low, inside[:0]
    above, found = 0, 0
    whole = scores.size // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        upper: Any = np.int32(0)
        both: Any = np.int32(0)
        for j in range(BLOCK):
            value = abs(scores[start + j])
            # 32 bits by force: numba would widen the sums, at a third of the speed
            upper = np.int32(upper + np.int32(value >= high))
            both = np.int32(both + np.int32(value >= low))
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
    need = count - above
    if need < 0 or need > found or found > room:
        course[WIDTH] = 0.0
        return False, low, inside[:0]
    values = np.abs(scores[inside[:found]])
    threshold = np.sort(values)[found - need] if need else high
    _aim(course, float(threshold), found, room)
    return True, threshold, _losers(values, threshold, need, inside)


@fast
def _losers(values: Floats, threshold: Any, need: int, inside: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the scores `inside` the band, with these `values`: who equals the threshold but came too late."""
    winners = need
    for value in values:
        winners -= value > threshold
    losers = np.empty(values.size, np.int64)
    lost = 0
    for i in range(values.size):
        if values[i] == threshold:
            if winners > 0:
                winners -= 1
            else:
                losers[lost] = inside[i]
                lost += 1
    return losers[:lost]


@fast
def _late(scores: Floats, threshold: Any, count: int) -> NDArray[np.int64]:
    """Who equals the threshold but is beyond the `count` to be kept."""
    above, ties = 0, 0
    for score in scores:
        above += abs(score) > threshold
        ties += abs(score) == threshold
    losers = np.empty(max(above + ties - count, 0), np.int64)
    lost = losers.size
    for i in range(scores.size - 1, -1, -1):
        if not lost:
            break
        if abs(scores[i]) == threshold:
            lost -= 1
            losers[lost] = i
    return losers


@fast
def _aim(course: NDArray[np.float64], threshold: float, found: int, room: int) -> None:
    """Centre the next band where the same move again would lead, wide enough for errors like the latest."""
    stir = max(abs(threshold - course[CENTRE]), 0.8 * course[STIR])
    dense = max(found, 1) / (2 * course[WIDTH])
    wanted = max(2 * stir, AIM / (2 * dense), 0.25 * course[WIDTH])
    course[WIDTH] = min(wanted, room / (4 * dense), 4 * course[WIDTH])
    course[STIR], course[CENTRE], course[LAST] = stir, max(2 * threshold - course[LAST], 0.0), threshold


@fast
def _look_near(
    free: Floats, kept: Maybe, used: Maybe, scores: Floats, count: int, course: NDArray[np.float64],
    room: int, effective: Floats,
) -> tuple[bool, Any, NDArray[np.int64]]:  # fmt: skip
    # two passes: they are faster than one that does both, and one call is faster than two
    found, threshold, losers = _near(scores, count, course, room)
    if found:
        _see(free, kept, used, scores, threshold, losers, effective)
    return found, threshold, losers


@fast
def _see(
    free: Floats, kept: Maybe, used: Maybe, scores: Floats, threshold: Any, losers: NDArray[np.int64],
    effective: Floats,
) -> None:  # fmt: skip
    """where(used, kept, free) where a weight is selected, else 0."""
    nothing = effective.dtype.type(0)
    for i in range(effective.size):
        weight = free[i]
        if used is not None:
            old = kept[i]
            weight = old if used[i] else weight
        effective[i] = weight if abs(scores[i]) >= threshold else nothing
    for i in losers:
        effective[i] = nothing


@fast
def back(
    gradient: Floats, free: Floats, kept: Maybe, used: Maybe, scores: Floats, threshold: Any,
    losers: NDArray[np.int64], free_gradient: Maybe, score_gradient: Floats,
) -> None:  # fmt: skip
    """m·G on weights that are free (if anybody asks), sign(s)·θ·G on all scores, with sign(0) = +1."""
    nothing = gradient.dtype.type(0)
    for i in range(gradient.size):
        arriving, score, weight = gradient[i], scores[i], free[i]
        movable = arriving
        if used is not None:
            old, taken = kept[i], used[i]
            weight = old if taken else weight
            movable = nothing if taken else movable
        change = weight * arriving
        if free_gradient is not None:
            free_gradient[i] = movable if abs(score) >= threshold else nothing
        score_gradient[i] = change if score >= 0 else -change
    if free_gradient is not None:
        for i in losers:
            free_gradient[i] = nothing
