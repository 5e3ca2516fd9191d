"""Can the trace be trusted, and what does it lack? Each with the time that it concerns and how to record it again."""

from __future__ import annotations

import numpy as np

from hta_dsv4.analysis.costs.cost import UNKNOWN
from hta_dsv4.analysis.findings.finding import RECAPTURE, WALL, Evidence, Finding, percent, said
from hta_dsv4.analysis.findings.subject import COMMUNICATION, Subject

OVERHEAD = 0.10
"""A recorded step longer than the unprofiled one by more than this part: its wall and idle time are the recording's."""
OWN_WORK = 0.05
"""The same of the profiler's own work in the wall time, where no unprofiled step is known."""
NO_ORIGIN, NO_BUCKET, NO_FLOOR = 0.05, 0.01, 0.05
"""Parts of the GPU time without origin, bucket, floor from which that is said."""


def profiler_overhead(s: Subject) -> list[Finding]:
    """A recording that is much slower than the step it recorded."""
    plain = s.unprofiled_ns
    if plain is not None and s.wall_ns > (1 + OVERHEAD) * plain:
        numbers = (
            Evidence("wall time of a step, recorded", s.wall_ns, "ns"),
            Evidence("step without the profiler (manifest)", plain, "ns"),
        )
        title = (
            f"the recording made a step {100 * (s.wall_ns / plain - 1):.0f} % longer ({said(s.wall_ns)} instead of "
            f"{said(plain)}): its wall and idle time are not the program's, its GPU time ({said(s.own_ns)}) is"
        )
    elif plain is None and s.idle is not None and s.idle.profiler_ns > OWN_WORK * s.idle.wall_ns:
        numbers = (
            Evidence("idle time in the profiler's own work, per step", s.idle.profiler_ns / s.steps, "ns"),
            Evidence("wall time of a step, recorded", s.wall_ns, "ns"),
        )
        title = (
            f"{percent(s.idle.profiler_ns, s.idle.wall_ns)} of the wall time is the profiler's own work: wall and idle "
            "time are not the program's"
        )
    else:
        return []
    return [
        Finding(
            "profiler_overhead", RECAPTURE, title, numbers, steps=s.steps, saves=WALL, confidence=0.95,
            because="kernels keep their durations under the profiler, launches do not",
            action="compare GPU time; for wall time record without stacks and shapes, or ProfilerActivity.CUDA alone, "
            "or a CUDA graph",
            check="time a step with CUDA events and no profiler",
            stop=f"recorded within {100 * OVERHEAD:.0f} % of unprofiled",
        )
    ]  # fmt: skip


def missing(s: Subject) -> list[Finding]:
    """What the trace lacks that analyses need: steps' origins, ops in graph replays, shapes, the GPU, the workload."""
    total = float(s.dur.sum())
    out = []
    no_op, replay = s.op == "", s.in_graph
    no_origin = s.origin == "unknown"
    if replay.any() and s.dur[replay & no_op & no_origin].sum() > NO_ORIGIN * total:
        out.append(
            _lack(
                s, "missing_companion", replay & no_op & no_origin, "in graph replays without op or origin",
                "origins and shapes carry over from an eager trace of the same step: "
                + (f"give {s.companion}" if s.companion else "record one and give it with --companion"),
            )
        )  # fmt: skip
    elif s.dur[no_origin].sum() > NO_ORIGIN * total:
        out.append(
            _lack(
                s, "unknown_origin", no_origin, "with no origin: what asked for it is not known",
                "name the parts with torch.profiler.record_function, or record with_stack=True and read with --frames",
            )
        )  # fmt: skip
    if not s.shapes_recorded and s.dur[~no_op].sum() > 0:
        out.append(
            _lack(
                s, "missing_shapes", ~no_op, "under ops without shapes: no bytes, no static widths, fewer floors",
                "profile with record_shapes=True",
            )
        )  # fmt: skip
    no_floor = (s.floors.known == UNKNOWN) & (s.bucket != COMMUNICATION)
    if s.device is None:
        out.append(
            _lack(
                s,
                "unknown_gpu",
                s.dur >= 0,
                "on a GPU whose ceilings are not known: no floors",
                "say --device NAME",
            )
        )
    elif s.shapes_recorded and s.dur[no_floor].sum() > NO_FLOOR * total:
        out.append(
            _lack(
                s, "unknown_cost", no_floor, "whose bytes and operations are not known: no floor, no headroom",
                _cost_remedy(s),
            )
        )  # fmt: skip
    return out


def _cost_remedy(s: Subject) -> str:
    """What would make costs known: more about the workload helps only a model whose costs are modelled."""
    work = s.workload
    if work.geometry is None:
        return (
            "the launch counts fit no model whose costs are known, so only op shapes tell: record the step eagerly "
            "with record_shapes=True (--companion carries shapes into graph replays), or capture with a manifest"
        )
    lacks = [o for o, v in (("--concurrency", work.batch), ("--context", work.context)) if v is None]
    if lacks:
        return f"say {' and '.join(lacks)}, or capture with a manifest; hta-dsv4 roofline says what lacks"
    return "no cost is known for these kernels: hta-dsv4 roofline --by kernel names them"


def unknown_share(s: Subject) -> list[Finding]:
    """Kernels that no rule knows."""
    mine = s.bucket == "unknown"
    if s.dur[mine].sum() <= NO_BUCKET * s.dur.sum():
        return []
    return [
        _lack(
            s, "unknown_share", mine, "in kernels that no rule knows",
            "give them a rule: hta-dsv4 explain NAME, then --rules mine.toml",
        )
    ]  # fmt: skip


def _lack(s: Subject, rule: str, mask: np.ndarray, what: str, remedy: str) -> Finding:
    rows = np.flatnonzero(mask)
    time = float(s.dur[rows].sum()) / s.steps
    return Finding(
        rule, RECAPTURE, f"{percent(time, s.own_ns)} of the GPU time ({said(time)} a step) is {what}",
        (Evidence("time concerned", time, "ns"), Evidence("launches per step", len(rows) / s.steps, "launches")),
        **s.about(rows), unknown_because=what, confidence=1.0, because="counted from the trace", action=remedy,
        check="hta-dsv4 info TRACE", stop="when less than a twentieth of the GPU time is concerned", needs=remedy,
    )  # fmt: skip
