"""Our tables as the event frame of Holistic Trace Analysis (HTA); knows its columns, imports nothing of it.

HTA keeps every event of a rank in one frame: ``stream`` -1 is the CPU, any other stream is the GPU, names
and categories are integers into one symbol table, row labels equal the ``index`` column, and
``index_correlation`` and ``iteration`` link launches, activities and steps. Here those links come from the
joins the reader has made, so that every kernel of a CUDA-graph replay points to its launch.

Times are kept twice over: exact int64 nanoseconds since the earliest event of all ranks for the analyses the
bridge runs itself, float64 microseconds for anyone calling HTA by hand. A float64 holds nanoseconds exactly
for a span below 2**53 ns / 1000 (104 days), which absolute Kineto times (1e12 us and more) would not leave.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from . import activities as col

CPU_STREAM = -1
NO_LINK, LINK_ABSENT = -1, 0  # HTA: no correlation at all; a correlation whose partner is not in the trace
NO_ITERATION = -1
CATEGORIES = {col.KERNEL: "kernel", col.MEMCPY: "gpu_memcpy", col.MEMSET: "gpu_memset"}
# Sums of multiples of 2**-30 GB/s are exact, so a running total comes back to 0 instead of to 1e-15.
BANDWIDTH_STEP = 2.0**30
_STEP_MARK = re.compile(r"ProfilerStep\s*#\s*(\d+)$")

Int64s = npt.NDArray[np.int64]
Symbols = dict[str, int]


def _ints(column: pd.Series[Any], missing: int) -> Int64s:
    return np.array(column.astype("Int64").fillna(missing), np.int64)


def encode(column: pd.Series[Any], symbols: Symbols) -> Int64s:
    """Symbol ids of a column of strings.

    Args:
        column: strings or a category of strings; a missing value is the symbol ``""``.
        symbols: string -> id; new strings are added.

    Returns:
        int64 ids, one per row.
    """
    categories = column.astype("category").cat.remove_unused_categories().cat
    names = [str(name) for name in categories.categories]
    ids = np.array([*(symbols.setdefault(name, len(symbols)) for name in names), -1], np.int64)
    codes = categories.codes.to_numpy()
    if (codes < 0).any():
        ids[-1] = symbols.setdefault("", len(symbols))
    return ids[codes]


def _numeric_ids(column: pd.Series[Any]) -> Int64s:
    """Process and thread ids as integers: HTA writes them into queries, where text is a variable's name."""
    categories = column.astype("category").cat
    ids = [int(c) if re.fullmatch(r"-?\d+", str(c)) else -2 - n for n, c in enumerate(categories.categories)]
    return np.array([*ids, -1], np.int64)[categories.codes.to_numpy()]


def _within(times: Int64s, starts: Int64s, ends: Int64s, values: Int64s) -> Int64s:
    """The value of the last interval [start, end) to start around each time, or :data:`NO_ITERATION`."""
    if not len(starts):
        return np.full(len(times), NO_ITERATION, np.int64)
    order = np.argsort(starts, kind="stable")
    starts, ends, values = starts[order], ends[order], values[order]
    at = np.searchsorted(starts, times, side="right") - 1
    inside = (at >= 0) & (times < ends[at])
    return np.where(inside, values[at], NO_ITERATION)


def _steps(events: pd.DataFrame, category: str) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Starts, ends, numbers and positions of the ``ProfilerStep#N`` rows of one category."""
    names = events[col.NAME].astype("category")
    marks = {str(c): _STEP_MARK.match(str(c)) for c in names.cat.categories}
    marked = names.isin([name for name, mark in marks.items() if mark]) & events[col.CATEGORY].eq(category)
    places = np.flatnonzero(marked.to_numpy())
    rows = events.iloc[places]
    numbers = np.array([int(m.group(1)) for n in rows[col.NAME] if (m := marks[str(n)])], np.int64)
    starts = rows[col.START_NS].to_numpy(dtype=np.int64)
    return starts, starts + rows[col.DUR_NS].to_numpy(dtype=np.int64), numbers, places.astype(np.int64)


def _event_iterations(events: pd.DataFrame) -> Int64s:
    """Step of each CPU row by time, of each GPU-side annotation by the CPU-side one it is the twin of.

    HTA looks both up by time in one list where the GPU-side twin of a step comes last and wins; with the CPU
    running ahead, that puts CPU rows of step N+1 into step N.
    """
    start = events[col.START_NS].to_numpy(dtype=np.int64)
    starts, ends, numbers, _ = _steps(events, "user_annotation")
    result = _within(start, starts, ends, numbers)
    category = events[col.CATEGORY]
    external = events[col.EXTERNAL_ID]
    gpu = category.eq("gpu_user_annotation").to_numpy()
    annotated = category.eq("user_annotation").to_numpy() & external.notna().to_numpy()
    step_of = pd.Series(result[annotated], index=external[annotated].to_numpy(dtype=np.int64))
    step_of = step_of[~step_of.index.duplicated()]
    twins = _ints(external[gpu], -1)
    result[gpu] = step_of.reindex(twins).fillna(NO_ITERATION).to_numpy(dtype=np.int64)
    *_, numbers, places = _steps(events, "gpu_user_annotation")
    result[places] = numbers
    return result


def analysable(events: pd.DataFrame) -> pd.DataFrame:
    """The events HTA keeps: all but the profiler's own span (category ``Trace``)."""
    return events[~events[col.CATEGORY].eq("Trace")].reset_index(drop=True)


