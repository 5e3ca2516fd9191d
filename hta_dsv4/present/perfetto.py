"""A trace for Perfetto: buckets as tracks, decode steps, origins, and counters over time.

What it holds, per rank and GPU:

* ``steps``: one slice a decode step, from its first start to its last end on this GPU;
* ``origins``: what asked for the work; one slice a run of activities of one origin;
* one track a bucket, one slice an activity. Activities that overlap one before them in their bucket go to further
  tracks of it (``glue, overlapping``), because a slice that overlaps another on one track is dropped or cut short;
* counters: activities running, SMs covered (an upper bound, where the trace says what it needs), and summed time of
  each bucket per step.

Times are those of the activity table (ns since the trace's base time); several traces are brought to one clock by their
base times. Slices of one bucket share a correlation id, by which Perfetto groups them; it picks colours itself, so they
are not those of the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.analysis.coverage import Sweep, sweeps
from hta_dsv4.analysis.window import window
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.colours import BUCKET_COLOURS
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from hta_dsv4.trace import steps as st

ACTIVITY, STEP, ORIGIN = "activity", "step", "origin"
"""Categories of the slices; every activity of the trace is exactly one slice of the first."""
_ANNOTATED = (
    col.KIND, col.BUCKET, col.ROLE, col.RULE, col.ORIGIN, col.ORIGIN_METHOD, col.STEP, col.STREAM, col.CORRELATION,
    col.GRAPH_NODE, col.GRID_X, col.GRID_Y, col.GRID_Z, col.BLOCK_X, col.BLOCK_Y, col.BLOCK_Z, col.REGISTERS,
    col.SHARED_MEM, col.BYTES, col.LAUNCH_NAME, col.LAUNCH_START_NS, col.OP, col.OP_SHAPES, col.SCOPE,
)  # fmt: skip

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Slices:
    """Slices of one track; none overlaps another.

    Attributes:
        category: one of the categories above.
        name: the track's.
        start, end: int64 [n], ns, by start.
        names: of the slices.
        group: what the slices are grouped by (a bucket), or ``""``.
        annotations: column -> value per slice, ``None`` where it has none.
    """

    category: str
    name: str
    start: Ints
    end: Ints
    names: list[str]
    group: str = ""
    annotations: dict[str, list[str | int | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Counter:
    """A counter.

    Attributes:
        name: the track's.
        time, value: int64 [n]; a value holds until the next.
        unit: ``ns`` or what is counted.
    """

    name: str
    time: Ints
    value: Ints
    unit: str


@dataclass(frozen=True)
class Gpu:
    """Tracks of one GPU of one rank.

    Attributes:
        name: e.g. ``rank 0, GPU 0: NVIDIA H200``.
        slices: tracks of slices, in drawing order.
        counters: in drawing order.
        notes: what could not be written, and why.
    """

    name: str
    slices: tuple[Slices, ...]
    counters: tuple[Counter, ...]
    notes: tuple[str, ...] = ()


def gpus(run: Run) -> list[Gpu]:
    """What to write of a run.

    Args:
        run: the variant.

    Returns:
        One entry per rank and GPU.

    Raises:
        HtaDsv4Error: no GPU activity in any trace.
    """
    run.shares("bucket")  # raises, with the reason, where there is nothing on a GPU
    first = min(t.meta.base_time_ns for t in run.traces)
    out: list[Gpu] = []
    for trace, table, steps in zip(run.traces, run.classified, run.steps, strict=True):
        shift = trace.meta.base_time_ns - first
        names = {d.index: d.name for d in trace.meta.devices}
        device = table[col.DEVICE].fillna(-1).astype("int64")
        for rank in sorted(table[col.RANK].unique()):
            swept: tuple[Sweep, ...] = ()
            why = ""
            try:
                swept = sweeps(window(table, steps, int(rank)), trace.meta).sweeps
            except HtaDsv4Error as error:
                why = f"no SM coverage: {error}"
            for number in sorted(device[table[col.RANK] == rank].unique()):
                part = table[(table[col.RANK] == rank) & (device == number)]
                known = f": {names[number]}" if names.get(number) else ""
                gpu = f"GPU {number}" if number >= 0 else "GPU unknown"
                counters = [_running(part)]
                covered = [(s.times, np.append(s.covered, 0)) for s in swept if s.span.device == number]
                if covered:
                    times, values = (np.concatenate(c) for c in zip(*covered, strict=True))
                    counters.append(Counter("SMs covered (upper bound)", times, values, "SMs"))
                counters += _bucket_sums(part, steps.table)
                out.append(
                    Gpu(
                        f"rank {rank}, {gpu}{known}",
                        tuple(_moved(s, shift) for s in _slices(part, steps.table)),
                        tuple(Counter(c.name, c.time + shift, c.value, c.unit) for c in counters),
                        (why,) if why else (),
                    )
                )
    return out


def _moved(track: Slices, shift: int) -> Slices:
    return Slices(
        track.category,
        track.name,
        track.start + shift,
        track.end + shift,
        track.names,
        track.group,
        track.annotations,
    )


def _slices(part: pd.DataFrame, steps: pd.DataFrame) -> Iterator[Slices]:
    start = part[col.START_NS].to_numpy()
    end = start + part[col.DUR_NS].to_numpy().clip(min=0)
    yield from _laid(STEP, "steps", *_steps(part, steps, start, end))
    yield from _laid(ORIGIN, "origins", *_origins(part, start, end))
    bucket = part[col.BUCKET].astype(str).to_numpy(dtype=object)
    own = sorted(set(bucket) - set(BUCKET_COLOURS))
    for name in (*BUCKET_COLOURS, *own):
        rows = np.flatnonzero(bucket == name)
        if not len(rows):
            continue
        mine = part.iloc[rows]
        notes = {c: _values(mine[c]) for c in _ANNOTATED if c in mine}
        names = mine[col.NAME].astype(str).tolist()
        yield from _laid(ACTIVITY, name, start[rows], end[rows], names, name, notes)


def _values(column: pd.Series) -> list[str | int | None]:
    missing = column.isna().tolist()
    if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype == object:
        return [None if gone else str(v) for v, gone in zip(column, missing, strict=True)]
    return [None if gone else int(v) for v, gone in zip(column, missing, strict=True)]


def _steps(
    part: pd.DataFrame, steps: pd.DataFrame, start: Ints, end: Ints
) -> tuple[Ints, Ints, list[str], str, dict[str, list[str | int | None]]]:
    step = part[col.STEP].fillna(-1).to_numpy(dtype=np.int64) if col.STEP in part else np.full(len(part), -1)
    found = [int(s) for s in np.unique(step) if s >= 0]
    spans = [(start[step == s].min(), end[step == s].max(), s) for s in found]
    spans.sort()
    rows = [steps.loc[s] for *_, s in spans]
    notes: dict[str, list[str | int | None]] = {
        "phase": [str(r[st.PHASE]) for r in rows],
        "counted": ["yes" if r[st.COUNTED] else "no" for r in rows],
        "activities": [int((step == s).sum()) for *_, s in spans],
    }
    begins, ends = (np.array([s[i] for s in spans], dtype=np.int64) for i in (0, 1))
    return (
        begins,
        ends,
        [f"step {s}: {r[st.LABEL]}" for (*_, s), r in zip(spans, rows, strict=True)],
        "",
        notes,
    )


def _origins(
    part: pd.DataFrame, start: Ints, end: Ints
) -> tuple[Ints, Ints, list[str], str, dict[str, list[str | int | None]]]:
    origin = part[col.ORIGIN].astype(str).to_numpy(dtype=object)
    if not len(origin) or set(origin) == {"unknown"}:
        none = np.zeros(0, dtype=np.int64)
        return none, none, [], "", {}
    first = np.flatnonzero(np.append(True, origin[1:] != origin[:-1]))
    counts = np.diff(np.append(first, len(origin)))
    dur = part[col.DUR_NS].to_numpy()
    notes: dict[str, list[str | int | None]] = {
        "activities": [int(n) for n in counts],
        "sum_ns": [int(n) for n in np.add.reduceat(dur, first)],
    }
    return start[first], np.maximum.reduceat(end, first), [str(o) for o in origin[first]], "", notes


def _laid(
    category: str, track: str, start: Ints, end: Ints, names: list[str], group: str,
    notes: dict[str, list[str | int | None]],
) -> Iterator[Slices]:  # fmt: skip
    """Slices on as few tracks as let none overlap: each goes to the first track that is free when it begins."""
    lane = lanes(start, end)
    for number in range(int(lane.max()) + 1 if len(lane) else 0):
        rows = np.flatnonzero(lane == number)
        more = "" if not number else ", overlapping" + (f" {number}" if number > 1 else "")
        yield Slices(
            category, track + more, start[rows], end[rows], [names[i] for i in rows], group,
            {k: [v[i] for i in rows] for k, v in notes.items()},
        )  # fmt: skip


def lanes(start: Ints, end: Ints) -> Ints:
    """The first of several tracks that is free when each slice begins.

    Args:
        start: int64 [n], increasing.
        end: int64 [n], each at or after its start.

    Returns:
        int64 [n]: track numbers from 0; on each track every slice ends before or when the next begins.
    """
    out = np.zeros(len(start), dtype=np.int64)
    free: list[int] = []
    for i, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        at = next((k for k, until in enumerate(free) if until <= begin), len(free))
        if at == len(free):
            free.append(finish)
        free[at] = finish
        out[i] = at
    return out


def _running(part: pd.DataFrame) -> Counter:
    """How many activities run at a time; one that takes no time is none."""
    start = part[col.START_NS].to_numpy()
    end = start + part[col.DUR_NS].to_numpy().clip(min=0)
    times, at = np.unique(np.concatenate([start, end]), return_inverse=True)
    change = np.zeros(len(times), dtype=np.int64)
    np.add.at(change, at[: len(start)], 1)
    np.add.at(change, at[len(start) :], -1)
    return Counter("activities running", times, change.cumsum(), "activities")


def _bucket_sums(part: pd.DataFrame, steps: pd.DataFrame) -> Iterator[Counter]:
    """Summed time of each bucket in each step, held while the step lasts."""
    inside = part[part[col.STEP].notna()] if col.STEP in part else part.iloc[:0]
    if not len(inside):
        return
    begins = inside.groupby(col.STEP)[col.START_NS].min().sort_values()
    last = int((inside[col.START_NS] + inside[col.DUR_NS].clip(lower=0)).max())
    sums = inside.assign(key=inside[col.BUCKET].astype(str)).groupby(["key", col.STEP])[col.DUR_NS].sum()
    for name in dict.fromkeys(sums.index.get_level_values(0)):
        mine = sums[name].reindex(begins.index, fill_value=0)
        values = np.append(mine.to_numpy(dtype=np.int64), 0)
        yield Counter(f"sum per step: {name}", np.append(begins.to_numpy(dtype=np.int64), last), values, "ns")
