"""What did each rank do since the last collective of the group, and what took one longer than the others?

All ranks leave a collective together, so from its end each runs its own race to the next. A segment is that time on
one rank: its length needs no clock but the rank's own. It is divided among what ran in it, each instant given to the
activity that began first, and what is left is idle: so the parts add up to the length exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hta_dsv4.analysis.collectives import Aligned
from hta_dsv4.analysis.rank_parts import Ints, RankPart
from hta_dsv4.trace import activities as col

IDLE = "idle"
"""Stands as bucket for time in which the rank's GPU ran nothing: it waited for its host."""

# columns of Segments.pieces and of what is summed from them
AT, K, ROW, NS, LAUNCHES = "rank_at", "k", "row", "ns", "launches"
KEYS = (col.BUCKET, col.ORIGIN, col.NAME)


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The segments before each aligned collective.

    Attributes:
        length: int64 [ranks, collectives], ns from the end of the collective before to the start of this one; 0 where
            they overlap, and before the first of a run.
        work: int64 [ranks, collectives], ns of it in which the GPU ran something; ``length - work`` is idle.
        pieces: what ran: ``rank_at`` (position among the ranks), ``k`` (collective), ``ns``, ``launches``, and
            ``bucket, origin, name`` as category codes of ``labels``.
        labels: column -> labels that its codes stand for.
    """

    length: Ints
    work: Ints
    pieces: pd.DataFrame
    labels: dict[str, list[str]]

    @property
    def idle(self) -> Ints:
        """Ns of each segment in which the GPU ran nothing."""
        return self.length - self.work


def segments(parts: Sequence[RankPart], aligned: Aligned) -> Segments:
    """Cut what each rank ran into the stretches between the group's collectives.

    Args:
        parts: the ranks of ``aligned``, in its order.
        aligned: the group's collectives.

    Returns:
        The segments.
    """
    labels: dict[str, list[str]] = {c: [] for c in KEYS}
    length = np.zeros(aligned.rows.shape, np.int64)
    work = np.zeros(aligned.rows.shape, np.int64)
    pieces = []
    for i, part in enumerate(parts):
        begin, finish = _bounds(part, aligned.rows[i], aligned.follows)
        length[i] = finish - begin
        table = _pieces(part, aligned.rows[i], begin, finish)
        np.add.at(work[i], table[K].to_numpy(), table[NS].to_numpy())
        for c in KEYS:
            table[c] = _codes(part.activities, c, labels[c])[table[ROW].to_numpy()]
        table[AT] = i
        pieces.append(table.groupby([AT, K, *KEYS], as_index=False, sort=False).agg(
            **{NS: (NS, "sum"), LAUNCHES: (ROW, "nunique")}
        ))  # fmt: skip
    return Segments(length, work, pd.concat(pieces, ignore_index=True), labels)


def excess(found: Segments, late: Ints, which: NDArray[np.bool_], keys: Sequence[str] = KEYS) -> pd.DataFrame:
    """By how much what ran on the late rank took longer than on the others' average, before chosen collectives.

    Args:
        found: the segments.
        late: int64 [collectives], position of the late rank among the ranks.
        which: bool [collectives], the collectives asked about.
        keys: what a row is: some of ``bucket``, ``origin``, ``name``.

    Returns:
        One row per collective and key, with ``k``, the keys (labels; bucket :data:`IDLE` for idle time),
        ``ns`` (float: late rank minus the mean of the others) and ``launches`` (the same of the launches). For each
        collective the rows add up to the late rank's segment minus the mean of the others'.
    """
    ranks = len(found.length)
    table = found.pieces[which[found.pieces[K].to_numpy()]]
    mine = table[AT].to_numpy() == late[table[K].to_numpy()]
    weight = np.where(mine, 1.0, -1.0 / (ranks - 1))
    table = table.assign(**{NS: table[NS] * weight, LAUNCHES: table[LAUNCHES] * weight})
    out = table.groupby([K, *keys], as_index=False, sort=False)[[NS, LAUNCHES]].sum()
    for c in keys:
        out[c] = np.array([*found.labels[c], "unknown"], dtype=object)[out[c].to_numpy()]
    k = np.flatnonzero(which)
    idle = found.idle.astype(np.float64)
    own = idle[late[k], k]
    rest = (idle[:, k].sum(axis=0) - own) / (ranks - 1)
    more = pd.DataFrame({K: k, **dict.fromkeys(keys, IDLE), NS: own - rest, LAUNCHES: 0.0})
    both: pd.DataFrame = pd.concat([out, more[more[NS] != 0]], ignore_index=True)
    return both.reindex(columns=[K, *keys, NS, LAUNCHES])


def _bounds(part: RankPart, rows: Ints, follows: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Where each segment begins and ends, ascending and apart; empty where nothing lies between."""
    finish = part.start[rows]
    begin = np.r_[finish[:1], part.end[rows][:-1]]
    begin = np.where(follows, np.minimum(begin, finish), finish)
    # Collectives that overlap others on another stream must not make segments that overlap.
    reach = np.maximum.accumulate(np.r_[begin[:1], finish[:-1]])
    begin = np.maximum(begin, reach)
    return begin, np.maximum(finish, begin)


def _pieces(part: RankPart, rows: Ints, begin: Ints, finish: Ints) -> pd.DataFrame:
    """What each activity adds to the GPU being busy, cut at the segments: ``k, row, ns``, one row per piece."""
    reach = np.maximum.accumulate(np.r_[part.start[:1], part.end[:-1]])
    a, b = np.maximum(part.start, reach), part.end
    adds = b > a
    adds[rows] = False  # the collectives themselves are no work before themselves
    row = np.flatnonzero(adds)
    a, b = a[row], b[row]
    low, high = np.searchsorted(finish, a, side="right"), np.searchsorted(begin, b, side="left")
    times = np.maximum(high - low, 0)
    row, a, b = np.repeat(row, times), np.repeat(a, times), np.repeat(b, times)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    k = np.repeat(low, times) + offset
    ns = np.minimum(b, finish[k]) - np.maximum(a, begin[k])
    some = ns > 0
    return pd.DataFrame({K: k[some], ROW: row[some], NS: ns[some]})


def _codes(activities: pd.DataFrame, column: str, labels: list[str]) -> Ints:
    """A category column as codes into labels shared by all ranks, which grow as needed; -1 where missing."""
    if column not in activities:
        return np.full(len(activities), -1, np.int64)
    number = {x: i for i, x in enumerate(labels)}
    remap = []
    for label in activities[column].cat.categories:
        text = str(label)
        if text not in number:
            number[text] = len(labels)
            labels.append(text)
        remap.append(number[text])
    return np.array([*remap, -1], np.int64)[activities[column].cat.codes.to_numpy()]
