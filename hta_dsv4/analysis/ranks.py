"""The ranks of a run side by side: sum, own, busy, idle, wall and buckets of each, how far they spread, who is slowest.

Ranks are never summed. The slowest is the one with most *work*: GPU time without communication, because a rank that
waits for another spends that time in a collective's kernel, so the fastest rank often has the largest sum. Ranks are
judged by own time, as everything that compares: a launch that started early waited for the one ahead of it, and how
long differs from rank to rank without any of them working more. Sums stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.collective_calls import COMMUNICATION
from hta_dsv4.analysis.rank_gpus import mixed_gpus_note
from hta_dsv4.analysis.shares import RankShares, Shares, divide_half_even, rank_median
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.ranks import missing_ranks, world_size


@dataclass(frozen=True, slots=True, eq=False)
class RankTable:
    """The ranks of a run, side by side.

    Attributes:
        label: the variant's name.
        by: what a row of :attr:`table` is.
        ranks: each rank's shares by these keys.
        work_ns: rank -> summed durations without communication over its counted steps, ns.
        own_work_ns: rank -> own time without communication over them, ns.
        world_size: how many ranks the run had, where the traces say it.
        missing: ranks that no file holds, by the world size.
        notes: what the reader should know, one sentence each.
    """

    label: str
    by: tuple[str, ...]
    ranks: tuple[RankShares, ...]
    work_ns: dict[int, int]
    own_work_ns: dict[int, int]
    world_size: int | None
    missing: tuple[int, ...]
    notes: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    """The note, first of :attr:`notes`, that ranks ran on different GPU models."""

    @property
    def per_step(self) -> bool:
        """Whether times are per step: every rank has counted steps."""
        return all(r.steps for r in self.ranks)

    def _time(self, rank: RankShares, ns: int) -> int:
        return divide_half_even(ns, rank.steps) if self.per_step else ns

    @property
    def slowest(self) -> int:
        """The rank with most work per step, of own time; the lowest number among equals."""
        return min(self.ranks, key=lambda r: (-self._time(r, self.own_work_ns[r.rank]), r.rank)).rank

    @property
    def early(self) -> bool:
        """Whether own times are other than the summed durations on some rank."""
        return any(r.extent.early_ns for r in self.ranks)

    @property
    def overview(self) -> pd.DataFrame:
        """One row per rank: ``rank, steps, launches, sum_ns, work_ns, communication_ns, busy_ns, idle_ns, wall_ns``.

        Times are per step where every rank has steps, else of the trace; ``sum_ns, work_ns, communication_ns`` are
        summed durations, ``own_ns, own_work_ns`` own times. ``over_median`` is own work over that of the median rank
        (the lower one of two), minus 1 (NA where that is 0).
        """
        rows = []
        for r in self.ranks:
            e, work = r.extent, self.work_ns[r.rank]
            times = (
                e.sum_ns, work, e.sum_ns - work, e.busy_ns, e.idle_ns, e.wall_ns, e.own_ns, self.own_work_ns[r.rank]
            )  # fmt: skip
            rows.append((r.rank, r.steps, e.launches, *(self._time(r, t) for t in times)))
        names = [
            "rank",
            "steps",
            "launches",
            "sum_ns",
            "work_ns",
            "communication_ns",
            "busy_ns",
            "idle_ns",
            "wall_ns",
            "own_ns",
            "own_work_ns",
        ]
        table = pd.DataFrame(rows, columns=names)
        median = int(rank_median(table["own_work_ns"].to_numpy()))
        over = table["own_work_ns"] / median - 1 if median else pd.Series(np.nan, table.index)
        return table.assign(over_median=over.astype("Float64"))

    @property
    def wide(self) -> pd.DataFrame:
        """Own time of each key on each rank, int64 ns (0 where a rank has none), one column per rank; most first."""
        wide = self._each(sh.OWN_NS_PER_STEP if self.per_step else sh.OWN_NS)
        return wide.iloc[np.argsort(-rank_median(wide.to_numpy().T), kind="stable")]

    @property
    def wide_sum(self) -> pd.DataFrame:
        """The same of summed durations, in the order of :attr:`wide`."""
        return self._each(sh.TIME_NS_PER_STEP if self.per_step else sh.TIME_NS).loc[self.wide.index]

    def _each(self, time: str) -> pd.DataFrame:
        each = {r.rank: r.table.set_index(list(self.by))[time] for r in self.ranks}
        return pd.concat(each, axis=1).fillna(0).astype("int64")

    @property
    def table(self) -> pd.DataFrame:
        """One row per key, most own time first: the keys, ``median_ns, min_ns, max_ns, spread_ns`` and ``most_rank``.

        ``median_ns`` is the lower one of two, ``spread_ns`` the largest minus the smallest; these are of summed
        durations, and ``own_median_ns, own_min_ns, own_max_ns, own_spread_ns`` of own times. ``most_rank`` is the
        (lowest) rank with most own time.
        """
        own, total = self.wide, self.wide_sum
        columns: dict[str, np.ndarray] = {}
        for prefix, wide in (("", total), ("own_", own)):
            values = wide.to_numpy()
            columns |= {
                f"{prefix}median_ns": rank_median(values.T), f"{prefix}min_ns": values.min(axis=1),
                f"{prefix}max_ns": values.max(axis=1), f"{prefix}spread_ns": np.ptp(values, axis=1),
            }  # fmt: skip
        columns["most_rank"] = np.array(own.columns)[own.to_numpy().argmax(axis=1)]
        return pd.DataFrame(columns, index=own.index).reset_index()


def rank_table_of(shares: Shares, buckets: Shares, traces: Sequence[Trace]) -> RankTable:
    """Put the ranks of a run side by side.

    Args:
        shares: the run's shares by the keys wanted.
        buckets: its shares by bucket, of the same ranks.
        traces: as read, for what they say of the world they were in.

    Returns:
        The table.
    """
    work, own = {}, {}
    for r in buckets.ranks:
        mine = r.table[r.table["bucket"] != COMMUNICATION]
        work[r.rank], own[r.rank] = int(mine[sh.TIME_NS].sum()), int(mine[sh.OWN_NS].sum())
    notes = list(shares.notes)
    steps = {r.steps for r in shares.ranks}
    if len(steps) > 1:
        notes.append(
            f"ranks have {min(steps)} to {max(steps)} counted steps: their captures do not cover the same time"
        )
    return RankTable(
        shares.label, shares.by, shares.ranks, work, own, world_size(traces), missing_ranks(traces), tuple(notes),
        mixed_gpus_note(traces),
    )  # fmt: skip
