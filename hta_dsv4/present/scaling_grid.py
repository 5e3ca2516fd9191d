"""Fits over a parameter as a grid, as JSON and as CSV."""

from __future__ import annotations

from typing import Any

from hta_dsv4.analysis.scaling import TOTAL, Fit, Scaling
from hta_dsv4.present.grid import ABSENT, Grid, us


def scaling_grid(found: Scaling, top: int = 0) -> Grid:
    """One row per bucket, role or origin: time at each value, the power with its interval, the slope, and the flag."""
    shown = len(found.rows) if top <= 0 else min(top, len(found.rows))
    values = found.total.x
    headers = (
        found.by, *(f"{_value(x)} us/step" for x in values), "power", "interval", "R2", f"ns per {found.parameter}",
        "growth, % of step", "",
    )  # fmt: skip
    rows = [_row(f) for f in found.rows[:shown]]
    if shown < len(found.rows):
        rest = found.rows[shown:]
        times = [us(sum(f.mean_ns[i] for f in rest)) for i in range(len(values))]
        rows.append((f"({len(rest)} more)", *times, "", "", "", "", "", ""))
    flags = [
        f"{f.name} grows with {found.parameter}{_power(f)}, by {us(f.growing_ns)} us per step "
        f"({100 * f.growing_share:.1f} % of the step at {_value(values[-1])}), but should not beyond power "
        f"{f.expected.power:g}: {f.expected.why}"
        for f in found.flagged
        if f.expected is not None
    ]
    if not flags and not any("nothing is expected" in n for n in found.notes):
        flags = [f"nothing grows with {found.parameter} that should not"]
    title = f"time per step over {found.parameter}, {len(values)} values"
    return Grid(title, headers, tuple(rows), (_row(found.total),), (*flags, *found.notes), left=1)


def _value(x: float) -> str:
    return f"{x:,.0f}" if float(x).is_integer() else f"{x:g}"


def _power(fit: Fit) -> str:
    return "" if fit.power is None else f" to the power {fit.power:.2f}"


def _row(f: Fit) -> tuple[str, ...]:
    interval = (
        ABSENT if f.power_interval is None else f"{f.power_interval[0]:.2f} .. {f.power_interval[1]:.2f}"
    )
    return (
        "step" if f.name == TOTAL else f.name,
        *(us(t) for t in f.mean_ns),
        ABSENT if f.power is None else f"{f.power:.2f}",
        interval,
        ABSENT if f.power_r2 is None else f"{f.power_r2:.3f}",
        f"{f.slope_ns:.4g}",
        f"{100 * f.growing_share:+.1f}",
        "GROWS" if f.flagged else "",
    )


def scaling_body(found: Scaling) -> dict[str, Any]:
    """``scaling --json``: the parameter, the step and every row with both fits."""
    return {
        "parameter": found.parameter,
        "by": found.by,
        "values": list(found.total.x),
        "step": _fit(found.total),
        "rows": [_fit(f) for f in found.rows],
        "flagged": [f.name for f in found.flagged],
        "notes": list(found.notes),
    }


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
            "interval": list(f.power_interval) if f.power_interval else None,
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
