"""What to attack next, with its evidence, and what to leave alone: one rule a module, one table of rules.

A rule is a pure function of a :class:`~hta_dsv4.analysis.findings.subject.Subject`. To add one: write its module and
its line in :data:`RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hta_dsv4.analysis.findings.casts import casts
from hta_dsv4.analysis.findings.communicating import communicating
from hta_dsv4.analysis.findings.finding import (
    WALL,
    Claim,
    Evidence,
    Finding,
    Recoverable,
    about,
    percent,
    said,
)
from hta_dsv4.analysis.findings.floor_headroom import floor_headroom
from hta_dsv4.analysis.findings.fp32_products import fp32_products
from hta_dsv4.analysis.findings.glue_chains import glue_chains
from hta_dsv4.analysis.findings.launch_bound import launch_bound
from hta_dsv4.analysis.findings.phases import step_phases
from hta_dsv4.analysis.findings.ranking import MATERIAL, Findings, Ranked, rank
from hta_dsv4.analysis.findings.redundant_reads import redundant_reads
from hta_dsv4.analysis.findings.small_launches import RULE as SMALL
from hta_dsv4.analysis.findings.small_launches import TELLING, small_launches
from hta_dsv4.analysis.findings.static_maximum import static_maximum
from hta_dsv4.analysis.findings.subject import Subject, subject
from hta_dsv4.analysis.findings.trust import missing, profiler_overhead, unknown_share
from hta_dsv4.analysis.findings.underfilled import underfilled
from hta_dsv4.analysis.own_time import early_note

__all__ = [
    "MATERIAL", "RULES", "Claim", "Evidence", "Finding", "Findings", "Ranked", "Recoverable", "Rule", "Subject",
    "find", "subject",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: the question it asks, and the function that answers it."""

    asks: str
    apply: Callable[[Subject], list[Finding]]


RULES = (
    Rule("does cost follow a static maximum?", static_maximum),
    Rule("are bytes read again and again?", redundant_reads),
    Rule("would tensor cores help FP32 products?", fp32_products),
    Rule("do launches leave SMs empty?", underfilled),
    Rule("which chains of glue repeat?", glue_chains),
    Rule("which small launches are there besides?", small_launches),
    Rule("which copies only change the dtype?", casts),
    Rule("which kernels are far from their floor, which are at it?", floor_headroom),
    Rule("what do ranks tell each other, with nothing beside it?", communicating),
    Rule("does the host keep the GPU waiting?", launch_bound),
    Rule("are some steps longer than others?", step_phases),
    Rule("did recording change what was recorded?", profiler_overhead),
    Rule("what does the trace lack?", missing),
    Rule("which kernels does no rule know?", unknown_share),
)


def find(s: Subject, rules: Sequence[Rule] = RULES, *, material: float = MATERIAL) -> Findings:
    """Ask every rule and put what they find in order.

    Args:
        s: one variant.
        rules: which rules to ask.
        material: part of the step below which a finding is not listed.

    Returns:
        The findings; without steps none, and the reason in its notes.
    """
    if not s.steps or not len(s.dur):
        return Findings(
            s.label, 0, 0, 0, material, notes=("no steps: nothing can be said per step; see hta-dsv4 info",)
        )
    found = [f for rule in rules for f in rule.apply(s)]
    ranked = rank(
        s.label,
        found,
        s.dur,
        s.steps,
        s.own_ns,
        s.wall_ns,
        step_ns=s.step_ns,
        material=material,
        notes=(*_notes(s, found), *early_note(s.part.activities, s.steps)),
    )
    return replace(ranked, notes=(*_many_small(s, ranked), *ranked.notes))


def _many_small(s: Subject, found: Findings) -> tuple[str, ...]:
    """Small launches that take much together, where what they would save for sure is too little to be listed."""
    return tuple(
        f"{r.finding.title}, {about(r.remaining.high)} a step"
        for r in found.smaller
        if r.finding.rule == SMALL and r.remaining and r.finding.time_ns >= TELLING * s.own_ns
    )


def _notes(s: Subject, found: Sequence[Finding]) -> tuple[str, ...]:
    out = list(s.workload.sources) or [
        "the workload is not known: no manifest beside the trace and nothing given"
    ]
    told = ~np.isnan(s.floors.floor)
    if told.any():
        known, least = s.dur[told].sum() / s.steps, np.minimum(s.floors.floor, s.dur)[told].sum() / s.steps
        out.append(
            f"as programmed the step needs at least {said(least)}: floors are known for {percent(known, s.own_ns)} of "
            f"its {said(s.own_ns)} GPU time; hta-dsv4 roofline says what they rest on"
        )
    if any(f.saves == WALL and f.recoverable is not None for f in found):
        out.append(
            "the host is late: GPU time saved shows in the step's wall time only as far as the GPU, not the host, is "
            "the longer side"
        )
    return tuple(out)
