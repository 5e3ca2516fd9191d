"""What does a budget speak of? Its rows in captures, and each limit as a contrast of means per step."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hta_dsv4.analysis.budgets import (
    KERNEL,
    MAX_LAUNCHES,
    MAX_SHARE,
    MAX_US,
    MORE_LAUNCHES,
    MORE_PERCENT,
    MORE_US,
    RELATIVE,
    ROWS,
    Budget,
    Budgets,
)
from hta_dsv4.analysis.counted import OWN
from hta_dsv4.analysis.excess import Contrast, mean_of_captures
from hta_dsv4.analysis.step_series import Capture
from hta_dsv4.errors import HtaDsv4Error

COUNTS = (MAX_LAUNCHES, MORE_LAUNCHES)
"""Limits of launches; the others are of time."""


def contrast(
    budget: Budget, key: str, budgets: Budgets, base: Sequence[Capture], candidate: Sequence[Capture]
) -> Contrast:
    """One limit as a contrast: of ns, or of launches where the limit counts them.

    Args:
        budget: of a named row.
        key: which of its limits.
        budgets: the file, for the noise it knows of.
        base: captures of the baseline; may be none.
        candidate: captures of the candidate.
    """
    limit = budget.limits[key]
    counts = key in COUNTS
    sides = [tuple(row_of(c, budget, counts) for c in side) for side in (candidate, base)]
    noise = 0.0
    if not counts and all(c.steps for c in candidate):
        noise = budgets.noise_percent / 100 * mean_of_captures(sides[0])
    if key == MAX_SHARE:
        shares = [
            tuple(x - limit / 100 * c.times[OWN] for x, c in zip(side, captures, strict=True))
            for side, captures in zip(sides, (candidate, base), strict=True)
        ]
        return Contrast(shares[0], shares[1], known_noise=noise)
    if key == MORE_PERCENT:
        return Contrast(sides[0], sides[1], weight=1 + limit / 100, known_noise=noise)
    constant = limit * 1e3 if key in (MAX_US, MORE_US) else limit
    return Contrast(sides[0], sides[1], float(key in RELATIVE), constant, noise)


def row_of(capture: Capture, budget: Budget, counts: bool) -> np.ndarray:
    """A budget's quantity in each step of a capture; 0 where nothing matches."""
    found = capture.row(budget, counts)
    return np.zeros(capture.steps, dtype=np.int64) if found is None else found


def mean_of(side: Sequence[Capture], budget: Budget, key: str) -> float:
    """The quantity of one limit: mean per step over a side's captures; for a share, of their steps' sums."""
    value = mean_of_captures([row_of(c, budget, key in COUNTS) for c in side])
    if key != MAX_SHARE:
        return value
    return value / (mean_of_captures([c.times[OWN] for c in side]) or 1.0)


def refuse_no_match(budget: Budget, captures: Sequence[Capture]) -> None:
    """Refuse a name that no capture has, unless it may be absent.

    Raises:
        HtaDsv4Error: it matches nothing; with what was perhaps meant.
    """
    if budget.kind not in ROWS or budget.optional or any(c.row(budget, False) is not None for c in captures):
        return
    known = sorted({n for c in captures for n in c.ns[budget.kind]})
    near = difflib.get_close_matches(budget.name, known, 1, 0.5)
    shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"there are {shown}"
        if budget.kind != KERNEL
        else "try a pattern"
    )
    raise HtaDsv4Error(
        f"{budget.place}: {budget.said} matches nothing in any trace; {hint}; or set optional = true"
    )


def each_row(
    budget: Budget, named: Sequence[Budget], base: Sequence[Capture], candidate: Sequence[Capture]
) -> list[Budget]:
    """``[each.KIND]`` for every row of that kind that is large enough on a side and not named."""
    taken = [b for b in named if b.kind == budget.kind]
    least = budget.least_share_percent / 100
    size: dict[str, float] = {}
    for side in (base, candidate):
        if not side or not all(c.steps for c in side):
            continue
        whole = mean_of_captures([c.times[OWN] for c in side]) or 1.0
        for name in {n for c in side for n in c.ns[budget.kind]}:
            one = replace(budget, name=name)
            size[name] = max(
                size.get(name, 0.0), mean_of_captures([row_of(c, one, False) for c in side]) / whole
            )
    return [
        replace(budget, name=name, optional=True)
        for name in sorted(size, key=lambda n: (-size[n], n))
        if size[name] >= least and not any(b.matches(name) for b in taken)
    ]
