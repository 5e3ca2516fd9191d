"""``hta-dsv4 scaling``: what grows with a parameter, and what should not."""

from __future__ import annotations

from typing import Annotated

import typer

from hta_dsv4.cli.options import (
    AsCsv,
    AsJson,
    AsMd,
    AsParquet,
    Full,
    Points,
    RulesFile,
    Salvage,
    Top,
    form,
    rule_set,
    write,
)  # fmt: skip
from hta_dsv4.cli.sweep_points import sweep_point
from hta_dsv4.present import machine
from hta_dsv4.present.progress import reading
from hta_dsv4.present.scaling_grid import scaling_body, scaling_grid, scaling_rows
from hta_dsv4.runs import comparing
from hta_dsv4.runs.loading import load


def scaling(
    traces: Points,
    param: Annotated[
        str | None,
        typer.Option("--param", help="The parameter: max_context, context, concurrency, or a name of yours."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", help="bucket, role, origin or kernel; origin where it is known, else bucket."),
    ] = None,
    top: Top = 25,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_md: AsMd = False,
    parquet: AsParquet = None,
    full: Full = False,
    rules: RulesFile = None,
    salvage: Salvage = False,
) -> None:
    """What grows with a parameter, and what should not: time per step fitted over captures at several values.

    Example: hta-dsv4 scaling 8192=a.json.gz 65536=b.json.gz 1048576=c.json.gz --param max_context
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    points = [sweep_point(t, param) for t in traces]
    loaded = rule_set(rules)
    runs = []
    for point in points:
        with reading(point.path.name) as progress:
            run = load(point.path, label=point.label, rules=loaded, salvage=salvage, progress=progress)
        runs.append((point.x, run))
    found = comparing.scaling(runs, param or "x", by)
    write(
        chosen,
        lambda: machine.dumps("scaling", scaling_body(found)),
        lambda: scaling_rows(found),
        lambda: [scaling_grid(found, top)],
        full,
    )
