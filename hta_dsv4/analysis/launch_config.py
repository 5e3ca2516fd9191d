"""How each launch was configured: grid, block, registers, shared memory, bytes of a copy; and what an SM holds of it.

Configurations of two variants are numbered together, so that equal ones have equal numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.analysis import fill as f
from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.fill import launch_fill
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import TraceMeta
from hta_dsv4.trace.sequences import encode

Dim = tuple[int, int, int]
Ints = npt.NDArray[np.int64]

GRID, BLOCK, REGISTERS, SHARED, BYTES = "grid", "block", "registers", "shared_mem", "bytes"
FIELDS = (GRID, BLOCK, REGISTERS, SHARED, BYTES)

_COLUMNS = (
    col.GRID_X, col.GRID_Y, col.GRID_Z, col.BLOCK_X, col.BLOCK_Y, col.BLOCK_Z, col.REGISTERS, col.SHARED_MEM, col.BYTES,
)  # fmt: skip
_MISSING = -1


@dataclass(frozen=True, slots=True)
class Config:
    """One way of launching; what the trace does not say is ``None``.

    Attributes:
        grid, block: CTAs of the grid and threads of a CTA, x, y, z.
        registers: per thread.
        shared_mem: bytes per CTA, static and dynamic.
        bytes: of a copy or a set.
    """

    grid: Dim | None = None
    block: Dim | None = None
    registers: int | None = None
    shared_mem: int | None = None
    bytes: int | None = None

    def changed(self, other: Config) -> tuple[str, ...]:
        """Names of the fields, out of :data:`FIELDS`, that both know and that differ."""
        pairs = ((n, getattr(self, n), getattr(other, n)) for n in FIELDS)
        return tuple(n for n, a, b in pairs if a is not None and b is not None and a != b)


@dataclass(frozen=True, slots=True)
class Room:
    """How a configuration fills the GPU (:mod:`hta_dsv4.analysis.fill`); ``None`` where the trace cannot tell.

    Attributes:
        ctas: of one launch.
        sms: of the device.
        resident: CTAs that one SM holds at once, an upper bound.
        limited_by: what binds that, or ``""``.
        occupancy: resident warps over warp slots of an SM, 0 to 1.
        waves: CTAs over what the whole GPU holds.
    """

    ctas: int | None = None
    sms: int | None = None
    resident: int | None = None
    limited_by: str = ""
    occupancy: float | None = None
    waves: float | None = None


@dataclass(frozen=True)
class Configured:
    """The configurations of two variants.

    Attributes:
        base, other: int64 [activities of the side], number of each activity's configuration.
        configs: by number.
        base_room, other_room: number -> how it fills that side's GPU; of kernels.
    """

    base: Ints
    other: Ints
    configs: tuple[Config, ...]
    base_room: dict[int, Room]
    other_room: dict[int, Room]


def configured(
    base: Counted, other: Counted, base_meta: TraceMeta | None = None, other_meta: TraceMeta | None = None
) -> Configured:
    """Number the launch configurations of two variants.

    Args:
        base: counted steps of the one.
        other: counted steps of the other.
        base_meta: metadata of its trace, for what an SM holds; without it that is unknown.
        other_meta: the same of the other.

    Returns:
        The configurations.
    """
    left, right = _matrix(base.activities), _matrix(other.activities)
    both = np.concatenate([left, right])
    if not len(both):
        return Configured(both[:, 0], both[:, 0], (), {}, {})
    codes = encode(list(both.T))
    numbers, first = np.unique(codes, return_index=True)
    configs = tuple(_config(both[i].tolist()) for i in first[np.argsort(numbers)])
    mine, theirs = codes[: len(left)], codes[len(left) :]
    return Configured(
        mine, theirs, configs, _rooms(base.activities, mine, base_meta), _rooms(other.activities, theirs, other_meta)
    )  # fmt: skip


def _matrix(activities: pd.DataFrame) -> Ints:
    """int64 [n, 9]; -1 where missing, also a grid or block of less than 1, which nothing is launched with."""
    absent = np.full(len(activities), _MISSING, dtype=np.int64)
    columns = [
        activities[c].to_numpy(dtype=np.int64, na_value=_MISSING) if c in activities else absent
        for c in _COLUMNS
    ]
    out = np.stack(columns, axis=1) if len(activities) else np.zeros((0, len(_COLUMNS)), dtype=np.int64)
    for dims in (slice(0, 3), slice(3, 6)):
        out[(out[:, dims] < 1).any(axis=1), dims] = _MISSING
    out[out[:, 6] == 0, 6] = (
        _MISSING  # a kernel uses registers: 0 is how some producers write that they do not know
    )
    return out


def _config(row: list[int]) -> Config:
    grid, block = (None if r[0] == _MISSING else (r[0], r[1], r[2]) for r in (row[0:3], row[3:6]))
    registers, shared, size = (None if v == _MISSING else v for v in row[6:])
    return Config(grid, block, registers, shared, size)


def _rooms(activities: pd.DataFrame, codes: Ints, meta: TraceMeta | None) -> dict[int, Room]:
    if meta is None or not len(codes):
        return {}
    numbers, first = np.unique(codes, return_index=True)
    found = launch_fill(activities.iloc[first].set_axis(numbers), meta)
    whole = ([None if pd.isna(v) else int(v) for v in found[c]] for c in (f.CTAS, f.SMS, f.RESIDENT))
    part = ([None if pd.isna(v) else float(v) for v in found[c]] for c in (f.OCCUPANCY, f.WAVES))
    rows = zip(*whole, [str(v) for v in found[f.LIMITED_BY]], *part, strict=True)
    return {n: Room(*row) for n, row in zip(found.index.tolist(), rows, strict=True)}
