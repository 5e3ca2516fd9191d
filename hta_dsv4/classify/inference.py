"""Origins by inference, where nothing around the launch and no companion tells: marked, and never certain.

Two things are left to go by. A kernel whose launches per step are those of one part of the architecture alone tells
what it is for (an FP32 product in each of the 21 c4 layers); and unknown kernels that stand between two of one part,
near each other on one stream, are taken for that part's. What neither reaches stays unknown.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hta_dsv4.classify.architecture import Model, Reading, inferences, match
from hta_dsv4.classify.origin_columns import CONFIDENCE, MULTIPLICITY, NEIGHBOUR, UNKNOWN, Origins
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.sequences import Ints, encode
from hta_dsv4.trace.steps import Steps

_BETWEEN = 48  # kernels, at most, between two of one origin that are taken for that origin too
# Parts that come back between all others: standing between two of them says nothing.
_NOT_AROUND = ("comm", "norm", "metadata", "kv_cache", "compressor", UNKNOWN)


def infer(table: pd.DataFrame, steps: Steps, reading: Reading | None) -> pd.DataFrame:
    """Infer origins of kernels that nothing else tells, and mark them as inferred.

    Args:
        table: activity table with bucket and origin columns. Not modified.
        steps: its steps.
        reading: what the launch counts say about the architecture; ``None``: multiplicities are not used.

    Returns:
        The table, with fewer rows of unknown origin: by ``multiplicity`` (a bucket that only one part of the model
        runs so often per step) and by ``neighbour`` (between two kernels of one part, or beside one of the indexer
        and in c4 layers alone).
    """
    out = table.copy(deep=False)
    kernels = np.flatnonzero((table[col.KIND] == col.KERNEL).to_numpy())
    if not len(kernels):
        return out
    origins = Origins(table)
    counts = _counts_of(table, steps, reading, kernels)
    if counts is not None and col.BUCKET in table:
        bucket = table[col.BUCKET].astype("category")
        codes = bucket.cat.codes.to_numpy()[kernels]
        for (wanted, count), told in inferences().items():
            if wanted in bucket.cat.categories:
                mine = (codes == bucket.cat.categories.get_loc(wanted)) & (counts == count)
                rows = kernels[mine & (origins.origin[kernels] == origins.unknown)]
                origins.set(rows, told, MULTIPLICITY, CONFIDENCE[MULTIPLICITY])
    silent = np.isin(np.arange(len(origins.names)), [origins.code(n) for n in _NOT_AROUND])
    indexer = origins.code("indexer")
    in_c4 = np.zeros(len(table), dtype=bool)
    if counts is not None:
        in_c4[kernels] = counts == "c4 layers"
    for stream in _streams(table, kernels):
        found = _between(origins.origin[stream], origins.unknown, silent)
        rows = stream[found >= 0]
        origins.set(rows, origins.names[found[found >= 0]], NEIGHBOUR, CONFIDENCE[NEIGHBOUR])
        beside = _beside(origins.origin[stream], origins.unknown, indexer, in_c4[stream])
        origins.set(stream[beside], "indexer", NEIGHBOUR, CONFIDENCE[NEIGHBOUR])
    return origins.write(out)


def _counts_of(
    table: pd.DataFrame, steps: Steps, reading: Reading | None, kernels: Ints
) -> NDArray[Any] | None:
    """Name of the architecture's count that each kernel's launches per step are, or a multiple of; "" for none."""
    counted = steps.counted.index.to_numpy()
    if reading is None or not len(counted):
        return None
    part = table.iloc[kernels]
    grids = [part[c].to_numpy(dtype=np.int64, na_value=-1) for c in (col.GRID_X, col.GRID_Y, col.GRID_Z)]
    rank = part[col.RANK].to_numpy().astype(np.int64)
    symbol = encode([rank, part[col.NAME].cat.codes.to_numpy().astype(np.int64), *grids])
    inside = np.isin(steps.of_activity.to_numpy(dtype=np.int64, na_value=-1)[kernels], counted)
    total = np.bincount(symbol[inside], minlength=int(symbol.max()) + 1)
    ranks = max(len(np.unique(rank)), 1)
    per_rank = max(len(counted) // ranks, 1)
    names = [_count_name(reading.model, int(t) // per_rank) if t % per_rank == 0 else "" for t in total]
    return np.array(names, dtype=object)[symbol]


def _count_name(model: Model, per_step: int) -> str:
    count, _, extra = match(model, per_step)
    return count.name if count is not None and not extra else ""


def _streams(table: pd.DataFrame, kernels: Ints) -> list[Ints]:
    """Kernels of each (rank, device, stream), in order of time."""
    part = table.iloc[kernels]
    place = encode(
        [
            part[col.RANK].to_numpy().astype(np.int64),
            part[col.DEVICE].to_numpy(dtype=np.int64, na_value=-1),
            part[col.STREAM].to_numpy(dtype=np.int64, na_value=-1),
        ]
    )
    return [kernels[place == p] for p in range(int(place.max()) + 1)]


def _between(origin: Ints, unknown: int, silent: NDArray[np.bool_]) -> Ints:
    """For unknown kernels between two of one origin, near each other: that origin's code; -1 for all others."""
    known = origin != unknown
    index = np.arange(len(origin))
    left = np.maximum.accumulate(np.where(known, index, -1))
    right = np.minimum.accumulate(np.where(known, index, len(origin))[::-1])[::-1]
    inside = np.flatnonzero(~known & (left >= 0) & (right < len(origin)))
    around = np.full(len(origin), -1, dtype=np.int64)
    a, b = origin[left[inside]], origin[right[inside]]
    good = (a == b) & ((right - left)[inside] <= _BETWEEN) & ~silent[a]
    around[inside[good]] = a[good]
    return around


def _beside(origin: Ints, unknown: int, indexer: int, in_c4: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Unknown kernels of c4 layers alone, in an unbroken run of such next to one of the indexer."""
    eligible = (origin == unknown) & in_c4
    edges = np.diff(np.r_[False, eligible, False].astype(np.int8))
    out = np.zeros(len(origin), dtype=bool)
    for begin, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        before = begin > 0 and origin[begin - 1] == indexer
        after = end < len(origin) and origin[end] == indexer
        out[begin:end] = before or after
    return out
