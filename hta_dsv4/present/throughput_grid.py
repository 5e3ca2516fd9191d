"""Throughput over concurrency as grids: variants side by side, each level's times, the line, and what C adds where."""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.analysis.speedup import speedups
from hta_dsv4.analysis.step_line import Interval, StepLine
from hta_dsv4.analysis.throughput import Level, Spread, Throughput
from hta_dsv4.present.grid import ABSENT, Grid

_LOOSE = 0.1
"""A line that fits only because repeats scatter is no finding where a mean is farther from it than this part."""


def throughput_grids(found: Sequence[Throughput]) -> list[Grid]:
    """All there is to say of one sweep or several.

    Args:
        found: the variants.

    Returns:
        Throughput at each C, and as a multiple of the first variant's; each variant's times where requests or steps
        were timed; the lines; the segments.
    """
    out = [_levels(t) for t in found if len(found) == 1 or any(v.tpot for v in t.levels)]
    if len(found) > 1:
        out.insert(0, _beside(found))
        if (against := _against_first(found)) is not None:
            out.insert(1, against)
    return [*out, _lines(found), *([_segments(found)] if any(t.line for t in found) else [])]


def ms(ns: float | None) -> str:
    """Nanoseconds as milliseconds with three decimals; ``-`` for missing."""
    return ABSENT if ns is None else f"{ns / 1e6:,.3f}"


def rate(tokens_per_s: float | None) -> str:
    """Tokens per second with two decimals."""
    return ABSENT if tokens_per_s is None else f"{tokens_per_s:,.2f}"


def _beside(found: Sequence[Throughput]) -> Grid:
    """A row per variant: throughput at each C, then step time at each C."""
    values = sorted({v.concurrency for t in found for v in t.levels})
    headers = ["variant", *(f"C={c:,} tok/s" for c in values), *(f"C={c:,} step ms" for c in values)]
    rows = []
    for t in found:
        at = {v.concurrency: v for v in t.levels}
        rates = [rate(at[c].tokens_per_s if c in at else None) for c in values]
        rows.append((t.sweep.label, *rates, *(ms(at[c].step_ns if c in at else None) for c in values)))
    return Grid("throughput over concurrency", tuple(headers), tuple(rows), left=1)


def _against_first(found: Sequence[Throughput]) -> Grid | None:
    """A row per further variant: how many times the first one's throughput at each C that both have."""
    pairs = {t.sweep.label: {s.concurrency: s for s in speedups(found[0], t)} for t in found[1:]}
    values = sorted({c for at in pairs.values() for c in at})
    if not values:
        return None
    headers = ("variant", *(h for c in values for h in (f"C={c:,} times", "95 % interval")))
    rows = []
    for label, at in ((label, at) for label, at in pairs.items() if at):
        cells = [label]
        for c in values:
            s = at.get(c)
            cells.append(ABSENT if s is None else f"{s.times:.3f}")
            cells.append(
                ABSENT if s is None or s.interval is None else f"{s.interval[0]:.3f} .. {s.interval[1]:.3f}"
            )
        rows.append(tuple(cells))
    sure = [s.sure for at in pairs.values() for s in at.values()]
    notes = ["repeats of one sweep do not say what another start of the server or process would change"]
    title = f"throughput as a multiple of {found[0].sweep.label}'s"
    return Grid(
        title, headers, tuple(rows), notes=tuple(notes) if any(s is not None for s in sure) else (), left=1
    )


def _levels(t: Throughput) -> Grid:
    headers = ["C", "tok/s", "slowest .. fastest", "repeats", "step ms"]
    timed = any(v.tpot for v in t.levels)
    served = any(v.requests or v.failed for v in t.levels)
    if timed and not served:  # their mean is the step time
        headers += ["p50", "p99"]
    if served:
        headers += [
            "TPOT ms mean",
            "p50",
            "p99",
            "TTFT ms mean",
            "p50",
            "p99",
            "requests",
            "failed",
            "tokens",
        ]
    rows = []
    for v in t.levels:
        cells = [f"{v.concurrency:,}", rate(v.tokens_per_s), _range(v), _tried(v), ms(v.step_ns)]
        if timed and not served:
            cells += _spread(v.tpot)[1:]
        if served:
            cells += [*_spread(v.tpot), *_spread(v.ttft), f"{v.requests:,}", f"{v.failed:,}", f"{v.tokens:,}"]
        rows.append(tuple(cells))
    about = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in t.sweep.about.items())
    return Grid(
        f"{t.sweep.label}: throughput over concurrency ({t.sweep.source})", tuple(headers), tuple(rows),
        lead=(about,) if about else (), notes=t.notes, left=1,
    )  # fmt: skip


def _range(v: Level) -> str:
    if v.repeats < 2:
        return ABSENT
    return f"{rate(v.low_tokens_per_s)} .. {rate(v.high_tokens_per_s)}"


def _tried(v: Level) -> str:
    return f"{v.repeats}" if v.repeats == v.tried else f"{v.repeats} of {v.tried}"


def _spread(s: Spread | None) -> list[str]:
    return [ABSENT] * 3 if s is None else [ms(s.mean_ns), ms(s.p50_ns), ms(s.p99_ns)]


