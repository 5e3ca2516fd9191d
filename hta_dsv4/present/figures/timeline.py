"""One decode step on the GPU's clock, coloured by bucket: what runs when, what waits, what runs beside it.

A step may hold 15,000 kernels and a screen has some 1,400 columns. Neighbours of one row and one bucket are drawn as
one bar when less than a pixel lies between them; the hover of such a bar says how many kernels it stands for and their
exact summed duration. A window draws a part of the step with its own pixels, kernel by kernel where there is room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import colours
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.grid import us
from hta_dsv4.trace import activities as col

ROWS = {"bucket": col.BUCKET, "origin": col.ORIGIN, "stream": col.STREAM, "role": col.ROLE}
PIXELS = 1400
"""Columns a figure is drawn for."""


@dataclass(frozen=True)
class Bars:
    """What is drawn.

    Attributes:
        table: one bar per row: ``row, bucket, start_ns, end_ns`` (since the start of the step), ``kernels``, ``sum_ns``
            (their summed durations) and ``name`` (that of the longest).
        pixel_ns: gaps below this were drawn over.
        length_ns: of the step, or of the window.
    """

    table: pd.DataFrame
    pixel_ns: float
    length_ns: int


def bars(
    part: Counted, step: int = 0, rows: str = "origin", window: tuple[float, float] | None = None,
    pixels: int = PIXELS,
) -> Bars:  # fmt: skip
    """Merge the activities of one step into bars.

    Args:
        part: the counted steps (``run.counted``).
        step: which of them, from 0.
        rows: what a row of the figure is: bucket, origin, role or stream.
        window: ``(begin, end)`` in ms since the start of the step; what lies in it only in part is drawn whole.
        pixels: how many columns there are.

    Returns:
        The bars. Every activity of the window is in exactly one, so their kernels and sums add up to it.

    Raises:
        HtaDsv4Error: no such step, an unknown ``rows``, or an empty window.
    """
    if not 0 <= step < part.steps:
        have = f"{part.steps} counted steps, 0 to {part.steps - 1}" if part.steps else "no steps"
        raise HtaDsv4Error(f"step {step}: the trace has {have}")
    if rows not in ROWS or ROWS[rows] not in part.activities:
        raise HtaDsv4Error(f"rows={rows!r}: choose from {', '.join(ROWS)}")
    acts = part.activities[part.step == step]
    start = acts[col.START_NS].to_numpy() - int(acts[col.START_NS].min() if len(acts) else 0)
    end = start + acts[col.DUR_NS].to_numpy().clip(min=0)
    low, high = (0, int(end.max())) if window is None else (window[0] * 1e6, window[1] * 1e6)
    inside = (end >= low) & (start <= high)
    if not inside.any() or high <= low:
        raise HtaDsv4Error(
            f"nothing to draw: no activity in {low / 1e6:g} to {high / 1e6:g} ms of step {step}"
        )
    pixel = (high - low) / pixels
    row = acts[ROWS[rows]].astype(str).to_numpy(dtype=object)
    frame = pd.DataFrame(
        {
            "row": [f"stream {r}" for r in row] if rows == "stream" else row,
            "bucket": acts[col.BUCKET].astype(str).to_numpy(dtype=object), "start_ns": start, "end_ns": end,
            "dur_ns": acts[col.DUR_NS].to_numpy(), "name": acts[col.NAME].astype(str).to_numpy(dtype=object),
        }
    )[inside].sort_values(["row", "bucket", "start_ns"], kind="stable")  # fmt: skip
    same = ((frame["row"] == frame["row"].shift()) & (frame["bucket"] == frame["bucket"].shift())).to_numpy()
    reach = frame.groupby(["row", "bucket"], sort=False)["end_ns"].cummax().shift().to_numpy()
    with np.errstate(invalid="ignore"):
        joined = same & (frame["start_ns"].to_numpy() - reach < pixel)
    group = (~joined).cumsum()
    frame["rank"] = frame.groupby(group)["dur_ns"].rank(method="first", ascending=False)
    longest = frame[frame["rank"] == 1]["name"].to_numpy()
    made = frame.groupby(group).agg(
        row=("row", "first"), bucket=("bucket", "first"), start_ns=("start_ns", "min"), end_ns=("end_ns", "max"),
        kernels=("dur_ns", "size"), sum_ns=("dur_ns", "sum"),
    )  # fmt: skip
    made["name"] = longest
    return Bars(made.reset_index(drop=True), pixel, int(high - low))


def timeline(
    part: Counted, label: str, step: int = 0, rows: str = "origin", window: tuple[float, float] | None = None,
    theme: str = "light",
) -> go.Figure:  # fmt: skip
    """One decode step, or a part of it, with buckets as colours.

    Args:
        part: the counted steps (``run.counted``).
        label: the variant's name.
        step: which of the counted steps, from 0.
        rows: what a row is: origin, bucket, role or stream.
        window: ``(begin, end)`` in ms since the start of the step.
        theme: ``light`` or ``dark``.

    Returns:
        A figure of at most some thousand bars, under 3 MB also for steps of 15,000 kernels.

    Raises:
        HtaDsv4Error: no such step, an unknown ``rows``, or an empty window.
    """
    made = bars(part, step, rows, window)
    table = made.table
    order = table.groupby("row")["sum_ns"].sum().sort_values(ascending=False, kind="stable").index.tolist()
    order.sort(key=lambda r: r == "unknown")
    where = f"step {step}" if window is None else f"step {step}, {window[0]:g} to {window[1]:g} ms"
    out = th.figure(
        f"{label}: {where}, GPU time by {rows}", th.rows_height(len(order), each=24, around=150), theme,
        barmode="overlay", bargap=0.15,
        xaxis={"title": {"text": f"ms since step start (gaps < {made.pixel_ns / 1e3:,.3g} us joined)"}},
        yaxis={
            "type": "category", "autorange": "reversed", "categoryorder": "array",
            "categoryarray": [th.plain(r) for r in order],
        },
    )  # fmt: skip
    for bucket in th.present_order(table["bucket"].unique().tolist()):
        mine = table[table["bucket"] == bucket]
        # A bar thinner than a pixel would vanish; it is drawn as one pixel and its hover tells the truth.
        length = (mine["end_ns"] - mine["start_ns"]).clip(lower=made.pixel_ns)
        out.add_bar(
            name=th.plain(bucket), orientation="h", base=(mine["start_ns"] / 1e6).round(6).tolist(),
            x=(length / 1e6).round(6).tolist(), y=[th.plain(r) for r in mine["row"]],
            marker={"color": colours.colour(bucket), "line": {"width": 0}},
            customdata=[_hover(bucket, b) for b in mine.itertuples()], hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    return out


def _hover(bucket: str, bar: object) -> str:
    start, end, kernels, total, name = (
        getattr(bar, f) for f in ("start_ns", "end_ns", "kernels", "sum_ns", "name")
    )
    span = f"{us(int(start))} to {us(int(end))} us"
    if kernels == 1:
        return th.hover(th.name(name), f"{th.plain(bucket)}, {us(int(total))} us", span)
    return th.hover(
        f"{kernels:,} activities drawn as one bar",
        f"{th.plain(bucket)}, sum {us(int(total))} us in {us(int(end - start))} us",
        span,
        f"longest: {th.name(name, 44)}",
    )
