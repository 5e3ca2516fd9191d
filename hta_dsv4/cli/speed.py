"""``hta-dsv4 roofline`` and ``hta-dsv4 whatif``: how fast it could be, and what a change would bring."""

from __future__ import annotations

from typing import Annotated

import typer

from hta_dsv4.analysis.change import halve_bytes, parse_set, remove
from hta_dsv4.analysis.devices import known_devices
from hta_dsv4.cli.options import (
    AsCsv,
    AsJson,
    AsMd,
    AsParquet,
    By,
    Companions,
    Frames,
    Full,
    RulesFile,
    Salvage,
    Top,
    form,
    load_runs,
    write,
)
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import machine
from hta_dsv4.present.roofline_grid import (
    device_body,
    devices_grid,
    devices_rows,
    roofline_body,
    roofline_grid,
    roofline_rows,
)
from hta_dsv4.present.whatif_grid import whatif_body, whatif_grids, whatif_rows

Device = Annotated[
    str | None,
    typer.Option("--device", help="The GPU, where the trace does not name it or for another's ceilings."),
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", "-c", help="Requests decoded together; by default as the manifest says."),
]
Context = Annotated[float | None, typer.Option("--context", help="Tokens each request has seen, on average.")]
MaxContext = Annotated[int | None, typer.Option("--max-context", help="The static maximum context.")]


def roofline(
    traces: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LABEL=]TRACE", help="A trace file, a folder of ranks, or a shipped trace."),
    ] = None,
    by: By = "bucket",
    top: Top = 25,
    device: Device = None,
    concurrency: Concurrency = None,
    context: Context = None,
    max_context: MaxContext = None,
    devices: Annotated[bool, typer.Option("--devices", help="List the GPUs with known ceilings.")] = False,
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
    """How far each kernel is from what the GPU permits: floor, headroom, achieved GB/s and TFLOP/s, and the bound.

    Example: hta-dsv4 roofline decode.pt.trace.json.gz --by origin
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    if devices:
        known = known_devices()
        write(
            chosen,
            lambda: machine.dumps("roofline", {"devices": [device_body(c) for c in known]}),
            lambda: devices_rows(known),
            lambda: [devices_grid(known)],
            full,
        )
        return
    if not traces:
        raise HtaDsv4Error("roofline: name a trace, or list the known GPUs with --devices")
    found = []
    for run in load_runs(traces, rules, salvage, companion, frames):
        w = run.workload(batch=concurrency, context=context, max_context=max_context)
        found.append(run.roofline(by, device=device, workload=w))
    write(
        chosen,
        lambda: machine.dumps("roofline", roofline_body(found)),
        lambda: roofline_rows(found),
        lambda: [roofline_grid(f, top) for f in found],
        full,
    )


def whatif(
    trace: Annotated[
        str,
        typer.Argument(metavar="[LABEL=]TRACE", help="A trace file, a folder of ranks, or a shipped trace."),
    ],
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="CHANGE",
            help="SELECTOR=floor, =12.5us (each launch), =43x25us (43 launches a step in their place), *0.1 or /2; "
            "repeatable, applied in order. SELECTOR: a bucket, role or origin, or bucket:, role:, origin:, "
            "kernel:TEXT, scope:TEXT, joined by +.",
        ),
    ] = None,
    halve: Annotated[
        list[str] | None,
        typer.Option(
            "--halve-bytes",
            metavar="SELECTOR",
            help="Half the bytes to move, the same efficiency; repeatable.",
        ),
    ] = None,
    gone: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="SELECTOR", help="Take these launches out; repeatable."),
    ] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Launch each step as one CUDA graph.")] = False,
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
    """What a step would take if launches were faster, fewer or gone: sum, busy, wall and tok/s, with assumptions.

    Changes are applied in the order --set, --halve-bytes, --remove.

    Example: hta-dsv4 whatif original --set "attention=floor" --set "origin:indexer*0.1"
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    changes = [
        *(parse_set(t) for t in change or ()),
        *(halve_bytes(t) for t in halve or ()),
        *(remove(t) for t in gone or ()),
    ]
    if not changes and not graph:
        raise HtaDsv4Error("whatif: nothing changes; give --set, --halve-bytes, --remove or --graph")
    (run,) = load_runs([trace], rules, salvage, companion, frames)
    w = run.workload(batch=concurrency, context=context, max_context=max_context)
    found = run.whatif(changes, graph=graph, device=device, workload=w)
    write(
        chosen,
        lambda: machine.dumps("whatif", whatif_body(found)),
        lambda: whatif_rows(found),
        lambda: list(whatif_grids(found)),
        full,
    )
