"""One decode step as few bars: what a screen of some 1,400 columns can show of 15,000 kernels.

Each row is cut into columns one pixel wide. A column takes the colour of the bucket with most time in it, and
neighbours of one colour are one bar, so no row has more bars than pixels and a short kernel never hides a long one.
Each activity belongs to the bar at its middle: kernels and summed durations of all bars add up to the step, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col

ROWS = {"bucket": col.BUCKET, "origin": col.ORIGIN, "stream": col.STREAM, "role": col.ROLE}
PIXELS = 1400
"""Columns a figure is drawn for."""

OTHERS = "(others)"
"""The row of everything small, where there is one."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        row: which row of the figure.
        bucket: the bucket with most time in it, its colour.
        start_ns, end_ns: since the start of the step: the exact times of a single activity, else whole columns.
        sums: bucket -> summed durations of its activities, largest first.
        kernels: number of its activities; 0 where it shows the middle of none, only a part of one.
        name: name of the longest of them, or ``""``.
    """

    row: str
    bucket: str
    start_ns: float
    end_ns: float
    sums: dict[str, int]
    kernels: int
    name: str

    @property
    def sum_ns(self) -> int:
        """Summed durations of its activities."""
        return sum(self.sums.values())


@dataclass(frozen=True, slots=True)
class Bars:
    """What is drawn.

    Attributes:
        bars: row by row, by start.
        pixel_ns: width of a column.
        outside: activities of the step outside the window; 0 without a window.
    """

    bars: tuple[Bar, ...]
    pixel_ns: float
    outside: int


def step_bars(
    part: Counted, step: int = 0, rows: str = "origin", window: tuple[float, float] | None = None,
    pixels: int = PIXELS, least: float = 0.0, filled: float = 0.0,
) -> Bars:  # fmt: skip
    """The bars of one step.

    Args:
        part: the counted steps (``run.counted``).
        step: which of them, from 0.
        rows: what a row of the figure is: origin, bucket, role or stream.
        window: ``(begin, end)`` in ms since the start of the step: activities whose middle lies in it.
        pixels: how many columns there are.
        least: rows with less than this part of the summed durations are one, :data:`OTHERS`.
        filled: a column with activities for less than this part of it stays empty, where columns are too wide for the
            gaps between launches to be seen; the activities in it are then in no bar.

    Returns:
        The bars; with ``filled`` 0 every activity of the window is in exactly one.

    Raises:
        HtaDsv4Error: no such step, an unknown ``rows``, or an empty window.
    """
    if not 0 <= step < part.steps:
        have = f"{part.steps} counted steps, from 0" if part.steps else "no steps"
        raise HtaDsv4Error(f"step {step}: the trace has {have}")
    if rows not in ROWS or ROWS[rows] not in part.activities:
        raise HtaDsv4Error(f"rows={rows!r}: choose from {', '.join(ROWS)}")
    acts = part.activities[part.step == step]
    if not len(acts):
        raise HtaDsv4Error(f"step {step} holds no GPU activity, so there is nothing to draw")
    start = acts[col.START_NS].to_numpy() - int(acts[col.START_NS].min())
    end = start + acts[col.DUR_NS].to_numpy().clip(min=0)
    low, high = (0.0, float(max(end.max(), 1))) if window is None else (window[0] * 1e6, window[1] * 1e6)
    middle = (start + end) / 2
    inside = (middle >= low) & (middle <= high)
    if not inside.any() or high <= low:
        raise HtaDsv4Error(
            f"no activity in {low / 1e6:g} to {high / 1e6:g} ms of step {step}: nothing to draw"
        )
    label = acts[ROWS[rows]].astype(str).to_numpy(dtype=object)[inside]
    if rows == "stream":
        label = np.array([f"stream {r}" for r in label], dtype=object)
    bucket = acts[col.BUCKET].astype(str).to_numpy(dtype=object)[inside]
    name, dur = acts[col.NAME].astype(str).to_numpy(dtype=object)[inside], acts[col.DUR_NS].to_numpy()[inside]
    start, end = start[inside], end[inside]
    if least:
        time = pd.Series(dur).groupby(label).sum()
        small = time.index[time < least * int(dur.sum())]
        if len(small) > 1:
            label = np.where(np.isin(label, small), OTHERS, label)
    pixel = (high - low) / pixels
    out: list[Bar] = []
    for row in dict.fromkeys(label):
        mine = label == row
        out += _row(
            str(row), start[mine], end[mine], dur[mine], bucket[mine], name[mine], low, pixel, pixels, filled
        )
    return Bars(tuple(out), pixel, int((~inside).sum()))


def _row(
    row: str,
    start: Ints,
    end: Ints,
    dur: Ints,
    bucket: np.ndarray,
    name: np.ndarray,
    low: float,
    pixel: float,
    n: int,
    filled: float,
) -> list[Bar]:
    buckets = sorted(set(bucket))
    time = np.stack([_time(start[bucket == b] - low, end[bucket == b] - low, pixel, n) for b in buckets])
    shown = (time.max(axis=0) > 0) & (time.sum(axis=0) >= filled * pixel)
    winner = np.where(shown, time.argmax(axis=0), -1)
    first = np.flatnonzero(np.append(True, winner[1:] != winner[:-1]))
    bar_of_column = np.repeat(np.arange(len(first)), np.diff(np.append(first, n)))
    column = (((start + end) / 2 - low) / pixel).astype(np.int64).clip(0, n - 1)
    frame = pd.DataFrame({"bar": bar_of_column[column], "bucket": bucket, "dur": dur, "name": name})
    sums = frame.groupby(["bar", "bucket"])["dur"].sum()
    counts = frame["bar"].value_counts()
    longest = frame.loc[frame.groupby("bar")["dur"].idxmax()].set_index("bar")["name"]
    alone = {
        int(frame["bar"].iloc[i]): i for i in range(len(frame))
    }  # the last of each; used where it is the only one
    out = []
    for number, at in enumerate(first):
        if winner[at] < 0:
            continue
        until = first[number + 1] if number + 1 < len(first) else n
        begin, finish = low + float(at) * pixel, low + float(until) * pixel
        count = int(counts.get(number, 0))
        if count == 1:
            begin, finish = float(start[alone[number]]), float(end[alone[number]])
        held = sums[number].sort_values(ascending=False, kind="stable") if count else {}
        out.append(
            Bar(
                row, buckets[winner[at]], begin, finish, {str(k): int(v) for k, v in held.items()}, count,
                str(longest.get(number, "")),
            )
        )  # fmt: skip
    return out


def _time(start: Floats, end: Floats, pixel: float, n: int) -> Floats:
    """Time in each column; an activity that takes none still shows."""
    out = np.zeros(n)
    first, last = ((x / pixel).astype(np.int64).clip(0, n - 1) for x in (start, np.maximum(end, start)))
    np.add.at(out, first, 1e-6)
    np.add.at(out, first, np.minimum(end, (first + 1) * pixel).clip(min=start) - start)
    long = last > first
    np.add.at(out, last[long], (end[long] - last[long] * pixel).clip(min=0))
    whole = np.zeros(n + 1)
    np.add.at(whole, first[long] + 1, pixel)
    np.add.at(whole, last[long], -pixel)
    out += whole.cumsum()[:n]
    return out
