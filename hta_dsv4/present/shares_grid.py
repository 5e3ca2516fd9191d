"""Share tables as grids: one variant, its ranks, or variants side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hta_dsv4.analysis import compare as cmp
from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.compare import Comparison
from hta_dsv4.analysis.places import PLACES, STEP
from hta_dsv4.analysis.shares import RankShares, Shares
from hta_dsv4.present.grid import ABSENT, Grid, count, per_step, percent, shown_of, signed_us, steps_said, us


def _extent_rows(ranks: Sequence[RankShares]) -> list[tuple[str, str]]:
    """Keys of the times below a table, and the label of each.

    Times that are one and the same on every rank share a row (``own = busy`` where streams do not run side by side),
    and those that say nothing of any rank have none.
    """
    early = any(r.extent.early_ns for r in ranks)
    streams = any(r.extent.streams_ns for r in ranks)
    if early and streams:
        work = [(k, k) for k in ("sum", "own", "busy", "overlap", "early", "streams")]
    elif early:
        work = [("sum", "sum"), ("own", "own = busy"), ("early", "early = overlap")]
    elif streams:
        work = [(k, k) for k in ("sum", "busy", "overlap")]
    else:
        work = [("sum", "sum = busy")]
    after = [(k, k) for k in ("wall", "idle")]
    return [*work, *after, *([("between", "between")] if any(r.extent.gaps for r in ranks) else [])]


def _legend(ranks: Sequence[RankShares]) -> str:
    """What each row below a table is, in one line; ``busy`` and ``overlap`` also where they share a row."""
    steps = any(r.steps for r in ranks)
    gaps = sorted({r.extent.gaps for r in ranks if r.extent.gaps})
    mean = f", mean of {' or '.join(map(str, gaps))}" if gaps and gaps != [1] else ""
    meanings = {
        "sum": "durations added",
        "own": "sum - early",
        "busy": "union of intervals",
        "overlap": "sum - busy",
        "early": "started before the one ahead had ended",
        "streams": "own - busy",
        "wall": "a step's first start to last end" if steps else "first start to last end",
        "idle": "wall - busy",
        "between": f"a step's end to the next one's start{mean}",
    }
    names = [name for _, label in _extent_rows(ranks) for name in label.split(" = ")]
    said = "; ".join(f"{name}: {meanings[name]}" for name in names)
    return said if all(map(_adds_up, ranks)) else f"{said}; each mean is rounded once, to 0.001 us"


def _adds_up(rank: RankShares) -> bool:
    """Whether the times that are printed are the differences that the legend calls them."""
    v = _extent_values(rank)
    differences = (
        v["own"] - v["sum"] + v["early"], v["overlap"] - v["sum"] + v["busy"], v["streams"] - v["own"] + v["busy"],
        v["idle"] - v["wall"] + v["busy"],
    )  # fmt: skip
    return not any(differences)


def _extent_values(rank: RankShares) -> dict[str, int]:
    """The times per step, ``between`` per gap; totals where there are no steps.

    Each is rounded once, as in :class:`hta_dsv4.analysis.profile.StepTimes`: a difference of two that are rounded may
    be an ns off the mean it is meant to be.
    """
    e = rank.extent
    exact = {
        "sum": e.sum_ns, "own": e.own_ns, "busy": e.busy_ns, "overlap": e.overlap_ns, "early": e.early_ns,
        "streams": e.streams_ns, "wall": e.wall_ns, "idle": e.idle_ns,
    }  # fmt: skip
    return {k: per_step(ns, rank.steps) for k, ns in exact.items()} | {
        "between": per_step(e.between_ns, e.gaps)
    }


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
    for name, label in _extent_rows([rank]):
        first, *others = _extent_cells(rank, name, "sum")
        times = (
            ((first, "") if name != "own" else ("", first)) if early else (first,)
        )  # each below its own kind
        footer.append((label, *[""] * (len(keys) - 1), *times, *others, "", ""))
    steps = steps_said(rank.steps) if rank.steps else "no steps: totals of the trace"
    headers = (
        *keys, unit, *((f"own {unit}",) if early else ()), "% of sum", "launches" + ("/step" if rank.steps else ""),
        "mean us", "median us",
    )  # fmt: skip
    notes = (*shares.notes, *shares.early_note)
    return Grid(
        f"{shares.label}: {steps}",
        headers,
        tuple(rows),
        tuple(footer),
        notes,
        len(keys),
        legend=_legend([rank]),
    )


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
    ranks = shares.ranks
    if time == sh.TIME_NS:  # of totals beside each other, also those of a rank that shows steps
        ranks = tuple(replace(r, steps=0) for r in ranks)
    for name, label in _extent_rows(ranks):
        per_rank = [_extent_values(r)[name] for r in ranks]
        footer.append((label, *blank, *(us(v) for v in per_rank), us(int(sh.rank_median(per_rank)))))
    unit = "us/step" if time == sh.TIME_NS_PER_STEP else "us"
    headers = (*keys, *(f"rank {r.rank} {unit}" for r in shares.ranks), sh.median_name(len(shares.ranks)))
    title = (
        f"{shares.label}: {len(shares.ranks)} ranks, never summed; rank {shares.median_rank.rank} is the "
        f"{sh.median_name(len(shares.ranks))} by own time"
    )
    notes = (*shares.notes, *shares.early_note)
    return Grid(title, headers, tuple(rows), tuple(footer), notes, len(keys), legend=_legend(ranks))


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
    ranks = [v.median_rank for v in variants]
    footer = [
        (label, *[""] * (len(keys) - 1), *_extent_changes(variants, name))
        for name, label in _extent_rows(ranks)
    ]
    title = " | ".join(f"{v.label}: {steps_said(steps[v.label])}" for v in variants)
    return Grid(
        title, tuple(headers), tuple(rows), tuple(footer), comparison.notes, len(keys), legend=_legend(ranks)
    )


def _extent_cells(rank: RankShares, name: str, whole: str) -> list[str]:
    """Time per step (or gap), percent of the sum or of the own time, and (for the sum alone) launches."""
    if name == "between" and not rank.extent.gaps:
        return [ABSENT, ABSENT, ""]
    values = _extent_values(rank)
    part = percent(values[name] / values[whole]) if values[whole] else ABSENT
    launches = count(rank.extent.launches / max(rank.steps, 1)) if name == "sum" else ""
    return [us(values[name]), part, launches]


def _extent_changes(variants: Sequence[Shares], name: str) -> list[str]:
    base = variants[0].median_rank
    out = _extent_cells(base, name, "own")
    for v in variants[1:]:
        rank = v.median_rank
        change = None
        if rank.steps and base.steps and (name != "between" or (rank.extent.gaps and base.extent.gaps)):
            change = _extent_values(rank)[name] - _extent_values(base)[name]
        out += [*_extent_cells(rank, name, "own"), signed_us(change)]
    return out
