"""Sum, own, busy, idle and wall of a set of activities, exact in nanoseconds and never mixed.

* sum: summed durations. Activities that overlap (other streams, programmatic dependent launch) count twice.
* own: what each activity adds to the time its stream is busy; sum minus own is early (:mod:`own_time`).
* busy: union of the intervals, per device; over several devices the unions are added, never merged.
* wall: first start to last end, of each step where there are steps; what lies between two steps is apart. Per device;
  over several devices added, as busy is, so that idle is never negative.
* idle: wall minus busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.analysis.union import union_ns
from hta_dsv4.trace import activities as col


@dataclass(frozen=True, slots=True)
class Extent:
    """The times of a set of activities, ns.

    Attributes:
        sum_ns: summed durations of kernels, copies and sets.
        kernel_sum_ns: summed durations of kernels alone.
        own_ns: own times, added.
        busy_ns: union of the intervals per device, added over devices.
        wall_ns: first start to last end; where there are steps, of each step, added; so over devices.
        between_ns: from a step's last end to the first start of the next in its run, added.
        launches: number of activities.
        gaps: number of times added in ``between_ns``: one less than the steps of each run.
    """

    sum_ns: int
    kernel_sum_ns: int
    own_ns: int
    busy_ns: int
    wall_ns: int
    between_ns: int
    launches: int
    gaps: int = 0

    @property
    def early_ns(self) -> int:
        """Sum minus own: time before the activity ahead in the same stream had ended."""
        return self.sum_ns - self.own_ns

    @property
    def streams_ns(self) -> int:
        """Own minus busy: time in which several streams of a device run, counted more than once."""
        return self.own_ns - self.busy_ns

    @property
    def span_ns(self) -> int:
        """Wall and between: first start to last end of each run of steps."""
        return self.wall_ns + self.between_ns

    @property
    def idle_ns(self) -> int:
        """Wall minus busy."""
        return self.wall_ns - self.busy_ns

    @property
    def overlap_ns(self) -> int:
        """Sum minus busy: time counted more than once in the sum; early, and of different streams."""
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


def extent(activities: pd.DataFrame) -> Extent:
    """The times of a set of activities of one rank, as one stretch.

    Args:
        activities: activity table of one rank.

    Returns:
        The extent; nothing in it lies between steps.
    """
    dur, start = activities[col.DUR_NS], activities[col.START_NS]
    kernels = activities[col.KIND] == col.KERNEL
    busy = sum(busy_by_device(activities).values())
    spans = pd.DataFrame({"start": start, "end": start + dur.clip(lower=0)}).groupby(
        activities[col.DEVICE].fillna(-1).to_numpy(dtype=np.int64)
    )
    wall = int((spans["end"].max() - spans["start"].min()).sum())
    own = int(own_ns(activities).sum())
    return Extent(int(dur.sum()), int(dur[kernels].sum()), own, busy, wall, 0, len(activities))
