"""Does the host keep the GPU waiting? Then a CUDA graph; where it does not, launching is to be left alone."""

from __future__ import annotations

from hta_dsv4.analysis.findings.finding import (
    ATTACK,
    LEAVE,
    MODELLED,
    WALL,
    Evidence,
    Finding,
    Recoverable,
    percent,
    said,
)
from hta_dsv4.analysis.findings.subject import Subject

RULE = "launch_bound"
WHOLE = 0.999
"""Part of the activities in graph launches from which a step is a graph: only time between replays is left."""
LITTLE = 0.05
"""A step that a graph would shorten by less than this part is not worth one."""


def launch_bound(s: Subject) -> list[Finding]:
    """At most one finding, to attack or to leave; none where the trace cannot tell causes of idle time."""
    idle = s.idle
    if idle is None or idle.graph is None or not idle.step_count:
        return []
    graph, n = idle.graph, idle.step_count
    host = idle.host_ns / n
    saved = _saved(s)
    evidence = [
        Evidence("wall time of a step, as recorded", graph.step_ns, "ns"),
        Evidence("of it waiting for the host", host, "ns"),
        Evidence("launch calls per step", (idle.launches or 0) / n, "launches"),
        Evidence("from call to call, median", idle.cadence_ns or 0.0, "ns"),
        Evidence("step as one CUDA graph", graph.graph_step_ns, "ns", MODELLED),
    ]
    if s.unprofiled_ns is not None:
        evidence.append(Evidence("step without the profiler (manifest)", s.unprofiled_ns, "ns"))
    wall = s.unprofiled_ns if s.unprofiled_ns is not None else graph.step_ns
    inside = float(s.in_graph.mean())
    one_graph = inside >= WHOLE and (idle.launches or 0) <= 2 * n
    if one_graph and saved.mid < LITTLE * wall:
        return [_one_graph(s, tuple(evidence), n)]
    if saved.mid < LITTLE * wall:
        return [
            Finding(
                RULE, LEAVE,
                f"launching: the GPU waits for the host in {percent(host, idle.wall_ns / n)} of the recorded wall "
                f"time; one graph would save {said(saved.mid)} of {said(wall)}"
                + ("" if s.unprofiled_ns is None else " without the profiler"),
                tuple(evidence), steps=n, saves=WALL, label=MODELLED, confidence=0.9,
                because="gaps are divided by cause to the nanosecond", check="hta-dsv4 idle TRACE",
                action="leave it", stop=f"a graph would save less than {100 * LITTLE:.0f} %",
            )
        ]  # fmt: skip
    known = s.unprofiled_ns is not None
    if one_graph:
        return [_between_replays(s, saved, tuple(evidence), n, wall)]
    evidence.append(Evidence("of the activities run in graph launches already", 100 * inside, "%"))
    return [
        Finding(
            RULE, ATTACK,
            f"bound by launching: {said(host)} of the recorded {said(graph.step_ns)} wall time the GPU waits for the "
            f"host; as one CUDA graph a step would take about {said(graph.graph_step_ns)}"
            + (f" instead of {said(wall)} without the profiler" if known else ""),
            tuple(evidence), steps=n, recoverable=saved, saves=WALL, label=MODELLED,
            confidence=0.85 if known else 0.4,
            because="the range is that of the unprofiled steps in the manifest; the graph keeps durations and overlaps"
            if known
            else "how much of the waiting is the profiler's own is not known: from nothing to all of it",
            check="hta-dsv4 whatif TRACE --graph; then time one step with and without a graph, without a profiler",
            action="most of the step runs in a graph already: take the rest into it (sampling, copies), or prepare the "
            "next step while this one runs"
            if inside > 0.5
            else "replay the step as one CUDA graph (static shapes, no synchronisation inside); where that cannot be, "
            "fewer launches: fuse what repeats most",
            stop=f"when the step without the profiler is within {100 * LITTLE:.0f} % of its GPU time",
            needs="" if known else "the time of a step without the profiler (a manifest, as hta-dsv4 capture writes)",
        )
    ]  # fmt: skip


def _one_graph(s: Subject, evidence: tuple[Evidence, ...], steps: int) -> Finding:
    """Nothing to win: a step is one graph, and takes hardly longer than its replay."""
    assert s.idle is not None
    assert s.idle.graph is not None
    replay = said(s.idle.graph.graph_step_ns)
    beside = "" if s.unprofiled_ns is None else f", the step without the profiler {said(s.unprofiled_ns)}"
    return Finding(
        RULE, LEAVE, f"launching: a step is one CUDA graph already; its replay takes {replay}{beside}", evidence,
        steps=steps, saves=WALL, label=MODELLED, confidence=0.9,
        because="every activity of a step is of one graph launch", check="hta-dsv4 idle TRACE", action="leave it",
        stop=f"the step is within {100 * LITTLE:.0f} % of its replay",
    )  # fmt: skip


def _between_replays(
    s: Subject, saved: Recoverable, evidence: tuple[Evidence, ...], steps: int, wall: float
) -> Finding:
    assert s.idle is not None
    assert s.idle.graph is not None
    inside = s.idle.graph.graph_step_ns
    known = s.unprofiled_ns is not None
    return Finding(
        RULE, ATTACK,
        f"between graph replays: a step takes {said(wall)}{' without the profiler' if known else ' as recorded'}, the "
        f"replay itself {said(inside)}",
        evidence, steps=steps, recoverable=saved, saves=WALL, label=MODELLED, confidence=0.6 if known else 0.3,
        because="the step is one graph already; a loop that waits for every step, as a capture's may, has this time, "
        "and a server that enqueues ahead has not" + ("" if known else "; the profiler's part of it is not known"),
        check="the step time over many replays enqueued on end, without waiting and without a profiler",
        action="enqueue the next replay before this one ends: sample on the GPU, copy results late, read nothing back",
        stop=f"when a step is within {100 * LITTLE:.0f} % of its replay",
        needs="" if known else "the time of a step without the profiler (a manifest, as hta-dsv4 capture writes)",
    )  # fmt: skip


def _saved(s: Subject) -> Recoverable:
    assert s.idle is not None
    assert s.idle.graph is not None
    after = s.idle.graph.graph_step_ns
    if s.unprofiled_ns is not None:
        low, high = (
            float(s.timing.get(f"unprofiled_{k}_ms", s.unprofiled_ns / 1e6)) * 1e6 for k in ("min", "max")
        )
        return Recoverable(*(max(t - after, 0.0) for t in (low, s.unprofiled_ns, high)))
    most = max(s.idle.graph.step_ns - after - s.idle.profiler_ns / s.idle.step_count, 0.0)
    return Recoverable(0.0, most / 2, most)
