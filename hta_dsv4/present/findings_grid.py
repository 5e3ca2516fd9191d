"""Findings as grids: a table of all, best first, then one block for each; and as JSON and CSV rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hta_dsv4.analysis.findings import Evidence, Finding, Findings, Ranked, Recoverable
from hta_dsv4.analysis.findings.finding import MEASURED, WALL
from hta_dsv4.analysis.findings.finding import said as time_said
from hta_dsv4.present.grid import ABSENT, Grid, steps_said, us
from hta_dsv4.present.kernel_names import shorten
from hta_dsv4.present.modelled import about, about_us

_NAME = 60
_PART = re.compile(r", [\d,.]+ of its .*")
_NAMED = 3  # small findings that the note under the table names
_APART = 0.05
"""A step that takes longer than its recorded wall time by more than this part is told with both."""
_WIDEST = 160
"""Columns of the tables of findings, on however wide a page."""
_HEADERS = ("", "finding", "saves us/step", "least", "most", "% of step", "confidence")


def findings_grid(found: Findings, top: int = 0) -> Grid:
    """The table: what to attack, best first, with what each saves after those before it.

    Args:
        found: of one variant.
        top: rows; 0 for all.
    """
    shown = found.ranked[:top] if top else found.ranked
    rows = [
        (
            str(i), title(r.finding), *_saved(r.remaining),
            ABSENT if r.remaining is None else f"{100 * r.share:.1f}", f"{r.finding.confidence:.2f}",
        )
        for i, r in enumerate(shown, 1)
    ]  # fmt: skip
    if len(shown) < len(found.ranked):
        rows.append(("", f"({len(found.ranked) - len(shown)} more)", "", "", "", "", ""))
    notes = []
    if found.steps and not found.ranked:
        notes.append(f"nothing over {100 * found.material:.0f} % of the step found")
    if found.ranked:
        notes.append(
            "saves: GPU time, or wall time where it says launching or between; counted is what the findings before it "
            "leave; ranked by likely saving x confidence"
        )
        gpu = sum(r.remaining.mid for r in found.ranked if r.remaining and r.finding.saves != WALL)
        if gpu:
            left = time_said(found.own_ns - gpu)
            notes.append(f"with all of them the GPU time would be about {left} of {time_said(found.own_ns)}")
    if found.below:
        notes.append(
            f"{found.below} finding{'s' if found.below > 1 else ''} of less than {100 * found.material:.0f} % of the "
            f"step each not listed, {time_said(found.below_ns)} together{_largest(found.smaller)}"
        )
    head = f"{found.label}: findings, {steps_said(found.steps)}"
    if found.steps:
        head += f", {time_said(found.own_ns)} GPU time and {time_said(found.wall_ns)} wall a step as recorded"
        if found.step_ns > (1 + _APART) * found.wall_ns:
            head += f", {time_said(found.step_ns)} from step to step"
    return Grid(head, _HEADERS, tuple(rows), notes=(*notes, *found.notes), left=2, prose=True, widest=_WIDEST)


def _largest(smaller: Sequence[Ranked]) -> str:
    """The largest of the findings that are not listed, in few words, and where all of them are."""
    by_size = sorted(smaller, key=lambda r: -(r.remaining.mid if r.remaining else 0.0))[:_NAMED]
    named = [
        f"{_PART.sub('', title(r.finding).split(': ')[0])} {about_us(r.remaining.mid)} us ({r.finding.rule})"
        for r in by_size if r.remaining and r.remaining.mid >= 1000
    ]  # fmt: skip
    return f", the largest: {', '.join(named)}; --json has all" if named else ""


def finding_grids(found: Findings, top: int = 0) -> list[Grid]:
    """One block per finding, then what is covered by them, what to leave alone, what to record again for.

    Args:
        found: of one variant.
        top: blocks; 0 for all.
    """
    shown = found.ranked[:top] if top else found.ranked
    grids = [_block(i, r) for i, r in enumerate(shown, 1)]
    if found.covered:
        taken = tuple(
            (
                title(r.finding), _saved(r.finding.recoverable)[0], _saved(r.remaining)[0],
                ", ".join(map(str, r.after)) or ABSENT,
            )
            for r in found.covered
        )  # fmt: skip
        grids.append(
            Grid(
                "looks large, but findings above take it: leave it until they are done",
                ("", "alone us", "after them us", "taken by"), taken, prose=True,
                widest=_WIDEST,
            )
        )  # fmt: skip
    for name, kind in (
        ("leave alone", found.leave),
        ("what this trace cannot say, and how to record it", found.recapture),
    ):
        if kind:
            rows = tuple((title(f), f.action) for f in kind)
            grids.append(Grid(name, ("", "so"), rows, left=2, prose=True, widest=_WIDEST))
    return grids


def title(finding: Finding) -> str:
    """The finding's title, long kernel names in it shortened."""
    text = finding.title
    for name in finding.kernels:
        text = text.replace(name, shorten(name, _NAME))
    return text


