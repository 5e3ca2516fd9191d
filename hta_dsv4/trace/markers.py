"""What a trace says about its own steps: engine annotations, ProfilerStep, graph launches -> one row per step.

Also holds the step table's columns and how an activity finds its step by the time it was launched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.labels import is_label, where_label
from hta_dsv4.trace.link import is_graph_launch
from hta_dsv4.trace.model import Trace

# columns of a step table, one row per step, in time order within a rank; the row label is the step's index
RANK, LABEL, START_NS, END_NS = col.RANK, "label", col.START_NS, "end_ns"
PHASE, BATCH, COUNTED = "phase", "batch", "counted"
DECODE, PREFILL, MIXED, UNKNOWN = "decode", "prefill", "mixed", "unknown"

Row = tuple[int, str, int, int, str, "int | None"]
"""rank, label, start_ns, end_ns, phase, batch."""

_PROFILER_STEP = re.compile(r"^ProfilerStep#\d+$")
_SGLANG = re.compile(r"^step\[(?P<mode>[A-Z_]+)(?:[^\]]*?\bbs=(?P<bs>\d+))?[^\]]*\]")
_VLLM = re.compile(
    r"^execute(?:_new)?_.*?context_(?P<context>\d+)(?:\([^)]*\))?_generation_(?P<generation>\d+)"
)
_INT64_MIN, _INT64_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_NO_MARKERS = "no step markers: neither engine annotations, ProfilerStep nor graph launches"


def step_table(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a step table, every step counted.

    Args:
        rows: in any order.

    Returns:
        The table, sorted by rank and start, with all columns of this module.
    """
    table = pd.DataFrame(list(rows), columns=[RANK, LABEL, START_NS, END_NS, PHASE, BATCH])
    table = table.astype(
        {RANK: "int32", START_NS: "int64", END_NS: "int64", BATCH: "Int64", LABEL: "str", PHASE: "str"}
    )
    table = table.sort_values([RANK, START_NS], kind="stable").reset_index(drop=True)
    table[COUNTED] = pd.Series(True, index=table.index, dtype=bool)
    return table


def counted(n: int, one: str, many: str = "") -> str:
    """``1 engine annotation``, ``11 engine annotations``."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def marker_phase(name: str) -> tuple[str, int | None]:
    """What an engine's step annotation says about itself.

    Args:
        name: the annotation, e.g. ``step[DECODE bs=16]`` or ``execute_16_context_0(...)_generation_16(...)``.

    Returns:
        The phase (decode | prefill | mixed | unknown) and the decode batch size, ``None`` where it is not said.
    """
    if found := _SGLANG.match(name):
        mode, batch = found["mode"], found["bs"]
        phase = {"DECODE": DECODE, "EXTEND": PREFILL, "PREFILL": PREFILL, "MIXED": MIXED}.get(mode, UNKNOWN)
        if mode == "TARGET_VERIFY":  # speculative decoding verifies drafts: one decode forward pass
            phase = DECODE
        return phase, int(batch) if batch else None
    if found := _VLLM.match(name):
        context, generation = int(found["context"]), int(found["generation"])
        if context and generation:
            return MIXED, generation
        if generation:
            return DECODE, generation
        return (PREFILL, None) if context else (UNKNOWN, None)
    return UNKNOWN, None


def is_step_marker(name: str) -> bool:
    """Whether an annotation marks a step: ``ProfilerStep#3``, or one of an engine's."""
    return any(pattern.match(name) for pattern in (_PROFILER_STEP, _SGLANG, _VLLM))


def engine_steps(trace: Trace) -> tuple[pd.DataFrame, str]:
    """Steps by the engine's annotations; one that lies inside another belongs to it.

    Args:
        trace: as read.

    Returns:
        The table (empty where there are none) and a sentence.
    """
    table, nested = _annotated(trace, lambda n: bool(_SGLANG.match(n) or _VLLM.match(n)))
    return table, counted(len(table), "engine annotation") + (f" ({nested} nested in them)" if nested else "")


