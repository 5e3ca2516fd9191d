"""Why the time changed, as a waterfall: from the time before to that after, effect by effect and bucket by bucket."""

from __future__ import annotations

import plotly.graph_objects as go

from hta_dsv4.analysis.why import Why
from hta_dsv4.present import colours
from hta_dsv4.present.falls import falls
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.grid import us

_CUT = 0.2
"""A change that stays within this part of the totals would be invisible on an axis from 0."""


def waterfall(why: Why, theme: str = "light") -> go.Figure:
    """One change as a waterfall of the GPU time per step, in own time.

    Args:
        why: the explained change.
        theme: ``light`` or ``dark``.

    Returns:
        Horizontal bars from the time before to the time after. Colours are the buckets'; an arrow and the sign say more
        or less. Effects too small to matter are drawn as one bar. Where the change is small against the times, the axis
        does not begin at 0 and says so.
    """
    parts = why.decomposition
    base, other = parts.base, parts.other
    steps = falls(parts)
    labels = [th.name(base.label, 24), *(th.plain(f.label) for f in steps), th.name(other.label, 24)]
    if labels[0] == labels[-1]:
        labels[-1] += " (after)"
    before, after = base.per_step.own_ns, other.per_step.own_ns
    starts, lengths, fills, texts, hovers = [0], [before], [colours.NEUTRAL], [th.ms(before)], [""]
    hovers[0] = th.hover(labels[0], f"own time {us(before)} us/step", f"{base.steps} steps")
    at = before
    for fall in steps:
        starts.append(min(at, at + fall.ns))
        lengths.append(abs(fall.ns))
        fills.append(colours.colour(fall.bucket) if fall.effect else colours.NEUTRAL)
        texts.append(f"{'▲' if fall.ns > 0 else '▼'} {'+' if fall.ns > 0 else ''}{th.ms(fall.ns)}")
        sign = "+" if fall.ns > 0 else ""
        hovers.append(
            th.hover(th.plain(fall.label), f"{sign}{us(fall.ns)} us/step", f"now {us(at + fall.ns)}")
        )
        at += fall.ns
    starts.append(0)
    lengths.append(after)
    fills.append(colours.NEUTRAL)
    texts.append(th.ms(after))
    hovers.append(th.hover(labels[-1], f"own time {us(after)} us/step", f"{other.steps} steps"))
    factor = f", {before / after:.2f}x" if after else ""
    out = th.figure(
        f"{base.label} → {other.label}: {th.ms(before)} → {th.ms(after)} ms per step{factor}",
        th.rows_height(len(labels), each=26, around=110), theme, bargap=0.2, showlegend=False,
        xaxis={"title": {"text": "own GPU time, ms per step"}},
        yaxis={"autorange": "reversed", "type": "category"},
    )  # fmt: skip
    out.add_bar(
        base=[s / 1e6 for s in starts], x=[n / 1e6 for n in lengths], y=labels, orientation="h", text=texts,
        textposition="outside", cliponaxis=False, textfont={"size": 11}, marker={"color": fills, "line": {"width": 0}},
        customdata=hovers, hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip
    ends = [(s, s + n) for s, n in zip(starts, lengths, strict=True)]
    reach = max(e for _, e in ends)
    low = min(min(e) for e in ends[1:-1]) if steps else 0
    span = reach - low
    begin = max(low - span, 0) if span < _CUT * reach else 0
    if begin:
        out.update_xaxes(title={"text": f"ms per step; the axis begins at {th.ms(begin)}"})
    out.update_xaxes(range=[begin / 1e6, (reach + 0.2 * (reach - begin)) / 1e6 or 1])
    return out
