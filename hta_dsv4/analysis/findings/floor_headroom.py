"""Kernels far from what the hardware permits, and those that are near it and should be left alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
    about,
    claim,
    percent,
    rate,
    said,
)
from hta_dsv4.analysis.findings.ranking import MATERIAL
from hta_dsv4.analysis.findings.subject import COMMUNICATION, Subject
from hta_dsv4.analysis.floors import LAUNCH, MEMORY

RULE = "floor_headroom"
LARGE = 0.05
"""Part of the GPU time from which a group near its floor is worth saying so."""
LATENCY_NS = 10_000
"""A launch whose floor is shorter is bound by latency first: such floors are rarely reached."""
_WORTH = 0.005  # smaller groups cannot make a finding
_NAMED = 3  # origins of a kernel that its finding names
_UNQUOTED = re.compile(r'["$`\\!]')  # what a shell reads inside double quotes


def floor_headroom(s: Subject) -> list[Finding]:
    """One finding per bucket and origin whose launches have a floor of bytes or operations.

    Origins that are too small to be listed are joined by kernel where they are large enough together: one kernel asked
    for by five parts of the model is one thing to tune. A launch is in one finding of this rule.
    """
    if s.device is None:
        return []
    # A floor that is only "a launch takes time" is for fusing, not for tuning: small_launches.py
    tuned = (s.floors.known != UNKNOWN) & (s.floors.bound != LAUNCH) & (s.dur > 0)
    tuned &= (
        s.bucket != COMMUNICATION
    )  # what it holds besides its floor may be another rank's: communicating.py
    out: list[Finding] = []
    small: list[tuple[str, str, Ints]] = []
    for bucket, origin in sorted(
        {(str(b), str(o)) for b, o in zip(s.bucket[tuned], s.origin[tuned], strict=True)}
    ):
        rows = np.flatnonzero(tuned & (s.bucket == bucket) & (s.origin == origin))
        found = _of_origin(s, bucket, origin, rows)
        if found is not None and (found.kind == LEAVE or _likely(s, rows) >= MATERIAL * s.own_ns):
            out.append(found)
        else:
            small.append((bucket, origin, rows))
    joined = np.zeros(len(s.dur), dtype=bool)
    for name, pieces in _joined(s, [rows for _, _, rows in small]).items():
        joined[np.concatenate(pieces)] = True
        out += _said(_of_kernel(s, name, pieces))
    for bucket, origin, rows in small:
        out += _said(_of_origin(s, bucket, origin, rows[~joined[rows]]))
    return out


def _said(found: Finding | None) -> list[Finding]:
    return [] if found is None else [found]


def _likely(s: Subject, rows: Ints) -> float:
    """What these launches would save at the usual part of their floor's speed, ns per step."""
    return float(np.clip(s.dur[rows] - s.floors.floor[rows] / ATTAINABLE[1], 0, None).sum()) / s.steps


def _joined(s: Subject, small: list[Ints]) -> dict[str, list[Ints]]:
    """Kernel -> its launches in each of two or more small groups, which are large enough to be listed together."""
    pieces: dict[str, list[Ints]] = {}
    for rows in small:
        for name in sorted(set(s.name[rows])):
            mine = rows[s.name[rows] == name]
            least = np.minimum(s.floors.floor[mine], s.dur[mine]).sum()
            if least < ATTAINABLE[1] * s.dur[mine].sum():  # a part at its floor is to be left alone
                pieces.setdefault(str(name), []).append(mine)
    return {
        name: sorted(parts, key=lambda rows: -s.dur[rows].sum())
        for name, parts in sorted(pieces.items())
        if len(parts) > 1 and _likely(s, np.concatenate(parts)) >= MATERIAL * s.own_ns
    }


def _of_origin(s: Subject, bucket: str, origin: str, rows: Ints) -> Finding | None:
    """Of a bucket and an origin; ``None`` where they are too small for a finding, or too near their floor."""
    if not len(rows) or s.dur[rows].sum() / s.steps < _WORTH * s.own_ns:
        return None
    who = f"{bucket} of {origin}" if origin != "unknown" else bucket
    whole = int(((s.bucket == bucket) & (s.origin == origin)).sum())
    if len(rows) < whole:  # what has no floor but a launch's, such as a combine, is not in these figures
        who += f", {len(rows) / s.steps:,.10g} of its {whole / s.steps:,.10g} launches"
    text = f"bucket:{bucket}" + (f"+origin:{origin}" if origin != "unknown" else "")
    return _finding(s, rows, who, [text])


