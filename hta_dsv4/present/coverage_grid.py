"""SM coverage over time: variants side by side, and who leaves SMs empty; as grids, JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from hta_dsv4.analysis import coverage as c
from hta_dsv4.analysis.coverage import BANDS, Coverage
from hta_dsv4.present.cells import plain
from hta_dsv4.present.grid import ABSENT, Grid, per_step, us

_BAND_SAID = {
    "idle": "nothing runs",
    "copies only": "only copies and sets run",
    "up to 1/4": "kernels on up to 1/4 of the SMs",
    "up to 1/2": "on up to 1/2",
    "below all": "on more, but not all",
    "all": "on all SMs",
}
_COLUMNS = (c.EMPTY_SM_NS, c.EMPTY_NS_PER_STEP, c.EMPTY_SHARE, c.BUSY_SHARE, c.TIME_NS, c.MEAN_SMS)


def coverage_grid(found: Sequence[Coverage]) -> Grid:
    """One column per variant: coverage, the time at each level of it, and the packing ceiling."""
    rows: list[tuple[str, ...]] = [
        ("SMs", *("/".join(map(str, v.sms)) for v in found)),
        ("steps", *(str(v.steps) if v.steps else "none: whole trace" for v in found)),
        ("wall, us/step", *(us(per_step(v.wall_ns, v.steps)) for v in found)),
        ("busy, % of wall", *(_percent(v.busy_ns, v.wall_ns) for v in found)),
        ("SMs covered, mean % of wall", *(f"{100 * v.mean:.1f}" for v in found)),
        ("SMs covered, mean % while busy", *(f"{100 * v.mean_while_busy:.1f}" for v in found)),
    ]
    rows += [
        (f"time, % of wall: {_BAND_SAID[b]}", *(_percent(v.bands[b], v.wall_ns) for v in found))
        for b in BANDS
    ]
    gaps = [us(v.between_ns / v.between_count) if v.between_count else ABSENT for v in found]
    rows.insert(3, ("between steps, us, mean gap", *gaps))
    packed = [round(v.covered_sm_ns * v.wall_ns / v.capacity_sm_ns) if v.capacity_sm_ns else 0 for v in found]
    rows += [
        ("packed, us/step", *(us(per_step(p, v.steps)) for p, v in zip(packed, found, strict=True))),
        ("packing ceiling", *(ABSENT if v.packing_ceiling is None else f"{v.packing_ceiling:.2f} x" for v in found)),
    ]  # fmt: skip
    notes = [
        "SMs covered: an upper bound, as CTAs that end early and kernels sharing an SM are not seen; copies cover none",
        "packed: the same launches, no two on one SM and no SM empty; the ceiling is what overlap alone could win",
    ]
    notes += [f"{v.label}: {n}" if len(found) > 1 else n for v in found for n in v.notes[1:]]
    return Grid("SM coverage", ("", *(v.label for v in found)), tuple(rows), notes=tuple(notes))


def owners_grid(found: Coverage, top: int = 0) -> Grid:
    """Who owns the empty SM-time of one variant."""
    table = found.table
    shown = len(table) if top <= 0 else min(top, len(table))
    headers = (
        *found.by,
        "empty GPU us" + ("/step" if found.steps else ""),
        "% of empty",
        "% while busy",
        "mean SMs",
    )
    rows = [
        (
            *(str(row[k]) for k in found.by), us(row[c.EMPTY_NS_PER_STEP]), f"{100 * row[c.EMPTY_SHARE]:.1f}",
            ABSENT if pd.isna(row[c.BUSY_SHARE]) else f"{100 * row[c.BUSY_SHARE]:.1f}",
            ABSENT if pd.isna(row[c.MEAN_SMS]) else f"{row[c.MEAN_SMS]:.1f}",
        )
        for _, row in table.head(shown).iterrows()
    ]  # fmt: skip
    blank = ("",) * (len(found.by) - 1)
    if shown < len(table):
        rest = table.iloc[shown:]
        shares = (f"{100 * rest[s].sum():.1f}" for s in (c.EMPTY_SHARE, c.BUSY_SHARE))
        rows.append((f"({len(rest)} more)", *blank, us(int(rest[c.EMPTY_NS_PER_STEP].sum())), *shares, ""))
    total = round(found.empty_sm_ns * found.wall_ns / max(found.capacity_sm_ns, 1))
    footer = (("all", *blank, us(per_step(total, found.steps)), "100.0" if total else ABSENT, "", ""),)
    title = f"{found.label}: empty SM-time, as time of a wholly empty GPU"
    return Grid(title, headers, tuple(rows), footer, left=len(found.by))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else ABSENT


def coverage_body(found: Sequence[Coverage]) -> dict[str, Any]:
    """``coverage --json``: one entry a variant."""
    return {"by": list(found[0].by), "bound": "upper", "variants": [_variant(v) for v in found]}


def _variant(v: Coverage) -> dict[str, Any]:
    return {
        "label": v.label, "rank": v.rank, "steps": v.steps, "sms": list(v.sms), "wall_ns": v.wall_ns,
        "busy_ns": v.busy_ns, "capacity_sm_ns": v.capacity_sm_ns, "covered_sm_ns": v.covered_sm_ns,
        "empty_sm_ns": v.empty_sm_ns, "between_steps_ns": v.between_ns, "between_gaps": v.between_count,
        "mean": v.mean, "mean_while_busy": v.mean_while_busy,
        "packing_ceiling": v.packing_ceiling, "bands_ns": dict(v.bands), "unknown_ns": v.unknown_ns,
        "rows": [{k: plain(row[k]) for k in (*v.by, *_COLUMNS)} for _, row in v.table.iterrows()],
        "notes": list(v.notes),
    }  # fmt: skip


def coverage_rows(found: Sequence[Coverage]) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of ``coverage --csv``: one line per variant and owner, the variant's mean repeated on each."""
    columns = ["variant", "steps", "mean", *found[0].by, *_COLUMNS]
    bodies = [_variant(v) for v in found]
    return columns, [
        {"variant": b["label"], "steps": b["steps"], "mean": b["mean"], **r}
        for b in bodies
        for r in b["rows"]
    ]