def _lines(found: Sequence[Throughput]) -> Grid:
    headers = (
        "variant", "fixed ms", "95 % interval", "ms per request", "95 % interval", "ceiling tok/s", "95 % interval",
        "line fits", "best tok/s", "at C",
    )  # fmt: skip
    rows = []
    for t in found:
        best = t.best
        most = (rate(best.tokens_per_s if best else None), f"{best.concurrency:,}" if best else ABSENT)
        if t.line is None:
            rows.append((t.sweep.label, *[ABSENT] * 7, *most))
            continue
        line = t.line
        rows.append(
            (
                t.sweep.label, ms(line.fixed_ns), _interval(line.fixed_interval),
                ms(line.per_request_ns), _interval(line.per_request_interval), *_ceiling(line),
                {True: "yes", False: "nearly" if line.holds else "NO", None: "untested"}[line.fits], *most,
            )
        )  # fmt: skip
    shown = [len(found) == 1 or any(v.tpot for v in t.levels) for t in found]
    said = [(t.sweep.label, n) for t in found for n in line_words(t)]
    said += [(t.sweep.label, n) for t, s in zip(found, shown, strict=True) if not s for n in t.notes]
    notes = [
        f"{', '.join(label for label, n in said if n == text)}: {text}" for _, text in dict.fromkeys(said)
    ]
    notes = list(dict.fromkeys(notes))
    return Grid("step time = fixed + C x per request", headers, tuple(rows), notes=tuple(notes), left=1)


def _interval(of: Interval | None) -> str:
    return ABSENT if of is None else f"{ms(of[0])} .. {ms(of[1])}"


def _ceiling(line: StepLine) -> tuple[str, str]:
    """The ceiling and its interval; neither where the line that it follows from does not hold."""
    c = line.ceiling
    if not line.holds:
        return ABSENT, ABSENT
    if not c.bounded:
        return "not bounded", ABSENT if c.low is None else f">= {rate(c.low)}"
    return rate(c.tokens_per_s), ABSENT if c.low is None else f"{rate(c.low)} .. {rate(c.high)}"


def line_words(t: Throughput) -> list[str]:
    """What a variant's line says, and what it does not, in sentences.

    Args:
        t: the variant.
    """
    line = t.line
    if line is None:
        return [t.reason]
    off = f"{100 * abs(line.worst):.2g} %"
    last = line.segments[-1]
    out = []
    if line.lack is None:
        if len(line.values) == 2:
            out.append("nothing tests the line: it passes through two points, so there is no interval")
        else:
            out.append(
                f"nothing tests the line: there are no repeats; the means lie within {off} of it, farthest at "
                f"C={line.worst_at}"
            )
    elif line.fits and abs(line.worst) <= _LOOSE:
        out.append(f"a line fits ({_chance(line)}); the means lie within {off} of it")
    elif line.fits:
        out.append(
            f"nothing rules a line out ({_chance(line)}), but repeats scatter so much that a mean lies {off} off it, "
            f"at C={line.worst_at}; measure more repeats"
        )
    elif line.holds:
        out.append(
            f"the repeats are precise enough to tell this from a line ({_chance(line)}), but not by much: {off}"
        )
    else:
        b = line.bend
        bend = (
            ""
            if b is None
            else f": it bends near C={b.at}, {ms(b.before_ns)} ms per request before and {ms(b.after_ns)} after"
        )
        out.append(
            f"no line fits ({_chance(line)}){bend}; the farthest mean is {off} off, at C={line.worst_at}, so 1/b is no "
            "ceiling"
        )
    if line.fits is not True and last.slope_ns > 0 and len(line.values) > 2:
        c = last.ceiling
        sure = "" if last.interval is None else f" ({_interval(last.interval)})"
        ends = "" if c.low is None else f" ({rate(c.low)} .. {rate(c.high) if c.high else 'not bounded'})"
        out.append(
            f"from C={last.low} to {last.high} a request more costs {ms(last.slope_ns)} ms{sure}; if that goes on, "
            f"throughput ends at {rate(c.tokens_per_s)} tok/s{ends}"
        )
    each = line.per_request_interval
    if not line.ceiling.bounded and line.holds:
        said = f"its interval is {_interval(each)} ms" if each else "the step time does not grow with C"
        here = line.ceiling.tokens_per_s
        point = f" (the line itself says {rate(here)} tok/s)" if here else ""
        out.append(f"a ceiling is not bounded by these data: a request more may cost nothing, {said}{point}")
    if line.fixed_interval is not None and line.fixed_interval[1] < 0:
        out.append("the fixed part comes out below 0, so the line cannot hold down to C=1")
    if line.noise == "unclear" and line.dof:
        which = "few repeats do not tell" if max(line.repeats) > 1 else "without repeats nothing tells"
        out.append(f"{which} whether noise grows with the step time; intervals cover both")
    return out


def _chance(line: StepLine) -> str:
    p = line.lack.p if line.lack else 1.0
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _segments(found: Sequence[Throughput]) -> Grid:
    rows = [
        (
            t.sweep.label, f"{s.low:,} to {s.high:,}", ms(s.slope_ns), _interval(s.interval),
            rate(s.ceiling.tokens_per_s) if s.ceiling.tokens_per_s else "not bounded",
        )
        for t in found
        if t.line is not None
        for s in t.line.segments
    ]  # fmt: skip
    headers = ("variant", "C", "ms per request", "95 % interval", "ceiling if it went on, tok/s")
    return Grid("what a request more costs between neighbouring values of C", headers, tuple(rows), left=2)
