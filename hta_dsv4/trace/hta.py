"""The same trace as Holistic Trace Analysis's own objects, so that its analyses run on what we have read.

``to_hta(trace)`` gives an :class:`HtaView`. Its methods run HTA's analyses on exact integer nanoseconds, set
right what HTA gets wrong where the input can do that, warn where a result leaves something out, and refuse
where it would be wrong (:data:`KNOWN_FAULTS` lists all of it). ``view.trace`` and ``view.analysis`` are HTA's
``Trace`` and ``TraceAnalysis`` in microseconds, unchecked, for everything else HTA offers.

HTA is imported on first use: it brings plotly and networkx with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.errors import HtaDsv4Error

from . import activities as col
from .hta_checks import GRAPH_LAUNCH, STATISTICS_LAUNCHES, WINDOW
from .hta_faults import KNOWN_FAULTS, Fault, HtaFaultError, HtaFaultWarning, Treatment
from .hta_frame import analysable, build_frame
from .hta_view import HtaView
from .model import Trace

__all__ = ["KNOWN_FAULTS", "Fault", "HtaFaultError", "HtaFaultWarning", "HtaView", "Treatment", "to_hta"]


def _metadata(trace: Trace) -> dict[str, Any]:
    """Top-level metadata under Kineto's names, as HTA's ``meta_data`` has it."""
    meta = trace.meta
    kept = {"distributedInfo": dict(meta.distributed)} if meta.distributed else {}
    return {
        "device_type": "UNKNOWN",
        "baseTimeNanoseconds": meta.base_time_ns,
        "deviceProperties": [dict(device.properties) for device in meta.devices],
        **meta.versions,
        **kept,
    }


def to_hta(traces: Trace | Sequence[Trace]) -> HtaView:
    """HTA's view of one trace, or of the ranks of one run.

    Args:
        traces: as read, with the CPU side (``cpu=True``) unless only activities matter.

    Returns:
        The view; times start at the earliest event of all ranks.

    Raises:
        HtaDsv4Error: no trace, or two traces of one rank.
    """
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not traces:
        raise HtaDsv4Error("to_hta: no trace given; pass at least one")
    tables = [(t, t.activities, analysable(t.events)) for t in traces]
    starts = [
        int(table[col.START_NS].min()) + trace.meta.base_time_ns
        for trace, *pair in tables
        for table in pair
        if len(table)
    ]
    origin = min(starts, default=0)
    symbols: dict[str, int] = {}
    frames: dict[int, pd.DataFrame] = {}
    meta: dict[int, dict[str, Any]] = {}
    owner: dict[int, Trace] = {}
    for trace, activities, events in tables:
        ranks = np.union1d(activities[col.RANK].to_numpy(), events[col.RANK].to_numpy())
        for rank in map(int, ranks):
            if rank in owner:
                raise HtaDsv4Error(
                    f"{trace.path}: rank {rank} is also that of {owner[rank].path}; HTA keeps one trace a rank,"
                    " so view them one at a time"
                )
            owner[rank] = trace
            frames[rank] = build_frame(
                activities[activities[col.RANK].eq(rank)].reset_index(drop=True),
                events[events[col.RANK].eq(rank)].reset_index(drop=True),
                symbols,
                origin - trace.meta.base_time_ns,
            )
            meta[rank] = _metadata(trace)
    for name in (*STATISTICS_LAUNCHES, GRAPH_LAUNCH, WINDOW):
        symbols.setdefault(name, len(symbols))
    label = str(traces[0].path if len(traces) == 1 else traces[0].path.parent)
    if any(trace.partial for trace in traces):
        label += " (partial)"
        warnings.warn(
            f"{label}: salvaged from a cut file, so every result is partial", HtaFaultWarning, stacklevel=2
        )
    return HtaView(label, frames, symbols, meta)
