"""Kernels far from what the hardware permits, and those that are near it and should be left alone."""

from __future__ import annotations

import numpy as np

from hta_dsv4.analysis.costs.cost import MEASURED as COUNTED
from hta_dsv4.analysis.costs.cost import UNKNOWN
from hta_dsv4.analysis.findings.finding import (
    ATTACK,
    ATTAINABLE,
    LEAVE,
    MEASURED,
    MODELLED,
    Evidence,
    Finding,
    Ints,
    claim,
    percent,
    rate,
    said,
)
from hta_dsv4.analysis.findings.subject import COMMUNICATION, Subject
from hta_dsv4.analysis.floors import LAUNCH, MEMORY

RULE = "floor_headroom"
LARGE = 0.05
"""Part of the GPU time from which a group near its floor is worth saying so."""
LATENCY_NS = 10_000
"""A launch whose floor is shorter is bound by latency first: such floors are rarely reached."""
_WORTH = 0.005  # smaller groups cannot make a finding


def floor_headroom(s: Subject) -> list[Finding]:
    """One finding per bucket and origin whose launches have a floor of bytes or operations."""
    if s.device is None:
        return []
    # A floor that is only "a launch takes time" is for fusing, not for tuning.
    tuned = (s.floors.known != UNKNOWN) & (s.floors.bound != LAUNCH) & (s.dur > 0)
    tuned &= (
        s.bucket != COMMUNICATION
    )  # what it holds besides its floor may be another rank's: communicating.py
    out = []
    for bucket, origin in sorted(
        {(str(b), str(o)) for b, o in zip(s.bucket[tuned], s.origin[tuned], strict=True)}
    ):
        rows = np.flatnonzero(tuned & (s.bucket == bucket) & (s.origin == origin))
        if s.dur[rows].sum() / s.steps >= _WORTH * s.own_ns:
            out.append(_finding(s, bucket, origin, rows))
    return [f for f in out if f is not None]


def _finding(s: Subject, bucket: str, origin: str, rows: Ints) -> Finding | None:
    assert s.device is not None
    dur, floor = s.dur[rows], s.floors.floor[rows]
    time, least = float(dur.sum()), float(np.minimum(floor, dur).sum())
    memory = float(floor[s.floors.bound[rows] == MEMORY].sum()) >= floor.sum() / 2
    moved, flops = float(np.nansum(s.floors.of("moved")[rows])), float(np.nansum(s.floors.of("flops")[rows]))
    counted = MEASURED if (s.floors.known[rows] == COUNTED).all() else MODELLED
    speed = (
        f"{rate(moved / time)} of {s.device.read_gb_s:,.0f} GB/s"
        if memory
        else f"{flops / time / 1e3:,.0f} TFLOP/s"
    )
    who = f"{bucket} of {origin}" if origin != "unknown" else bucket
    whole = int(((s.bucket == bucket) & (s.origin == origin)).sum())
    if len(rows) < whole:  # what has no floor but a launch's, such as a combine, is not in these figures
        who += f", {len(rows) / s.steps:,.10g} of its {whole / s.steps:,.10g} launches"
    head = (
        f"{who}: {said(time / s.steps)} ({percent(time / s.steps, s.own_ns)} of the GPU time) against a floor of "
        f"{said(least / s.steps)}, {percent(least, time)} of the floor's speed ({speed})"
    )
    short = float(np.median(floor)) < LATENCY_NS
    assumes = _assumed(s, rows)
    evidence = (
        Evidence("time", time / s.steps, "ns"),
        Evidence("floor", least / s.steps, "ns", MODELLED),
        Evidence("of the floor's speed", 100 * least / time, "%", MODELLED),
        Evidence("bytes per step", moved / s.steps, "bytes", counted),
        Evidence("achieved bandwidth", moved / time, "GB/s", counted),
        Evidence("achieved rate", flops / time / 1e3, "TFLOP/s", counted),
        Evidence("median launch", float(np.median(dur)), "ns"),
    )
    if least >= ATTAINABLE[1] * time:
        if time / s.steps < LARGE * s.own_ns or (s.workload.undivided and counted == MODELLED):
            return None  # a rank that holds a part of the model may be far from the floor of that part
        return Finding(
            RULE, LEAVE, f"{head}: at its floor for practical purposes", evidence, **s.about(rows), label=MODELLED,
            confidence=0.8, because=assumes or "bytes and operations are counted from op shapes",
            check="hta-dsv4 roofline TRACE", action="leave the kernel; only fewer bytes or operations would help",
            stop=f"it reaches {100 * ATTAINABLE[1]:.0f} % of the floor's speed",
        )  # fmt: skip
    text = f"bucket:{bucket}" + (f"+origin:{origin}" if origin != "unknown" else "")
    return Finding(
        RULE, ATTACK, head, evidence, **s.about(rows),
        **s.saved(claim(rows, dur, floor / ATTAINABLE[0], floor / ATTAINABLE[1], floor)),
        label=MODELLED, confidence=0.3 if short else 0.6,
        because=f"assumed within reach: {', '.join(f'{100 * a:.0f} %' for a in ATTAINABLE)} of the floor's speed"
        + (f"; floors this short ({said(float(np.median(floor)))} a launch) are rarely reached" if short else "")
        + ("; " + assumes if assumes else ""),
        check=f'hta-dsv4 whatif TRACE --set "{text}=floor", and the kernel alone beside a copy of its bytes',
        action=(
            "more bytes in flight: larger loads, deeper pipelines, all SMs busy (hta-dsv4 fill), nothing read twice"
            if memory
            else "tensor-core shapes, tile sizes and occupancy; see hta-dsv4 fill"
        ),
        stop=f"at {100 * ATTAINABLE[1]:.0f} % of the floor's speed, {said(least / s.steps / ATTAINABLE[1])} a step",
        needs="" if counted == MEASURED else "the kernel measured alone, since its bytes are modelled",
    )  # fmt: skip


def _assumed(s: Subject, rows: Ints) -> str:
    """What most of the floor rests on, and how many other assumptions there are."""
    weight: dict[str, float] = {}
    for code in np.unique(s.floors.code[rows]):
        if text := s.floors.costs[code].assumes:
            share = s.floors.floor[rows][s.floors.code[rows] == code].sum()
            weight[text] = weight.get(text, 0.0) + float(share)
    if not weight:
        return ""
    most = max(sorted(weight), key=weight.__getitem__)
    return most + (f" (most of it; {len(weight)} sizes or forms in all)" if len(weight) > 1 else "")
