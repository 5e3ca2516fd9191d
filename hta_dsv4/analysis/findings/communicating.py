"""What the ranks of a run spend on telling each other: transfer that nothing hides, and waits that are another rank's.

A collective's CTAs are chosen by its library and its bytes go over links, so no other rule looks at it. What can be
said needs all ranks: only beside the others' traces is a kernel's time told apart into transfer and wait. A saving is
stated where a faster way to carry the same bytes was measured on this link, and nowhere else.
"""

from __future__ import annotations

import numpy as np

from hta_dsv4.analysis.collective_speed import BANDWIDTH, LATENCY, NEITHER, NOT_BANDWIDTH, Speed
from hta_dsv4.analysis.findings.finding import (
    ATTACK,
    INFERRED,
    MEASURED,
    MODELLED,
    RECAPTURE,
    Claim,
    Evidence,
    Finding,
    Ints,
    about,
    claim,
    percent,
    said,
)
from hta_dsv4.analysis.findings.subject import COMMUNICATION, Subject
from hta_dsv4.analysis.links import Link
from hta_dsv4.analysis.union import union_ns
from hta_dsv4.analysis.wire import MODEL, SAID, size_said
from hta_dsv4.trace import activities as col

RULE = "communication"
MISSING = "missing_ranks"
WORTH = 0.01
"""Part of the GPU time below which communication is not looked at."""
TELLING = 0.2
"""A way that was measured faster counts from this part of the time: it was measured back to back, and with small
kernels between, as in a step, NCCL's all-reduce of 256 KiB takes up to 15 % longer."""


def communicating(s: Subject) -> list[Finding]:
    """At most one finding: to attack where ranks could be compared, else to record them."""
    rows = np.flatnonzero(s.bucket == COMMUNICATION)
    time = float(s.dur[rows].sum()) / s.steps
    if not time or time < WORTH * s.own_ns:  # none also where no duration was recorded
        return []
    parts = _parts(s)
    if parts is None:
        return [
            Finding(
                MISSING, RECAPTURE,
                f"{percent(time, s.own_ns)} of the GPU time ({said(time)} a step) is communication, of which transfer "
                "and waiting for other ranks cannot be told apart",
                (Evidence("time in communication", time, "ns"),),
                **s.about(rows), unknown_because="that needs the traces of all ranks", confidence=1.0,
                because="a rank alone does not show when the others came",
                action="record every rank of the same steps and give the folder; hta-dsv4 ranks then says who is late",
                check="hta-dsv4 ranks FOLDER", stop="when every rank of the group is there",
                needs="the traces of all ranks",
            )
        ]  # fmt: skip
    collectives, transfer, wait = parts
    exposed = _exposed(s)
    bare = (
        min(exposed / time, 1.0) * transfer
    )  # of what nothing else runs beside, transfer alone could be won here
    main = next((x for x in s.speeds.rows if x.bound), None) if s.speeds is not None else None
    made = _faster(s, rows, min(exposed / time, 1.0))
    waits = "; hta-dsv4 ranks FOLDER says for whom" if wait >= WORTH * s.own_ns else ""
    told = "" if main is None else f"; {_verdict(main)}"
    saving = s.saved(made) if made is not None else {}
    return [
        Finding(
            RULE, ATTACK,
            f"communication: {collectives:,.0f} collectives a step, {said(transfer)} transfer "
            f"({percent(transfer, s.own_ns)} of the GPU time) and {said(wait)} waiting, {said(exposed)} of both with "
            f"nothing running beside it{waits}{told}",
            (
                Evidence("transfer (shortest duration over the ranks)", transfer, "ns"),
                Evidence("waiting for other ranks", wait, "ns"),
                Evidence("collectives per step", collectives, "launches"),
                Evidence("transfer of one, mean", transfer / max(collectives, 1.0), "ns"),
                Evidence("communication with nothing running beside it", exposed, "ns"),
                *(_figures(main) if main is not None else ()),
            ),
            **s.about(rows), **saving, label=INFERRED, confidence=0.3 if made is None else 0.5,
            unknown_because="" if made is not None else _why_none(main, bare),
            because="transfer and wait are told from all ranks; how much of the transfer has work to hide behind, "
            "or falls away when collectives are fused, is not" if made is None else
            "transfer is told from all ranks; what would be faster was measured on this link with nothing beside it",
            check="hta-dsv4 ranks FOLDER; python -m benchmarks.links measures a link; "
            "hta-dsv4 whatif TRACE --set bucket:communication*0.5",
            action=_action(main, s.speeds.link if s.speeds is not None else None),
            stop=f"when communication with nothing beside it is under {100 * WORTH:.0f} % of the GPU time",
            needs="" if main is not None else
            "the bytes of each collective (an eager capture of the step records them: --companion) and the link's "
            "bandwidth",
        )
    ]  # fmt: skip


def _verdict(x: Speed) -> str:
    """One kind of collective in short."""
    side = f"at the link's speed {about(x.link_ns or 0.0)}"
    bound = "neither latency nor bandwidth" if x.bound == NEITHER else x.bound
    bound = f"not bound by {BANDWIDTH}" if x.bound == NOT_BANDWIDTH else f"bound by {bound}"
    return (
        f"{x.per_step:,.0f} {x.message.kind} of {size_said(x.message.nbytes or 0)} a step take {said(x.each_ns)} each: "
        f"{bound} ({side})"
    )


