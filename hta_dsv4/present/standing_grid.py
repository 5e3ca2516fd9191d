"""Where variants stand, as the table that comes first, and each change in a sentence that leads with the step."""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.analysis.stats import WITHIN_NOISE, WITHIN_SPREAD
from hta_dsv4.analysis.why import Why
from hta_dsv4.present.falls import falls
from hta_dsv4.present.grid import ABSENT, Grid
from hta_dsv4.present.modelled import about
from hta_dsv4.runs.standing import Standing

_ONE_DECIMAL_NS = 10_000_000
SECOND = 0.2
"""A second cause is named where it is at least this part of the first."""


def standing_grid(found: Sequence[Standing], apart: Sequence[str] = ()) -> Grid:
    """One row a variant: GPU time, step, how much faster than the variant before, tokens per second, what bounds it.

    Args:
        found: the variants, in the order in which the changes were made.
        apart: what they differ in besides their times, to be read before any figure is compared.

    Returns:
        The grid; it says of every step whether it is without the profiler.
    """
    sources = {s.unprofiled for s in found}
    mixed, changes = len(sources) > 1, len(found) > 1
    rows = []
    for i, one in enumerate(found):
        faster = one.times_faster(found[i - 1]) if i else None
        tokens = one.tokens_per_s
        rows.append(
            (
                one.label, f"{one.own_ns / 1e6:,.3f}", step_ms(one.step_ns),
                *((_source(one.unprofiled),) if mixed else ()),
                *((_factor(faster, one, found[i - 1]) if i else ABSENT,) if changes else ()),
                ABSENT if tokens is None else f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:,.1f}",
                f"{100 * one.busy_share:.0f}", one.bound_by or "not known",
            )
        )  # fmt: skip
    headers = (
        "variant", "GPU ms/step (own)", "step ms" if mixed else f"step ms, {_source(all(sources))}",
        *(("measured",) if mixed else ()), *(("faster",) if changes else ()), "tok/s", "GPU busy %", "bound by",
    )  # fmt: skip
    return Grid("where each variant stands", headers, tuple(rows), notes=(*apart, *_notes(found)), left=1)


def step_ms(ns: float) -> str:
    """A step in ms: one decimal from 10 ms on, three significant digits below."""
    return f"{ns / 1e6:,.1f}" if ns >= _ONE_DECIMAL_NS else about(ns / 1e6)


def _source(unprofiled: bool) -> str:
    return "unprofiled" if unprofiled else "recorded"


def _factor(times: float | None, one: Standing, before: Standing) -> str:
    """``4.14x``; ``0.97x, ranges overlap`` where the steps of the two are not told apart."""
    if times is None:
        return ABSENT
    return f"{times:.2f}x" + (", ranges overlap" if one.overlaps(before) else "")


def _notes(found: Sequence[Standing]) -> tuple[str, ...]:
    batches = sorted({s.batch for s in found if s.batch is not None})
    notes = []
    if any(s.unprofiled for s in found):
        notes.append(
            "unprofiled: the median step before the profiler was started, from the capture's manifest"
        )
    recorded = [s for s in found if not s.unprofiled]
    if any(s.period for s in recorded):
        notes.append(
            "recorded: from a step's start to the next one's in the trace, the profiler's own gaps in it; a profiler "
            "also adds microseconds to every launch, so a step that waits for launches is shorter without it"
        )
    alone = [s.label for s in recorded if not s.period]
    if alone:
        notes.append(
            f"{', '.join(alone)}: no step follows another, so recorded is the wall time of a step alone: what lies "
            "between two steps is not in it, and tok/s is at most this"
        )
    if batches:
        notes.append(f"tok/s: C / step, C = {', '.join(map(str, batches))}")
    notes.append(
        "bound by: the GPU where it works 90 % of the step; the host where its queue is empty while it waits"
    )
    return (*notes, *dict.fromkeys(s.note for s in found if s.note))


def change_in_words(change: Why, before: Standing | None, after: Standing | None) -> str:
    """A change in one sentence: the step first, then GPU time and the effects behind most of it.

    A GPU time that steps alone could move as far is given no reason: the effects of such a change are which steps were
    recorded.

    Args:
        change: the explained change.
        before: where the variant before stands, if known.
        after: where the one after does.

    Returns:
        ``a → b: step 53.5 → 31.6 ms (1.70x); GPU 51.378 → 30.967 ms (-39.7 %), mostly duration: fp4_moe (-20.472 ms)``.
    """
    parts, verdict, words = change.decomposition, change.sum_change.verdict, ""
    if before is not None and after is not None and (times := after.times_faster(before)) is not None:
        recorded = "" if after.unprofiled else "recorded "
        sizes = f"{step_ms(before.step_ns)} → {step_ms(after.step_ns)} ms"
        words = f"{recorded}step {sizes} ({_factor(times, after, before)}); "
    elif before is not None and after is not None and (other := after.other_work(before)):
        words = (
            f"another workload ({other}), step {step_ms(before.step_ns)} and {step_ms(after.step_ns)} ms; "
        )
    a, b = parts.base.per_step.own_ns, parts.other.per_step.own_ns
    little = verdict in (WITHIN_SPREAD, WITHIN_NOISE)
    percent = f" ({100 * (b - a) / a:+.1f} %{f', {verdict}' if little else ''})" if a else ""
    largest = sorted((f for f in falls(parts) if f.effect), key=lambda f: -abs(f.ns))[:2]
    told = [f for f in largest if abs(f.ns) >= SECOND * abs(largest[0].ns)]
    why = " and ".join(f"{f.label} ({f.ns / 1e6:+,.3f} ms)" for f in told)
    return (
        f"{parts.base.label} → {parts.other.label}: {words}GPU {a / 1e6:,.3f} → {b / 1e6:,.3f} ms{percent}"
        + (f", mostly {why}" if why and not little else "")
    )
