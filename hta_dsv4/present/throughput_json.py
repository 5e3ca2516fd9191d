"""Throughput over concurrency as JSON and as rows. The JSON holds what was measured too: it is a sweep's record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hta_dsv4.analysis.speedup import speedups
from hta_dsv4.analysis.step_line import Ceiling, Interval, StepLine
from hta_dsv4.analysis.sweep import Repeat
from hta_dsv4.analysis.throughput import Level, Spread, Throughput

if TYPE_CHECKING:
    from hta_dsv4.present.machine import Table


def sweep_body(found: Sequence[Throughput]) -> dict[str, Any]:
    """``sweep --json`` and ``--out``: one entry a variant; docs/sweep.md has the fields."""
    return {
        "variants": [
            {**_variant(t), "against_first": None if t is found[0] else _against(found[0], t)} for t in found
        ]
    }


def _against(base: Throughput, other: Throughput) -> list[dict[str, Any]]:
    return [
        {
            "concurrency": s.concurrency, "times": s.times,
            "interval": None if s.interval is None else list(s.interval),
        }
        for s in speedups(base, other)
    ]  # fmt: skip


def _variant(t: Throughput) -> dict[str, Any]:
    s = t.sweep
    return {
        "label": s.label,
        "source": s.source,
        "made_at": s.made_at or None,
        "about": dict(s.about),
        "recorded_notes": list(s.notes),
        "repeats": [_repeat(r) for r in s.repeats],
        "levels": [_level(v) for v in t.levels],
        "line": None if t.line is None else _line(t.line),
        "reason": t.reason or None,
        "notes": list(t.notes),
    }


def _repeat(r: Repeat) -> dict[str, Any]:
    return {
        "concurrency": r.concurrency, "repeat": r.repeat, "window_ns": r.window_ns, "tokens_per_s": r.tokens_per_s,
        "requests": [{"tokens": q.tokens, "ttft_ns": q.ttft_ns, "tpot_ns": q.tpot_ns} for q in r.requests],
        "failures": list(r.failures), "step_ns": list(r.step_ns), "unusable": r.unusable or None,
    }  # fmt: skip


def _level(v: Level) -> dict[str, Any]:
    return {
        "concurrency": v.concurrency, "repeats": v.repeats, "tried": v.tried, "tokens_per_s": v.tokens_per_s,
        "low_tokens_per_s": v.low_tokens_per_s, "high_tokens_per_s": v.high_tokens_per_s, "step_ns": _ns(v.step_ns),
        "tpot": _spread(v.tpot), "ttft": _spread(v.ttft), "requests": v.requests, "failed": v.failed,
        "tokens": v.tokens,
    }  # fmt: skip


def _spread(s: Spread | None) -> dict[str, Any] | None:
    if s is None:
        return None
    return {"n": s.n, "mean_ns": _ns(s.mean_ns), "p50_ns": s.p50_ns, "p99_ns": s.p99_ns}


def _line(line: StepLine) -> dict[str, Any]:
    lack, bend = line.lack, line.bend
    return {
        "concurrency": list(line.values),
        "mean_step_ns": [_ns(m) for m in line.mean_ns],
        "fixed_ns": _ns(line.fixed_ns), "fixed_interval_ns": _interval(line.fixed_interval),
        "per_request_ns": _ns(line.per_request_ns), "per_request_interval_ns": _interval(line.per_request_interval),
        "ceiling": _ceiling(line.ceiling),
        "fits": line.fits,
        "lack_of_fit": None if lack is None else {
            "f": lack.f if math.isfinite(lack.f) else None, "between": lack.between, "within": lack.within, "p": lack.p,
        },
        "worst": line.worst, "worst_at": line.worst_at,
        "bend": None if bend is None else {
            "at": bend.at, "before_ns": _ns(bend.before_ns), "after_ns": _ns(bend.after_ns),
        },
        "noise": line.noise, "dof": line.dof, "interval_from": line.interval_from,
        "segments": [
            {
                "low": s.low, "high": s.high, "per_request_ns": _ns(s.slope_ns), "interval_ns": _interval(s.interval),
                "ceiling": _ceiling(s.ceiling),
            }
            for s in line.segments
        ],
    }  # fmt: skip


def _ceiling(c: Ceiling) -> dict[str, Any]:
    return {
        "tokens_per_s": c.tokens_per_s,
        "interval": None if c.low is None and c.high is None else [c.low, c.high],
        "bounded": c.bounded,
    }


def _interval(of: Interval | None) -> list[int] | None:
    return None if of is None else [round(of[0]), round(of[1])]


def _ns(value: float | None) -> int | None:
    return None if value is None else round(value)


def sweep_rows(found: Sequence[Throughput]) -> Table:
    """Columns and rows of ``sweep --csv``: one line per variant and C; ``sweep --from`` reads it back as a table."""
    columns = [
        "variant", "concurrency", "tokens_per_s", "low_tokens_per_s", "high_tokens_per_s", "repeats", "tried",
        "step_ns",
        *(f"{name}_{part}" for name in ("tpot", "ttft") for part in ("mean_ns", "p50_ns", "p99_ns")),
        "requests", "failed", "tokens",
    ]  # fmt: skip
    rows = []
    for t in found:
        for v in t.levels:
            row = {"variant": t.sweep.label, **_level(v)}
            for name in ("tpot", "ttft"):
                row |= {f"{name}_{k}": x for k, x in (row.pop(name) or {}).items() if k != "n"}
            rows.append(row)
    return columns, rows
