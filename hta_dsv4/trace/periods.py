"""Where a kernel sequence repeats: the decode steps of a trace that has no marker.

A step repeats, and so do the layers inside it. What tells them apart is that a step holds something a layer does
not: embedding, head, sampling. So the search is for *anchors*, kernels (or short runs of kernels) that come back
at one regular distance; each distance that anchors agree on is a candidate period, and a candidate holds only if
the stretches between its anchors are the same work in the same order. Of several that hold, the longest wins,
unless what sets it apart is a trifle (a kernel in every other step does not make two steps one).

Everything is linear or sorts once per anchor length: 500,000 kernels take a few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hta_dsv4.trace.anchors import MIN_LENGTH, Distance, distances, vote
from hta_dsv4.trace.sequences import ALIKE, Floats, Ints, Kernels, part_of, similar

_TRIFLE = 0.01  # of the shorter period: less than this does not make a longer one


@dataclass(frozen=True, slots=True)
class Period:
    """A repeating kernel sequence.

    Attributes:
        length: kernels in one period, the median.
        starts: int64, index of the first kernel of each whole period, ascending.
        ends: int64, index after the last kernel of each.
        similarity: float64 in 0..1, share of its kernels that each period has in common with the typical one; below
            :data:`ALIKE` a period is other work (warm-up, prefill, ...).
        anchors: how many kernels or runs of kernels agree on the distance.
        run: kernels per anchor.
    """

    length: int
    starts: Ints
    ends: Ints
    similarity: Floats
    anchors: int
    run: int

    @property
    def alike(self) -> NDArray[np.bool_]:
        """Which periods are the typical work."""
        return self.similarity >= ALIKE


@dataclass(frozen=True, slots=True)
class _Held:
    """A distance that holds: where its anchors are, and the periods that begin ``back`` kernels before them."""

    anchors: Ints
    back: int
    period: Period
    weight: float


def find_period(symbols: Ints, gaps: Ints | None = None) -> tuple[Period | None, str]:
    """Find the longest meaningful period of a kernel sequence.

    Args:
        symbols: int64 [n], what each kernel is (:func:`encode` of name, grid, graph node), in order of execution.
        gaps: int64 [n], idle ns before each kernel; where one place of the period stands out by its idle time, the
            period is taken to begin there, else where the trace begins.

    Returns:
        The period, or ``None``; and a sentence saying what was found or why nothing was.
    """
    n = len(symbols)
    if n < 2 * MIN_LENGTH:
        return None, f"{n} kernels are too few to show a repetition"
    kernels = Kernels(symbols)
    held = [h for h in (_verified(kernels, d) for d in distances(kernels)) if h is not None]
    chosen = _longest_meaningful(held, n)
    if chosen is None:
        return None, "the kernel sequence does not repeat"
    period = _from_the_idle_time(kernels, chosen, gaps)
    inner = [h for h in held if 3 * h.period.length <= period.length]
    if not inner and _looks_like_layers(kernels.symbols, period):
        return None, (
            f"{period.length} kernels repeat {len(period.starts)} times, but other kernels stand before and after "
            "them, as around the layers of one forward pass"
        )
    whole = int(period.alike.sum())
    return period, f"the kernel sequence repeats {whole} times, {period.length} kernels each"


def _verified(kernels: Kernels, distance: Distance) -> _Held | None:
    """The periods that a distance's anchors mark, if they are alike."""
    anchors = vote(distance)
    if len(anchors) < 2:
        return None
    length = round(distance.length)
    back = _walk_back(kernels.symbols, anchors, length)
    period = _periods(kernels, anchors, back, length, distance)
    return None if period is None else _Held(anchors, back, period, distance.weight)


