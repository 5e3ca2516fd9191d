"""Launches with fewer CTAs than the GPU has SMs, long enough to be worth dividing: split, and into how many."""

from __future__ import annotations

import math

import numpy as np

from hta_dsv4.analysis.costs.cost import UNKNOWN
from hta_dsv4.analysis.costs.geometry import HEAD_DIM
from hta_dsv4.analysis.findings.finding import (
    ATTACK,
    MODELLED,
    Claim,
    Evidence,
    Finding,
    Floats,
    Ints,
    claim,
    percent,
    said,
    together,
)
from hta_dsv4.analysis.findings.phases import step_phases
from hta_dsv4.analysis.findings.subject import COMMUNICATION, Subject
from hta_dsv4.analysis.phases import TWICE, kernel_times, phases
from hta_dsv4.trace import activities as col

RULE = "underfilled"
LONG_NS = 5000
"""Shorter launches have too little work for a second one that combines partial results."""
MOST_SPLITS = 16
"""More partial results cost more to combine than they win (the published campaign's limit)."""
LEAST_TOKENS = 32
"""Tokens of a split of sparse attention, at least: fewer do not fill a tile (likewise)."""


def split_count(ctas: float, sms: float, columns: float | None = None) -> int:
    """How many splits give every SM a CTA, within what is worth combining.

    Args:
        ctas: of the launch.
        sms: of the GPU.
        columns: tokens that each program walks, where known: a split keeps at least :data:`LEAST_TOKENS`.

    Returns:
        The count; 1 where the launch should stay whole.
    """
    count = min(math.ceil(sms / ctas), MOST_SPLITS)
    if columns is not None:
        count = min(count, int(columns // LEAST_TOKENS))
    return max(count, 1)


def best_split(ctas: float, most: int, capacity: float) -> tuple[int, float]:
    """How many splits shorten a launch most: one more that waits for a second wave wins nothing.

    Args:
        ctas: of the launch.
        most: splits that are worth combining (:func:`split_count`).
        capacity: CTAs of this kernel that the GPU holds at once; NaN where unknown, then all run at once.

    Returns:
        The count, and what it leaves of the work's time, as a part: waves / splits. ``(1, 1.0)`` for a launch that
        should stay whole, such as 128 CTAs of a kernel of which 132 SMs hold one each.
    """
    waves = {n: 1 if math.isnan(capacity) else math.ceil(ctas * n / capacity) for n in range(1, most + 1)}
    count = min(waves, key=lambda n: (waves[n] / n, n))
    return count, waves[count] / count


def underfilled(s: Subject) -> list[Finding]:
    """One finding per kernel name, over its sizes."""
    kernel = (s.part.activities[col.KIND] == col.KERNEL).to_numpy()
    helpers = np.array([c.source.startswith("counted at") for c in s.floors.costs], dtype=bool)[s.floors.code]
    few = kernel & ~helpers & (s.bucket != COMMUNICATION) & (s.ctas < s.sms) & (s.dur >= LONG_NS)
    columns = _columns(s)
    long = _long_launches(s)
    out = []
    for name in sorted(set(s.name[few])):
        mine = few & (s.name == name)
        claims: list[Claim] = []
        sizes: dict[tuple[int, int], float] = {}
        for ctas in sorted(set(s.ctas[mine])):
            for width in sorted(set(np.nan_to_num(columns[mine & (s.ctas == ctas)]))):
                rows = np.flatnonzero(mine & (s.ctas == ctas) & (np.nan_to_num(columns) == width))
                most = split_count(ctas, float(s.sms[rows].max()), width or None)
                count, part = best_split(ctas, most, float(s.capacity[rows].min()))
                if count > 1:
                    claims.append(_claim(s, rows, part))
                    key = (int(ctas), count)
                    sizes[key] = sizes.get(key, 0.0) + float(s.dur[rows].sum())
        if claims:
            out.append(
                _finding(
                    s, name, together(claims), sizes, bool((columns[mine] > 0).all()), long.get(name, "")
                )
            )
    return out


def _columns(s: Subject) -> Floats:
    """Tokens that a program of sparse attention walks; NaN elsewhere."""
    g, batch = s.workload.geometry, s.workload.batch
    if g is None or not batch:
        return np.full(len(s.dur), np.nan)
    flops = np.where(np.isnan(s.floors.of("issued")), s.floors.of("flops"), s.floors.of("issued"))
    core = (s.role == "attention_core") & (s.floors.known != UNKNOWN)
    return np.where(core, flops / (4.0 * HEAD_DIM * g.heads * batch), np.nan)


def _claim(s: Subject, rows: Ints, part: float) -> Claim:
    """A part of the work's time is left, a launch's own stays, and partial results need one more small launch."""
    dur, small = s.dur[rows], s.small_ns
    floor = np.nan_to_num(s.floors.floor[rows], nan=s.floors.launch_ns)
    likely = np.maximum(np.maximum(dur - small, 0) * part + small, floor) + small
    return claim(rows, dur, (dur + likely) / 2, likely, np.maximum(dur * part, floor))


def _long_launches(s: Subject) -> dict[str, str]:
    """Kernels that another finding calls longer in some steps: which of their launches are, and what is not known."""
    named = {name for finding in step_phases(s) for name in finding.kernels}
    out = {}
    for phase in phases(kernel_times(s.part)) if named else ():
        rows = np.flatnonzero(s.name == phase.kernel)
        step = s.part.step[rows]
        each = np.bincount(step, minlength=s.steps)
        if phase.kernel not in named or each.min() != each.max():
            continue
        # the same launches step by step
        dur = s.dur[rows[np.argsort(step, kind="stable")]].reshape(s.steps, -1)
        inside = np.array(phase.long)
        mine = dur[inside].mean(axis=0) >= TWICE * dur[~inside].mean(axis=0)
        if mine.any():
            high, low = (float(np.median(dur[chosen][:, mine])) for chosen in (inside, ~inside))
            out[phase.kernel] = (
                f"; {int(mine.sum())} of its {int(each[0])} launches a step take {said(high)} each in {phase.often}, "
                f"{said(low)} in the others: the long ones are what counts, and it may be that few of their CTAs have "
                "work, which the trace does not say"
            )
    return out


def _finding(
    s: Subject, name: str, made: Claim, sizes: dict[tuple[int, int], float], tokens: bool, long: str
) -> Finding:
    rows, sms = made.rows, float(s.sms[made.rows].max())
    (ctas, count), _ = max(sizes.items(), key=lambda item: (item[1], item[0]))
    time = float(s.dur[rows].sum()) / s.steps
    shared = any(c * n > sms for c, n in sizes)
    others = "" if len(sizes) == 1 else f" (most of its time; {len(sizes)} sizes in all)"
    return Finding(
        RULE, ATTACK,
        f"{name}: {ctas} CTAs on {sms:.0f} SMs{others}, {said(time)} a step ({percent(time, s.own_ns)} of the GPU "
        f"time): split into {count}, {ctas * count} CTAs",
        (
            Evidence("CTAs of a launch", ctas, "CTAs"), Evidence("SMs", sms, "SMs"),
            Evidence("time in underfilled launches", time, "ns"),
            Evidence("median launch", float(np.median(s.dur[rows])), "ns"),
            Evidence("splits suggested", count, "splits", MODELLED),
        ),
        **s.about(rows), **s.saved(made), label=MODELLED,
        confidence=0.75 if tokens else 0.5,
        because="CTAs and SMs are the trace's; assumed: the work divides evenly and combining takes one more small "
        f"launch ({said(s.small_ns)} here)" + ("" if tokens else "; whether its work can be divided is not known")
        + ("; the most if CTAs that share an SM do not slow each other; if they do, it is the empty time of fill"
           if shared else "") + long,
        check="hta-dsv4 fill TRACE, and the kernel alone at this size with 1, 2, 4, ... splits",
        action=f"divide its inner loop (tokens, or k of a product) over {count} programs and combine them: as many as "
        f"give each SM a CTA, at most {MOST_SPLITS}" + (f", at least {LEAST_TOKENS} tokens each" if tokens else "")
        + "; choose the count from the batch alone, so that a CUDA graph can hold it",
        stop=f"when launches have {sms:.0f} CTAs or more, or another doubling of the splits wins less than 5 %",
    )  # fmt: skip
