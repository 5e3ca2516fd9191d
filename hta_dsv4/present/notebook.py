"""Results as tables in a notebook: ``show(comparison)`` is what the command line prints, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hta_dsv4.analysis.compare import Comparison
from hta_dsv4.analysis.coverage import Coverage
from hta_dsv4.analysis.fill import Fill
from hta_dsv4.analysis.findings import Findings
from hta_dsv4.analysis.info import Info
from hta_dsv4.analysis.launch_bound import IdleTime
from hta_dsv4.analysis.launch_changes import LaunchChanges
from hta_dsv4.analysis.roofline import Roofline
from hta_dsv4.analysis.scaling import Scaling
from hta_dsv4.analysis.shares import Shares
from hta_dsv4.analysis.throughput import Throughput
from hta_dsv4.analysis.whatif import WhatIf
from hta_dsv4.analysis.why import Explanation, Why
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.coverage_grid import coverage_grid, owners_grid
from hta_dsv4.present.cross_grid import share_grids
from hta_dsv4.present.diff_grid import explanation_grids
from hta_dsv4.present.fill_grid import fill_grid
from hta_dsv4.present.findings_grid import finding_grids, findings_grid
from hta_dsv4.present.grid import Grid
from hta_dsv4.present.html import environment, grid_html
from hta_dsv4.present.idle_grid import idle_grid
from hta_dsv4.present.info_grid import info_grids
from hta_dsv4.present.launch_grid import launch_grid
from hta_dsv4.present.roofline_grid import roofline_grid
from hta_dsv4.present.scaling_grid import scaling_grid
from hta_dsv4.present.shares_grid import comparison_grid
from hta_dsv4.present.standing_grid import standing_grid
from hta_dsv4.present.text import markdown
from hta_dsv4.present.throughput_grid import throughput_grids
from hta_dsv4.present.whatif_grid import whatif_grids
from hta_dsv4.runs.standing import Standing

TOP = 20


@dataclass(frozen=True, slots=True)
class Shown:
    """Tables that a notebook displays by themselves (as HTML; as Markdown elsewhere).

    Attributes:
        grids: the tables.
        full: never shorten names.
    """

    grids: tuple[Grid, ...]
    full: bool = False

    def _repr_html_(self) -> str:
        style = environment().get_template("notebook.css").render()
        tables = "".join(grid_html(g, self.full) for g in self.grids)
        return f'<style>{style}</style><div class="hta-dsv4">{tables}</div>'

    def __repr__(self) -> str:
        return "\n".join(markdown(g) for g in self.grids)


def show(*results: Any, top: int = TOP, full: bool = False) -> Shown:
    """Results as tables.

    Args:
        results: what a Run's ``shares()``, ``fill()``, ``coverage()``, ``idle()``, ``roofline()``, ``whatif()``,
            ``findings()`` and ``info()`` gave, or ``compare()``, ``why()``, ``scaling()``, ``throughput()``,
            ``standings()``, ``launch_changes()``, or a data frame. Several coverages, idle times or throughputs stand
            side by side.
        top: rows of each table; 0 for all.
        full: never shorten names.

    Returns:
        An object that a notebook displays.

    Raises:
        HtaDsv4Error: something else.
    """
    grids: list[Grid] = []
    if coverages := [r for r in results if isinstance(r, Coverage)]:
        grids.append(coverage_grid(coverages))
    if idles := [r for r in results if isinstance(r, IdleTime)]:
        grids.append(idle_grid(idles))
    if sweeps := [r for r in results if isinstance(r, Throughput)]:
        grids += throughput_grids(sweeps)
    for result in results:
        if not isinstance(result, IdleTime | Throughput):
            grids += _grids(result, top)
    return Shown(tuple(grids), full)


def _grids(result: Any, top: int) -> Sequence[Grid]:
    if isinstance(result, Shares):
        return share_grids(result, top)
    if isinstance(result, Comparison):
        return [comparison_grid(result, top)]
    if isinstance(result, Explanation):
        return explanation_grids(result, top)
    if isinstance(result, Why):
        return explanation_grids(Explanation((result,), result), top)
    if isinstance(result, Scaling):
        return [scaling_grid(result, top)]
    if isinstance(result, Fill):
        return [fill_grid(result, top)]
    if isinstance(result, Coverage):
        return [owners_grid(result, top)]
    if isinstance(result, Roofline):
        return [roofline_grid(result, top)]
    if isinstance(result, WhatIf):
        return whatif_grids(result)
    if isinstance(result, Findings):
        return [findings_grid(result, top), *finding_grids(result, top)]
    if isinstance(result, Info):
        return info_grids(result)
    if isinstance(result, Grid):
        return [result]
    if isinstance(result, LaunchChanges):
        return [launch_grid(result, top <= 0)]
    if isinstance(result, list | tuple) and result and all(isinstance(r, LaunchChanges) for r in result):
        return [launch_grid(r, top <= 0) for r in result]
    if isinstance(result, list | tuple) and result and all(isinstance(r, Standing) for r in result):
        return [standing_grid(result)]
    if isinstance(result, tuple) and result and all(isinstance(r, Info) for r in result):
        return [g for r in result for g in info_grids(r)]
    if isinstance(result, pd.DataFrame):
        rows = tuple(
            tuple(str(v) for v in row) for row in result.head(top or len(result)).itertuples(index=False)
        )
        numbers = [pd.api.types.is_numeric_dtype(t) for t in result.dtypes]
        left = numbers.index(True) if True in numbers else len(numbers)
        return [Grid("", tuple(map(str, result.columns)), rows, left=left)]
    raise HtaDsv4Error(f"show: nothing known about {type(result).__name__}; give what a Run's methods return")
