"""From the profiler's raw file to the file that is kept: private names out, small, written whole or not at all.

Torch-free. Numbers survive exactly: a timestamp that a double would not print back digit for digit is carried
as text. What is removed is said in one sentence each, for the manifest.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args

from hta_dsv4.capture.private import hide_names
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.whole_files import write_atomically

Event = dict[str, Any]
Slim = Literal["", "all", "flows"]

_TEXT = "\ue000"  # marks a number carried as text; a private-use character no trace contains
_TEXT_NUMBER = re.compile(f'"{_TEXT}([^"]*)"')
_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCH = frozenset({"cuda_runtime", "cuda_driver"})
_BOOKKEEPING = (
    "Ev Idx", "Record function id", "Sequence number", "Fwd thread id", "Input Strides", "Concrete Inputs", "queued",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Summary:
    """What the recorded steps hold.

    Attributes:
        activities: kernels, copies and sets.
        activity_ns: their summed durations, exact.
        own_ns: what each adds to the time its stream is busy, added; as :mod:`hta_dsv4.analysis.own_time` has it.
        launches: CPU calls that caused at least one of them.
        scope_ns: part of the model (scope without its layer, "" outside any) -> summed durations.
        removed: sentences on what was taken out.
    """

    activities: int
    activity_ns: int
    own_ns: int
    launches: int
    scope_ns: dict[str, int]
    removed: tuple[str, ...]


def keep_trace(raw: Path, out: Path, *, slim: Slim = "") -> Summary:
    """Clean the profiler's file and write it under its final name; see :func:`clean_trace`.

    Raises:
        HtaDsv4Error: as :func:`clean_trace`, or ``out`` cannot be written.
    """
    body, summary = clean_trace(raw, out, slim=slim)
    write_atomically((out, body))
    return summary


def clean_trace(raw: Path, out: Path, *, slim: Slim = "") -> tuple[bytes, Summary]:
    """What is kept of the profiler's file.

    Host name, user name and user paths are replaced. ``slim="all"`` also drops bookkeeping arguments that no
    reader uses and host events that launched nothing; ``"flows"`` drops the flow arrows from launch to kernel too,
    a fifth of what is left, which repeat what the correlation says.

    Args:
        raw: what the profiler exported, JSON.
        out: the name it is to get; ``.gz`` compresses.
        slim: see above.

    Returns:
        The file's content and what its steps hold.

    Raises:
        HtaDsv4Error: the raw file is cut (disk full while the profiler wrote it), or ``slim`` is none of its words.
    """
    if slim not in get_args(Slim):
        raise HtaDsv4Error(f"slim {slim!r}: choose one of {', '.join(map(repr, get_args(Slim)))}")
    try:
        trace = json.loads(raw.read_text(encoding="utf-8"), parse_float=_exact)
    except OSError as error:
        raise HtaDsv4Error(
            f"{out}: the profiler's file {raw} cannot be read ({error.strerror or error})"
        ) from error
    except ValueError as error:
        raise HtaDsv4Error(
            f"{out}: the profiler wrote a broken file ({error}); is the disk full? Free space or choose another --out"
        ) from error
    events: list[Event] = trace["traceEvents"]
    removed = [hide_names(trace, events, out.name)]
    summary_events = _linked(events)
    if slim:
        trace["traceEvents"] = events = _slim(events, summary_events, flows=slim != "flows")
        removed.append(
            "slimmed: host operators and calls that launched nothing on the GPU, and the arguments "
            + ", ".join(_BOOKKEEPING)
        )
        if slim == "flows":
            removed.append("flow arrows from launch to kernel; the correlation of each says the same")
    body = _dump(trace)
    if out.suffix == ".gz":
        buffer = BytesIO()
        with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as f:
            f.write(body)
        body = buffer.getvalue()
    return body, Summary(
        activities=len(summary_events.activities),
        activity_ns=sum(_ns(e.get("dur", 0)) for e in summary_events.activities),
        own_ns=_own_ns(summary_events.activities),
        launches=len(summary_events.launches),
        scope_ns=_scopes(events, summary_events),
        removed=tuple(removed),
    )


def _exact(text: str) -> float | str:
    """A double where it says the same number, else the text."""
    value = float(text)
    # 15 digits always survive, and most timestamps print back as they were; only the rest needs decimal arithmetic.
    if len(text) <= 16 or repr(value) == text:
        return value
    return value if Decimal(repr(value)) == Decimal(text) else _TEXT + text


def _ns(microseconds: float | int | str) -> int:
    text = microseconds.removeprefix(_TEXT) if isinstance(microseconds, str) else repr(microseconds)
    whole, _, fraction = text.partition(".")
    if len(fraction) <= 3 and whole.isdecimal():  # what profilers write; the decimal path is ten times slower
        return int(whole) * 1000 + int(fraction.ljust(3, "0"))
    return int((Decimal(text) * 1000).to_integral_value())


def _own_ns(activities: Iterable[Event]) -> int:
    """Own times added: the union of each stream's intervals; one that names no stream owns all of its duration."""
    streams: dict[tuple[Any, Any, Any], list[tuple[int, int]]] = defaultdict(list)
    total = 0
    for event in activities:
        args = event.get("args", {})
        first, took = _ns(event["ts"]), max(_ns(event.get("dur", 0)), 0)
        if args.get("stream") is None:
            total += took
        else:
            streams[event.get("pid"), args.get("device"), args["stream"]].append((first, first + took))
    for intervals in streams.values():
        reach = min(intervals)[0]
        for first, last in sorted(intervals):
            total += max(last - max(first, reach), 0)
            reach = max(reach, last)
    return total


