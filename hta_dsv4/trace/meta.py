"""What does the trace say about itself? Top-level keys -> :class:`TraceMeta`; pids of merged files -> ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hta_dsv4.trace.model import Device, TraceMeta

_LABEL = re.compile(r"^\[([A-Za-z][^][,'\"]*)\]\s*(.*)$")  # a letter first: a list as a pid is no label
_OWN = {
    "deviceProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "traceName",
    "record_shapes",
    "with_stack",
}


def build_meta(top: Mapping[str, Any], rank_labels: Mapping[int, str]) -> tuple[TraceMeta, list[str]]:
    """Sort the top-level keys of a trace.

    Args:
        top: every top-level key but ``traceEvents``.
        rank_labels: from :func:`ranks_of`.

    Returns:
        The metadata, and a warning for each key that is not what it should be.
    """
    warnings: list[str] = []
    base = _int(top.get("baseTimeNanoseconds"))
    if base is None:
        if top.get("baseTimeNanoseconds") is not None:
            warnings.append(
                f"baseTimeNanoseconds is no whole number ({top['baseTimeNanoseconds']!r:.40}); taken as 0"
            )
        base = 0
    devices = []
    properties = top.get("deviceProperties")
    for i, entry in enumerate(properties if isinstance(properties, list) else []):
        if isinstance(entry, dict):
            name = entry.get("name")
            index = _int(entry.get("id"))
            label = name if isinstance(name, str) and name else None
            devices.append(Device(i if index is None else index, label, entry))
    distributed = top.get("distributedInfo")
    if not isinstance(distributed, dict):
        distributed = {}
    known = bool(rank_labels) or _rank(distributed) is not None
    if not known and distributed.get("rank") is not None:
        warnings.append(f"distributedInfo.rank is no rank ({distributed['rank']!r:.40}); taken as unknown")
    versions = {k: v for k, v in top.items() if "version" in k.lower()}
    extra = {k: v for k, v in top.items() if k not in _OWN and k not in versions}
    name = top.get("traceName")
    meta = TraceMeta(
        base_time_ns=base,
        devices=tuple(devices),
        distributed=distributed,
        rank_known=known,
        rank_labels=dict(rank_labels),
        versions=versions,
        record_shapes=_flag(top.get("record_shapes")),
        with_stack=_flag(top.get("with_stack")),
        trace_name=name if isinstance(name, str) else None,
        extra=extra,
    )
    return meta, warnings


def rank_of(meta: TraceMeta) -> int:
    """The rank of a file that holds one (``distributedInfo.rank``); 0 where it does not say."""
    return _rank(meta.distributed) or 0


def _rank(distributed: Mapping[str, Any]) -> int | None:
    rank = _int(distributed.get("rank"))
    return rank if rank is not None and 0 <= rank < 2**31 else None


def ranks_of(pids: Iterable[str]) -> tuple[dict[int, str], dict[str, int]]:
    """Ranks in a merged file, whose pids carry a label: ``[TP00] 4242``.

    A label with one number is that rank (``TP01`` is 1) while no two labels say the same; other labels are
    numbered in the order of their spelling.

    Args:
        pids: every pid of the file, as text.

    Returns:
        (rank -> label, pid -> rank); both empty where no pid has a label.
    """
    by_pid = {p: m.group(1) for p in pids if (m := _LABEL.match(p))}
    labels = sorted(set(by_pid.values()))
    numbers = [re.findall(r"\d+", label) for label in labels]
    ranks = [int(n[0]) for n in numbers if len(n) == 1]
    if len(ranks) != len(labels) or len(set(ranks)) != len(ranks) or any(r > 2**31 - 1 for r in ranks):
        ranks = list(range(len(labels)))
    of_label = dict(zip(labels, ranks, strict=True))
    return {r: label for label, r in of_label.items()}, {p: of_label[label] for p, label in by_pid.items()}


def device_of_pid(pid: str) -> int | None:
    """Kineto gives GPU rows the device as their pid, behind the rank's label in a merged file."""
    m = _LABEL.match(pid)
    text = m.group(2) if m else pid
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None


def _int(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def _flag(value: Any) -> bool | None:
    return bool(value) if isinstance(value, int) else None
