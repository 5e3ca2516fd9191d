"""Explained changes in words: the headline of a change, its verdicts, its rewrites, what the GPU waited for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from hta_dsv4.analysis import diff as d
from hta_dsv4.analysis import stats
from hta_dsv4.analysis.align import ADDED, FUSED, REMOVED, REPLACED, SPLIT, Rewrite
from hta_dsv4.analysis.idle import Idle
from hta_dsv4.analysis.stats import MIN_STEPS, REAL, SPREADS, UNKNOWN, Change
from hta_dsv4.analysis.why import Explanation, Why
from hta_dsv4.classify.names import short
from hta_dsv4.present.grid import ABSENT, us

TITLES = {
    d.COUNT_NS: "count",
    d.DURATION_NS: "duration",
    d.APPEARED_NS: "appeared",
    d.DISAPPEARED_NS: "gone",
}
LONGEST = 40
"""A rewrite longer than this, and than a tenth of both steps, is two different programs, not a fusion to speak of."""
_PACED = 10
_MEANINGS = {
    stats.STRUCTURAL: "structural: launches come, go or differ in number, alike in every step",
    stats.BEYOND_SPREAD: f"beyond spread: more than {SPREADS:g}x the ranges of the few steps seen, added",
    stats.WITHIN_SPREAD: f"within spread: not more than {SPREADS:g}x these",
    stats.WITHIN_NOISE: "within noise: the interval holds 0, or a capture differs from itself by as much",
}


def signed(ns: float | None) -> str:
    """Nanoseconds as signed microseconds, ``0`` for none, ``-`` for missing."""
    if ns is None or pd.isna(ns):
        return ABSENT
    whole = round(ns)
    return f"{'+' if whole > 0 else ''}{us(whole)}" if whole else "0"


def headline(why: Why) -> tuple[str, ...]:
    """One change in two or three lines: the time with its effects, the wall with its parts, and what was waited for."""
    parts, change = why.decomposition, why.decomposition.change
    base, other = parts.base.per_step, parts.other.per_step
    effects = ", ".join(f"{TITLES[e]} {signed(ns)}{_leader(parts, e)}" for e, ns in parts.effects.items())

    def moved(before: int, after: int, judged: Change) -> str:
        percent = f"{100 * (after - before) / before:+.1f} %, " if before else ""
        return f"{us(before)} -> {us(after)} us/step: {signed(after - before)} ({percent}{verdict(judged)})"

    what = measure(parts)
    lines = [
        f"{what} {moved(base.own_ns, other.own_ns, why.sum_change)} = {effects}",
        f"wall {moved(base.wall_ns, other.wall_ns, why.wall_change)} = {what} {signed(change.own_ns)}, "
        f"overlap {signed(-change.streams_ns)}, idle {signed(change.idle_ns)}"
        + (f", rounding {signed(change.wall_rounding_ns)}" if change.wall_rounding_ns else ""),
    ]
    waited = idle_words(parts.base.label, why.base_idle, parts.other.label, why.other_idle)
    return (*lines, waited) if waited else tuple(lines)


def measure(parts: d.Decomposition) -> str:
    """What times of a change are called: ``own`` where a launch starts before the one ahead has ended, else ``sum``."""
    return "own" if parts.base.per_step.early_ns or parts.other.per_step.early_ns else "sum"


def idle_words(base_label: str, base: Idle, other_label: str, other: Idle) -> str:
    """What the idle time of two variants waited for; ``""`` where the traces cannot tell."""
    if base.queue_empty_share is None or other.queue_empty_share is None:
        return ""
    sides = ((base_label, base), (other_label, other))
    bound = [label for label, i in sides if i.host_bound]
    verb = "are" if len(bound) > 1 else "is"
    return (
        "idle with an empty queue: "
        + ", ".join(f"{label} {100 * (i.queue_empty_share or 0):.0f} % ({_pace(i)})" for label, i in sides)
        + (f"; {' and '.join(bound)} {verb} host-bound" if bound else "")
    )


def _pace(idle: Idle) -> str:
    """``15,661 launches/step, one every 49.2 us for 23.9 us of GPU time``; a graph's one launch has no pace."""
    assert idle.launches
    per_step = idle.launches / idle.steps
    text = f"{per_step:,.0f} launch{'' if per_step == 1 else 'es'}/step"
    if per_step < _PACED:
        return text
    wall, busy = idle.wall_ns / idle.launches / 1e3, idle.sum_ns / idle.launches / 1e3
    return f"{text}, one every {wall:,.1f} us for {busy:,.1f} us of GPU time"


