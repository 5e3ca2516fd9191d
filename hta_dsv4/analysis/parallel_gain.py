"""What do N ranks win over one GPU, and what keeps them from winning N times?

Against the ideal, a step of one GPU divided by N, each row of the step has an excess: its own time on a rank minus an
N-th of what it took on one GPU. What every rank does whole has nearly all of its time as excess, communication all of
it. Excesses add up to what the GPU time of a rank is above the ideal, exactly; the rest of the step's loss is idle time
and overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from hta_dsv4.analysis.counted import WALL, Counted, step_periods, step_times, step_values
from hta_dsv4.analysis.shares import KEYS, divide_half_even
from hta_dsv4.errors import HtaDsv4Error

DIVIDED, PARTLY, WHOLE, NEW, GONE = "divided", "partly", "whole", "new", "gone"
_NEAR = 0.15
"""A row within this part of a ratio is taken to have it: small kernels do not shrink as their work does."""
UNPROFILED, RECORDED = "without the profiler", "as recorded"


@dataclass(frozen=True, slots=True)
class Side:
    """One GPU, or one rank of several.

    Attributes:
        label: the variant's name.
        part: the counted steps of the (median) rank.
        unprofiled_ns: its step without the profiler, where a manifest says it.
        batch: requests decoded together by all ranks; ``None`` where unknown.
    """

    label: str
    part: Counted
    unprofiled_ns: float | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One bucket, role, origin or kernel; own times per step, ns.

    Attributes:
        key: one value per key of ``by``.
        single_ns, rank_ns: on one GPU, and on a rank.
        excess_ns: what a rank takes above an N-th of one GPU.
        how: divided, partly, whole, new or gone.
    """

    key: tuple[str, ...]
    single_ns: int
    rank_ns: int
    excess_ns: float
    how: str


@dataclass(frozen=True, slots=True)
class ParallelGain:
    """N ranks beside one GPU.

    Attributes:
        single, many: their names.
        ranks: N; ``rank`` is the one that stands for them.
        by: what a row is.
        step_from: which step times ``single_step_ns`` and ``step_ns`` are.
        single_step_ns, step_ns: ns.
        batch: requests decoded together; ``None`` where unknown or different.
        rows: largest excess first; excesses add up to ``own_ns - single_own_ns / N``.
        single_own_ns, own_ns: GPU time per step.
        transfer_ns, wait_ns: of the rank's communication, per step; ``None`` where ranks could not be aligned.
        notes: what makes the answer weaker than it looks.
        comparable: whether both sides ran on the same GPUs; else there is no speed-up of the ranks' own.
    """

    single: str
    many: str
    ranks: int
    rank: int
    by: tuple[str, ...]
    step_from: str
    single_step_ns: float
    step_ns: float
    batch: int | None
    rows: tuple[Row, ...]
    single_own_ns: int
    own_ns: int
    transfer_ns: float | None = None
    wait_ns: float | None = None
    notes: tuple[str, ...] = ()
    comparable: bool = True

    @property
    def speedup(self) -> float:
        """How many times as many steps in the same time."""
        return self.single_step_ns / self.step_ns

    @property
    def efficiency(self) -> float:
        """Speed-up over ranks: 1 where nothing is lost."""
        return self.speedup / self.ranks

    @property
    def lost_ns(self) -> float:
        """What a step takes above an N-th of one GPU's."""
        return self.step_ns - self.single_step_ns / self.ranks

    @property
    def rest_ns(self) -> float:
        """The part of it that no row has: idle time, overlap, what the profiler changed."""
        return self.lost_ns - sum(r.excess_ns for r in self.rows)

    def tokens_per_s(self, step_ns: float) -> float | None:
        """Tokens per second at a step time; ``None`` where the batch is not known."""
        return None if self.batch is None else self.batch * 1e9 / step_ns


