"""Sum, busy, idle and wall of a set of activities, exact in nanoseconds and never mixed.

* sum: summed durations. Activities that overlap (other streams, programmatic dependent launch) count twice.
* busy: union of the intervals, per device; over several devices the unions are added, never merged.
* wall: first start to last end.
* idle: wall minus busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.trace import activities as col


def union_ns(start: np.ndarray, dur: np.ndarray) -> int:
    """Length of the union of intervals.

    Args:
        start: int64 [n], ns, any order.
        dur: int64 [n], ns; negative durations count as 0.

    Returns:
        The time covered by at least one interval, in ns.
    """
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    begin = start[order]
    end = begin + np.maximum(dur[order], 0)
    # Everything before `reach` is already covered when interval i begins.
    reach = np.empty_like(end)
    reach[0] = begin[0]
    np.maximum.accumulate(end[:-1], out=reach[1:])
    return int(np.maximum(end - np.maximum(begin, reach), 0).sum())


@dataclass(frozen=True, slots=True)
class Extent:
    """The four times of a set of activities, ns.

    Attributes:
        sum_ns: summed durations of kernels, copies and sets.
        kernel_sum_ns: summed durations of kernels alone.
        busy_ns: union of the intervals per device, added over devices.
        wall_ns: first start to last end.
        launches: number of activities.
    """

    sum_ns: int
    kernel_sum_ns: int
    busy_ns: int
    wall_ns: int
    launches: int

    @property
    def idle_ns(self) -> int:
        """Wall minus busy; meaningful on one device."""
        return self.wall_ns - self.busy_ns

    @property
    def overlap_ns(self) -> int:
        """Sum minus busy: time counted more than once in the sum."""
        return self.sum_ns - self.busy_ns


def busy_by_device(activities: pd.DataFrame) -> dict[int, int]:
    """Union of the intervals of each device.

    Args:
        activities: activity table of one rank.

    Returns:
        device -> busy ns; -1 stands for activities that name no device.
    """
    device = activities[col.DEVICE].fillna(-1).to_numpy(dtype=np.int64)
    start, dur = activities[col.START_NS].to_numpy(), activities[col.DUR_NS].to_numpy()
    return {int(d): union_ns(start[device == d], dur[device == d]) for d in np.unique(device)}


def extent(activities: pd.DataFrame, runs: pd.Series[int] | None = None) -> Extent:
    """The four times of a set of activities of one rank.

    Args:
        activities: activity table of one rank.
        runs: aligned with ``activities``; where given, wall and busy are taken per run and added, so that what lies
            between two runs (a prefill between decode steps) is nobody's idle time.

    Returns:
        The extent.
    """
    dur = activities[col.DUR_NS]
    kernels = activities[col.KIND] == col.KERNEL
    groups = [activities] if runs is None else [g for _, g in activities.groupby(runs.to_numpy(), sort=False)]
    busy = wall = 0
    for group in groups:
        if not len(group):
            continue
        busy += sum(busy_by_device(group).values())
        start = group[col.START_NS]
        wall += int((start + group[col.DUR_NS].clip(lower=0)).max() - start.min())
    return Extent(int(dur.sum()), int(dur[kernels].sum()), busy, wall, len(activities))
