"""What each part of the model asked for: buckets against origins, as a heatmap."""

from __future__ import annotations

import plotly.graph_objects as go

from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.shares import Shares
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.figures import theme as th
from hta_dsv4.present.grid import per_step, us

_UNKNOWN = "unknown"


def heatmap(shares: Shares, theme: str = "light", own: bool | None = None) -> go.Figure:
    """Share of the GPU time by two keys: of own time where launches start early, as in the bars, else of the sum.

    Args:
        shares: one variant's shares by two keys, ``bucket,origin`` as a rule; of several ranks the median one.
        theme: ``light`` or ``dark``.
        own: call it own time, beside variants that have early starts; by default where this one has them.

    Returns:
        Rows of the first key and columns of the second, largest first, ``unknown`` last; every cell labelled that has
        at least 0.05 %, and all cells together 100 %.

    Raises:
        HtaDsv4Error: shares not by two keys.
    """
    if len(shares.by) != 2:
        raise HtaDsv4Error(f"{shares.label}: a heatmap needs two keys; give run.shares('bucket,origin')")
    first, second = shares.by
    rank = shares.median_rank
    whole = int(rank.table[sh.OWN_NS].sum()) or 1
    of = "own time" if (rank.extent.early_ns if own is None else own) else "the sum"
    table = rank.table.assign(part=rank.table[sh.OWN_NS] / whole)
    rows = _order(table.groupby(first)[sh.OWN_NS].sum().to_dict())
    columns = _order(table.groupby(second)[sh.OWN_NS].sum().to_dict())
    cells = {(r[first], r[second]): r for _, r in table.iterrows()}
    z: list[list[float | None]] = []
    text, hovers = [], []
    for row in rows:
        found = [cells.get((row, c)) for c in columns]
        z.append([None if f is None else 100 * float(f["part"]) for f in found])
        text.append(["" if f is None or f["part"] < 0.0005 else f"{100 * f['part']:.1f}" for f in found])
        hovers.append(
            [
                ""
                if f is None
                else th.hover(
                    f"{th.plain(row)} for {th.plain(c)}",
                    f"{us(per_step(int(f[sh.OWN_NS]), rank.steps))} us{'/step' if rank.steps else ''}, "
                    f"{100 * float(f['part']):.3f} % of {of}",
                    f"{int(f[sh.LAUNCHES]) / max(rank.steps, 1):,.6g} launches{'/step' if rank.steps else ''}",
                )
                for f, c in zip(found, columns, strict=True)
            ]
        )
    out = th.figure(
        f"{shares.label}: {first} x {second}, % of {of}",
        th.rows_height(len(rows), each=30, around=150), theme,
        xaxis={"side": "top", "tickangle": -40, "showgrid": False, "type": "category"},
        yaxis={"autorange": "reversed", "showgrid": False, "type": "category"},
        margin={"t": 130, "l": 8, "r": 8, "b": 8}, coloraxis={"cmin": 0},
    )  # fmt: skip
    out.update_layout(height=out.layout.height + 60, title={"y": 0.985, "yanchor": "top"})
    out.add_heatmap(
        z=z, x=[th.plain(c) for c in columns], y=[th.plain(r) for r in rows], text=text, texttemplate="%{text}",
        textfont={"size": 10}, customdata=hovers, hovertemplate="%{customdata}<extra></extra>", hoverongaps=False,
        xgap=1, ygap=1, coloraxis="coloraxis",
    )  # fmt: skip
    return out


def _order(total: dict[object, int]) -> list[str]:
    """Largest first, ``unknown`` last."""
    names = sorted((str(k) for k in total), key=lambda k: (-total[k], k))
    return sorted(names, key=lambda n: n == _UNKNOWN)
