"""How sure a number is: spread over the steps, intervals that respect autocorrelation, and when a change is real.

Intervals come from the stationary bootstrap (:mod:`bootstrap`), in closed form where a mean is asked for, seeded where
resamples are drawn: the same trace gives the same interval.

A change is called ``real`` only if its interval leaves out 0 *and* it exceeds the A/A noise floor: how much a variant
differs from itself. Two kinds of evidence are kept apart:

* within-run: steps of one capture against steps of another; the floor is the difference of the two halves of each.
* across-run: repeated captures of one variant; the floor is the largest difference between any two of them. With one
  capture per variant this noise is unknown, and the verdict says so: another run may differ by more.

With fewer than :data:`MIN_STEPS` steps no interval over steps is given. The verdict then says only whether the change
is beyond the spread of the few steps seen (:data:`SPREADS` times the two ranges), which is a weaker word on purpose.
What changes in the launches themselves (kernels that come, go, or run another number of times in every step) is no
matter of noise: :mod:`judge` calls that ``structural``. docs/statistics.md has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hta_dsv4.analysis.bootstrap import block_length, mean_variance, resample, t_quantile

MIN_STEPS = 6
"""Fewer steps say next to nothing about how one step depends on the one before, so no interval is drawn from them."""
LEVEL = 0.95

SPREADS = 2.0
"""Few steps: a change counts as beyond their spread when it exceeds the ranges of both sides, added, this many times.
Of unchanged quantities with independent normal steps 3.7 % pass by chance at 2 steps a side, 0.1 % at 3."""

REAL, WITHIN_NOISE, UNKNOWN, UNCHANGED = "real", "within noise", "unknown", "unchanged"
STRUCTURAL = "structural"
BEYOND_SPREAD, WITHIN_SPREAD = "beyond spread", "within spread"


@dataclass(frozen=True, slots=True)
class Estimate:
    """One quantity over the steps of one capture, ns.

    Attributes:
        n: number of steps.
        mean, median: over the steps.
        mad: median absolute deviation from the median (not scaled).
        iqr: upper minus lower quartile.
        interval, median_interval: bootstrap intervals of mean and median; ``None`` with a ``reason``.
        level: their level.
        block: mean block length of the bootstrap, in steps: 1 would be independent steps.
        reason: why there is no interval, or ``""``.
    """

    n: int
    mean: float
    median: float
    mad: float
    iqr: float
    interval: tuple[float, float] | None
    median_interval: tuple[float, float] | None
    level: float = LEVEL
    block: float = 1.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of time per step from one variant to another, and whether to believe it.

    Attributes:
        delta_ns: difference of the means, other minus base.
        interval: of the difference, ns, simultaneous for all rows of its table; ``None`` where unknown.
        floor_ns: the A/A noise floor; ``None`` where unknown.
        within_run: from the steps of the captures: ``real | within noise | unchanged``; with few steps
            ``beyond spread | within spread``, with a single one ``unknown``; ``structural`` where the launches differ.
        across_run: ``real | within noise`` from repeated captures; ``unknown`` with one capture each.
        reason: one clause: what the verdict rests on, or why there is none.
    """

    delta_ns: float
    interval: tuple[float, float] | None
    floor_ns: float | None
    within_run: str
    across_run: str
    reason: str

    @property
    def verdict(self) -> str:
        """Across-run evidence where there is any, else the within-run one; what is structural stays so."""
        if self.across_run == UNKNOWN or (self.within_run == STRUCTURAL and self.across_run == REAL):
            return self.within_run
        return self.across_run


def estimate(values: np.ndarray, *, level: float = LEVEL, seed: int = 0) -> Estimate:
    """Describe one quantity over the steps of a capture.

    Args:
        values: int64 or float [n], one per step in time order.
        level: of the intervals.
        seed: of the bootstrap.

    Returns:
        The estimate. Percentile intervals are widened for small n (Hesterberg 2015), as the bootstrap alone is too
        narrow there.
    """
    x = np.asarray(values, dtype=float)
    n = len(x)
    if not n:
        nan = float("nan")
        return Estimate(0, nan, nan, nan, nan, None, None, level, reason="no steps")
    median = float(np.median(x))
    low, high = np.quantile(x, [0.25, 0.75])
    spread = (float(np.median(np.abs(x - median))), float(high - low))
    if n < MIN_STEPS:
        reason = f"too few steps for an interval: {n}, at least {MIN_STEPS} are needed"
        return Estimate(n, float(x.mean()), median, *spread, None, None, level, reason=reason)
    block = block_length(x)
    drawn = x[resample(n, block, seed)]
    wide = math.sqrt(n / (n - block)) * t_quantile(1 - (1 - level) / 2, n / block)
    tail = NormalDist().cdf(-wide)
    ends = [np.quantile(s, [tail, 1 - tail]) for s in (drawn.mean(axis=1), np.median(drawn, axis=1))]
    mean_ends, median_ends = ((float(a), float(b)) for a, b in ends)
    return Estimate(n, float(x.mean()), median, *spread, mean_ends, median_ends, level, block)


