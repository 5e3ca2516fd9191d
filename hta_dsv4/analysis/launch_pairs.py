"""Which launches of a kernel in one variant are which in another, when they may be configured differently.

* ``same``: as many launches per step of every configuration on both sides; nothing changed, whatever their order;
* ``position``: as many launches in every step, configured alike in every step: the k-th of a step with the k-th;
* ``size``: else equal configurations with each other, and what is left in order of time, largest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import pandas as pd

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.sequences import Ints

SAME, POSITION, SIZE = "same", "position", "size"
NONE = -1
"""Number of the configuration on the side that has no such launches."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Launches of one group, configured as ``base`` on one side and as ``other`` on the other.

    Attributes:
        group: which kernel.
        base, other: numbers of the configurations; :data:`NONE` on the side that has no counterpart.
        base_launches, other_launches: over all counted steps.
        base_ns, other_ns: own time, over all counted steps.
        how: SAME, POSITION or SIZE.
    """

    group: int
    base: int
    other: int
    base_launches: int
    other_launches: int
    base_ns: int
    other_ns: int
    how: str


def launches(part: Counted, group: Ints, config: Ints) -> pd.DataFrame:
    """One row per launch of a matched kernel, in the order in which a step launches them.

    Args:
        part: counted steps.
        group: int64 [activities], which kernel; -1 for what has no counterpart.
        config: int64 [activities], number of its configuration.

    Returns:
        int64 columns ``group, config, step, place`` (of the launch among those of its group and step) and ``own``.
    """
    acts = part.activities
    start = acts[col.START_NS].to_numpy()
    launch = start
    if col.LAUNCH_START_NS in acts:
        known = acts[col.LAUNCH_START_NS].to_numpy(dtype=np.int64, na_value=-1)
        launch = known if (known >= 0).all() else start
    order = np.lexsort((np.arange(len(start)), start, launch, part.step))
    order = order[group[order] >= 0]
    out = pd.DataFrame(
        {"group": group[order], "config": config[order], "step": part.step[order], "own": own_ns(acts)[order]}
    )
    out["place"] = out.groupby(["group", "step"], sort=False).cumcount()
    return out


def pairs(base: pd.DataFrame, other: pd.DataFrame, base_steps: int, other_steps: int) -> Iterator[Pair]:
    """Pair the launches of two variants, group by group.

    Args:
        base: launches of the one, as :func:`launches` gives them.
        other: launches of the other.
        base_steps: counted steps of the one.
        other_steps: counted steps of the other.

    Yields:
        Pairs that together hold every launch of both once, except those of groups that one side lacks.
    """
    both = set(base["group"]) & set(other["group"])
    rows: dict[int, list[_Sized]] = {}
    for group, *row in _sizes(base, other):
        if group in both:
            rows.setdefault(group, []).append(tuple(row))
    placed = []
    one, two = _regular(base, base_steps), _regular(other, other_steps)
    for group, mine in rows.items():
        if all(n0 * other_steps == n1 * base_steps for _, n0, _, n1, _ in mine):
            for config, n0, t0, n1, t1 in mine:
                yield Pair(group, config, config, n0, n1, t0, t1, SAME)
        elif one.get(group, 0) == two.get(group, -1):
            placed.append(group)
        else:
            yield from _by_size(group, mine)
    yield from _by_place(base, other, placed)


_Sized = tuple[int, ...]
"""A configuration, and its launches and own time on either side: ``(config, n0, t0, n1, t1)``."""


def _sizes(base: pd.DataFrame, other: pd.DataFrame) -> list[list[int]]:
    """``[group, config, n0, t0, n1, t1]`` of every configuration of either side."""
    sides = [
        side.groupby(["group", "config"])["own"].agg(["size", "sum"]).set_axis([f"n{k}", f"t{k}"], axis=1)
        for k, side in enumerate((base, other))
    ]
    met = sides[0].join(sides[1], how="outer").fillna(0).reset_index()
    out: list[list[int]] = met.to_numpy(dtype=np.int64).tolist()
    return out


def _regular(side: pd.DataFrame, steps: int) -> dict[int, int]:
    """Launches in a step, of the groups that have equally many in every step and configure each place alike."""
    places = side.groupby(["group", "place"])["config"].agg(["size", "nunique"])
    steady = (
        ((places["size"] == steps) & (places["nunique"] == 1)).groupby(level="group").agg(["all", "size"])
    )
    found = steady.loc[steady["all"], "size"]
    return dict(zip(found.index.tolist(), found.tolist(), strict=True))


def _by_place(base: pd.DataFrame, other: pd.DataFrame, groups: list[int]) -> Iterator[Pair]:
    def places(side: pd.DataFrame) -> pd.DataFrame:
        mine = side[side["group"].isin(groups)].groupby(["group", "place"])
        return mine.agg(config=("config", "first"), n=("own", "size"), t=("own", "sum"))

    met = places(base).add_suffix("0").join(places(other).add_suffix("1")).reset_index()
    found = met.groupby(["group", "config0", "config1"])[["n0", "n1", "t0", "t1"]].sum().reset_index()
    for group, c0, c1, n0, n1, t0, t1 in found.to_numpy(dtype=np.int64).tolist():
        yield Pair(group, c0, c1, n0, n1, t0, t1, POSITION)


def _by_size(group: int, rows: list[_Sized]) -> Iterator[Pair]:
    for config, n0, t0, n1, t1 in rows:
        if n0 and n1:
            yield Pair(group, config, config, n0, n1, t0, t1, SIZE)
    gone = sorted((-t0, c, n0) for c, n0, t0, n1, _ in rows if not n1)
    new = sorted((-t1, c, n1) for c, n0, _, n1, t1 in rows if not n0)
    for (t0, c0, n0), (t1, c1, n1) in zip_longest(gone, new, fillvalue=(0, NONE, 0)):
        yield Pair(group, c0, c1, n0, n1, -t0, -t1, SIZE)
