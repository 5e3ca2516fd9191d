"""What the ranks of a run spend on telling each other: transfer that nothing hides, and waits that are another rank's.

A collective's CTAs are chosen by its library and its bytes go over links, so no other rule looks at it. What can be
said needs all ranks: only beside the others' traces is a kernel's time told apart into transfer and wait.
"""

from __future__ import annotations

import numpy as np

from hta_dsv4.analysis.findings.finding import (
    ATTACK,
    INFERRED,
    RECAPTURE,
    Evidence,
    Finding,
    claim,
    percent,
    said,
)
from hta_dsv4.analysis.findings.subject import COMMUNICATION, Subject
from hta_dsv4.analysis.union import union_ns
from hta_dsv4.trace import activities as col

RULE = "communication"
MISSING = "missing_ranks"
WORTH = 0.01
"""Part of the GPU time below which communication is not looked at."""


def communicating(s: Subject) -> list[Finding]:
    """At most one finding: to attack where ranks could be compared, else to record them."""
    rows = np.flatnonzero(s.bucket == COMMUNICATION)
    time = float(s.dur[rows].sum()) / s.steps
    if not len(rows) or time < WORTH * s.own_ns:
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
    part = transfer / max(transfer + wait, 1.0)
    dur = s.dur[rows]
    # Of what nothing else runs beside, transfer alone could be won here; waits are won where the late rank is.
    best = dur * (1 - min(exposed / time, 1.0) * part)
    waits = "; hta-dsv4 ranks FOLDER says for whom" if wait >= WORTH * s.own_ns else ""
    return [
        Finding(
            RULE, ATTACK,
            f"communication: {collectives:,.0f} collectives a step, {said(transfer)} transfer "
            f"({percent(transfer, s.own_ns)} of the GPU time) and {said(wait)} waiting, {said(exposed)} of both with "
            f"nothing running beside it{waits}",
            (
                Evidence("transfer (shortest duration over the ranks)", transfer, "ns"),
                Evidence("waiting for other ranks", wait, "ns"),
                Evidence("collectives per step", collectives, "launches"),
                Evidence("transfer of one, mean", transfer / max(collectives, 1.0), "ns"),
                Evidence("communication with nothing running beside it", exposed, "ns"),
            ),
            **s.about(rows), **s.saved(claim(rows, dur, dur, (dur + best) / 2, best)), label=INFERRED, confidence=0.3,
            because="transfer and wait are told from all ranks; how much of the transfer has work to hide behind, "
            "or falls away when collectives are fused, is not: from nothing to all of it",
            check="hta-dsv4 whatif TRACE --set bucket:communication*0.5, and hta-dsv4 ranks FOLDER",
            action="short collectives are latency: fuse each with the norm or addition after it (one-shot kernels over "
            "peer memory), or let independent work run beside it (the shared expert beside the routed ones)",
            stop=f"when communication with nothing beside it is under {100 * WORTH:.0f} % of the GPU time",
            needs="the bytes of each collective (a run outside graphs records them) and the links' bandwidth",
        )
    ]  # fmt: skip


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
