"""The part of a trace that per-step figures are about, and its times step by step.

All modules that compare variants cut the trace here, so that they speak of the same activities as the share table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.trace import activities as col
from hta_dsv4.trace import steps as steps_module
from hta_dsv4.trace.steps import Steps

SUM, BUSY, WALL, OVERLAP, IDLE = "sum", "busy", "wall", "overlap", "idle"


@dataclass(frozen=True, slots=True)
class Counted:
    """The activities of the counted steps of one rank.

    Attributes:
        rank: rank number.
        activities: classified activity table of these steps, in time order.
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
    return Counted(rank, activities[inside], step, run)


def step_times(part: Counted) -> pd.DataFrame:
    """Sum, busy, wall, overlap and idle of each step.

    A step's wall reaches from its first start to the next step's first start, or to the last end of its run; where two
    activities overlap, the later one's step is charged only with what it adds. So walls and busy times of a run's steps
    add up to those of the run.

    Args:
        part: the counted part of a trace.

    Returns:
        int64 [steps], columns ``sum, busy, wall, overlap, idle`` in ns.
    """
    acts, n = part.activities, part.steps
    total, busy, wall = (np.zeros(n, dtype=np.int64) for _ in range(3))
    if not len(acts):
        return pd.DataFrame({SUM: total, BUSY: busy, WALL: wall, OVERLAP: total, IDLE: total})
    dur = acts[col.DUR_NS].to_numpy()
    start = acts[col.START_NS].to_numpy()
    end = start + dur.clip(min=0)
    np.add.at(total, part.step, dur)
    device = acts[col.DEVICE].fillna(-1).to_numpy(dtype=np.int64)
    # Each activity adds what its device was not already busy with; summed over a run that is the union.
    order = np.lexsort((start, device, part.run[part.step]))
    group = np.stack([part.run[part.step], device])[:, order]
    bounds = np.flatnonzero(np.append(True, (np.diff(group) != 0).any(axis=0)))
    for a, b in zip(bounds, np.append(bounds[1:], len(order)), strict=True):
        rows = order[a:b]
        reach = np.maximum.accumulate(np.append(start[rows[0]], end[rows[:-1]]))
        np.add.at(busy, part.step[rows], (end[rows] - np.maximum(start[rows], reach)).clip(min=0))
    first = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(first, part.step, start)
    last = np.zeros(n, dtype=np.int64)
    np.maximum.at(last, part.step, end)
    present = np.flatnonzero(np.bincount(part.step, minlength=n))
    for run in np.unique(part.run[present]):
        mine = present[part.run[present] == run]
        begins = np.minimum.accumulate(first[mine][::-1])[
            ::-1
        ]  # a later step's kernel on another stream may begin first
        wall[mine] = np.diff(np.append(begins, last[mine].max()))
    return pd.DataFrame(
        {SUM: total, BUSY: busy, WALL: wall, OVERLAP: total - busy, IDLE: wall - busy}, dtype="int64"
    )


def step_values(part: Counted, keys: np.ndarray) -> pd.DataFrame:
    """Summed durations of each key in each step.

    Args:
        part: the counted part of a trace.
        keys: object [activities]: one label (a string, or a tuple of them) per activity of the part.

    Returns:
        int64 [steps, keys]: ns; 0 where a step has no such activity. Columns in order of first appearance.
    """
    codes, labels = pd.Index(keys, tupleize_cols=False).factorize()
    values = np.zeros((part.steps, len(labels)), dtype=np.int64)
    np.add.at(values, (part.step, codes), part.activities[col.DUR_NS].to_numpy())
    return pd.DataFrame(values, columns=pd.Index(labels, tupleize_cols=False))
