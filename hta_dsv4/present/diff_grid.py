"""Explained changes as grids of text: per change a headline, the rows and kernels that matter, fusions and splits.

What an engineer reads first comes first, and each thing is said once. Rows too small to matter are one line, with which
every column still adds up to the step; all rows, intervals and rewrites are a flag away.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hta_dsv4.analysis import diff as d
from hta_dsv4.analysis.launch_changes import LaunchChanges
from hta_dsv4.analysis.profile import StepTimes
from hta_dsv4.analysis.stats import Change
from hta_dsv4.analysis.why import Explanation, Why
from hta_dsv4.present.diff_words import (
    TITLES,
    evidence,
    few,
    headline,
    measure,
    one_sided,
    sentence,
    sequence,
    shared_notes,
    signed,
    telling,
    verdict,
)
from hta_dsv4.present.grid import ABSENT, Grid, us
from hta_dsv4.present.launch_grid import launch_grid

MOVERS = 8
REWRITES = 5
WORTH_STEP = 0.001
WORTH_CHANGE = 0.05
"""A row is worth reading when its change, or an effect in it, is this part of the longer step or of all effects."""


def explanation_grids(
    explanation: Explanation, top: int = 25, full: bool = False, launches: Sequence[LaunchChanges] = ()
) -> list[Grid]:
    """Every change of the chain, the whole where there are several, and what all of it rests on.

    Args:
        explanation: what :func:`hta_dsv4.analysis.why.explain` gave.
        top: most rows of each table; 0 for all, also those not worth reading.
        full: all rows, kernels and rewrites.
        launches: which launch configurations each of the changes brought; none are shown without.

    Returns:
        The grids, in reading order; one with the reason where nothing could be explained.
    """
    if not explanation.pairs:
        return [Grid("why it changed", (), (), notes=(f"not explained: {explanation.reason}",), left=0)]
    everything = full or top <= 0
    common = shared_notes(explanation)
    out: list[Grid] = []
    for i, why in enumerate(explanation.pairs):
        out += _pair(why, top, everything, common)
        out += [launch_grid(found, everything) for found in launches[i : i + 1]]
    whole = explanation.whole
    if whole is not None and len(explanation.pairs) > 1:
        out.append(Grid(_title(whole) + ", the whole chain", (), (), lead=headline(whole), left=0))
    notes = (*evidence(explanation), *common)
    return [*out, Grid("how sure this is", (), (), notes=notes, left=0)] if notes else out


def _title(why: Why) -> str:
    return f"{why.decomposition.base.label} -> {why.decomposition.other.label}"


def _pair(why: Why, top: int, everything: bool, common: Sequence[str]) -> list[Grid]:
    out = [_effects(why, top, everything, common)]
    if tuple(why.by) != ("kernel",) and (why.kernels[d.DELTA_NS] != 0).any():
        movers = _movers(why, everything)
        out += [movers] if movers.rows else []
    if why.alignment.rewrites and everything:
        out.append(_rewrites(why))
    return out


def _worth(why: Why, table: pd.DataFrame) -> np.ndarray:
    """Bool [rows]: rows whose change, or an effect that others cancel, is large enough to read."""
    parts = why.decomposition
    size = table[[d.DELTA_NS, *d.EFFECTS]].abs().max(axis=1).to_numpy()
    step = max(parts.base.per_step.own_ns, parts.other.per_step.own_ns)
    effects = int(why.kernels[list(d.EFFECTS)].abs().sum().sum())
    enough: np.ndarray = (size > 0) & (size >= min(WORTH_STEP * step, WORTH_CHANGE * effects))
    return enough


def _interval(change: Change) -> str:
    if change.interval is None:
        return ABSENT
    return f"{signed(change.interval[0])} .. {signed(change.interval[1])}"


def _effects(why: Why, top: int, everything: bool, common: Sequence[str]) -> Grid:
    keys, table = list(why.by), why.rows
    chosen = np.ones(len(table), dtype=bool) if everything else _worth(why, table)
    if top > 0 and not everything:
        chosen &= np.cumsum(chosen) <= top
    changes = [c for c, on in zip(why.row_changes, chosen, strict=True) if on]
    # an effect that no kernel has, or intervals that nothing has, need no column
    effects = [e for e in d.EFFECTS if everything or (table[e] != 0).any()]
    intervals = any(c.interval for c in (*why.row_changes, why.sum_change))
    blank = [""] * (len(keys) - 1)

    def numbers(row: pd.Series[float]) -> tuple[str, ...]:
        times = (us(int(row[d.BASE_NS])), us(int(row[d.OTHER_NS])), signed(row[d.DELTA_NS]))
        return (*times, *(signed(row[e]) for e in effects))

    def judged(change: Change) -> tuple[str, ...]:
        return (verdict(change), _interval(change)) if intervals else (verdict(change),)

    rows: list[tuple[str, ...]] = [
        (*(str(row[k]) for k in keys), *numbers(row), *judged(change))
        for (_, row), change in zip(table[chosen].iterrows(), changes, strict=True)
    ]
    nothing = ("",) * len(judged(why.sum_change))
    total = [d.BASE_NS, d.OTHER_NS, d.DELTA_NS, *d.EFFECTS]
    if left := int((~chosen).sum()):
        rest = table[~chosen]
        largest = int(rest[d.DELTA_NS].abs().max())
        label = f"({left} more, each within {us(largest)})" if largest else f"({left} more, unchanged)"
        rows.append((label, *blank, *numbers(rest[total].sum()), *nothing))
    footer = [(measure(why.decomposition), *blank, *numbers(table[total].sum()), *judged(why.sum_change))]
    if everything:
        footer = _wall_rows(why, blank, len(effects), footer[0], judged(why.wall_change), nothing)
    headers = (*keys, "base us/step", "other", "delta", *(TITLES[e] for e in effects), "verdict")
    headers += ("interval",) if intervals else ()
    rewrites = telling(why, len(why.alignment.rewrites))
    notes = [
        *few(map(sentence, rewrites), REWRITES),
        *one_sided(why.decomposition),
        *(_spread(why) if everything else ()),
        *(n for n in why.notes if n not in common),
    ]
    return Grid(_title(why), headers, tuple(rows), tuple(footer), tuple(notes), len(keys), headline(why))


def _wall_rows(
    why: Why, blank: Sequence[str], effects: int, total: tuple[str, ...], wall: tuple[str, ...],
    nothing: tuple[str, ...],
) -> list[tuple[str, ...]]:  # fmt: skip
    """From the sum to the wall time of a step, around the row of the total."""
    parts = why.decomposition
    base, other, change = parts.base.per_step, parts.other.per_step, parts.change
    empty = [""] * effects

    def row(name: str, key: str, judged: tuple[str, ...] = nothing) -> tuple[str, ...]:
        before, after, moved = (getattr(t, key) for t in (base, other, change))
        return (name, *blank, us(before), us(after), signed(moved), *empty, *judged)

    def rounding(key: str) -> list[tuple[str, ...]]:
        # each time is the nearest ns to its mean; what these leave over has a row, so that the column adds up
        left = any(getattr(t, key) for t in (base, other))
        return [row("+ rounding", key)] if left else []

    after = [
        row("- overlap", "streams_ns"),
        row("+ idle", "idle_ns"),
        *rounding("wall_rounding_ns"),
        row("= wall", "wall_ns", wall),
        _between_row(base, other, blank, empty, nothing),
    ]
    if measure(parts) == "sum":
        return [total, *after]
    before = [row("sum", "sum_ns"), row("- early", "early_ns"), *rounding("own_rounding_ns")]
    return [*before, ("= own", *total[1:]), *after]


def _between_row(
    base: StepTimes, other: StepTimes, blank: Sequence[str], empty: Sequence[str], nothing: tuple[str, ...]
) -> tuple[str, ...]:
    """The mean gap between steps; a capture of a single step has none."""
    each = (us(t.between_ns) if t.gaps else ABSENT for t in (base, other))
    change = (other - base).between_ns if base.gaps and other.gaps else None
    return ("between steps", *blank, *each, signed(change), *empty, *nothing)


def _spread(why: Why) -> list[str]:
    """The verdict on the wall time in words, and its spread over the steps of each side."""
    parts = why.decomposition
    out = [f"wall time of a step: {why.wall_change.reason}"] if why.wall_change.reason else []
    spread = [
        f"{p.label} median {us(e.median)} us, MAD {us(e.mad)}, {e.n} steps"
        for p, e in ((parts.base, why.base_wall), (parts.other, why.other_wall))
    ]
    return [*out, "wall per step: " + "; ".join(spread)]


def _movers(why: Why, everything: bool) -> Grid:
    """Kernels that moved most; sorted by size of the change already."""
    worth = (why.kernels[d.DELTA_NS] != 0).to_numpy() & (everything | _worth(why, why.kernels))
    shown = np.flatnonzero(worth)[: None if everything else MOVERS]
    matches = {m.name: m for m in why.decomposition.matches}
    parts = why.decomposition
    effects = [e for e in d.EFFECTS if everything or (why.kernels[e].iloc[shown] != 0).any()]
    rows = []
    for i in shown.tolist():
        row = why.kernels.iloc[i]
        match = matches[row["kernel"]]
        before, after = row[d.BASE_LAUNCHES] / parts.base.steps, row[d.OTHER_LAUNCHES] / parts.other.steps
        how = match.method or ("new" if match.other else "gone")
        sure = f" {match.confidence:.2f}" if match.method and match.confidence < 1 else ""
        count = f"{before:g}" if before == after else f"{before:g} -> {after:g}"
        rows.append(
            (
                str(row["kernel"]), signed(row[d.DELTA_NS]), *(signed(row[e]) for e in effects), count, how + sure,
                verdict(why.kernel_changes[i]),
            )
        )  # fmt: skip
    headers = (
        "top movers",
        "delta us/step",
        *(TITLES[e] for e in effects),
        "launches/step",
        "matched by",
        "verdict",
    )
    return Grid(f"kernels that moved most, {_title(why)}", headers, tuple(rows), left=1)


def _rewrites(why: Why) -> Grid:
    rows = []
    for r in why.alignment.rewrites:
        more = f"{-r.saved_launches:+,}" if r.saved_launches else "0"
        rows.append(
            (
                r.kind, sequence(r.base), sequence(r.other), f"{r.times}", more, signed(-r.saved_ns),
                f"{r.confidence:.1f}",
            )
        )  # fmt: skip
    how = (
        "each layer with the same layer"
        if why.alignment.by_layer
        else "the whole step at once: scopes name no layers"
    )
    headers = ("kind", "base", "other", "x/step", "launches/step", "us/step", "confidence")
    title = f"kernels that became others, {_title(why)}"
    return Grid(title, headers, tuple(rows), notes=(f"aligned in launch order, {how}",), left=3)
