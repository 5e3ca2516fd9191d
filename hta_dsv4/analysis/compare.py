"""Variants side by side, the first as base: share, time per step and its change, row by row.

Changes and shares are of own time, as those of :mod:`diff`: summed durations charge a kernel that starts early with its
wait. The sums stand beside them; without early starts the two are one. The comparison is per step; a variant without
steps is compared by share alone, and the result says so. Rows are matched by exact key; a row that a variant lacks is
absent there, not zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.shares import EARLY_SAID, Shares
from hta_dsv4.errors import HtaDsv4Error

AHEAD = "which a launch has from when the one ahead of it in its stream has ended"
"""What own time is, behind the word."""
OWN_SHARE = "own_share"  # float: own time / own time of all rows
DELTA_NS_PER_STEP = "delta_ns_per_step"  # Int64: own time per step minus the base's; NA without steps
DELTA_SHARE = "delta_share"  # float: own_share minus the base's


@dataclass(frozen=True, slots=True)
class Comparison:
    """N variants side by side.

    Attributes:
        variants: the share tables, base first; all with the same ``by``.
        table: one row per key present in any variant, sorted by its largest share of own time; columns are a
            two-level index ``(variant label, column)`` after the keys, which form the row index. Columns per variant:
            ``time_ns, time_ns_per_step, share`` (of the summed durations), ``launches, launches_per_step``, ``own_ns,
            own_ns_per_step, own_share`` and, except for the base, ``delta_ns_per_step, delta_share``, both of own time.
            A row a variant lacks is NA there; its delta counts it as 0.
        notes: what makes the comparison weaker than it looks.
    """

    variants: tuple[Shares, ...]
    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    @property
    def by(self) -> tuple[str, ...]:
        """What a row is."""
        return self.variants[0].by


def compare(variants: Sequence[Shares], notes: Sequence[str] = ()) -> Comparison:
    """Put share tables side by side.

    Args:
        variants: one or more, base first; distinct labels, the same ``by``.
        notes: what the caller knows that makes the comparison weaker (another GPU, another batch).

    Returns:
        The comparison.

    Raises:
        HtaDsv4Error: no variant, a repeated label, or different ``by``.
    """
    labels = [v.label for v in variants]
    if not variants:
        raise HtaDsv4Error("nothing to compare: give at least one variant as LABEL=PATH")
    if len(set(labels)) != len(labels):
        twice = next(x for x in labels if labels.count(x) > 1)
        raise HtaDsv4Error(f"two variants are called {twice!r}: name them apart, as LABEL=PATH")
    if len({v.by for v in variants}) > 1:
        raise HtaDsv4Error("the variants were cut by different keys; give all the same --by")
    keys = list(variants[0].by)
    columns = [
        sh.TIME_NS, sh.TIME_NS_PER_STEP, sh.SHARE, sh.LAUNCHES, sh.LAUNCHES_PER_STEP, sh.OWN_NS, sh.OWN_NS_PER_STEP,
        OWN_SHARE,
    ]  # fmt: skip
    parts = {v.label: with_own_share(v.table).set_index(keys)[columns] for v in variants}
    table = pd.concat(parts, axis=1)
    for label in labels:  # the outer join made integers float; counts and ns stay integers
        for column in (sh.TIME_NS, sh.OWN_NS, sh.LAUNCHES):
            table[label, column] = parts[label][column].astype("Int64").reindex(table.index)
    base = variants[0]
    for other in variants[1:]:
        per_step = pd.Series(pd.NA, index=table.index, dtype="Int64")
        if base.median_rank.steps and other.median_rank.steps:
            per_step = (
                table[other.label, sh.OWN_NS_PER_STEP].fillna(0)
                - table[base.label, sh.OWN_NS_PER_STEP].fillna(0)
            ).astype("Int64")
        table[other.label, DELTA_NS_PER_STEP] = per_step
        table[other.label, DELTA_SHARE] = table[other.label, OWN_SHARE].fillna(0.0) - table[
            base.label, OWN_SHARE
        ].fillna(0.0)
    largest = table.loc[:, [(label, OWN_SHARE) for label in labels]].max(axis=1)
    table = table.loc[largest.sort_values(ascending=False, kind="stable").index]
    table = table[[(v, c) for v in labels for c in table[v].columns]]
    return Comparison(tuple(variants), table, (*notes, *_notes(variants)))


def with_own_share(table: pd.DataFrame) -> pd.DataFrame:
    """A share table with each row's part of the own time: the part of the sum, exactly, where nothing is early."""
    total = int(table[sh.OWN_NS].sum())
    return table.assign(**{OWN_SHARE: table[sh.OWN_NS] / total if total else 0.0})


def _notes(variants: Sequence[Shares]) -> tuple[str, ...]:
    notes = []
    without = [v.label for v in variants if not v.median_rank.steps]
    if without and len(variants) > 1:
        notes.append(
            f"no steps in {', '.join(without)}: totals cover different amounts of work there, so only shares are "
            "compared and no change per step is given"
        )
    said = [v for v in variants if v.median_rank.extent.early_ns >= EARLY_SAID * v.median_rank.extent.sum_ns]
    if early := {v.label: v.median_rank.early_words for v in said if v.median_rank.early_words}:
        notes.append(
            f"times, shares and changes are of own time, {AHEAD}; early: "
            + ", ".join(f"{label} {words}" for label, words in early.items())
        )
    for v in variants:
        notes += [f"{v.label}: {note}" for note in v.notes]
    return tuple(notes)
