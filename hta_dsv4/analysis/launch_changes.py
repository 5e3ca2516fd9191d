"""Which launches of two variants are configured another way, and which alike but run at another speed.

The first question about two builds of one server. Kernels are matched as :mod:`hta_dsv4.analysis.diff` matches them,
per origin where both variants know it; their launches are paired as :mod:`hta_dsv4.analysis.launch_pairs` says. What is
launched alike and takes another time points elsewhere: a clock, a cache, data, a neighbour. Times are own times
(:mod:`hta_dsv4.analysis.own_time`), per step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.diff import Decomposition
from hta_dsv4.analysis.launch_config import Config, Configured, Room, configured
from hta_dsv4.analysis.launch_pairs import NONE, SAME, Pair, launches, pairs
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.analysis.profile import KERNEL, UNKNOWN
from hta_dsv4.analysis.shares import divide_half_even
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import TraceMeta
from hta_dsv4.trace.sequences import Ints

NOTICED = 0.01
SPREAD = 0.1
"""All kernels run at another speed where the middle 80 % of the time moves one way, by more than it differs in that."""


@dataclass(frozen=True, slots=True)
class LaunchChange:
    """Launches of one kernel that one variant configures one way and the other another way.

    Attributes:
        kernel, role, origin: which; origin ``""`` where not both variants know it, or the kernel moved to another.
        base, other: the configurations; ``None`` where one side has no counterpart (launches that came or went).
        base_launches, other_launches: per step.
        base_ns, other_ns: own time per step of these launches.
        base_room, other_room: how each fills its GPU; ``None`` with no counterpart.
        paired: ``position`` or ``size`` (:mod:`hta_dsv4.analysis.launch_pairs`).
    """

    kernel: str
    role: str
    origin: str
    base: Config | None
    other: Config | None
    base_launches: float
    other_launches: float
    base_ns: int
    other_ns: int
    base_room: Room | None
    other_room: Room | None
    paired: str

    @property
    def changed(self) -> tuple[str, ...]:
        """Fields that differ; empty where only one side has such launches."""
        return self.base.changed(self.other) if self.base is not None and self.other is not None else ()


@dataclass(frozen=True, slots=True)
class Alike:
    """A kernel that both variants launch alike: as often, with the same configurations.

    Attributes:
        kernel, role, origin: which, as of :class:`LaunchChange`.
        launches: per step.
        base_ns, other_ns: own time per step, the mean over the steps.
        base_median_ns, other_median_ns: the median step's.
        apart: whether all steps of one side lie above all of the other; ``None`` with a single step on a side.
    """

    kernel: str
    role: str
    origin: str
    launches: float
    base_ns: int
    other_ns: int
    base_median_ns: float
    other_median_ns: float
    apart: bool | None

    @property
    def ratio(self) -> float:
        """Time of other over that of base; NaN where base took none."""
        return self.other_ns / self.base_ns if self.base_ns else float("nan")


@dataclass(frozen=True)
class LaunchChanges:
    """What changed in how two variants launch.

    Attributes:
        base, other: labels.
        base_step_ns, other_step_ns: own time per step of everything, for scale.
        changes: what changed, largest own time (of the longer side) first.
        alike: kernels launched alike, largest own time first.
        notes: what the traces do not say.
        same_work: whether both did the same work, as far as they say; else no speed is a clock's.
    """

    base: str
    other: str
    base_step_ns: int
    other_step_ns: int
    changes: tuple[LaunchChange, ...]
    alike: tuple[Alike, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    same_work: bool = True

    @property
    def alike_ns(self) -> tuple[int, int]:
        """Own time per step of all that is launched alike, base and other."""
        return sum(a.base_ns for a in self.alike), sum(a.other_ns for a in self.alike)

    def alike_ratio(self, quantile: float = 0.5) -> float | None:
        """Time of other over base of kernels launched alike, weighted by time: the median, or another quantile.

        Args:
            quantile: 0 to 1, the part of the base's time that runs at this ratio or a smaller one.

        Returns:
            ``None`` where nothing is launched alike.
        """
        known = sorted((a.ratio, a.base_ns) for a in self.alike if a.base_ns)
        least, seen = quantile * sum(w for _, w in known), 0
        for ratio, weight in known:
            seen += weight
            if seen >= least:
                return ratio
        return None

    @property
    def speed(self) -> float | None:
        """At which ratio nearly all time launched alike runs; ``None`` where that is 1 or kernels differ in it."""
        low, middle, high = (self.alike_ratio(q) for q in (SPREAD, 0.5, 1 - SPREAD))
        if low is None or middle is None or high is None:
            return None
        together = (low > 1 or high < 1) and high - low <= abs(middle - 1)
        return middle if together and abs(middle - 1) >= NOTICED else None


def launch_changes(
    parts: Decomposition, base_meta: TraceMeta | None = None, other_meta: TraceMeta | None = None
) -> LaunchChanges:
    """Find which launch configurations changed from one variant to the next.

    Args:
        parts: the decomposition of the change, for its matches.
        base_meta: metadata of the base's trace, for CTAs per SM and occupancy.
        other_meta: metadata of the other's.

    Returns:
        The changes. Kernels that only one side has are not among them: they appeared or are gone.
    """
    one, two = parts.base.part, parts.other.part
    found = configured(one, two, base_meta, other_meta)
    names, (mine, theirs) = _groups(parts)
    left, right = launches(one, mine, found.base), launches(two, theirs, found.other)
    changes: list[LaunchChange] = []
    alike: dict[int, tuple[int, int, int]] = {}
    for pair in pairs(left, right, one.steps, two.steps):
        if pair.how == SAME:
            n, t0, t1 = alike.get(pair.group, (0, 0, 0))
            alike[pair.group] = (n + pair.base_launches, t0 + pair.base_ns, t1 + pair.other_ns)
        elif pair.base != pair.other:
            changes.append(_change(names[pair.group], pair, found, one.steps, two.steps))
    steps = _steps(left, right, one.steps, two.steps)
    same = [
        Alike(*names[g], n / one.steps, divide_half_even(t0, one.steps), divide_half_even(t1, two.steps), *steps[g])
        for g, (n, t0, t1) in alike.items()
    ]  # fmt: skip
    changes = [c for c in changes if c.changed or c.base is None or c.other is None]
    return LaunchChanges(
        parts.base.label, parts.other.label,
        _step_ns(one), _step_ns(two),
        tuple(sorted(changes, key=lambda c: (-max(c.base_ns, c.other_ns), c.kernel, c.origin))),
        tuple(sorted(same, key=lambda a: (-max(a.base_ns, a.other_ns), a.kernel, a.origin))),
        _unsaid(parts, found),
    )  # fmt: skip


def _step_ns(part: Counted) -> int:
    return divide_half_even(int(own_ns(part.activities).sum()), part.steps)


def _groups(parts: Decomposition) -> tuple[list[tuple[str, str, str]], tuple[Ints, Ints]]:
    """Kernel, role and origin of each group, and which group each activity of either side is in; -1 for none.

    A kernel is divided by origin only where both sides run it at the same ones: what moved to another origin is still
    the same kernel, launched alike or not.
    """
    matched = [m for m in parts.matches if m.matched]
    roles = dict(zip(parts.cells[KERNEL], parts.cells["role"], strict=True))
    sides = (parts.base.part.activities, parts.other.part.activities)
    kernel = [
        _look_up(acts[col.NAME], {n: i for i, m in enumerate(matched) for n in (m.other if k else m.base)})
        for k, acts in enumerate(sides)
    ]
    origins = [""]
    place = [np.zeros(len(k), dtype=np.int64) for k in kernel]
    if parts.by_origin:
        labels = sorted({str(o) for acts in sides for o in acts[col.ORIGIN].dropna().unique()} | {UNKNOWN})
        origins += labels
        at = {o: i + 1 for i, o in enumerate(labels)}
        where = [np.where((o := _look_up(acts[col.ORIGIN], at)) < 0, at[UNKNOWN], o) for acts in sides]
        seen = [set(zip(k.tolist(), o.tolist(), strict=True)) for k, o in zip(kernel, where, strict=True)]
        moved = {k for k, _ in seen[0] ^ seen[1]}
        stays = [~np.isin(k, sorted(moved)) for k in kernel]
        place = [np.where(s, o, 0) for s, o in zip(stays, where, strict=True)]
    code = [np.where(k < 0, -1, k * len(origins) + o) for k, o in zip(kernel, place, strict=True)]
    names = [(m.name, str(roles.get(m.name, UNKNOWN)), o) for m in matched for o in origins]
    return names, (code[0], code[1])


def _look_up(column: pd.Series[Any], numbers: dict[str, int]) -> Ints:
    """int64 [n]: the number of each label, -1 for what has none."""
    labels = column.astype("category").cat
    table = np.array([*(numbers.get(str(x), -1) for x in labels.categories), -1], dtype=np.int64)
    return table[labels.codes.to_numpy()]


def _change(name: tuple[str, str, str], pair: Pair, found: Configured, one: int, two: int) -> LaunchChange:
    gone, new = pair.base == NONE, pair.other == NONE
    return LaunchChange(
        *name,
        None if gone else found.configs[pair.base], None if new else found.configs[pair.other],
        pair.base_launches / one, pair.other_launches / two,
        divide_half_even(pair.base_ns, one), divide_half_even(pair.other_ns, two),
        None if gone else found.base_room.get(pair.base, Room()),
        None if new else found.other_room.get(pair.other, Room()),
        pair.how,
    )  # fmt: skip


def _steps(
    left: pd.DataFrame, right: pd.DataFrame, one: int, two: int
) -> dict[int, tuple[float, float, bool | None]]:
    """Of each group: its median step on either side, and whether the steps of one all take longer than the other's."""
    ends = []
    for side, steps in ((left, one), (right, two)):
        sums = side.groupby(["group", "step"])["own"].sum().unstack("step", fill_value=0)
        sums = sums.reindex(columns=range(steps), fill_value=0)
        ends.append(
            pd.DataFrame({"lo": sums.min(axis=1), "hi": sums.max(axis=1), "mid": sums.median(axis=1)})
        )
    met = ends[0].add_suffix("0").join(ends[1].add_suffix("1"), how="inner")
    apart = ((met["hi0"] < met["lo1"]) | (met["hi1"] < met["lo0"])).tolist()
    rows = zip(met.index.tolist(), met["mid0"].tolist(), met["mid1"].tolist(), apart, strict=True)
    return {g: (a, b, way if min(one, two) > 1 else None) for g, a, b, way in rows}


def _unsaid(parts: Decomposition, found: Configured) -> tuple[str, ...]:
    """Which side has kernels and records no grids, so that nothing can be said of its launches."""
    blind = [
        side.label
        for side, codes in ((parts.base, found.base), (parts.other, found.other))
        if (side.part.activities[col.KIND] == col.KERNEL).any()
        and not any(found.configs[c].grid is not None for c in np.unique(codes).tolist())
    ]
    return (
        (f"{' and '.join(blind)}: the trace gives no grids, so launches cannot be compared",) if blind else ()
    )
