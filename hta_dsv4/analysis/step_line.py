"""Step time over concurrency as a line, ``a + b*C``: what a step costs anyway, and what each request adds.

``1/b`` is the throughput that no concurrency exceeds while the line holds.

The fit is weighted least squares over repeats. Their scatter says whether noise is the same at every C or grows with
the step time, and the weights follow the likelier of the two. Where it cannot tell (few repeats, none), intervals span
those of both. They are Student's t; what they rest on depends on whether a line fits, which repeats can test (lack of
fit: the distance of the means from the line, against the scatter of the repeats):

* it fits: residuals of all repeats around the line;
* it does not: the means around the line alone, because a curve's distance from a line is no noise that repeats shrink;
* no repeats: the points around the line, untested;
* two values of C: a line passes through any two points, so there is no interval and no test.

Between neighbouring values of C the cost of a request more needs no form at all (:class:`Segment`): where a line does
not fit, those say what is true, and the last of them what would bound throughput if it went on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hta_dsv4.analysis.bootstrap import t_quantile
from hta_dsv4.analysis.stats import LEVEL
from hta_dsv4.analysis.tails import f_tail
from hta_dsv4.errors import HtaDsv4Error

UNFIT = 0.05
"""A line is given up when repeats would scatter this rarely so far from it by chance."""
DECISIVE = 10.0
"""One form of noise is believed when the repeats are this many times likelier under it than under the other."""
CLOSE = 0.03
"""A line that is no line to precise repeats still describes the means where none is farther from it than this part."""
_ROUNDING = 1e-12  # of the step time: distances of means from a line that are the arithmetic's

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Throughput that no concurrency exceeds if each further request keeps costing the same.

    Attributes:
        tokens_per_s: ``1/b``; ``None`` where ``b`` is 0 or less.
        low, high: its interval; ``high`` is ``None`` where nothing bounds it, both where there is no interval.
        bounded: whether the data bound it at all: ``b`` and its interval lie above 0.
    """

    tokens_per_s: float | None
    low: float | None
    high: float | None
    bounded: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """From one value of C to the next.

    Attributes:
        low, high: the two values.
        slope_ns: ns of step time per request more between them.
        interval: of the slope, from the scatter of the repeats; ``None`` without repeats.
    """

    low: int
    high: int
    slope_ns: float
    interval: Interval | None

    @property
    def ceiling(self) -> Ceiling:
        """Throughput at which it would end if every further request cost as much as between these two."""
        return ceiling_of(self.slope_ns, self.interval)


@dataclass(frozen=True, slots=True)
class LackOfFit:
    """Whether the means of the repeats lie on the line as closely as their scatter permits.

    Attributes:
        f: mean square of the means around the line over that of the repeats around their means.
        between, within: degrees of freedom of the two.
        p: probability of an ``f`` this large by chance if the line is right.
    """

    f: float
    between: int
    within: int
    p: float


@dataclass(frozen=True, slots=True)
class Bend:
    """Where the step time bends: two lines that meet at ``at`` come closest to the means.

    Attributes:
        at: the value of C, one of those measured.
        before_ns, after_ns: ns per request on either side.
    """

    at: int
    before_ns: float
    after_ns: float


@dataclass(frozen=True, slots=True)
class StepLine:
    """Step time over concurrency.

    Attributes:
        values, mean_ns, repeats: the values of C in increasing order, the mean step time at each, and how many repeats.
        fixed_ns, fixed_interval: ``a``.
        per_request_ns, per_request_interval: ``b``.
        ceiling: ``1/b``.
        noise: ``equal`` at every C, ``relative`` to the step time, or ``unclear``: the repeats do not tell.
        dof: degrees of freedom of the intervals; 0 where there are none.
        interval_from: what they rest on, or why there are none.
        lack: the test of the line; ``None`` where nothing tests it.
        worst, worst_at: largest distance of a mean from the line as a part of the mean (signed), and at which C.
        bend: where it bends, if the line does not fit.
        segments: between neighbouring values.
    """

    values: tuple[int, ...]
    mean_ns: tuple[float, ...]
    repeats: tuple[int, ...]
    fixed_ns: float
    fixed_interval: Interval | None
    per_request_ns: float
    per_request_interval: Interval | None
    ceiling: Ceiling
    noise: str
    dof: int
    interval_from: str
    lack: LackOfFit | None
    worst: float
    worst_at: int
    bend: Bend | None
    segments: tuple[Segment, ...]

    @property
    def fits(self) -> bool | None:
        """Whether a line fits; ``None`` where nothing tests it."""
        return None if self.lack is None else self.lack.p >= UNFIT

    @property
    def holds(self) -> bool:
        """Whether its ceiling may be believed: nothing speaks against the line, or it is off by little everywhere."""
        return self.fits is not False or abs(self.worst) <= CLOSE

    def at(self, concurrency: float) -> float:
        """Step time on the line, ns."""
        return self.fixed_ns + self.per_request_ns * concurrency


