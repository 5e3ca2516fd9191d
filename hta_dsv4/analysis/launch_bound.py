"""Does the host keep the GPU waiting? Idle time by cause, the cost of launching, short kernels, and what a graph saves.

Wall and idle time are those of the steps, each from its first start to its last end, as in every table; what lies
between two steps is a time of its own. Everything is exact but the graph's gain, which is modelled: a step that ran as
one CUDA graph would keep the durations and overlaps of its activities, and each gap inside a step that was the host's,
or the turnaround between two kernels of a stream, would shrink to the gap between two nodes of a graph. Gaps between
two steps, after the host waited for the GPU, or across streams stay. The gap between nodes is the trace's own mean
where it has graph launches (over all neighbouring nodes, also those that overlap), else :data:`NODE_GAP_NS`.

Profiling slows every launch, so an idle time that is the host's is an upper bound; where the time of an unprofiled step
is known, it stands beside. The step projected for a graph does not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.analysis.between import host_between_ns
from hta_dsv4.analysis.counted import BETWEEN as APART
from hta_dsv4.analysis.counted import BUSY, IDLE, WALL
from hta_dsv4.analysis.counted import GAPS as FOLLOWED
from hta_dsv4.analysis.gaps import (
    BEFORE,
    BETWEEN,
    CAUSES,
    GAP_NS,
    GRAPH,
    HOST,
    LATE,
    NEXT,
    PROFILER_NS,
    SAME_STREAM,
    START,
    WAITED,
    Gaps,
    gaps,
)
from hta_dsv4.analysis.gaps import CALL as CALL_CAUSE
from hta_dsv4.analysis.shares import KEYS, parse_by
from hta_dsv4.analysis.window import Window
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.labels import where_label
from hta_dsv4.trace.link import is_graph_launch

NODE_GAP_NS = 440
"""Mean gap between neighbouring kernels of a graph replay, ns; measured on an H200 (shipped trace ``cuda_graph``)."""
FEW_NODES = 100
"""Below this many pairs of neighbouring nodes, a trace's own mean says too little."""
SHORT_NS = 3000
"""Kernels below this are short: eager launching alone costs more on most hosts."""
HELPED = 0.05
"""A step that a graph would shorten by more than this part is one that it would help."""
LAUNCH_BOUND = 0.25
"""A wall time of which the host's gaps take more than this part is bound by launching."""

# columns of IdleTime.by_next, beside one per key: what came next when the GPU had run dry
GAPS, IDLE_NS, HOST_NS = "gaps", "idle_ns", "host_ns"
# columns of IdleTime.calls: launch calls by name
CALL, CALLS, CALL_NS = "call", "calls", "call_ns"
# columns of IdleTime.steps: one row per counted step; ns
LAUNCHES, RECOVERABLE_NS = "launches", "recoverable_ns"


@dataclass(frozen=True, slots=True)
class ShortKernels:
    """Kernels shorter than a limit.

    Attributes:
        limit_ns: the limit.
        launches, time_ns: how many, and their summed durations.
        all_launches, all_time_ns: the same of all kernels.
    """

    limit_ns: int
    launches: int
    time_ns: int
    all_launches: int
    all_time_ns: int


@dataclass(frozen=True, slots=True)
class GraphGain:
    """What running each step as one CUDA graph would save; modelled.

    Attributes:
        node_gap_ns: gap between two nodes that the model uses.
        node_gap_from: where that figure is from.
        replays: graph launches that the counted steps have already.
        recoverable_ns: time saved over all counted steps.
        helped: steps that it would shorten by more than :data:`HELPED`.
        step_ns: mean wall time of a step now (as profiled), and
        graph_step_ns: as one graph.
        period_ns: mean time from a step's start to the next one's, as profiled: what a user waits for a token.
        host_between_ns: part of what lies between two steps that is the host's own (:mod:`.between`), the median over
            the steps that follow another; 0 where none does. A graph of the step does not win it.
    """

    node_gap_ns: float
    node_gap_from: str
    replays: int
    recoverable_ns: float
    helped: int
    step_ns: float
    graph_step_ns: float
    period_ns: float
    host_between_ns: float

    @property
    def paced_ns(self) -> float:
        """A step and the host's part of what lies between two: the period of steps that wait for nothing else."""
        return self.step_ns + self.host_between_ns


