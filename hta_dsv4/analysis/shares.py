"""Where the GPU time of one variant goes: time per step, share and launches, per bucket, role or kernel.

Shares are of the *summed* durations (``sum_ns``), so they add up to 1 whatever overlaps; what overlaps and what is
idle is said beside them, never folded in. Ranks are never summed: each has a table of its own, and the variant is
represented by the rank whose sum is the median (the lower one of two), so that its rows still add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.analysis.intervals import Extent, extent
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col
from hta_dsv4.trace import steps as steps_module
from hta_dsv4.trace.steps import Steps

KEYS: dict[str, str] = {"bucket": col.BUCKET, "role": col.ROLE, "origin": col.ORIGIN, "kernel": col.NAME}

# columns of RankShares.table, beside one per key; sorted by time, largest first
TIME_NS = "time_ns"  # int64: summed durations over the counted steps (or the whole trace, without steps)
TIME_NS_PER_STEP = "time_ns_per_step"  # Int64: rounded half to even; NA without steps
SHARE = "share"  # float: time_ns / sum_ns
LAUNCHES = "launches"  # int64
LAUNCHES_PER_STEP = "launches_per_step"  # Float64; NA without steps
MEAN_NS, MEDIAN_NS = "mean_ns", "median_ns"  # float: duration of one launch


@dataclass(frozen=True, slots=True)
class RankShares:
    """The share table of one rank.

    Attributes:
        rank: rank number.
        steps: counted steps; 0 where the trace shows none, then totals are per trace.
        extent: sum, busy, wall of what the table covers.
        outside: activities that lie in no counted step (before, between, after), and
        outside_ns: their summed durations. Not in the table.
        table: one row per key, columns as documented in this module.
    """

    rank: int
    steps: int
    extent: Extent
    outside: int
    outside_ns: int
    table: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Shares:
    """The share table of one variant.

    Attributes:
        label: the variant's name.
        by: what a row is: some of bucket, role, origin, kernel.
        ranks: one table per rank, by rank number.
        notes: what the reader of the table should know (no steps, outside activities, warnings), one sentence each.
    """

    label: str
    by: tuple[str, ...]
    ranks: tuple[RankShares, ...]
    notes: tuple[str, ...] = ()

    @property
    def median_rank(self) -> RankShares:
        """The rank that stands for the variant: the (lower) median by sum per step."""
        ordered = sorted(self.ranks, key=lambda r: (r.extent.sum_ns / max(r.steps, 1), r.rank))
        return ordered[(len(ordered) - 1) // 2]

    @property
    def table(self) -> pd.DataFrame:
        """The table of the median rank (the only one, where there is one rank)."""
        return self.median_rank.table


def rank_median(values: Sequence[float] | np.ndarray) -> Any:
    """The median over ranks: of the two in the middle of an even number the lower, so that it is one rank's own.

    Args:
        values: numbers [ranks], or [ranks, quantities] for one median a column.

    Returns:
        A number of the same kind, or one per column.
    """
    ordered = np.sort(np.asarray(values), axis=0)
    return ordered[(len(ordered) - 1) // 2]


def divide_half_even(total: int, parts: int) -> int:
    """``total / parts`` to the nearest integer, halves to even; in integers, as a float loses ns above 2**53."""
    quotient, remainder = divmod(total, parts)
    return quotient + (2 * remainder > parts or (2 * remainder == parts and quotient % 2 == 1))


def parse_by(by: str | Sequence[str]) -> tuple[str, ...]:
    """``"bucket,role"`` or ``["bucket", "role"]`` as a checked tuple.

    Raises:
        HtaDsv4Error: an unknown or repeated key.
    """
    keys = tuple(str(k).strip() for k in (by.split(",") if isinstance(by, str) else by))
    unknown = [k for k in keys if k not in KEYS]
    if unknown or not keys or len(set(keys)) != len(keys):
        what = f"unknown key {unknown[0]!r}" if unknown else "a key is missing or repeated"
        raise HtaDsv4Error(
            f"--by {','.join(keys)}: {what}; choose from {', '.join(KEYS)}, separated by commas"
        )
    return keys


def rank_shares(
    activities: pd.DataFrame, steps: Steps, rank: int, by: str | Sequence[str] = "bucket"
) -> RankShares:
    """The share table of one rank.

    Args:
        activities: classified activity table of one trace (``bucket``, ``role`` present for those keys).
        steps: the steps of the same trace.
        rank: which rank of the trace.
        by: what a row is.

    Returns:
        The table; over the counted steps where there are any, else over the whole trace.
    """
    keys = parse_by(by)
    mine = activities[col.RANK] == rank
    counted = steps.counted
    counted = counted[counted[steps_module.RANK] == rank]
    step = steps.of_activity
    if len(counted):
        inside = mine & step.isin(counted.index)
        part = activities[inside]
        # Consecutive counted steps are one run: idle between them is real, idle across a left-out step is not.
        run_of_step = pd.Series(
            (np.diff(counted.index.to_numpy(), prepend=counted.index[0]) > 1).cumsum(), index=counted.index
        )
        size = extent(part, step[inside].map(run_of_step))
    else:
        part, inside = activities[mine], mine
        size = extent(part)
    outside = activities[mine & ~inside]
    return RankShares(
        rank=rank,
        steps=len(counted),
        extent=size,
        outside=len(outside),
        outside_ns=int(outside[col.DUR_NS].sum()),
        table=_table(part, [KEYS[k] for k in keys], list(keys), size.sum_ns, len(counted)),
    )


def _table(part: pd.DataFrame, columns: list[str], keys: list[str], sum_ns: int, steps: int) -> pd.DataFrame:
    grouped = part.groupby(columns, observed=True, sort=False)[col.DUR_NS]
    table = grouped.agg(["sum", "count", "mean", "median"]).reset_index()
    table.columns = pd.Index([*keys, TIME_NS, LAUNCHES, MEAN_NS, MEDIAN_NS])
    for key in keys:
        table[key] = table[key].astype(str)
    table[SHARE] = table[TIME_NS] / sum_ns if sum_ns else 0.0
    if steps:
        table[TIME_NS_PER_STEP] = pd.array(
            [divide_half_even(int(t), steps) for t in table[TIME_NS]], dtype="Int64"
        )
        table[LAUNCHES_PER_STEP] = (table[LAUNCHES] / steps).astype("Float64")
    else:
        table[TIME_NS_PER_STEP] = pd.array([pd.NA] * len(table), dtype="Int64")
        table[LAUNCHES_PER_STEP] = pd.array([pd.NA] * len(table), dtype="Float64")
    table = table.sort_values([TIME_NS, *keys], ascending=[False] + [True] * len(keys), kind="stable")
    order = [*keys, TIME_NS, TIME_NS_PER_STEP, SHARE, LAUNCHES, LAUNCHES_PER_STEP, MEAN_NS, MEDIAN_NS]
    return table[order].reset_index(drop=True)
