"""Own time: what an activity adds to the time its stream is busy.

A launch that starts before the one ahead of it in its stream has ended (programmatic dependent launch) is recorded from
that early start, and the wait for its predecessor is part of its duration. Summed durations then charge that time
twice, to the kernel that worked and to the one that waited. Own time charges it once: an activity owns what lies after
the last end of all that started before it in its stream. So own times of a stream add up to the union of its intervals,
exactly, and the rest of the summed durations is *early* time::

    sum  =  own + early          own  =  busy + overlap of different streams
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from hta_dsv4.analysis.union import added_ns
from hta_dsv4.classify.names import short
from hta_dsv4.trace import activities as col

LITTLE_PERCENT = 0.05
"""Early time below this part of the summed durations is told, and gets no column and no name."""


def own_ns(activities: pd.DataFrame) -> np.ndarray:
    """Own time of every activity.

    Args:
        activities: activity table, rows in any order; several ranks and devices may be in it. An activity that names
            no stream has nothing ahead of it, so all of its duration is its own.

    Returns:
        int64 [n], ns, between 0 and the duration; the column :data:`hta_dsv4.trace.activities.OWN_NS` where the table
        has it (taken over the whole trace), else computed over the rows given.
    """
    if col.OWN_NS in activities:
        return activities[col.OWN_NS].to_numpy(dtype=np.int64)
    dur = activities[col.DUR_NS].to_numpy(dtype=np.int64).clip(min=0)
    streams = (activities[k].fillna(-1).to_numpy(dtype=np.int64) for k in (col.RANK, col.DEVICE, col.STREAM))
    added = added_ns(activities[col.START_NS].to_numpy(dtype=np.int64), dur, *streams)
    return np.where(activities[col.STREAM].isna().to_numpy(), dur, added)


def early_note(activities: pd.DataFrame, steps: int) -> tuple[str, ...]:
    """That times are own times, where it makes a difference: how much is early, and of what kernel most.

    Args:
        activities: activity table of the counted steps.
        steps: how many they are; 0 or 1 for all of it.

    Returns:
        One sentence; none where no activity starts before the one ahead of it has ended.
    """
    recorded = activities[col.DUR_NS].to_numpy(dtype=np.int64).clip(min=0)
    early = recorded - own_ns(activities)
    total, share = int(early.sum()), 100 * int(early.sum()) / max(int(recorded.sum()), 1)
    if not total:
        return ()
    part = f"{share:.2g} %" if share >= LITTLE_PERCENT else f"under {LITTLE_PERCENT} %"
    said = (
        f"times are own times: {total / max(steps, 1) / 1e3:,.1f} us{' a step' if steps else ''}, {part} of the summed "
        "durations, is early time, in which a launch had started and waited for the one ahead of it"
    )
    if share < LITTLE_PERCENT:
        return (said,)
    of_kernel = pd.Series(early).groupby(activities[col.NAME].astype(str).to_numpy()).sum()
    most = str(min(of_kernel.index, key=lambda n: (-of_kernel[n], n)))
    return (f"{said}; {100 * int(of_kernel[most]) / total:.0f} % of it is {short(most)}",)


def own_intervals(activities: pd.DataFrame, own: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
    """The same activities without early starts: each begins when its stream is free and lasts its own time.

    Args:
        activities: activity table of one rank, in order of start.
        own: int64 [n], own times of its rows.

    Returns:
        The table with such starts and durations, sorted by start, and int64 [n], which row of ``activities`` each of
        its rows is. Streams are busy at the same times as before.
    """
    start = activities[col.START_NS].to_numpy(dtype=np.int64)
    dur = activities[col.DUR_NS].to_numpy(dtype=np.int64).clip(min=0)
    begins = np.where(own < dur, start + dur - own, start)
    streams = [activities[k].fillna(-1).to_numpy(dtype=np.int64) for k in (col.DEVICE, col.STREAM)]
    for rows in pd.Series(np.arange(len(start))).groupby(streams).indices.values():
        # What owns nothing ended before others of its stream did: it keeps its place in their order.
        begins[rows] = np.maximum.accumulate(begins[rows])
    order = np.argsort(begins, kind="stable")
    table = activities.assign(**{col.START_NS: begins, col.DUR_NS: own, col.OWN_NS: own}).iloc[order]
    return table, order