@dataclass(frozen=True)
class IdleTime:
    """Idle time and launching of one variant; times over its counted steps, ns, without what lies between them.

    Attributes:
        label: the variant's name.
        by: what a row of ``by_next`` is.
        rank: rank that stands for the variant.
        step_count: counted steps; 0 where there are none, then figures are of the whole trace.
        wall_ns, busy_ns: of each device, added; of each step its own first start to its own last end.
        causes: cause -> idle time, one per :data:`~hta_dsv4.analysis.gaps.CAUSES`; they add up to the idle time.
        gap_count: number of gaps.
        between_steps_ns: from a step's last end to the next one's first start in the same run, added: nobody's idle
            time, and in none of the others.
        between_causes: cause -> that time, as ``causes``; ``between_count`` how many such gaps.
        profiler_ns: part of the host's gaps that lies in the profiler's own work (buffers requested and flushed).
        by_next: idle time by what came next, most first.
        calls: launch calls by name: how many, and their summed durations on the host.
        launches: launch calls that caused activities; ``None`` where the trace has none.
        cadence_ns: median time from one launch call's start to the next; ``None`` without.
        steps: one row per counted step: ``wall, busy, idle`` (of the step), ``launches``, ``call_ns``, ``host_ns``,
            ``recoverable_ns`` (Float64, modelled; NA where ``graph`` is ``None``).
        short: kernels below :data:`SHORT_NS`.
        graph: what a CUDA graph would save; ``None`` without steps or launches.
        unprofiled_step_ns: time of a step without the profiler, where the caller knows it.
        reason: why causes are unknown; ``""`` where they are not.
        notes: what callers want said beside it.
    """

    label: str
    by: tuple[str, ...]
    rank: int
    step_count: int
    wall_ns: int
    busy_ns: int
    causes: dict[str, int]
    gap_count: int
    between_steps_ns: int
    between_causes: dict[str, int]
    between_count: int
    profiler_ns: int
    by_next: pd.DataFrame
    calls: pd.DataFrame
    launches: int | None
    cadence_ns: float | None
    steps: pd.DataFrame
    short: ShortKernels
    graph: GraphGain | None
    unprofiled_step_ns: float | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def idle_ns(self) -> int:
        """Wall minus busy."""
        return self.wall_ns - self.busy_ns

    @property
    def host_ns(self) -> int:
        """Idle time on the host's side: nothing was queued when the GPU ran dry."""
        return sum(self.causes[c] for c in HOST)

    @property
    def launch_bound(self) -> bool:
        """Whether the host's gaps take more than :data:`LAUNCH_BOUND` of the wall time."""
        return self.host_ns > LAUNCH_BOUND * self.wall_ns


def idle_time(
    label: str, part: Window, events: pd.DataFrame, by: str | Sequence[str] = "bucket", *,
    unprofiled_step_ns: float | None = None, notes: Sequence[str] = (),
) -> IdleTime:  # fmt: skip
    """Idle time by cause, launching, short kernels and what a graph would save.

    Args:
        label: the variant's name.
        part: the counted steps.
        events: event table of the same trace.
        by: what a row of ``by_next`` is.
        unprofiled_step_ns: time of a step without the profiler, where known.
        notes: what callers want said beside it.

    Returns:
        The result; where the trace cannot tell causes, they are unknown and the reason stands in it.

    Raises:
        HtaDsv4Error: unknown ``by``.
    """
    keys = parse_by(by)
    every = gaps(part, events)
    between = every.table[BETWEEN].to_numpy(dtype=bool)
    apart = every.table[between]
    between_ns = int(apart[GAP_NS].sum())
    inside = every.table[~between].reset_index(drop=True)
    found = replace(every, table=inside, wall_ns=every.wall_ns - between_ns)
    launches = _launches(part)
    steps = _steps(part, found, launches)
    graph = None
    if part.steps and not found.reason:
        graph = _graph(part, found, steps, host_between_ns(part, every, events))
    starts = np.zeros(0, dtype=np.int64)
    if launches is not None:
        starts = np.sort(launches[col.LAUNCH_START_NS].to_numpy(dtype=np.int64))
    return IdleTime(
        label=label, by=keys, rank=part.rank, step_count=part.steps, wall_ns=found.wall_ns, busy_ns=found.busy_ns,
        causes={c: int(found.table[c].sum()) for c in CAUSES}, gap_count=len(found.table),
        between_steps_ns=between_ns, between_causes={c: int(apart[c].sum()) for c in CAUSES}, between_count=len(apart),
        profiler_ns=int(found.table[PROFILER_NS].sum()), by_next=_by_next(part, found, keys), calls=_calls(launches),
        launches=None if launches is None else len(launches),
        cadence_ns=float(np.median(np.diff(starts))) if len(starts) > 1 else None,
        steps=steps, short=_short(part), graph=graph, unprofiled_step_ns=unprofiled_step_ns, reason=found.reason,
        notes=tuple(notes),
    )  # fmt: skip


def _launches(part: Window) -> pd.DataFrame | None:
    """One row per launch call, with the step of its first activity; ``None`` where the trace has none."""
    acts = part.activities
    if col.LAUNCH_INDEX not in acts or not acts[col.LAUNCH_INDEX].notna().any():
        return None
    columns = [col.LAUNCH_INDEX, col.LAUNCH_NAME, col.LAUNCH_START_NS, col.LAUNCH_DUR_NS]
    table = acts[columns].assign(**{col.STEP: part.step})
    return table[table[col.LAUNCH_INDEX].notna()].drop_duplicates(col.LAUNCH_INDEX)


