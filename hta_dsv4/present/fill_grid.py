"""How full launches could make the GPU, as a grid, as JSON and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from hta_dsv4.analysis import fill as f
from hta_dsv4.analysis.fill import Fill
from hta_dsv4.present.cells import plain
from hta_dsv4.present.grid import ABSENT, Grid, per_step, steps_said, us

_COLUMNS = (
    f.TIME_NS, f.TIME_NS_PER_STEP, f.LAUNCHES, f.LAUNCHES_PER_STEP, f.UNDERFILLED_NS, f.UNDERFILLED_NS_PER_STEP,
    f.UNDERFILLED_LAUNCHES, f.OWN_NS, f.EMPTY_NS, f.EMPTY_NS_PER_STEP, f.CTAS_MIN, f.CTAS_MEDIAN, f.CTAS_MAX,
    f.RESIDENT_MEDIAN, f.LIMITED_BY, f.WAVES_MEDIAN, f.TAIL_NS, f.TAIL_NS_PER_STEP, f.UNKNOWN_LAUNCHES,
)  # fmt: skip

_EMPTY, _TAIL = (f.EMPTY_NS, f.EMPTY_NS_PER_STEP), (f.TAIL_NS, f.TAIL_NS_PER_STEP)


def fill_grid(found: Fill, top: int = 0) -> Grid:
    """One row per key: its time, how much of it leaves SMs empty, CTAs, residency, waves and the tail."""
    per = bool(found.steps)
    unit = "/step" if per else ""
    headers = (
        *found.by, f"own us{unit}", f"n{unit}", f"empty us{unit}", "% empty", "CTAs", "median", "CTAs/SM",
        "limited by", "waves", f"tail us{unit}",
    )  # fmt: skip
    shown = len(found.table) if top <= 0 else min(top, len(found.table))
    rows = [_row(found, row) for _, row in found.table.head(shown).iterrows()]
    blank = ("",) * (len(found.by) - 1)
    if shown < len(found.table):
        rest = found.table.iloc[shown:]
        rows.append(
            (f"({len(rest)} more)", *blank, *_times(found, rest), *[""] * 5, us(_sum(found, rest, _TAIL)))
        )
    total = (
        "all kernels", *blank,
        *_times(found, found.table), *[""] * 5, us(_sum(found, found.table, _TAIL)),
    )  # fmt: skip
    sms = "/".join(map(str, found.sms)) or "unknown number of"
    title = f"{found.label}: {steps_said(found.steps)}, {sms} SMs"
    notes = (
        f"empty: own time x the part of the SMs without a CTA, where a launch has fewer CTAs than SMs "
        f"({found.underfilled_launches:,} of {len(found.launches):,} launches): at most what "
        "more CTAs win if an SM gets no more done with several of them than with one; findings takes it that it does",
        "median: by time. CTAs/SM: as many fit at once, an upper bound. tail: empty slots of the last wave, modelled "
        "with CTAs of equal length",
        *found.notes,
    )
    return Grid(title, headers, tuple(rows), (total,), notes, left=len(found.by))


def _sum(found: Fill, rows: pd.DataFrame, columns: tuple[str, str]) -> int:
    """Of some rows, per step where there are steps."""
    return int(rows[columns[bool(found.steps)]].sum())


def _times(found: Fill, rows: pd.DataFrame) -> tuple[str, ...]:
    time, launches, empty = (int(rows[c].sum()) for c in (f.OWN_NS, f.LAUNCHES, f.EMPTY_NS))
    share = f"{100 * empty / time:.1f}" if time else ABSENT
    count = launches / max(found.steps, 1)
    return (
        us(per_step(time, found.steps)), f"{count:,.0f}" if count.is_integer() else f"{count:,.2f}",
        us(_sum(found, rows, _EMPTY)), share,
    )  # fmt: skip


def _row(found: Fill, row: pd.Series[Any]) -> tuple[str, ...]:
    low, high = row[f.CTAS_MIN], row[f.CTAS_MAX]
    ctas = ABSENT if pd.isna(low) else f"{low:,}" if low == high else f"{low:,}..{high:,}"
    return (
        *(str(row[k]) for k in found.by),
        *_times(found, row.to_frame().T),
        ctas,
        *(ABSENT if pd.isna(v) else f"{v:,}" for v in (row[f.CTAS_MEDIAN], row[f.RESIDENT_MEDIAN])),
        row[f.LIMITED_BY] or ABSENT,
        ABSENT if pd.isna(row[f.WAVES_MEDIAN]) else f"{row[f.WAVES_MEDIAN]:,.2f}",
        us(int(row[_TAIL[bool(found.steps)]])),
    )


def fill_body(found: Sequence[Fill]) -> dict[str, Any]:
    """``fill --json``: one entry a variant."""
    return {"by": list(found[0].by), "variants": [_variant(one) for one in found]}


def _variant(one: Fill) -> dict[str, Any]:
    return {
        "label": one.label, "rank": one.rank, "steps": one.steps, "sms": list(one.sms),
        "kernel_sum_ns": one.kernel_sum_ns, "launches": len(one.launches), "underfilled_ns": one.underfilled_ns,
        "underfilled_launches": one.underfilled_launches, "own_ns": one.own_ns, "empty_ns": one.empty_ns,
        "tail_ns": one.tail_ns, "tail_method": "modelled", "unknown_launches": one.unknown_launches,
        "rows": [{c: plain(row[c]) for c in (*one.by, *_COLUMNS)} for _, row in one.table.iterrows()],
        "notes": list(one.notes),
    }  # fmt: skip


def fill_rows(found: Sequence[Fill]) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of ``fill --csv``: one line per variant and row."""
    columns = ["variant", "steps", *found[0].by, *_COLUMNS]
    return columns, [
        {"variant": v["label"], "steps": v["steps"], **row} for v in map(_variant, found) for row in v["rows"]
    ]
