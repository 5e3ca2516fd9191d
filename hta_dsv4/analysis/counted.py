"""The part of a trace that per-step figures are about, and its times step by step.

All modules that compare variants cut the trace here, so that they speak of the same activities as the share table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.analysis.intervals import Extent
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.analysis.union import added_ns
from hta_dsv4.trace import activities as col
from hta_dsv4.trace import steps as steps_module
from hta_dsv4.trace.steps import Steps

SUM, OWN, EARLY, BUSY, OVERLAP, WALL, IDLE, BETWEEN, GAPS = (
    "sum", "own", "early", "busy", "overlap", "wall", "idle", "between", "gaps",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counted:
    """The activities of the counted steps of one rank.

    Attributes:
        rank: rank number.
        activities: classified activity table of these steps, in time order; its ``own_ns`` is taken over the counted
            activities of each run, as busy time is, so that own times are never less than it.
        step: int64 [activities], position 0..steps-1 of the activity's step among the counted ones.
        run: int64 [steps], which run of consecutive steps each belongs to: what lies between two runs (a prefill) is
            nobody's idle time.
    """

    rank: int
    activities: pd.DataFrame
    step: np.ndarray
    run: np.ndarray

    @property
    def steps(self) -> int:
        """Number of counted steps; 0 where the trace shows none."""
        return len(self.run)


def counted(activities: pd.DataFrame, steps: Steps, rank: int) -> Counted:
    """Cut one rank's counted steps out of a trace.

    Args:
        activities: classified activity table of one trace.
        steps: the steps of the same trace.
        rank: which rank of the trace.

    Returns:
        The counted part; empty, with 0 steps, where there is no step.
    """
    table = steps.counted
    table = table[table[steps_module.RANK] == rank]
    labels = table.index.to_numpy()
    of_activity = steps.of_activity.fillna(-1).to_numpy(dtype=np.int64)
    inside = (activities[col.RANK] == rank).to_numpy() & np.isin(of_activity, labels)
    step = np.searchsorted(labels, of_activity[inside])
    run = (np.diff(labels, prepend=labels[0]) > 1).cumsum() if len(labels) else np.zeros(0, dtype=np.int64)
    part = activities[inside]
    if len(part):
        own = own_by_run(part.drop(columns=col.OWN_NS, errors="ignore"), run[step])
        part = part.assign(**{col.OWN_NS: own})
    return Counted(rank, part, step, run)


def own_by_run(activities: pd.DataFrame, run: np.ndarray) -> np.ndarray:
    """Own time of every activity among those of its run of steps.

    Args:
        activities: activity table; where it has a column of own times, these.
        run: int64 [activities], which run of consecutive steps each belongs to.

    Returns:
        int64 [activities], ns.
    """
    if col.OWN_NS in activities or not run.any():
        return own_ns(activities)
    own = np.zeros(len(activities), dtype=np.int64)
    for one in np.unique(run):
        own[run == one] = own_ns(activities[run == one])
    return own


def step_times(part: Counted) -> pd.DataFrame:
    """Sum, own, early, busy, overlap, wall and idle of each step, and what lies between it and the next.

    ``sum = own + early``; ``overlap = sum - busy``, of which ``early`` is within streams and ``own - busy`` of
    different ones. A step's wall reaches from its first start to its last end, its idle time is wall minus busy, and
    ``between`` is the time from its last end to the next step's first start in the same run, ``gaps`` 1 where there is
    such a step: a run of N steps has N - 1 gaps, and a mean of ``between`` is taken over them. Where steps overlap, the
    earlier one has the time: between is 0 and the later wall begins where the earlier ends. Where two activities
    overlap, the later one's step is charged only with what it adds. So over a run of steps busy times add up to the
    union of its intervals, and walls and betweens to its length. Of several devices in one rank all times are those of
    each device, added, gaps too: a wall over all of them would be less than what they are busy.

    Args:
        part: the counted part of a trace.

    Returns:
        int64 [steps], columns ``sum, own, early, busy, overlap, wall, idle, between`` in ns, and ``gaps``.
    """
    acts, n = part.activities, part.steps
    total, own, busy, wall, between, gaps = (np.zeros(n, dtype=np.int64) for _ in range(6))
    if len(acts):
        dur = acts[col.DUR_NS].to_numpy()
        start = acts[col.START_NS].to_numpy()
        end = start + dur.clip(min=0)
        run = part.run[part.step]
        np.add.at(total, part.step, dur)
        np.add.at(own, part.step, own_by_run(acts, run))
        device = acts[col.DEVICE].fillna(-1).to_numpy(dtype=np.int64)
        # Each activity adds what its device was not already busy with; summed over a run that is the union.
        np.add.at(busy, part.step, added_ns(start, dur, run, device))
        for one in np.unique(device):
            mine = device == one
            more = _walls(part, start[mine], end[mine], part.step[mine])
            wall, between, gaps = wall + more[0], between + more[1], gaps + more[2]
    columns = {SUM: total, OWN: own, EARLY: total - own, BUSY: busy, OVERLAP: total - busy}
    columns |= {WALL: wall, IDLE: wall - busy, BETWEEN: between, GAPS: gaps}
    return pd.DataFrame(columns, dtype="int64")


def _walls(
    part: Counted, start: np.ndarray, end: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Wall of each step and the time to the next one's first start, ns, and whether there is one: int64 [steps]."""
    n = part.steps
    wall, between, gaps = (np.zeros(n, dtype=np.int64) for _ in range(3))
    first = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(first, step, start)
    last = np.full(n, np.iinfo(np.int64).min)
    np.maximum.at(last, step, end)
    present = np.flatnonzero(np.bincount(step, minlength=n))
    for run in np.unique(part.run[present]):
        mine = present[part.run[present] == run]
        # a later step's kernel on another stream may begin first, and an earlier one's end last
        begins = np.minimum.accumulate(first[mine][::-1])[::-1]
        ends = np.maximum.accumulate(last[mine])
        wall[mine] = ends - np.maximum(begins, np.append(begins[0], ends[:-1]))
        between[mine[:-1]] = (begins[1:] - ends[:-1]).clip(min=0)
        gaps[mine[:-1]] = 1
    return wall, between, gaps


