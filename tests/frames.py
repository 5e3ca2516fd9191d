"""Tiny traces as frames, without a file: activities, launches and annotations from plain tuples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Trace, TraceMeta


def activity_table(rows: Sequence[dict[str, object]]) -> pd.DataFrame:
    """Rows of column -> value; what is left out takes a plain default."""
    columns = {**col.GPU_COLUMNS, **col.LINK_COLUMNS}
    defaults = {col.KIND: col.KERNEL, col.DEVICE: 0, col.STREAM: 7, col.RANK: 0}
    full = []
    for i, row in enumerate(rows):
        full.append({c: row.get(c, defaults.get(c, i if c == col.EVENT_INDEX else None)) for c in columns})
    table = pd.DataFrame(full, columns=list(columns)) if full else col.empty(columns)
    table = table.astype(columns)
    return table.sort_values([col.START_NS, col.EVENT_INDEX], kind="stable").reset_index(drop=True)


def event_table(rows: Sequence[dict[str, object]]) -> pd.DataFrame:
    """As :func:`activity_table`, for the event table."""
    defaults = {col.CATEGORY: "user_annotation", col.RANK: 0, col.PID: "1", col.TID: "1"}
    full = []
    for i, row in enumerate(rows):
        full.append(
            {c: row.get(c, defaults.get(c, i if c == col.EVENT_INDEX else None)) for c in col.EVENT_COLUMNS}
        )
    table = pd.DataFrame(full, columns=list(col.EVENT_COLUMNS)) if full else col.empty(col.EVENT_COLUMNS)
    return table.astype(col.EVENT_COLUMNS).sort_values([col.START_NS], kind="stable").reset_index(drop=True)


def make_trace(
    activities: Sequence[dict[str, object]],
    events: Sequence[dict[str, object]] = (),
    meta: TraceMeta | None = None,
) -> Trace:
    """A trace of these activities and events."""
    return Trace(Path("made.json"), meta or TraceMeta(), activity_table(activities), event_table(events))


def kernel(name: str, start: int, dur: int, launch: int | None = None, **more: object) -> dict[str, object]:
    """One kernel row; ``launch`` is the start of its launch on the CPU, ns."""
    row: dict[str, object] = {col.NAME: name, col.START_NS: start, col.DUR_NS: dur, **more}
    if launch is not None:
        row |= {col.LAUNCH_START_NS: launch, col.LAUNCH_NAME: more.get(col.LAUNCH_NAME, "cudaLaunchKernel")}
    return row


def marker(name: str, start: int, end: int, **more: object) -> dict[str, object]:
    """One CPU annotation over ``[start, end)`` ns."""
    return {col.NAME: name, col.START_NS: start, col.DUR_NS: end - start, **more}
