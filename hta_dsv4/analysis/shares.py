"""Where the GPU time of one variant goes: time per step, share and launches, per bucket, role or kernel.

Shares are of the *summed* durations (``sum_ns``), so they add up to 1 whatever overlaps; what overlaps and what is
idle is said beside them, never folded in. A kernel that starts before the one ahead of it in its stream has ended is
charged with that wait, too: its *own* time (:mod:`own_time`) stands beside its sum, and is what comparisons use. Ranks
are never summed: each has a table of its own, and the variant is represented by the rank whose own time is the median
(the lower one of two), so that its rows still add up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.analysis.counted import counted, counted_extent
from hta_dsv4.analysis.intervals import Extent, extent
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.analysis.places import PLACES, STEP, in_order, place_labels
from hta_dsv4.classify.names import short
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.steps import Steps

KEYS: dict[str, str] = {"bucket": col.BUCKET, "role": col.ROLE, "origin": col.ORIGIN, "kernel": col.NAME}
SHARE_KEYS = (*KEYS, *PLACES)
"""What rows of a share table may be; by step, layer and scope also (:mod:`hta_dsv4.analysis.places`)."""

# columns of RankShares.table, beside one per key; sorted by time, largest first; by number, where the first key is
# a step or a layer
TIME_NS = "time_ns"  # int64: summed durations over the counted steps (or the whole trace, without steps)
TIME_NS_PER_STEP = "time_ns_per_step"  # Int64: rounded half to even; NA without steps
SHARE = "share"  # float: time_ns / sum_ns
LAUNCHES = "launches"  # int64
LAUNCHES_PER_STEP = "launches_per_step"  # Float64; NA without steps. Of rows by step both are a step's own
MEAN_NS, MEDIAN_NS = "mean_ns", "median_ns"  # float: duration of one launch
OWN_NS = "own_ns"  # int64: own time, of which there is never more than of time_ns
OWN_NS_PER_STEP = "own_ns_per_step"  # Int64: rounded half to even; NA without steps

EARLY_SHARE = 0.005
"""Part of the summed durations that is early from which on a share table says so."""
EARLY_SAID = 0.001
"""Part from which on a comparison names the early time of a variant; less moves no figure of it."""


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
        early_kernel, early_kernel_ns: the kernel with most early time, and how much; ``""`` and 0 where there is none.
    """

    rank: int
    steps: int
    extent: Extent
    outside: int
    outside_ns: int
    table: pd.DataFrame
    early_kernel: str = ""
    early_kernel_ns: int = 0

    @property
    def early_words(self) -> str:
        """How much of the summed durations is early, and whose most of it is; ``""`` where nothing is."""
        early = self.extent.early_ns
        if not early:
            return ""
        per, unit = max(self.steps, 1), "us a step" if self.steps else "us"
        return (
            f"{early / per / 1e3:,.1f} {unit} ({100 * early / max(self.extent.sum_ns, 1):.2g} % of the sum, "
            f"{100 * min(self.early_kernel_ns, early) / early:.0f} % of it {short(self.early_kernel)})"
        )


