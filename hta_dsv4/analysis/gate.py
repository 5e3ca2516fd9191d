"""Does a candidate keep its budgets? Captures reduced to series per step, and budgets -> a verdict on each.

* ``fail``: over the budget by more than noise explains (:mod:`excess`).
* ``inconclusive``: over it, but not by more than noise; or the captures cannot tell (not comparable, cut, too few).
* ``pass``: not over it. With ``strict`` in the file, not over it even with the noise added.

All verdicts of one gate hold together. A gate fails if any budget does, else is inconclusive if any is.

Where captures have several ranks, a budget holds for each of them, rank against the same rank: a step ends when its
last rank does, so what one rank loses, the job loses. Each check is as bad as its worst rank, and the bounds of all
ranks hold together as those of all checks do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hta_dsv4.analysis.budgets import (
    KERNEL,
    MAX_SHARE,
    ORIGIN,
    RELATIVE,
    STEP,
    Budget,
    Budgets,
)
from hta_dsv4.analysis.comparability import Comparability
from hta_dsv4.analysis.counted import IDLE, OWN, SUM, WALL
from hta_dsv4.analysis.excess import (
    CAPTURES,
    EXACT,
    FEW_STEPS,
    NONE,
    Excess,
    correlation_of,
    excesses,
    mean_of_captures,
)
from hta_dsv4.analysis.gate_notes import NoteFacts, gate_notes
from hta_dsv4.analysis.gate_rows import COUNTS, contrast, each_row, mean_of, refuse_no_match
from hta_dsv4.analysis.gate_sides import Ranked, Sides
from hta_dsv4.analysis.step_series import Capture
from hta_dsv4.errors import HtaDsv4Error

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"
CLOSE = "kept, but closer to the limit than noise"
_CERTAIN = "the same in every step"


@dataclass(frozen=True, slots=True)
class Cause:
    """What a row's change comes from.

    Attributes:
        kernel: its name.
        delta_ns: change of its time per step.
        effect: the larger part of that: slower or faster, more or fewer launches, new, gone.
        delta_launches: change of its launches per step.
    """

    kernel: str
    delta_ns: int
    effect: str
    delta_launches: float = 0.0


@dataclass(frozen=True, slots=True)
class Check:
    """One limit of one budget, judged. Times in ns, shares 0..1, launches per step.

    Attributes:
        budget: with its own row's name, also where it comes from ``[each.*]``.
        key: which limit.
        value: of the candidate.
        base: of the baseline; ``None`` without one.
        allowed: what the candidate's value may be.
        excess: value minus allowed.
        noise: an excess up to this shows nothing; ``None`` where unknown.
        evidence: what the noise rests on.
        verdict: pass, fail or inconclusive.
        reason: one clause.
        causes: of a change that is not passed, largest first.
        rank: the rank that all of this is about, the worst of several; ``None`` where captures have one only.
        by_rank: the same check of every rank, by number; empty where there is one only.
    """

    budget: Budget
    key: str
    value: float
    base: float | None
    allowed: float
    excess: float
    noise: float | None
    evidence: str
    verdict: str
    reason: str
    causes: tuple[Cause, ...] = ()
    rank: int | None = None
    by_rank: tuple[Check, ...] = ()

    @property
    def unit(self) -> str:
        """ns, launches or share."""
        return "share" if self.key == MAX_SHARE else "launches" if self.key in COUNTS else "ns"


@dataclass(frozen=True, slots=True)
class Gate:
    """All budgets, judged.

    Attributes:
        budgets: as read.
        checks: in file order.
        comparability: of the captures.
        base_label, candidate_label: what is compared; the former ``None`` without a baseline.
        base_captures, candidate_captures: how many of each.
        base_steps, candidate_steps: counted steps of each capture.
        notes: what makes the answer weaker than it looks.
    """

    budgets: Budgets
    checks: tuple[Check, ...]
    comparability: Comparability
    base_label: str | None
    candidate_label: str
    base_steps: tuple[int, ...]
    candidate_steps: tuple[int, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> str:
        """Fail if any budget fails, else inconclusive if any is, else pass."""
        found = {c.verdict for c in self.checks}
        return next((v for v in (FAIL, INCONCLUSIVE) if v in found), PASS)

    def count(self, verdict: str) -> int:
        """How many checks ended so."""
        return sum(c.verdict == verdict for c in self.checks)


def gate(budgets: Budgets, base: Ranked, candidate: Ranked, comparable: Comparability) -> Gate:
    """Judge a candidate by its budgets.

    Args:
        budgets: as read.
        base: captures of the baseline, each as its ranks; none where only absolute budgets are to be kept.
        candidate: captures of the candidate, one or more.
        comparable: whether they may be compared.

    Returns:
        The verdicts, without causes.

    Raises:
        HtaDsv4Error: a budget against the baseline and no baseline, or a name that matches nothing.
    """
    needing = budgets.relative
    if needing and not base:
        raise HtaDsv4Error(
            f"{needing.place}: {needing.said} is a budget against a baseline; give --baseline TRACE"
        )
    named = [b for b in budgets.budgets if b.name]
    old, new = ([rank for capture in side for rank in capture] for side in (base, candidate))
    for budget in named:
        refuse_no_match(budget, [*old, *new])
    sides = Sides(base, candidate)
    each = {
        (id(b), row.name): row
        for b in budgets.budgets
        if not b.name
        for pair in sides.pairs(False)
        for row in each_row(b, named, pair.base, pair.candidate)
    }
    expanded = [*named, *each.values()]
    asked = [(b, key, pair) for b in expanded for key in b.limits for pair in sides.pairs(key in RELATIVE)]
    contrasts = [contrast(b, key, budgets, p.base, p.candidate) for b, key, p in asked]
    have_steps = all(c.steps for c in (*old, *new))
    found = excesses(contrasts, budgets.level) if have_steps else [Excess(0.0, None, NONE)] * len(asked)
    judged = [
        _Judge(budgets, p.base, p.candidate, comparable).check(b, key, f, have_steps, p.rank)
        for (b, key, p), f in zip(asked, found, strict=True)
    ]
    checks = _worst([(id(b), key) for b, key, _ in asked], judged)
    about = NoteFacts(
        budgets.level, [c.evidence for c in judged], sum(c.reason == CLOSE for c in checks),
        (len(base), len(candidate)), min((c.steps for c in (*old, *new)), default=0),
        correlation_of(contrasts) if have_steps else 0.0, max((_early(c) for c in (*old, *new)), default=0.0),
    )  # fmt: skip
    told = {c.reason for c in checks}
    notes = [f"not comparable: {d.said}" for d in comparable.reasons] + list(comparable.unfit)
    notes = [*sides.notes(), *(n for n in notes if n not in told), *comparable.notes, *gate_notes(about)]
    return Gate(
        budgets, checks, comparable,
        old[0].conditions.label if old else None, new[0].conditions.label,
        tuple(min(r.steps for r in c) for c in base), tuple(min(r.steps for r in c) for c in candidate),
        tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _early(capture: Capture) -> float:
    """Part of a capture's summed durations that is early time."""
    total = int(capture.times[SUM].sum())
    return 1 - int(capture.times[OWN].sum()) / total if total else 0.0


