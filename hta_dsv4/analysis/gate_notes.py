"""What makes a gate's answer weaker than it looks?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hta_dsv4.analysis.excess import CAPTURES, EXACT, FEW_STEPS, NONE, STEPS
from hta_dsv4.analysis.own_time import LITTLE_PERCENT
from hta_dsv4.analysis.stats import MIN_STEPS

ENOUGH_FREE = 4
"""Degrees of freedom of repeated captures from which bounds are tight enough to be of use."""
_ALIKE = 0.3
"""Correlation of a step with the one before from which it is told; less comes by chance."""


@dataclass(frozen=True, slots=True)
class NoteFacts:
    """What the notes are about.

    Attributes:
        level: that all bounds together hold with.
        evidence: what each bound rests on, of every check and rank.
        close: checks that pass by less than noise.
        captures: of the baseline, and of the candidate.
        fewest_steps: of any capture.
        correlation: of a step with the one before.
        early: largest part of a capture's summed durations that its launches waited for those ahead of them.
    """

    level: float
    evidence: Sequence[str]
    close: int
    captures: tuple[int, int]
    fewest_steps: int
    correlation: float
    early: float = 0.0


def gate_notes(about: NoteFacts) -> list[str]:
    """One sentence for each thing that a reader of the verdicts must know.

    Args:
        about: of one gate.
    """
    notes = []
    if about.early > 0:
        part = max(100 * about.early, LITTLE_PERCENT)
        notes.append(
            f"times are own times, but for [step.sum]: up to {part:.2g} % of the summed durations is early time, in "
            "which a launch had started and waited for the one ahead of it; [step.own] is the sum without it"
        )
    noisy = sum(e not in (EXACT, NONE) for e in about.evidence)
    if noisy:
        notes.append(
            f"the bounds of {noisy} noisy check{'s' * (noisy > 1)} hold together at {100 * about.level:g} %: if "
            f"noise is as these captures show it, at most {100 * (1 - about.level):.3g} % of gates fail without cause"
        )
    if noisy and max(about.captures) < 2:
        notes.append(
            "one capture a side: verdicts are within-run; how much another capture of the same code differs is unknown "
            "(give several, or noise_percent)"
        )
    if about.close:
        notes.append(
            f"{about.close} of the checks that pass {'is' if about.close == 1 else 'are'} closer to the limit than "
            "noise: kept as measured, not shown to be kept (strict = true makes them inconclusive)"
        )
    free = sum(about.captures) - 1 - bool(about.captures[0])
    if CAPTURES in about.evidence and free < ENOUGH_FREE:
        notes.append(
            f"{sum(about.captures)} captures leave {free} degree{'s' * (free > 1)} of freedom, so bounds are "
            "wide; give 3 of each side or 5 of the baseline"
        )
    if FEW_STEPS in about.evidence:
        notes.append(
            f"{about.fewest_steps} steps on a side: their noise is taken as independent; record 20 or more"
        )
    independent = about.fewest_steps * (1 - about.correlation) / (1 + about.correlation)
    if STEPS in about.evidence and about.correlation >= _ALIKE and independent < MIN_STEPS:
        notes.append(
            f"each step resembles the one before (correlation {about.correlation:.2f}), so {about.fewest_steps} steps "
            f"say as much as {max(independent, 1):.0f} independent ones and bounds are wide; record more, or give "
            "repeated captures"
        )
    return notes