@dataclass(frozen=True, slots=True)
class Shares:
    """The share table of one variant.

    Attributes:
        label: the variant's name.
        by: what a row is: some of bucket, role, origin, kernel, step, layer, scope.
        ranks: one table per rank, by rank number.
        notes: what the reader of the table should know (no steps, outside activities, warnings), one sentence each.
    """

    label: str
    by: tuple[str, ...]
    ranks: tuple[RankShares, ...]
    notes: tuple[str, ...] = ()

    @property
    def median_rank(self) -> RankShares:
        """The rank that stands for the variant: the (lower) median by own time per step.

        By what is compared. Not by the sum, which holds what launches waited for the one ahead, and not by the wall
        time, in which a host that the profiler slows shows more than the GPU.
        """
        ordered = sorted(self.ranks, key=lambda r: (r.extent.own_ns / max(r.steps, 1), r.rank))
        return ordered[(len(ordered) - 1) // 2]

    @property
    def early_note(self) -> tuple[str, ...]:
        """A sentence where early time is a noticeable part of the sum; none otherwise."""
        rank = self.median_rank
        if rank.extent.early_ns <= EARLY_SHARE * rank.extent.sum_ns:
            return ()
        return (
            f"early: {rank.early_words}: launched before the one ahead in its stream had ended, as by programmatic "
            "dependent launch, and recorded with that wait; own time leaves it out",
        )

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


def median_name(ranks: int) -> str:
    """What :func:`rank_median` over so many ranks is called: of an even number it is the lower, of two no median."""
    if ranks == 2:
        return "lower of two"
    return "median" if ranks % 2 else "lower median"


def median_of(ranks: int) -> str:
    """The same of a rank among them: ``median of 3``, ``lower of two``."""
    return median_name(ranks) + ("" if ranks == 2 else f" of {ranks:,}")


def divide_half_even(total: int, parts: int) -> int:
    """``total / parts`` to the nearest integer, halves to even; in integers, as a float loses ns above 2**53."""
    quotient, remainder = divmod(total, parts)
    return quotient + (2 * remainder > parts or (2 * remainder == parts and quotient % 2 == 1))


def parse_by(by: str | Sequence[str], known: Collection[str] = tuple(KEYS)) -> tuple[str, ...]:
    """``"bucket,role"`` or ``["bucket", "role"]`` as a checked tuple.

    Args:
        by: the keys.
        known: those that may be among them.

    Raises:
        HtaDsv4Error: an unknown or repeated key.
    """
    keys = tuple(str(k).strip() for k in (by.split(",") if isinstance(by, str) else by))
    unknown = [k for k in keys if k not in known]
    if unknown or not keys or len(set(keys)) != len(keys):
        what = f"unknown key {unknown[0]!r}" if unknown else "a key is missing or repeated"
        raise HtaDsv4Error(
            f"--by {','.join(keys)}: {what}; choose from {', '.join(known)}, separated by commas"
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
    keys = parse_by(by, SHARE_KEYS)
    mine = activities[col.RANK] == rank
    chosen = counted(activities, steps, rank)
    if chosen.steps:
        part, size = chosen.activities, counted_extent(chosen)
    else:
        part = activities[mine]
        size = extent(part)
    outside = activities[mine & ~activities.index.isin(part.index)]
    own = own_ns(part)
    name, most = _most_early(part, own) if size.early_ns else ("", 0)
    return RankShares(
        rank=rank,
        steps=chosen.steps,
        extent=size,
        outside=len(outside),
        outside_ns=int(outside[col.DUR_NS].sum()),
        table=_table(part, own, list(keys), size.sum_ns, chosen.steps),
        early_kernel=name,
        early_kernel_ns=most,
    )


def _most_early(part: pd.DataFrame, own: np.ndarray) -> tuple[str, int]:
    """The kernel with most early time, and how much; of equals the first by name."""
    early = (part[col.DUR_NS] - own).groupby(part[col.NAME].astype(str)).sum()
    name = str(early.sort_index().idxmax())
    return name, int(early[name])


def _table(part: pd.DataFrame, own: np.ndarray, keys: list[str], sum_ns: int, steps: int) -> pd.DataFrame:
    rows = [part[KEYS[k]] if k in KEYS else place_labels(part, k).rename(k) for k in keys]
    grouped = part.assign(**{OWN_NS: own}).groupby(rows, observed=True, sort=False)
    table = grouped[col.DUR_NS].agg(["sum", "count", "mean", "median"])
    table[OWN_NS] = grouped[OWN_NS].sum()
    table = table.reset_index()
    table.columns = pd.Index([*keys, TIME_NS, LAUNCHES, MEAN_NS, MEDIAN_NS, OWN_NS])
    for key in keys:
        table[key] = table[key].astype(str)
    table[SHARE] = table[TIME_NS] / sum_ns if sum_ns else 0.0
    steps = min(steps, 1) if STEP in keys else steps  # the time of one step is not divided by their number
    for total, each in ((TIME_NS, TIME_NS_PER_STEP), (OWN_NS, OWN_NS_PER_STEP)):
        exact = [divide_half_even(int(t), steps) if steps else pd.NA for t in table[total]]
        table[each] = pd.array(exact, dtype="Int64")
    table[LAUNCHES_PER_STEP] = pd.array(
        [n / steps if steps else pd.NA for n in table[LAUNCHES]], dtype="Float64"
    )
    table = table.sort_values([TIME_NS, *keys], ascending=[False] + [True] * len(keys), kind="stable")
    table = table.loc[in_order(table[keys[0]], keys[0]).sort_values(kind="stable").index]
    order = [
        TIME_NS, TIME_NS_PER_STEP, SHARE, LAUNCHES, LAUNCHES_PER_STEP, MEAN_NS, MEDIAN_NS, OWN_NS, OWN_NS_PER_STEP,
    ]  # fmt: skip
    return table[[*keys, *order]].reset_index(drop=True)
