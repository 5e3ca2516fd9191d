"""Which finding first: by time still to be saved times confidence, and no launch's time given away twice.

The finding with the most is taken; what it would leave of each launch is all that the others can still save there.
Then the next is chosen by what remains of it. A finding of which nothing remains is told as covered by an earlier one:
that is how "use bf16" ends when most of the product is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hta_dsv4.analysis.findings.finding import ATTACK, LEAVE, RECAPTURE, WALL, Finding, Floats, Recoverable

MATERIAL = 0.01
"""A finding that would save less than this part of the step (its GPU time, or its wall time) is not listed."""
_TOUCHED = 0.01


@dataclass(frozen=True)
class Ranked:
    """A finding in its place.

    Attributes:
        finding: as its rule gave it.
        remaining: what it would still save after the findings before it; ``None`` where it cannot be known.
        share: the likely remaining time as a part of the step: of its GPU time, or of :attr:`Findings.step_ns` where
            the finding saves wall time.
        score: likely remaining time times confidence, ns.
        after: places (from 1) of earlier findings that took part of its time.
    """

    finding: Finding
    remaining: Recoverable | None
    share: float
    score: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Findings:
    """What to attack next in one variant, best first.

    Attributes:
        label: the variant's name.
        steps: counted steps.
        own_ns, wall_ns: per step: GPU time, and wall time as recorded.
        step_ns: what a user waits for: the step without the profiler where a manifest says it; else the recorded wall
            time and the host's part of what lies between two steps.
        material: the part of the step below which nothing is listed.
        ranked: what to attack.
        covered: worth attacking alone, but taken by findings before them: ``after`` says which.
        leave: looked at and to be left alone, each with its number.
        recapture: what the trace cannot answer.
        smaller: findings under ``material``, best first, each with what those before it leave.
        notes: one sentence each.
    """

    label: str
    steps: int
    own_ns: int
    wall_ns: int
    material: float
    ranked: tuple[Ranked, ...] = ()
    covered: tuple[Ranked, ...] = ()
    leave: tuple[Finding, ...] = ()
    recapture: tuple[Finding, ...] = ()
    smaller: tuple[Ranked, ...] = ()
    notes: tuple[str, ...] = ()
    step_ns: float = 0.0

    @property
    def below(self) -> int:
        """How many findings are under :attr:`material`."""
        return len(self.smaller)

    @property
    def below_ns(self) -> float:
        """What they would save together, per step."""
        return sum(r.remaining.mid for r in self.smaller if r.remaining)


def rank(
    label: str, found: Sequence[Finding], activities: Floats, steps: int, own_ns: int, wall_ns: int, *,
    step_ns: float | None = None, material: float = MATERIAL, notes: Sequence[str] = (),
) -> Findings:  # fmt: skip
    """Put findings in order.

    Args:
        label: the variant's name.
        found: of all rules, in any order.
        activities: float64 [activities], own times, ns.
        steps: counted steps.
        own_ns: GPU time per step.
        wall_ns: wall time per step.
        step_ns: what a user waits for per step, of which a saving of wall time is a part; the wall time by default.
        material: part of the step below which a finding is not listed.
        notes: to be kept with the result.
    """
    left = np.ones(len(activities))
    waiting = sorted((f for f in found if f.kind == ATTACK), key=lambda f: (f.rule, f.title))
    unknown = [f for f in waiting if f.recoverable is None]
    waiting = [f for f in waiting if f.recoverable is not None]
    taken_by: list[tuple[int, Floats]] = []  # place, and the part of each launch it took
    ranked: list[Ranked] = []
    step = float(wall_ns) if step_ns is None else step_ns
    whole = {f: (step if f == WALL else float(own_ns)) for f in {g.saves for g in waiting}}

    def place(finding: Finding) -> Ranked:
        full = finding.recoverable
        assert full is not None
        now = full if finding.claim is None else finding.claim.per_step(steps, left)
        after = []
        if finding.claim is not None:
            rows, mid = finding.claim.rows, finding.claim.mid
            total = max(float(mid.sum()), 1e-9)
            after = [p for p, took in taken_by if float((mid * took[rows]).sum()) > _TOUCHED * total]
        of = whole[finding.saves]
        return Ranked(
            finding, now, now.mid / of if of else 0.0, now.mid * finding.confidence, tuple(after)
        )  # fmt: skip

    def take(finding: Finding) -> None:
        nonlocal left
        if finding.claim is None:
            return
        rows = finding.claim.rows
        took = np.zeros(len(activities))
        took[rows] = finding.claim.mid / np.maximum(activities[rows], 1e-9)
        took *= left
        taken_by.append((len(ranked), took))
        left = left - took

    while waiting:
        best = max((place(f) for f in waiting), key=lambda r: r.score if r.share >= material else -1.0)
        if best.share < material:
            break
        ranked.append(best)
        waiting.remove(best.finding)
        take(best.finding)
    covered = [r for r in map(place, waiting) if _share(r, whole) >= material]
    small = [f for f in waiting if all(f is not r.finding for r in covered)]
    smaller: list[Ranked] = []
    while small:  # nor is time promised twice by what is not listed
        best = max(map(place, small), key=lambda r: r.score)
        smaller.append(replace(best, after=()))
        small.remove(best.finding)
        take(best.finding)
    covered.sort(key=lambda r: (-_full(r), r.finding.rule, r.finding.title))
    return Findings(
        label, steps, own_ns, wall_ns, material,
        ranked=(*ranked, *(Ranked(f, None, 0.0, 0.0) for f in unknown)),
        covered=tuple(covered),
        leave=_of_kind(found, LEAVE), recapture=_of_kind(found, RECAPTURE),
        smaller=tuple(smaller), notes=tuple(notes), step_ns=step,
    )  # fmt: skip


def _of_kind(found: Sequence[Finding], kind: str) -> tuple[Finding, ...]:
    return tuple(sorted((f for f in found if f.kind == kind), key=lambda f: (-f.time_ns, f.rule, f.title)))


def _full(placed: Ranked) -> float:
    return placed.finding.recoverable.mid if placed.finding.recoverable else 0.0


def _share(placed: Ranked, whole: dict[str, float]) -> float:
    of = whole[placed.finding.saves]
    return _full(placed) / of if of else 0.0
