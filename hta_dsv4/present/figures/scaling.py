"""What grows with a parameter: time per step over its values, both axes logarithmic."""

from __future__ import annotations

import plotly.graph_objects as go

from hta_dsv4.analysis.scaling import Fit, Scaling
from hta_dsv4.present import colours
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.grid import us
from hta_dsv4.present.scaling_grid import parameter, told_apart

_NAMED = 6
"""Rows that are named in the figure; the others are thin grey lines with hovers."""


def scaling(found: Scaling, theme: str = "light") -> go.Figure:
    """Time per step over a parameter.

    Args:
        found: the fits.
        theme: ``light`` or ``dark``.

    Returns:
        One line a row, and the whole step dashed. What grows although it should not is thick and coloured. A row that
        takes no time at some value has no point there: a logarithm has no zero.
    """
    out = th.figure(
        f"Time per step over {found.parameter}", 460, theme,
        xaxis={"type": "log", "title": {"text": th.plain(found.parameter)}, "tickvals": list(found.total.x),
               "ticktext": told_apart(found.total.x)},
        yaxis={"type": "log", "title": {"text": "ms per step"}}, showlegend=True,
    )  # fmt: skip
    _line(out, found.total, "whole step", colours.NEUTRAL, 2.5, "dash", True)
    flagged = {f.name for f in found.flagged}
    named = [f.name for f in sorted(found.rows, key=lambda f: -f.mean_ns[-1])[:_NAMED]]
    for fit in sorted(found.rows, key=lambda f: f.name in flagged):  # flagged last: on top
        bad = fit.name in flagged
        shown = bad or fit.name in named
        ink = (
            colours.MORE if bad else colours.colour(fit.name) if shown and found.by == "bucket" else "#9aa1ab"
        )
        _line(out, fit, fit.name + (" (grows)" if bad else ""), ink, 4 if bad else 1.5, "solid", shown)
    return out


def _line(out: go.Figure, fit: Fit, label: str, ink: str, width: float, dash: str, shown: bool) -> None:
    power = "" if fit.power is None else f"power {fit.power:.2f}"
    if fit.power_interval is not None:
        power += f" ({fit.power_interval[0]:.2f} .. {fit.power_interval[1]:.2f})"
    texts = [
        th.hover(f"{th.plain(label)} at {parameter(x)}", f"{us(float(ns))} us/step", power)
        for x, ns in zip(fit.x, fit.mean_ns, strict=True)
    ]
    out.add_scatter(
        name=th.plain(label), x=list(fit.x), y=[ns / 1e6 if ns > 0 else None for ns in fit.mean_ns],
        mode="lines+markers", line={"color": ink, "width": width, "dash": dash},
        marker={"size": 4 + width, "color": ink}, showlegend=shown, customdata=texts,
        hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip
