"""Why variants differ: the decomposition of each change, how sure each row of it is, and which kernels became which.

This is where the single answers meet: :mod:`diff` (what the change is made of), :mod:`stats` (is it real) and
:mod:`align` (fusions and splits). Nothing is computed twice and nothing is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from hta_dsv4.analysis.align import Alignment, align
from hta_dsv4.analysis.counted import SUM, WALL, Counted, step_times, step_values
from hta_dsv4.analysis.diff import Decomposition, decompose
from hta_dsv4.analysis.profile import UNKNOWN as NO_ORIGIN
from hta_dsv4.analysis.profile import Profile
from hta_dsv4.analysis.sequences import StepSequence, step_sequence
from hta_dsv4.analysis.stats import UNKNOWN, Change, Estimate, compare_launches, compare_steps, estimate
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col

LITTLE_IN_COMMON = 0.2
"""Below this part of the shorter step, an alignment pairs kernels that happen to have one name."""


@dataclass(frozen=True)
class Captured:
    """One variant, ready to be explained.

    Attributes:
        profile: its time per step, from its first capture.
        repeats: the counted parts of further captures of the same variant; they only tell how much captures differ.
        notes: what should be known of it, e.g. which of its ranks this is.
    """

    profile: Profile
    repeats: tuple[Counted, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def captures(self) -> tuple[Counted, ...]:
        """All captures, the first one first."""
        return (self.profile.part, *self.repeats)


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
        alignment: which kernels became which; ``None`` where a side has no typical step.
        notes: what makes the answer weaker than it looks.
    """

    decomposition: Decomposition
    by: tuple[str, ...]
    rows: pd.DataFrame
    row_changes: tuple[Change, ...]
    kernels: pd.DataFrame
    kernel_changes: tuple[Change, ...]
    sum_change: Change
    wall_change: Change
    base_wall: Estimate
    other_wall: Estimate
    alignment: Alignment
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
    sequences = [step_sequence(v.profile.part) for v in variants]
    items = list(zip(variants, sequences, strict=True))
    pairs = tuple(_why(a, b, by) for a, b in pairwise(items))
    return Explanation(pairs, pairs[0] if len(pairs) == 1 else _why(items[0], items[-1], by))


def _why(base: tuple[Captured, StepSequence], other: tuple[Captured, StepSequence], by: Sequence[str]) -> Why:
    (one, one_sequence), (two, two_sequence) = base, other
    parts = decompose(one.profile, two.profile)
    rows, kernels = parts.table(by), parts.table("kernel")
    alignment = align(one_sequence, two_sequence, parts.matches)
    sums = _judged([one.profile.times[[SUM, WALL]], *map(_times, one.repeats)],
                   [two.profile.times[[SUM, WALL]], *map(_times, two.repeats)], [SUM, WALL])  # fmt: skip
    notes = [*one.notes, *two.notes, *parts.notes]
    for captured, sequence in (base, other):
        if sequence.alike < sequence.steps:
            notes.append(
                f"{captured.profile.label}: {sequence.alike} of {sequence.steps} steps launch the very same kernels; "
                "fusions and splits are read from those"
            )
    shorter = min(len(one_sequence.names), len(two_sequence.names))
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
        sum_change=sums[0],
        wall_change=sums[1],
        base_wall=estimate(one.profile.times[WALL].to_numpy()),
        other_wall=estimate(two.profile.times[WALL].to_numpy()),
        alignment=alignment,
        notes=tuple(notes),
    )


def _times(part: Counted) -> pd.DataFrame:
    return step_times(part)[[SUM, WALL]]


