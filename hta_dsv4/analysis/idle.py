"""What the GPU waited for while it was idle: for the host to launch something, or for anything else.

The one number of :mod:`gaps` that a comparison of variants needs: until the launch call of the activity that ends a gap
returned, nothing was in the queue that could have run, so that part of the gap is the host's, ``queue_empty``. The rest
is latency after the call, or dependencies between kernels that were queued in time, or inside one graph. Gaps between
two steps are nobody's idle time: there the profiler works, or the engine.

Profiling itself slows the host: an idle time seen here is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.gaps import BEFORE, CALL, GAP_NS, LATE, NEXT, WAITED, gaps
from hta_dsv4.analysis.window import of_counted
from hta_dsv4.trace import activities as col

HOST_BOUND = 0.25
"""A step that spends more than this part of its wall time with an empty queue is host-bound."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle time of the counted steps of one variant, ns over all of them.

    Attributes:
        idle_ns: gaps between activities of a step.
        queue_empty_ns: of these, with the next activity's launch call not yet returned; ``None`` where unknown.
        wall_ns: of the same steps, without what lies between them.
        sum_ns: their summed durations.
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


def idle(part: Counted, between: bool = False) -> Idle:
    """Divide the idle time of a variant's steps.

    Args:
        part: the counted part of one rank; launches joined (``launch_start_ns, launch_dur_ns, launch_index``).
        between: with the gaps between steps, which are in no step's wall but in its period.

    Returns:
        The division; with a reason instead where the trace cannot tell.
    """
    acts = part.activities
    window = of_counted(part)
    found = gaps(window, pd.DataFrame())  # which calls waited for the GPU: no part of this number
    inside = found.table[
        between | (window.step[found.table[BEFORE].to_numpy()] == window.step[found.table[NEXT].to_numpy()])
    ]
    idle_ns, summed = int(inside[GAP_NS].sum()), int(acts[col.DUR_NS].sum())
    wall_ns = found.wall_ns - (found.idle_ns - idle_ns)

    def unknown(reason: str) -> Idle:
        return Idle(idle_ns, None, wall_ns, summed, None, part.steps, reason)

    devices = acts[col.DEVICE].nunique(dropna=False)
    if devices > 1:
        return unknown(f"{devices} devices in one rank: their gaps are not one idle time")
    if col.LAUNCH_INDEX not in acts or acts[col.LAUNCH_INDEX].isna().any():
        return unknown("not every activity's launch is in the trace")
    if found.reason:
        return unknown("kernels start before their launch: the clocks of host and GPU do not agree")
    empty = int(inside[[LATE, WAITED, CALL]].to_numpy().sum())
    return Idle(idle_ns, empty, wall_ns, summed, int(acts[col.LAUNCH_INDEX].nunique()), part.steps)
