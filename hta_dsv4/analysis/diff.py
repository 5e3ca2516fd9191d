"""Why the time per step changed: an exact, order-free decomposition of the difference of two variants.

Times are own times: what launches add to the time their streams are busy (:mod:`own_time`). With programmatic dependent
launch a kernel's duration includes its wait for the one ahead of it, and a change of summed durations has false signs.
Without early starts own time is duration.

For each kernel that both variants have, with ``n`` launches per step of mean duration ``d``::

    n1*d1 - n0*d0  =  (n1 - n0) * (d0 + d1)/2   +   (d1 - d0) * (n0 + n1)/2
                         count effect                  duration effect

The midpoint (the Shapley value of the two factors) depends on no order of changing them. Where one name is launched in
several sizes, launches are counted size by size, and the same launches at another size are a change of duration
(:mod:`sizes`). Kernels that only one variant
has make the effects ``appeared`` and ``disappeared``; so do those that one variant runs at an origin where the other
does not (the copies of an indexer that is gone), unless a kernel runs as often as before and its launches are merely
counted to another origin: then they move as ``count``, which adds up to 0 over the kernel. The wall time of
a step follows from the own time::

    d wall  =  d own  -  d streams  +  d idle        streams = own - busy, idle = wall - busy

**Exact.** Effects are computed in rational numbers. Times per step are apportioned to whole nanoseconds once per
variant, top down (step, bucket, role, kernel) by largest remainder, so that at every level ``other - base = delta =
count + duration + appeared + disappeared`` and the rows add up to the step, with nothing left over. An integer is
within a few ns of the rational it stands for; the totals it comes from (``base_time_ns`` over ``steps``) stand beside.
Because the apportionment knows one variant only, deltas along a chain of variants add up to the delta of its ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import pandas as pd

from hta_dsv4.analysis import names
from hta_dsv4.analysis.names import Match, match_names
from hta_dsv4.analysis.profile import KERNEL, SIZE, UNKNOWN, Profile, StepTimes
from hta_dsv4.analysis.sizes import Sizes, count_effect
from hta_dsv4.errors import HtaDsv4Error

BASE_KERNELS, OTHER_KERNELS = "base_kernels", "other_kernels"  # tuple of str
METHOD, CONFIDENCE, STATUS = "method", "confidence", "status"
MATCHED, APPEARED, DISAPPEARED = "matched", "appeared", "disappeared"
BASE_LAUNCHES, OTHER_LAUNCHES = "base_launches", "other_launches"  # int: over all counted steps
BASE_TIME_NS, OTHER_TIME_NS = "base_time_ns", "other_time_ns"  # int: over all counted steps
BASE_NS, OTHER_NS, DELTA_NS = "base_ns", "other_ns", "delta_ns"  # int: per step
COUNT_NS, DURATION_NS = "count_ns", "duration_ns"  # int: per step, with the two below they add up to delta_ns
APPEARED_NS, DISAPPEARED_NS = "appeared_ns", "disappeared_ns"
EFFECTS = (COUNT_NS, DURATION_NS, APPEARED_NS, DISAPPEARED_NS)
BY = ("bucket", "role", "origin", "kernel")
_NUMBERS = (
    BASE_LAUNCHES, OTHER_LAUNCHES, BASE_TIME_NS, OTHER_TIME_NS, BASE_NS, OTHER_NS, DELTA_NS, *EFFECTS
)  # fmt: skip


@dataclass(frozen=True)
class Decomposition:
    """The difference of two variants, explained.

    Attributes:
        base, other: the two profiles.
        matches: every kernel of both, matched or not.
        cells: the finest rows, one per match, bucket, role and (where both variants know it) origin; columns as
            documented in this module. Every coarser table is a sum of these.
        by_origin: whether the origin divides the cells.
        notes: what makes the answer weaker than it looks.
    """

    base: Profile = field(repr=False)
    other: Profile = field(repr=False)
    matches: tuple[Match, ...] = field(repr=False)
    cells: pd.DataFrame = field(repr=False)
    by_origin: bool
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def change(self) -> StepTimes:
        """Other minus base, per step."""
        return self.other.per_step - self.base.per_step

    @cached_property
    def effects(self) -> dict[str, int]:
        """``count_ns, duration_ns, appeared_ns, disappeared_ns`` of the whole step."""
        return {e: int(self.cells[e].sum()) for e in EFFECTS}

    @property
    def residual_ns(self) -> int:
        """What the effects leave unexplained of the change of own time: 0 by construction, and tested."""
        return self.change.own_ns - sum(self.effects.values())

    @property
    def unmatched(self) -> tuple[Match, ...]:
        """Kernels that only the base has."""
        return tuple(m for m in self.matches if not m.other)

    @property
    def extra(self) -> tuple[Match, ...]:
        """Kernels that only the other has."""
        return tuple(m for m in self.matches if not m.base)

    def table(self, by: str | Sequence[str] = "bucket") -> pd.DataFrame:
        """The decomposition by some of ``bucket, role, origin, kernel``.

        Args:
            by: what a row is.

        Returns:
            One row per key with launches and times of both sides, ``delta_ns`` and the four effects, per step;
            largest change first. Columns sum to the step's, exactly.

        Raises:
            HtaDsv4Error: an unknown key.
        """
        keys = [k.strip() for k in (by.split(",") if isinstance(by, str) else by)]
        if wrong := [k for k in keys if k not in BY]:
            raise HtaDsv4Error(f"unknown key {wrong[0]!r}; choose from {', '.join(BY)}")
        out = self.cells.groupby(keys, sort=True)[list(_NUMBERS)].sum().reset_index()
        # Grouping has sorted by key, and a stable sort keeps that order among equal changes.
        order = (-out[DELTA_NS].abs()).sort_values(kind="stable").index
        return out.loc[order].reset_index(drop=True)


def decompose(base: Profile, other: Profile) -> Decomposition:
    """Explain the change of time per step from ``base`` to ``other``.

    Args:
        base: profile of the variant before.
        other: profile of the one after.

    Returns:
        The decomposition; antisymmetric: swapping the two negates every number.
    """
    matches = match_names(_kernels(base), _kernels(other))
    by_origin = base.knows_origin and other.knows_origin
    left = _placed(base, {n: i for i, m in enumerate(matches) for n in m.base}, by_origin)
    right = _placed(other, {n: i for i, m in enumerate(matches) for n in m.other}, by_origin)
    cells = left.add_suffix("_0").join(right.add_suffix("_1"), how="outer").fillna(0).astype("int64")
    moved = _moved(cells, base.steps, other.steps)
    sized = _by_size(base, other, matches, by_origin)
    rows = []
    for key, t0, l0, n0, t1, l1, n1 in zip(cells.index, *(cells[c] for c in cells), strict=True):
        match = matches[key[0]]
        count = duration = appeared = gone = 0
        if key in moved:
            count = moved[key]
            duration = n1 - n0 - count
        elif key in sized and l0 and l1:
            count = round(count_effect(*sized[key]))
            duration = n1 - n0 - count
        elif l0 and l1:
            per_step = Fraction(l1, other.steps) - Fraction(l0, base.steps)
            count = round(per_step * (Fraction(t0, l0) + Fraction(t1, l1)) / 2)
            duration = n1 - n0 - count
        elif l1:
            appeared = n1 - n0
        else:
            gone = n1 - n0
        status = MATCHED if (l0 and l1) or key in moved else APPEARED if l1 else DISAPPEARED
        rows.append(
            (
                match.name, match.base, match.other, match.method, match.confidence, status, *key[1:],
                l0, l1, t0, t1, n0, n1, n1 - n0, count, duration, appeared, gone,
            )
        )  # fmt: skip
    columns = [
        KERNEL,
        BASE_KERNELS,
        OTHER_KERNELS,
        METHOD,
        CONFIDENCE,
        STATUS,
        "bucket",
        "role",
        "origin",
        *_NUMBERS,
    ]
    table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(_NUMBERS, "int64"))
    return Decomposition(
        base, other, tuple(matches), table, by_origin, _notes(base, other, by_origin, matches)
    )


def chain(profiles: Sequence[Profile]) -> tuple[list[Decomposition], Decomposition]:
    """Decompose along a chain of variants.

    Args:
        profiles: two or more, in the order in which the changes were made.

    Returns:
        The consecutive decompositions, and the one of first and last. The deltas of the former add up to those of the
        latter, per bucket, role and step; the effects need not, as a kernel that appears and then shrinks shows.

    Raises:
        HtaDsv4Error: fewer than two.
    """
    if len(profiles) < 2:
        raise HtaDsv4Error("a change has two sides: give at least two variants")
    pairs = [decompose(a, b) for a, b in pairwise(profiles)]
    return pairs, pairs[0] if len(pairs) == 1 else decompose(profiles[0], profiles[-1])


def _moved(cells: pd.DataFrame, base_steps: int, other_steps: int) -> dict[tuple[object, ...], int]:
    """Count effect of each cell of a kernel that runs as often as before, but for another origin: they add up to 0."""
    out: dict[tuple[object, ...], int] = {}
    numbers = zip(*(cells[c] for c in ("launches_0", "launches_1", "time_ns_0", "time_ns_1")), strict=True)
    of_kernel: dict[object, list[tuple[tuple[object, ...], tuple[int, int, int, int]]]] = {}
    for key, row in zip(cells.index, numbers, strict=True):
        of_kernel.setdefault(key[0], []).append((key, row))
    for group in of_kernel.values():
        if len(group) < 2:  # one place on both sides, or on one: nothing moved
            continue
        total0, total1, time0, time1 = (sum(int(row[k]) for _, row in group) for k in range(4))
        changes = [Fraction(int(r[1]), other_steps) - Fraction(int(r[0]), base_steps) for _, r in group]
        if not total0 or sum(changes, Fraction()) or not any(changes):
            continue
        mean = Fraction(time0, total0) + Fraction(time1, total1)
        counts = [round(change * mean / 2) for change in changes]
        counts[-1] -= sum(counts)  # the ns that rounding left over
        out |= dict(zip((key for key, _ in group), counts, strict=True))
    return out


def _by_size(
    base: Profile, other: Profile, matches: Sequence[Match], by_origin: bool
) -> dict[tuple[object, ...], tuple[Sizes, Sizes]]:
    """Launches and time per step by size of each cell whose launches are not of one size, the same on both sides."""
    keys = ["match", "bucket", "role", "origin"]
    sides = []
    for number, side in enumerate((base, other)):
        match_of = {n: i for i, m in enumerate(matches) for n in (m.other if number else m.base)}
        table = side.sizes.assign(match=side.sizes[KERNEL].map(match_of), side=number)
        if not by_origin:
            table["origin"] = UNKNOWN
        sides.append(table.groupby([*keys, "side", *SIZE], sort=False)[["launches", "time_ns"]].sum())
    both = pd.concat(sides).reset_index()
    both["size"] = both.groupby(list(SIZE), sort=False).ngroup()
    # one row a side, of one size: the midpoint over all launches is the one at that size
    of_cell = both.groupby(keys, sort=False)
    several = of_cell["size"].transform("nunique") > 1
    out: dict[tuple[object, ...], tuple[dict[Hashable, tuple[Fraction, Fraction]], ...]] = {}
    columns = [*keys, "side", "size", "launches", "time_ns"]
    for *key, number, size, launches, time in zip(*(both.loc[several, c] for c in columns), strict=True):
        steps = (base, other)[number].steps
        pair = out.setdefault(tuple(key), ({}, {}))
        pair[number][int(size)] = Fraction(int(launches), steps), Fraction(int(time), steps)
    return {key: (pair[0], pair[1]) for key, pair in out.items()}


def _kernels(side: Profile) -> list[tuple[str, str]]:
    """Each name with the role of most of its time (a name has one role, except where rules look at more than it)."""
    heaviest = side.atoms.sort_values(["time_ns"], kind="stable").drop_duplicates(KERNEL, keep="last")
    return list(zip(heaviest[KERNEL], heaviest["role"], strict=True))


def _placed(side: Profile, match_of: dict[str, int], by_origin: bool) -> pd.DataFrame:
    """``time_ns, launches, step_ns`` by position of the match, bucket, role, origin."""
    atoms = side.atoms.assign(match=side.atoms[KERNEL].map(match_of))
    if not by_origin:
        atoms["origin"] = UNKNOWN
    return atoms.groupby(["match", "bucket", "role", "origin"], sort=True)[
        ["time_ns", "launches", "step_ns"]
    ].sum()


def _notes(base: Profile, other: Profile, by_origin: bool, matches: Sequence[Match]) -> tuple[str, ...]:
    notes = []
    if not by_origin and (base.knows_origin or other.knows_origin):
        blind = [p.label for p in (base, other) if not p.knows_origin]
        notes.append(
            f"{', '.join(blind)}: origin unknown for most of the time, so kernels are not divided by origin"
        )
    loose = [m for m in matches if m.matched and m.method in (names.TILING, names.FUNCTION)]
    if loose:
        notes.append(
            f"{len(loose)} kernel{'s' * (len(loose) > 1)} matched although the names differ in more than a running "
            f"number (lowest confidence {min(m.confidence for m in loose):.2f})"
        )
    return tuple(notes)
