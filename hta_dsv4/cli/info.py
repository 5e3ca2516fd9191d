"""``hta-dsv4 info``: what a trace is, has and lacks."""

from __future__ import annotations

from hta_dsv4.cli.options import AsCsv, AsJson, AsMd, AsParquet, Full, Inputs, Salvage, form, load_runs, write
from hta_dsv4.present import machine
from hta_dsv4.present.info_grid import info_grids


def info(
    traces: Inputs,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_md: AsMd = False,
    parquet: AsParquet = None,
    full: Full = False,
    salvage: Salvage = False,
) -> None:
    """What a trace is: GPU, versions, counts, steps, what it has and lacks.

    Example: hta-dsv4 info decode.pt.trace.json.gz
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    infos = [i for r in load_runs(traces, None, salvage) for i in r.info()]
    write(
        chosen,
        lambda: machine.dumps("info", machine.info_body(infos)),
        lambda: machine.info_rows(infos),
        lambda: [g for i in infos for g in info_grids(i)],
        full,
    )