def profiler_steps(trace: Trace) -> tuple[pd.DataFrame, str]:
    """Steps by the ``ProfilerStep#N`` annotations of a ``torch.profiler`` schedule; see :func:`engine_steps`."""
    table, _ = _annotated(trace, lambda n: bool(_PROFILER_STEP.match(n)))
    return table, counted(len(table), "ProfilerStep annotation")


def _annotated(trace: Trace, wanted: Callable[[str], bool]) -> tuple[pd.DataFrame, int]:
    """Steps from the outermost annotations that are wanted, and how many were nested in others."""
    events = trace.events
    if not len(events):
        return step_table([]), 0
    markers = events[
        is_label(events[col.CATEGORY], "user_annotation") & where_label(events[col.NAME], wanted)
    ]
    outer = _outermost(markers)
    columns = [outer[c] for c in (col.RANK, col.NAME, col.START_NS, col.DUR_NS)]
    rows: list[Row] = []
    for rank, name, start, dur in zip(*columns, strict=True):
        phase, batch = marker_phase(str(name))
        rows.append((int(rank), str(name), int(start), int(start + dur), phase, batch))
    return step_table(rows), len(markers) - len(outer)


def _outermost(markers: pd.DataFrame) -> pd.DataFrame:
    """Markers that no other marker of the same rank and process encloses."""
    keep: list[object] = []
    for _, group in markers.groupby([col.RANK, col.PID], observed=True, sort=False):
        order = group.sort_values([col.START_NS, col.DUR_NS], ascending=[True, False], kind="stable")
        open_until = _INT64_MIN  # times before 0 are times too
        for label, start, dur in zip(order.index, order[col.START_NS], order[col.DUR_NS], strict=True):
            if start + dur > open_until:
                keep.append(label)
                open_until = start + dur
    return markers.loc[markers.index.isin(keep)]


def graph_steps(trace: Trace) -> tuple[pd.DataFrame, str]:
    """One step per graph launch, where all replays run the same kernels.

    Args:
        trace: as read.

    Returns:
        The table (empty where launches are not steps) and a sentence that says why.
    """
    acts = trace.activities
    if col.LAUNCH_NAME not in acts or not len(acts):
        return step_table([]), _NO_MARKERS
    replayed = acts[where_label(acts[col.LAUNCH_NAME], is_graph_launch)]
    if not len(replayed):
        return step_table([]), _NO_MARKERS
    kernels = int((acts[col.KIND] == col.KERNEL).sum())
    if 2 * len(replayed) < kernels:
        return step_table(
            []
        ), f"graph launches run only {len(replayed)} of {kernels} kernels, so a launch is not a step"
    rank = replayed[col.RANK].to_numpy().astype(np.int64)
    launch = replayed[col.LAUNCH_START_NS].to_numpy(dtype=np.int64, na_value=-1)
    order = np.lexsort((np.arange(len(replayed)), launch, rank))
    rank, launch = rank[order], launch[order]
    code = replayed[col.NAME].cat.codes.to_numpy()[order]
    first = np.flatnonzero(np.r_[True, (rank[1:] != rank[:-1]) | (launch[1:] != launch[:-1])])
    sequences = {s.tobytes() for s in np.split(code, first[1:])}
    if len(sequences) > 1:
        return step_table([]), (
            f"{len(first)} graph launches replay {len(sequences)} different kernel sequences, "
            "so a launch is not a step and the trace has no other marker"
        )
    ranks, starts = rank[first], launch[first]
    # Sampling and copies launched after a replay belong to it, up to the next replay.
    ends = np.r_[np.where(ranks[1:] == ranks[:-1], starts[1:], _INT64_MAX), _INT64_MAX]
    rows: list[Row] = [
        (int(r), f"graph launch {i}", int(a), int(b), UNKNOWN, None)
        for i, (r, a, b) in enumerate(zip(ranks, starts, ends, strict=True))
    ]
    return step_table(rows), counted(len(first), "graph launch", "graph launches") + " of one kernel sequence"