def ceiling_of(slope_ns: float, interval: Interval | None) -> Ceiling:
    """Tokens per second at ``slope_ns`` per request, with its interval.

    Args:
        slope_ns: ns of step time that each request adds.
        interval: of the slope, or ``None``.

    Returns:
        The ceiling; not bounded where the slope or the lower end of its interval is 0 or less.
    """
    here = 1e9 / slope_ns if slope_ns > 0 else None
    if interval is None:
        return Ceiling(here, None, None, here is not None)
    low, high = (1e9 / end if end > 0 else None for end in (interval[1], interval[0]))
    return Ceiling(here, low, high, high is not None)


def step_line(concurrency: Sequence[int], step_ns: Sequence[float]) -> StepLine:
    """Fit ``a + b*C``.

    Args:
        concurrency: C of each repeat; at least two different values.
        step_ns: step time of each, ns, > 0.

    Returns:
        The line, how sure it is, and whether it is one.

    Raises:
        HtaDsv4Error: fewer than two values of C, a value below 1, or a step time that is no positive number.
    """
    x, y = np.asarray(concurrency, dtype=float), np.asarray(step_ns, dtype=float)
    values = np.unique(x)
    if len(values) < 2:
        raise HtaDsv4Error(
            f"a line over C needs at least two values of C; got {len(values)}: give --concurrency 1,4,16,64"
        )
    if values[0] < 1:
        raise HtaDsv4Error(f"concurrency {values[0]:g}: need at least one request")
    if not (np.isfinite(y).all() and (y > 0).all()):
        raise HtaDsv4Error("a step time is not a positive number, so no line can be fitted")
    groups = np.split(y[np.argsort(x, kind="stable")], np.flatnonzero(np.diff(np.sort(x))) + 1)
    means = np.array([g.mean() for g in groups])
    noise, forms = _noise(groups, means)
    fits = [_weighted(values, groups, means, unit) for unit in forms]
    best = fits[0]  # the likelier form of noise
    a, b = best.line
    off = means - (a + b * values)
    worst = int(np.argmax(np.abs(off / means)))
    fixed, each = _hull([f.intervals[0] for f in fits]), _hull([f.intervals[1] for f in fits])
    given_up = best.lack is not None and best.lack.p < UNFIT
    return StepLine(
        tuple(int(v) for v in values), tuple(float(m) for m in means), tuple(len(g) for g in groups),
        a, fixed, b, each, ceiling_of(b, each), noise, best.dof, best.source, best.lack,
        float(off[worst] / means[worst]), int(values[worst]),
        _bend(values, means, best.weights) if given_up else None, _segments(values, means, fits),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Weighted:
    """A fit under one form of noise: intercept and slope, their intervals, weights of the means, scatter of repeats."""

    line: tuple[float, float]
    intervals: tuple[Interval | None, Interval | None]
    weights: np.ndarray
    pure: float
    within: int
    dof: int
    source: str
    lack: LackOfFit | None


def _weighted(
    values: np.ndarray, groups: Sequence[np.ndarray], means: np.ndarray, unit: np.ndarray
) -> _Weighted:
    counts = np.array([len(g) for g in groups])
    k, n = len(values), int(counts.sum())
    weights = counts / unit**2  # of the means; their size is relative, the scatter gives it its measure
    a, b, factors = _line(values, means, weights)
    between = float((weights * (means - a - b * values) ** 2).sum())
    if between <= _ROUNDING**2 * float((weights * means**2).sum()):
        between = 0.0
    pure = float(sum((((g - m) / u) ** 2).sum() for g, m, u in zip(groups, means, unit, strict=True)))
    lack = _lack(between, k - 2, pure, n - k)
    if k == 2:
        dof, variance, source = 0, 0.0, "none: two values of C, and a line passes through any two points"
    elif lack is None:
        dof, variance, source = k - 2, between / (k - 2), "the points around the line; no repeats test it"
    elif lack.p >= UNFIT:
        dof, variance, source = n - 2, (between + pure) / (n - 2), "all repeats around the line, which fits"
    else:
        dof, variance, source = k - 2, between / (k - 2), "the means around the line, which does not fit"
    half = [t_quantile(1 - (1 - LEVEL) / 2, dof) * math.sqrt(variance * f) if dof else None for f in factors]
    fixed, each = (None if h is None else (at - h, at + h) for at, h in zip((a, b), half, strict=True))
    return _Weighted((a, b), (fixed, each), weights, pure, n - k, dof, source, lack)


def _hull(intervals: Sequence[Interval | None]) -> Interval | None:
    """The smallest interval that holds all of them."""
    there = [i for i in intervals if i is not None]
    return (min(i[0] for i in there), max(i[1] for i in there)) if there else None


def _noise(groups: Sequence[np.ndarray], means: np.ndarray) -> tuple[str, tuple[np.ndarray, ...]]:
    """How noise changes with C, by the likelihood of the repeats; its relative size at each value, likelier form first.

    Both forms where the repeats do not tell them apart.
    """
    equal, relative = np.ones(len(means)), means / float(np.exp(np.log(means).mean()))
    spare = np.array([len(g) - 1 for g in groups])
    squares = np.array([((g - m) ** 2).sum() for g, m in zip(groups, means, strict=True)])
    if not squares.sum():
        return ("equal", (equal,)) if spare.sum() else ("unclear", (equal, relative))

    def likelihood(unit: np.ndarray) -> float:
        scatter, stretch = float((squares / unit**2).sum()), float((spare * np.log(unit)).sum())
        return -float(spare.sum()) / 2 * math.log(scatter) - stretch

    gain = likelihood(relative) - likelihood(equal)
    if abs(gain) < math.log(DECISIVE):
        return "unclear", (relative, equal) if gain > 0 else (equal, relative)
    return ("relative", (relative,)) if gain > 0 else ("equal", (equal,))


def _line(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[float, float, tuple[float, float]]:
    """Intercept, slope, and their variances for noise of variance ``1/w``."""
    total = float(w.sum())
    centre = float(w @ x) / total
    dx = x - centre
    sxx = float(w @ dx**2)
    slope = float(w @ (dx * y)) / sxx
    return float(w @ y) / total - slope * centre, slope, (1 / total + centre**2 / sxx, 1 / sxx)


def _lack(between: float, k: int, pure: float, within: int) -> LackOfFit | None:
    if k < 1 or within < 1:
        return None
    if pure == 0:  # repeats equal to the nanosecond: any distance is beyond their scatter
        return LackOfFit(math.inf if between else 0.0, k, within, 0.0 if between else 1.0)
    f = between / k / (pure / within)
    return LackOfFit(f, k, within, f_tail(f, k, within))


def _bend(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> Bend:
    """The best of all lines that bend once, at an inner value."""
    at = x[_best_bend(x, y, w)]
    design = np.stack([np.ones_like(x), x, np.maximum(x - at, 0)], axis=1)
    root = np.sqrt(w)
    found = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
    return Bend(int(at), float(found[1]), float(found[1] + found[2]))


def _best_bend(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> int:
    """Position of the inner value where a bend takes most off the squares around the line.

    A bend at ``t`` adds ``h = max(x - t, 0)`` to the line. What that takes off is the squared product of ``h`` with the
    line's residuals, over the square of what of ``h`` is no line itself; all of them are sums over the values beyond
    ``t``, so all bends together cost as much as one.
    """
    a, b, _ = _line(x, y, w)
    z = x - float(w @ x) / float(w.sum())
    rest = w * (y - a - b * x)

    def beyond(v: np.ndarray) -> np.ndarray:
        return np.append(np.cumsum(v[::-1])[::-1][1:], 0.0)

    n, first, second = beyond(w), beyond(w * z), beyond(w * z * z)
    h, zh = first - z * n, second - z * first  # sums of w h and w z h
    own = zh - z * h - h**2 / w.sum() - zh**2 / float(w @ z**2)
    took = (beyond(rest * z) - z * beyond(rest)) ** 2 / np.where(own > 0, own, np.inf)
    return 1 + int(np.argmax(took[1:-1]))  # a line is only given up with three values or more


def _segments(x: np.ndarray, means: np.ndarray, fits: Sequence[_Weighted]) -> tuple[Segment, ...]:
    out = []
    for i in range(len(x) - 1):
        span = float(x[i + 1] - x[i])
        slope = float(means[i + 1] - means[i]) / span
        intervals: list[Interval | None] = []
        for f in fits:
            if f.within > 0:
                size = math.sqrt(f.pure / f.within * float(1 / f.weights[i] + 1 / f.weights[i + 1])) / span
                half = t_quantile(1 - (1 - LEVEL) / 2, f.within) * size
                intervals.append((slope - half, slope + half))
        out.append(Segment(int(x[i]), int(x[i + 1]), slope, _hull(intervals)))
    return tuple(out)
