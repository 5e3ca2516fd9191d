"""A gate's verdicts as a grid, as a short summary in Markdown, as JSON and as CSV rows."""

from __future__ import annotations

from typing import Any

from hta_dsv4.analysis.budgets import UNITS
from hta_dsv4.analysis.gate import FAIL, INCONCLUSIVE, PASS, Cause, Check, Gate
from hta_dsv4.present.grid import ABSENT, Grid, us
from hta_dsv4.present.kernel_names import shorten

EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}
"""Verdict -> exit code of ``hta-dsv4 gate``; 2 is a mistake or a broken input, as everywhere."""

_HEADERS = ("verdict", "budget", "limit", "baseline", "candidate", "change", "over by", "noise")
_ORDER = (FAIL, INCONCLUSIVE, PASS)
_NAME = 70
_RANKS = 8  # told by number beside the worst


def gate_grid(found: Gate, top: int = 0) -> Grid:
    """The verdicts, failures first; why each that is not passed is not, and what to know, below.

    Args:
        found: a gate.
        top: rows; 0 for all. What is not passed is always shown.
    """
    ordered = sorted(found.checks, key=lambda c: _ORDER.index(c.verdict))
    open_ = sum(c.verdict != PASS for c in ordered)
    shown = ordered[: max(top, open_)] if top else ordered
    rows = [_row(c) for c in shown]
    if len(shown) < len(ordered):
        rows.append(("", f"({len(ordered) - len(shown)} more, all pass)", *[""] * 6))
    notes = _reasons([c for c in shown if c.verdict != PASS])
    return Grid(_title(found), _HEADERS, tuple(rows), notes=(*notes, *found.notes), left=3)


def _title(found: Gate) -> str:
    against = f" against {found.base_label} ({_captures(found.base_steps)})" if found.base_label else ""
    counts = ", ".join(f"{found.count(v)} {v}" for v in _ORDER if found.count(v))
    mine = f"{found.candidate_label} ({_captures(found.candidate_steps)})"
    return f"gate: {found.verdict.upper()}: {mine}{against}: {counts}"


def _captures(steps: tuple[int, ...]) -> str:
    """``2 steps``; ``5 captures of 20 steps``."""
    each = str(steps[0]) if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)}"
    text = f"{each} step{'' if each == '1' else 's'}"
    return text if len(steps) == 1 else f"{len(steps)} captures of {text}"


def _reasons(checks: list[Check]) -> list[str]:
    """Why each is not passed; what several have in common is said once."""
    reasons = [c.reason for c in checks]
    out = []
    for c in checks:
        alike = reasons.count(c.reason)
        if (c.excess > 0 and c.causes) or alike == 1:
            out.append(f"{c.verdict}: {_why(c)}")
        else:
            out.append(f"{c.verdict}, {alike} checks: {c.reason}")
    return list(dict.fromkeys(out))


def limit_said(check: Check) -> str:
    """``max_us 2,000``."""
    return f"{check.key} {check.budget.limits[check.key]:,.10g}"


def _row(c: Check) -> tuple[str, ...]:
    change = ABSENT
    if c.base is not None:
        change = f"{100 * (c.value / c.base - 1):+,.2f} %" if c.base else "new" if c.value else "0"
    return (
        c.verdict, _subject(c), limit_said(c), _said(c, c.base), _said(c, c.value), change,
        _said(c, c.excess, sign=True), ABSENT if c.noise is None else _said(c, c.noise),
    )  # fmt: skip


def _subject(c: Check) -> str:
    """``bucket attention``; ``bucket attention, rank 1``."""
    return c.budget.said if c.rank is None else f"{c.budget.said}, rank {c.rank}"


def _said(c: Check, value: float | None, sign: bool = False) -> str:
    """A value in its unit: us, launches, percent of the step's own time."""
    if value is None:
        return ABSENT
    plus = "+" if sign and value > 0 else ""
    if c.unit == "ns":
        return f"{plus}{us(round(value))} us"
    if c.unit == "share":
        return f"{plus}{100 * value:,.3f} %"
    return f"{plus}{value:,.10g}"