def _periods(kernels: Kernels, anchors: Ints, back: int, length: int, of: Distance) -> Period | None:
    """The periods that begin ``back`` kernels before each anchor, if most of them are alike."""
    starts = _find_boundary(kernels.symbols, anchors, back)
    starts = starts[starts >= 0]
    if not len(starts):
        return None
    ends = np.r_[starts[1:], min(len(kernels.symbols), int(starts[-1]) + length)]
    # What is much longer holds something else as well, after the period whose start this is.
    ends = np.where(ends - starts > length + max(2, length // 4), starts + length, ends)
    if 0 < len(kernels.symbols) - ends[-1] <= 2:
        ends[-1] = len(
            kernels.symbols
        )  # a kernel or two more in the last period, not the beginning of another
    starts, ends = _extended(kernels, starts, ends, length)
    similarity = similar(kernels, starts, ends)
    alike = similarity >= ALIKE
    if alike.sum() < 2 or alike.mean() < 0.5 or (ends - starts)[alike].sum() < len(kernels.symbols) / 3:
        return None
    typical = int(np.median((ends - starts)[alike]))
    return Period(typical, starts, ends, similarity, of.count, of.run)


def _walk_back(symbols: Ints, anchors: Ints, length: int) -> int:
    """How far before its anchor a period begins, if the trace, or the like work in it, begins with a period."""
    first = int(anchors[0])
    if first == 0:
        return 0
    if first <= length + 2:
        # Where does the trace's beginning come again? A kernel more or less may stand before either anchor.
        for size in (8, 4, 2, 1):
            begin = symbols[: min(size, first)]
            backs = []
            for anchor in anchors[1:65].tolist():
                for back in (first, first - 1, first + 1, first - 2, first + 2):
                    at = anchor - back
                    if 0 < at <= anchor and np.array_equal(symbols[at : at + len(begin)], begin):
                        backs.append(back)
                        break
            if backs:
                return max(backs, key=lambda b: (backs.count(b), -abs(b - first)))
    regular = np.flatnonzero(np.abs(np.diff(anchors) - length) <= 2)
    i = int(regular[0]) if len(regular) else 0
    here, there = int(anchors[i]), int(anchors[i + 1])
    reach = min(here, length - 1)
    same: NDArray[np.bool_] = symbols[here - reach : here][::-1] == symbols[there - reach : there][::-1]
    return int(reach if same.all() else np.argmin(same))


def _longest_meaningful(held: list[_Held], n: int) -> _Held | None:
    """The longest period that holds more than repetitions of the next shorter one and a trifle."""
    held = sorted(held, key=lambda h: (-h.period.length, -h.weight))
    for i, one in enumerate(held):
        period = one.period
        shorter = next((h.period for h in held[i + 1 :] if h.period.length < 0.75 * period.length), None)
        if shorter is None:
            return one
        own = _own_kernels(period, shorter)
        if len(period.starts) < 3:
            # Two kernels that happen to come twice look like two steps; two steps explain the whole trace.
            explained = int((period.ends - period.starts)[period.alike].sum())
            if own < 2 or explained < 0.9 * n:
                continue
        if own >= _TRIFLE * shorter.length:
            return one
    return held[-1] if held else None


def _own_kernels(period: Period, shorter: Period) -> float:
    """Kernels of a period that the shorter period inside it does not account for, in the median period."""
    end = max(int(period.ends[-1]), int(shorter.ends[-1]))
    told = np.zeros(end + 1)  # how much of each kernel is accounted for, as differences
    np.add.at(told, shorter.starts, shorter.similarity)
    np.add.at(told, shorter.ends, -shorter.similarity)
    upto = np.r_[0, np.cumsum(np.cumsum(told))]
    left = period.ends - period.starts - (upto[period.ends] - upto[period.starts])
    return float(np.median(left[period.alike]))


def _from_the_idle_time(kernels: Kernels, held: _Held, gaps: Ints | None) -> Period:
    """The same periods from where the idle time stands out, where there is such a place.

    Not asked where whole periods fill the trace from its first kernel to its last: it began and ended between steps.
    """
    alike = held.period.alike
    if held.period.starts[0] == 0 and held.period.ends[-1] == len(kernels.symbols) and alike[0] and alike[-1]:
        return held.period
    offset = _standing_out(held.period, gaps)
    if not offset:
        return held.period
    length = held.period.length
    of = Distance(length, held.period.run, (held.anchors,), held.period.anchors)
    moved = _periods(kernels, held.anchors, (held.back - offset) % length, length, of)
    if moved is None or moved.alike.sum() + 1 < held.period.alike.sum():
        return held.period
    return moved


def _extended(kernels: Kernels, starts: Ints, ends: Ints, length: int) -> tuple[Ints, Ints]:
    """One more period at either end where there is one: its anchor may lie in the part that the capture cut."""
    n, room = len(kernels.symbols), length - max(2, length // 50)
    if starts[0] >= room:
        more = np.r_[max(int(starts[0]) - length, 0), starts], np.r_[starts[0], ends]
        if similar(kernels, *more)[0] >= ALIKE:
            starts, ends = more
    if n - ends[-1] >= room:
        more = np.r_[starts, ends[-1]], np.r_[ends, min(int(ends[-1]) + length, n)]
        if similar(kernels, *more)[-1] >= ALIKE:
            starts, ends = more
    return starts, ends


def _standing_out(period: Period, gaps: Ints | None) -> int | None:
    """At which kernel of the typical period the idle time before it stands out, or ``None``."""
    if gaps is None:
        return None
    usual = np.flatnonzero(
        period.alike & (period.ends - period.starts == period.length) & (period.starts > 0)
    )
    if len(usual) < 2:
        return None
    rows = gaps[period.starts[usual][:, None] + np.arange(period.length)[None, :]]
    idle = np.median(rows, axis=0)
    largest = int(np.argmax(idle))
    rest = np.delete(idle, largest)
    return largest if idle[largest] >= max(1000, 4 * rest.max(initial=0)) else None


def _find_boundary(symbols: Ints, starts: Ints, back: int) -> Ints:
    """The place ``back`` kernels before each anchor, corrected where a kernel more or less stands between."""
    guess = starts - back
    if not (guess >= 1).any():
        return guess
    known, votes = np.unique(symbols[guess[guess >= 0]], return_counts=True)
    at = known[np.argmax(votes)]
    ahead = symbols[guess[guess >= 1] - 1]
    fitting = ahead[symbols[guess[guess >= 1]] == at]
    known, votes = np.unique(fitting if len(fitting) else ahead, return_counts=True)
    before = known[np.argmax(votes)]
    out = guess.copy()
    for i, place in enumerate(guess.tolist()):
        if place < 0:
            # a first period whose missing kernel stands before the anchor still begins with the trace
            out[i] = 0 if place >= -2 else -1
            continue
        for shift in (0, 1, -1, 2, -2, 3, -3):
            p = place + shift
            if 0 <= p < len(symbols) and symbols[p] == at and (p == 0 or symbols[p - 1] == before):
                out[i] = p
                break
    return out


def _looks_like_layers(symbols: Ints, period: Period) -> bool:
    """Whether what repeats is the inside of one forward pass: around it stands what is no cut period.

    Asked only where nothing repeats inside the period itself, as layers do inside a step.
    """
    alike = np.flatnonzero(period.alike)
    begin, end = int(period.starts[alike[0]]), int(period.ends[alike[-1]])
    if max(begin, len(symbols) - end) > 3 * period.length:
        return False
    whole = (begin, begin + period.length)
    known = symbols[slice(*whole)]
    before, after = symbols[:begin], symbols[end:]
    if len(np.setdiff1d(before, known)) >= 1 and len(np.setdiff1d(after, known)) >= 2:
        return True
    # Other work, a prefill say, is of other kernels; a cut period is the end or the beginning of a whole one.
    odd_before = np.isin(before, known).mean() > 0.5 if len(before) else False
    odd_after = np.isin(after, known).mean() > 0.5 if len(after) else False
    size = period.length
    if odd_before and len(before) <= size:
        odd_before = not part_of(symbols, (0, begin), whole, at_start=False)
    if odd_after and len(after) <= size:
        odd_after = not part_of(symbols, (end, len(symbols)), whole, at_start=True)
    return bool(odd_before or odd_after)