def build_frame(
    activities: pd.DataFrame, events: pd.DataFrame, symbols: Symbols, origin_ns: int
) -> pd.DataFrame:
    """HTA's event frame of one rank, times in integer nanoseconds.

    Args:
        activities: rows of one rank, columns of :data:`~hta_dsv4.trace.activities.GPU_COLUMNS` and, when the
            CPU side was read, :data:`~hta_dsv4.trace.activities.LINK_COLUMNS`.
        events: rows of the same rank, :data:`~hta_dsv4.trace.activities.EVENT_COLUMNS`; may be empty.
            The profiler's own span (category ``Trace``) is no event to HTA; see :func:`analysable`.
        symbols: string -> id, shared by all ranks; new strings are added.
        origin_ns: subtracted from every start; the earliest start of all ranks.

    Returns:
        One row per event, in file order, row labels equal to ``index`` (position in traceEvents). Columns
        ``index, cat, name, pid, tid, stream, correlation, index_correlation, iteration,
        event_stream`` (the stream as the trace writes it), ``bytes, wait_on_stream,
        wait_on_cuda_event_record_corr_id`` int64; ``ts, dur, end`` int64 ns;
        ``memory_bw_gbps`` float64 GB/s, bytes over duration to a multiple of 2**-30, 0 where there is none.
        Other absent values are -1, as HTA has them.
        A GPU activity whose trace names no stream gets stream 0, for -1 would make it a CPU row. A CPU row
        never keeps a stream: the launch rows torch.compile writes (``stream: 0``) are no kernels.
    """
    index = activities[col.EVENT_INDEX].to_numpy(dtype=np.int64)
    correlation = _ints(activities[col.CORRELATION], NO_LINK)
    device = _ints(activities[col.DEVICE], 0)
    stream = _ints(activities[col.STREAM], 0)
    dur = activities[col.DUR_NS].to_numpy(dtype=np.int64)
    size = _ints(activities[col.BYTES], -1)
    moved = (size >= 0) & (dur > 0)
    bandwidth = np.where(moved, np.rint(size / np.maximum(dur, 1) * BANDWIDTH_STEP) / BANDWIDTH_STEP, 0.0)
    iterations = _event_iterations(events)
    event_index = events[col.EVENT_INDEX].to_numpy(dtype=np.int64)
    event_correlation = _ints(events[col.CORRELATION], NO_LINK)

    linked = np.full(len(index), NO_LINK, np.int64)
    if col.LAUNCH_INDEX in activities:
        linked = _ints(activities[col.LAUNCH_INDEX], NO_LINK)
    has_launch = linked >= 0
    steps = pd.Series(iterations, index=event_index)
    iteration = np.full(len(index), NO_ITERATION, np.int64)
    iteration[has_launch] = steps.reindex(linked[has_launch]).fillna(NO_ITERATION).to_numpy(dtype=np.int64)
    linked[~has_launch & (correlation > 0)] = LINK_ABSENT
    partner = pd.Series(index[has_launch], index=linked[has_launch]).groupby(level=0).max()
    event_linked = partner.reindex(event_index).astype("Int64")
    absent = np.where(event_correlation > 0, LINK_ABSENT, NO_LINK)
    event_link = event_linked.fillna(NO_LINK).to_numpy(dtype=np.int64)
    event_link = np.where(event_linked.notna().to_numpy(), event_link, absent)

    gpu_category = (
        activities[col.KIND].astype("category").cat.rename_categories(lambda k: CATEGORIES.get(k, k))
    )
    nothing = np.full(len(events), -1, np.int64)
    columns: dict[str, list[npt.NDArray[Any]]] = {
        "index": [index, event_index],
        "cat": [encode(gpu_category, symbols), encode(events[col.CATEGORY], symbols)],
        "name": [encode(activities[col.NAME], symbols), encode(events[col.NAME], symbols)],
        # Kineto gives an NVIDIA activity its device as process and its stream as thread.
        "pid": [device, _numeric_ids(events[col.PID])],
        "tid": [stream, _numeric_ids(events[col.TID])],
        "ts": [t[col.START_NS].to_numpy(dtype=np.int64) - origin_ns for t in (activities, events)],
        "dur": [dur, events[col.DUR_NS].to_numpy(dtype=np.int64)],
        "stream": [stream, nothing],
        "correlation": [correlation, event_correlation],
        "index_correlation": [linked, event_link],
        "iteration": [iteration, iterations],
        "event_stream": [stream, _ints(events[col.STREAM], CPU_STREAM)],
        "bytes": [size, nothing],
        "memory_bw_gbps": [bandwidth, np.zeros(len(events))],
    }
    frame = pd.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()})
    # Our event table does not carry what a stream waited on; the bridge says so where it matters.
    frame["wait_on_stream"] = frame["wait_on_cuda_event_record_corr_id"] = np.int64(-1)
    frame["end"] = frame["ts"] + frame["dur"]
    frame = frame.sort_values("index", kind="stable")
    return frame.set_axis(frame["index"].to_numpy(), axis=0)


def in_microseconds(frame: pd.DataFrame) -> pd.DataFrame:
    """The same frame with ``ts, dur, end`` in float64 microseconds, for HTA calls made by hand."""
    return frame.assign(**{name: frame[name] / 1000.0 for name in ("ts", "dur", "end")})
