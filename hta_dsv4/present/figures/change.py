"""Why the time changed, as a waterfall: from the sum before to the sum after, effect by effect and bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from hta_dsv4.analysis import diff as d
from hta_dsv4.analysis.diff import Decomposition
from hta_dsv4.analysis.why import Why
from hta_dsv4.present import colours
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.grid import us

WORDS = {
    d.DISAPPEARED_NS: "gone", d.APPEARED_NS: "appeared", d.COUNT_NS: "launch count", d.DURATION_NS: "duration",
}  # fmt: skip
"""Effect -> what it is called, in drawing order: what left, what came, how often the rest runs, how long it takes."""
SHOWN = 0.01
"""Smallest part of the larger sum that has a bar of its own; the rest is one bar, so that the ends still meet."""
MOST = 14


@dataclass(frozen=True, slots=True)
class Fall:
    """One bar of the waterfall.

    Attributes:
        effect: one of :data:`WORDS`' keys; ``""`` for the bar of everything small.
        bucket: whose time; ``""`` for the bar of everything small.
        ns: the change per step.
        parts: how many effects and buckets the bar stands for.
    """

    effect: str
    bucket: str
    ns: int
    parts: int = 1

    @property
    def label(self) -> str:
        """``gone: attention``; ``12 smaller`` for the rest."""
        return f"{WORDS[self.effect]}: {self.bucket}" if self.effect else f"{self.parts} smaller"


def falls(parts: Decomposition, shown: float = SHOWN, most: int = MOST) -> list[Fall]:
    """The bars between the two sums.

    Args:
        parts: the decomposition of a change.
        shown: smallest part of the larger sum that has a bar of its own.
        most: bars of their own at most.

    Returns:
        Effects by bucket in drawing order, largest first within an effect, the rest as one at the end. They add up to
        the change of the sum exactly.
    """
    table = parts.table("bucket")
    found = [
        Fall(effect, str(row["bucket"]), int(row[effect]))
        for effect in WORDS
        for _, row in table.iterrows()
        if int(row[effect])
    ]
    scale = max(parts.base.per_step.sum_ns, parts.other.per_step.sum_ns)
    largest = sorted(found, key=lambda f: -abs(f.ns))[:most]
    keep = [f for f in largest if abs(f.ns) >= shown * scale]
    rest = [f for f in found if f not in keep]
    order = list(WORDS)
    keep.sort(key=lambda f: (order.index(f.effect), -abs(f.ns)))
    return [*keep, *([Fall("", "", sum(f.ns for f in rest), len(rest))] if rest else [])]


def waterfall(why: Why, theme: str = "light") -> go.Figure:
    """One change as a waterfall of the summed GPU time per step.

    Args:
        why: the explained change.
        theme: ``light`` or ``dark``.

    Returns:
        Horizontal bars from the sum before to the sum after. Colours are the buckets'; an arrow and the sign say more
        or less. Bars below 1 % of the larger sum are drawn as one.
    """
    parts = why.decomposition
    base, other = parts.base, parts.other
    steps = falls(parts)
    labels = [th.name(base.label, 24), *(th.plain(f.label) for f in steps), th.name(other.label, 24)]
    if labels[0] == labels[-1]:
        labels[-1] += " (after)"
    before, after = base.per_step.sum_ns, other.per_step.sum_ns
    starts, lengths, fills, texts, hovers = [0], [before], [colours.NEUTRAL], [th.ms(before)], [""]
    hovers[0] = th.hover(labels[0], f"sum {us(before)} us/step", f"{base.steps} steps")
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
    hovers.append(th.hover(labels[-1], f"sum {us(after)} us/step", f"{other.steps} steps"))
    factor = f", {before / after:.2f}x" if after else ""
    out = th.figure(
        f"{base.label} → {other.label}: {th.ms(before)} → {th.ms(after)} ms per step{factor}",
        th.rows_height(len(labels), each=26, around=110), theme, bargap=0.2, showlegend=False,
        xaxis={"title": {"text": "summed GPU time, ms per step"}},
        yaxis={"autorange": "reversed", "type": "category"},
    )  # fmt: skip
    out.add_bar(
        base=[s / 1e6 for s in starts], x=[n / 1e6 for n in lengths], y=labels, orientation="h", text=texts,
        textposition="outside", cliponaxis=False, textfont={"size": 11}, marker={"color": fills, "line": {"width": 0}},
        customdata=hovers, hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip
    reach = max(s + n for s, n in zip(starts, lengths, strict=True)) / 1e6
    out.update_xaxes(range=[0, reach * 1.14 or 1])
    return out