def _calls(launches: pd.DataFrame | None) -> pd.DataFrame:
    if launches is None:
        return pd.DataFrame(
            {CALL: pd.Series(dtype="str"), CALLS: np.zeros(0, int), CALL_NS: np.zeros(0, int)}
        )
    grouped = launches.groupby(launches[col.LAUNCH_NAME].astype(str))[col.LAUNCH_DUR_NS].agg(["size", "sum"])
    table = grouped.reset_index()
    table.columns = pd.Index([CALL, CALLS, CALL_NS])
    table = table.astype({CALL_NS: "int64"}).sort_values([CALL_NS, CALL], ascending=[False, True])
    return table.reset_index(drop=True)


def _by_next(part: Window, found: Gaps, keys: tuple[str, ...]) -> pd.DataFrame:
    ahead = found.table[NEXT].to_numpy()
    table = pd.DataFrame({k: part.activities[KEYS[k]].astype(str).to_numpy()[ahead] for k in keys})
    table[IDLE_NS] = found.table[GAP_NS]
    table[HOST_NS] = found.table[list(HOST)].sum(axis=1).astype("int64")
    grouped = table.groupby(list(keys), sort=False)
    out = grouped[[IDLE_NS, HOST_NS]].sum()
    out[GAPS] = grouped.size()
    out = out.reset_index().sort_values([IDLE_NS, *keys], ascending=[False] + [True] * len(keys))
    return out[[*keys, GAPS, IDLE_NS, HOST_NS]].reset_index(drop=True)


def _steps(part: Window, found: Gaps, launches: pd.DataFrame | None) -> pd.DataFrame:
    """Per step: its times, launches, and the host's gaps that end in front of one of its activities."""
    n = part.steps
    table = (
        part.step_times()[[WALL, BUSY, IDLE]]
        if n
        else pd.DataFrame({WALL: [], BUSY: [], IDLE: []}, dtype="int64")
    )
    count, called, host = (np.zeros(n, dtype=np.int64) for _ in range(3))
    if n and launches is not None:
        at = launches[col.STEP].to_numpy()
        np.add.at(count, at, 1)
        np.add.at(called, at, launches[col.LAUNCH_DUR_NS].to_numpy(dtype=np.int64, na_value=0))
    if n and len(found.table):
        at = part.step[found.table[NEXT].to_numpy()]
        np.add.at(host, at, found.table[list(HOST)].sum(axis=1).to_numpy(dtype=np.int64))
    table[LAUNCHES], table[CALL_NS], table[HOST_NS] = count, called, host
    table[RECOVERABLE_NS] = pd.array([pd.NA] * n, dtype="Float64")
    return table


def _within_step(part: Window, found: Gaps) -> npt.NDArray[np.bool_]:
    """Whether the activities on both sides of each gap belong to one step."""
    same: npt.NDArray[np.bool_] = (
        part.step[found.table[BEFORE].to_numpy()] == part.step[found.table[NEXT].to_numpy()]
    )
    return same


def _graph(part: Window, found: Gaps, steps: pd.DataFrame, between: npt.NDArray[np.int64]) -> GraphGain:
    table = found.table
    gap, source, replays = _node_gap(part, int(table[GRAPH].sum()))
    within = _within_step(part, found) & (table[WAITED] == 0).to_numpy()
    host = table[[LATE, CALL_CAUSE, START, SAME_STREAM]].sum(axis=1).to_numpy(dtype=float)
    saved = np.where(within, np.maximum(host - gap, 0), 0)
    of_step = np.zeros(part.steps)
    np.add.at(of_step, part.step[table[NEXT].to_numpy()], saved)
    steps[RECOVERABLE_NS] = pd.array(of_step, dtype="Float64")
    wall = steps[WALL].to_numpy(dtype=float)
    helped = int((of_step > HELPED * wall).sum())
    mean = float(wall.mean())
    times = part.step_times()
    follows = times[FOLLOWED] > 0
    period = float((times[WALL] + times[APART])[follows].mean()) if follows.any() else mean
    return GraphGain(
        gap, source, replays, float(saved.sum()), helped, mean, mean - float(of_step.mean()), period,
        float(np.median(between)) if len(between) else 0.0,
    )  # fmt: skip


def _node_gap(part: Window, inside_ns: int) -> tuple[float, str, int]:
    """Mean gap between neighbouring nodes of a graph, where it is from, and the number of graph launches."""
    acts = part.activities
    nodes = where_label(acts[col.LAUNCH_NAME], is_graph_launch)
    replays = int(acts[col.LAUNCH_INDEX][nodes].nunique())
    pairs = int(nodes.sum()) - replays
    if pairs < FEW_NODES:
        return float(NODE_GAP_NS), "measured on an H200, not in this trace", replays
    return inside_ns / pairs, "mean in this trace's graph launches", replays


def _short(part: Window) -> ShortKernels:
    dur = part.activities[col.DUR_NS].to_numpy()[(part.activities[col.KIND] == col.KERNEL).to_numpy()]
    below = dur < SHORT_NS
    return ShortKernels(SHORT_NS, int(below.sum()), int(dur[below].sum()), len(dur), int(dur.sum()))
