"""``hta-dsv4 ranks``: the ranks of a run side by side, and what their collectives waited for."""

from __future__ import annotations

from typing import Annotated

import typer

from hta_dsv4.cli.options import (
    AsCsv,
    AsJson,
    AsMd,
    AsParquet,
    By,
    Companions,
    Frames,
    Full,
    Inputs,
    RulesFile,
    Salvage,
    form,
    load_runs,
    write,
)
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import machine, ranks_data
from hta_dsv4.present.parallel_grid import parallel_grid
from hta_dsv4.present.ranks_grid import ranks_grids
from hta_dsv4.runs.parallel import parallel_gain


def ranks(
    traces: Inputs,
    by: By = "bucket",
    top: Annotated[
        int,
        typer.Option(
            "--top", help="Rows of each table, the rest as one line; 0 for all. Text and --md only.", min=0
        ),
    ] = 12,
    rows: Annotated[
        str,
        typer.Option(
            "--rows", help=f"The table that --csv and --parquet write: {', '.join(ranks_data.ROWS)}."
        ),
    ] = ranks_data.RANKS,
    single: Annotated[
        str | None,
        typer.Option(
            "--single",
            metavar="TRACE",
            help="The same step on one GPU: speed-up, efficiency, tok/s per GPU, and what is not divided.",
        ),
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_md: AsMd = False,
    parquet: AsParquet = None,
    full: Full = False,
    rules: RulesFile = None,
    salvage: Salvage = False,
    companion: Companions = None,
    frames: Frames = False,
) -> None:
    """The ranks of a folder side by side; their collectives as transfer and wait; which rank is late, where and why.

    Collectives are aligned across ranks and the ranks' clocks fitted to them. A late rank is blamed only where it is
    late again and again at one place for a reason of its own; docs/ranks.md states the rule.

    Example: hta-dsv4 ranks cuda_graph_c32_tp2 --single cuda_graph
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    if rows not in ranks_data.ROWS:
        raise HtaDsv4Error(f"--rows {rows}: no such table; choose from {', '.join(ranks_data.ROWS)}")
    if rows == ranks_data.SINGLE and single is None:
        raise HtaDsv4Error(f"--rows {rows}: name the trace of one GPU with --single TRACE")
    runs = load_runs(traces, rules, salvage, companion, frames)
    found = [(r.ranks_table(by), r.collectives()) for r in runs]
    speeds = [r.collective_speeds(said) for r, (_, said) in zip(runs, found, strict=True)]
    gains = []
    if single is not None:
        (alone,) = load_runs([single], rules, salvage, frames=frames)
        gains = [
            parallel_gain(alone, run, by, communication=said)
            for run, (_, said) in zip(runs, found, strict=True)
        ]
    write(
        chosen,
        lambda: machine.dumps("ranks", ranks_data.ranks_body(found, gains, speeds)),
        lambda: ranks_data.ranks_rows(found, rows, gains, speeds),
        lambda: [
            *(parallel_grid(g, top) for g in gains),
            *(g for one, s in zip(found, speeds, strict=True) for g in ranks_grids(one, top, s)),
        ],
        full,
    )