def _block(place: int, ranked: Ranked) -> Grid:
    f = ranked.finding
    saves = f"{f.saves}: not known, {f.unknown_because}"
    if ranked.remaining is not None:
        mid, low, high = _saved(ranked.remaining)
        saves = f"{f.saves}: {mid} us a step ({low} to {high}), {f.label}"
        if ranked.after:
            alone = _saved(f.recoverable)[0]
            saves += f"; alone {alone}, the rest is taken by {', '.join(map(str, ranked.after))}"
    rows = [("saves", saves), ("confidence", f"{f.confidence:.2f}: {f.because}")]
    if f.kernels:
        names = ", ".join(shorten(n, _NAME) for n in f.kernels)
        rows.append(
            (
                "where",
                f"{_count(f.launches)} launches, {us(f.time_ns)} us a step over {steps_said(f.steps)}: {names}",
            )
        )
    rows += [("evidence" if i == 0 else "", said(e)) for i, e in enumerate(f.evidence)]
    rows += [
        (k, v) for k, v in (("check", f.check), ("do", f.action), ("stop", f.stop), ("firmer", f.needs)) if v
    ]
    return Grid(f"{place}. {title(f)}", ("", ""), tuple(rows), left=2, prose=True)


def said(e: Evidence) -> str:
    """One number with its unit, as a line."""
    if e.unit == "ns":
        value = f"{us(round(e.value)) if e.label == MEASURED else about_us(e.value)} us"
    elif e.unit == "bytes":
        value = f"{e.value / 1e9:,.3f} GB" if e.value >= 1e8 else f"{e.value / 1e6:,.3f} MB"
    else:
        count = _count(e.value) if e.label == MEASURED or float(e.value).is_integer() else about(e.value)
        value = f"{count} {e.unit}".rstrip()
    return f"{e.what}: {value} ({e.label})"


def _count(value: float) -> str:
    """A number without a unit of its own: whole where it is or is large, else three digits; no exponent."""
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.3g}"


def _saved(r: Recoverable | None) -> tuple[str, str, str]:
    return (ABSENT,) * 3 if r is None else (_least(r.mid), _least(r.low), _least(r.high))


def _least(ns: float) -> str:
    """A saving in microseconds; what is below one is no figure to work for, and says only that."""
    return "<1" if 0 < ns < 1000 else about_us(ns)


def findings_body(variants: Sequence[Findings]) -> dict[str, Any]:
    """``findings --json``."""
    return {"variants": [_variant(v) for v in variants]}


def _variant(found: Findings) -> dict[str, Any]:
    return {
        "label": found.label, "time": "own", "steps": found.steps, "own_ns": found.own_ns, "wall_ns": found.wall_ns,
        "step_ns": round(found.step_ns),
        "material": found.material,
        "findings": [_ranked(r) for r in found.ranked],
        "covered": [_ranked(r) for r in found.covered],
        "leave": [_finding(f) for f in found.leave],
        "recapture": [_finding(f) for f in found.recapture],
        "below": {
            "findings": found.below, "saves_ns": round(found.below_ns),
            "each": [
                {"rule": r.finding.rule, "title": r.finding.title, "confidence": r.finding.confidence,
                 "remaining_ns": _range(r.remaining)}
                for r in found.smaller
            ],
        },
        "notes": list(found.notes),
    }  # fmt: skip


def _ranked(r: Ranked) -> dict[str, Any]:
    return {
        **_finding(r.finding), "remaining_ns": _range(r.remaining), "share": r.share, "score_ns": round(r.score),
        "after": list(r.after),
    }  # fmt: skip


def _finding(f: Finding) -> dict[str, Any]:
    return {
        "rule": f.rule, "title": f.title, "evidence": [asdict(e) for e in f.evidence], "kernels": list(f.kernels),
        "launches_per_step": f.launches, "time_ns_per_step": f.time_ns, "steps": f.steps,
        "recoverable_ns": _range(f.recoverable), "unknown_because": f.unknown_because or None, "saves": f.saves,
        "label": f.label, "confidence": f.confidence, "because": f.because, "check": f.check, "action": f.action,
        "stop": f.stop, "needs": f.needs or None,
    }  # fmt: skip


def _range(r: Recoverable | None) -> dict[str, int] | None:
    return None if r is None else {"low": round(r.low), "mid": round(r.mid), "high": round(r.high)}


def findings_rows(variants: Sequence[Findings]) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of ``findings --csv``: one line per finding, its place empty where it has none."""
    columns = [
        "variant",
        "place",
        "kind",
        "rule",
        "title",
        "saves",
        "low_ns",
        "mid_ns",
        "high_ns",
        "confidence",
    ]
    rows: list[dict[str, Any]] = []
    for v in variants:
        placed: list[tuple[int | None, str, Finding, Recoverable | None]] = [
            (i, "attack", r.finding, r.remaining) for i, r in enumerate(v.ranked, 1)
        ]
        placed += [(None, "covered", r.finding, r.remaining) for r in v.covered]
        placed += [(None, f.kind, f, None) for f in (*v.leave, *v.recapture)]
        for place, kind, f, r in placed:
            row = {"variant": v.label, "place": place, "kind": kind, "rule": f.rule, "title": f.title}
            saved = {f"{k}_ns": n for k, n in (_range(r) or {}).items()}
            rows.append({**row, "saves": f.saves, **saved, "confidence": f.confidence})
    return columns, rows
