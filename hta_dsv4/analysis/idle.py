"""What the GPU waited for while it was idle: for the host to launch something, or for anything else.

Between two activities of a device lies a gap; the activity that ends it was launched by a call on the host whose times
the trace has. Until that call returned there was nothing in the queue that could have run (what runs next had not been
handed over), so that part of the gap is the host's: ``queue_empty``. The rest of the gap is latency after the call, or
dependencies between kernels that were queued in time. Gaps, and so both parts, add up to the idle time exactly.

:mod:`gaps` divides the same time further, gap by gap; this is the one number that a comparison of variants needs.

A GPU that starts a kernel before its launch call returns ends the wait there: no gap counts beyond the kernel's start.
Host and GPU stamps are brought to one clock by the profiler; kernels that start before their launch call began betray
that this failed, and then nothing is said. Profiling itself slows the host: an idle time seen here is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.trace import activities as col

EARLY = 0.01
"""More activities than this that start before their launch did: the clocks of host and GPU do not agree."""
HOST_BOUND = 0.25
"""A step that spends more than this part of its wall time with an empty queue is host-bound."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle time of the counted steps of one variant, ns over all of them.

    Attributes:
        idle_ns: gaps between activities.
        queue_empty_ns: of these, with the next activity's launch call not yet returned; ``None`` where unknown.
        wall_ns, sum_ns: of the same steps.
        launches: launch calls that caused activities, over all steps; ``None`` where unknown.
        steps: number of steps.
        reason: why it is unknown, or ``""``.
    """

    idle_ns: int
    queue_empty_ns: int | None
    wall_ns: int
    sum_ns: int
    launches: int | None
    steps: int
    reason: str = ""

    @property
    def queue_empty_share(self) -> float | None:
        """Part of the idle time with an empty queue."""
        return None if self.queue_empty_ns is None or not self.idle_ns else self.queue_empty_ns / self.idle_ns

    @property
    def host_bound(self) -> bool:
        """Whether waiting for launches takes a large part of the wall time."""
        return self.queue_empty_ns is not None and self.queue_empty_ns > HOST_BOUND * self.wall_ns


def idle(part: Counted) -> Idle:
    """Divide the idle time of a variant's steps.

    Args:
        part: the counted part of one rank; launches joined (``launch_start_ns, launch_dur_ns, launch_index``).

    Returns:
        The division; with a reason instead where the trace cannot tell.
    """
    acts = part.activities
    dur = acts[col.DUR_NS].to_numpy()
    start = acts[col.START_NS].to_numpy()
    end = start + dur.clip(min=0)
    devices = acts[col.DEVICE].nunique(dropna=False)
    order = np.lexsort((start, part.run[part.step]))
    run = part.run[part.step][order]
    gaps = np.zeros(len(order), dtype=np.int64)
    reach = np.zeros(len(order), dtype=np.int64)
    wall = 0
    for r in np.unique(run):
        rows = np.flatnonzero(run == r)
        mine = order[rows]
        reach[rows] = np.maximum.accumulate(np.append(start[mine[0]], end[mine[:-1]]))
        gaps[rows] = (start[mine] - reach[rows]).clip(min=0)
        wall += int(end[mine].max() - start[mine[0]])
    total, summed = int(gaps.sum()), int(dur.sum())

    def unknown(reason: str) -> Idle:
        return Idle(total, None, wall, summed, None, part.steps, reason)

    if devices > 1:
        return unknown(f"{devices} devices in one rank: their gaps are not one idle time")
    needed = (col.LAUNCH_START_NS, col.LAUNCH_DUR_NS, col.LAUNCH_INDEX)
    if any(c not in acts for c in needed) or acts[list(needed)].isna().any(axis=None):
        return unknown("not every activity's launch is in the trace")
    begun = acts[col.LAUNCH_START_NS].to_numpy(dtype=np.int64)
    if (start < begun).mean() > EARLY:
        return unknown("kernels start before their launch: the clocks of host and GPU do not agree")
    handed = (begun + acts[col.LAUNCH_DUR_NS].to_numpy(dtype=np.int64))[order]
    empty = np.minimum((handed - reach).clip(min=0), gaps)
    launches = int(acts[col.LAUNCH_INDEX].nunique())
    return Idle(total, int(empty.sum()), wall, summed, launches, part.steps)
