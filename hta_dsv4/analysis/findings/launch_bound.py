"""Does the host keep the GPU waiting? Within a step that asks for a CUDA graph, between two for enqueueing ahead.

Where it does neither, launching is to be left alone.
"""

from __future__ import annotations

from hta_dsv4.analysis.findings.finding import (
    ATTACK,
    LEAVE,
    MODELLED,
    WALL,
    Evidence,
    Finding,
    Recoverable,
    about,
    percent,
    said,
)
from hta_dsv4.analysis.findings.subject import Subject

RULE = "launch_bound"
WHOLE = 0.999
"""Part of the activities in graph launches from which a step is a graph: only time between replays is left."""
LITTLE = 0.05
"""A step that would be shorter by less than this part without the host's lateness is to be left alone."""
_TIMED = "the time of a step without the profiler (a manifest, as hta-dsv4 capture writes)"


def launch_bound(s: Subject) -> list[Finding]:
    """What is to be won from the host, or that nothing is; none where the trace cannot tell causes of idle time.

    A step without the profiler holds all that a user waits for. Where none is known, gaps within a step and what the
    host takes between two are told apart, as they ask for different things.
    """
    idle = s.idle
    if idle is None or idle.graph is None or not idle.step_count:
        return []
    evidence, one_graph = _evidence(s), _is_one_graph(s)
    within = _within(s)
    between = _between(s, within if one_graph else None)
    found = []
    if within.mid >= LITTLE * s.step_ns and not one_graph:
        found.append(_late(s, within, evidence))
    if between.mid >= LITTLE * s.step_ns:
        found.append(_between_steps(s, between, evidence, one_graph))
    if found:
        return found
    return [_one_graph(s, evidence) if one_graph else _in_time(s, within, evidence)]


def _is_one_graph(s: Subject) -> bool:
    """Whether each step is one graph launch, or all but that and another call."""
    assert s.idle is not None
    return float(s.in_graph.mean()) >= WHOLE and (s.idle.launches or 0) <= 2 * s.idle.step_count


def _evidence(s: Subject) -> tuple[Evidence, ...]:
    assert s.idle is not None
    assert s.idle.graph is not None
    idle, graph, n = s.idle, s.idle.graph, s.idle.step_count
    evidence = [
        Evidence("wall time of a step, as recorded", graph.step_ns, "ns"),
        Evidence("of it waiting for the host", idle.host_ns / n, "ns"),
        Evidence("launch calls per step", (idle.launches or 0) / n, "launches"),
        Evidence("from call to call, median", idle.cadence_ns or 0.0, "ns"),
        Evidence("step as one CUDA graph", graph.graph_step_ns, "ns", MODELLED),
    ]
    if s.unprofiled_ns is not None:
        evidence.append(Evidence("step without the profiler (manifest)", s.unprofiled_ns, "ns"))
    elif idle.between_count:
        evidence += [
            Evidence("from a step's start to the next one's, as recorded", graph.period_ns, "ns"),
            Evidence("of it the host's own between two steps, median", graph.host_between_ns, "ns"),
        ]
    return tuple(evidence)


def _late(s: Subject, saved: Recoverable, evidence: tuple[Evidence, ...]) -> Finding:
    """The GPU waits for launches within a step."""
    assert s.idle is not None
    assert s.idle.graph is not None
    graph, known, inside = s.idle.graph, s.unprofiled_ns is not None, float(s.in_graph.mean())
    wall = s.unprofiled_ns if s.unprofiled_ns is not None else graph.step_ns
    return Finding(
        RULE, ATTACK,
        f"bound by launching: {said(s.idle.host_ns / s.steps)} of the recorded {said(graph.step_ns)} wall time the GPU "
        f"waits for the host; as one CUDA graph a step would take about {about(graph.graph_step_ns)}"
        + (f" instead of {said(wall)} without the profiler" if known else ""),
        (*evidence, Evidence("of the activities run in graph launches already", 100 * inside, "%")),
        steps=s.idle.step_count, recoverable=saved, saves=WALL, label=MODELLED,
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
        needs="" if known else _TIMED,
    )  # fmt: skip


