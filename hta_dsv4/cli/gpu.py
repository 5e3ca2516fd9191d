"""``hta-dsv4 fill``, ``coverage`` and ``idle``: how much of the GPU a step uses."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

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
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import coverage_grid as cov
from hta_dsv4.present import fill_grid as fil
from hta_dsv4.present import idle_grid as idl
from hta_dsv4.present import machine
from hta_dsv4.present.cells import plain
from hta_dsv4.present.grid import Grid
from hta_dsv4.runs.run import Run
from hta_dsv4.trace.manifest import manifest_for

_Top = Annotated[
    int,
    typer.Option(
        "--top", help="Rows of each table, the rest as one line; 0 for all. Text and --md only.", min=0
    ),
]


def _by(default: str, what: str) -> Any:
    return typer.Option(
        "--by", help=f"{what}: bucket, role, origin, kernel; several with commas.", show_default=default
    )


def fill(
    traces: Inputs,
    by: Annotated[str, _by("kernel", "What a row is")] = "kernel",
    top: _Top = 25,
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
    """CTAs against what the SMs hold: underfilled launches and the time they own, CTAs per SM, waves, tail.

    Example: hta-dsv4 fill split_k_c1 --by bucket
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    found = [r.fill(by) for r in load_runs(traces, rules, salvage, companion, frames)]
    write(
        chosen,
        lambda: machine.dumps("fill", fil.fill_body(found)),
        lambda: fil.fill_rows(found),
        lambda: [fil.fill_grid(f, top) for f in found],
        full,
    )


def coverage(
    traces: Inputs,
    by: Annotated[str, _by("bucket,origin", "Who owns the empty SM-time")] = "bucket,origin",
    top: _Top = 12,
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
    """How many SMs have work over time (an upper bound), variants side by side, and who leaves the others empty.

    Example: hta-dsv4 coverage mhc_fused cuda_graph
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    found = [r.coverage(by) for r in load_runs(traces, rules, salvage, companion, frames)]
    write(
        chosen,
        lambda: machine.dumps("coverage", cov.coverage_body(found)),
        lambda: cov.coverage_rows(found),
        lambda: [cov.coverage_grid(found), *(cov.owners_grid(f, top) for f in found)],
        full,
    )


def idle(
    traces: Inputs,
    by: Annotated[str, _by("bucket", "What the GPU was idle in front of")] = "bucket",
    with_hta: Annotated[
        bool,
        typer.Option(
            "--hta", help="HTA's own idle time breakdown beside it, where it is right on the trace."
        ),
    ] = False,
    top: _Top = 12,
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
    """What the GPU waits for while idle, the cost of launching, and what a CUDA graph would save.

    Example: hta-dsv4 idle mhc_fused cuda_graph
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    runs = load_runs(traces, rules, salvage, companion, frames)
    found = [r.idle(by, unprofiled_step_ns=_unprofiled(r)) for r in runs]
    hta = {r.label: _hta_idle(r) for r in runs} if with_hta else {}

    def body() -> str:
        document = idl.idle_body(found)
        for variant in document["variants"]:
            if variant["label"] in hta:
                rows, notes = hta[variant["label"]]
                variant["hta"] = {"rows": rows, "notes": notes}
        return machine.dumps("idle", document)

    def grids() -> list[Grid]:
        out = [idl.idle_grid(found)]
        for one in found:
            out += [idl.next_grid(one, top), idl.calls_grid(one)]
        return out + [idl.hta_grid(label, *each) for label, each in hta.items()]

    write(chosen, body, lambda: idl.idle_rows(found), grids, full)


def _unprofiled(run: Run) -> float | None:
    """Time of a step without the profiler, ns, as the manifest beside the trace states it."""
    if len(run.traces) != 1 or not Path(run.traces[0].path).is_file():
        return None
    manifest = manifest_for(run.traces[0].path)
    return None if manifest is None else manifest.timing.unprofiled_step_ms * 1e6


def _hta_idle(run: Run) -> tuple[list[dict[str, Any]], list[str]]:
    """HTA's breakdown of the rank that stands for the variant, with what the bridge has to say about it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            table = run.hta.idle_time_breakdown(run.counted.rank)
        except HtaDsv4Error as error:
            return [], [f"not given: {error}"]
    columns = ["stream", "idle_category", "idle_time", "idle_time_ratio"]
    rows = [{c: plain(row[c]) for c in columns} for _, row in table.iterrows()]
    return rows, [str(w.message) for w in caught]
