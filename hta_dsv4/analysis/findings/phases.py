"""Steps that are longer than others because a kernel has work in them only: what a user feels as jitter."""

from __future__ import annotations

import numpy as np

from hta_dsv4.analysis.findings.finding import ATTACK, Evidence, Finding, percent, said
from hta_dsv4.analysis.findings.subject import Subject
from hta_dsv4.analysis.phases import Phase, kernel_times, phases

RULE = "phases"
WORTH = 0.01
"""Part of the step that a long one must be longer by."""


def step_phases(s: Subject) -> list[Finding]:
    """One finding per kernel that makes some steps longer."""
    found = phases(kernel_times(s.part))
    return [_finding(s, p) for p in found if p.extra_ns >= WORTH * _usual(s, p)]


def _usual(s: Subject, p: Phase) -> float:
    """GPU time of a step in which the kernel is not long, collectives included, ns."""
    return s.own_ns - p.extra_ns * p.count / len(p.long)


def _finding(s: Subject, p: Phase) -> Finding:
    long = np.array(p.long)
    rows = np.flatnonzero((s.name == p.kernel) & long[s.part.step])
    compressor = bool((s.role[rows] == "compressor").all())
    few = s.ctas[rows] < s.sms[rows]
    return Finding(
        RULE, ATTACK,
        f"{p.often} {'is' if p.period or p.count == 1 else 'are'} {said(p.extra_ns)} longer "
        f"({percent(p.extra_ns, _usual(s, p))} of the step): {p.kernel} takes {said(p.long_ns)} in them and "
        f"{said(p.short_ns)} in the others",
        (
            Evidence("longer by", p.extra_ns, "ns"),
            Evidence("in long steps", p.long_ns, "ns"),
            Evidence("in the others", p.short_ns, "ns"),
            Evidence("long steps", float(p.count), "steps"),
            Evidence("steps", float(len(p.long)), "steps"),
            Evidence("mean over all steps", p.extra_ns * p.count / len(p.long), "ns"),
        ),
        **s.about(rows),
        unknown_because=f"how much of it could go is not known; all of it is "
        f"{said(p.extra_ns * p.count / len(p.long))} a step on average, and {said(p.extra_ns)} of the slowest steps",
        confidence=0.9,
        because="times per step fall into two groups, at least twice apart",
        check="hta-dsv4 whatif TRACE --remove kernel:NAME; record more steps to see how often it comes",
        action=(
            "requests that complete a group of tokens do so in these steps: "
            if compressor
            else "find what it does in these steps only: "
        )
        + ("give a launch more CTAs (some have fewer than the GPU has SMs), " if few.any() else "")
        + "do a part of the work in every step, or beside other work on a second stream",
        stop=f"when no step is over {100 * WORTH:.0f} % longer than the others by it",
        needs="" if len(p.long) >= 20 else "20 steps or more, to tell how often it comes",
    )  # fmt: skip
