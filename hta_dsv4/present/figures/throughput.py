"""Step time and throughput over concurrency: repeats as points, the line, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from hta_dsv4.analysis.throughput import Throughput
from hta_dsv4.present import colours
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.throughput_grid import ms, rate

_INKS = ("attention", "glue", "fp32_simt_gemm", "fp4_moe", "mhc", "dense_gemm", "sampling", "moe_other")
_DASHES = ("solid", "dash", "dot", "dashdot")
_MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon")
_STEPS = 60
_APART = 8
"""Variants whose best throughputs differ by more than this factor are drawn on logarithmic axes, to be seen at all."""


def throughput(found: Sequence[Throughput], theme: str = "light") -> go.Figure:
    """Variants over concurrency, step time on the left and throughput on the right.

    Args:
        found: the variants; those without a line have points alone.
        theme: ``light`` or ``dark``.

    Returns:
        A point per repeat; the line where it holds, from the smallest to the largest C, and the throughput it means,
        with a dotted level at its ceiling where the data bound it; where it does not, the means joined. Throughput is
        drawn over a logarithmic C. Variants differ by colour, mark and dash.
    """
    values = sorted({v.concurrency for t in found for v in t.levels})
    across = {
        "tickvals": values, "ticktext": [f"{v:,}" for v in values],
        "title": {"text": "C, requests decoded together"},
    }  # fmt: skip
    best = [t.best.tokens_per_s or 1.0 for t in found if t.best]
    apart = max(best, default=1) > _APART * min(best, default=1)
    up = {"type": "log", "dtick": 1} if apart else {"rangemode": "tozero"}
    left = {"type": "log"} if apart else {}  # on even axes a line is straight
    out = th.figure(
        "Step time and throughput over concurrency", 440, theme, showlegend=True,
        xaxis={"domain": [0, 0.45], **across, **left}, yaxis={"title": {"text": "ms per step"}, **up},
        xaxis2={"domain": [0.56, 1], "anchor": "y2", "type": "log", **across},
        yaxis2={"title": {"text": "tokens per second"}, "anchor": "x2", **up},
    )  # fmt: skip
    for i, t in enumerate(found):
        ink = colours.colour(_INKS[i % len(_INKS)])
        mark = {"color": ink, "size": 8, "symbol": _MARKS[i % len(_MARKS)]}
        _points(out, t, mark)
        _line(out, t, {"color": ink, "width": 2, "dash": _DASHES[i % len(_DASHES)]})
    return out


def _points(out: go.Figure, t: Throughput, mark: dict[str, object]) -> None:
    counted = [(r, s) for r in t.sweep.repeats if (s := r.mean_step_ns) is not None]
    label = th.plain(t.sweep.label)
    texts = [
        th.hover(
            f"{label}, C={r.concurrency}, repeat {r.repeat}", f"{ms(s)} ms per step", f"{rate(r.tokens_per_s)} tok/s"
        )
        for r, s in counted
    ]  # fmt: skip
    at = [r.concurrency for r, _ in counted]
    both = {"mode": "markers", "marker": mark, "customdata": texts, "legendgroup": label, "name": label}
    hover = "%{customdata}<extra></extra>"
    out.add_scatter(x=at, y=[s / 1e6 for _, s in counted], hovertemplate=hover, **both)
    out.add_scatter(
        x=at, y=[r.tokens_per_s for r, _ in counted], xaxis="x2", yaxis="y2", showlegend=False, hovertemplate=hover,
        **both,
    )  # fmt: skip


def _line(out: go.Figure, t: Throughput, stroke: dict[str, object]) -> None:
    line = t.line
    if line is None:
        return
    label = th.plain(t.sweep.label)
    common = {"mode": "lines", "legendgroup": label, "name": label, "showlegend": False, "hoverinfo": "skip"}
    if not line.holds:  # the means joined: what was measured, no form claimed
        rates = [c * 1e9 / m for c, m in zip(line.values, line.mean_ns, strict=True)]
        thin = {**stroke, "width": 1}
        out.add_scatter(x=list(line.values), y=[m / 1e6 for m in line.mean_ns], line=thin, **common)
        out.add_scatter(x=list(line.values), y=rates, line=thin, xaxis="x2", yaxis="y2", **common)
        return
    first, last = line.values[0], line.values[-1]
    even = [first * (last / first) ** (i / _STEPS) for i in range(_STEPS + 1)]
    at = [c for c in even if line.at(c) > 0]
    out.add_scatter(x=at, y=[line.at(c) / 1e6 for c in at], line=stroke, **common)
    out.add_scatter(x=at, y=[c * 1e9 / line.at(c) for c in at], line=stroke, xaxis="x2", yaxis="y2", **common)
    ceiling = line.ceiling
    if ceiling.bounded and ceiling.tokens_per_s is not None:
        interval = "" if ceiling.low is None else f"{rate(ceiling.low)} .. {rate(ceiling.high)}"
        text = th.hover(f"{label}: ceiling {rate(ceiling.tokens_per_s)} tok/s", interval)
        out.add_scatter(
            x=[first, last], y=[ceiling.tokens_per_s] * 2, xaxis="x2", yaxis="y2", mode="lines", legendgroup=label,
            name=f"{label}: ceiling", showlegend=False, line={**stroke, "width": 1, "dash": "dot"},
            customdata=[text] * 2, hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
