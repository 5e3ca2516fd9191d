"""Where the time of each variant goes: stacked bars of shares, and of time per step.

Both are of own time, as every comparison is: where a launch starts before the one ahead of it has ended, its summed
duration holds that wait. Without early starts own time is the summed duration, and is called so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.shares import Shares
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import colours
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.grid import per_step, us

_LABELLED = 0.035
"""Smallest part of the longest bar that has room for its number."""


def share_bars(variants: Sequence[Shares], theme: str = "light") -> go.Figure:
    """Share of the GPU time, one stacked bar a variant.

    Args:
        variants: share tables by bucket, in reading order; a variant of several ranks shows its median rank.
        theme: ``light`` or ``dark``.

    Returns:
        Bars that each add up to 100 %.

    Raises:
        HtaDsv4Error: no variant, or tables not by bucket.
    """
    return _bars(variants, theme, shares=True)


def time_bars(variants: Sequence[Shares], theme: str = "light") -> go.Figure:
    """GPU time per step, one stacked bar a variant: what shares hide.

    Args:
        variants: share tables by bucket, in reading order.
        theme: ``light`` or ``dark``.

    Returns:
        Bars in ms per step; in ms per trace where no variant shows steps.

    Raises:
        HtaDsv4Error: no variant, tables not by bucket, or steps in some variants only: lengths would not compare.
    """
    without = [v.label for v in variants if not v.median_rank.steps]
    if without and len(without) < len(variants):
        raise HtaDsv4Error(
            f"no steps in {', '.join(without)}: its time cannot stand beside time per step; draw share_bars instead"
        )
    return _bars(variants, theme, shares=False)


def _bars(variants: Sequence[Shares], theme: str, shares: bool) -> go.Figure:
    if not variants:
        raise HtaDsv4Error("nothing to draw: give at least one variant")
    if wrong := [v.label for v in variants if v.by != ("bucket",)]:
        raise HtaDsv4Error(f"{wrong[0]}: bars are by bucket; give run.shares('bucket')")
    rows = {v.label: _rows(v) for v in variants}
    buckets = th.present_order([b for mine in rows.values() for b in mine])
    stepped = bool(variants[0].median_rank.steps)
    unit = "ms per step" if stepped else "ms"
    kind = "own" if any(v.median_rank.extent.early_ns for v in variants) else "summed"
    title = f"Share of {kind} GPU time" if shares else f"{kind.capitalize()} GPU time, {unit}"
    out = th.figure(
        title, th.rows_height(len(variants)), theme,
        barmode="stack", bargap=0.28, uniformtext={"mode": "hide", "minsize": 9},
        xaxis={"title": {"text": ("% of own time" if kind == "own" else "% of the sum") if shares else unit}},
        yaxis={"autorange": "reversed", "type": "category"},
    )  # fmt: skip
    labels = [th.name(v.label, 28) for v in variants]
    longest = 1.0 if shares else max(_size(v, _total(v)) for v in variants) or 1.0
    for bucket in buckets:
        x, text, hovers = [], [], []
        for v in variants:
            row = rows[v.label].get(bucket)
            own = 0 if row is None else int(row[sh.OWN_NS])
            value = own / (_total(v) or 1) if shares else _size(v, own)
            x.append(100 * value if shares else value / 1e6)
            shown = f"{100 * value:.1f}" if shares else th.ms(value)
            text.append(shown if value >= _LABELLED * longest else "")
            hovers.append("" if row is None else _hover(v, bucket, row))
        fill = colours.colour(bucket)
        out.add_bar(
            name=th.plain(bucket), x=x, y=labels, orientation="h", text=text, textposition="inside",
            insidetextanchor="middle", textangle=0, constraintext="inside",
            textfont={"color": colours.ink(fill), "size": 11},
            marker={"color": fill, "line": {"width": 0}, "pattern": _pattern(bucket)},
            customdata=hovers, hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    if not shares:
        _totals(out, variants, labels)
    return out


def _totals(out: go.Figure, variants: Sequence[Shares], labels: list[str]) -> None:
    """The whole at the end of each bar."""
    sums = [_size(v, _total(v)) for v in variants]
    out.add_scatter(
        x=[s / 1e6 for s in sums], y=labels, mode="text", text=[f" {th.ms(s)}" for s in sums],
        textposition="middle right", showlegend=False, hoverinfo="skip", cliponaxis=False, textfont={"size": 12},
    )  # fmt: skip
    out.update_xaxes(range=[0, max(sums) / 1e6 * 1.09 or 1])


def _total(v: Shares) -> int:
    return int(v.table[sh.OWN_NS].sum())


def _size(v: Shares, ns: int) -> float:
    steps = v.median_rank.steps
    return ns / steps if steps else float(ns)


def _rows(v: Shares) -> dict[str, dict[str, Any]]:
    """Bucket -> its row of the (median rank's) table."""
    return {
        str(row["bucket"]): {str(k): x for k, x in row.items()}
        for row in v.median_rank.table.to_dict("records")
    }


def _hover(v: Shares, bucket: str, row: dict[str, Any]) -> str:
    rank = v.median_rank
    total, own, launches = int(row[sh.TIME_NS]), int(row[sh.OWN_NS]), int(row[sh.LAUNCHES])
    unit = "us/step" if rank.steps else "us"
    count = f"{launches / rank.steps:,.2f}".removesuffix(".00") if rank.steps else f"{launches:,}"
    share = f"{100 * own / (_total(v) or 1):.2f} %"
    lines = [
        f"{us(per_step(own, rank.steps))} {unit}, {share} of {'own time' if rank.extent.early_ns else 'the sum'}",
        f"{count} launches{'/step' if rank.steps else ''}, mean {us(float(row[sh.MEAN_NS]))} us",
    ]
    if own != total:
        lines.append(
            f"summed durations {us(per_step(total, rank.steps))} {unit}, with waits for the launch ahead"
        )
    if len(v.ranks) > 1:
        lines.append(f"rank {rank.rank}, the {sh.median_of(len(v.ranks))}")
    return th.hover(f"{th.plain(v.label)}: {th.plain(bucket)}", *lines)


def _pattern(bucket: str) -> dict[str, object]:
    """Light stripes over the colour, so that a number on it can still be read."""
    if bucket not in colours.HATCHED:
        return {"shape": ""}
    return {
        "shape": "/",
        "fillmode": "overlay",
        "fgcolor": "#ffffff",
        "fgopacity": 0.35,
        "size": 7,
        "solidity": 0.25,
    }
