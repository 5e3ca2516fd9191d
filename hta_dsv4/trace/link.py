"""Who asked for this activity? Joins activities to their launch, CPU op and annotations.

A launch is found by correlation, within one rank. Op and scope are found in time: what encloses the launch on
the launching thread. Every join looks rows up, so that it can never multiply or drop an activity: one
``cudaGraphLaunch`` may own hundreds of kernels, and an activity without a launch stays, unlinked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.columns import release

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_BLOCK = 1 << 18
CPU_OP, ANNOTATION, PYTHON = "cpu_op", "user_annotation", "python_function"
MODULE_PREFIX = "nn.Module: "  # how the profiler names the frames of module calls


def is_launch_category(category: str) -> bool:
    """Whether events of this category can be launches: cuda_runtime, cuda_driver, and other vendors' like them."""
    return category.endswith(("_runtime", "_driver"))


def is_graph_launch(name: str) -> bool:
    """Whether a launch replays a whole graph: its kernels were recorded elsewhere."""
    return "GraphLaunch" in name


def link(activities: pd.DataFrame, events: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Add the link columns to the activity table.

    Args:
        activities: an activity table without links.
        events: the event table of the same trace.

    Returns:
        The same rows in the same order with ``LINK_COLUMNS`` added, and warnings.

    An activity's op is the innermost ``cpu_op`` that encloses its launch on the launching thread; where none
    does, the op with the activity's (or the launch's) External id. Kernels of a graph launch get no op: what
    encloses a replay is not what asked for the kernel. Scope is the path of annotations around the launch.
    """
    n = len(activities)
    warnings: list[str] = []
    launch, doubled = _launch_of(activities, events)
    if doubled:
        warnings.append(f"{doubled} launches share a correlation id with an earlier one, which was taken")
    linked = launch >= 0
    release()
    out = activities.copy(deep=False)
    if not len(events):
        for name, dtype in col.LINK_COLUMNS.items():
            out[name] = pd.Series([None] * n, dtype=dtype, index=out.index)
        return out, warnings

    start, dur, index = (events[c].to_numpy() for c in (col.START_NS, col.DUR_NS, col.EVENT_INDEX))
    out[col.LAUNCH_NAME] = _take(events[col.NAME], launch)
    for name, values in ((col.LAUNCH_START_NS, start), (col.LAUNCH_DUR_NS, dur), (col.LAUNCH_INDEX, index)):
        # -1, for those without a launch, takes the last value, which the mask hides.
        out[name] = pd.arrays.IntegerArray(values[launch], ~linked)

    # Ask once for each launch, not once for each kernel.
    used = launch if linked.all() else launch[linked]
    if (used[1:] > used[:-1]).all():  # eager, in order
        back: Any = slice(None)
    else:
        used, back = np.unique(used, return_inverse=True)
    threads = _threads(events)
    category = events[col.CATEGORY]
    op_used = _enclosing(events, threads, _is(category, CPU_OP), used)
    graph = _label_mask(events[col.NAME], is_graph_launch)[used]
    op_used[graph] = -1
    release()
    op = np.full(n, -1, np.int64)
    op[linked] = op_used[back]
    is_replay = np.zeros(n, np.bool_)
    is_replay[linked] = graph[back]
    need = (op < 0) & ~is_replay
    if need.any():
        op[need] = _by_external_id(activities, events, launch, need)
    out[col.OP] = _take(events[col.NAME], op)
    out[col.OP_SHAPES] = _take(events[col.SHAPES], op)
    out[col.OP_DTYPES] = _take(events[col.DTYPES], op)

    around = _is(category, ANNOTATION)
    modules = _is(category, PYTHON)
    if modules.any():
        around = around | (modules & _label_mask(events[col.NAME], lambda s: s.startswith(MODULE_PREFIX)))
    inner, parent = _enclosing_chain(events, threads, around, used)
    paths, codes = _paths(events[col.NAME], inner, parent)
    scope = np.full(n, -1, np.int32)
    scope[linked] = codes[back]
    out[col.SCOPE] = pd.Categorical.from_codes(scope, categories=pd.Index(paths, dtype=object).astype("str"))
    return out, warnings


def paths_around(
    activities: pd.DataFrame, events: pd.DataFrame, wanted: Callable[[str], bool]
) -> pd.Series[Any]:
    """The path of chosen annotations, modules and Python functions around each launch.

    Args:
        activities: an activity table with links.
        events: the event table of the same trace, read with Python frames where functions are wanted.
        wanted: asked once per distinct name whether an annotation or a Python frame belongs into the path.

    Returns:
        Category of str aligned with ``activities``: names outermost first, joined by ``SCOPE_SEP``; NA where there is
        no launch or nothing chosen around it.
    """
    codes = np.full(len(activities), -1, np.int32)
    paths: list[str] = []
    launch = activities[col.LAUNCH_INDEX].to_numpy(dtype=np.int64, na_value=-1)
    linked = launch >= 0
    if linked.any():
        index = events[col.EVENT_INDEX].to_numpy()
        order = np.argsort(index, kind="stable")
        used, back = np.unique(launch[linked], return_inverse=True)
        rows = order[np.searchsorted(index[order], used)]
        around = _label_mask(events[col.CATEGORY], lambda c: c in (ANNOTATION, PYTHON))
        around = around & _label_mask(events[col.NAME], wanted)
        inner, parent = _enclosing_chain(events, _threads(events), around, rows)
        paths, found = _paths(events[col.NAME], inner, parent)
        codes[linked] = found[back]
    categories = pd.Index(paths, dtype=object).astype("str")
    return pd.Series(pd.Categorical.from_codes(codes, categories=categories), index=activities.index)


# --- launches ------------------------------------------------------------------------------------------


def _launch_of(activities: pd.DataFrame, events: pd.DataFrame) -> tuple[Ints, int]:
    """Row of the launch in ``events`` for each activity (-1: none), and how many launches lost a tie."""
    none = np.full(len(activities), -1, np.int64)
    if not len(events) or not len(activities):
        return none, 0
    candidates = (
        _label_mask(events[col.CATEGORY], is_launch_category) & events[col.CORRELATION].notna().to_numpy()
    )
    rows = np.flatnonzero(candidates)
    wanted = activities[col.CORRELATION]
    has = wanted.notna().to_numpy()
    if not len(rows) or not has.any():
        return none, 0
    key_rank = events[col.RANK].to_numpy()[rows]
    key_id = events[col.CORRELATION].iloc[rows].to_numpy(dtype=np.int64, na_value=0)
    found, doubled = _lookup(
        key_rank, key_id, rows,
        activities[col.RANK].to_numpy()[has], wanted.to_numpy(dtype=np.int64, na_value=0)[has],
    )  # fmt: skip
    none[has] = found
    return none, doubled


def _by_external_id(activities: pd.DataFrame, events: pd.DataFrame, launch: Ints, need: Mask) -> Ints:
    """Row of the CPU op with the External id of the activity, or of its launch; -1 where there is none."""
    ops = np.flatnonzero(_is(events[col.CATEGORY], CPU_OP) & events[col.EXTERNAL_ID].notna().to_numpy())
    own = activities[col.EXTERNAL_ID].to_numpy(dtype=np.int64, na_value=0)[need]
    of_launch = events[col.EXTERNAL_ID].to_numpy(dtype=np.int64, na_value=0)
    at = launch[need]
    wanted = np.where(own != 0, own, np.where(at >= 0, of_launch[np.maximum(at, 0)], 0))
    if not len(ops):
        return np.full(len(wanted), -1, np.int64)
    found, _ = _lookup(
        events[col.RANK].to_numpy()[ops], of_launch[ops], ops, activities[col.RANK].to_numpy()[need], wanted
    )
    return np.where(wanted == 0, -1, found)


def _lookup(key_rank: Any, key_id: Ints, rows: Any, rank: Any, wanted: Ints) -> tuple[Ints, int]:
    """For each (rank, wanted): the first of ``rows`` with that key, or -1; and how many keys came again."""
    ids, ranks, rows = key_id, key_rank, np.asarray(rows, np.int64)
    if (
        not (ids[1:] >= ids[:-1]).all() or (ranks[1:] != ranks[:-1]).any()
    ):  # of one rank mostly sorted already
        order = np.lexsort((np.arange(len(rows)), key_id, key_rank))
        ids, ranks, rows = key_id[order], key_rank[order], rows[order]
        del order
    repeated = int(((ids[1:] == ids[:-1]) & (ranks[1:] == ranks[:-1])).sum())
    out = np.full(len(wanted), -1, np.int64)
    for r in np.unique(rank).tolist():
        lo, hi = np.searchsorted(ranks, [r, r + 1])
        if lo == hi:
            continue
        for block in _blocks(len(wanted)):
            mine = rank[block] == r
            want = wanted[block][mine]
            inside = np.minimum(np.searchsorted(ids[lo:hi], want), hi - lo - 1) + lo
            out[block][mine] = np.where(ids[inside] == want, rows[inside], -1)
    return out, repeated


# --- what encloses a launch ----------------------------------------------------------------------------


def _threads(events: pd.DataFrame) -> Ints:
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


def _enclosing(events: pd.DataFrame, threads: Ints, which: Mask, asked: Ints) -> Ints:
    """Row of the innermost event of ``which`` around each asked row on its thread; -1 where there is none."""
    return _enclosing_chain(events, threads, which, asked, chain=False)[0]


def _enclosing_chain(
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
    for block in _blocks(len(asked)):
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
    for block in _blocks(len(pos)):
        pos[block] = np.where(pos[block] >= 0, rows[pos[block]], -1)
    return pos, parents


def _blocks(n: int) -> list[slice]:
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


def _paths(names: pd.Series, inner: Ints, parent: dict[int, int]) -> tuple[list[str], npt.NDArray[np.int32]]:
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


# --- small functions on categoricals -----------------------------------------------------------------------


def _is(column: pd.Series, value: str) -> Mask:
    return _label_mask(column, lambda s: s == value)


def _label_mask(column: pd.Series, test: Any) -> Mask:
    """Rows whose label passes ``test``; asked once per label."""
    passed = np.array([bool(test(c)) for c in column.cat.categories] + [False], np.bool_)
    return passed[column.cat.codes.to_numpy()]  # missing is code -1: the last place, False


def _take(column: pd.Series, rows: Ints) -> pd.Categorical:
    """Labels of ``rows`` (-1: missing), keeping only categories in use."""
    codes = column.cat.codes.to_numpy()
    picked = np.where(rows >= 0, codes[np.maximum(rows, 0)], -1)
    used = np.unique(picked)
    used = used[used >= 0]
    remap = np.full(len(column.cat.categories) + 1, -1, np.int32)
    remap[used] = np.arange(len(used), dtype=np.int32)
    return pd.Categorical.from_codes(remap[picked], categories=column.cat.categories[used])
