"""How sure each row of a decomposition is: structural, real, noise, or beyond what a few steps can say.

A change is **structural** when it comes from the launches themselves: kernels that run in every step of one variant and
in none of the other, or a number of launches that is the same in every step of each variant and differs between them.
That is certain, however few steps there are and however much durations scatter. A row of many kernels is structural
when such changes make up most of it, by size and net, and its steps lie apart from those of the other variant. Where
they largely cancel (one kernel replaces another of like cost) the net is again the difference of two noisy durations,
and has to stand out of the spread of the steps, too.

Everything else is left to :mod:`stats` (steps and captures) and, as a reason beside the verdict, :mod:`launches`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from hta_dsv4.analysis import diff as d
from hta_dsv4.analysis.counted import OWN, WALL, Counted, own_by_run, step_times
from hta_dsv4.analysis.diff import Decomposition
from hta_dsv4.analysis.launches import compare_launches
from hta_dsv4.analysis.profile import UNKNOWN as NO_ORIGIN
from hta_dsv4.analysis.profile import Profile
from hta_dsv4.analysis.stats import (
    BEYOND_SPREAD,
    SPREADS,
    STRUCTURAL,
    UNCHANGED,
    UNKNOWN,
    WITHIN_SPREAD,
    Change,
    compare_steps,
)
from hta_dsv4.trace import activities as col

_FEW = (UNKNOWN, BEYOND_SPREAD, WITHIN_SPREAD)
MOSTLY = 0.5
"""A row is structural when more than this part of its change, by size, is."""


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
class _Keyed:
    """The activities of one capture by row: ``codes`` [activities] into ``labels``, and own ns per step and row."""

    part: Counted
    codes: np.ndarray
    labels: tuple[object, ...]

    @cached_property
    def own(self) -> np.ndarray:
        """int64 [activities], own time, ns."""
        return own_by_run(self.part.activities, self.part.run[self.part.step])

    def step_ns(self, wanted: Sequence[object]) -> np.ndarray:
        """int64 [steps, wanted]; 0 where a step has no such activity."""
        n = len(self.labels)
        table = np.zeros((self.part.steps, n + 1), dtype=np.int64)
        np.add.at(table, (self.part.step, self.codes), self.own)
        at = {label: i for i, label in enumerate(self.labels)}
        return table[:, [at.get(w, n) for w in wanted]]

    def durations(self, label: object) -> tuple[np.ndarray, np.ndarray]:
        """Steps and own times of one row's launches, in time order."""
        step, dur, start, at = self._rows
        mine = slice(start[at[label]], start[at[label] + 1]) if label in at else slice(0)
        return step[mine], dur[mine]

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[object, int]]:
        """Steps and own times sorted by row, where each row's begin, and the row of each label."""
        order = np.argsort(self.codes, kind="stable")
        start = np.searchsorted(self.codes[order], np.arange(len(self.labels) + 1))
        return (
            self.part.step[order],
            self.own[order],
            start,
            {label: i for i, label in enumerate(self.labels)},
        )


