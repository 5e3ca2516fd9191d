"""Which collectives of different ranks are one and the same?

What a trace says of a collective (process group, name, elements, sequence number: Kineto's arguments of NCCL kernels)
is believed. Within a group collectives are matched by sequence number where every one has it; else by their order
within the step, and then names and sizes must agree one by one. Kernels of CUDA graphs and custom all-reduces carry no
such arguments: they are one group, tried over all ranks first; :mod:`hta_dsv4.analysis.waits` checks by the clocks
that they end together. Where ranks disagree, the group is not aligned and the reason is given: a wrong partner would
make a wait out of nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hta_dsv4.analysis.collective_calls import AT, DTYPE, ELEMENTS, SEQ, WHAT
from hta_dsv4.analysis.rank_parts import Ints, RankPart

_UNEVEN = ("all_to_all", "alltoall", "allgather", "all_gather", "reduce_scatter")
BY_NUMBER = "sequence number"
BY_STEP, BY_ORDER = "order within the step", "order within the trace"


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """The collectives of one process group, each found on every loaded rank of it.

    Attributes:
        group: the process group's name; :data:`UNNAMED` where the trace says none.
        ranks: its ranks that are loaded, ascending.
        absent: its ranks that are not.
        rows: int64 [ranks, collectives], rows in each rank's activities.
        step: int64 [collectives], counted step of the first rank; -1 outside.
        place: int64 [collectives], which collective of its step it is; -1 outside, and in steps with another number.
        places: collectives per step; 0 without steps.
        follows: bool [collectives], whether every rank ran the one before it in this table just before it.
        what: names, by collective.
        elements: int64 [collectives], elements each rank gives; -1 where unknown or different between ranks.
        how: what they were matched by: a sequence number, order within the step, order within the trace.
        alone: rank -> collectives without a partner on every other rank, left out.
    """

    group: str
    ranks: tuple[int, ...]
    absent: tuple[int, ...]
    rows: Ints
    step: Ints
    place: Ints
    places: int
    follows: NDArray[np.bool_]
    what: tuple[str, ...]
    elements: Ints
    how: str
    alone: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.rows.shape[1])


@dataclass(frozen=True, slots=True)
class Unaligned:
    """A group whose collectives could not be matched, and why."""

    group: str
    ranks: tuple[int, ...]
    reason: str


def align(
    parts: Sequence[RankPart], tables: Mapping[int, pd.DataFrame], group: str, absent: Sequence[int] = ()
) -> Aligned | Unaligned:
    """Match the collectives of one group.

    Args:
        parts: the loaded ranks of the group, at least two.
        tables: rank -> its collectives of the group (see :func:`called`).
        group: the group's name.
        absent: ranks of the group that are not loaded.

    Returns:
        The matched collectives, or why they could not be.
    """
    ranks = tuple(p.rank for p in parts)
    if all(tables[r][SEQ].ge(0).all() for r in ranks):
        return _by_number(parts, tables, group, tuple(absent))
    in_steps = all(p.steps for p in parts)
    steps = _matched_steps(parts) if in_steps else {}
    if isinstance(steps, str):
        return Unaligned(group, ranks, steps)
    picked, step_of = {}, {}
    for p in parts:
        table = tables[p.rank]
        step = p.step[table[AT].to_numpy()]
        if in_steps:
            common = np.full(p.steps + 1, -1, np.int64)  # -1 stands at the end: outside every step
            common[steps[p.rank]] = np.arange(len(steps[p.rank]))
            step = common[step]
            table, step = table[step >= 0], step[step >= 0]
            order = np.argsort(step, kind="stable")
            table, step = table.iloc[order], step[order]
        picked[p.rank], step_of[p.rank] = table, step
    first = parts[0]
    labels = [first.labels[i] for i in steps[first.rank].tolist()] if in_steps else []
    if why := _differ(parts, picked, step_of, labels):
        return Unaligned(group, ranks, why)
    step = step_of[first.rank]
    rows = np.stack([picked[r][AT].to_numpy(dtype=np.int64) for r in ranks])
    follows = np.r_[False, np.ones(max(rows.shape[1] - 1, 0), bool)][: rows.shape[1]]
    if in_steps:
        for p in parts:
            own = steps[p.rank][step]
            near = (np.diff(own) <= 1) & (np.diff(p.run[own]) == 0)
            follows[1:] &= near
        step = steps[first.rank][step]
    else:
        step = np.full(rows.shape[1], -1, np.int64)
    return _aligned(
        parts, tuple(absent), group, rows, step, follows, picked, BY_STEP if in_steps else BY_ORDER
    )


def _by_number(
    parts: Sequence[RankPart], tables: Mapping[int, pd.DataFrame], group: str, absent: tuple[int, ...]
) -> Aligned | Unaligned:
    """Match by sequence number; a number may stand on several kernels, which are then told by their order."""
    keyed = {}
    for p in parts:
        table = tables[p.rank].copy()
        table["again"] = table.groupby(SEQ).cumcount()
        keyed[p.rank] = table.set_index([SEQ, "again"])
    ranks = tuple(keyed)
    common = keyed[ranks[0]].index
    for r in ranks[1:]:
        common = common[common.isin(keyed[r].index)]
    if not len(common):
        return Unaligned(
            group, ranks, "no sequence number of a collective is on every rank: their captures do not overlap"
        )
    picked = {r: keyed[r].loc[common].reset_index() for r in ranks}
    rows = np.stack([picked[r][AT].to_numpy(dtype=np.int64) for r in ranks])
    for r in ranks[1:]:
        other = (picked[r][WHAT] != picked[ranks[0]][WHAT]).to_numpy()
        if other.any():
            i = int(np.flatnonzero(other)[0])
            return Unaligned(group, ranks, (
                f"collective number {common[i][0]} is {picked[ranks[0]][WHAT].iloc[i]} on rank {ranks[0]} and "
                f"{picked[r][WHAT].iloc[i]} on rank {r}"
            ))  # fmt: skip
    order = np.argsort(rows[0], kind="stable")
    rows, picked = rows[:, order], {r: t.iloc[order] for r, t in picked.items()}
    follows = np.r_[False, np.ones(max(rows.shape[1] - 1, 0), bool)][: rows.shape[1]]
    for i, r in enumerate(ranks):
        own = np.sort(tables[r][AT].to_numpy())
        follows[1:] &= np.diff(np.searchsorted(own, rows[i])) == 1
    first = parts[0]
    step = first.step[rows[0]]
    alone = {r: len(tables[r]) - rows.shape[1] for r in ranks if len(tables[r]) > rows.shape[1]}
    return _aligned(parts, absent, group, rows, step, follows, picked, BY_NUMBER, alone)


def _aligned(
    parts: Sequence[RankPart], absent: tuple[int, ...], group: str, rows: Ints, step: Ints,
    follows: NDArray[np.bool_], picked: Mapping[int, pd.DataFrame], how: str, alone: Mapping[int, int] | None = None,
) -> Aligned:  # fmt: skip
    place, places = _places(step)
    tables = [picked[p.rank] for p in parts]
    sizes = np.stack([t[ELEMENTS].to_numpy(dtype=np.int64) for t in tables])
    elements = np.where((sizes == sizes[0]).all(axis=0), sizes[0], -1)
    what = tuple(tables[0][WHAT])
    ranks = tuple(p.rank for p in parts)
    return Aligned(group, ranks, absent, rows, step, place, places, follows, what, elements, how, alone or {})


def _places(step: Ints) -> tuple[Ints, int]:
    """Which collective of its step each is, in the steps that have as many as most."""
    place = np.full(len(step), -1, np.int64)
    inside = step >= 0
    if not inside.any():
        return place, 0
    place[inside] = pd.Series(step[inside]).groupby(step[inside]).cumcount().to_numpy()
    number, count = np.unique(step[inside], return_counts=True)
    usual = int(pd.Series(count).mode().max())
    place[np.isin(step, number[count != usual])] = -1
    return place, usual


def _matched_steps(parts: Sequence[RankPart]) -> dict[int, Ints] | str:
    """For each rank the counted steps that all ranks have, in one order; or why that cannot be told."""
    labels = [p.labels for p in parts]
    if all(x == labels[0] for x in labels):
        return {p.rank: np.arange(p.steps) for p in parts}
    if all(len(set(x)) == len(x) for x in labels):
        common = [x for x in labels[0] if all(x in y for y in labels[1:])]
        if common:
            return {p.rank: np.array([p.labels.index(x) for x in common], np.int64) for p in parts}
    if len({len(x) for x in labels}) == 1:
        return {p.rank: np.arange(p.steps) for p in parts}
    said = ", ".join(f"{p.steps} on rank {p.rank}" for p in parts[:4]) + (", ..." if len(parts) > 4 else "")
    return f"ranks have different numbers of steps ({said}) and nothing says which belong together"


def _differ(
    parts: Sequence[RankPart],
    picked: Mapping[int, pd.DataFrame],
    step: Mapping[int, Ints],
    labels: Sequence[str],
) -> str | None:
    """The first difference between two ranks' collectives, in words; ``None`` where they are the same.

    Args:
        parts: the ranks.
        picked: rank -> its collectives, step by step.
        step: rank -> the step of each, as a position in ``labels``; all -1 without steps.
        labels: the steps that all ranks have; empty without steps.
    """
    first = parts[0].rank
    for rank in (p.rank for p in parts[1:]):
        a, b = picked[first], picked[rank]
        counts = [np.bincount(step[r] + 1, minlength=len(labels) + 1) for r in (first, rank)]
        if (uneven := np.flatnonzero(counts[0] != counts[1])).size:
            at = int(uneven[0])
            where = f" in step {labels[at - 1]}" if labels else ""
            return f"rank {first} has {counts[0][at]} collectives{where} and rank {rank} has {counts[1][at]}"
        if (other := np.flatnonzero(_other(a, b))).size:
            i = int(other[0])
            n = i - int(np.searchsorted(step[first], step[first][i])) + 1
            where = f" of step {labels[int(step[first][i])]}" if labels else ""
            return (
                f"collective {n}{where} is {_spell(a, i)} on rank {first} and {_spell(b, i)} on rank {rank}"
            )
    return None


def _other(a: pd.DataFrame, b: pd.DataFrame) -> NDArray[np.bool_]:
    """Where two ranks' collectives, one by one, are not the same."""
    what = a[WHAT].to_numpy()
    other = (what != b[WHAT].to_numpy()) | (a[DTYPE].to_numpy() != b[DTYPE].to_numpy())
    even = np.array(
        [not any(u in w.lower() for u in _UNEVEN) for w in what.tolist()], bool
    )  # ranks may give unequal parts
    size = (a[ELEMENTS].to_numpy() != b[ELEMENTS].to_numpy()) & even
    return np.asarray(other | size, bool)


def _spell(table: pd.DataFrame, i: int) -> str:
    row = table.iloc[i]
    size = f" of {row[ELEMENTS]:,} elements" if row[ELEMENTS] >= 0 else ""
    return f"{str(row[WHAT])[:60]}{size}"
