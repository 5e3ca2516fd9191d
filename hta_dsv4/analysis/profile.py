"""One variant's time per step by kernel, bucket, role and origin, in whole nanoseconds that add up.

Times are own times (:mod:`hta_dsv4.analysis.own_time`): what a launch adds to the time its stream is busy, so that a
kernel is not charged with waiting for the one ahead of it. Without early starts they are the durations.

The exact time per step of a kernel is a rational number: its total over the number of steps. It is apportioned to
integers once, top down (step, bucket, role, kernel), by largest remainder, so that every level adds up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from hta_dsv4.analysis.counted import BETWEEN, BUSY, GAPS, OWN, SUM, WALL, Counted, own_by_run
from hta_dsv4.analysis.shares import divide_half_even
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col

UNKNOWN = "unknown"
KERNEL = "kernel"
SIZE = (col.GRID_X, col.GRID_Y, col.GRID_Z, col.BYTES)
"""What tells launches of one kernel apart: a kernel's grid, a copy's bytes; 0 where the trace does not say."""
# An origin is part of what a kernel is only where most of the time has one in both variants; otherwise a variant
# recorded without scopes would make every kernel "disappear" from its origin.
KNOWN_ORIGIN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean times per step, each rounded once to the nearest ns.

    Over all steps ``own = sum - early`` and ``wall = own - streams + idle`` to the nanosecond. Of means that are each
    rounded this holds within an ns or two; :attr:`own_rounding_ns` and :attr:`wall_rounding_ns` are what is left.

    Attributes:
        sum_ns: summed durations.
        own_ns: of these, what the activities add to the time their streams are busy.
        early_ns: the rest, before the activity ahead in the same stream had ended.
        streams_ns: own time of streams that run at the same time, counted more than once: own minus busy.
        overlap_ns: sum minus busy: early time, and streams that run at the same time.
        busy_ns: union of the intervals.
        idle_ns: nothing runs, within the step.
        wall_ns: first start to last end of a step.
        between_ns: from a step's last end to the next step's first start: the mean over the gaps, 0 without any.
        gaps: number of gaps that were recorded, N - 1 in a run of N steps; of a difference, the fewer of the two.
    """

    sum_ns: int
    own_ns: int
    early_ns: int
    streams_ns: int
    overlap_ns: int
    busy_ns: int
    idle_ns: int
    wall_ns: int
    between_ns: int = 0
    gaps: int = 0

    @classmethod
    def mean(cls, times: pd.DataFrame) -> StepTimes:
        """The mean over the steps of :func:`~hta_dsv4.analysis.counted.step_times`."""
        n = len(times)
        total, own, busy, wall = (int(times[k].sum()) for k in (SUM, OWN, BUSY, WALL))
        exact = (total, own, total - own, own - busy, total - busy, busy, wall - busy, wall)
        gaps = int(times[GAPS].sum())
        between = divide_half_even(int(times[BETWEEN].sum()), gaps) if gaps else 0
        values = [*(divide_half_even(ns, n) for ns in exact), between, gaps]
        return cls(*values)

    @property
    def own_rounding_ns(self) -> int:
        """What ``sum - early`` lacks of ``own`` because each is rounded."""
        return self.own_ns - (self.sum_ns - self.early_ns)

    @property
    def wall_rounding_ns(self) -> int:
        """What ``own - streams + idle`` lacks of ``wall`` because each is rounded."""
        return self.wall_ns - (self.own_ns - self.streams_ns + self.idle_ns)

    def __sub__(self, other: StepTimes) -> StepTimes:
        """Of what is rounded, so that before and change make after."""
        mine, theirs = astuple(self)[:-1], astuple(other)[:-1]
        values = [*(a - b for a, b in zip(mine, theirs, strict=True)), min(self.gaps, other.gaps)]
        return StepTimes(*values)


