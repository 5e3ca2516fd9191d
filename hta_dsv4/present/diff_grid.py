"""Explained changes as grids of text: the headline, what the change is made of, top movers, fusions and splits."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from hta_dsv4.analysis import diff as d
from hta_dsv4.analysis.align import ADDED, FUSED, REMOVED, REPLACED, SPLIT, Rewrite
from hta_dsv4.analysis.stats import REAL, UNKNOWN, Change
from hta_dsv4.analysis.why import Explanation, Why
from hta_dsv4.present.grid import ABSENT, Grid, us

MOVERS = 10
REWRITES = 15
LONGEST = 40
"""A rewrite of more kernels than this is two different programs, not a fusion or a split worth a sentence."""
_TITLES = {
    d.COUNT_NS: "count",
    d.DURATION_NS: "duration",
    d.APPEARED_NS: "appeared",
    d.DISAPPEARED_NS: "gone",
}


def signed(ns: float | None) -> str:
    """Nanoseconds as signed microseconds, ``0`` for none, ``-`` for missing."""
    if ns is None or pd.isna(ns):
        return ABSENT
    whole = round(ns)
    return f"{'+' if whole > 0 else ''}{us(whole)}" if whole else "0"


def explanation_grids(explanation: Explanation, top: int = 0) -> list[Grid]:
    """Every change of the chain, and the whole where there are several.

    Args:
        explanation: what :func:`hta_dsv4.analysis.why.explain` gave.
        top: rows of each effect table; 0 for all.

    Returns:
        The grids, in reading order; one with the reason where nothing could be explained.
    """
    if not explanation.pairs:
        return [Grid("why it changed", (), (), notes=(f"not explained: {explanation.reason}",), left=0)]
    out = [g for why in explanation.pairs for g in _pair(why, top)]
    if explanation.whole is not None and len(explanation.pairs) > 1:
        out.append(_effects(explanation.whole, top))
    return out


def headline(why: Why) -> str:
    """One change in one sentence: ``a -> b: sum 310.000 -> 120.000 us/step: -190.000 = count ..., wall ...``."""
    parts, change = why.decomposition, why.decomposition.change
    base, other = parts.base.per_step, parts.other.per_step
    effects = ", ".join(f"{_TITLES[e]} {signed(ns)}{_leader(parts, e)}" for e, ns in parts.effects.items())
    return (
        f"{parts.base.label} -> {parts.other.label}: sum {us(base.sum_ns)} -> {us(other.sum_ns)} us/step: "
        f"{signed(change.sum_ns)} = {effects}; "
        f"wall {us(base.wall_ns)} -> {us(other.wall_ns)}: {signed(change.wall_ns)} = "
        f"sum {signed(change.sum_ns)}, overlap {signed(-change.overlap_ns)}, idle {signed(change.idle_ns)} "
        f"({_verdict(why.wall_change)})"
    )


def _leader(parts: d.Decomposition, effect: str) -> str:
    """The role behind most of an effect that kernels make by coming or going: ``(attention_combine)``."""
    if effect not in (d.APPEARED_NS, d.DISAPPEARED_NS) or not parts.effects[effect]:
        return ""
    by_role = parts.table("role").set_index("role")[effect].abs()
    return f" ({by_role.idxmax()})"


def _one_sided(parts: d.Decomposition) -> list[str]:
    """Roles that only one variant has: what a change costs or saves by itself, e.g. the combine of split-K."""
    out = []
    for _, row in parts.table("role").iterrows():
        size = us(abs(int(row[d.DELTA_NS])))
        if row[d.BASE_LAUNCHES] == 0:
            out.append(f"{row['role']} is new in {parts.other.label}: it costs {size} us per step")
        elif row[d.OTHER_LAUNCHES] == 0:
            out.append(f"{row['role']} is gone in {parts.other.label}: {size} us per step less")
    return out[:4]


def _verdict(change: Change) -> str:
    if change.across_run != UNKNOWN:
        return f"{change.across_run} across runs"
    return change.within_run if change.within_run != REAL else "real within run"


def _interval(change: Change) -> str:
    if change.interval is None:
        return ABSENT
    return f"{signed(change.interval[0])} .. {signed(change.interval[1])}"


def _pair(why: Why, top: int) -> list[Grid]:
    out = [_effects(why, top)]
    if tuple(why.by) != ("kernel",) and (why.kernels[d.DELTA_NS] != 0).any():
        out.append(_movers(why))
    if why.alignment.rewrites:
        out.append(_rewrites(why))
    return out


_HEADERS = ("base us/step", "other", "delta", *_TITLES.values(), "verdict", "interval")


def _row(row: pd.Series[float], keys: Sequence[str], change: Change) -> tuple[str, ...]:
    return (
        *(str(row[k]) for k in keys), us(int(row[d.BASE_NS])), us(int(row[d.OTHER_NS])), signed(row[d.DELTA_NS]),
        *(signed(row[e]) for e in d.EFFECTS), _verdict(change), _interval(change),
    )  # fmt: skip


def _effects(why: Why, top: int) -> Grid:
    keys, table = list(why.by), why.rows
    shown = len(table) if top <= 0 or top >= len(table) else top
    rows = [_row(row, keys, why.row_changes[i]) for i, (_, row) in enumerate(table.head(shown).iterrows())]
    blank = [""] * (len(keys) - 1)
    if shown < len(table):
        rest = table.iloc[shown:][[d.BASE_NS, d.OTHER_NS, d.DELTA_NS, *d.EFFECTS]].sum()
        numbers = (us(int(rest[d.BASE_NS])), us(int(rest[d.OTHER_NS])), signed(rest[d.DELTA_NS]))
        rows.append(
            (f"({len(table) - shown} more)", *blank, *numbers, *(signed(rest[e]) for e in d.EFFECTS), "", "")
        )
    parts = why.decomposition
    base, other, change = parts.base.per_step, parts.other.per_step, parts.change
    empty = [""] * len(d.EFFECTS)
    footer = [
        (
            "sum", *blank, us(base.sum_ns), us(other.sum_ns), signed(change.sum_ns),
            *(signed(parts.effects[e]) for e in d.EFFECTS), _verdict(why.sum_change), _interval(why.sum_change),
        ),
        ("- overlap", *blank, us(base.overlap_ns), us(other.overlap_ns), signed(change.overlap_ns), *empty, "", ""),
        ("+ idle", *blank, us(base.idle_ns), us(other.idle_ns), signed(change.idle_ns), *empty, "", ""),
        (
            "= wall", *blank, us(base.wall_ns), us(other.wall_ns), signed(change.wall_ns), *empty,
            _verdict(why.wall_change), _interval(why.wall_change),
        ),
    ]  # fmt: skip
    notes = (*(_sentence(r) for r in _telling(why)), *_one_sided(parts), *_reasons(why), *why.notes)
    return Grid(headline(why), (*keys, *_HEADERS), tuple(rows), tuple(footer), notes, left=len(keys))


def _reasons(why: Why) -> list[str]:
    """The verdict on the wall time in words, and what few steps leave open."""
    parts = why.decomposition
    wall = why.wall_change
    out = [f"wall time of a step: {wall.reason}"] if wall.reason else []
    spread = [
        f"{p.label} median {us(e.median)} us, MAD {us(e.mad)}, {e.n} steps"
        for p, e in ((parts.base, why.base_wall), (parts.other, why.other_wall))
    ]
    return [*out, "wall per step: " + "; ".join(spread)]


def _movers(why: Why) -> Grid:
    table = why.kernels[why.kernels[d.DELTA_NS] != 0].head(MOVERS)  # sorted by size of the change
    matches = {m.name: m for m in why.decomposition.matches}
    rows = []
    for i, (_, row) in enumerate(table.iterrows()):
        match = matches[row["kernel"]]
        launches = (
            row[d.BASE_LAUNCHES] / why.decomposition.base.steps,
            row[d.OTHER_LAUNCHES] / why.decomposition.other.steps,
        )
        how = match.method or ("only in other" if match.other else "only in base")
        sure = f" {match.confidence:.2f}" if match.method and match.confidence < 1 else ""
        change = why.kernel_changes[i]
        rows.append(
            (
                str(row["kernel"]), signed(row[d.DELTA_NS]), *(signed(row[e]) for e in d.EFFECTS),
                f"{launches[0]:g} -> {launches[1]:g}", how + sure, _verdict(change),
            )
        )  # fmt: skip
    unsure = [
        f"{_short(str(row['kernel']))}: {why.kernel_changes[i].reason}"
        for i, (_, row) in enumerate(table.iterrows())
        if why.kernel_changes[i].within_run == UNKNOWN
    ]
    headers = ("top movers", "delta us/step", *_TITLES.values(), "launches/step", "matched by", "verdict")
    parts = why.decomposition
    title = f"kernels that moved most, {parts.base.label} -> {parts.other.label}"
    return Grid(title, headers, tuple(rows), notes=tuple(unsure[:3]), left=1)


def _telling(why: Why) -> list[Rewrite]:
    """The rewrites that save or cost most, for the notes; plain additions and removals are in the tables already."""
    return [
        r
        for r in why.alignment.rewrites
        if r.kind not in (ADDED, REMOVED) and r.saved_ns and len(r.base) + len(r.other) <= LONGEST
    ][:3]


def _sentence(rewrite: Rewrite) -> str:
    """``5 kernels became 1, 43x per step: 172 launches and 473.000 us saved``."""
    old, new = len(rewrite.base), len(rewrite.other)
    if rewrite.kind == REPLACED:
        what = f"{_short(rewrite.base[0])} was replaced by {_short(rewrite.other[0])}"
    else:
        what = f"{old} kernel{'s' * (old > 1)} became {new}"
    if rewrite.kind == SPLIT:
        what += f" ({' + '.join(_short(n) for n in rewrite.other)})"
    elif rewrite.kind == FUSED:
        what += f" ({_short(rewrite.other[0])})"
    launches, ns = rewrite.saved_launches, rewrite.saved_ns
    count = f"{abs(launches):,} launches {'saved' if launches > 0 else 'more'} and " if launches else ""
    time = f"{us(abs(ns))} us {'saved' if ns >= 0 else 'more'} per step"
    return f"{what}, {rewrite.times}x per step: {count}{time}"


def _short(name: str) -> str:
    head = name.split("<", 1)[0].split("(", 1)[0].strip().split(" ")[-1].rsplit("::", 1)[-1]
    return head or name[:40]


def _rewrites(why: Why) -> Grid:
    rows = []
    for r in why.alignment.rewrites[:REWRITES]:
        more = f"{-r.saved_launches:+,}" if r.saved_launches else "0"
        rows.append(
            (
                r.kind, _sequence(r.base), _sequence(r.other), f"{r.times}", more, signed(-r.saved_ns),
                f"{r.confidence:.1f}",
            )
        )  # fmt: skip
    left = len(why.alignment.rewrites) - len(rows)
    parts = why.decomposition
    how = (
        "each layer with the same layer"
        if why.alignment.by_layer
        else "the whole step at once: scopes name no layers"
    )
    notes = [f"aligned in launch order, {how}"] + ([f"{left} smaller rewrites not shown"] if left > 0 else [])
    title = f"kernels that became others, {parts.base.label} -> {parts.other.label}"
    headers = ("kind", "base", "other", "x/step", "launches/step", "us/step", "confidence")
    return Grid(title, headers, tuple(rows), notes=tuple(notes), left=3)


def _sequence(names: Sequence[str]) -> str:
    """Names in order, runs of one name as ``3x name``."""
    out: list[tuple[str, int]] = []
    for name in map(_short, names):
        if out and out[-1][0] == name:
            out[-1] = (name, out[-1][1] + 1)
        else:
            out.append((name, 1))
    shown = [n if k == 1 else f"{k}x {n}" for n, k in out[:4]]
    return ", ".join(shown) + (f", ... ({len(names)} kernels)" if len(out) > 4 else "") or ABSENT
