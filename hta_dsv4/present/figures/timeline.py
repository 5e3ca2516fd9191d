"""One decode step on the GPU's clock, coloured by bucket: what runs when, what waits, what runs beside it."""

from __future__ import annotations

import plotly.graph_objects as go

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.present import colours
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.figures.bars import Bar, step_bars
from hta_dsv4.present.grid import us


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
        A figure of at most 1,400 bars a row, under 3 MB also for steps of 15,000 kernels. The hover of a bar that
        stands for several activities says so, with their exact summed duration by bucket.

    Raises:
        HtaDsv4Error: no such step, an unknown ``rows``, or an empty window.
    """
    made = step_bars(part, step, rows, window)
    total: dict[str, int] = {}
    for bar in made.bars:
        total[bar.row] = total.get(bar.row, 0) + bar.sum_ns
    order = sorted(total, key=lambda r: (r == "unknown", -total[r], r))
    where = f"step {step}" if window is None else f"step {step}, {window[0]:g} to {window[1]:g} ms"
    out = th.figure(
        f"{label}: {where}, GPU time by {rows}", th.rows_height(len(order), each=24, around=150), theme,
        barmode="overlay", bargap=0.15,
        xaxis={"title": {"text": f"ms since step start (a column is {made.pixel_ns / 1e3:,.3g} us)"}},
        yaxis={
            "type": "category", "autorange": "reversed", "categoryorder": "array",
            "categoryarray": [th.plain(r) for r in order],
        },
    )  # fmt: skip
    for bucket in th.present_order(list({b.bucket for b in made.bars})):
        mine = [b for b in made.bars if b.bucket == bucket]
        out.add_bar(
            name=th.plain(bucket), orientation="h", base=[round(b.start_ns / 1e6, 6) for b in mine],
            # a bar thinner than a column would vanish; its hover tells how long it is
            x=[round(max(b.end_ns - b.start_ns, made.pixel_ns) / 1e6, 6) for b in mine],
            y=[th.plain(b.row) for b in mine], marker={"color": colours.colour(bucket), "line": {"width": 0}},
            customdata=[_hover(b) for b in mine], hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    return out


def _hover(bar: Bar) -> str:
    span = f"{us(float(bar.start_ns))} to {us(float(bar.end_ns))} us"
    if bar.kernels == 1:
        return th.hover(th.name(bar.name), f"{th.plain(bar.bucket)}, {us(bar.sum_ns)} us", span)
    if not bar.kernels:
        return th.hover(f"part of a longer activity, {th.plain(bar.bucket)}", span)
    shares = [f"{th.plain(b)} {us(ns)} us" for b, ns in list(bar.sums.items())[:4]]
    more = [f"and {len(bar.sums) - 4} more buckets"] if len(bar.sums) > 4 else []
    return th.hover(f"{bar.kernels:,} activities, sum {us(bar.sum_ns)} us", *shares, *more, span,
                    f"longest: {th.name(bar.name, 44)}")  # fmt: skip
