"""Origins under CUDA-graph replay, where no kernel has a CPU op: from a companion trace.

A replay runs the kernels that were captured, in their order. A companion, an eager or capture trace of the same
program, has them with their ops and scopes: the two sequences are matched and these carried over. What has no
counterpart keeps the origin it had; without a companion there is :mod:`hta_dsv4.classify.inference`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.classify.matching import EXACT, UNMATCHED, match_sequences
from hta_dsv4.classify.names import normalise
from hta_dsv4.classify.origin_columns import COMPANION, Origins, replayed
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.sequences import Ints, encode
from hta_dsv4.trace.steps import Steps

_BY_NAME_CONFIDENCE = 0.85  # the same kernel with another grid: another batch, or another call of it
_NUMBERED = re.compile(r"(_\d+)+_$")
_CARRIED = (col.OP, col.OP_SHAPES, col.OP_DTYPES, col.SCOPE)


@dataclass(frozen=True, slots=True)
class Fit:
    """How well a companion fits a graph trace.

    Attributes:
        replayed: activities that ran in graph replays.
        matched: of those, how many have a counterpart in the companion.
        exact: of those, how many by name and grid.
        replayed_ns, matched_ns: their summed durations.
        sequences: distinct kernel sequences of the replays.
        companion_step: which step of the companion they were matched with; ``None`` for all of it.
    """

    replayed: int
    matched: int
    exact: int
    replayed_ns: int
    matched_ns: int
    sequences: int
    companion_step: int | None

    @property
    def coverage(self) -> float:
        """Share of the replayed time that has a counterpart."""
        return self.matched_ns / self.replayed_ns if self.replayed_ns else 0.0

    @property
    def sentence(self) -> str:
        """The fit in words."""
        if not self.replayed:
            return "the companion was not needed: no kernel ran in a graph replay"
        return (
            f"companion: {self.matched:,} of {self.replayed:,} replayed activities have a counterpart "
            f"({100 * self.coverage:.1f} % of their time; {self.exact:,} of them by name and grid, not by name alone)"
        )


def from_companion(
    table: pd.DataFrame, steps: Steps, companion: pd.DataFrame, companion_steps: Steps
) -> tuple[pd.DataFrame, Fit]:
    """Give replayed kernels the op, scope and origin of their counterparts in an eager or capture trace.

    Args:
        table: activity table of the graph trace, with origin columns. Not modified.
        steps: its steps.
        companion: activity table of the companion, with links and origin columns; its first rank is used.
        companion_steps: its steps.

    Returns:
        The table with op, scope and origin columns filled for matched rows (method ``companion``, confidence that of
        the companion's own evidence, less where only the name fits), and the fit.
    """
    out = table.copy(deep=False)
    mine = np.flatnonzero(replayed(table))
    durations = table[col.DUR_NS].to_numpy()
    rows, which = _typical_step(companion, companion_steps)
    if not len(mine) or not len(rows):
        return out, Fit(len(mine), 0, 0, int(durations[mine].sum()), 0, 0, which)
    names, exact = _codes(table.iloc[mine], companion.iloc[rows])
    target = np.full(len(table), -1, dtype=np.int64)
    fit = np.full(len(table), UNMATCHED, dtype=np.int64)
    seen: dict[bytes, tuple[Ints, Ints]] = {}
    for group in _replays(table, steps, mine):
        at = np.searchsorted(mine, np.sort(group))
        order = at[np.argsort(np.argsort(group))]  # positions in `mine`, in the order of the replay
        sequence = exact[0][order]
        known = seen.get(sequence.tobytes())
        if known is None:
            known = match_sequences((names[0][order], names[1]), (sequence, exact[1]))
            seen[sequence.tobytes()] = known
        target[group], fit[group] = known
    hit = np.flatnonzero(target >= 0)
    source = rows[target[hit]]
    for column in _CARRIED:
        if column in companion:
            out[column] = _carried(table, column, hit, companion[column], source)
    out[col.COMPANION_EXACT] = fit == EXACT
    if col.COLLECTIVE in companion:  # kept apart: its group and sequence number are those of another run
        same = hit[fit[hit] == EXACT]  # another grid may be another batch, and so another size
        out[col.COMPANION_COLLECTIVE] = _carried(
            table, col.COMPANION_COLLECTIVE, same, companion[col.COLLECTIVE], rows[target[same]]
        )
    origins = Origins(out)
    theirs = Origins(companion)
    told = theirs.origin[source] != theirs.unknown
    rows_told, source = hit[told], source[told]
    certain = np.where(fit[rows_told] == EXACT, 1.0, _BY_NAME_CONFIDENCE)
    origins.set(
        rows_told, theirs.names[theirs.origin[source]], COMPANION, theirs.confidence[source] * certain
    )
    origins.write(out)
    matched_ns = int(durations[hit].sum())
    return out, Fit(
        len(mine),
        len(hit),
        int((fit == EXACT).sum()),
        int(durations[mine].sum()),
        matched_ns,
        len(seen),
        which,
    )


def _typical_step(table: pd.DataFrame, steps: Steps) -> tuple[Ints, int | None]:
    """Rows of the companion's step of median size, in launch order; all rows where it has no steps."""
    counted = steps.counted.index.to_numpy()
    step = steps.of_activity.to_numpy(dtype=np.int64, na_value=-1)
    which = None
    rows = (
        np.flatnonzero((table[col.RANK] == table[col.RANK].min()).to_numpy())
        if len(table)
        else np.array([], int)
    )
    if len(counted):
        sizes = np.array([(step[rows] == s).sum() for s in counted])
        which = int(counted[np.argsort(sizes, kind="stable")[(len(sizes) - 1) // 2]])
        rows = rows[step[rows] == which]
    launch = (
        table[col.LAUNCH_START_NS]
        if col.LAUNCH_START_NS in table
        else pd.Series(pd.NA, table.index, dtype="Int64")
    )
    at = launch.to_numpy(dtype=np.int64, na_value=-1)[rows]
    at = np.where(at < 0, table[col.START_NS].to_numpy()[rows], at)
    return rows[np.argsort(at, kind="stable")].astype(np.int64), which


def _replays(table: pd.DataFrame, steps: Steps, rows: Ints) -> list[Ints]:
    """Replayed rows by step (or by launch, outside steps), each in the order of capture."""
    launch = table[col.LAUNCH_START_NS].to_numpy(dtype=np.int64, na_value=-1)[rows]
    step = steps.of_activity.to_numpy(dtype=np.int64, na_value=-1)[rows]
    unit = np.where(step >= 0, step, launch + len(steps.table) + 1)
    rank = table[col.RANK].to_numpy().astype(np.int64)[rows]
    node = table[col.GRAPH_NODE].to_numpy(dtype=np.int64, na_value=-1)[rows]
    if (node < 0).any():  # nodes are numbered as they were captured; without them, by time of running
        node = np.zeros(len(rows), dtype=np.int64)
    order = np.lexsort((table[col.START_NS].to_numpy()[rows], node, launch, unit, rank))
    cuts = np.flatnonzero((np.diff(unit[order]) != 0) | (np.diff(rank[order]) != 0)) + 1
    return [rows[part] for part in np.split(order, cuts)]


def _codes(a: pd.DataFrame, b: pd.DataFrame) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Comparable codes of two tables' rows: by normalised name, and by name and grid."""
    both = pd.concat([a[col.NAME].astype(str), b[col.NAME].astype(str)], ignore_index=True)
    code, labels = pd.factorize(both)
    plain, _ = pd.factorize(pd.Series([_plain(str(n)) for n in labels], dtype="object"))
    names = encode([plain.astype(np.int64)[code]])
    grids = [
        np.concatenate([t[c].to_numpy(dtype=np.int64, na_value=-1) for t in (a, b)])
        for c in (col.GRID_X, col.GRID_Y, col.GRID_Z)
    ]
    exact = encode([names, *grids])
    n = len(a)
    return (names[:n], names[n:]), (exact[:n], exact[n:])


def _plain(name: str) -> str:
    """A kernel's words; generated kernels without their number, which counts from 0 in every compilation."""
    words = normalise(name).full
    return _NUMBERED.sub("_", words) if words.startswith("_triton_") else words


def _carried(
    table: pd.DataFrame, column: str, rows: Ints, source: pd.Series[Any], at: Ints
) -> pd.Series[Any]:
    values = (
        table[column].astype(object).to_numpy(dtype=object, copy=True)
        if column in table
        else np.full(len(table), None, dtype=object)
    )
    values[rows] = source.astype(object).to_numpy(dtype=object)[at]
    return pd.Series(pd.Categorical(values), index=table.index)
