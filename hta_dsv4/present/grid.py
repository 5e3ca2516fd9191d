"""Results as grids of text: what a table says, before it is known whether a terminal or Markdown shows it.

Times are printed in microseconds with three decimals, which is exact: one ns is 0.001 us. Per-step times are rounded
to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.analysis import compare as cmp
from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.compare import Comparison
from hta_dsv4.analysis.info import Info
from hta_dsv4.analysis.shares import RankShares, Shares, divide_half_even
from hta_dsv4.classify.results import Explanation

ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Grid:
    """One table as text.

    Attributes:
        title: a line above.
        headers: one per column; the first ``left`` columns are text, the others numbers.
        rows: cells.
        footer: rows below a rule: the totals.
        notes: sentences below.
        left: how many leading columns are left-aligned and may be shortened to fit.
        lead: sentences between the title and the table.
        prose: whether the left columns hold sentences, which are never shortened.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footer: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    left: int = 1
    lead: tuple[str, ...] = ()
    prose: bool = False


def us(ns: int | float | None) -> str:
    """Nanoseconds as microseconds with three decimals and thousands separators; ``-`` for missing."""
    if ns is None or pd.isna(ns):
        return ABSENT
    return f"{ns / 1000:,.3f}" if isinstance(ns, float) else _exact_us(int(ns))


def _exact_us(ns: int) -> str:
    sign, ns = ("-" if ns < 0 else ""), abs(ns)
    return f"{sign}{ns // 1000:,}.{ns % 1000:03d}"


def _signed_us(ns: float | None) -> str:
    if ns is None or pd.isna(ns):
        return ABSENT
    return ("+" if ns > 0 else "") + _exact_us(int(ns))


def _percent(part: float | None) -> str:
    return ABSENT if part is None or pd.isna(part) else f"{100 * part:.1f}"


def _count(value: float | None) -> str:
    if value is None or pd.isna(value):
        return ABSENT
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _top(n: int, total: int) -> int:
    return total if n <= 0 or n >= total else n


def steps_said(steps: int) -> str:
    """``no steps``, ``1 step``, ``5 steps``."""
    return f"{steps or 'no'} step{'' if steps == 1 else 's'}"


def per_step(ns: int, steps: int) -> int:
    """A total as time per step; the total itself where there are no steps."""
    return divide_half_even(ns, steps) if steps else ns


_EXTENT = (
    ("sum", "summed durations"),
    ("busy", "union of intervals"),
    ("overlap", "sum - busy"),
    ("wall", "first start to last end"),
    ("idle", "wall - busy"),
)


def _extent_values(rank: RankShares) -> dict[str, int]:
    e = rank.extent
    return {"sum": e.sum_ns, "busy": e.busy_ns, "overlap": e.overlap_ns, "wall": e.wall_ns, "idle": e.idle_ns}


def shares_grid(shares: Shares, top: int = 0) -> Grid:
    """One variant's share table; with several ranks, one time column per rank and their median."""
    if len(shares.ranks) > 1:
        return _ranks_grid(shares, top)
    rank = shares.median_rank
    keys, unit = list(shares.by), "us/step" if rank.steps else "us"
    time, launches = (sh.TIME_NS_PER_STEP, sh.LAUNCHES_PER_STEP) if rank.steps else (sh.TIME_NS, sh.LAUNCHES)
    table, shown = rank.table, _top(top, len(rank.table))
    rows = [
        (
            *(str(row[k]) for k in keys),
            us(row[time]),
            _percent(row[sh.SHARE]),
            _count(row[launches]),
            us(float(row[sh.MEAN_NS])),
            us(float(row[sh.MEDIAN_NS])),
        )
        for _, row in table.head(shown).iterrows()
    ]
    if shown < len(table):
        rest = table.iloc[shown:]
        ns = int(rest[sh.TIME_NS].sum())
        count = rest[sh.LAUNCHES].sum() / max(rank.steps, 1)
        label = f"({len(rest)} more)"
        rows.append(
            (
                label,
                *[""] * (len(keys) - 1),
                us(per_step(ns, rank.steps)),
                _percent(rest[sh.SHARE].sum()),
                _count(count),
                "",
                "",
            )
        )
    footer = [
        (f"{name}: {what}", *[""] * (len(keys) - 1), *_extent_cells(rank, name), "", "")
        for name, what in _EXTENT
    ]
    steps = steps_said(rank.steps) if rank.steps else "no steps: totals of the trace"
    headers = (*keys, unit, "% of sum", "launches" + ("/step" if rank.steps else ""), "mean us", "median us")
    return Grid(f"{shares.label}: {steps}", headers, tuple(rows), tuple(footer), shares.notes, left=len(keys))


