"""Many variants side by side in one column each: time per step with its share, and the change from first to last."""

from __future__ import annotations

import pandas as pd

from hta_dsv4.analysis import compare as cmp
from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.compare import Comparison
from hta_dsv4.analysis.shares import Shares
from hta_dsv4.present.diff_words import signed
from hta_dsv4.present.grid import ABSENT, Grid, per_step

FEW = 3
"""Variants up to which the column of the change names its two ends."""


def compact_grid(comparison: Comparison) -> Grid:
    """One row a key: ms of own time per step and its share, for every variant, and the change from first to last.

    Args:
        comparison: of one variant or more.

    Returns:
        The grid; of a variant without steps the times are of its trace, and its heading says so.
    """
    variants = comparison.variants
    last, several = variants[-1], len(variants) > 1
    rows = []
    for key, row in comparison.table.iterrows():
        names = [str(k) for k in (key if isinstance(key, tuple) else (key,))]
        change = [signed(row[last.label, cmp.DELTA_NS_PER_STEP])] if several else []
        rows.append((*names, *(_time(row, v) for v in variants), *change))
    own = [int(v.table[sh.OWN_NS].sum()) for v in variants]
    total = [f"{ns / 1e6 / max(v.median_rank.steps, 1):,.3f}" for ns, v in zip(own, variants, strict=True)]
    blank = [""] * (len(comparison.by) - 1)
    stepped = all(v.median_rank.steps for v in variants)
    delta = []
    if several:
        first, final = (
            per_step(ns, v.median_rank.steps) for ns, v in ((own[0], variants[0]), (own[-1], last))
        )
        delta = [
            signed(final - first) if variants[0].median_rank.steps and last.median_rank.steps else ABSENT
        ]
    mixed = not stepped and any(v.median_rank.steps for v in variants)
    unit = [f" ms{'/step' if v.median_rank.steps else ''}" if mixed else "" for v in variants]
    headers = [*comparison.by, *(f"{v.label}{u}" for v, u in zip(variants, unit, strict=True))]
    ends = f"{last.label} - {variants[0].label}" if len(variants) <= FEW else "last - first"
    headers += [f"{ends}, us{'/step' if stepped else ''}"] if several else []
    early = any(v.median_rank.extent.early_ns for v in variants)
    per = "" if mixed else ", ms per step" if stepped else ", ms"
    title = f"{'own' if early else 'summed'} GPU time{per} (% of it)"
    return Grid(
        title, tuple(headers), tuple(rows), (("own" if early else "sum", *blank, *total, *delta),),
        left=len(comparison.by),
    )  # fmt: skip


def _time(row: pd.Series[float], variant: Shares) -> str:
    ns, share = row[variant.label, sh.OWN_NS], row[variant.label, cmp.OWN_SHARE]
    if pd.isna(ns):
        return ABSENT
    return f"{int(ns) / 1e6 / max(variant.median_rank.steps, 1):,.3f} ({100 * float(share):.1f})"
