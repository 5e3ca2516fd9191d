"""What encloses a call on its thread? The innermost event around each, and the path of events around that.

Intervals of a thread nest. Sorted by start, outermost first, each has one parent; the innermost interval around a call
is found by bisection and then by climbing parents, at most as deep as calls nest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.trace import activities as col

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_BLOCK = 1 << 18


def thread_numbers(events: pd.DataFrame) -> Ints:
    """A number for each (rank, pid, tid)."""
    codes = [events[c].cat.codes.to_numpy() for c in (col.PID, col.TID)]
    ranks = events[col.RANK].to_numpy()
    most = int(ranks.max()) + 1
    for c in codes:
        most *= int(c.max()) + 2
    number: npt.NDArray[Any] = ranks.astype(np.int32 if most < 1 << 31 else np.int64)
    for c in codes:
        number *= int(c.max()) + 2
        number += c
        number += 1  # -1 is missing
    return number


def enclosing(events: pd.DataFrame, threads: Ints, which: Mask, asked: Ints) -> Ints:
    """Row of the innermost event of ``which`` around each asked row on its thread; -1 where there is none."""
    return enclosing_chain(events, threads, which, asked, chain=False)[0]


def enclosing_chain(
    events: pd.DataFrame, threads: Ints, which: Mask, asked: Ints, chain: bool = True
) -> tuple[Ints, dict[int, int]]:
    """The innermost enclosing row for each asked row, and each enclosing row's own parent row (-1: none).

    Without ``chain`` the second is empty: that of every op takes long, and nobody asks for it.
    """
    pos = np.full(len(asked), -1, np.int64)
    rows = np.flatnonzero(which)
    if not len(rows) or not len(asked):
        return pos, {}
    start, dur = events[col.START_NS].to_numpy(), events[col.DUR_NS].to_numpy()
    # By thread, then outermost first: an enclosing interval starts earlier, or ends later on the same start.
    order_thread, order_start = threads[rows], start[rows]
    ends = order_start + dur[rows]
    if not _in_order(order_thread, order_start, ends):
        order = np.lexsort((-ends, order_start, order_thread))
        rows, order_thread, order_start, ends = (
            rows[order],
            order_thread[order],
            order_start[order],
            ends[order],
        )
        del order
    parent = _parents(order_thread, ends)
    for block in blocks(len(asked)):
        begin = start[asked[block]]
        pos[block] = _innermost(
            (order_thread, order_start, ends, parent),
            (threads[asked[block]], begin, begin + dur[asked[block]]),
        )
    parents: dict[int, int] = {}
    for p in np.unique(pos).tolist() if chain else ():
        while p >= 0 and int(rows[p]) not in parents:
            up = int(parent[p])
            parents[int(rows[p])] = int(rows[up]) if up >= 0 else -1
            p = up
    for block in blocks(len(pos)):
        pos[block] = np.where(pos[block] >= 0, rows[pos[block]], -1)
    return pos, parents


def blocks(n: int) -> list[slice]:
    """Ranges of some rows, so that what is computed of millions of rows is never held of all at once."""
    return [slice(i, min(i + _BLOCK, n)) for i in range(0, n, _BLOCK)]


def _innermost(
    intervals: tuple[Ints, Ints, Ints, npt.NDArray[np.int32]], asked: tuple[Ints, Ints, Ints]
) -> Ints:
    """Position of the innermost of ``intervals`` (thread, start, end, parent) around each of (thread, start, end)."""
    thread, start, end, parent = intervals
    asked_thread, asked_start, asked_end = asked
    # Position of the last interval that starts no later, on the same thread.
    pos = np.full(len(asked_thread), -1, np.int64)
    for t in np.unique(asked_thread).tolist():
        a, b = np.searchsorted(thread, [t, t + 1])
        if a < b:
            mine = asked_thread == t
            found = np.searchsorted(start[a:b], asked_start[mine], side="right") - 1
            pos[mine] = np.where(found >= 0, found + a, -1)
    while True:  # climb while the candidate ends before the launch does: at most the depth of nesting
        climb = (pos >= 0) & (end[np.maximum(pos, 0)] < asked_end)
        if not climb.any():
            return pos
        pos[climb] = parent[pos[climb]]


def _in_order(thread: Ints, start: Ints, end: Ints) -> bool:
    """Whether intervals are sorted by (thread, start, -end), as those of one thread mostly are from the start."""
    later = start[1:] > start[:-1]
    later |= (start[1:] == start[:-1]) & (end[1:] <= end[:-1])
    later &= thread[1:] == thread[:-1]
    later |= thread[1:] > thread[:-1]
    return bool(later.all())


def _parents(thread: Ints, end: Ints) -> npt.NDArray[np.int32]:
    """For intervals sorted by (thread, start, -end): the nearest earlier one on the thread that ends no sooner."""
    out = np.full(len(end), -1, np.int32)
    into, last = out.data, None
    # What may still enclose something: rows and their ends. Views instead of lists: there may be millions.
    rows: list[int] = []
    ends: list[int] = []
    for i, (t, e) in enumerate(zip(thread.data, end.data, strict=True)):
        if t != last:
            rows, ends, last = [], [], t
        while ends and ends[-1] < e:
            ends.pop()
            rows.pop()
        if rows:
            into[i] = rows[-1]
        rows.append(i)
        ends.append(e)
    return out


def paths(names: pd.Series, inner: Ints, parent: dict[int, int]) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Scope paths, each once, and for each asked row the number of its path (-1: none)."""
    numbers: dict[str, int] = {}
    labels = list(names.cat.categories)
    codes = names.cat.codes.to_numpy()
    of_row: dict[int, int] = {-1: -1}
    distinct = np.unique(inner)
    for row in distinct.tolist():
        path, at = [], row
        while at >= 0:
            path.append(labels[codes[at]])
            at = parent[at]
        if path:
            of_row[row] = numbers.setdefault(col.SCOPE_SEP.join(reversed(path)), len(numbers))
    number = np.array([of_row[r] for r in distinct.tolist()], np.int32)
    return list(numbers), number[np.searchsorted(distinct, inner)] if len(inner) else number
