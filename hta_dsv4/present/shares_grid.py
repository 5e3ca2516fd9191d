"""Share tables as grids: one variant, its ranks, or variants side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hta_dsv4.analysis import compare as cmp
from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.compare import Comparison
from hta_dsv4.analysis.places import PLACES, STEP
from hta_dsv4.analysis.shares import RankShares, Shares
from hta_dsv4.present.grid import ABSENT, Grid, count, per_step, percent, shown_of, signed_us, steps_said, us


def _extent_rows(ranks: Sequence[RankShares]) -> list[tuple[str, str]]:
    """Names of the times below a table, and what each is; those that say nothing of any rank are left out."""
    early = any(r.extent.early_ns for r in ranks)
    steps = any(r.steps for r in ranks)
    return [
        ("sum", "summed durations"),
        *([("own", "sum - early")] if early else []),
        ("busy", "union of intervals"),
        ("overlap", "sum - busy"),
        *([("early", "started before the one ahead had ended")] if early else []),
        *([("streams", "own - busy")] if early and any(r.extent.streams_ns for r in ranks) else []),
        ("wall", "a step's first start to last end" if steps else "first start to last end"),
        ("idle", "wall - busy"),
        *(
            [("between", "a step's end to the next one's start")]
            if any(r.extent.between_ns for r in ranks)
            else []
        ),
    ]


def _extent_values(rank: RankShares) -> dict[str, int]:
    e = rank.extent
    return {
        "sum": e.sum_ns, "own": e.own_ns, "busy": e.busy_ns, "overlap": e.overlap_ns, "early": e.early_ns,
        "streams": e.streams_ns, "wall": e.wall_ns, "idle": e.idle_ns, "between": e.between_ns,
    }  # fmt: skip


def shares_grid(shares: Shares, top: int = 0) -> Grid:
    """One variant's share table; with several ranks, one time column per rank and their median."""
    if len(shares.ranks) > 1:
        return _ranks_grid(shares, top)
    rank = shares.median_rank
    keys, unit = list(shares.by), "us/step" if rank.steps else "us"
    time, launches = (sh.TIME_NS_PER_STEP, sh.LAUNCHES_PER_STEP) if rank.steps else (sh.TIME_NS, sh.LAUNCHES)
    own = sh.OWN_NS_PER_STEP if rank.steps else sh.OWN_NS
    early = bool(rank.extent.early_ns)  # without it own time is the time, and needs no column
    table, shown = rank.table, shown_of(top, len(rank.table))
    largest = table.head(shown)
    if keys[0] in PLACES:  # in order of steps or layers, but those with most time
        largest = table.nlargest(shown, sh.TIME_NS).sort_index()
    rows = [
        (
            *(str(row[k]) for k in keys),
            us(row[time]),
            *((us(row[own]),) if early else ()),
            percent(row[sh.SHARE]),
            count(row[launches]),
            us(float(row[sh.MEAN_NS])),
            us(float(row[sh.MEDIAN_NS])),
        )
        for _, row in largest.iterrows()
    ]
    if shown < len(table):
        rest = table.drop(index=largest.index)
        ns = int(rest[sh.TIME_NS].sum())
        single = keys == [STEP]  # of rows that are each a step's own, the mean
        parts = len(rest) if single else rank.steps
        launched = rest[sh.LAUNCHES].sum() / max(parts, 1)
        label = f"({len(rest)} more{', mean' if single else ''})"
        rows.append(
            (
                label,
                *[""] * (len(keys) - 1),
                us(per_step(ns, parts)),
                *((us(per_step(int(rest[sh.OWN_NS].sum()), parts)),) if early else ()),
                percent(rest[sh.SHARE].sum()),
                count(launched),
                "",
                "",
            )
        )
    footer = []
    for name, what in _extent_rows([rank]):
        first, *others = _extent_cells(rank, name, "sum")
        owned = ((us(per_step(rank.extent.own_ns, rank.steps)) if name == "sum" else ""),) if early else ()
        footer.append((f"{name}: {what}", *[""] * (len(keys) - 1), first, *owned, *others, "", ""))
    steps = steps_said(rank.steps) if rank.steps else "no steps: totals of the trace"
    headers = (
        *keys, unit, *((f"own {unit}",) if early else ()), "% of sum", "launches" + ("/step" if rank.steps else ""),
        "mean us", "median us",
    )  # fmt: skip
    notes = (*shares.notes, *shares.early_note)
    return Grid(f"{shares.label}: {steps}", headers, tuple(rows), tuple(footer), notes, left=len(keys))


