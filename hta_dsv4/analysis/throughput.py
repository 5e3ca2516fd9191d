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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hta_dsv4.analysis.step_line import StepLine, step_line
from hta_dsv4.errors import HtaDsv4Error

DISAGREE = 1.5
"""Repeats of one C whose throughputs differ by more than this factor are told: something besides C changes."""
TAIL_NEEDS = 100
"""With fewer values than this the 99th percentile is the largest of them."""

Fact = str | int | float


@dataclass(frozen=True, slots=True)
class Request:
    """One request that came to its end.

    Attributes:
        tokens: completion tokens by the server's ``usage``.
        ttft_ns: from sending to the first output; ``None`` where not measured.
        tpot_ns: time per output token after the first: from first to last output over the tokens between; ``None``
            with a single token.
    """

    tokens: int
    ttft_ns: int | None = None
    tpot_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """One measurement at one concurrency.

    Attributes:
        concurrency: C.
        repeat: its number, from 1.
        window_ns: time in which all C decoded; 0 where there was none.
        tokens_per_s: in that window; ``None`` where the repeat cannot be used.
        requests: those that came to their end.
        failures: one line for each that did not.
        step_ns: each step's time, where single steps were timed.
        unusable: why it counts in no figure, else empty.
    """

    concurrency: int
    repeat: int
    window_ns: int
    tokens_per_s: float | None
    requests: tuple[Request, ...] = ()
    failures: tuple[str, ...] = ()
    step_ns: tuple[int, ...] = ()
    unusable: str = ""

    @property
    def mean_step_ns(self) -> float | None:
        """Time in which each request gets one token."""
        return None if self.tokens_per_s is None else self.concurrency * 1e9 / self.tokens_per_s


@dataclass(frozen=True)
class Sweep:
    """Measurements of one variant over concurrency.

    Attributes:
        label: the variant.
        source: what was measured: ``server``, ``workload`` (the bundled step), ``captures`` (by their manifests),
            ``table`` (figures from elsewhere).
        repeats: in the order they were made.
        made_at: UTC, ISO 8601; empty where unknown.
        about: conditions, by name: model, engine, prompt_tokens, ...
        notes: what a reader must know, one sentence each.
    """

    label: str
    source: str
    repeats: tuple[Repeat, ...]
    made_at: str = ""
    about: Mapping[str, Fact] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


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


class SweepStoppedError(Exception):
    """A measurement came to a stop before its end; what was whole until then is kept.

    Attributes:
        sweep: what was measured.
        cause: an interrupt, or the error that the command ends with.
    """

    def __init__(self, sweep: Sweep, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.sweep, self.cause = sweep, cause


def rounds(concurrency: Sequence[int], repeats: int) -> list[tuple[int, int]]:
    """In which order to measure: every round goes over all values of C, one up, the next down.

    A server or GPU that drifts then shows as scatter of the repeats, not as a slope over C.

    Args:
        concurrency: the values, increasing.
        repeats: how many rounds.

    Returns:
        (repeat from 1, C) in order.
    """
    up = list(concurrency)
    return [(r, c) for r in range(1, repeats + 1) for c in (up if r % 2 else up[::-1])]


def levels_of(text: str) -> tuple[int, ...]:
    """Values of C as a user writes them: ``1,4,16,64``.

    Args:
        text: whole numbers with commas; order and doubles do not matter.

    Returns:
        Increasing, each once.

    Raises:
        HtaDsv4Error: a word that is no whole number of at least 1, or none.
    """
    found = set()
    for word in text.split(","):
        try:
            value = int(word)
        except ValueError:
            value = 0
        if value < 1:
            raise HtaDsv4Error(
                f"--concurrency {text}: {word.strip()!r} is no whole number of at least 1; write 1,4,16"
            )
        found.add(value)
    return tuple(sorted(found))
