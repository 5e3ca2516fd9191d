"""Two kernel sequences of one program, kernel to kernel: a graph replay and the eager run it was captured from.

They are almost the same sequence, so the search walks along both and, where they part, looks for the nearest place at
which a run of kernels is the same again. Linear where they agree, whatever repeats in them.
"""

from __future__ import annotations

import numpy as np

from hta_dsv4.trace.sequences import Ints, encode

EXACT, BY_NAME, UNMATCHED = 2, 1, 0

_WINDOW = 600  # kernels to look ahead for the next common run
_RUNS = (6, 3, 1)  # kernels that must agree to go on, the longest that is found first


def match_sequences(names: tuple[Ints, Ints], exact: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """For each kernel of the first sequence, its counterpart in the second.

    Args:
        names: int64 codes of the kernels' names in both sequences, comparable with each other.
        exact: the same for name and grid together.

    Returns:
        int64 [n]: index in the second sequence, -1 where none; and how well each fits: ``EXACT`` (name and grid),
        ``BY_NAME``, ``UNMATCHED``. Counterparts are in ascending order.
    """
    found = _walk(*exact)
    # Between two exact counterparts, names alone decide.
    for begin, end in _holes(found):
        low = int(found[begin - 1]) + 1 if begin else 0
        high = int(found[end]) if end < len(found) else len(exact[1])
        if high > low:
            inner = _walk(names[0][begin:end], names[1][low:high])
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


def _walk(a: Ints, b: Ints) -> Ints:
    """Counterparts of ``a`` in ``b``, walking along both."""
    out = np.full(len(a), -1, dtype=np.int64)
    if not len(a) or not len(b):
        return out
    runs = _common_runs(a, b)
    i = j = 0
    while i < len(a) and j < len(b):
        length = min(len(a) - i, len(b) - j)
        same = a[i : i + length] == b[j : j + length]
        agree = length if same.all() else int(np.argmin(same))
        out[i : i + agree] = np.arange(j, j + agree)
        i, j = i + agree, j + agree
        ahead = _next_common(runs, i, j)
        if ahead is None:
            break
        i, j = ahead
    return out


def _common_runs(a: Ints, b: Ints) -> list[tuple[Ints, Ints]]:
    """Codes of the runs of each length in both sequences, comparable; sequences too short have none."""
    out = []
    both = np.concatenate([a, b])
    for run in _RUNS:
        if min(len(a), len(b)) < run:
            continue
        # windows of a and b apart from each other: those across the seam are cut out
        code = encode([both[k : len(both) - run + 1 + k] for k in range(run)])
        out.append((code[: len(a) - run + 1], code[len(a) :]))
    return out


def _next_common(runs: list[tuple[Ints, Ints]], i: int, j: int) -> tuple[int, int] | None:
    """The nearest place after (i, j) from which the sequences agree again, by skipping as few kernels as possible."""
    for a, b in runs:
        for skipped in range(1, _WINDOW):
            lo, hi = max(0, skipped - (len(b) - 1 - j)), min(skipped, len(a) - 1 - i)
            if lo > hi:
                break
            ahead = a[i + lo : i + hi + 1] == b[j + skipped - np.arange(lo, hi + 1)]
            if ahead.any():
                di = lo + int(np.argmax(ahead))
                return i + di, j + skipped - di
    return None