def _leader(parts: d.Decomposition, effect: str) -> str:
    """Whose coming or going makes most of an effect, with its own figure: ``(attention_combine +453.292)``."""
    if effect not in (d.APPEARED_NS, d.DISAPPEARED_NS) or not parts.effects[effect]:
        return ""
    by_role = parts.table("role").set_index("role")[effect]
    first = str(by_role.abs().idxmax())
    alone = int((by_role != 0).sum()) == 1
    return f" ({first})" if alone else f" ({first} {signed(int(by_role[first]))})"


def one_sided(parts: d.Decomposition) -> list[str]:
    """Roles that only one variant has: what a change costs or saves by itself, e.g. the combine of split-K."""
    out = []
    for _, row in parts.table("role").iterrows():
        size = us(abs(int(row[d.DELTA_NS])))
        if row[d.BASE_LAUNCHES] == 0:
            out.append(f"{row['role']} is new in {parts.other.label}: it costs {size} us per step")
        elif row[d.OTHER_LAUNCHES] == 0:
            out.append(f"{row['role']} is gone in {parts.other.label}: {size} us per step less")
    return out[:4]


def verdict(change: Change) -> str:
    """A verdict in a table's cell."""
    if change.verdict == change.within_run:
        return change.within_run if change.within_run != REAL else "real within run"
    return f"{change.across_run} across runs"


def evidence(explanation: Explanation) -> list[str]:
    """What the verdicts of a whole output rest on, once: the steps recorded, and the words used."""
    pairs = explanation.pairs
    steps = {p.label: p.steps for why in pairs for p in (why.decomposition.base, why.decomposition.other)}
    notes = []
    if few := {label: n for label, n in steps.items() if n < MIN_STEPS}:
        counts = sorted(set(few.values()))
        recorded = "only " + " or ".join(map(str, counts)) if few == steps else "too few"
        where = "" if few == steps else f" in {', '.join(f'{label} ({n})' for label, n in few.items())}"
        unit = "step" if counts == [1] else "steps"
        notes.append(f"no intervals: {recorded} {unit} recorded{where}, an interval needs {MIN_STEPS}")
    used = {c.verdict for why in pairs for c in (*why.row_changes, why.sum_change, why.wall_change)}
    words = [text for word, text in _MEANINGS.items() if word in used]
    if stats.STRUCTURAL in used and 1 in steps.values():
        words[0] += " (of a single step where no more were recorded: another might differ)"
    if UNKNOWN in used:
        words.append("unknown: a single step")
    return notes + (["; ".join(words)] if words else [])


def shared_notes(explanation: Explanation) -> list[str]:
    """Notes that hold for every change of the chain, to be said once."""
    first, *rest = explanation.pairs
    return [n for n in first.notes if all(n in why.notes for why in rest)]


def telling(why: Why, most: int) -> list[Rewrite]:
    """The rewrites that save or cost most; plain additions and removals are in the tables already."""
    launches = len(why.alignment.base.names) + len(why.alignment.other.names)
    longest = max(LONGEST, launches // 10)
    return [
        r
        for r in why.alignment.rewrites
        if r.kind not in (ADDED, REMOVED) and r.saved_ns and len(r.base) + len(r.other) <= longest
    ][:most]


def sentence(rewrite: Rewrite) -> str:
    """``5 kernels became 1 (_norm_quant), 43x per step: 172 launches and 473.000 us saved per step``."""
    old, new = len(rewrite.base), len(rewrite.other)
    if rewrite.kind == REPLACED:
        what = f"{short(rewrite.base[0])} was replaced by {short(rewrite.other[0])}"
    else:
        what = f"{old} kernel{'s' * (old > 1)} became {new}"
    if rewrite.kind in (SPLIT, FUSED) or (rewrite.kind != REPLACED and new <= 4):
        what += f" ({' + '.join(map(short, rewrite.other))})"
    launches, ns = rewrite.saved_launches, rewrite.saved_ns
    count = f"{abs(launches):,} launches {'saved' if launches > 0 else 'more'} and " if launches else ""
    time = f"{us(abs(ns))} us {'saved' if ns >= 0 else 'more'} per step"
    return f"{what}, {rewrite.times}x per step: {count}{time}"


def sequence(names: Sequence[str]) -> str:
    """Names in order, runs of one name as ``3x name``."""
    out: list[tuple[str, int]] = []
    for name in map(short, names):
        if out and out[-1][0] == name:
            out[-1] = (name, out[-1][1] + 1)
        else:
            out.append((name, 1))
    shown = [n if k == 1 else f"{k}x {n}" for n, k in out[:4]]
    return ", ".join(shown) + (f", ... ({len(names)} kernels)" if len(out) > 4 else "") or ABSENT


def few(items: Iterable[str], most: int) -> list[str]:
    """The first ``most`` items, and how many more there are."""
    every = list(items)
    return every[:most] + ([f"({len(every) - most} more: --full)"] if len(every) > most else [])