def step_periods(part: Counted) -> np.ndarray:
    """From each step's first start to the next one's in the same run: its wall and the gap after it, over all devices.

    Throughput follows from these, not from walls: a host that is late between two steps delays the next token as one
    that is late within a step does.

    Args:
        part: the counted part of a trace.

    Returns:
        int64 [steps with a next one], ns; empty where no step has one.
    """
    if not len(part.activities):
        return np.zeros(0, dtype=np.int64)
    start = part.activities[col.START_NS].to_numpy()
    end = start + part.activities[col.DUR_NS].to_numpy().clip(min=0)
    wall, between, gaps = _walls(part, start, end, part.step)
    periods: np.ndarray = (wall + between)[gaps > 0]
    return periods


def counted_extent(part: Counted) -> Extent:
    """The times of the counted steps, added over them.

    Args:
        part: the counted part of a trace.

    Returns:
        The extent; what lies between two runs of steps is in none of its times.
    """
    acts, times = part.activities, step_times(part)
    kernels = int(acts.loc[acts[col.KIND] == col.KERNEL, col.DUR_NS].sum())
    total, own, busy, wall, between, gaps = (
        int(times[k].sum()) for k in (SUM, OWN, BUSY, WALL, BETWEEN, GAPS)
    )
    return Extent(total, kernels, own, busy, wall, between, len(acts), gaps)


def step_values(part: Counted, keys: np.ndarray) -> pd.DataFrame:
    """Own time of each key in each step.

    Args:
        part: the counted part of a trace.
        keys: object [activities]: one label (a string, or a tuple of them) per activity of the part.

    Returns:
        int64 [steps, keys]: ns; 0 where a step has no such activity. Columns in order of first appearance.
    """
    codes, labels = pd.Index(keys, tupleize_cols=False).factorize()
    values = np.zeros((part.steps, len(labels)), dtype=np.int64)
    np.add.at(values, (part.step, codes), own_by_run(part.activities, part.run[part.step]))
    return pd.DataFrame(values, columns=pd.Index(labels, tupleize_cols=False))
