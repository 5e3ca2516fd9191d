"""What a server or a step gives at each concurrency: tok/s, time per token, time to the first, and the line over C.

Throughput is that of a full batch alone. A repeat at concurrency C is measured while all C requests decode: from the
moment the last of them has its first output to the moment the first of them has its last. Each request's rate is its
tokens from its first to its last output inside that window over the time between the two; the rates add up to
tokens per second. Prefill, the ramp up and the drain at the end lie outside. The step time is C divided by that rate:
the time in which each request gets one token, which is one forward pass unless a server guesses tokens ahead.

A repeat in which a request failed, or in which there was no such moment, is reported and counted in no figure: its
batch was not full. Repeats stay apart: what the line's intervals rest on is how much they differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hta_dsv4.analysis.step_line import StepLine, step_line
from hta_dsv4.analysis.sweep import Repeat, Sweep
from hta_dsv4.errors import HtaDsv4Error

DISAGREE = 1.5
"""Repeats of one C whose throughputs differ by more than this factor are told: something besides C changes."""
TAIL_NEEDS = 100
"""With fewer values than this the 99th percentile is the largest of them."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A time over requests, or over steps.

    Attributes:
        n: how many values.
        mean_ns: their mean.
        p50_ns, p99_ns: the smallest value that at least 50 and 99 % do not exceed.
    """

    n: int
    mean_ns: float
    p50_ns: int
    p99_ns: int


@dataclass(frozen=True, slots=True)
class Level:
    """One variant at one concurrency.

    Attributes:
        concurrency: C.
        repeats: those that count, of ``tried``.
        tokens_per_s: C over the mean step time of the repeats; ``None`` where none counts.
        low_tokens_per_s, high_tokens_per_s: slowest and fastest repeat.
        step_ns: mean over the repeats.
        tpot, ttft: over the requests of the repeats that count (over steps where no requests were sent); ``None`` where
            not measured.
        requests, failed: that came to their end, and that did not, in all repeats.
        tokens: completion tokens of those that did, by ``usage``; 0 where not counted.
    """

    concurrency: int
    repeats: int
    tried: int
    tokens_per_s: float | None
    low_tokens_per_s: float | None
    high_tokens_per_s: float | None
    step_ns: float | None
    tpot: Spread | None
    ttft: Spread | None
    requests: int
    failed: int
    tokens: int


@dataclass(frozen=True)
class Throughput:
    """A sweep, worked out.

    Attributes:
        sweep: what was measured.
        levels: one per concurrency, increasing.
        line: step time over C; ``None`` with a ``reason``.
        reason: why there is no line, else empty.
        notes: of the sweep, and what makes its figures weaker than they look.
    """

    sweep: Sweep
    levels: tuple[Level, ...]
    line: StepLine | None
    reason: str
    notes: tuple[str, ...]

    @property
    def best(self) -> Level | None:
        """The level of the highest throughput."""
        there = [v for v in self.levels if v.tokens_per_s is not None]
        return max(there, key=lambda v: v.tokens_per_s or 0.0) if there else None


def spread(values: Sequence[int]) -> Spread | None:
    """Mean and percentiles.

    Args:
        values: ns each.

    Returns:
        ``None`` for no values.
    """
    if not values:
        return None
    ordered = sorted(values)
    n = len(ordered)
    middle, tail = (ordered[math.ceil(n * part / 100) - 1] for part in (50, 99))
    return Spread(n, sum(ordered) / n, middle, tail)


def throughput(sweep: Sweep) -> Throughput:
    """Work out a sweep.

    Args:
        sweep: at least one repeat.

    Returns:
        Levels, and the line over those values of C that have figures.

    Raises:
        HtaDsv4Error: no repeats at all.
    """
    if not sweep.repeats:
        raise HtaDsv4Error(f"{sweep.label}: a sweep without a single measurement")
    repeats: dict[int, list[Repeat]] = {}
    for r in sweep.repeats:
        repeats.setdefault(r.concurrency, []).append(r)
    levels = tuple(_level(c, repeats[c]) for c in sorted(repeats))
    counted = [(r.concurrency, t) for r in sweep.repeats if (t := r.mean_step_ns) is not None]
    values = {c for c, _ in counted}
    line, reason = None, ""
    if len(values) < 2:
        only = f"only C={min(values)}" if values else "no value of C"
        reason = f"{only} was measured; a line needs two values, and its test three with repeats"
    else:
        line = step_line([c for c, _ in counted], [t for _, t in counted])
    return Throughput(sweep, levels, line, reason, (*sweep.notes, *_notes(sweep, levels)))


def _level(concurrency: int, repeats: Sequence[Repeat]) -> Level:
    counted = [r for r in repeats if r.tokens_per_s is not None]
    rates = [r.tokens_per_s for r in counted if r.tokens_per_s is not None]
    steps = [concurrency * 1e9 / rate for rate in rates]
    step = sum(steps) / len(steps) if steps else None
    mean = rates[0] if len(rates) == 1 else concurrency * 1e9 / step if step else None
    requests = [q for r in counted for q in r.requests]
    tpot = [q.tpot_ns for q in requests if q.tpot_ns is not None] or [s for r in counted for s in r.step_ns]
    ended = [q for r in repeats for q in r.requests]
    return Level(
        concurrency, len(counted), len(repeats),
        mean, min(rates, default=None), max(rates, default=None), step,
        spread(tpot), spread([q.ttft_ns for q in requests if q.ttft_ns is not None]),
        len(ended), sum(len(r.failures) for r in repeats), sum(q.tokens for q in ended),
    )  # fmt: skip


def _notes(sweep: Sweep, levels: Sequence[Level]) -> list[str]:
    out = []
    for r in sweep.repeats:
        if r.failures:
            first = r.failures[0]
            more = f" (and {len(r.failures) - 1} more)" if len(r.failures) > 1 else ""
            out.append(f"C={r.concurrency}, repeat {r.repeat}: {len(r.failures)} failed: {first}{more}")
        if r.unusable:
            out.append(f"C={r.concurrency}, repeat {r.repeat} counts in no figure: {r.unusable}")
    for v in levels:
        if v.low_tokens_per_s and v.high_tokens_per_s and v.high_tokens_per_s > DISAGREE * v.low_tokens_per_s:
            out.append(
                f"C={v.concurrency}: repeats differ {v.high_tokens_per_s / v.low_tokens_per_s:.1f} times: something "
                "besides C changes (others on the machine, clocks, streams that come in bursts)"
            )
    few = [v for v in levels if v.tpot is not None and v.tpot.n < TAIL_NEEDS]
    if few:
        sizes = ", ".join(f"{v.tpot.n} at C={v.concurrency}" for v in few if v.tpot)
        out.append(f"p99 is the largest value where there are fewer than {TAIL_NEEDS}: {sizes}")
    if sweep.source in ("server", "workload") and all(v.tried == 1 for v in levels):
        out.append("one repeat each: how much a repeat would differ is unknown, and nothing tests the line")
    return out
