"""What grows with a parameter, and what should not: fits of time per step over captures at several values of it.

Two forms are fitted to each row (a bucket, role or origin) and to the whole step:

* ``a + b*x`` by least squares: what a unit of the parameter costs, and the share of the time that grows;
* ``a * x^p`` by least squares in log-log: the power, 0 for constant, 1 for proportional. A fixed part pulls the power
  of a proportional cost below 1, so the power understates.

Intervals are Student's t from the scatter of the points around the fit, which needs three different values of the
parameter. With two the fits pass through both points; the interval of the power then comes from the steps within the
captures, and says nothing about curvature. A power whose interval reaches from 0 far enough is not determined, and is
shown as that.

Expectations are data (``expectations.toml``): a row that grows with a power beyond the largest one its algorithm needs
is flagged, when the growth is certain and large enough to matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from hta_dsv4.analysis.bootstrap import block_length, resample, t_quantile
from hta_dsv4.analysis.request_cost import RequestCost, request_cost
from hta_dsv4.analysis.stats import LEVEL, MIN_STEPS
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.toml_text import from_toml

TOTAL = "(step)"
MATERIAL = 0.02
"""Growth below this part of the largest step's time is not flagged: real or not, it is nothing to attack."""
SLACK = 0.1
"""A power may exceed the expected one by this much before it counts as growth: launch overheads, cache effects."""


@dataclass(frozen=True, slots=True)
class Point:
    """One capture at one value of the parameter.

    Attributes:
        label: the capture's name.
        x: the parameter's value, > 0.
        steps: row -> own time of each step, ns, int64 [steps]; a row that is missing took no time.
        unprofiled_ns: a step without the profiler, where a manifest says it.
    """

    label: str
    x: float
    steps: dict[str, np.ndarray]
    unprofiled_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """How one row may grow with the parameter.

    Attributes:
        power: largest power that needs no explanation.
        why: the reason, one clause.
    """

    power: float
    why: str


@dataclass(frozen=True, slots=True)
class Fit:
    """One row over the values of a parameter.

    Attributes:
        name: the row.
        x, mean_ns: the values in increasing order, and the mean time per step at each.
        intercept_ns, slope_ns: of ``a + b*x``; ns, and ns per unit of the parameter.
        slope_interval: of the slope, or ``None``.
        linear_r2: share of the variance that the line explains; ``None`` with two values (always 1) or no variance.
        power, factor_ns: of ``factor * x^power``; ``None`` where the row takes no time at some value.
        power_interval, power_r2: of the power law, or ``None``.
        interval_from: what the intervals rest on, or why there is none.
        growing_ns: growth from the smallest to the largest value (difference of the means there).
        growing_share: that, as a part of the whole step's time at the largest value.
        expected: what the row may do, where it is known.
        flagged: whether it grows although it should not.
    """

    name: str
    x: tuple[float, ...]
    mean_ns: tuple[float, ...]
    intercept_ns: float
    slope_ns: float
    slope_interval: tuple[float, float] | None
    linear_r2: float | None
    power: float | None
    factor_ns: float | None
    power_interval: tuple[float, float] | None
    power_r2: float | None
    interval_from: str
    growing_ns: float
    growing_share: float
    expected: Expectation | None
    flagged: bool

    @property
    def determined(self) -> bool | None:
        """Whether the power says more than that it may be 0; ``None`` where there is no power, or no interval."""
        if self.power is None or self.power_interval is None:
            return None
        low, high = self.power_interval
        return not low <= 0 <= high or high - low <= 2 * SLACK


@dataclass(frozen=True)
class Scaling:
    """All rows over one parameter.

    Attributes:
        parameter: its name.
        by: what a row is.
        total: the whole step.
        rows: one per bucket, role or origin, largest growth first; they add up to the total.
        notes: what makes the answer weaker than it looks.
        requests: what a request costs; ``None`` where the parameter is not the concurrency.
    """

    parameter: str
    by: str
    total: Fit
    rows: tuple[Fit, ...]
    notes: tuple[str, ...] = ()
    requests: RequestCost | None = None

    @property
    def flagged(self) -> tuple[Fit, ...]:
        """Rows that grow although they should not."""
        return tuple(r for r in self.rows if r.flagged)


@cache
def _expectations() -> tuple[dict[str, Any], ...]:
    text = files("hta_dsv4.analysis").joinpath("expectations.toml").read_text(encoding="utf-8")
    return tuple(from_toml(text)["expect"])


def expectation(parameter: str, name: str) -> Expectation | None:
    """How a row may grow with a parameter.

    Args:
        parameter: e.g. ``max_context``.
        name: a bucket, role or origin.

    Returns:
        The first entry of ``expectations.toml`` that names both, or ``None``: nothing is expected.
    """
    for entry in _expectations():
        if entry["parameter"] == parameter and ("*" in entry["names"] or name in entry["names"]):
            return Expectation(float(entry["power"]), str(entry["why"]))
    return None


