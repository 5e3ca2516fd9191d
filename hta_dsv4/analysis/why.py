"""Why variants differ: the decomposition of each change, how sure each row of it is, and which kernels became which.

This is where the single answers meet: :mod:`diff` (what the change is made of), :mod:`judge` (is it real),
:mod:`align` (fusions and splits) and :mod:`idle` (what the GPU waited for). Nothing is computed twice or printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pandas as pd

from hta_dsv4.analysis.align import Alignment, align
from hta_dsv4.analysis.counted import WALL
from hta_dsv4.analysis.diff import Decomposition, decompose
from hta_dsv4.analysis.idle import Idle, idle
from hta_dsv4.analysis.judge import Captured, row_changes, step_rows, whole_changes
from hta_dsv4.analysis.phases import kernel_times, phase_notes
from hta_dsv4.analysis.sequences import StepSequence, step_sequence
from hta_dsv4.analysis.stats import Change, Estimate, estimate
from hta_dsv4.errors import HtaDsv4Error

__all__ = ["Captured", "Explanation", "Why", "explain", "step_rows"]

LITTLE_IN_COMMON = 0.2
"""Below this part of the shorter step, an alignment pairs kernels that happen to have one name."""


@dataclass(frozen=True)
class Why:
    """One change, explained.

    Attributes:
        decomposition: what it is made of.
        by: what a row is.
        rows: the decomposition by ``by``, largest change first.
        row_changes: one judgement per row.
        kernels, kernel_changes: the same by kernel.
        sum_change, wall_change: judgements of the whole step.
        base_wall, other_wall: wall time over the steps of each side.
        base_idle, other_idle: what the idle time of each side waited for.
        alignment: which kernels became which; ``None`` where a side has no typical step.
        notes: what makes the answer weaker than it looks.
    """

    decomposition: Decomposition
    by: tuple[str, ...]
    rows: pd.DataFrame
    row_changes: tuple[Change, ...]
    kernels: pd.DataFrame = field(repr=False)
    kernel_changes: tuple[Change, ...] = field(repr=False)
    sum_change: Change
    wall_change: Change
    base_wall: Estimate
    other_wall: Estimate
    base_idle: Idle
    other_idle: Idle
    alignment: Alignment = field(repr=False)
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The changes along a chain of variants.

    Attributes:
        pairs: from each variant to the next.
        whole: from the first to the last; the only pair where there are two variants.
        reason: why there is no explanation (then ``pairs`` is empty), or ``""``.
    """

    pairs: tuple[Why, ...] = ()
    whole: Why | None = None
    reason: str = ""


def explain(variants: Sequence[Captured], by: Sequence[str]) -> Explanation:
    """Explain the changes along a chain of variants.

    Args:
        variants: two or more, in the order in which the changes were made.
        by: what a row is: some of bucket, role, origin, kernel.

    Returns:
        One explanation per consecutive pair and one of the whole.

    Raises:
        HtaDsv4Error: fewer than two variants, or an unknown key.
    """
    if len(variants) < 2:
        raise HtaDsv4Error("a change has two sides: give at least two variants")
    items = [_Side(v, step_sequence(v.profile.part), idle(v.profile.part)) for v in variants]
    pairs = tuple(_why(a, b, by) for a, b in pairwise(items))
    return Explanation(pairs, pairs[0] if len(pairs) == 1 else _why(items[0], items[-1], by))


@dataclass(frozen=True, slots=True)
class _Side:
    """What is computed once per variant, however many changes it takes part in."""

    captured: Captured
    sequence: StepSequence
    idle: Idle


def _why(base: _Side, other: _Side, by: Sequence[str]) -> Why:
    one, two = base.captured, other.captured
    parts = decompose(one.profile, two.profile)
    rows, kernels = parts.table(by), parts.table("kernel")
    alignment = align(base.sequence, other.sequence, parts.matches)
    sum_change, wall_change = whole_changes(parts, one, two)
    phased = phase_notes([(c.profile.label, kernel_times(c.profile.part)) for c in (one, two)])
    notes = [*one.notes, *two.notes, *parts.notes, *phased]
    for side in (base, other):
        sequence = side.sequence
        if sequence.alike < sequence.steps:
            notes.append(
                f"{side.captured.profile.label}: {sequence.alike} of {sequence.steps} steps launch the very same "
                "kernels; fusions and splits are read from those"
            )
    shorter = min(len(base.sequence.names), len(other.sequence.names))
    if alignment.reason:
        notes.append(alignment.reason)
    elif len(alignment.pairs) < LITTLE_IN_COMMON * shorter:
        notes.append(
            f"only {len(alignment.pairs):,} of {shorter:,} launches stand in both variants: they run different code, "
            "and their order says little about what became what"
        )
    if not (one.repeats or two.repeats):
        notes.append(
            "one capture per variant: verdicts are within-run; how much a repeated capture would differ is unknown"
        )
    return Why(
        decomposition=parts,
        by=tuple(by),
        rows=rows,
        row_changes=tuple(row_changes(parts, rows, by, one, two)),
        kernels=kernels,
        kernel_changes=tuple(row_changes(parts, kernels, ("kernel",), one, two)),
        sum_change=sum_change,
        wall_change=wall_change,
        base_wall=estimate(one.profile.times[WALL].to_numpy()),
        other_wall=estimate(two.profile.times[WALL].to_numpy()),
        base_idle=base.idle,
        other_idle=other.idle,
        alignment=alignment,
        notes=tuple(notes),
    )
