"""Steps of a trace without markers: the periods of its kernel sequence as a step table.

The sequence looked at is that of the busiest stream of each rank (two streams interleave differently each time);
what runs beside it belongs to the step in whose time it starts. A kernel is known by name and grid, and by its
graph node where the trace writes one; where grids change from step to step, by name alone.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.markers import RANK, UNKNOWN, Row, inside, step_table
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.periods import Period, find_period
from hta_dsv4.trace.sequences import Ints, encode, part_of

WARM_UP, PARTIAL, OTHER = "warm-up", "partial", "other work"


def period_steps(trace: Trace) -> tuple[pd.DataFrame, NDArray[np.int32], str]:
    """Steps by the repetition of the kernel sequence.

    Args:
        trace: as read; the CPU side is not needed.

    Returns:
        The step table, whose times are of the GPU (first kernel's start to the next step's first kernel, or to the
        last kernel's end); int32, the step of each activity or -1; and a sentence. Periods that are not the typical
        work have phase ``warm-up`` (the first ones) or ``other work``; the parts of a step that the capture cut at
        its ends have phase ``partial``.
    """
    acts = trace.activities
    kernels = (acts[col.KIND] == col.KERNEL).to_numpy()
    ranks = acts[col.RANK].to_numpy()
    rows: list[Row] = []
    owner: list[tuple[Ints, Ints]] = []  # activity positions and their row, numbered as rows are
    details: list[str] = []
    for rank in sorted(set(ranks[kernels].tolist())):
        main = _busiest_stream(acts, kernels & (ranks == rank))
        period, detail = _period_of(acts.iloc[main])
        prefix = f"rank {rank}: " if len(trace.meta.rank_labels) > 1 else ""
        details.append(prefix + detail)
        if period is None:
            continue
        bounds, phases = _stretches(acts.iloc[main], period)
        start = acts[col.START_NS].to_numpy()[main]
        end = int((acts[col.START_NS] + acts[col.DUR_NS]).to_numpy()[main].max())
        for (first, last), phase in zip(bounds, phases, strict=True):
            owner.append((main[first:last], np.full(last - first, len(rows))))
            until = int(start[last]) if last < len(start) else end + 1
            rows.append((int(rank), f"period {len(rows)}", int(start[first]), until, phase, None))
    table = step_table(rows)
    step = np.full(len(acts), -1, dtype=np.int32)
    for rank, mine in table.groupby(RANK):
        here = ranks == rank
        step[here] = inside(acts[col.START_NS].to_numpy()[here], mine)
    for positions, row in owner:  # by place in the sequence: rows are in order of rank and time already
        step[positions] = row
    return table, step, "; ".join(details) or "no kernels"


def _busiest_stream(acts: pd.DataFrame, mask: NDArray[np.bool_]) -> Ints:
    """Positions of the kernels on the (device, stream) with most of them."""
    where = np.flatnonzero(mask)
    device = acts[col.DEVICE].to_numpy(dtype=np.int64, na_value=-1)[where]
    stream = acts[col.STREAM].to_numpy(dtype=np.int64, na_value=-1)[where]
    place = encode([device, stream])
    busiest: Ints = where[place == np.argmax(np.bincount(place))]
    return busiest


def _symbols(kernels: pd.DataFrame, grids: bool = True) -> Ints:
    """What each kernel is, as integers."""
    columns = [kernels[col.NAME].cat.codes.to_numpy().astype(np.int64)]
    if grids:
        nodes = kernels[col.GRAPH_NODE].to_numpy(dtype=np.int64, na_value=-1)
        extra = [
            kernels[c].to_numpy(dtype=np.int64, na_value=-1) for c in (col.GRID_X, col.GRID_Y, col.GRID_Z)
        ]
        columns += [c for c in (*extra, nodes) if (c != c[0]).any()]
    return encode(columns)


def _period_of(kernels: pd.DataFrame) -> tuple[Period | None, str]:
    start = kernels[col.START_NS].to_numpy()
    end = start + kernels[col.DUR_NS].to_numpy()
    gaps = np.maximum(start - np.r_[start[:1], np.maximum.accumulate(end)[:-1]], 0)
    period, detail = find_period(_symbols(kernels), gaps)
    if period is None:
        by_name, name_detail = find_period(_symbols(kernels, grids=False), gaps)
        if by_name is not None:
            return by_name, name_detail + " (by name; grids or graph nodes differ between them)"
    return period, detail


def _stretches(kernels: pd.DataFrame, period: Period) -> tuple[list[tuple[int, int]], list[str]]:
    """The periods, and the cut steps before and after them, as index ranges with their phase."""
    bounds = [(int(a), int(b)) for a, b in zip(period.starts, period.ends, strict=True)]
    alike = period.alike
    first_alike = int(np.argmax(alike))
    phases = [UNKNOWN if ok else WARM_UP if i < first_alike else OTHER for i, ok in enumerate(alike)]
    symbols = _symbols(kernels, grids=False)
    n, (begin, end) = len(symbols), (bounds[0][0], bounds[-1][1])
    typical = bounds[first_alike]
    if not alike[-1] and bounds[-1][1] - bounds[-1][0] < period.length and bounds[-1][1] == n:
        phases[-1] = PARTIAL
    elif 0 < n - end < period.length and part_of(symbols, (end, n), typical, at_start=True):
        bounds.append((end, n))
        phases.append(PARTIAL)
    if 0 < begin < period.length and part_of(symbols, (0, begin), typical, at_start=False):
        bounds.insert(0, (0, begin))
        phases.insert(0, PARTIAL)
    return bounds, phases