def scaling(points: Sequence[Point], parameter: str, by: str, *, seed: int = 0) -> Scaling:
    """Fit every row over the values of a parameter.

    Args:
        points: captures at two or more different values; several at one value are repeated captures.
        parameter: what ``x`` is.
        by: what the rows of the points are (bucket, role, origin).
        seed: of the bootstrap.

    Returns:
        The fits.

    Raises:
        HtaDsv4Error: fewer than two different values, a value that is no number from 1e-100 to 1e100, or a capture
            without steps.
    """
    for p in points:
        if not 1e-100 <= p.x <= 1e100:  # squares of what lies beyond do not fit a float
            raise HtaDsv4Error(
                f"{p.label}: {parameter}={p.x:g} cannot be fitted; values must be above 0, up to 1e100"
            )
        if not any(len(v) for v in p.steps.values()):
            raise HtaDsv4Error(f"{p.label}: no steps in the trace, so there is no time per step to fit")
    ordered = sorted(points, key=lambda p: (p.x, p.label))
    values = sorted({p.x for p in ordered})
    if len(values) < 2:
        raise HtaDsv4Error(f"a fit needs at least two different values of {parameter}; got {len(values)}")
    names = sorted({n for p in ordered for n in p.steps})
    series = {n: [_of(p, n) for p in ordered] for n in names}
    whole = [np.sum([series[n][i] for n in names], axis=0) for i in range(len(ordered))]
    largest = float(np.mean([w.mean() for w, p in zip(whole, ordered, strict=True) if p.x == values[-1]]))
    x = np.array([p.x for p in ordered])
    fits = [_fit(n, x, series[n], largest, expectation(parameter, n), seed) for n in names]
    total = _fit(TOTAL, x, whole, largest, None, seed)
    notes = []
    if len(values) == 2:
        notes.append(f"two values of {parameter}: the fits pass through both, so nothing tests their form")
    if len(values) == len(ordered):
        notes.append("one capture per value: how much a repeated capture would differ is unknown")
    if not any(e["parameter"] == parameter for e in _expectations()):
        notes.append(f"nothing is expected of {parameter}, so no row can be flagged")
    open_ = [
        f.name for f in fits if f.determined is False and abs(f.growing_share) >= MATERIAL and not f.flagged
    ]
    if open_:
        notes.append(
            f"{', '.join(open_)}: more than {100 * MATERIAL:.0f} % of the step apart, but the interval of the power "
            "holds 0 and more: whether it grows is not determined; give more values"
        )
    rows = sorted(fits, key=lambda f: (-f.growing_ns, f.name))
    return Scaling(
        parameter, by, total, tuple(rows), tuple(notes), request_cost(parameter, ordered, total, fits)
    )


def _of(point: Point, name: str) -> np.ndarray:
    length = max(len(v) for v in point.steps.values())
    return point.steps.get(name, np.zeros(length, dtype=np.int64)).astype(float)


def _fit(
    name: str,
    x: np.ndarray,
    steps: Sequence[np.ndarray],
    largest: float,
    expected: Expectation | None,
    seed: int,
) -> Fit:
    y = np.array([s.mean() for s in steps])
    different = sorted(set(x))
    dof = len(x) - 2 if len(different) > 2 else 0
    intercept, slope, slope_half, linear_r2 = _line(x, y, dof)
    power = factor = power_half = power_r2 = None
    interval: tuple[float, float] | None = None
    within: tuple[float, float] | None = None
    source = "the scatter of the points around the fit" if dof else "unknown: two values"
    if (y > 0).all():
        log_factor, power, power_half, power_r2 = _line(np.log(x), np.log(y), dof)
        factor = math.exp(log_factor)
        if min(len(s) for s in steps) >= MIN_STEPS:
            within = _from_steps(x, steps, seed)
        if power_half is not None:
            interval = (power - power_half, power + power_half)
        elif within is not None:
            interval, source = within, "the variation between steps within the captures"
        else:
            source = f"unknown: two values and fewer than {MIN_STEPS} steps"
    else:
        source = "unknown: no time at some value"
    growing = float(y[x == different[-1]].mean() - y[x == different[0]].mean())
    share = growing / largest if largest else 0.0
    flagged = False
    if expected is not None and share >= MATERIAL:
        # Three points leave one degree of freedom and a wide interval; the steps may know better that it grows.
        lows = [i[0] for i in (interval, within) if i is not None]
        if power is None:
            flagged = expected.power == 0  # it came out of nothing
        elif expected.power == 0 and slope_half is not None and slope - slope_half > 0:
            flagged = True  # a line tells growth from none where a fixed part makes a power law fit badly
        else:
            flagged = power > expected.power + SLACK and (not lows or max(lows) > expected.power)
    return Fit(
        name, tuple(float(v) for v in different), tuple(float(y[x == v].mean()) for v in different),
        intercept, slope, None if slope_half is None else (slope - slope_half, slope + slope_half), linear_r2,
        power, factor, interval, power_r2, source, growing, share, expected, flagged,
    )  # fmt: skip


def _line(x: np.ndarray, y: np.ndarray, dof: int) -> tuple[float, float, float | None, float | None]:
    """Intercept, slope, half of the slope's interval and R2 of a least-squares line."""
    dx, dy = x - x.mean(), y - y.mean()
    slope = float(dx @ dy / (dx @ dx))
    rest, scatter = float(((dy - slope * dx) ** 2).sum()), float(dy @ dy)
    if not dof:
        return float(y.mean() - slope * x.mean()), slope, None, None
    half = t_quantile(1 - (1 - LEVEL) / 2, dof) * math.sqrt(rest / dof / float(dx @ dx))
    return float(y.mean() - slope * x.mean()), slope, half, 1 - rest / scatter if scatter > 0 else None


def _from_steps(x: np.ndarray, steps: Sequence[np.ndarray], seed: int) -> tuple[float, float]:
    """Percentile interval of the power when the steps of each capture are resampled."""
    means = []
    for i, s in enumerate(steps):
        means.append(s[resample(len(s), block_length(s), seed + i)].mean(axis=1))
    dx = np.log(x) - np.log(x).mean()
    with np.errstate(divide="ignore"):
        powers = (dx[:, None] * np.log(np.array(means))).sum(axis=0) / (dx @ dx)
    low, high = np.quantile(powers[np.isfinite(powers)], [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2])
    return float(low), float(high)