def _why(c: Check) -> str:
    text = f"{_subject(c)}, {limit_said(c)}: {c.reason}"
    alike = [r.rank for r in c.by_rank if r.verdict == c.verdict and r.rank != c.rank]
    if alike:
        said = ", ".join(map(str, alike[:_RANKS])) + (", ..." if len(alike) > _RANKS else "")
        text += f" (rank{'s' * (len(alike) > 1)} {said} too)"
    if c.causes:
        text += ". Grew: " + "; ".join(f"{shorten(k.kernel, _NAME)} {_grown(c, k)}" for k in c.causes)
    if c.budget.why:
        text += f". {c.budget.why}"
    return text + (f" [{c.budget.place}]" if c.budget.place else "")


def _grown(c: Check, cause: Cause) -> str:
    """By how much a kernel grew, in the unit of the limit: ``+12.5 us (slower)``, ``+5 launches``."""
    if c.unit == "launches":
        return f"+{cause.delta_launches:,.10g} launch{'es' * (cause.delta_launches != 1)}"
    return f"+{us(cause.delta_ns)} us ({cause.effect})"


def gate_body(found: Gate) -> dict[str, Any]:
    """``gate --json``."""
    return {
        "verdict": found.verdict,
        "time": "own",
        "exit_code": EXIT_CODES[found.verdict],
        "budgets": found.budgets.path,
        "level": found.budgets.level,
        "baseline": None if found.base_label is None else _side(found.base_label, found.base_steps),
        "candidate": _side(found.candidate_label, found.candidate_steps),
        "counts": {v: found.count(v) for v in _ORDER},
        "checks": [_check(c) for c in found.checks],
        "comparability": {
            "comparable": not found.comparability.reasons and not found.comparability.unfit,
            "differs": [
                {"fact": d.fact, "values": [{"label": n, "value": v} for n, v in d.values], "said": d.said}
                for d in found.comparability.reasons
            ],
            "unfit": list(found.comparability.unfit),
            "same": dict(found.comparability.same),
        },
        "notes": list(found.notes),
    }


def _side(label: str, steps: tuple[int, ...]) -> dict[str, Any]:
    return {"label": label, "captures": len(steps), "steps": list(steps)}


def _numbers(c: Check) -> dict[str, Any]:
    return {
        "limit": c.key, "limit_value": c.budget.limits[c.key], "limit_unit": UNITS[c.key], "unit": c.unit,
        **_judged(c), "evidence": c.evidence,
    }  # fmt: skip


def _judged(c: Check) -> dict[str, Any]:
    """Means per step in the check's unit: whole ns, launches, or share 0..1."""

    def number(value: float | None) -> int | float | None:
        return round(value) if value is not None and c.unit == "ns" else value

    return {
        "baseline": number(c.base), "candidate": number(c.value), "allowed": number(c.allowed),
        "excess": number(c.excess), "noise": number(c.noise),
    }  # fmt: skip


def _check(c: Check) -> dict[str, Any]:
    causes = [
        {"kernel": k.kernel, "delta_ns": k.delta_ns, "delta_launches": k.delta_launches, "effect": k.effect}
        for k in c.causes
    ]
    return {
        "verdict": c.verdict, "kind": c.budget.kind, "name": c.budget.name, **_numbers(c), "reason": c.reason,
        "why": c.budget.why or None, "place": c.budget.place, "causes": causes, "rank": c.rank,
        "ranks": [{"rank": r.rank, "verdict": r.verdict, **_judged(r)} for r in c.by_rank],
    }  # fmt: skip


_COLUMNS = [
    "verdict", "kind", "name", "limit", "limit_value", "limit_unit", "unit", "baseline", "candidate", "allowed",
    "excess", "noise", "evidence", "reason", "rank",
]  # fmt: skip


def gate_rows(found: Gate) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of ``gate --csv``: one line per check."""
    bodies = [_check(c) for c in found.checks]
    for body in bodies:  # one column of one type, whole ns or not
        for key in ("limit_value", "baseline", "candidate", "allowed", "excess", "noise"):
            body[key] = None if body[key] is None else float(body[key])
    return _COLUMNS, [{k: b[k] for k in _COLUMNS} for b in bodies]