def _figures(x: Speed) -> tuple[Evidence, ...]:
    """What the verdict on one kind of collective rests on."""
    counted = MODELLED if x.message.how == MODEL else MEASURED
    figures = (
        (f"{x.message.kind}: bytes ({SAID[x.message.how]})", x.message.nbytes, "bytes", counted),
        (f"{x.message.kind}: bus bandwidth", x.bus_gb_s, "GB/s", counted),
        ("the link's, one way", x.link_gb_s, "GB/s", MEASURED),
        ("its bytes at the link's speed", x.link_ns, "ns", MODELLED),
        ("NCCL's smallest message on this link", x.latency_ns, "ns", MEASURED),
        ("NCCL at this size on this link, nothing beside it", x.alone_ns, "ns", MEASURED),
        ("an all-reduce in one shot of this size, likewise", x.one_shot_ns, "ns", MEASURED),
    )
    return tuple(Evidence(what, float(v), unit, how) for what, v, unit, how in figures if v is not None)


def _best(x: Speed) -> tuple[float, str] | None:
    """The fastest measured way to carry the same, ns, and what it is; ``None`` where none was measured."""
    ways = [(x.alone_ns, "NCCL with nothing beside it"), (x.one_shot_ns, "an all-reduce in one shot")]
    return min(((ns, what) for ns, what in ways if ns is not None), default=None)


def _gain(x: Speed) -> float:
    """What the fastest measured way saves of each, ns; 0 where it is no more than measurements differ by."""
    best = None if x.upper else _best(x)
    gain = 0.0 if best is None else x.each_ns - best[0]
    return gain if gain > TELLING * x.each_ns else 0.0


def _faster(s: Subject, rows: Ints, bare: float) -> Claim | None:
    """What collectives would save that were measured faster; ``None`` where none was.

    Args:
        s: the variant.
        rows: its collectives.
        bare: the part of their time that nothing runs beside.
    """
    speeds = {(x.kernel, x.message.kind, x.message.nbytes): x for x in (s.speeds.rows if s.speeds else ())}
    at, likely, best = [], [], []
    for row in rows.tolist():
        m = s.floors.costs[int(s.floors.code[row])].message
        x = None if m is None else speeds.get((str(s.name[row]), m.kind, m.nbytes))
        if x is not None and (gain := _gain(x)):
            at.append(row)
            likely.append(gain * bare)
            best.append(max(x.each_ns - max(x.link_ns or 0.0, x.latency_ns or 0.0), gain) * bare)
    if not at:
        return None
    dur = s.dur[at]
    return claim(np.array(at, np.int64), dur, dur, dur - np.array(likely), dur - np.array(best))


def _why_none(x: Speed | None, bare: float) -> str:
    """Why no saving is stated."""
    most = f"; all of the transfer that nothing hides is {said(bare)}"
    if x is None:
        return f"how fast these collectives could be is not known{most}"
    best = _best(x)
    if best is None:
        return f"no other way to carry {size_said(x.message.nbytes or 0)} was measured on {x.ranks} such ranks{most}"
    found = f"{best[1]} takes {said(best[0])}"
    return f"nothing over {100 * TELLING:.0f} % faster was measured at this size ({found}){most}"


def _action(x: Speed | None, link: Link | None) -> str:
    """What to do about the collectives that take most."""
    beside = "let independent work run beside them (the shared expert beside the routed ones)"
    if x is None:
        return f"short collectives are latency: make them fewer, or {beside}"
    if x.bound == BANDWIDTH:
        return f"send fewer bytes (a narrower type), or {beside}"
    way = ""
    if (shot := x.one_shot_ns) is not None:
        wins = (
            f"saves {said(x.each_ns - shot)} of each"
            if x.each_ns - shot > TELLING * x.each_ns
            else "wins nothing"
        )
        way = f"; an all-reduce in one shot takes {said(shot)} at this size on this link and {wins}"
    half = None
    if link is not None and x.alone_ns is not None and x.message.nbytes:
        half = link.alone_ns(x.message.kind, x.ranks, x.message.nbytes // 2)
    if half is not None and x.alone_ns is not None:
        way += f"; half the bytes take {said(half)} where these take {said(x.alone_ns)}, with nothing beside them"
    if x.bound in (LATENCY, NOT_BANDWIDTH):
        return f"make them fewer, or {beside}{way}"
    return f"try NCCL's other protocols and channels (NCCL_PROTO, NCCL_MIN_NCHANNELS), or {beside}{way}"


def _parts(s: Subject) -> tuple[float, float, float] | None:
    """Collectives, transfer and wait of this rank per step; ``None`` where they were not aligned with other ranks."""
    if s.communication is None:
        return None
    count = transfer = wait = 0
    for g in s.communication.groups:
        if s.part.rank in g.ranks and not g.aligned.absent:
            mine, which = g.ranks.index(s.part.rank), g.counted
            count += int(which.sum())
            transfer += int(g.transfer[which].sum())
            wait += int(g.wait[mine, which].sum())
    return (count / s.steps, transfer / s.steps, wait / s.steps) if count else None


def _exposed(s: Subject) -> float:
    """Time per step in which communication runs and nothing else does, ns: what its absence would shorten busy by."""
    acts = s.part.activities
    start, dur = acts[col.START_NS].to_numpy(), acts[col.DUR_NS].to_numpy()
    other = s.bucket != COMMUNICATION
    return (union_ns(start, dur) - union_ns(start[other], dur[other])) / s.steps