def _ranks_grid(shares: Shares, top: int) -> Grid:
    keys = list(shares.by)
    time = sh.TIME_NS_PER_STEP if all(r.steps for r in shares.ranks) else sh.TIME_NS
    wide = pd.concat({r.rank: r.table.set_index(keys)[time] for r in shares.ranks}, axis=1)
    median = pd.Series(sh.rank_median(wide.fillna(0).to_numpy(dtype=np.int64).T), wide.index)
    order = median.sort_values(ascending=False, kind="stable").index[: _top(top, len(median))]
    rows = [
        (
            *(str(x) for x in (key if isinstance(key, tuple) else (key,))),
            *(us(v) for v in wide.loc[key]),
            us(int(median[key])),
        )
        for key in order
    ]
    blank = [""] * (len(keys) - 1)
    footer = []
    for name, what in _EXTENT:
        per_rank = [
            per_step(_extent_values(r)[name], r.steps if time == sh.TIME_NS_PER_STEP else 0)
            for r in shares.ranks
        ]
        footer.append(
            (f"{name}: {what}", *blank, *(us(v) for v in per_rank), us(int(sh.rank_median(per_rank))))
        )
    unit = "us/step" if time == sh.TIME_NS_PER_STEP else "us"
    headers = (*keys, *(f"rank {r.rank} {unit}" for r in shares.ranks), "median")
    title = f"{shares.label}: {len(shares.ranks)} ranks, never summed; rank {shares.median_rank.rank} is the median"
    return Grid(title, headers, tuple(rows), tuple(footer), shares.notes, left=len(keys))


def comparison_grid(comparison: Comparison, top: int = 0) -> Grid:
    """Variants side by side: time per step, share, launches, and the change against the first."""
    variants, keys = comparison.variants, list(comparison.by)
    steps = {v.label: v.median_rank.steps for v in variants}
    table = comparison.table
    shown = _top(top, len(table))
    headers = list(keys)
    for i, v in enumerate(variants):
        headers += [
            f"{v.label} {'us/step' if steps[v.label] else 'us'}",
            "%",
            "n/step" if steps[v.label] else "n",
        ]
        headers += ["delta us"] if i else []

    def cells(row: pd.Series[float]) -> list[str]:
        out = []
        for i, v in enumerate(variants):
            per = bool(steps[v.label])
            out += [
                us(row[v.label, sh.TIME_NS_PER_STEP if per else sh.TIME_NS]),
                _percent(row[v.label, sh.SHARE]),
                _count(row[v.label, sh.LAUNCHES_PER_STEP if per else sh.LAUNCHES]),
            ]
            out += [_signed_us(row[v.label, cmp.DELTA_NS_PER_STEP])] if i else []
        return out

    rows = []
    for key, row in table.head(shown).iterrows():
        rows.append((*(str(x) for x in (key if isinstance(key, tuple) else (key,))), *cells(row)))
    if shown < len(table):
        rest = table.iloc[shown:].sum(numeric_only=False, min_count=1)
        rows.append((f"({len(table) - shown} more)", *[""] * (len(keys) - 1), *cells(rest)))
    footer = [
        (f"{name}: {what}", *[""] * (len(keys) - 1), *_extent_changes(variants, name))
        for name, what in _EXTENT
    ]
    title = " | ".join(f"{v.label}: {steps_said(steps[v.label])}" for v in variants)
    return Grid(title, tuple(headers), tuple(rows), tuple(footer), comparison.notes, left=len(keys))


