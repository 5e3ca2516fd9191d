"""Small launches in a row, whatever they are: each takes time for being a launch, and only fusing takes that away.

Chains of glue that repeat are :mod:`.glue_chains`'s, which knows more of them; here is the rest.
"""

from __future__ import annotations

import numpy as np

from hta_dsv4.analysis.findings.finding import (
    ATTACK,
    MODELLED,
    Evidence,
    Finding,
    Ints,
    about,
    claim,
    percent,
    said,
)
from hta_dsv4.analysis.findings.glue_chains import fused
from hta_dsv4.analysis.findings.subject import COMMUNICATION, Subject
from hta_dsv4.analysis.launch_bound import SHORT_NS
from hta_dsv4.trace import activities as col

RULE = "small_launches"
WORTH = 0.01
"""Part of the GPU time in small launches from which they are looked at."""
TELLING = 0.05
"""The same from which they are spoken of in a note, though what is sure to be won is too little to be listed."""
BODY = 0.5
"""A launch whose bytes or operations need more than this part of it is what they make it, however short."""
_NAMED = 4  # buckets that the title names


def small_launches(s: Subject) -> list[Finding]:
    """At most one finding, over all buckets."""
    rows, first = _runs(s)
    time = float(s.dur[rows].sum()) / s.steps
    if not len(rows) or first.all() or time < WORTH * s.own_ns:
        return []
    dur, nothing = s.dur[rows], s.floors.launch_ns
    # One launch of a run stays; that all others can go is the most to hope for.
    gone = np.where(first, 0.0, np.minimum(nothing, dur))
    fewer, runs = float((~first).sum()) / s.steps, float(first.sum()) / s.steps
    work = np.fmax(s.floors.memory[rows], s.floors.compute[rows])
    known = ~np.isnan(work)
    need = float(np.nansum(work)) / s.steps
    by_bucket = {str(b): float(dur[s.bucket[rows] == b].sum()) / s.steps for b in sorted(set(s.bucket[rows]))}
    heaviest = sorted(by_bucket, key=lambda b: -by_bucket[b])
    others = len(heaviest) - _NAMED
    where = ", ".join(f"{b} {said(by_bucket[b])}" for b in heaviest[:_NAMED])
    where += f" and {others} more" if others > 0 else ""
    told = ""
    if known.any():
        part = "" if known.all() else f", known of {percent(known.sum(), len(rows))},"
        told = f"their bytes and operations{part} need {about(need)} of it; "
    return [
        Finding(
            RULE, ATTACK,
            f"launches under {SHORT_NS / 1e3:.0f} us: {len(rows) / s.steps:,.0f} a step, {said(time)} "
            f"({percent(time, s.own_ns)} of the GPU time; {where}); {told}what helps is fusing them into their "
            f"neighbours, at most {fewer:,.0f} fewer",
            (
                Evidence(f"launches under {SHORT_NS / 1e3:.0f} us per step", len(rows) / s.steps, "launches"),
                Evidence("time", time, "ns"),
                Evidence("median launch", float(np.median(dur)), "ns"),
                *((Evidence("their bytes and operations alone", need, "ns", MODELLED),) if known.any() else ()),
                Evidence("of them with known bytes and operations", 100 * float(known.mean()), "%"),
                Evidence("a launch that does nothing", nothing, "ns"),
                Evidence("runs of one or more in a row on a stream, per step", runs, "runs"),
                Evidence("launches fewer, one left of each run, at most", fewer, "launches", MODELLED),
                *(Evidence(f"in {b}", by_bucket[b], "ns") for b in heaviest[:_NAMED]),
            ),
            **s.about(rows), **s.saved(claim(rows, dur, dur, dur - gone / 2, dur - gone)),
            label=MODELLED, confidence=0.3 if known.mean() > BODY else 0.2,
            because=f"counted: the launches and their runs; at most all but one of each run go, each saving what a "
            f"launch that does nothing takes ({said(nothing)}); half of that is a judgement, and which neighbours can "
            "be fused is not known; what fusing into longer neighbours would save is not counted",
            check="hta-dsv4 shares TRACE --by kernel for which they are; then one pair fused, and the step timed",
            action="one kernel in place of neighbours that hand their result on: a norm with the quantization behind "
            "it, rope with the write into the cache, an activation with the product before it; what cannot be fused "
            "can start early (programmatic dependent launch)",
            stop="when no run has two launches that could be one, or they are under 1 % of the GPU time",
            needs="" if known.all() else "op shapes (record_shapes=True), for the bytes of the others",
        )
    ]  # fmt: skip


def _runs(s: Subject) -> tuple[Ints, np.ndarray]:
    """Small launches that no chain of glue has, in the order of steps, streams and time.

    Returns:
        Their rows, and whether each is the first of its run: of launches with nothing between on one stream in a step.
    """
    stream = s.part.activities[col.STREAM].to_numpy(dtype=np.int64, na_value=-1)
    order = np.lexsort((np.arange(len(stream)), stream, s.part.step))
    with np.errstate(invalid="ignore"):
        bound = np.fmax(s.floors.memory, s.floors.compute) > BODY * s.floors.recorded
    # As recorded: of a launch that started early, its own time may be short, and the launch long.
    small = (s.floors.recorded < SHORT_NS) & (s.bucket != COMMUNICATION) & ~bound
    small[fused(s)] = False
    mine, step, lane = small[order], s.part.step[order], stream[order]
    follows = np.zeros(len(order), dtype=bool)
    follows[1:] = mine[:-1] & (step[1:] == step[:-1]) & (lane[1:] == lane[:-1])
    return order[mine], ~follows[mine]
