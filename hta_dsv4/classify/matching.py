"""Two kernel sequences of one program, kernel to kernel: a graph replay and the eager run it was captured from.

They are almost the same sequence: a longest common subsequence by name and grid pairs what nobody changed, and between
two such pairs names alone decide.
"""

from __future__ import annotations

import numpy as np

from hta_dsv4.trace.sequences import Ints
from hta_dsv4.trace.subsequence import common_subsequence

EXACT, BY_NAME, UNMATCHED = 2, 1, 0

MAX_CELLS = 2_000_000_000  # kernels of one side times the other's: bits of working memory, 250 MB
_BLOCK = 8_192  # kernels at a time of what is longer


def match_sequences(names: tuple[Ints, Ints], exact: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """For each kernel of the first sequence, its counterpart in the second.

    Args:
        names: int64 codes of the kernels' names in both sequences, comparable with each other.
        exact: the same for name and grid together.

    Returns:
        int64 [n]: index in the second sequence, -1 where none; and how well each fits: ``EXACT`` (name and grid),
        ``BY_NAME``, ``UNMATCHED``. Counterparts are in ascending order.
    """
    found = _counterparts(*exact)
    for begin, end in _holes(found):
        low = int(found[begin - 1]) + 1 if begin else 0
        high = int(found[end]) if end < len(found) else len(exact[1])
        if high > low:
            inner = _counterparts(names[0][begin:end], names[1][low:high])
            found[begin:end] = np.where(inner >= 0, inner + low, -1)
    fit = np.full(len(found), UNMATCHED, dtype=np.int64)
    hit = found >= 0
    same = exact[1][found[hit]] == exact[0][hit]
    fit[hit] = np.where(same, EXACT, BY_NAME)
    return found, fit


def _holes(found: Ints) -> list[tuple[int, int]]:
    """Ranges of kernels without a counterpart."""
    missing = np.r_[False, found < 0, False].astype(np.int8)
    edges = np.diff(missing)
    return list(zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True))


def _counterparts(a: Ints, b: Ints) -> Ints:
    """Counterparts of ``a`` in ``b``; what is too long for one search goes block by block."""
    out = np.full(len(a), -1, dtype=np.int64)
    whole = len(a) * len(b) <= MAX_CELLS
    block, reach = (len(a), len(b)) if whole else (_BLOCK, 3 * _BLOCK)
    done = 0
    for begin in range(0, len(a), max(block, 1)):
        last = begin + 2 * block >= len(a)
        # The end of a search that is not the sequences' own pairs whatever is alike; its first half is kept.
        end = begin + (2 * block if last else block)
        pairs = common_subsequence(a[begin : begin + 2 * block].tolist(), b[done : done + reach].tolist())
        kept = [(begin + i, done + j) for i, j in pairs if begin + i < end]
        for i, j in kept:
            out[i] = j
        done = kept[-1][1] + 1 if kept else done
        if last:
            break
    return out
