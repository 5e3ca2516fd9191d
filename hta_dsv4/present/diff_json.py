"""Explained changes for other programs: the ``explanation`` of ``diff --json`` (docs/json.md)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from hta_dsv4.analysis import diff as d
from hta_dsv4.analysis.counted import BETWEEN, BUSY, EARLY, IDLE, OVERLAP, OWN, SUM, WALL
from hta_dsv4.analysis.idle import Idle
from hta_dsv4.analysis.names import Match
from hta_dsv4.analysis.profile import Profile, StepTimes
from hta_dsv4.analysis.stats import Change, Estimate
from hta_dsv4.analysis.why import Explanation, Why

_NUMBERS = (d.BASE_LAUNCHES, d.OTHER_LAUNCHES, d.BASE_NS, d.OTHER_NS, d.DELTA_NS, *d.EFFECTS)


def explanation_body(explanation: Explanation) -> dict[str, Any]:
    """``explanation``: the changes of the chain, the whole, or why there is none."""
    several = len(explanation.pairs) > 1 and explanation.whole is not None
    return {
        "time": "own",
        "reason": explanation.reason or None,
        "pairs": [_why(w) for w in explanation.pairs],
        "whole": _why(explanation.whole) if several and explanation.whole is not None else None,
    }


def _why(why: Why) -> dict[str, Any]:
    parts = why.decomposition
    matches = {m.name: _match(m) for m in parts.matches}
    return {
        "base": parts.base.label,
        "other": parts.other.label,
        "steps": {"base": parts.base.steps, "other": parts.other.steps},
        "per_step": {
            "base": _times(parts.base.per_step),
            "other": _times(parts.other.per_step),
            "delta": _times(parts.change),
        },
        "over_steps": {"base": _totals(parts.base), "other": _totals(parts.other)},
        "effects": parts.effects,
        "residual_ns": parts.residual_ns,
        "sum_change": _change(why.sum_change),
        "wall_change": _change(why.wall_change),
        "wall_steps": {"base": _estimate(why.base_wall), "other": _estimate(why.other_wall)},
        "idle": {"base": _idle(why.base_idle), "other": _idle(why.other_idle)},
        "by": list(why.by),
        "rows": _rows(why.rows, why.by, why.row_changes),
        "kernels": [
            {**row, **matches[row["kernel"]]} for row in _rows(why.kernels, ("kernel",), why.kernel_changes)
        ],
        "unmatched": [m.name for m in parts.unmatched],
        "extra": [m.name for m in parts.extra],
        "aligned_by_layer": why.alignment.by_layer,
        "rewrites": [
            {
                "kind": r.kind, "base": list(r.base), "other": list(r.other), "times": r.times, "base_ns": r.base_ns,
                "other_ns": r.other_ns, "saved_launches": r.saved_launches, "saved_ns": r.saved_ns,
                "layers": list(r.layers), "confidence": r.confidence,
            }
            for r in why.alignment.rewrites
        ],
        "notes": list(why.notes),
    }  # fmt: skip


def _rows(table: pd.DataFrame, keys: tuple[str, ...], changes: tuple[Change, ...]) -> list[dict[str, Any]]:
    return [
        {
            **{k: str(row[k]) for k in keys},
            **{n: int(row[n]) for n in _NUMBERS},
            "change": _change(changes[i]),
        }
        for i, (_, row) in enumerate(table.iterrows())
    ]


def _match(match: Match) -> dict[str, Any]:
    return {
        "base_names": list(match.base),
        "other_names": list(match.other),
        "method": match.method or None,
        "confidence": match.confidence,
    }


def _times(times: StepTimes) -> dict[str, int | None]:
    return {
        "sum_ns": times.sum_ns,
        "own_ns": times.own_ns,
        "early_ns": times.early_ns,
        "overlap_ns": times.overlap_ns,
        "idle_ns": times.idle_ns,
        "busy_ns": times.busy_ns,
        "wall_ns": times.wall_ns,
        "between_ns": times.between_ns if times.gaps else None,
        "gaps": times.gaps,
    }


def _totals(side: Profile) -> dict[str, int]:
    """The same over all counted steps: sums of whole nanoseconds, nothing rounded."""
    total = {k: int(side.times[k].sum()) for k in (SUM, OWN, EARLY, OVERLAP, IDLE, BUSY, WALL, BETWEEN)}
    return {f"{k}_ns": ns for k, ns in total.items()}


def _change(change: Change) -> dict[str, Any]:
    return {
        "verdict": change.verdict,
        "within_run": change.within_run,
        "across_run": change.across_run,
        "delta_mean_ns": change.delta_ns,
        "interval_ns": list(change.interval) if change.interval else None,
        "floor_ns": change.floor_ns,
        "reason": change.reason,
    }


def _idle(idle: Idle) -> dict[str, Any]:
    return {
        "idle_ns": idle.idle_ns,
        "queue_empty_ns": idle.queue_empty_ns,
        "launches": idle.launches,
        "host_bound": idle.host_bound if idle.queue_empty_ns is not None else None,
        "reason": idle.reason or None,
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {
        "n": estimate.n, "mean_ns": estimate.mean, "median_ns": estimate.median, "mad_ns": estimate.mad,
        "iqr_ns": estimate.iqr, "mean_interval_ns": list(estimate.interval) if estimate.interval else None,
        "median_interval_ns": list(estimate.median_interval) if estimate.median_interval else None,
        "level": estimate.level, "block_steps": estimate.block, "reason": estimate.reason or None,
    }  # fmt: skip
