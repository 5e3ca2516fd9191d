"""The origin columns: which origins there are, how one can be known, and the columns as arrays to change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.labels import where_label
from hta_dsv4.trace.link import is_graph_launch

ORIGINS = (
    "indexer", "attention", "compressor", "kv_cache", "qkv_proj", "o_proj", "mhc_pre", "mhc_post", "mhc_head", "router",
    "moe", "shared_expert", "norm", "embed", "lm_head", "sampling", "comm", "metadata", "unknown",
)  # fmt: skip
"""Every origin, in the order of the tables."""

UNKNOWN = "unknown"
SCOPE, MODULE, FRAME, OP = "scope", "module", "frame", "op"
KERNEL, COMPANION, MULTIPLICITY, NEIGHBOUR, NONE = "kernel", "companion", "multiplicity", "neighbour", "none"
METHODS = (SCOPE, MODULE, FRAME, OP, COMPANION, KERNEL, MULTIPLICITY, NEIGHBOUR, NONE)
"""How an origin is known, strongest first; from ``kernel`` on it is inferred."""

INFERRED = (KERNEL, MULTIPLICITY, NEIGHBOUR)

CONFIDENCE = {
    SCOPE: 1.0,
    MODULE: 0.95,
    FRAME: 0.95,
    OP: 0.8,
    KERNEL: 0.7,
    MULTIPLICITY: 0.6,
    NEIGHBOUR: 0.5,
    NONE: 0.0,
}
"""Confidence by method; of a companion it is that of its own evidence times how well the kernels fit."""


class Origins:
    """The origin columns of a table as arrays, to change some rows at a time.

    Attributes:
        names: object [k], the origins that codes stand for.
        origin: int64 [n], codes of ``names``. unknown: the code of ``unknown``.
        confidence: float32 [n].
    """

    def __init__(self, table: pd.DataFrame) -> None:
        """Take the columns of a table; without them every row is unknown."""
        n = len(table)
        if col.ORIGIN in table:
            column = table[col.ORIGIN].astype("category")
            self.names = np.array([str(c) for c in column.cat.categories], dtype=object)
            self.origin = column.cat.codes.to_numpy().astype(np.int64)
            method = pd.Categorical(table[col.ORIGIN_METHOD].astype("object"), categories=list(METHODS))
            self.method = method.codes.astype(np.int64)
            self.confidence = table[col.ORIGIN_CONFIDENCE].to_numpy(dtype=np.float32, copy=True)
        else:
            self.names = np.array(ORIGINS, dtype=object)
            self.origin = np.full(n, ORIGINS.index(UNKNOWN), dtype=np.int64)
            self.method = np.full(n, METHODS.index(NONE), dtype=np.int64)
            self.confidence = np.zeros(n, dtype=np.float32)
        self.unknown = self.code(UNKNOWN)
        self.origin[self.origin < 0] = self.unknown

    def code(self, origin: str) -> int:
        """The code of an origin, which is added where it is new."""
        at = np.flatnonzero(self.names == origin)
        if len(at):
            return int(at[0])
        self.names = np.append(self.names, origin)
        return len(self.names) - 1

    def set(self, rows: Any, origin: Any, method: str, confidence: Any) -> None:
        """Set some rows.

        Args:
            rows: int64 [m], positions.
            origin: one origin, or object [m].
            method: one of :data:`METHODS`.
            confidence: one number, or float [m].
        """
        if not len(rows):
            return
        if isinstance(origin, str):
            self.origin[rows] = self.code(origin)
        else:
            distinct, back = np.unique(np.asarray(origin, dtype=object).astype(str), return_inverse=True)
            self.origin[rows] = np.array([self.code(str(o)) for o in distinct], dtype=np.int64)[back]
        self.method[rows] = METHODS.index(method)
        self.confidence[rows] = confidence

    def write(self, table: pd.DataFrame) -> pd.DataFrame:
        """Put the columns into a table of as many rows, and return it."""
        known = [*ORIGINS, *sorted({str(n) for n in self.names} - set(ORIGINS))]
        place = np.array([known.index(str(n)) for n in self.names], dtype=np.int64)
        table[col.ORIGIN] = pd.Categorical.from_codes(place[self.origin], categories=pd.Index(known))
        table[col.ORIGIN_METHOD] = pd.Categorical.from_codes(self.method, categories=pd.Index(METHODS))
        table[col.ORIGIN_CONFIDENCE] = self.confidence
        return table


def replayed(activities: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which activities ran in a graph replay, so that nothing around their launch speaks of them."""
    if col.LAUNCH_NAME not in activities:
        return np.zeros(len(activities), dtype=bool)
    return where_label(activities[col.LAUNCH_NAME].astype("category"), is_graph_launch)