def row_changes(
    parts: Decomposition, rows: pd.DataFrame, by: Sequence[str], base: Captured, other: Captured
) -> list[Change]:
    """Judge every row of a decomposition table.

    Args:
        parts: the decomposition.
        rows: ``parts.table(by)``.
        by: what a row is.
        base: the variant before.
        other: the variant after.

    Returns:
        One change per row, intervals simultaneous over the rows. Where there are too few steps for an interval, the
        reason says what launch counts and, for single kernels, the launches themselves show.
    """
    names = (
        {n: m.name for m in parts.matches for n in m.base},
        {n: m.name for m in parts.matches for n in m.other},
    )
    wanted = [tuple(r) if len(by) > 1 else r[0] for r in rows[list(by)].itertuples(index=False, name=None)]
    tables = [
        [_keyed(c, by, shown, parts.by_origin) for c in side.captures]
        for side, shown in ((base, names[0]), (other, names[1]))
    ]
    values = [[step_values(c, k) for c, k in zip(side.captures, keys, strict=True)] for side, keys in
              ((base, tables[0]), (other, tables[1]))]  # fmt: skip
    out = _judged(values[0], values[1], wanted)
    unsure = [i for i, c in enumerate(out) if c.within_run == UNKNOWN]
    for i in unsure:
        a, b = (v[0][wanted[i]] if wanted[i] in v[0] else pd.Series([0]) for v in values)
        if (a.max() == 0) != (b.max() == 0) and max(a.min(), b.min()) > 0:
            out[i] = replace(
                out[i],
                reason=out[i].reason + "; it runs in every step of one variant and in none of the other",
            )
        elif tuple(by) == ("kernel",):
            out[i] = replace(out[i], reason=out[i].reason + _launches(wanted[i], base, other, tables))
    return out


def step_rows(part: Counted, by: str) -> dict[str, np.ndarray]:
    """Time of each row in each step of one capture.

    Args:
        part: its counted part.
        by: bucket, role, origin or kernel.

    Returns:
        Row -> int64 [steps], ns; empty where there are no steps.
    """
    if not part.steps:
        return {}
    table = step_values(part, _keyed(part, (by,), {}, True))
    return {str(name): table[name].to_numpy() for name in table.columns}


def _launches(name: object, base: Captured, other: Captured, keys: Sequence[Sequence[np.ndarray]]) -> str:
    a, b = (
        side.profile.part.activities[col.DUR_NS].to_numpy()[labels[0] == name]
        for side, labels in ((base, keys[0]), (other, keys[1]))
    )
    found = compare_launches(a, b)
    if found.interval is None:
        return f"; {found.reason}"
    verb = "differ by more than" if found.distinct else "do not differ beyond"
    return f"; single launches {verb} their own variation ({found.delta_ns / 1e3:+,.3f} us each)"


def _keyed(part: Counted, by: Sequence[str], shown: Mapping[str, str], by_origin: bool) -> np.ndarray:
    """One label per activity, as the rows of the decomposition are labelled."""
    acts, columns = part.activities, []
    for key in by:
        if key == "origin" and not (by_origin and col.ORIGIN in acts):
            columns.append(np.full(len(acts), NO_ORIGIN, dtype=object))
            continue
        values = acts[col.NAME if key == "kernel" else key]
        codes, labels = values.cat.codes.to_numpy(), [str(x) for x in values.cat.categories]
        if key == "kernel":
            labels = [shown.get(x, x) for x in labels]
        columns.append(
            np.array([*labels, NO_ORIGIN], dtype=object)[codes]
        )  # code -1 is missing: the last label
    if len(columns) == 1:
        return columns[0]
    out = np.empty(len(acts), dtype=object)
    out[:] = list(zip(*columns, strict=True))
    return out


def _judged(
    base: Sequence[pd.DataFrame], other: Sequence[pd.DataFrame], wanted: Sequence[object]
) -> list[Change]:
    def matrix(table: pd.DataFrame) -> np.ndarray:
        at = {label: i for i, label in enumerate(table.columns)}
        values = table.to_numpy()
        zero = np.zeros(len(values), dtype=np.int64)
        columns = [values[:, at[w]] if w in at else zero for w in wanted]
        return np.stack(columns, axis=1) if columns else np.zeros((len(values), 0), dtype=np.int64)

    return compare_steps([matrix(t) for t in base], [matrix(t) for t in other])
