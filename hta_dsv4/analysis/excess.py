"""By how much is a budget exceeded, and by how much could noise alone exceed it?

Every budget is one linear contrast of means per step::

    excess  =  mean(candidate) - weight * mean(baseline) - constant

``weight`` is 0 for an absolute budget, 1 for one in us, ``1 + p/100`` for one in percent. What noise alone could bring
comes from the best evidence there is:

* **captures**: repeats on a side. Their means scatter by all that differs between runs; both sides' scatter is pooled
  (one variance for both, so five captures of the baseline also say how much the single candidate may be off).
* **steps**: one capture a side of at least :data:`~hta_dsv4.analysis.stats.MIN_STEPS` steps: the largest of four, all
  of which respect that steps depend on each other: the stationary bootstrap's variance, that of the means of 3 to 5
  batches of consecutive steps, the A/A floor (half against half of a capture), and that of steps of which each depends
  on the one before (:mod:`dependence`), with a correlation that all quantities of a gate estimate together. Each alone
  is too narrow for short series: of 12 checks at 20 steps and a correlation of 0.8, the first three failed in 12 % of
  trials, all four do in 2 %.
* **few steps**: 2 to 5: their variance, taken as independent, and twice their ranges; both must be exceeded.

Each gives a one-sided bound by Student's t that holds for all contrasts together (Bonferroni), so that a candidate
which is no different fails with at most ``1 - level``, if its noise is of the kind that the evidence shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hta_dsv4.analysis.bootstrap import block_length, mean_variance, t_quantile
from hta_dsv4.analysis.dependence import common_correlation, mean_of_dependent
from hta_dsv4.analysis.stats import MIN_STEPS, SPREADS, halves_floor

CAPTURES, STEPS, FEW_STEPS, EXACT, NONE = "captures", "steps", "few steps", "exact", "none"
"""What a bound rests on. ``exact``: the same value in every step of every capture; ``none``: a single step."""
STEPS_PER_BATCH, MOST_BATCHES = 10, 5
"""Batches are long rather than many: what their number costs in width, their length saves in false alarms."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One quantity of a candidate against what it may be.

    Attributes:
        candidate: per capture, float or int64 [steps], in time order.
        base: the same of the baseline; empty without one.
        weight: of the baseline's mean in the excess.
        constant: taken off.
        known_noise: an excess up to this is noise, whatever the captures say.
    """

    candidate: tuple[np.ndarray, ...]
    base: tuple[np.ndarray, ...] = ()
    weight: float = 0.0
    constant: float = 0.0
    known_noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Excess:
    """How far over a budget.

    Attributes:
        excess: negative where the budget is kept.
        noise: an excess up to this is no evidence; ``None`` where nothing tells.
        evidence: what the noise rests on.
    """

    excess: float
    noise: float | None
    evidence: str


def excesses(contrasts: Sequence[Contrast], level: float) -> list[Excess]:
    """Judge several contrasts so that all bounds hold together.

    Args:
        contrasts: of one gate.
        level: that all of them together hold with.

    Returns:
        One result per contrast.
    """
    exact = [_exact(c) for c in contrasts]
    alpha = (1 - level) / max(exact.count(False), 1)
    common = correlation_of(contrasts)
    return [_excess(c, alpha, common, certain) for c, certain in zip(contrasts, exact, strict=True)]


def correlation_of(contrasts: Sequence[Contrast]) -> float:
    """How much a step depends on the one before, by all that several contrasts judge: 0 to 0.99."""
    return common_correlation(
        x for c in contrasts for side in (c.candidate, c.base if c.weight else ()) for x in side
    )


def mean_of_captures(captures: Sequence[np.ndarray]) -> float:
    """Mean over captures of their means over steps: a long capture weighs no more than a short one."""
    return float(np.mean([float(np.mean(c)) for c in captures]))


def _excess(c: Contrast, alpha: float, common: float, exact: bool) -> Excess:
    over = mean_of_captures(c.candidate) - c.constant
    if c.base:
        over -= c.weight * mean_of_captures(c.base)
    if exact:
        return Excess(over, c.known_noise, EXACT)
    shortest = min(len(x) for x in (*c.candidate, *(c.base if c.weight else ())))
    if max(len(c.candidate), len(c.base)) > 1:
        noise, evidence = _of_captures(c, alpha), CAPTURES
    elif shortest >= MIN_STEPS:
        noise, evidence = _of_steps(c, alpha, common), STEPS
    elif shortest >= 2:
        noise, evidence = _of_few(c, alpha), FEW_STEPS
    else:
        return Excess(over, None, NONE)
    return Excess(over, max(noise, c.known_noise), evidence)


def _exact(c: Contrast) -> bool:
    """Whether nothing varies: the same value in every step of every capture of a side, and at least two of them."""
    for side in (c.candidate, c.base if c.weight else ()):
        if side:
            values = np.concatenate(side)
            if len(values) < 2 or np.ptp(values) != 0:
                return False
    return True


def _of_captures(c: Contrast, alpha: float) -> float:
    sides = [np.array([float(np.mean(x)) for x in side]) for side in (c.candidate, c.base) if side]
    free = sum(len(m) - 1 for m in sides)
    pooled = sum(float(((m - m.mean()) ** 2).sum()) for m in sides) / free
    return t_quantile(1 - alpha, free) * float(np.sqrt(pooled * _spread(c, len(c.candidate), len(c.base))))


def _of_steps(c: Contrast, alpha: float, common: float) -> float:
    variance, dof, floor = 0.0, np.inf, 0.0
    batch_variance, free = 0.0, 0
    dependent, spare = 0.0, 0.0
    for side, weight in ((c.candidate, 1.0), (c.base, c.weight)):
        if not (side and weight):
            continue
        x = np.asarray(side[0], dtype=float)
        n, block = len(x), block_length(x)
        variance += weight**2 * float(mean_variance(x, block)) * n / (n - block)
        dof = min(dof, n / block)
        floor = max(floor, weight * (halves_floor(x) or 0.0))
        means = np.array([part.mean() for part in np.array_split(x, _batches(n))])
        batch_variance += weight**2 * float(means.var(ddof=1)) / len(means)
        free += len(means) - 1
        mean = mean_of_dependent(x, common)
        dependent += weight**2 * mean.variance
        spare += mean.independent - 1
    by_blocks = t_quantile(1 - alpha, dof) * float(np.sqrt(variance))
    by_batches = t_quantile(1 - alpha, free) * float(np.sqrt(batch_variance))
    by_dependence = t_quantile(1 - alpha, max(spare, 1.0)) * float(np.sqrt(dependent))
    return max(by_blocks, by_batches, by_dependence, floor)


def _batches(n: int) -> int:
    """Batches of consecutive steps, long enough that their means hardly depend on each other."""
    return max(3, min(MOST_BATCHES, n // STEPS_PER_BATCH))


def _of_few(c: Contrast, alpha: float) -> float:
    sides = [np.asarray(side[0], dtype=float) for side in (c.candidate, c.base) if side]
    free = sum(len(x) - 1 for x in sides)
    pooled = sum(float(((x - x.mean()) ** 2).sum()) for x in sides) / free
    n_base = len(c.base[0]) if c.base else 0
    bound = t_quantile(1 - alpha, free) * float(np.sqrt(pooled * _spread(c, len(c.candidate[0]), n_base)))
    ranges = float(np.ptp(sides[0])) + (c.weight * float(np.ptp(sides[1])) if c.base else 0.0)
    return max(bound, SPREADS * ranges)


def _spread(c: Contrast, n: int, m: int) -> float:
    """Variance of the contrast in units of that of one value."""
    return 1 / n + (c.weight**2 / m if m else 0.0)
