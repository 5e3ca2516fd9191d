"""``hta-dsv4 shares``: where the GPU time goes."""

from __future__ import annotations

from dataclasses import replace

from hta_dsv4.cli.cluster import ClusterOption, runs_from
from hta_dsv4.cli.options import (
    AsCsv,
    AsJson,
    AsMd,
    AsParquet,
    Companions,
    Frames,
    Full,
    Inputs,
    RulesFile,
    Salvage,
    ShareBy,
    Top,
    form,
    write,
)  # fmt: skip
from hta_dsv4.cluster.choice import AUTO
from hta_dsv4.present import machine
from hta_dsv4.present.cross_grid import share_grids
from hta_dsv4.runs.profiler_cost import profiler_notes


def shares(
    traces: Inputs,
    by: ShareBy = "bucket",
    top: Top = 25,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_md: AsMd = False,
    parquet: AsParquet = None,
    full: Full = False,
    rules: RulesFile = None,
    salvage: Salvage = False,
    companion: Companions = None,
    frames: Frames = False,
    cluster: ClusterOption = AUTO,
) -> None:
    """Where the GPU time goes: time per step, share and launches of each bucket, role, origin, kernel, step or layer.

    With two keys (--by bucket,origin) a cross table follows: what of the glue which part of the model asked for.

    Example: hta-dsv4 shares decode.pt.trace.json.gz --by role
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    tables = []
    with runs_from(cluster, traces, by, rules, salvage, companion, frames) as runs:
        for run in runs:
            table = run.shares(by)
            tables.append(replace(table, notes=(*profiler_notes([run], [table]), *table.notes)))
    write(
        chosen,
        lambda: machine.dumps("shares", machine.shares_body(tables)),
        lambda: machine.shares_rows(tables),
        lambda: [g for t in tables for g in share_grids(t, top)],
        full,
    )
