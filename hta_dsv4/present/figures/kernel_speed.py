"""How fast kernels are over the batch, beside what the hardware permits; from recorded benchmark tables."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import colours
from hta_dsv4.present.figures import theme as th

_LINES = (
    ("#4466cc", "circle"), ("#dd7733", "square"), ("#00cc99", "diamond"), ("#776688", "triangle-up"),
    ("#bb5522", "x"), ("#eeaa22", "star"),
)  # fmt: skip


def kernel_speed(
    table: pd.DataFrame, kernels: Sequence[str], references: Sequence[str] = (), title: str = "Kernel time",
    theme: str = "light",
) -> go.Figure:  # fmt: skip
    """Time per call over the batch, both axes logarithmic.

    Args:
        table: one row a batch; column ``B`` and one column of microseconds per kernel and reference. Missing is NaN.
        kernels: columns drawn as solid lines with markers.
        references: columns drawn dashed: a floor, a peer, a goal.
        title: a line above.
        theme: ``light`` or ``dark``.

    Returns:
        The figure.

    Raises:
        HtaDsv4Error: a column is missing.
    """
    if missing := [c for c in ("B", *kernels, *references) if c not in table]:
        raise HtaDsv4Error(
            f"column {missing[0]!r} is missing; the table has {', '.join(map(str, table.columns))}"
        )
    out = th.figure(
        title, 460, theme,
        xaxis={"type": "log", "title": {"text": "batch (requests decoded together)"}, "tickvals": table["B"].tolist(),
               "ticktext": [f"{b:g}" for b in table["B"]]},
        yaxis={"type": "log", "title": {"text": "us per call"}, "dtick": 1},
    )  # fmt: skip
    for i, column in enumerate((*kernels, *references)):
        dashed = column in references
        ink, symbol = _LINES[i % len(_LINES)] if not dashed else (colours.NEUTRAL, "line-ew")
        dash = ("dash", "dot", "dashdot")[list(references).index(column) % 3] if dashed else "solid"
        rows = [(b, v) for b, v in zip(table["B"], table[column], strict=True) if v == v]
        out.add_scatter(
            name=th.plain(column), x=[b for b, _ in rows], y=[v for _, v in rows],
            mode="lines" if dashed else "lines+markers",
            line={"color": ink, "width": 1.5 if dashed else 2.5, "dash": dash}, marker={"symbol": symbol, "size": 8},
            customdata=[th.hover(th.plain(column), f"B={b:g}: {v:g} us per call") for b, v in rows],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    return out
