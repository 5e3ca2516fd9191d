"""Who asked for this activity? Joins activities to their launch, CPU op and annotations.

A launch is found by correlation, within one rank. Op and scope are found in time: what encloses the launch on
the launching thread. Every join looks rows up, so that it can never multiply or drop an activity: one
``cudaGraphLaunch`` may own hundreds of kernels, and an activity without a launch stays, unlinked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.columns import release
from hta_dsv4.trace.enclosing import Ints, Mask, blocks, enclosing, enclosing_chain, paths, thread_numbers
from hta_dsv4.trace.labels import is_label, take_labels, where_label

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
    out[col.LAUNCH_NAME] = take_labels(events[col.NAME], launch)
    for name, values in ((col.LAUNCH_START_NS, start), (col.LAUNCH_DUR_NS, dur), (col.LAUNCH_INDEX, index)):
        # -1, for those without a launch, takes the last value, which the mask hides.
        out[name] = pd.arrays.IntegerArray(values[launch], ~linked)

    # Ask once for each launch, not once for each kernel.
    used = launch if linked.all() else launch[linked]
    if (used[1:] > used[:-1]).all():  # eager, in order
        back: Any = slice(None)
    else:
        used, back = np.unique(used, return_inverse=True)
    threads = thread_numbers(events)
    category = events[col.CATEGORY]
    op_used = enclosing(events, threads, is_label(category, CPU_OP), used)
    graph = where_label(events[col.NAME], is_graph_launch)[used]
    op_used[graph] = -1
    release()
    op = np.full(n, -1, np.int64)
    op[linked] = op_used[back]
    is_replay = np.zeros(n, np.bool_)
    is_replay[linked] = graph[back]
    need = (op < 0) & ~is_replay
    if need.any():
        op[need] = _by_external_id(activities, events, launch, need)
    out[col.OP] = take_labels(events[col.NAME], op)
    out[col.OP_SHAPES] = take_labels(events[col.SHAPES], op)
    out[col.OP_DTYPES] = take_labels(events[col.DTYPES], op)

    around = is_label(category, ANNOTATION)
    modules = is_label(category, PYTHON)
    if modules.any():
        around = around | (modules & where_label(events[col.NAME], lambda s: s.startswith(MODULE_PREFIX)))
    inner, parent = enclosing_chain(events, threads, around, used)
    found, codes = paths(events[col.NAME], inner, parent)
    scope = np.full(n, -1, np.int32)
    scope[linked] = codes[back]
    out[col.SCOPE] = pd.Categorical.from_codes(scope, categories=pd.Index(found, dtype=object).astype("str"))
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
    around_launch: list[str] = []
    launch = activities[col.LAUNCH_INDEX].to_numpy(dtype=np.int64, na_value=-1)
    linked = launch >= 0
    if linked.any():
        index = events[col.EVENT_INDEX].to_numpy()
        order = np.argsort(index, kind="stable")
        used, back = np.unique(launch[linked], return_inverse=True)
        rows = order[np.searchsorted(index[order], used)]
        around = where_label(events[col.CATEGORY], lambda c: c in (ANNOTATION, PYTHON))
        around = around & where_label(events[col.NAME], wanted)
        inner, parent = enclosing_chain(events, thread_numbers(events), around, rows)
        around_launch, found = paths(events[col.NAME], inner, parent)
        codes[linked] = found[back]
    categories = pd.Index(around_launch, dtype=object).astype("str")
    return pd.Series(pd.Categorical.from_codes(codes, categories=categories), index=activities.index)


# --- launches ------------------------------------------------------------------------------------------


def _launch_of(activities: pd.DataFrame, events: pd.DataFrame) -> tuple[Ints, int]:
    """Row of the launch in ``events`` for each activity (-1: none), and how many launches lost a tie."""
    none = np.full(len(activities), -1, np.int64)
    if not len(events) or not len(activities):
        return none, 0
    candidates = (
        where_label(events[col.CATEGORY], is_launch_category) & events[col.CORRELATION].notna().to_numpy()
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
    ops = np.flatnonzero(is_label(events[col.CATEGORY], CPU_OP) & events[col.EXTERNAL_ID].notna().to_numpy())
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
        for block in blocks(len(wanted)):
            mine = rank[block] == r
            want = wanted[block][mine]
            inside = np.minimum(np.searchsorted(ids[lo:hi], want), hi - lo - 1) + lo
            out[block][mine] = np.where(ids[inside] == want, rows[inside], -1)
    return out, repeated
