"""Kernel sequences as integers, and how much of two stretches of one is the same work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ALIKE = 0.9
"""Two stretches are the same work when this share of their kernels, with their neighbours, is common."""

RUNS = (1, 2, 4, 8, 16)
"""Lengths of the runs of kernels that are told apart."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def encode(columns: Sequence[NDArray[np.int64]]) -> Ints:
    """Rows of several integer columns as one integer each: equal rows, equal codes, from 0 without holes.

    Args:
        columns: int64 arrays of one length.

    Returns:
        int64 codes.
    """
    code = np.unique(columns[0], return_inverse=True)[1].astype(np.int64)
    for column in columns[1:]:
        other = np.unique(column, return_inverse=True)[1].astype(np.int64)
        code = np.unique(code * (int(other.max(initial=0)) + 1) + other, return_inverse=True)[1].astype(
            np.int64
        )
    return code


class Kernels:
    """A kernel sequence and the runs of 2, 4, 8 and 16 kernels in it, each as one integer.

    Attributes:
        symbols: int64 [n], codes from 0 without holes.
        runs: run length -> int64 [n - run + 1], the code of the run that begins at each kernel.
    """

    def __init__(self, symbols: Ints) -> None:
        """Encode the runs, each as a pair of runs of half its length.

        Args:
            symbols: int64 [n], equal where kernels are.
        """
        self.symbols = encode([symbols]) if len(symbols) else symbols
        self.runs = {1: self.symbols}
        code = self.symbols
        for run in RUNS[1:]:
            if len(symbols) < run:
                break
            code = encode([code[: len(code) - run // 2], code[run // 2 :]])
            self.runs[run] = code


def similar(kernels: Kernels, starts: Ints, ends: Ints) -> Floats:
    """How much of each stretch is the work of the typical one, judged by kernels and their neighbours.

    Args:
        kernels: the sequence.
        starts: int64 [m], index of the first kernel of each stretch.
        ends: int64 [m], index after the last; stretches do not overlap.

    Returns:
        float64 [m]: pairs in common with the typical stretch over the pairs of the longer of the two; less where longer
        runs of kernels say that the order is another.
    """
    sizes = np.maximum(ends - starts, 0)
    if not len(starts) or not sizes.any():
        return np.zeros(len(starts))
    inside = np.repeat(np.arange(len(starts)), sizes)
    index = (
        np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(starts, sizes)
    )
    left = np.repeat(ends, sizes) - index  # kernels to the end of the stretch, this one included
    shares, typical = [], -1
    for run in (2, 8):
        code = kernels.runs.get(run, kernels.symbols)
        kinds = int(code.max()) + 1
        # what would reach past the end of its stretch is the kernel alone
        code = np.where(left >= run, code[np.minimum(index, len(code) - 1)], kinds + kernels.symbols[index])
        if typical < 0:
            typical = _typical(sizes, inside, code)
        shares.append(_in_common(code, int(code.max()) + 1, inside, sizes, typical))
    # A kernel more or less breaks up to eight runs of eight; few kernels in any order share no more than that.
    out: Floats = np.minimum(shares[0], 1 - (1 - shares[1]) / 5)
    return out


def _in_common(code: Ints, kinds: int, inside: Ints, sizes: Ints, typical: int) -> Floats:
    """Share of its codes (0 to kinds - 1) that each stretch has in common with the typical one."""
    key, stretches = inside * kinds + code, len(sizes)
    if kinds * stretches <= 4 * len(code) + 1_000_000:
        table = np.bincount(key, minlength=kinds * stretches).reshape(stretches, kinds)
        common = np.minimum(table, table[typical]).sum(axis=1)
    else:
        found, count = np.unique(key, return_counts=True)
        segment, kind = found // kinds, found % kinds
        expected = np.zeros(kinds, dtype=np.int64)
        expected[kind[segment == typical]] = count[segment == typical]
        common = np.bincount(segment, np.minimum(count, expected[kind]), minlength=stretches)
    out: Floats = common / np.maximum(np.maximum(sizes, sizes[typical]), 1)
    return out


def _typical(sizes: Ints, inside: Ints, code: Ints) -> int:
    """The stretch whose content is most frequent; of equals, one of median length nearest the middle."""
    weight = np.random.default_rng(0).integers(1, 1 << 40, size=int(code.max()) + 1)
    content = np.zeros(len(sizes), dtype=np.int64)
    np.add.at(content, inside, weight[code])
    _, which, counts = np.unique(content, return_inverse=True, return_counts=True)
    frequency = counts[which]
    distance = np.abs(sizes - np.median(sizes))
    middle = np.abs(np.arange(len(sizes)) - len(sizes) / 2)
    return int(np.lexsort((middle, distance, -frequency))[0])


def part_of(symbols: Ints, part: tuple[int, int], whole: tuple[int, int], at_start: bool) -> bool:
    """Whether a stretch is the beginning (or the end) of another, give or take a fifth.

    Args:
        symbols: int64 [n].
        part: index of its first kernel and after its last.
        whole: the same of the longer stretch.
        at_start: compare with the beginning of ``whole``, else with its end.
    """
    size = part[1] - part[0]
    same = (whole[0], whole[0] + size) if at_start else (whole[1] - size, whole[1])
    stretches = np.concatenate([symbols[same[0] : same[1]], symbols[part[0] : part[1]]])
    bounds = np.array([0, size, 2 * size])
    return bool(similar(Kernels(stretches), bounds[:-1], bounds[1:]).min() >= 0.8)
