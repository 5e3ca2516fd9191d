"""The union of intervals, and what each of them adds to it: exact, in nanoseconds."""

from __future__ import annotations

import numpy as np


def added_ns(start: np.ndarray, dur: np.ndarray, *groups: np.ndarray) -> np.ndarray:
    """What each interval adds to the union of those that started before it in its group.

    Args:
        start: int64 [n], ns, any order; of equal starts the earlier row is first.
        dur: int64 [n], ns; negative durations count as 0.
        groups: int64 [n] each: intervals that differ in any of them (device, stream) take nothing from each other.

    Returns:
        int64 [n], ns, between 0 and the duration; a group's add up to the length of its union.
    """
    added = np.zeros(len(start), dtype=np.int64)
    if not len(start):
        return added
    end = start + np.maximum(dur, 0)
    order = np.lexsort((start, *reversed(groups)))
    new = np.zeros(len(start), dtype=bool)
    new[0] = True
    for group in groups:
        new[1:] |= np.diff(group[order]) != 0
    bounds = np.flatnonzero(new)
    for a, b in zip(bounds, np.append(bounds[1:], len(order)), strict=True):
        rows = order[a:b]
        # Everything before `reach` is already covered when an interval begins.
        reach = np.maximum.accumulate(np.append(start[rows[0]], end[rows[:-1]]))
        added[rows] = np.maximum(end[rows] - np.maximum(start[rows], reach), 0)
    return added


def union_ns(start: np.ndarray, dur: np.ndarray) -> int:
    """Length of the union of intervals.

    Args:
        start: int64 [n], ns, any order.
        dur: int64 [n], ns; negative durations count as 0.

    Returns:
        The time covered by at least one interval, in ns.
    """
    return int(added_ns(start, dur).sum())
