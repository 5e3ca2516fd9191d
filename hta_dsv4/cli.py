"""The command line: parse options, call, print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from typing import Annotated

import typer

from hta_dsv4 import comparing
from hta_dsv4 import run as run_module
from hta_dsv4.analysis.shares import Shares
from hta_dsv4.capture_notes import profiler_notes
from hta_dsv4.cli_cache import NoCache, cache, leave_cache, no_cache_first
from hta_dsv4.cli_capture import capture
from hta_dsv4.cli_cluster import ClusterOption, runs_from
from hta_dsv4.cli_exit import run_and_exit
from hta_dsv4.cli_findings import findings
from hta_dsv4.cli_gate import gate
from hta_dsv4.cli_gpu import coverage, fill, idle
from hta_dsv4.cli_options import (
    Again,
    AsCsv,
    AsJson,
    AsMd,
    AsParquet,
    By,
    Companions,
    Frames,
    Full,
    Inputs,
    Points,
    RulesFile,
    Salvage,
    Top,
    form,
    load_runs,
    rule_set,
    write,
)  # fmt: skip
from hta_dsv4.cli_ranks import ranks
from hta_dsv4.cli_report import annotate, report
from hta_dsv4.cli_speed import roofline, whatif
from hta_dsv4.cli_sweep import sweep
from hta_dsv4.cluster import AUTO
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import grid, machine
from hta_dsv4.present.cross_grid import can_cross, cross_grid
from hta_dsv4.present.diff_grid import explanation_grids
from hta_dsv4.present.diff_json import explanation_body
from hta_dsv4.present.progress import reading
from hta_dsv4.present.scaling_grid import scaling_body, scaling_grid, scaling_rows
from hta_dsv4.run import Run
from hta_dsv4.sweep_points import sweep_point

app = typer.Typer(
    name="hta-dsv4",
    help="Profile-driven bottleneck analysis for DeepSeek-V4 decode: exact kernel shares from Kineto traces.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hta-dsv4 {metadata.version('hta-dsv4')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    no_cache: NoCache = False,
) -> None:
    """What may stand before a command."""
    leave_cache(no_cache)


@app.command()
def shares(
    traces: Inputs,
    by: By = "bucket",
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
    """Where the GPU time goes: time per step, share and launches of each bucket, role, origin or kernel.

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
        lambda: [g for t in tables for g in _share_grids(t, top)],
        full,
    )


def _share_grids(shares: Shares, top: int) -> list[grid.Grid]:
    """The table, and the cross table where there are two keys."""
    return [grid.shares_grid(shares, top)] + ([cross_grid(shares)] if can_cross(shares) else [])


@app.command()
def diff(
    traces: Inputs,
    by: By = "bucket",
    top: Top = 25,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_md: AsMd = False,
    parquet: AsParquet = None,
    full: Full = False,
    again: Again = None,
    rules: RulesFile = None,
    salvage: Salvage = False,
    companion: Companions = None,
    frames: Frames = False,
    cluster: ClusterOption = AUTO,
) -> None:
    """Variants side by side, per step, the first as base; and why each differs from the one before it.

    The change is divided, exactly, into more or fewer launches (count), slower or faster ones (duration), kernels
    that appeared and kernels that are gone; wall time into sum, overlap and idle.

    Example: hta-dsv4 diff original=a.json.gz mma=b.json.gz split_k=c.json.gz --by role
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    if len(traces) < 2:
        raise HtaDsv4Error("diff takes at least two traces; for one use: hta-dsv4 shares TRACE")
    repeats: dict[str, list[Run]] = {}
    with runs_from(cluster, traces, by, rules, salvage, companion, frames) as runs:
        comparison = comparing.compare(runs, by)
        comparison = replace(
            comparison, notes=(*profiler_notes(runs, comparison.variants), *comparison.notes)
        )
        for repeat in load_runs(again or [], rules, salvage):
            repeats.setdefault(repeat.label, []).append(repeat)
        explained = comparing.why(runs, by, repeats)
    write(
        chosen,
        lambda: machine.dumps(
            "diff", {**machine.comparison_body(comparison), "explanation": explanation_body(explained)}
        ),
        lambda: machine.comparison_rows(comparison),
        lambda: [grid.comparison_grid(comparison, top), *explanation_grids(explained, top, full)],
        full,
    )


@app.command()
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
            run = run_module.load(
                point.path, label=point.label, rules=loaded, salvage=salvage, progress=progress
            )
        runs.append((point.x, run))
    found = comparing.scaling(runs, param or "x", by)
    write(
        chosen,
        lambda: machine.dumps("scaling", scaling_body(found)),
        lambda: scaling_rows(found),
        lambda: [scaling_grid(found, top)],
        full,
    )


@app.command()
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
        lambda: [g for i in infos for g in grid.info_grids(i)],
        full,
    )


@app.command()
def explain(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Kernel names; - reads one a line from stdin.")
    ],
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_md: AsMd = False,
    parquet: AsParquet = None,
    full: Full = False,
    rules: RulesFile = None,
) -> None:
    """Which rule puts a kernel name in which bucket, and which other rules matched.

    Example: hta-dsv4 explain cutlass_80_simt_sgemm_64x128_8x5_tn_align1
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    loaded = rule_set(rules)
    wanted: list[str] = []
    for name in names:
        wanted += _names_on_stdin() if name == "-" else [name]
    found = [loaded.explain(n) for n in wanted if n.strip()]
    if not found:
        raise HtaDsv4Error("no kernel name given: every line of the input is empty")
    write(
        chosen,
        lambda: machine.explain_lines(found),
        lambda: machine.explain_rows(found),
        lambda: [grid.explain_grid(found)],
        full,
    )


def _names_on_stdin() -> list[str]:
    """Lines of stdin: UTF-8, as in traces, whatever the terminal's encoding; other bytes are shown as escapes."""
    if sys.stdin is None:
        raise HtaDsv4Error("stdin is closed; give names as arguments, or pipe them in")
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="backslashreplace")
    return [line.rstrip("\r\n") for line in sys.stdin]


app.command()(fill)
app.command()(coverage)
app.command()(idle)
app.command()(roofline)
app.command()(whatif)
app.command()(findings)
app.command()(ranks)
app.command()(gate)
app.command()(report)
app.command()(annotate)
app.command()(capture)
app.command()(sweep)
app.command()(cache)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2.

    Args:
        args: the words after the command's name; by default the process's own.
    """
    words = no_cache_first(sys.argv[1:] if args is None else args)
    run_and_exit(lambda: app(words, standalone_mode=False, prog_name="hta-dsv4"))


if __name__ == "__main__":
    main()
