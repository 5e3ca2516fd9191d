"""What recording itself cost: the step time of an unprofiled step, from the capture's manifest, beside the trace's.

A profiler adds microseconds to every launch. Kernels are not slower for it, but a step that waits for launches is: what
the wall time exceeds the unprofiled step by is idle time that only the recording has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hta_dsv4.analysis.shares import Shares
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.run import Run
from hta_dsv4.trace.manifest import manifest_for

LITTLE = 0.02
"""A recorded step longer than the unprofiled one by less than this is as good as unprofiled."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step with and without the profiler, ms.

    Attributes:
        label: the variant.
        unprofiled_ms: median step before the profiler was started, from the manifest.
        range_ms: the shortest and the longest of those steps.
        wall_ms, idle_ms: per step, from the trace.
    """

    label: str
    unprofiled_ms: float
    range_ms: tuple[float, float]
    wall_ms: float
    idle_ms: float

    @property
    def profiler_share(self) -> float:
        """Part of the idle time that only the recording has, 0..1."""
        extra = self.wall_ms - self.unprofiled_ms
        if not self.idle_ms or extra < LITTLE * self.unprofiled_ms:
            return 0.0
        return min(extra / self.idle_ms, 1.0)


def recorded(run: Run, shares: Shares) -> Recorded | None:
    """A variant's step with and without the profiler.

    Args:
        run: one trace; several ranks have no single manifest.
        shares: of the same run.

    Returns:
        ``None`` where there is no manifest, no step, or several traces.

    Raises:
        HtaDsv4Error: a manifest that cannot be read.
    """
    rank = shares.median_rank
    if len(run.traces) != 1 or not rank.steps or not run.traces[0].path.is_file():
        return None
    manifest = manifest_for(run.traces[0].path)
    if manifest is None:
        return None
    per_step = 1e6 * rank.steps
    size, timing = rank.extent, manifest.timing
    return Recorded(
        shares.label, timing.unprofiled_step_ms, (timing.unprofiled_min_ms, timing.unprofiled_max_ms),
        size.wall_ns / per_step, size.idle_ns / per_step,
    )  # fmt: skip


def profiler_notes(runs: Sequence[Run], shares: Sequence[Shares]) -> tuple[str, ...]:
    """What the profiler added to the recorded steps, in a sentence over all variants that have a manifest.

    Args:
        runs: the variants.
        shares: their share tables, in the same order.

    Returns:
        One sentence, none where no manifest speaks; a manifest that cannot be read is told in one of its own, and so
        are two variants that the recording puts in the wrong order.
    """
    found: list[Recorded] = []
    notes: list[str] = []
    for run, table in zip(runs, shares, strict=True):
        try:
            one = recorded(run, table)
        except HtaDsv4Error as error:
            notes.append(f"what the profiler added is unknown: {error}")
            continue
        found += [one] if one else []
    if found:
        plain = ", ".join(f"{r.label} {r.unprofiled_ms:,.1f}" for r in found)
        here = ", ".join(f"{r.wall_ms:,.1f}" for r in found)
        idle = ", ".join(f"{100 * r.profiler_share:.0f} %" for r in found)
        notes.insert(
            0,
            f"a step without the profiler (manifest): {plain} ms; in these captures {here} ms: "
            f"{idle} of the idle time is the profiler's",
        )
    return (*notes, *reversals(found))


def reversals(found: Sequence[Recorded]) -> tuple[str, ...]:
    """Neighbours, and first and last, that the recording orders otherwise than the steps without the profiler do.

    Args:
        found: variants in the order of the comparison.

    Returns:
        A sentence on each pair that the other way round, or not at all, would be the order without the profiler.
    """
    ends = [(found[0], found[-1])] if len(found) > 2 else []
    return tuple(text for a, b in (*pairwise(found), *ends) if (text := _reversal(a, b)))


def _reversal(a: Recorded, b: Recorded) -> str:
    here = (b.wall_ms > a.wall_ms * (1 + LITTLE)) - (a.wall_ms > b.wall_ms * (1 + LITTLE))
    plain = (b.range_ms[0] > a.range_ms[1]) - (a.range_ms[0] > b.range_ms[1])
    if here == 0 or here == plain:
        return ""
    both = " and ".join(
        f"{r.label} {r.unprofiled_ms:,.1f} ({r.range_ms[0]:,.1f} to {r.range_ms[1]:,.1f})" for r in (a, b)
    )
    walls = f"the recorded wall time, from {a.wall_ms:,.1f} to {b.wall_ms:,.1f} ms"
    added = a.profiler_share > 0 or b.profiler_share > 0  # else the recorded steps are as good as unprofiled
    if plain:
        order = f"{b.label} is {'slower' if plain > 0 else 'faster'}"
        return f"without the profiler {order}: {both} ms a step; {walls}, " + (
            "says what the profiler added to launches" if added else "is of other steps of the same capture"
        )
    overlap = f"without the profiler {both} ms a step overlap"
    if added:
        return f"{overlap}: {walls}, does not order them: it has the profiler's part"
    return f"{overlap}, in another run of the unprofiled step: {walls}, orders the recorded steps alone"
