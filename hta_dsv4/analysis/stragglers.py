"""Is one rank late again and again, at the same place, for a reason of its own? Only that is blamed.

Ranks always arrive a little apart, and on a busy host by a lot: a wait alone is nobody's fault. A late arrival is
blamed where

1. the same rank is last at the same place of the step in more than half of the steps (in both of two), by
2. more than the clock fit leaves unexplained (95th percentile) and more than 1 us, taken at the median step;
3. its own time since the last collective exceeds the others' average by more than 5 standard deviations of what it
   varies from step to step at one place (robust: from differences of consecutive steps), and
4. by more than 5 standard deviations from what it usually exceeds it by at other places (robust: median and median
   absolute deviation; asked where a step has 8 places or more).

Points 3 and 4 are asked of the GPU's work first: then kernels took longer and are named. Otherwise of its idle time:
then the rank's host launched late. What passes neither is counted as wait and not blamed. With one step point 3 cannot
be asked, and what is blamed says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hta_dsv4.analysis.collectives import Aligned
from hta_dsv4.analysis.rank_parts import Ints
from hta_dsv4.analysis.segments import IDLE, KEYS, LAUNCHES, NS, K, Segments, excess

Floats = NDArray[np.float64]

WORK, HOST = "work", "host"
LEAST_NS = 1_000
SIGMAS = 5.0
_MAD = 1.4826  # median absolute deviation -> standard deviation, of a normal distribution
_PLACES = 8
_NAMED = 3  # kernels that a straggler names


@dataclass(frozen=True, slots=True)
class Extra:
    """A kernel of which the late rank had more, ns per step over the others' average (median over the steps)."""

    bucket: str
    origin: str
    kernel: str
    ns: int
    launches: float


@dataclass(frozen=True, slots=True)
class Straggler:
    """A late arrival that is blamed.

    Attributes:
        rank: who is late.
        place: at which collective of the step, from 0.
        steps: in how many steps it was last there by more than the noise, of
        of_steps: so many.
        late_ns: by how much later than the last of the others it arrived, median over the steps: what the step would
            be shorter by, were it as fast as they.
        waited_ns: the others' waits for it, added over the ranks, median over the steps.
        cause: ``work`` (its GPU had more to do) or ``host`` (its GPU had nothing to do: the host launched late).
        extra_ns: its work (or idle time) since the last collective minus the others' average, median over the steps.
        threshold_ns: what ``extra_ns`` had to exceed.
        extras: the kernels it had more of, most first; empty where the host is late.
    """

    rank: int
    place: int
    steps: int
    of_steps: int
    late_ns: int
    waited_ns: int
    cause: str
    extra_ns: int
    threshold_ns: int
    extras: tuple[Extra, ...] = ()


def find_stragglers(
    aligned: Aligned,
    found: Segments,
    lateness: Ints,
    wait: Ints,
    clock_noise_ns: int,
    usable: NDArray[np.bool_],
) -> tuple[Straggler, ...]:
    """Judge late arrivals by the rule of this module.

    Args:
        aligned: the group's collectives.
        found: the segments before them.
        lateness: int64 [ranks, collectives], ns: each rank's arrival minus the last of the others', on one clock.
        wait: int64 [ranks, collectives], ns.
        clock_noise_ns: 95th percentile of what the clock fits leave unexplained.
        usable: bool [collectives], those whose segment has a beginning and that all ranks leave together.

    Returns:
        What is blamed, the most costly first.
    """
    at = _by_place(aligned, usable)
    if not at.size:
        return ()
    known = at >= 0
    late = np.where(known, lateness[:, at], 0)  # [ranks, places, steps]
    floor = max(clock_noise_ns, LEAST_NS)
    last = (late > floor) & known
    needed = np.where(known.sum(axis=1) <= 2, known.sum(axis=1), known.sum(axis=1) // 2 + 1)
    again = (last.sum(axis=2) >= np.maximum(needed, 1)) & (known.sum(axis=1) > 0)  # [ranks, places]
    if not again.any():
        return ()
    judged = [(cause, _over(x, at)) for cause, x in ((WORK, found.work), (HOST, found.idle))]
    out = []
    for r, p in np.argwhere(again).tolist():
        ks = at[p][at[p] >= 0]
        for cause, (over, limits) in judged:
            usual = float(np.median(over[r, p][known[p]]))
            if usual <= max(limits[r], LEAST_NS):
                continue
            out.append(
                Straggler(
                    aligned.ranks[r], p, int(last[r, p].sum()), len(ks), round(float(np.median(late[r, p][known[p]]))),
                    round(float(np.median(np.delete(wait, r, axis=0)[:, ks].sum(axis=0)))), cause, round(usual),
                    round(max(limits[r], LEAST_NS)), _extras(found, r, ks) if cause == WORK else (),
                )
            )  # fmt: skip
            break
    return tuple(sorted(out, key=lambda s: (-s.late_ns, s.place, s.rank)))


def _by_place(aligned: Aligned, usable: NDArray[np.bool_]) -> Ints:
    """Positions of the collectives as [places, steps]; -1 where a step lacks a usable one there."""
    inside = aligned.place >= 0
    if not inside.any():
        return np.zeros((0, 0), np.int64)
    number, column = np.unique(aligned.step[inside], return_inverse=True)
    at = np.full((aligned.places, len(number)), -1, np.int64)
    k = np.flatnonzero(inside)
    at[aligned.place[inside], column] = np.where(usable[k], k, -1)
    return at


def _over(values: Ints, at: Ints) -> tuple[Floats, Floats]:
    """By how much each rank exceeds the others' average, [ranks, places, steps], and its limit by points 3 and 4."""
    ranks = len(values)
    over = (values - (values.sum(axis=0) - values) / (ranks - 1))[:, at]
    known = at >= 0
    limits = np.zeros(ranks)
    pairs = known[:, 1:] & known[:, :-1]
    for r in range(ranks):
        jumps = np.abs(np.diff(over[r], axis=1))[pairs]
        limits[r] = SIGMAS * _MAD * float(np.median(jumps)) / 2**0.5 if jumps.size else 0.0
        usual = np.array([np.median(row[k]) for row, k in zip(over[r], known, strict=True) if k.any()])
        if len(usual) >= _PLACES:
            middle = float(np.median(usual))
            limits[r] = max(limits[r], middle + SIGMAS * _MAD * float(np.median(np.abs(usual - middle))))
    return over, limits


def _extras(found: Segments, rank: int, ks: Ints) -> tuple[Extra, ...]:
    """The kernels of which a rank had more before these collectives than the others, most first."""
    n = found.length.shape[1]
    which = np.zeros(n, bool)
    which[ks] = True
    table = excess(found, np.full(n, rank, np.int64), which)
    table = table[table[KEYS[0]] != IDLE]
    rows = []
    for key, group in table.groupby(list(KEYS), sort=False):
        each = np.zeros(len(ks))
        each[np.searchsorted(ks, group[K].to_numpy())] = group[NS].to_numpy()
        bucket, origin, kernel = (str(x) for x in key)
        rows.append(
            Extra(
                bucket, origin, kernel, round(float(np.median(each))), float(group[LAUNCHES].sum()) / len(ks)
            )
        )
    rows = [x for x in rows if x.ns > 0]
    total = sum(x.ns for x in rows)
    rows.sort(key=lambda x: (-x.ns, x.kernel))
    return tuple(x for x in rows[:_NAMED] if 20 * x.ns >= total)