@dataclass(frozen=True)
class Profile:
    """One variant per step: what a decomposition needs of it.

    Attributes:
        label: the variant's name.
        part: the counted part of its (median) rank.
        times: sum, own, busy, wall of each step (:func:`hta_dsv4.analysis.counted.step_times`).
        atoms: one row per kernel name, bucket, role and origin: ``time_ns`` (own) and ``launches`` over all steps, and
            ``step_ns``, the integer own time per step.
        sizes: the same rows, divided by :data:`SIZE`: ``time_ns`` and ``launches`` over all steps.
    """

    label: str
    part: Counted
    times: pd.DataFrame
    atoms: pd.DataFrame
    sizes: pd.DataFrame

    @property
    def steps(self) -> int:
        """Counted steps."""
        return self.part.steps

    @cached_property
    def per_step(self) -> StepTimes:
        """Sum, own, early, overlap, busy, idle, wall and between per step, each rounded once."""
        return StepTimes.mean(self.times)

    @property
    def knows_origin(self) -> bool:
        """Whether at least half of the time has an origin."""
        time = self.atoms["time_ns"]
        known = int(time[self.atoms["origin"] != UNKNOWN].sum())
        return known > 0 and known >= KNOWN_ORIGIN_SHARE * int(time.sum())


def apportion(total: int, times: Sequence[int], parts: int) -> list[int]:
    """Whole numbers near ``times[i] / parts`` that add up to ``total``, by largest remainder.

    Args:
        total: what they must add up to; within a few units of ``sum(times) / parts``.
        times: the exact numerators, >= 0.
        parts: the common denominator, > 0.

    Returns:
        One integer per entry; of equal remainders the earlier entry is rounded up first.
    """
    out = [t // parts for t in times]
    left = total - sum(out)
    if not times:
        return out
    order = sorted(range(len(times)), key=lambda i: (-(times[i] % parts), i))
    if left < 0:  # only where the total above was itself rounded down
        order = [i for i in reversed(order) if out[i] > 0] or order
    for k in range(abs(left)):
        out[order[k % len(order)]] += 1 if left > 0 else -1
    return out


def profile(label: str, part: Counted, times: pd.DataFrame) -> Profile:
    """A variant's own time per step by kernel, bucket, role and origin.

    Args:
        label: the variant's name.
        part: the counted part of one rank, classified.
        times: its times step by step.

    Returns:
        The profile.

    Raises:
        HtaDsv4Error: no step is counted, so nothing can be said per step.
    """
    if not part.steps or not len(part.activities):
        raise HtaDsv4Error(f"{label}: no steps in the trace, so there is no time per step to explain")
    acts = part.activities
    columns = {KERNEL: acts[col.NAME], "bucket": acts[col.BUCKET], "role": acts[col.ROLE]}
    columns["origin"] = acts[col.ORIGIN] if col.ORIGIN in acts else pd.Series(UNKNOWN, acts.index)
    frame = pd.DataFrame({**columns, "time_ns": own_by_run(acts, part.run[part.step])}, index=acts.index)
    for size in SIZE:
        frame[size] = acts[size].to_numpy(dtype=np.int64, na_value=0) if size in acts else 0
    sizes, atoms = (_grouped(frame, list(columns), keys) for keys in ([*columns, *SIZE], list(columns)))
    atoms = atoms.sort_values(["bucket", "role", KERNEL, "origin"], kind="stable").reset_index(drop=True)
    atoms["step_ns"] = _apportioned(
        atoms, divide_half_even(int(atoms["time_ns"].sum()), part.steps), part.steps
    )
    return Profile(label, part, times, atoms, sizes)


def _grouped(frame: pd.DataFrame, names: list[str], keys: list[str]) -> pd.DataFrame:
    """``time_ns`` and ``launches`` by some keys, of which the names are text."""
    out = frame.groupby(keys, observed=True, sort=False, dropna=False)["time_ns"].agg(["sum", "count"])
    out = out.reset_index()
    out.columns = pd.Index([*keys, "time_ns", "launches"])
    for name in names:
        out[name] = out[name].astype(object).where(out[name].notna(), UNKNOWN).astype(str)
    return out


def _apportioned(atoms: pd.DataFrame, total: int, steps: int) -> np.ndarray:
    """Top down, so that a bucket is within 1 ns of its exact value however many kernels it has."""
    out = np.zeros(len(atoms), dtype=np.int64)

    def divide(rows: pd.DataFrame, total: int, levels: Sequence[str]) -> None:
        if not levels:
            out[rows.index] = apportion(total, [int(t) for t in rows["time_ns"]], steps)
            return
        groups = [g for _, g in rows.groupby(levels[0], sort=True)]
        shares = apportion(total, [int(g["time_ns"].sum()) for g in groups], steps)
        for group, share in zip(groups, shares, strict=True):
            divide(group, share, levels[1:])

    divide(atoms, total, ("bucket", "role"))
    return out
