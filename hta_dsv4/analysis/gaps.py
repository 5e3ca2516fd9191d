"""What the GPU waited for: every gap between activities of a device, divided by cause to the nanosecond.

A gap opens when nothing runs on the device and closes when the next activity starts. That activity's launch call, on
the host, divides the gap:

* **host late**: until the call began. The host was elsewhere: Python, another launch, the profiler;
* **after a wait**: the same, where the host was inside a synchronising call (or a blocking copy) when the GPU ran dry:
  it waited for the GPU, so the queue was empty when it went on;
* **in the launch call**: while the call ran;
* **start latency**: from the call's return to the start of the activity.

Where the call had returned before the gap opened, the activity was queued and the gap is the GPU's:

* **inside a graph**: between two activities of one graph launch;
* **queued, same stream**: after an activity of its own stream: the turnaround between kernels;
* **queued, other stream**: after an activity of another stream: it waited for that stream, or for an event.

**unknown** is what has no launch in the trace. Nothing is said of causes where activities start before their launch
did: then the clocks of host and GPU do not agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.analysis.window import Span, Window
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.labels import where_label
from hta_dsv4.trace.link import is_graph_launch, is_launch_category

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LATE, WAITED, CALL, START = "host late", "after a wait", "in the launch call", "start latency"
GRAPH, SAME_STREAM, OTHER_STREAM = "inside a graph", "queued, same stream", "queued, other stream"
UNKNOWN = "unknown"
CAUSES = (LATE, WAITED, CALL, START, GRAPH, SAME_STREAM, OTHER_STREAM, UNKNOWN)
HOST = (LATE, WAITED, CALL, START)
"""Causes that lie on the host's side: the GPU had nothing queued when it ran dry."""

EARLY = 0.01
"""More launched activities than this that start before their launch call began: the clocks do not agree."""
_OF_LAUNCH = (col.LAUNCH_NAME, col.LAUNCH_START_NS, col.LAUNCH_DUR_NS, col.LAUNCH_INDEX)

# columns of gaps(): one row per gap, beside one per cause (int64 ns; they add up to the gap)
BEGIN_NS, GAP_NS = "begin_ns", "gap_ns"  # int64
BEFORE, NEXT = (
    "before",
    "next",
)  # int64: rows of the window's activities: the one that reached furthest, and the next
BETWEEN = "between"  # bool: it lies between two steps, in no step's wall
PROFILER_NS = "profiler_ns"  # int64: part of host late or after a wait that the profiler's own work overlaps


@dataclass(frozen=True)
class Gaps:
    """The gaps of a window.

    Attributes:
        table: one row per gap, in time order per device; columns as documented in this module.
        wall_ns, busy_ns: of each device over each run, added, with what lies between the steps; gaps add up to their
            difference.
        reason: why causes are unknown throughout; ``""`` where they are not.
    """

    table: pd.DataFrame
    wall_ns: int
    busy_ns: int
    reason: str = ""

    @property
    def idle_ns(self) -> int:
        """Wall minus busy: the sum of the gaps."""
        return self.wall_ns - self.busy_ns


def gaps(part: Window, events: pd.DataFrame) -> Gaps:
    """Find every gap of a window and divide it by cause.

    Args:
        part: the counted steps, launches joined where the trace has them.
        events: event table of the same trace.

    Returns:
        The gaps.
    """
    found = [_of_span(s) for s in part.spans()]
    begin, end, before, after, _ = (
        np.concatenate([f[i] for f in found]) if found else np.zeros(0, dtype=np.int64) for i in range(5)
    )
    between = [part.between_steps(s, f[4]) for s, f in zip(part.spans(), found, strict=True)]
    wall = sum(s.wall_ns for s in part.spans())
    mine = events[events[col.RANK] == part.rank] if len(events) else events
    reason = _unusable(part.activities)
    parts = _causes(part.activities, begin, end, before, after, _waits(mine), bool(reason))
    table = pd.DataFrame({BEGIN_NS: begin, GAP_NS: end - begin, BEFORE: before, NEXT: after, **parts})
    table[BETWEEN] = np.concatenate(between) if between else np.zeros(0, dtype=bool)
    host = np.minimum(end, begin + parts[LATE] + parts[WAITED])
    table[PROFILER_NS] = overlap_ns(
        begin, host, named_intervals(mine, lambda c: c == "overhead", lambda n: True)
    )
    return Gaps(table, wall, wall - int((end - begin).sum()), reason)