def halves_floor(values: np.ndarray) -> float | None:
    """How much a capture differs from itself: mean of its second half of steps minus that of its first, absolute.

    Args:
        values: [n] per step in time order.

    Returns:
        The floor, or ``None`` with fewer than two steps.
    """
    n = len(values)
    if n < 2:
        return None
    return abs(float(np.mean(values[n - n // 2 :])) - float(np.mean(values[: n // 2])))


def compare_steps(
    base: Sequence[np.ndarray], other: Sequence[np.ndarray], *, level: float = LEVEL
) -> list[Change]:
    """Judge the changes of several quantities between two variants.

    Args:
        base: per capture of the variant, int64 [steps, quantities]: ns per step. The first capture is the one that is
            compared; the others give the across-run noise.
        other: the same of the other variant.
        level: that all intervals together hold with (Bonferroni over the quantities).

    Returns:
        One change per quantity.
    """
    a, b = np.asarray(base[0], dtype=float), np.asarray(other[0], dtype=float)
    quantities = a.shape[1]
    delta = b.mean(axis=0) - a.mean(axis=0)
    (errors, dof), why = standard_errors(a, b), ""
    if errors is None:
        fewest = min(len(a), len(b))
        why = f"too few steps for an interval: {fewest}, at least {MIN_STEPS} are needed"
    t = t_quantile(1 - (1 - level) / 2 / max(quantities, 1), dof)
    floors = None
    if errors is not None and min(len(a), len(b)) > 1:
        floors = np.maximum(
            *(np.abs(x[len(x) - len(x) // 2 :].mean(axis=0) - x[: len(x) // 2].mean(axis=0)) for x in (a, b))
        )
    out = []
    for q in range(quantities):
        interval = None
        if errors is not None:
            half = t * float(errors[q])
            interval = (float(delta[q]) - half, float(delta[q]) + half)
        floor = None if floors is None else float(floors[q])
        across, across_floor = _across(base, other, q)
        within, reason = _judge(float(delta[q]), interval, floor, why, a[:, q], b[:, q])
        if across != UNKNOWN:
            reason += f"; repeated captures differ by up to {across_floor / 1e3:,.3f} us"
        out.append(Change(float(delta[q]), interval, floor, within, across, reason))
    return out


def _judge(
    delta: float,
    interval: tuple[float, float] | None,
    floor: float | None,
    why: str,
    a: np.ndarray,
    b: np.ndarray,
) -> tuple[str, str]:
    if len(a) == len(b) and np.array_equal(a, b):
        return UNCHANGED, "the same values step by step"
    if np.ptp(a) == np.ptp(b) == 0 and a[0] == b[0]:
        return UNCHANGED, "the same value in every step"
    if interval is None or floor is None:
        return _few(delta, why, a, b)
    if abs(delta) <= floor:
        return WITHIN_NOISE, f"not beyond the A/A floor of {floor / 1e3:,.3f} us"
    if interval[0] <= 0 <= interval[1]:
        return WITHIN_NOISE, "the interval holds 0"
    return REAL, f"beyond the A/A floor of {floor / 1e3:,.3f} us, and the interval leaves out 0"


def _few(delta: float, why: str, a: np.ndarray, b: np.ndarray) -> tuple[str, str]:
    """What a handful of steps can say: whether the change stands out of their spread."""
    if min(len(a), len(b)) < 2:
        return UNKNOWN, why
    spread = float(np.ptp(a) + np.ptp(b))
    verdict = BEYOND_SPREAD if abs(delta) > SPREADS * spread else WITHIN_SPREAD
    word = "more" if verdict == BEYOND_SPREAD else "not more"
    return verdict, f"{word} than {SPREADS:g}x the spread of the steps seen ({spread / 1e3:,.3f} us); {why}"


def _across(base: Sequence[np.ndarray], other: Sequence[np.ndarray], q: int) -> tuple[str, float]:
    """Verdict and floor from repeated captures: the means of all captures of both sides must not interleave."""
    if max(len(side) for side in (base, other)) < 2:
        return UNKNOWN, 0.0
    means = [[float(np.mean(c[:, q])) for c in side if len(c)] for side in (base, other)]
    repeats = [m for m in means if len(m) > 1]
    if not repeats:
        return UNKNOWN, 0.0
    floor = max(max(m) - min(m) for m in repeats)
    apart = min(means[1]) > max(means[0]) or max(means[1]) < min(means[0])
    delta = abs(means[1][0] - means[0][0])  # the change that is reported: of the first captures
    return (REAL if apart and delta > floor else WITHIN_NOISE), floor


def standard_errors(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray | None, float]:
    """Bootstrap standard errors of the differences of means, and their degrees of freedom.

    Args:
        a: [n, quantities], in time order.
        b: [m, quantities].

    Returns:
        float [quantities], or ``None`` with fewer than :data:`MIN_STEPS` values on a side; the degrees of freedom.
    """
    if min(len(a), len(b)) < MIN_STEPS:
        return None, 1.0
    variance, dof = np.zeros(a.shape[1]), math.inf
    for x in (a, b):
        n = len(x)
        # One block length for all quantities, that of their sum: what makes steps alike (clocks, batch, cache) is
        # common to them.
        block = block_length(x.sum(axis=1))
        variance += mean_variance(x, block) * n / (n - block)
        dof = min(dof, n / block)  # the number of blocks is what varies freely
    return np.sqrt(variance), dof