def _ranks_grid(shares: Shares, top: int) -> Grid:
    keys = list(shares.by)
    time = sh.TIME_NS_PER_STEP if all(r.steps for r in shares.ranks) else sh.TIME_NS
    wide = pd.concat({r.rank: r.table.set_index(keys)[time] for r in shares.ranks}, axis=1)
    median = pd.Series(sh.rank_median(wide.fillna(0).to_numpy(dtype=np.int64).T), wide.index)
    order = median.sort_values(ascending=False, kind="stable").index[: shown_of(top, len(median))]
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
    for name, what in _extent_rows(shares.ranks):
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
    notes = (*shares.notes, *shares.early_note)
    return Grid(title, headers, tuple(rows), tuple(footer), notes, left=len(keys))


def comparison_grid(comparison: Comparison, top: int = 0) -> Grid:
    """Variants side by side: own time per step, share of it, launches, and the change against the first."""
    variants, keys = comparison.variants, list(comparison.by)
    steps = {v.label: v.median_rank.steps for v in variants}
    table = comparison.table
    shown = shown_of(top, len(table))
    headers = list(keys)
    own = "own " if any(v.median_rank.extent.early_ns for v in variants) else ""
    for i, v in enumerate(variants):
        headers += [
            f"{v.label} {own}{'us/step' if steps[v.label] else 'us'}",
            "%",
            "n/step" if steps[v.label] else "n",
        ]
        headers += ["delta us"] if i else []

    def cells(row: pd.Series[float]) -> list[str]:
        out = []
        for i, v in enumerate(variants):
            per = bool(steps[v.label])
            out += [
                us(row[v.label, sh.OWN_NS_PER_STEP if per else sh.OWN_NS]),
                percent(row[v.label, cmp.OWN_SHARE]),
                count(row[v.label, sh.LAUNCHES_PER_STEP if per else sh.LAUNCHES]),
            ]
            out += [signed_us(row[v.label, cmp.DELTA_NS_PER_STEP])] if i else []
        return out

    rows = []
    for key, row in table.head(shown).iterrows():
        rows.append((*(str(x) for x in (key if isinstance(key, tuple) else (key,))), *cells(row)))
    if shown < len(table):
        rest = table.iloc[shown:].sum(numeric_only=False, min_count=1)
        rows.append((f"({len(table) - shown} more)", *[""] * (len(keys) - 1), *cells(rest)))
    footer = [
        (f"{name}: {what}", *[""] * (len(keys) - 1), *_extent_changes(variants, name))
        for name, what in _extent_rows([v.median_rank for v in variants])
    ]
    title = " | ".join(f"{v.label}: {steps_said(steps[v.label])}" for v in variants)
    return Grid(title, tuple(headers), tuple(rows), tuple(footer), comparison.notes, left=len(keys))


def _extent_cells(rank: RankShares, name: str, whole: str) -> list[str]:
    """Time per step, percent of the sum or of the own time, and (for the sum alone) launches."""
    values = _extent_values(rank)
    part = percent(values[name] / values[whole]) if values[whole] else ABSENT
    launches = count(rank.extent.launches / max(rank.steps, 1)) if name == "sum" else ""
    return [us(per_step(values[name], rank.steps)), part, launches]


def _extent_changes(variants: Sequence[Shares], name: str) -> list[str]:
    base = variants[0].median_rank
    out = _extent_cells(base, name, "own")
    for v in variants[1:]:
        rank = v.median_rank
        change = None
        if rank.steps and base.steps:
            now, before = _extent_values(rank)[name], _extent_values(base)[name]
            change = per_step(now, rank.steps) - per_step(before, base.steps)
        out += [*_extent_cells(rank, name, "own"), signed_us(change)]
    return out