def parallel_gain(
    single: Side, many: Side, ranks: int, by: Sequence[str] = ("bucket",), *,
    communication: tuple[float, float] | None = None, notes: Sequence[str] = (), comparable: bool = True,
) -> ParallelGain:  # fmt: skip
    """Hold one rank of several against a single GPU.

    Args:
        single: the same step on one GPU.
        many: the rank that stands for the others.
        ranks: how many share the step.
        by: what a row is.
        communication: transfer and wait of that rank per step, ns.
        notes: what is known already, one sentence each.
        comparable: whether both sides ran on the same GPUs.

    Raises:
        HtaDsv4Error: fewer than two ranks, a side without steps or without GPU time, or no bucket that both have.
    """
    if ranks < 2:
        raise HtaDsv4Error(
            f"{many.label}: one rank; what several ranks win over one GPU needs a folder of ranks"
        )
    for side in (single, many):
        if not side.part.steps or not len(side.part.activities):
            raise HtaDsv4Error(
                f"{side.label}: no steps in the trace, so there is no time per step to compare"
            )
    buckets = [_times(s.part, ("bucket",)) for s in (single, many)]
    for side, times in zip((single, many), buckets, strict=True):
        if not any(times.values()):
            raise HtaDsv4Error(f"{side.label}: its activities take 0 ns, so there is no GPU time to compare")
    if not any(times and buckets[1].get(key) for key, times in buckets[0].items()):
        raise HtaDsv4Error(
            f"{single.label} and {many.label} have no bucket in common ({_named(buckets[0])}; {_named(buckets[1])}): "
            "not the same step; name the trace of the same model on one GPU"
        )
    before, after = (_times(s.part, by) for s in (single, many))
    rows = [
        _row(key, before.get(key, 0), after.get(key, 0), ranks) for key in sorted({*before, *after})
    ]  # keys in order, so that equal excesses are
    plain = single.unprofiled_ns is not None and many.unprofiled_ns is not None
    steps = [s.unprofiled_ns if plain and s.unprofiled_ns else _recorded(s.part) for s in (single, many)]
    said = list(notes)
    if not plain:
        said.append(
            "a step without the profiler is not known of both: step times are as recorded, from a step's start to the "
            "next one's; a host slowed by the profiler and the profiler's own gaps are in them"
        )
    if single.batch != many.batch:
        said.append(
            f"{single.label} decodes {_batch(single)} and {many.label} {_batch(many)}: another step, so no speed-up"
        )
    rows.sort(key=lambda r: (-r.excess_ns, r.key))
    transfer, wait = communication or (None, None)
    return ParallelGain(
        single.label, many.label, ranks, many.part.rank, tuple(by),
        UNPROFILED if plain else RECORDED, steps[0], steps[1], many.batch if single.batch == many.batch else None,
        tuple(rows), sum(before.values()), sum(after.values()), transfer, wait, tuple(said), comparable,
    )  # fmt: skip


def _named(times: dict[tuple[str, ...], int]) -> str:
    return ", ".join(", ".join(key) for key, ns in times.items() if ns)


def _batch(side: Side) -> str:
    return "an unknown number of requests" if side.batch is None else f"{side.batch} requests"


def _recorded(part: Counted) -> float:
    """The mean period; of steps that do not follow each other the mean wall."""
    periods = step_periods(part)
    return float(periods.mean() if len(periods) else step_times(part)[WALL].mean())


def _times(part: Counted, by: Sequence[str]) -> dict[tuple[str, ...], int]:
    columns = [part.activities[KEYS[k]].astype(str).to_numpy() for k in by]
    keys = pd.Series(list(zip(*columns, strict=True))).to_numpy(dtype=object)
    table = step_values(part, keys)
    return {
        tuple(map(str, key)): divide_half_even(int(total), part.steps)
        for key, total in zip(table.columns.tolist(), table.sum(axis=0).tolist(), strict=True)
    }


def _row(key: tuple[str, ...], single: int, rank: int, ranks: int) -> Row:
    ratio = rank / single if single else 0.0
    if not single:
        how = NEW
    elif not rank:
        how = GONE
    elif ratio <= (1 + _NEAR) / ranks:
        how = DIVIDED
    else:
        how = WHOLE if ratio >= 1 - _NEAR else PARTLY
    return Row(key, single, rank, rank - single / ranks, how)