def _worst(keys: Sequence[tuple[int, str]], checks: Sequence[Check]) -> tuple[Check, ...]:
    """One check of each limit, in order: that of the worst rank, with those of all beside it."""
    groups: dict[tuple[int, str], list[Check]] = {}
    for key, check in zip(keys, checks, strict=True):
        groups.setdefault(key, []).append(check)
    order = (FAIL, INCONCLUSIVE, PASS)
    out = []
    for group in groups.values():
        worst = min(group, key=lambda c: (order.index(c.verdict), (c.noise or 0.0) - c.excess))
        out.append(worst if len(group) == 1 else replace(worst, by_rank=tuple(group)))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Everything that a verdict looks at beside the numbers."""

    budgets: Budgets
    base: Sequence[Capture]
    candidate: Sequence[Capture]
    comparable: Comparability

    def check(
        self, budget: Budget, key: str, found: Excess, have_steps: bool, rank: int | None = None
    ) -> Check:
        sides = [
            mean_of(side, budget, key) if side and have_steps else None
            for side in (self.candidate, self.base)
        ]
        value, base = sides[0] or 0.0, sides[1]
        excess, noise = found.excess, found.noise
        if key == MAX_SHARE and have_steps:  # the contrast is in ns: the share's part of the step
            whole = mean_of_captures([c.times[OWN] for c in self.candidate]) or 1.0
            excess, noise = excess / whole, None if noise is None else noise / whole
        verdict, reason = self._refused(budget, key, found.evidence) or self._judged(
            excess, noise, found.evidence
        )
        return Check(
            budget,
            key,
            value,
            base,
            value - excess,
            excess,
            noise,
            found.evidence,
            verdict,
            reason,
            rank=rank,
        )

    def _judged(self, excess: float, noise: float | None, evidence: str) -> tuple[str, str]:
        if noise is None:
            return INCONCLUSIVE, "a single step says nothing about noise; record more steps"
        if excess > noise:
            return FAIL, f"over by more than noise ({_rests_on(evidence)})"
        if excess > 0:
            return INCONCLUSIVE, f"over by less than noise ({_rests_on(evidence)}); record more"
        if excess > -noise:
            return (INCONCLUSIVE, f"{CLOSE}, and strict is set") if self.budgets.strict else (PASS, CLOSE)
        return PASS, "kept"

    def _refused(self, budget: Budget, key: str, evidence: str) -> tuple[str, str] | None:
        """Why a check cannot be made, whatever the numbers say."""
        if self.comparable.unfit:
            return INCONCLUSIVE, self.comparable.unfit[0]
        sides = (*self.base, *self.candidate) if key in RELATIVE else tuple(self.candidate)
        if key in RELATIVE and self.comparable.reasons:
            return INCONCLUSIVE, f"not comparable: {self.comparable.reasons[0].said}"
        if budget.kind == ORIGIN and (blind := [c for c in sides if not c.conditions.knows_origin]):
            return INCONCLUSIVE, (
                f"{blind[0].conditions.label}: the origin of most of the time is unknown; record scopes, or give a "
                "companion"
            )
        lost = budget.kind in (ORIGIN, KERNEL) and not budget.optional
        if lost and self.base and all(c.row(budget, False) is None for c in self.candidate):
            return INCONCLUSIVE, (
                "in the baseline, but nothing in the candidate matches: gone, or renamed? change the budget, or set "
                "optional = true"
            )
        if budget.kind == STEP and budget.name in (WALL, IDLE):
            slow = [
                c for c in sides if (c.conditions.overhead_percent or 0) > self.budgets.max_overhead_percent
            ]
            if slow:
                return INCONCLUSIVE, (
                    f"{slow[0].conditions.label}: the profiler added {slow[0].conditions.overhead_percent:.0f} % to a "
                    f"step, so its {budget.name} time is the recording's"
                )
        fewest = min(len(s) for s in (self.candidate, *([self.base] if key in RELATIVE else ())))
        if evidence != EXACT and fewest < self.budgets.min_captures:
            return INCONCLUSIVE, f"min_captures = {self.budgets.min_captures}, and a side has {fewest}"
        return None


def _rests_on(evidence: str) -> str:
    return {
        CAPTURES: "repeated captures", FEW_STEPS: "few steps, taken as independent", EXACT: _CERTAIN,
    }.get(evidence, "steps of these captures")  # fmt: skip
