"""Which durations cannot be true? Names activities whose time would mislead, without touching them.

Profilers sometimes close a kernel late (deferred completion on ROCm) or write a corrupt end. The time stays in
the sums, as the file says so, but a reader must know before believing a ranking.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from hta_dsv4.trace import activities as col

# Programmatic dependent launch overlaps kernels on one stream by microseconds; a kernel that outlives the whole
# of a later one by a millisecond is no such overlap.
OVERRUN_NS = 1_000_000
LONGEST_NS = 60_000_000_000  # no decode kernel runs for a minute
_SHOWN = 3


def suspicious_durations(activities: pd.DataFrame) -> list[str]:
    """Warn of kernels that run over whole later activities of their own stream, or for over a minute.

    Args:
        activities: an activity table, sorted by start.

    Returns:
        One sentence naming the worst (kernel, start, duration), or none.
    """
    dur = activities[col.DUR_NS].to_numpy()
    if not len(dur) or dur.max() <= OVERRUN_NS:
        return []  # none outlives another by so much that is not itself so long
    start = activities[col.START_NS].to_numpy()
    # Unsigned: a corrupt duration may carry the end past int64.
    end = start.astype(np.float64) + dur
    stream = activities[col.STREAM].to_numpy(dtype=np.int64, na_value=-1)
    device = activities[col.DEVICE].to_numpy(dtype=np.int64, na_value=-1)
    rank = activities[col.RANK].to_numpy()
    order = np.lexsort((np.arange(len(start)), start, stream, device, rank))
    same = np.ones(len(order), np.bool_)
    for key in (stream, device, rank):
        same[1:] &= key[order][1:] == key[order][:-1]
    same[0] = False
    bad = dur > LONGEST_NS
    # The next activity on the stream lies wholly inside this one, which goes on long after it.
    over = np.zeros(len(order), np.bool_)
    over[:-1] = same[1:] & (end[order][:-1] > end[order][1:] + OVERRUN_NS)
    bad[order] |= over
    rows = np.flatnonzero(bad & (stream >= 0) | (dur > LONGEST_NS))
    if not len(rows):
        return []
    rows = rows[np.argsort(-dur[rows], kind="stable")]
    shown = "; ".join(
        f"{str(activities[col.NAME].iloc[i])[:80]} at {start[i] / 1e3:.3f} us for {dur[i] / 1e3:.3f} us"
        for i in rows[:_SHOWN].tolist()
    )
    total = int(dur[rows].sum(dtype=np.float64))
    return [
        f"{len(rows)} implausible durations ({total / 1e3:.3f} us, kept in all sums): they run over whole later "
        f"activities of their stream or for over a minute: {shown}"
    ]