def _extent_cells(rank: RankShares, name: str) -> list[str]:
    """Time per step, percent of the sum, and (for the sum alone) launches."""
    values = _extent_values(rank)
    percent = _percent(values[name] / values["sum"]) if values["sum"] else ABSENT
    launches = _count(rank.extent.launches / max(rank.steps, 1)) if name == "sum" else ""
    return [us(per_step(values[name], rank.steps)), percent, launches]


def _extent_changes(variants: Sequence[Shares], name: str) -> list[str]:
    base = variants[0].median_rank
    out = _extent_cells(base, name)
    for v in variants[1:]:
        rank = v.median_rank
        change = None
        if rank.steps and base.steps:
            now, before = _extent_values(rank)[name], _extent_values(base)[name]
            change = per_step(now, rank.steps) - per_step(before, base.steps)
        out += [*_extent_cells(rank, name), _signed_us(change)]
    return out


def info_grids(info: Info) -> tuple[Grid, ...]:
    """What a trace is, its GPUs, and what it has and lacks."""
    facts = [
        ("kernels", f"{info.kernels:,}"),
        ("copies / sets", f"{info.memcpys:,} / {info.memsets:,}"),
        ("kernel sum us", us(info.kernel_sum_ns)),
        ("busy us", us(info.busy_ns)),
        ("span us", us(info.span_ns)),
        (
            "steps",
            f"{info.steps} by {info.step_method} ({info.step_detail})"
            if info.steps
            else f"none: {info.step_detail}",
        ),
        *(("", sentence) for sentence in info.step_agreement),
        *((("architecture" if i == 0 else ""), sentence) for i, sentence in enumerate(info.architecture)),
        (
            "ranks",
            ", ".join(info.ranks.values()) + ("" if info.rank_known else " (the file does not say its rank)"),
        ),
        ("versions", ", ".join(f"{k} {v}" for k, v in info.versions.items()) or "not in the file"),
    ]
    title = info.path + (" (PARTIAL: salvaged)" if info.partial else "")
    devices = [
        (
            str(d.rank),
            ABSENT if d.device is None else str(d.device),
            d.name or "unknown",
            ABSENT if d.num_sms is None else str(d.num_sms),
            f"{d.kernels:,}",
            us(d.kernel_sum_ns),
            us(d.busy_ns),
        )
        for d in info.devices
    ]
    has = [("yes" if c.present else "no", c.name, c.detail) for c in info.capabilities]
    headers = ("rank", "device", "name", "SMs", "kernels", "kernel sum us", "busy us")
    gpus = (Grid("GPUs", headers, tuple(devices), left=3),) if devices else ()
    return (
        Grid(title, ("", ""), tuple(facts), left=2, prose=True),
        *gpus,
        Grid(
            "what the trace has", ("", "what", "detail"), tuple(has), notes=info.warnings, left=3, prose=True
        ),
    )


def explain_grid(found: Sequence[Explanation]) -> Grid:
    """Which rule won for each name, which others matched, and where a name alone cannot tell."""
    rows, notes = [], []
    for e in found:
        others = ", ".join(f"{c.rule} ({c.bucket})" for c in e.candidates[1:]) or ABSENT
        rows.append((e.name, e.bucket, e.role, e.rule, others))
        if e.ambiguous:
            notes.append(f"{e.name}: {e.ambiguous}")
        if len(found) == 1 and e.comment:
            notes.append(f"{e.rule}: {e.comment}")
    title = f"{len(found)} name" + ("s" if len(found) > 1 else "")
    return Grid(
        title, ("name", "bucket", "role", "rule", "also matched"), tuple(rows), notes=tuple(notes), left=5
    )
