"""What reading one trace file gives: metadata, the activity table, the event table and what was wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of Kineto's ``deviceProperties``; what the producer does not write is ``None``.

    Attributes:
        index: the producer's ``id``. It need not equal the ``device`` of the kernels (ROCm renumbers).
        name: e.g. ``NVIDIA H200``; ``None`` when absent or empty.
        properties: the entry as written (numSms, regsPerMultiprocessor, sharedMemPerMultiprocessor, ...).
    """

    index: int
    name: str | None
    properties: Mapping[str, Any]

    @property
    def num_sms(self) -> int | None:
        """Streaming multiprocessors (``numSms``), or ``None``."""
        value = self.properties.get("numSms")
        return int(value) if isinstance(value, int) and value > 0 else None


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """Top-level metadata of a trace.

    Attributes:
        base_time_ns: ``baseTimeNanoseconds`` (0 where absent); a table's ``start_ns`` plus this is Unix time.
        devices: ``deviceProperties``, in file order.
        distributed: ``distributedInfo`` as written; empty where absent.
        rank_known: whether the file says its rank (``distributedInfo.rank`` or a merged file's pids).
        rank_labels: rank number -> the label a merged multi-rank file used ("TP00"); empty otherwise.
        versions: every top-level ``*version*`` key (cuda_driver_version, cupti_version, schemaVersion, ...).
        record_shapes, with_stack: what the profiler was asked for; ``None`` where the file does not say.
        trace_name: ``traceName`` as written.
        extra: every other top-level key, as written.
    """

    base_time_ns: int = 0
    devices: tuple[Device, ...] = ()
    distributed: Mapping[str, Any] = field(default_factory=dict)
    rank_known: bool = False
    rank_labels: Mapping[int, str] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    record_shapes: bool | None = None
    with_stack: bool | None = None
    trace_name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace file, read.

    Attributes:
        path: the file it came from (for a zip, the archive).
        meta: top-level metadata.
        activities: the activity table (:mod:`hta_dsv4.trace.activities`), sorted by start.
        events: the event table; empty when read with ``cpu=False``.
        warnings: what was repaired, ignored or looks wrong, one sentence each, naming counts.
        partial: True when salvaged from a cut file: every output must be labelled partial.
    """

    path: Path
    meta: TraceMeta
    activities: pd.DataFrame
    events: pd.DataFrame
    warnings: tuple[str, ...] = ()
    partial: bool = False
