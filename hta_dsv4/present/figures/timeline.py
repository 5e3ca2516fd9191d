"""One decode step on the GPU's clock, coloured by bucket: what runs when, what waits, what runs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import plotly.graph_objects as go

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import colours
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.figures.bars import OTHERS, PIXELS, Bar, step_bars
from hta_dsv4.present.grid import us
from hta_dsv4.trace import activities as col

HALF = 0.5
"""On one clock a column stands for many launches and the gaps between them: what most of it is."""


def timeline(
    part: Counted, label: str, step: int = 0, rows: str = "origin", window: tuple[float, float] | None = None,
    theme: str = "light", least: float = 0.0, until_ms: float | None = None,
) -> go.Figure:  # fmt: skip
    """One decode step, or a part of it, with buckets as colours.

    Args:
        part: the counted steps (``run.counted``).
        label: the variant's name.
        step: which of the counted steps, from 0.
        rows: what a row is: origin, bucket, role or stream.
        window: ``(begin, end)`` in ms since the start of the step.
        theme: ``light`` or ``dark``.
        least: rows with less than this part of the step's summed durations are one row.
        until_ms: where the axis ends; by default at the end of the step. For figures on one scale.

    Returns:
        A figure of at most 1,400 bars a row, under 3 MB also for steps of 15,000 kernels. The hover of a bar that
        stands for several activities says so, with their exact summed duration by bucket.

    Raises:
        HtaDsv4Error: no such step, an unknown ``rows``, or an empty window.
    """
    made = step_bars(part, step, rows, window, least=least)
    total: dict[str, int] = {}
    for bar in made.bars:
        total[bar.row] = total.get(bar.row, 0) + bar.sum_ns
    order = sorted(total, key=lambda r: (r == OTHERS, r == "unknown", -total[r], r))
    where = f"step {step}" if window is None else f"step {step}, {window[0]:g} to {window[1]:g} ms"
    out = th.figure(
        f"{label}: {where}, GPU time by {rows}", th.rows_height(len(order), each=24, around=150), theme,
        barmode="overlay", bargap=0.15,
        xaxis={
            "title": {"text": f"ms since step start (a column is {made.pixel_ns / 1e3:,.3g} us)"},
            **({"range": [0, until_ms]} if until_ms else {}),
        },
        yaxis={
            "type": "category", "autorange": "reversed", "categoryorder": "array",
            "categoryarray": [th.plain(r) for r in order],
        },
    )  # fmt: skip
    _draw(out, [(th.plain(b.row), b, made.pixel_ns) for b in made.bars])
    return out


def steps_together(variants: Sequence[tuple[str, Counted]], step: int = 0, theme: str = "light") -> go.Figure:
    """One step of each variant, a row each, on one clock: how much shorter the step became, and where it is empty.

    Args:
        variants: label and counted steps (``run.counted``), in reading order.
        step: which of the counted steps, from 0.
        theme: ``light`` or ``dark``.

    Returns:
        A figure of one row a variant; a column is empty where the GPU is idle for more than half of it.

    Raises:
        HtaDsv4Error: no variant, or one without that step.
    """
    if not variants:
        raise HtaDsv4Error("nothing to draw: give at least one variant")
    ends, rows = [], []
    for _, part in variants:
        acts = part.activities[part.step == step]
        ends.append(
            int((acts[col.START_NS] + acts[col.DUR_NS]).max() - acts[col.START_NS].min()) if len(acts) else 0
        )
    scale = max(*ends, 1)
    for (label, part), end in zip(variants, ends, strict=True):
        # columns as wide as those of the longest step, so that no bar is wider than what it stands for
        pixels = max(PIXELS * end // scale, 1)
        made = step_bars(_in_one_row(part), step, "origin", pixels=pixels, filled=HALF)
        rows += [(th.name(label, 28), b, made.pixel_ns) for b in made.bars]
    out = th.figure(
        f"step {step} of each variant, on one clock", th.rows_height(len(variants), each=34, around=110), theme,
        barmode="overlay", bargap=0.25,
        xaxis={"title": {"text": "ms since step start, as recorded (with the profiler)"}, "range": [0, scale / 1e6]},
        yaxis={
            "type": "category", "autorange": "reversed", "categoryorder": "array",
            "categoryarray": [th.name(label, 28) for label, _ in variants],
        },
    )  # fmt: skip
    _draw(out, rows)
    return out


def _in_one_row(part: Counted) -> Counted:
    """The same activities, all of one origin."""
    return replace(part, activities=part.activities.assign(**{col.ORIGIN: "step"}))


def _draw(out: go.Figure, rows: Sequence[tuple[str, Bar, float]]) -> None:
    """Bars in the row of each, one series a bucket. Row, bar, width of a column in ns."""
    for bucket in th.present_order(list({b.bucket for _, b, _ in rows})):
        mine = [r for r in rows if r[1].bucket == bucket]
        out.add_bar(
            name=th.plain(bucket), orientation="h", base=[round(b.start_ns / 1e6, 6) for _, b, _ in mine],
            # a bar thinner than a column would vanish; its hover tells how long it is
            x=[round(max(b.end_ns - b.start_ns, pixel) / 1e6, 6) for _, b, pixel in mine],
            y=[row for row, _, _ in mine], marker={"color": colours.colour(bucket), "line": {"width": 0}},
            customdata=[_hover(b) for _, b, _ in mine], hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip


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
