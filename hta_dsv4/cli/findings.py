"""``hta-dsv4 findings``: what to attack next, with the evidence; what to leave alone; what to record again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hta_dsv4.cli.findings_log import append as add_to_log
from hta_dsv4.cli.findings_log import entry
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
    form,
    load_runs,
    write,
)
from hta_dsv4.cli.speed import Concurrency, Context, Device, MaxContext
from hta_dsv4.present import machine
from hta_dsv4.present.findings_grid import finding_grids, findings_body, findings_grid, findings_rows
from hta_dsv4.runs.findings import findings as find_all

_LIST = "Findings to print, the best; 0 for all. Text, --md and --append."


def findings(
    traces: Inputs,
    top: Annotated[int, typer.Option("--top", help=_LIST, min=0)] = 8,
    append: Annotated[
        Path | None,
        typer.Option(
            "--append", metavar="FILE", help="Add them, dated, to a log in Markdown; never rewritten."
        ),
    ] = None,
    device: Device = None,
    concurrency: Concurrency = None,
    context: Context = None,
    max_context: MaxContext = None,
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
    """What to attack next, best first: evidence, time to be saved, confidence, check, stop rule; and what to leave.

    Captures of one variant at several static maxima, given together, are read as a sweep.

    Example: hta-dsv4 findings split_k --append PROFILE_FINDINGS.md
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    runs = load_runs(traces, rules, salvage, companion, frames)
    workloads = [r.workload(batch=concurrency, context=context, max_context=max_context) for r in runs]
    found = find_all(runs, device=device, workloads=workloads)
    if append is not None:
        entries = [
            entry(f, [t.path for t in run.traces], top) for f, run in zip(found, runs, strict=True)
        ]  # fmt: skip
        add_to_log(append, "\n".join(entries))
    write(
        chosen,
        lambda: machine.dumps("findings", findings_body(found)),
        lambda: findings_rows(found),
        lambda: [g for f in found for g in (findings_grid(f, top), *finding_grids(f, top))],
        full,
    )
