"""Fits over a parameter as a grid, as JSON and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hta_dsv4.analysis.request_cost import CONCURRENCY, RequestCost
from hta_dsv4.analysis.scaling import TOTAL, Fit, Scaling
from hta_dsv4.analysis.step_line import Ceiling
from hta_dsv4.present.grid import ABSENT, Grid, us
from hta_dsv4.present.modelled import about

UNITS = {
    CONCURRENCY: ("request", 1.0),
    "context": ("1,000 tokens", 1e3),
    "max_context": ("1,000 tokens", 1e3),
    "layers": ("layer", 1.0),
}
"""Parameter -> what slopes are per, and how many units that is."""
_HUGE = 1e15
"""Whole numbers from here on are written with an exponent."""
_ALL_DIGITS = 17
"""Digits that tell any two floats apart."""
_SAID = 0.05
"""Part of a request's cost from which a row is named."""


def scaling_grid(found: Scaling, top: int = 0) -> Grid:
    """One row per bucket, role or origin: time at each value, the power with its interval, the slope, and the flag."""
    shown = len(found.rows) if top <= 0 else min(top, len(found.rows))
    values = found.total.x
    unit, scale = UNITS.get(found.parameter, (found.parameter, 1.0))
    names = [f"{found.parameter} = {x}" for x in told_apart(values)]
    headers = (
        found.by, *names, "power", "interval", "R2", f"slope per {unit}", "growth, % of step", "",
    )  # fmt: skip
    rows = [_row(f, scale) for f in found.rows[:shown]]
    if shown < len(found.rows):
        rest = found.rows[shown:]
        times = [us(sum(f.mean_ns[i] for f in rest)) for i in range(len(values))]
        rows.append((f"({len(rest)} more)", *times, "", "", "", "", "", ""))
    flags = [
        f"{f.name} grows with {found.parameter}{_power(f)}, by {us(f.growing_ns)} us per step "
        f"({100 * f.growing_share:.1f} % of the step at {told_apart(values)[-1]}), but should not beyond power "
        f"{f.expected.power:g}: {f.expected.why}"
        for f in found.flagged
        if f.expected is not None
    ]
    if not flags and not any("nothing is expected" in n for n in found.notes):
        flags = [f"nothing is shown to grow with {found.parameter} that should not"]
    title = f"own time per step, us, over {found.parameter}, {len(values)} values"
    said = [] if found.requests is None else request_sentences(found.requests, found.by)
    return Grid(
        title, headers, tuple(rows), (_row(found.total, scale),), (*flags, *said, *found.notes), left=1
    )


def request_sentences(cost: RequestCost, by: str) -> list[str]:
    """What a request costs, of what, and the ceiling; then the same of the step without the profiler.

    Args:
        cost: over concurrency.
        by: what its parts are.
    """
    b = cost.per_request_ns
    parts = [f"{_time(ns)} {name}" for name, ns in cost.parts if b > 0 and ns >= _SAID * b]
    of = f", of it {', '.join(parts)}" if parts else ""
    out = [
        f"GPU time: {_time(cost.fixed_ns)} a step and {_time(b)} per request{of}; a step gives each request a token: "
        f"{_ceiling(cost.ceiling)}"
    ]
    line = cost.unprofiled
    if line is None:
        out.append(
            "steps without the profiler are not known of all captures: throughput cannot be above this, and the host "
            "may keep it below"
        )
        return out
    if not cost.straight:
        out.append(
            f"steps without the profiler, {_time(line.mean_ns[0])} at C = {line.values[0]} to "
            f"{_time(line.mean_ns[-1])} at {line.values[-1]}, are {100 * abs(line.worst):.0f} % off any line at C = "
            f"{line.worst_at}: more than the requests sets them (a late host), and the GPU time's ceiling is the "
            "one to be believed"
        )
    else:
        out.append(
            f"steps without the profiler: {_time(line.fixed_ns)} and {_time(line.per_request_ns)} per request: "
            f"{_ceiling(line.ceiling)}"
        )
    return out


def _ceiling(c: Ceiling) -> str:
    if c.tokens_per_s is None:
        return "no ceiling, a request more costs nothing here"
    between = ""
    if c.low is not None:
        between = f" ({about(c.low)} .. {about(c.high) if c.high is not None else 'unbounded'})"
    return f"ceiling {about(c.tokens_per_s)} tok/s{between} at any concurrency"


def parameter(x: float) -> str:
    """A value of the parameter, as short as it is exact enough; above 1e15 with an exponent."""
    return f"{x:,.0f}" if float(x).is_integer() and abs(x) < _HUGE else f"{x:g}"


