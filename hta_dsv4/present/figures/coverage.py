"""How full the GPU is over time: the part of the wall time at each level of SM coverage."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from hta_dsv4.analysis.coverage import BANDS, Coverage
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.grid import per_step, us

FILLS = {
    "idle": "#c9ced6", "copies only": "#9a8fb0", "up to 1/4": "#eeaa22", "up to 1/2": "#7fb3d5", "below all": "#4a73c9",
    "all": "#1d2f6f",
}  # fmt: skip
"""Band -> colour: grey for nothing, a warning for nearly nothing, then darker with more SMs covered."""
_SAID = {
    "idle": "nothing runs", "copies only": "only copies and sets", "up to 1/4": "up to 1/4 of the SMs",
    "up to 1/2": "up to 1/2", "below all": "more, not all", "all": "all SMs",
}  # fmt: skip


def coverage(found: Sequence[Coverage], theme: str = "light") -> go.Figure:
    """Time at each level of SM coverage, one stacked bar a variant.

    Args:
        found: coverage of each variant (``run.coverage()``).
        theme: ``light`` or ``dark``.

    Returns:
        Bars that add up to the wall time. Coverage is an upper bound of the SMs at work.

    Raises:
        HtaDsv4Error: no variant.
    """
    if not found:
        raise HtaDsv4Error("nothing to draw: give at least one variant")
    out = th.figure(
        "SMs covered (upper bound), % of wall time", th.rows_height(len(found)), theme, barmode="stack",
        bargap=0.28, uniformtext={"mode": "hide", "minsize": 9}, xaxis={"title": {"text": "% of wall time"}},
        yaxis={"autorange": "reversed", "type": "category"},
    )  # fmt: skip
    labels = [th.name(v.label, 28) for v in found]
    for band in BANDS:
        parts = [v.bands[band] / v.wall_ns if v.wall_ns else 0.0 for v in found]
        hovers = [
            th.hover(
                f"{th.plain(v.label)}: {_SAID[band]}",
                f"{us(per_step(v.bands[band], v.steps))} us{'/step' if v.steps else ''}, {100 * p:.2f} % of the wall",
                f"SMs covered on average: {100 * v.mean:.1f} %, while busy {100 * v.mean_while_busy:.1f} %",
            )
            for v, p in zip(found, parts, strict=True)
        ]
        out.add_bar(
            name=_SAID[band], x=[100 * p for p in parts], y=labels, orientation="h",
            text=[f"{100 * p:.1f}" if p >= 0.035 else "" for p in parts], textposition="inside",
            insidetextanchor="middle", textangle=0, constraintext="inside",
            marker={"color": FILLS[band], "line": {"width": 0}}, customdata=hovers,
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    return out
