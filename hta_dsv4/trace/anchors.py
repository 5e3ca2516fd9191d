"""Anchors of a kernel sequence: kernels, or short runs of kernels, that come back at one regular distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hta_dsv4.trace.sequences import Ints, Kernels

MIN_LENGTH = 8
"""Kernels; what repeats in fewer is a loop around a kernel or two, not a forward pass."""

_REGULAR = 0.6  # share of an anchor's distances that must agree with their median
_CANDIDATES = 12  # distances looked at closely, those with most anchors first
_VOTERS = 64  # anchors that decide where each period begins


@dataclass(frozen=True, slots=True)
class Distance:
    """Anchors that come back at one distance."""

    length: float
    run: int
    anchors: tuple[Ints, ...]  # positions of each anchor, the most regular anchor first
    count: int  # anchors, also those past _VOTERS

    @property
    def weight(self) -> float:
        """Kernels per period that set it apart; one kernel is part of ``run`` runs."""
        return self.count / self.run


def distances(kernels: Kernels) -> list[Distance]:
    """Distances at which anchors come back regularly, those with most anchors first."""
    found: list[Distance] = []
    for run, code in kernels.runs.items():
        found += _regular(code, run, len(kernels.symbols))
    found.sort(key=lambda d: (-d.weight, d.run, d.length))
    return found[:_CANDIDATES]


def _regular(code: Ints, run: int, n: int) -> list[Distance]:
    """The regular anchors of one run length, grouped by distance."""
    position = np.argsort(code, kind="stable")
    sorted_code = code[position]
    same = sorted_code[1:] == sorted_code[:-1]
    if not same.any():
        return []
    gap = np.diff(position)[same]
    owner = sorted_code[1:][same]
    order = np.lexsort((gap, owner))
    gap, owner = gap[order], owner[order]
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    size = np.diff(np.r_[first, len(owner)])
    # the lower median: with a missed occurrence in a short trace, the higher one would be a double distance
    median = gap[first + (size - 1) // 2]
    slack = np.maximum(2, median // 50)
    near = np.abs(gap - np.repeat(median, size)) <= np.repeat(slack, size)
    regular = np.add.reduceat(near.astype(np.int64), first) / size
    begin = np.searchsorted(sorted_code, owner[first])  # where this anchor's positions stand
    span = position[begin + size] - position[begin] + median
    keep = (regular >= _REGULAR) & (median >= MIN_LENGTH) & (span >= n / 2)
    chosen = np.flatnonzero(keep)
    if not len(chosen):
        return []
    chosen = chosen[np.argsort(median[chosen], kind="stable")]
    cuts = np.flatnonzero(np.diff(median[chosen]) > slack[chosen][:-1]) + 1
    groups = []
    for group in np.split(chosen, cuts):
        best = group[np.lexsort((begin[group], -size[group], -regular[group]))]
        anchors = tuple(position[begin[g] : begin[g] + size[g] + 1] for g in best[:_VOTERS])
        groups.append(Distance(float(np.median(median[group])), run, anchors, len(group)))
    return groups


def vote(distance: Distance) -> Ints:
    """Where periods begin, by what most anchors say; an anchor missing from one period is outvoted."""
    main = distance.anchors[0]
    length = distance.length
    shifted = [main]
    for other in distance.anchors[1:]:
        ahead = np.searchsorted(main, other, side="right") - 1
        offset = float(np.median((other - main[np.maximum(ahead, 0)]) % length))
        # An anchor stands behind the main one or in front of it: whichever way more of its places meet.
        shifted.append(max((_meeting(main, other - round(o)) for o in (offset, offset - length)), key=len))
    votes = np.sort(np.concatenate(shifted))
    groups = np.split(votes, np.flatnonzero(np.diff(votes) > length / 4) + 1)
    need = len(shifted) / 2
    starts = []
    known = set(main.tolist())
    for group in groups:
        if len(group) < need:
            continue
        own = [v for v in group.tolist() if v in known]
        starts.append(own[0] if own else int(np.median(group)))
    return np.array([s for s in starts if s >= 0], dtype=np.int64)


def _meeting(main: Ints, places: Ints) -> Ints:
    """The places that lie next to one of the main anchor's, and those where it may be missing, inside its range."""
    near = np.searchsorted(main, places - 2)
    met = (near < len(main)) & (np.abs(main[np.minimum(near, len(main) - 1)] - places) <= 2)
    kept: Ints = places[met | ((places > main[0]) & (places < main[-1]))]
    return kept
