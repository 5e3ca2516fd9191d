"""Is one rank late again and again, at the same place, for a reason of its own? Only that is blamed.

Ranks always arrive a little apart, and on a busy host by a lot: a wait alone is nobody's fault. A late arrival is
blamed where

1. the same rank is last at the same place of the step in more than half of the steps (in both of two), by
2. more than the clock fit leaves unexplained (95th percentile) and more than 1 us;
3. its own time since the last collective exceeds the others' average by more than 5 standard deviations of what it
   varies from step to step at one place (robust: from differences of consecutive steps), and
4. by more than 5 standard deviations from what it usually exceeds it by at other places (robust: median and median
   absolute deviation; asked where a step has 8 places or more), and
5. that excess is at least half of how late it is (medians over the steps).

Points 3 to 5 are asked of the GPU's work first: then kernels took longer and are named. Otherwise of its idle time:
then the rank's host launched late. Hosts stall at random, long and often, so idle time must also recur beyond chance:
what it has in enough steps at once must exceed what any other place has when each step's places are shuffled (in 99 %
of shuffles). And a host that is slower throughout is so most where most is launched, so it must be twice what 90 % of
the other places have. Before the first collective of a step, idle time is how far apart the hosts launched the step: no
place of the model, and not blamed. With one step point 3 cannot be asked, idle time is not blamed, and what is says so.

A rank may also have more work that nobody waited for, because the other's host was later still. That is told apart
(``hidden``): it shows as soon as the hosts are out of the way, in a CUDA graph. It must recur beyond chance as well.
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
_SHUFFLES, _SURE = 300, 99  # how often places are shuffled; the percentile that chance must stay below
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
        hidden: nobody waited for it, or not mainly: not blamed, but more work than the others have.
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
    hidden: bool = False


def find_stragglers(
    aligned: Aligned,
    found: Segments,
    lateness: Ints,
    wait: Ints,
    clock_noise_ns: int,
    usable: NDArray[np.bool_],
) -> tuple[tuple[Straggler, ...], tuple[Straggler, ...]]:
    """Judge late arrivals by the rule of this module.

    Args:
        aligned: the group's collectives.
        found: the segments before them.
        lateness: int64 [ranks, collectives], ns: each rank's arrival minus the last of the others', on one clock.
        wait: int64 [ranks, collectives], ns.
        clock_noise_ns: 95th percentile of what the clock fits leave unexplained.
        usable: bool [collectives], those whose segment has a beginning and that all ranks leave together.

    Returns:
        (what is blamed, the most costly first; hidden work, the most first).
    """
    at = _by_place(aligned, usable)
    if not at.size:
        return (), ()
    judge = _Judge(aligned, found, lateness, wait, max(clock_noise_ns, LEAST_NS), at)
    said = [judge.verdict(r, p) for r in range(len(aligned.ranks)) for p in range(len(at))]
    blamed = sorted((s for s in said if s and not s.hidden), key=lambda s: (-s.late_ns, s.place, s.rank))
    hidden = sorted((s for s in said if s and s.hidden), key=lambda s: (-s.extra_ns, s.place, s.rank))
    return tuple(blamed), tuple(hidden)


class _Judge:
    """Everything that a verdict on one rank at one place needs, prepared once.

    Args:
        aligned, found, lateness, wait: as for :func:`find_stragglers`.
        floor: lateness up to this is none, ns.
        at: int64 [places, steps], positions of the collectives; -1 where there is none to judge.
    """

    def __init__(
        self, aligned: Aligned, found: Segments, lateness: Ints, wait: Ints, floor: int, at: Ints
    ) -> None:
        self.aligned, self.found, self.wait, self.at = aligned, found, wait, at
        self.known = at >= 0
        number = self.known.sum(axis=1)
        self.needed = np.where(number <= 2, number, number // 2 + 1)
        # Where a capture has several steps, a place that is known in one of them tells nothing.
        self.asked = number >= min(2, at.shape[1])
        self.late = np.where(self.known, lateness[:, at], 0)  # [ranks, places, steps]
        self.last = ((self.late > floor) & self.known).sum(axis=2)  # [ranks, places]
        self.over = {cause: _over(x, at) for cause, x in ((WORK, found.work), (HOST, found.idle))}

    def verdict(self, r: int, p: int) -> Straggler | None:
        """What is to be said of a rank (its position) at a place; ``None`` where nothing is."""
        if not self.asked[p]:
            return None
        again = self.last[r, p] >= self.needed[p]
        behind = float(np.median(self.late[r, p][self.known[p]]))
        extra = self._extra(WORK, r, p)
        if extra is not None:
            if again and 2 * extra >= behind:
                return self._straggler(WORK, r, p, hidden=False)
            if self._recurs(WORK, r, p):
                return self._straggler(WORK, r, p, hidden=True)
        extra = self._extra(HOST, r, p)
        if extra is not None and extra < 2 * self._elsewhere(r, p):
            return None
        first = p == 0 and self.at.shape[0] > 1  # how far apart the hosts launched the step
        if extra is not None and again and not first and 2 * extra >= behind and self._recurs(HOST, r, p):
            return self._straggler(HOST, r, p, hidden=False)
        return None

    def _extra(self, cause: str, r: int, p: int) -> float | None:
        """What the rank usually has more of there; ``None`` up to the limit of points 3 and 4."""
        usual = float(np.median(self.over[cause][0][r, p][self.known[p]]))
        return usual if usual > self._limit(cause, r) else None

    def _elsewhere(self, r: int, p: int) -> float:
        """Idle time that 90 % of the other places do not exceed, as :meth:`_extra` has it."""
        over = self.over[HOST][0][r]
        others = [float(np.median(over[q][k])) for q, k in enumerate(self.known) if q != p and k.any()]
        return float(np.percentile(others, 90)) if others else 0.0

    def _limit(self, cause: str, r: int) -> float:
        return max(float(self.over[cause][1][r]), LEAST_NS)

    def _recurs(self, cause: str, r: int, p: int) -> bool:
        """Whether a place has, in enough steps at once, more than others get when each step's places are shuffled."""
        if self.at.shape[1] < 2:
            return False
        values = np.where(self.known, self.over[cause][0][r], -np.inf)
        own = float(_at_once(values[p : p + 1], self.needed[p : p + 1])[0])
        others, needed = np.delete(values, p, axis=0), np.delete(self.needed, p)
        random = np.random.default_rng(0)
        most = [
            float(_at_once(random.permuted(others, axis=0), needed).max(initial=-np.inf))
            for _ in range(_SHUFFLES)
        ]
        return own > float(np.percentile(most, _SURE, method="higher"))

    def _straggler(self, cause: str, r: int, p: int, *, hidden: bool) -> Straggler:
        cells = self.known[p]
        ks = self.at[p][cells]
        waited = np.delete(self.wait, r, axis=0)[:, ks].sum(axis=0)
        return Straggler(
            rank=self.aligned.ranks[r],
            place=p,
            steps=int(self.last[r, p]),
            of_steps=len(ks),
            late_ns=max(round(float(np.median(self.late[r, p][cells]))), 0),
            waited_ns=round(float(np.median(waited))),
            cause=cause,
            extra_ns=round(float(np.median(self.over[cause][0][r, p][cells]))),
            threshold_ns=round(self._limit(cause, r)),
            extras=_extras(self.found, r, ks) if cause == WORK else (),
            hidden=hidden,
        )


def _at_once(values: Floats, needed: Ints) -> Floats:
    """What each place has in as many steps as are needed: the needed-th largest over the steps."""
    ordered = np.sort(values, axis=1)[:, ::-1]
    return np.asarray(ordered[np.arange(len(values)), np.clip(needed, 1, values.shape[1]) - 1], np.float64)


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