def _of_span(span: Span) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Begin and end of each gap of one device, the row that reached furthest before it, the row and place after it."""
    reach = np.maximum.accumulate(span.end)
    furthest = np.maximum.accumulate(np.where(span.end == reach, np.arange(len(reach)), 0))
    at = np.flatnonzero(span.start[1:] > reach[:-1]) + 1
    return reach[at - 1], span.start[at], span.rows[furthest[at - 1]], span.rows[at], at


def _unusable(acts: pd.DataFrame) -> str:
    if any(c not in acts for c in _OF_LAUNCH) or not acts[col.LAUNCH_START_NS].notna().any():
        return "no activity has its launch in the trace, so no cause of idle time; record with ProfilerActivity.CPU"
    launched = acts[col.LAUNCH_START_NS].notna().to_numpy()
    early = acts[col.START_NS].to_numpy()[launched] < acts[col.LAUNCH_START_NS][launched].to_numpy(
        dtype=np.int64
    )
    if early.mean() > EARLY:
        return (
            f"{100 * early.mean():.1f} % of the activities start before their launch call began: the clocks of host "
            "and GPU do not agree in this trace, so no cause of idle time can be told from it"
        )
    return ""


def _causes(
    acts: pd.DataFrame,
    begin: Ints,
    end: Ints,
    before: Ints,
    after: Ints,
    waits: tuple[Ints, Ints],
    unusable: bool,
) -> dict[str, Ints]:
    """Nanoseconds of each gap per cause."""
    out = {c: np.zeros(len(begin), dtype=np.int64) for c in CAUSES}
    if unusable or not len(begin):
        out[UNKNOWN] = end - begin
        return out
    call = acts[col.LAUNCH_START_NS].to_numpy(dtype=np.int64, na_value=-1)[after]
    done = call + acts[col.LAUNCH_DUR_NS].to_numpy(dtype=np.int64, na_value=0)[after]
    launch = acts[col.LAUNCH_INDEX].to_numpy(dtype=np.int64, na_value=-1)
    known = acts[col.LAUNCH_START_NS].notna().to_numpy()[after]
    replayed = where_label(acts[col.LAUNCH_NAME], is_graph_launch)
    in_graph = known & (launch[after] == launch[before]) & replayed[after]
    # Earlier in the gap than the call began, during it, after it: clipped to the gap, these add up to it.
    to_call, to_done = np.clip(call, begin, end), np.clip(done, begin, end)
    host = known & ~in_graph & (done > begin)
    waited = host & _inside(begin, waits)
    out[LATE] = np.where(host & ~waited, to_call - begin, 0)
    out[WAITED] = np.where(waited, to_call - begin, 0)
    out[CALL] = np.where(host, to_done - to_call, 0)
    out[START] = np.where(host, end - to_done, 0)
    stream = acts[col.STREAM].to_numpy(dtype=np.int64, na_value=-1)
    same = stream[after] == stream[before]
    queued = known & ~in_graph & ~host
    for cause, mask in (
        (GRAPH, in_graph), (SAME_STREAM, queued & same), (OTHER_STREAM, queued & ~same), (UNKNOWN, ~known)
    ):  # fmt: skip
        out[cause] = np.where(mask, end - begin, 0)
    return out


def _waits(events: pd.DataFrame) -> tuple[Ints, Ints]:
    """Calls in which the host may wait for the GPU: synchronisations, and copies that block."""
    return named_intervals(events, is_launch_category, waits_for_gpu)


def waits_for_gpu(call: str) -> bool:
    """Whether the host may wait for the GPU in a call of this name."""
    return "ynchronize" in call or "emcpy" in call


def named_intervals(
    events: pd.DataFrame, category: Callable[[str], object], name: Callable[[str], object]
) -> tuple[Ints, Ints]:
    """Start and end of the events of wanted categories and names.

    Args:
        events: event table.
        category: which categories, asked once per label.
        name: which names, likewise.

    Returns:
        int64 [m] twice, ns, by start.
    """
    if not len(events):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    keep = where_label(events[col.CATEGORY], category) & where_label(events[col.NAME], name)
    start = events[col.START_NS].to_numpy()[keep]
    end = start + events[col.DUR_NS].to_numpy()[keep].clip(min=0)
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def _inside(at: Ints, intervals: tuple[Ints, Ints]) -> Mask:
    """Whether each time lies in one of the intervals (their end excluded)."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(at), dtype=bool)
    index = np.searchsorted(start, at, side="right") - 1
    reach = np.maximum.accumulate(end)
    return (index >= 0) & (reach[np.maximum(index, 0)] > at)


def overlap_ns(begin: Ints, end: Ints, intervals: tuple[Ints, Ints]) -> Ints:
    """How much of each ``[begin, end)`` the union of intervals covers.

    Args:
        begin: int64 [n], ns.
        end: int64 [n], ns.
        intervals: start and end of each, int64 [m], by start.

    Returns:
        int64 [n], ns.
    """
    start, stop = intervals
    if not len(start):
        return np.zeros(len(begin), dtype=np.int64)
    reach = np.maximum.accumulate(np.append(start[0], stop[:-1]))
    opened, closed = (
        np.maximum(start, reach),
        np.maximum(stop, reach),
    )  # disjoint pieces of the union, in order
    whole = np.append(0, (closed - opened).cumsum())

    def before(t: Ints) -> Ints:
        index = np.searchsorted(opened, t, side="right") - 1
        at = np.maximum(index, 0)
        inside = np.minimum(t, closed[at]) - opened[at]
        return np.where(index < 0, 0, whole[at] + np.maximum(inside, 0))

    return before(end) - before(begin)
