"""How much of the time in collectives is transfer, and how much is waiting for the rank that came last?

The rank that comes last to a symmetric collective waits for nobody: its kernel is the shortest, and its duration is
the transfer. What the same collective takes longer on another rank is that rank's wait. So per collective

    sum of durations = ranks x transfer + sum of waits

to the nanosecond, from durations alone. Who came last, and by how much, is read on one clock
(:mod:`hta_dsv4.analysis.clocks`); why, from what each rank ran since the collective before
(:mod:`hta_dsv4.analysis.segments`); and what of it is blamed is the rule of :mod:`hta_dsv4.analysis.stragglers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hta_dsv4.analysis.clocks import ClockFit, fit_clock, same_clock
from hta_dsv4.analysis.collective_calls import (
    GROUP,
    MEMBERS,
    UNNAMED,
    called,
    is_symmetric,
    members_of,
)
from hta_dsv4.analysis.collective_layers import Layers, layers_of
from hta_dsv4.analysis.collectives import Aligned, Unaligned, align
from hta_dsv4.analysis.rank_parts import Ints, RankPart
from hta_dsv4.analysis.segments import Segments, segments
from hta_dsv4.analysis.stragglers import LEAST_NS, Straggler, find_stragglers

_TOGETHER_NS = (
    5_000  # kernels whose ends differ by more than this and half their duration are not one collective
)


@dataclass(frozen=True, slots=True, eq=False)
class GroupWaits:
    """The collectives of one process group, taken apart.

    Attributes:
        aligned: which they are.
        clocks: one per rank, to the first rank's clock.
        dur, wait: int64 [ranks, collectives], ns.
        transfer: int64 [collectives], ns: the shortest duration over the loaded ranks; an upper bound where ranks of
            the group are not loaded.
        arrival: int64 [ranks, collectives], starts on the first rank's clock, ns.
        lateness: int64 [ranks, collectives], ns: arrival minus that of the last of the others; above 0 for one rank.
        layers: where each belongs in the model.
        segments: what ran before each.
        stragglers: what is blamed.
        hidden: more work of a rank that nobody, or not mainly, waited for.
    """

    aligned: Aligned = field(repr=False)
    clocks: tuple[ClockFit, ...]
    dur: Ints = field(repr=False)
    wait: Ints = field(repr=False)
    transfer: Ints = field(repr=False)
    arrival: Ints = field(repr=False)
    lateness: Ints = field(repr=False)
    layers: Layers = field(repr=False)
    segments: Segments = field(repr=False)
    stragglers: tuple[Straggler, ...]
    hidden: tuple[Straggler, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The loaded ranks of the group."""
        return self.aligned.ranks

    @property
    def late(self) -> Ints:
        """int64 [collectives]: which of the ranks (its position) came last."""
        return np.asarray(self.arrival.argmax(axis=0), np.int64)

    @property
    def noise_ns(self) -> int:
        """What a lateness has to exceed to be one: 95th percentile of the clock fits' residuals, at least 1 us."""
        return max(LEAST_NS, *(c.p95_ns for c in self.clocks))

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Bool [collectives]: those in counted steps; all where there are no steps."""
        inside = self.aligned.step >= 0
        return inside if inside.any() else np.ones(len(self.aligned), bool)

    @property
    def step_start(self) -> tuple[int, int, int, int] | None:
        """How far apart steps begin: which rank is last to a step's first collective, by how much, how often.

        Returns:
            ``(rank, lateness at the median step in ns, steps in which it is last beyond the noise, steps)`` of the rank
            that is so most often; ``None`` where no rank is in more than half of them.
        """
        at = np.flatnonzero(self.aligned.place == 0)
        beyond = (self.lateness[:, at] > self.noise_ns).sum(axis=1)
        r = int(beyond.argmax()) if len(at) else 0
        if not len(at) or 2 * beyond[r] <= len(at):
            return None
        return self.ranks[r], round(float(np.median(self.lateness[r, at]))), int(beyond[r]), len(at)

    @property
    def steps(self) -> int:
        """Counted steps that hold a collective of the group; 0 without steps."""
        inside = self.aligned.step[self.aligned.step >= 0]
        return len(np.unique(inside))


def find_waits(parts: Sequence[RankPart]) -> tuple[list[GroupWaits], list[Unaligned], list[str]]:
    """Align the collectives of all process groups and take them apart.

    Args:
        parts: the loaded ranks.

    Returns:
        (groups by name, those that could not be aligned with the reason, notes).
    """
    by_rank = {p.rank: p for p in parts}
    groups: dict[tuple[str, str], dict[int, pd.DataFrame]] = {}
    notes = []
    pairs: dict[int, int] = {}
    for p in parts:
        table, sent = called(p)
        if len(sent):
            pairs[p.rank] = len(sent)
        for key, rows in table.groupby([GROUP, MEMBERS], sort=False):
            groups.setdefault((str(key[0]), str(key[1])), {})[p.rank] = rows.reset_index(drop=True)
    if pairs:
        notes.append(
            f"{sum(pairs.values())} sends and receives on {len(pairs)} ranks are between two ranks each and not aligned"
        )
    found: list[GroupWaits] = []
    failed: list[Unaligned] = []
    for (name, members), tables in sorted(groups.items(), key=lambda g: g[0]):
        said = members_of(members)
        ranks = sorted(tables)
        absent = tuple(r for r in said or () if r not in tables)
        if said is not None and len(said) == 1:
            continue  # a group of one has nobody to wait for
        if len(ranks) < 2:
            failed.append(Unaligned(name, tuple(ranks), "only one rank of the group is loaded"))
            continue
        mine = [by_rank[r] for r in ranks]
        one = align(mine, tables, name, absent)
        if isinstance(one, Unaligned):
            failed.append(one)
        elif not len(one):
            continue
        elif name != UNNAMED or ends_together(mine, one):
            found.append(taken_apart(mine, one))
        else:
            split, why = _split(mine, tables)
            found += split
            failed += why
            if split:
                said_groups = "; ".join(", ".join(map(str, g.ranks)) for g in split)
                notes.append(
                    f"the trace names no process group; told by which ranks' collectives end together: {said_groups}"
                )
    return found, failed, notes


def taken_apart(parts: Sequence[RankPart], aligned: Aligned) -> GroupWaits:
    """Clocks, transfer, waits, segments and blame of one group.

    Args:
        parts: the ranks of ``aligned``, in its order.
        aligned: the group's collectives, at least one.
    """
    start = np.stack([p.start[r] for p, r in zip(parts, aligned.rows, strict=True)])
    end = np.stack([p.end[r] for p, r in zip(parts, aligned.rows, strict=True)])
    dur = end - start
    transfer = dur.min(axis=0)
    symmetric = np.array([is_symmetric(w) for w in aligned.what], bool)
    clocks = _clocks(parts, end, symmetric)
    arrival = np.stack([c.to_reference(s) for c, s in zip(clocks, start, strict=True)])
    ordered = np.sort(arrival, axis=0)
    others = np.where(np.arange(len(parts))[:, None] == arrival.argmax(axis=0), ordered[-2], ordered[-1])
    lateness, wait = arrival - others, dur - transfer
    cut = segments(parts, aligned)
    noise = max(c.p95_ns for c in clocks)
    blamed, hidden = find_stragglers(aligned, cut, lateness, wait, noise, aligned.follows & symmetric)
    layers = layers_of(parts[0], aligned.rows[0], aligned)
    return GroupWaits(aligned, clocks, dur, wait, transfer, arrival, lateness, layers, cut, blamed, hidden)


def ends_together(parts: Sequence[RankPart], aligned: Aligned) -> bool:
    """Whether kernels end on all ranks as those of one collective do.

    Args:
        parts: the ranks of ``aligned``, in its order.
        aligned: kernels matched by their order alone.

    Returns:
        False where, after the clocks are fitted, the ends of 90 % of them still differ by more than half the median
        duration and more than 5 us.
    """
    end = np.stack([p.end[r] for p, r in zip(parts, aligned.rows, strict=True)])
    start = np.stack([p.start[r] for p, r in zip(parts, aligned.rows, strict=True)])
    allowed = max(_TOGETHER_NS, float(np.median(end - start)) / 2)
    for i, part in enumerate(parts[1:], 1):
        fit = fit_clock(part.rank, parts[0].rank, end[i], end[0])
        left = np.abs(fit.to_reference(end[i]) - end[0])
        if float(np.percentile(left, 90)) > allowed:
            return False
    return True


def _clocks(parts: Sequence[RankPart], end: Ints, symmetric: NDArray[np.bool_]) -> tuple[ClockFit, ...]:
    use = symmetric if symmetric.any() else np.ones(end.shape[1], bool)
    first = parts[0]
    out = [same_clock(first.rank, int(use.sum()))]
    for i, part in enumerate(parts[1:], 1):
        one_host = part.host == first.host if part.host and first.host else None
        out.append(fit_clock(part.rank, first.rank, end[i][use], end[0][use], one_host))
    return tuple(out)


def _split(
    parts: Sequence[RankPart], tables: Mapping[int, pd.DataFrame]
) -> tuple[list[GroupWaits], list[Unaligned]]:
    """Ranks without named groups, divided into those whose collectives end together."""
    left, found, single = list(parts), [], []
    while left:
        first, rest = left[0], left[1:]
        mine = [first]
        for other in rest:
            pair = align([first, other], tables, UNNAMED)
            if isinstance(pair, Aligned) and ends_together([first, other], pair):
                mine.append(other)
        if len(mine) > 1:
            one = align(mine, tables, UNNAMED)
            if isinstance(one, Aligned):
                found.append(taken_apart(mine, one))
        else:
            single.append(first.rank)
        left = [p for p in left if p not in mine]
    if single or not found:
        ranks = tuple(single) or tuple(p.rank for p in parts)
        return found, [
            Unaligned(
                UNNAMED,
                ranks,
                "their collectives end together with no other rank's, so they are not one group's",
            )
        ]
    return found, []