def _of_kernel(s: Subject, name: str, pieces: list[Ints]) -> Finding | None:
    """Of one kernel in several origins, the one with most time first."""
    parts, part = [], max(_UNQUOTED.split(name), key=len)
    more: list[Evidence] = []
    for rows in pieces:
        origin, time = str(s.origin[rows[0]]), float(s.dur[rows].sum()) / s.steps
        where = origin if origin != "unknown" else "origin not known"
        least = float(np.minimum(s.floors.floor[rows], s.dur[rows]).sum()) / s.steps
        parts.append(f"{where} {said(time)}")
        more += [Evidence(f"{where}, time", time, "ns"), Evidence(f"{where}, floor", least, "ns", MODELLED)]
    others = len(parts) - _NAMED
    names = ", ".join(parts[:_NAMED]) + (f" and {others} more" if others > 0 else "")
    texts = [f"kernel:{part}+origin:{s.origin[rows[0]]}" for rows in pieces]
    return _finding(
        s, np.sort(np.concatenate(pieces)), f"{name} in {len(parts)} origins ({names})", texts,
        more[: 2 * _NAMED],
    )  # fmt: skip


def _finding(
    s: Subject, rows: Ints, who: str, selectors: list[str], more: Sequence[Evidence] = ()
) -> Finding | None:
    assert s.device is not None
    dur, floor = s.dur[rows], s.floors.floor[rows]
    time, least = float(dur.sum()), float(np.minimum(floor, dur).sum())
    memory = float(floor[s.floors.bound[rows] == MEMORY].sum()) >= floor.sum() / 2
    moved, flops = float(np.nansum(s.floors.of("moved")[rows])), float(np.nansum(s.floors.of("flops")[rows]))
    counted = MEASURED if (s.floors.known[rows] == COUNTED).all() else MODELLED
    speed = (
        f"{rate(moved / time, counted)} of {s.device.read_gb_s:,.0f} GB/s"
        if memory
        else f"{rate(flops / time / 1e3, counted)} TFLOP/s"
    )
    head = (
        f"{who}: {said(time / s.steps)} ({percent(time / s.steps, s.own_ns)} of the GPU time) against a floor of "
        f"{about(least / s.steps)}, {rate(100 * least / time)} % of the floor's speed ({speed})"
    )
    short = float(np.median(floor)) < LATENCY_NS
    assumes = _assumed(s, rows)
    evidence = (
        Evidence("time", time / s.steps, "ns"),
        Evidence("floor", least / s.steps, "ns", MODELLED),
        Evidence("of the floor's speed", 100 * least / time, "%", MODELLED),
        *more,
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
    changes = " ".join(f'--set "{text}=floor"' for text in selectors)
    return Finding(
        RULE, ATTACK, head, evidence, **s.about(rows),
        **s.saved(claim(rows, dur, floor / ATTAINABLE[0], floor / ATTAINABLE[1], floor)),
        label=MODELLED, confidence=0.3 if short else 0.6,
        because=f"assumed within reach: {', '.join(f'{100 * a:.0f} %' for a in ATTAINABLE)} of the floor's speed"
        + (f"; floors this short ({about(float(np.median(floor)))} a launch) are rarely reached" if short else "")
        + ("; " + assumes if assumes else ""),
        check=f"hta-dsv4 whatif TRACE {changes}, and the kernel alone beside a copy of its bytes",
        action=(
            "more bytes in flight: larger loads, deeper pipelines, all SMs busy (hta-dsv4 fill), nothing read twice"
            if memory
            else "tensor-core shapes, tile sizes and occupancy; see hta-dsv4 fill"
        ),
        stop=f"at {100 * ATTAINABLE[1]:.0f} % of the floor's speed, {about(least / s.steps / ATTAINABLE[1])} a step",
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
