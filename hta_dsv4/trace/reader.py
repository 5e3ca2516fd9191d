"""What did the GPU do, and when, in this trace? One file -> :class:`~hta_dsv4.trace.model.Trace`.

Bytes are unpacked (``container``), cut into batches of events (``framing``), decoded and collected as columns
(``schema``, ``collect``, ``times``), made into tables (``tables``) and joined (``link``). Memory follows the
tables, not the file.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import pandas as pd

from hta_dsv4.errors import TraceError
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.ahead import processes, read_ahead
from hta_dsv4.trace.cache import Slot
from hta_dsv4.trace.collect import LONGEST_NS, Collector
from hta_dsv4.trace.columns import release
from hta_dsv4.trace.container import RATIO_FREE, Progress, open_trace
from hta_dsv4.trace.envelope import CHUNK
from hta_dsv4.trace.framing import Framing
from hta_dsv4.trace.limits import NESTING_VARIABLE, nesting
from hta_dsv4.trace.limits import max_ratio as most_ratio
from hta_dsv4.trace.link import link
from hta_dsv4.trace.meta import build_meta, rank_of, ranks_of
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.run_files import assemble_ranks, is_no_trace, rank_by_name, rank_files
from hta_dsv4.trace.schema import NO_OBJECT, NO_PHASE
from hta_dsv4.trace.suspects import suspicious_durations
from hta_dsv4.trace.tables import Builder, pids_as_text

NO_EVENTS, MOST_NO_EVENTS = (NO_OBJECT, NO_PHASE), 1_000_000  # a few are damage, a million some other file
T = TypeVar("T")
P = ParamSpec("P")


def read_trace(
    path: str | PathLike[str],
    *,
    cpu: bool = True,
    python_frames: bool = False,
    salvage: bool = False,
    progress: Progress | None = None,
    member: str | None = None,
    max_ratio: float | None = None,
    chunk: int = CHUNK,
    cache: bool = True,
    workers: int | None = None,
) -> Trace:
    """Read one Kineto trace, exactly.

    Args:
        path: JSON text, plain or in gzip, zstd or zip; told by content, not by name.
        cpu: read the CPU side too (the event table, and the link columns of the activity table). Without it
            the GPU side alone is read, in about half the time.
        python_frames: keep ``python_function`` events, most of a trace recorded with stacks.
        salvage: of a cut or damaged file read what is whole, and mark the trace partial.
        progress: called with (bytes of the file read, bytes of the file) as reading goes on.
        member: which entry of a zip with several.
        max_ratio: refuse a file that unpacks to more than this many times its size (a decompression bomb); by default
            as :mod:`hta_dsv4.trace.limits` says.
        chunk: bytes of JSON decoded at once; the tables do not depend on it.
        cache: take a large trace from the cache where it was read before, and keep it there
            (:mod:`hta_dsv4.trace.cache`); the result is the same.
        workers: how many processes decode, this one included (:mod:`hta_dsv4.trace.ahead`); by default several where
            the file is large. The result is the same.

    Returns:
        The trace. ``activities`` has ``GPU_COLUMNS``, and with ``cpu`` ``LINK_COLUMNS`` as well.

    Raises:
        TraceError: missing, empty, not a trace, truncated, malformed or corrupt: one line with the place and
            the remedy.
    """
    file = Path(path)

    def afresh() -> tuple[Trace, int]:
        return _read(file, cpu, python_frames, salvage, progress, member, max_ratio, chunk, workers)

    if not cache:
        return afresh()[0]
    slot = Slot(file, {"cpu": cpu, "python_frames": python_frames, "salvage": salvage, "member": member})
    kept = slot.find()
    # A bomb stays one, however it came to be kept.
    ratio = most_ratio() if max_ratio is None else max_ratio
    if kept is not None and kept[1] <= max(RATIO_FREE, ratio * file.stat().st_size):
        if progress is not None:
            progress(file.stat().st_size, file.stat().st_size)
        return kept[0]
    try:
        trace, json_bytes = afresh()
    except BaseException:
        slot.abandon()
        raise
    slot.keep(trace, json_bytes)
    return trace


def _refuse_depth(read: Callable[Concatenate[Path, P], T]) -> Callable[Concatenate[Path, P], T]:
    """Brackets in brackets in brackets: a line instead of Python's error, wherever it meets them."""

    def wrapped(file: Path, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with nesting():
                return read(file, *args, **kwargs)
        except RecursionError as error:
            raise TraceError(
                f"{file}: JSON nested more deeply than in any trace; capture it again, or raise {NESTING_VARIABLE}"
            ) from error

    return wrapped


@_refuse_depth
def _read(
    file: Path,
    cpu: bool,
    python_frames: bool,
    salvage: bool,
    progress: Progress | None,
    member: str | None,
    max_ratio: float | None,
    chunk: int,
    workers: int | None,
) -> tuple[Trace, int]:
    """Read a trace afresh: the trace, and how many bytes of JSON it came from."""
    stream = open_trace(file, member=member, max_ratio=max_ratio, progress=progress, lenient=salvage)
    framing = Framing(stream, salvage=salvage, chunk=max(chunk, 64))
    collector = Collector(cpu=cpu, python_frames=python_frames)
    number = 1 if salvage else processes(file, workers)

    def ahead(framing: Framing, pending: bytes) -> bytes:
        return read_ahead(framing, pending, collector, number) if number > 1 else pending

    try:
        with _no_garbage_collection():
            for batch in framing.batches(collector.decoder, ahead):
                collector.add(batch)
                if sum(collector.notes[what] for what in NO_EVENTS) > MOST_NO_EVENTS:
                    raise TraceError(
                        f"{file}: not a trace: over {MOST_NO_EVENTS} entries of its traceEvents are no events; "
                        "give a Kineto trace (torch.profiler)"
                    )
    finally:
        stream.close()

    pids = pids_as_text(collector.pids)
    labels, rank_of_pid = ranks_of(pids)
    meta, warnings = build_meta({**framing.header, **framing.trailer}, labels)
    builder = Builder(collector, rank_of(meta), rank_of_pid)
    release()
    activities = builder.activities()
    release()
    events = builder.events()
    release()
    _refuse_impossible_sum(file, activities)
    if cpu:
        activities, more = link(activities, events)
        warnings += more
    warnings = framing.warnings + collector.warnings() + warnings + suspicious_durations(activities)
    if not len(activities):
        warnings.append(_why_no_gpu(collector))
    return Trace(file, meta, activities, events, tuple(warnings), framing.partial), stream.out


def read_traces(
    path: str | PathLike[str],
    *,
    cpu: bool = True,
    python_frames: bool = False,
    salvage: bool = False,
    progress: Progress | None = None,
    max_ratio: float | None = None,
    cache: bool = True,
) -> list[Trace]:
    """Read a trace file, a folder of ranks, or a zip of ranks.

    Args:
        path: a file, or a folder whose files (not those of sub-folders) are traces of one run.
        cpu: as for :func:`read_trace`, like those below.
        python_frames: keep Python frames.
        salvage: read what is whole of cut files.
        progress: called for each file anew.
        max_ratio: refuse decompression bombs.
        cache: take large traces from the cache, and keep them there.

    Returns:
        The traces by rank. Files of a folder that are no traces, or no ranks of the run (:mod:`.ranks`), and ranks
        that are missing are named in warnings of the first trace; a truncated or corrupt trace is an error, as
        leaving out a rank would change every answer.

    Raises:
        TraceError: as :func:`read_trace`; no trace in the folder; two files of one rank.
    """
    file = Path(path)

    def one(file: Path, member: str | None = None) -> Trace:
        return read_trace(
            file, cpu=cpu, python_frames=python_frames, salvage=salvage, progress=progress, member=member,
            max_ratio=max_ratio, cache=cache,
        )  # fmt: skip

    files = rank_files(file)
    if files is None:
        return [one(file)]
    skipped: list[str] = []
    traces: list[tuple[str, Trace]] = []
    for name, entry, member in files:
        try:
            traces.append((name, one(entry, member)))
        except TraceError as error:
            if not is_no_trace(error):
                raise
            skipped.append(name)
    if len(traces) > 1:
        traces = [(name, rank_by_name(name, t)) for name, t in traces]
    return assemble_ranks(file, traces, skipped)


def _refuse_impossible_sum(file: Path, activities: pd.DataFrame) -> None:
    """A sum that nears the end of int64 would wrap somewhere, so corrupt durations of such size are refused."""
    dur = activities[col.DUR_NS].to_numpy()
    if dur.sum(dtype=np.float64) > LONGEST_NS:
        longest = int(dur.argmax())
        name = str(activities[col.NAME].iloc[longest])[:80]
        raise TraceError(
            f"{file}: the activities last over a year in all, the longest {name!r} with {dur[longest]} ns (entry "
            f"{activities[col.EVENT_INDEX].iloc[longest]}): corrupt times; repair that entry or capture again"
        )


def _why_no_gpu(c: Collector) -> str:
    if not c.count:
        return "no GPU activity: traceEvents is empty"
    if c.cpu.rows:
        return "no GPU activity: a CPU-only trace (was ProfilerActivity.CUDA on, and CUPTI usable?)"
    return f"no GPU activity among {c.count} events"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of short-lived objects without cycles: looking for cycles costs more than decoding them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