def whole_changes(parts: Decomposition, base: Captured, other: Captured) -> tuple[Change, Change]:
    """Judge the own time and the wall time of a step.

    Args:
        parts: the decomposition.
        base: the variant before.
        other: the variant after.

    Returns:
        The change of the summed own times, and that of the wall time.
    """
    sides = [
        [side.profile.times[[OWN, WALL]], *(step_times(r)[[OWN, WALL]] for r in side.repeats)]
        for side in (base, other)
    ]
    tables = [[t.to_numpy() for t in side] for side in sides]
    sums, wall = compare_steps(*tables)
    (structure,) = _structure(parts, [])
    return _structural(sums, structure, tables[0][0][:, 0], tables[1][0][:, 0]), wall


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
        reason says so and, for single kernels, what the launches themselves show.
    """
    names = (
        {n: m.name for m in parts.matches for n in m.base},
        {n: m.name for m in parts.matches for n in m.other},
    )
    wanted = [tuple(r) if len(by) > 1 else r[0] for r in rows[list(by)].itertuples(index=False, name=None)]
    keyed = [
        [_keyed(c, by, shown, parts.by_origin) for c in side.captures]
        for side, shown in ((base, names[0]), (other, names[1]))
    ]
    values = [[k.step_ns(wanted) for k in side] for side in keyed]
    out = compare_steps(values[0], values[1])
    for i, structure in enumerate(_structure(parts, by, rows)):
        out[i] = _structural(out[i], structure, values[0][0][:, i], values[1][0][:, i])
        if out[i].within_run in _FEW and tuple(by) == ("kernel",):
            out[i] = replace(out[i], reason=out[i].reason + _launches(wanted[i], keyed[0][0], keyed[1][0]))
    return out


def step_rows(part: Counted, by: str) -> dict[str, np.ndarray]:
    """Own time of each row in each step of one capture.

    Args:
        part: its counted part.
        by: bucket, role, origin or kernel.

    Returns:
        Row -> int64 [steps], ns; empty where there are no steps.
    """
    if not part.steps:
        return {}
    keyed = _keyed(part, (by,), {}, True)
    present = [keyed.labels[i] for i in np.unique(keyed.codes)]
    table = keyed.step_ns(present)
    return {str(name): table[:, i] for i, name in enumerate(present)}


def _structural(
    change: Change, structure: tuple[float, float, float], a: np.ndarray, b: np.ndarray
) -> Change:
    """The change as structural, where it is; else as it was, with what speaks for it."""
    share, one_way, net = structure
    if change.within_run == UNCHANGED or share <= MOSTLY or abs(net) <= MOSTLY * abs(change.delta_ns):
        return change
    said = f"{100 * share:.0f} % of it are launches that come, go or differ in number, alike in every step"
    apart = bool(a.max() < b.min() or b.max() < a.min())
    if one_way <= MOSTLY:
        apart = apart and abs(change.delta_ns) > SPREADS * float(np.ptp(a) + np.ptp(b))
    if apart:
        return replace(change, within_run=STRUCTURAL, reason=said + "; no matter of noise")
    return replace(
        change, reason=f"{change.reason}; {said}, but they cancel to within the spread of the steps"
    )


def _structure(
    parts: Decomposition, by: Sequence[str], rows: pd.DataFrame | None = None
) -> list[tuple[float, float, float]]:
    """How structural each row's change is (that of the step, for no keys), and how far in one direction.

    Returns:
        Per row: the part of the change, by size, that comes from the launches themselves; of that part, net by size: 1
        where all adds or all saves, 0 where it cancels; and net, ns.
    """
    cells = parts.cells
    counts = [
        _launches_per_step(parts.base.part, {n: m.name for m in parts.matches for n in m.base}),
        _launches_per_step(parts.other.part, {n: m.name for m in parts.matches for n in m.other}),
    ]
    always = [set(labels[n.min(axis=0) > 0].tolist()) for labels, n in counts]
    steady = [set(labels[n.min(axis=0) == n.max(axis=0)].tolist()) for labels, n in counts]
    # a kernel that is only counted to another origin has not changed, except in a table by origin
    cells = (
        cells.groupby(list(dict.fromkeys([*by, "kernel"])), sort=False)[list(d.EFFECTS)].sum().reset_index()
    )
    kernels = cells["kernel"].tolist()

    def of(names: set[object]) -> np.ndarray:
        return np.fromiter((k in names for k in kernels), bool, len(kernels))

    certain = (
        cells[d.APPEARED_NS].where(of(always[1]), 0)
        + cells[d.DISAPPEARED_NS].where(of(always[0]), 0)
        + cells[d.COUNT_NS].where(of(steady[0] & steady[1]), 0)
    )
    frame = pd.DataFrame(
        {"net": certain, "certain": certain.abs(), "size": cells[list(d.EFFECTS)].abs().sum(axis=1)}
    )
    if rows is None:
        table = frame.sum().to_frame().T
    else:
        keyed = pd.concat([frame, cells[list(by)]], axis=1).groupby(list(by), sort=False)[list(frame)].sum()
        table = keyed.reindex(rows.set_index(list(by)).index)
    return [
        (min(c / s, 1.0) if s else 0.0, min(abs(n) / c, 1.0) if c else 0.0, float(n))
        for n, c, s in zip(table["net"], table["certain"], table["size"], strict=True)
    ]


def _launches_per_step(part: Counted, shown: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Kernels, object [kernels], and how often each ran in each step, int64 [steps, kernels]."""
    keyed = _keyed(part, ("kernel",), shown, False)
    counts = np.zeros((part.steps, len(keyed.labels)), dtype=np.int64)
    np.add.at(counts, (part.step, keyed.codes), 1)
    return np.array(keyed.labels, dtype=object), counts


def _launches(name: object, base: _Keyed, other: _Keyed) -> str:
    a, b = _by_step(name, base), _by_step(name, other)
    if a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[1]:
        found = compare_launches(a, b)
    else:
        found = compare_launches(a.ravel(), b.ravel())
    if found.interval is None:
        return f"; {found.reason}"
    verb = "differ by more than" if found.distinct else "do not differ beyond"
    each = f"{found.delta_ns / 1e3:+,.3f} us each, {'paired' if found.paired else 'unpaired'}"
    return f"; single launches {verb} their own variation ({each})"


def _by_step(name: object, side: _Keyed) -> np.ndarray:
    """Own times [steps, launches per step] where every step has as many, else [launches]."""
    step, dur = side.durations(name)
    per_step = np.bincount(step, minlength=side.part.steps)
    if len(step) and per_step.min() == per_step.max():
        # a kernel of the next step may begin on another stream before the last of this one
        return dur[np.argsort(step, kind="stable")].reshape(side.part.steps, -1)
    return dur


def _keyed(part: Counted, by: Sequence[str], shown: Mapping[str, str], by_origin: bool) -> _Keyed:
    """Each activity's row, labelled as the rows of the decomposition are: a string, or a tuple of several keys'."""
    acts = part.activities
    codes = np.zeros(len(acts), dtype=np.int64)
    labels: list[tuple[str, ...]] = [()]
    for key in by:
        if key == "origin" and not (by_origin and col.ORIGIN in acts):
            labels = [(*label, NO_ORIGIN) for label in labels]
            continue
        values = acts[col.NAME if key == "kernel" else key]
        texts = [str(x) for x in values.cat.categories]
        if key == "kernel":
            texts = [shown.get(x, x) for x in texts]
        # several spellings may be shown as one, and code -1 is missing: the last label
        number, distinct = pd.factorize(np.array([*texts, NO_ORIGIN], dtype=object))
        codes = codes * len(distinct) + number[values.cat.codes.to_numpy()]
        used, codes = np.unique(codes, return_inverse=True)
        labels = [(*labels[u // len(distinct)], str(distinct[u % len(distinct)])) for u in used.tolist()]
    flat: list[object] = [label[0] if len(by) == 1 else label for label in labels]
    return _Keyed(part, codes, tuple(flat))