def _in_time(s: Subject, saved: Recoverable, evidence: tuple[Evidence, ...]) -> Finding:
    """Nothing to win from the host."""
    assert s.idle is not None
    assert s.idle.graph is not None
    known = s.unprofiled_ns is not None
    wall = s.unprofiled_ns if s.unprofiled_ns is not None else s.idle.graph.step_ns
    return Finding(
        RULE, LEAVE,
        f"launching: the GPU waits for the host in {percent(s.idle.host_ns, s.idle.wall_ns)} of the recorded wall "
        f"time; one graph would save {said(saved.mid)} of {said(wall)}"
        + (" without the profiler" if known else ""),
        evidence, steps=s.idle.step_count, saves=WALL, label=MODELLED, confidence=0.9,
        because="gaps are divided by cause to the nanosecond", check="hta-dsv4 idle TRACE",
        action="leave it", stop=f"a graph would save less than {100 * LITTLE:.0f} %",
    )  # fmt: skip


def _one_graph(s: Subject, evidence: tuple[Evidence, ...]) -> Finding:
    """Nothing to win: a step is one graph, and takes hardly longer than its replay."""
    assert s.idle is not None
    assert s.idle.graph is not None
    replay = about(s.idle.graph.graph_step_ns)
    beside = "" if s.unprofiled_ns is None else f", the step without the profiler {said(s.unprofiled_ns)}"
    return Finding(
        RULE, LEAVE, f"launching: a step is one CUDA graph already; its replay takes {replay}{beside}", evidence,
        steps=s.idle.step_count, saves=WALL, label=MODELLED, confidence=0.9,
        because="every activity of a step is of one graph launch", check="hta-dsv4 idle TRACE", action="leave it",
        stop=f"the step is within {100 * LITTLE:.0f} % of its replay",
    )  # fmt: skip


def _between_steps(
    s: Subject, saved: Recoverable, evidence: tuple[Evidence, ...], one_graph: bool
) -> Finding:
    """The host is late in front of every step: what it does there is to be done while the step before runs."""
    assert s.idle is not None
    assert s.idle.graph is not None
    graph, known = s.idle.graph, s.unprofiled_ns is not None
    what, length = ("replay", about(graph.graph_step_ns)) if one_graph else ("step", said(graph.step_ns))
    if known:
        title = (
            f"between graph replays: a step takes {said(s.step_ns)} without the profiler, the replay itself "
            f"{length}"
        )
        because = (
            "the step is one graph already; a loop that waits for every step, as a capture's may, has this time, and a "
            "server that enqueues ahead has not"
        )
    else:
        title = (
            f"between {'graph replays' if one_graph else 'steps'}: before each the GPU waits {said(saved.high)} for "
            f"the host (median), so a {what} of {length} takes {said(s.step_ns)} as recorded"
        )
        because = (
            "nothing was queued, and the host was in no call that waits, as far as the trace shows. The profiler makes "
            "a host slower, by how much is not known: at most all of it is to be won, at least nothing"
        )
    return Finding(
        RULE, ATTACK, title, evidence, steps=s.idle.step_count, recoverable=saved, saves=WALL, label=MODELLED,
        confidence=0.6 if known else 0.3, because=because,
        check="the step time over many replays enqueued on end, without waiting and without a profiler"
        if one_graph
        else "hta-dsv4 idle TRACE; then time many steps on end without a profiler, from start to start",
        action=f"enqueue the next {what} before this one ends: sample on the GPU, copy results late, read nothing back",
        stop=f"when a step is within {100 * LITTLE:.0f} % of its replay"
        if one_graph
        else f"when less than {100 * LITTLE:.0f} % of the time from step to step lies between them",
        needs=""
        if known
        else f"{_TIMED}; stacks (with_stack=True, --frames) show what the host does there, or for what it waits",
    )  # fmt: skip


def _within(s: Subject) -> Recoverable:
    """What one graph a step saves: of the step without the profiler where it is known, else of the recorded wall."""
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


def _between(s: Subject, beside: Recoverable | None) -> Recoverable:
    """What enqueueing ahead saves.

    Args:
        s: the variant.
        beside: of a step that is one graph all that lies beside its replay; else ``None``.
    """
    assert s.idle is not None
    assert s.idle.graph is not None
    found = beside or Recoverable(0.0, 0.0, 0.0)
    if s.unprofiled_ns is not None:  # all that a user waits for is in that step
        return found
    most = s.idle.graph.host_between_ns
    return Recoverable(found.low, found.mid + most / 2, found.high + most)