def told_apart(values: Sequence[float]) -> list[str]:
    """Values of the parameter with as many digits as it takes to print different ones differently."""
    short = [parameter(x) for x in values]
    digits = 6
    while len(set(short)) < len(set(values)) and digits < _ALL_DIGITS:
        digits += 1
        same = {s for s in short if short.count(s) > 1}
        short = [f"{x:.{digits}g}" if s in same else s for x, s in zip(values, short, strict=True)]
    return short


def _time(ns: float) -> str:
    """A fitted time with the unit that suits it: three digits."""
    size = abs(ns)
    if size >= 1e6:
        return f"{about(ns / 1e6)} ms"
    return f"{about(ns / 1e3)} us" if size >= 1e3 else f"{about(ns)} ns"


def _power(fit: Fit) -> str:
    return "" if fit.power is None or fit.determined is False else f" to the power {fit.power:.2f}"


def _row(f: Fit, scale: float) -> tuple[str, ...]:
    interval = (
        ABSENT if f.power_interval is None else f"{f.power_interval[0]:.2f} .. {f.power_interval[1]:.2f}"
    )
    return (
        "step" if f.name == TOTAL else f.name,
        *(us(t) for t in f.mean_ns),
        ABSENT if f.power is None else "not determined" if f.determined is False else f"{f.power:.2f}",
        interval,
        ABSENT if f.power_r2 is None else f"{f.power_r2:.3f}",
        _time(f.slope_ns * scale),
        f"{100 * f.growing_share:+.1f}",
        "GROWS" if f.flagged else "",
    )


def scaling_body(found: Scaling) -> dict[str, Any]:
    """``scaling --json``: the parameter, the step and every row with both fits."""
    return {
        "parameter": found.parameter,
        "by": found.by,
        "time": "own",
        "values": list(found.total.x),
        "step": _fit(found.total),
        "rows": [_fit(f) for f in found.rows],
        "flagged": [f.name for f in found.flagged],
        "requests": None if found.requests is None else _requests(found.requests),
        "notes": list(found.notes),
    }


def _requests(cost: RequestCost) -> dict[str, Any]:
    line = cost.unprofiled
    return {
        "fixed_ns": cost.fixed_ns, "per_request_ns": cost.per_request_ns,
        "per_request_interval_ns": list(cost.per_request_interval) if cost.per_request_interval else None,
        "parts": [{"name": n, "per_request_ns": ns} for n, ns in cost.parts],
        "ceiling": _ceiling_body(cost.ceiling),
        "unprofiled": None if line is None else {
            "fixed_ns": line.fixed_ns, "per_request_ns": line.per_request_ns,
            "per_request_interval_ns": list(line.per_request_interval) if line.per_request_interval else None,
            "straight": cost.straight, "worst": line.worst, "worst_at": line.worst_at,
            "ceiling": _ceiling_body(line.ceiling),
        },
    }  # fmt: skip


def _ceiling_body(c: Ceiling) -> dict[str, Any]:
    return {"tokens_per_s": c.tokens_per_s, "low": c.low, "high": c.high, "bounded": c.bounded}


def _fit(f: Fit) -> dict[str, Any]:
    return {
        "name": f.name,
        "mean_ns": list(f.mean_ns),
        "linear": {
            "intercept_ns": f.intercept_ns, "slope_ns": f.slope_ns, "r2": f.linear_r2,
            "slope_interval_ns": list(f.slope_interval) if f.slope_interval else None,
        },
        "power_law": {
            "power": f.power, "factor_ns": f.factor_ns, "r2": f.power_r2,
            "interval": list(f.power_interval) if f.power_interval else None, "determined": f.determined,
        },
        "interval_from": f.interval_from,
        "growing_ns": f.growing_ns,
        "growing_share": f.growing_share,
        "expected": None if f.expected is None else {"power": f.expected.power, "why": f.expected.why},
        "flagged": f.flagged,
    }  # fmt: skip


def scaling_rows(found: Scaling) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of ``scaling --csv``: one line per row and value, the fits repeated on each."""
    columns = [found.by, found.parameter, "mean_ns_per_step", "power", "slope_ns", "flagged"]
    rows = [
        {
            found.by: f.name, found.parameter: x, "mean_ns_per_step": mean, "power": f.power, "slope_ns": f.slope_ns,
            "flagged": int(f.flagged),
        }
        for f in (found.total, *found.rows)
        for x, mean in zip(f.x, f.mean_ns, strict=True)
    ]  # fmt: skip
    return columns, rows