def _dump(trace: dict[str, Any]) -> bytes:
    """One event per line, everything else on the first."""
    head = {k: v for k, v in trace.items() if k != "traceEvents"}
    start = json.dumps(head, separators=(",", ":"), ensure_ascii=False)[:-1]
    lines = ",\n".join(json.dumps(e, separators=(",", ":"), ensure_ascii=False) for e in trace["traceEvents"])
    text = f'{start}{"," if head else ""}"traceEvents":[\n{lines}\n]}}\n'
    return _TEXT_NUMBER.sub(r"\1", text).encode()


# --- what launched what -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Links:
    activities: list[Event]
    launches: dict[int, Event]  # correlation -> the CPU call, for calls that caused an activity


def _linked(events: Iterable[Event]) -> _Links:
    calls: dict[int, Event] = {}
    activities: list[Event] = []
    for event in events:
        category = event.get("cat")
        if category in _GPU:
            activities.append(event)
        elif category in _LAUNCH:
            calls[event.get("args", {}).get("correlation", 0)] = event
    wanted = {a.get("args", {}).get("correlation", 0) for a in activities} - {0}
    return _Links(activities, {c: e for c, e in calls.items() if c in wanted})


def _slim(events: Iterable[Event], links: _Links, flows: bool) -> list[Event]:
    starts: dict[Any, list[int]] = defaultdict(list)
    for call in links.launches.values():
        starts[call.get("tid")].append(_ns(call["ts"]))
    for times in starts.values():
        times.sort()

    def launched(event: Event) -> bool:
        times = starts.get(event.get("tid"), [])
        first = _ns(event["ts"])
        at = bisect_right(times, first - 1)
        return at < len(times) and times[at] <= first + _ns(event.get("dur", 0))

    kept: list[Event] = []
    arrows: list[Event] = []
    alive = set(links.launches)
    for event in events:
        category = event.get("cat")
        args = event.get("args", {})
        if category in ("cpu_op", "python_function") and not launched(event):
            continue
        if (
            category in _LAUNCH
            and args.get("correlation") not in alive
            and "ynchronize" not in event.get("name", "")
        ):
            continue
        if category == "ac2g":
            if flows and event.get("id") in alive:
                arrows.append(event)
            continue
        for key in _BOOKKEEPING:
            args.pop(key, None)
        kept.append(event)
    return kept + arrows


def _scopes(events: Iterable[Event], links: _Links) -> dict[str, int]:
    """Summed activity time per innermost annotation around the launch; ``layer.N/`` is cut off."""
    ranges: dict[Any, list[tuple[int, int, str]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "user_annotation" and not str(event.get("name", "")).startswith(
            "ProfilerStep"
        ):
            first = _ns(event["ts"])
            ranges[event.get("tid")].append((first, first + _ns(event.get("dur", 0)), event["name"]))
    for spans in ranges.values():
        spans.sort()
    starts = {tid: [s[0] for s in spans] for tid, spans in ranges.items()}
    where: dict[int, str] = {}
    for correlation, call in links.launches.items():
        at, spans = _ns(call["ts"]), ranges.get(call.get("tid"), [])
        i = bisect_right(starts.get(call.get("tid"), []), at) - 1
        while i >= 0 and spans[i][1] < at:
            i -= 1
        where[correlation] = re.sub(r"^layer\.\d+/", "", spans[i][2]) if i >= 0 else ""
    total: Counter[str] = Counter()
    for activity in links.activities:
        total[where.get(activity.get("args", {}).get("correlation", 0), "")] += _ns(activity.get("dur", 0))
    return dict(total.most_common())