def place_by_launch(trace: Trace, table: pd.DataFrame) -> NDArray[np.int32]:
    """The step in which each activity was launched.

    Activities without a launch fall back on the GPU-side twin of the marker.

    Args:
        trace: as read.
        table: a step table whose times are of the CPU side.

    Returns:
        int32, one per activity: the row label of its step, or -1 outside every step.
    """
    acts = trace.activities
    step = np.full(len(acts), -1, dtype=np.int32)
    if not len(table) or not len(acts):
        return step
    if col.LAUNCH_START_NS in acts:
        linked = acts[col.LAUNCH_START_NS].notna().to_numpy()
        at = acts[col.LAUNCH_START_NS].to_numpy(dtype=np.int64, na_value=0)
    else:
        linked, at = np.zeros(len(acts), dtype=bool), np.zeros(len(acts), dtype=np.int64)
    ranks = acts[col.RANK].to_numpy()
    for rank, rows in table.groupby(RANK):
        mine = linked & (ranks == rank)
        step[mine] = inside(at[mine], rows)
    _place_unlinked(trace, table, ~linked, step)
    return step


def place_by_start(trace: Trace, table: pd.DataFrame) -> NDArray[np.int32]:
    """The step in whose time each activity started; for traces in which nothing links the GPU to the CPU.

    A step's time reaches to the next marker, since kernels run after their own marker has closed; the last one's as
    far as the median step's.

    Args:
        trace: as read.
        table: a step table whose times are of the CPU side.

    Returns:
        int32, one per activity: the row label of its step, or -1.
    """
    acts = trace.activities
    step = np.full(len(acts), -1, dtype=np.int32)
    ranks = acts[col.RANK].to_numpy()
    for rank, rows in table.groupby(RANK):
        starts, ends = rows[START_NS].to_numpy(), rows[END_NS].to_numpy()
        apart = int(np.median(np.diff(starts))) if len(starts) > 1 else 0
        until = np.r_[starts[1:], max(int(ends[-1]), int(starts[-1]) + apart)]
        mine = ranks == rank
        step[mine] = inside(acts[col.START_NS].to_numpy()[mine], rows.assign(**{END_NS: until}))
    return step


def inside(at: NDArray[np.int64], rows: pd.DataFrame) -> NDArray[np.int32]:
    """The step whose [start, end) holds each time (int64 ns), or -1."""
    starts, ends = rows[START_NS].to_numpy(), rows[END_NS].to_numpy()
    place = np.searchsorted(starts, at, side="right") - 1
    found = (place >= 0) & (at < ends[np.maximum(place, 0)])
    return np.where(found, rows.index.to_numpy()[np.maximum(place, 0)], -1).astype(np.int32)


def _place_unlinked(
    trace: Trace, table: pd.DataFrame, unlinked: NDArray[np.bool_], step: NDArray[np.int32]
) -> None:
    """Place activities without a launch by the GPU-side twins of the markers, where there is one per step."""
    events = trace.events
    if not unlinked.any() or not len(events):
        return
    twins = events[(events[col.CATEGORY] == "gpu_user_annotation") & events[col.NAME].isin(set(table[LABEL]))]
    acts = trace.activities
    for rank, rows in table.groupby(RANK):
        here = twins[twins[col.RANK] == rank].sort_values(col.START_NS, kind="stable")
        if here[col.NAME].astype(str).tolist() != rows[LABEL].tolist():
            continue  # not one twin per step in the same order: no certain mapping, leave them outside
        spans = pd.DataFrame(
            {
                START_NS: here[col.START_NS].to_numpy(),
                END_NS: (here[col.START_NS] + here[col.DUR_NS]).to_numpy(),
            },
            index=rows.index,
        )
        mine = unlinked & (acts[col.RANK].to_numpy() == rank)
        step[mine] = inside(acts[col.START_NS].to_numpy()[mine], spans)
