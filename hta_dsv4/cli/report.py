"""``hta-dsv4 report`` and ``hta-dsv4 annotate``: results to send to others and to open elsewhere."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hta_dsv4.analysis.throughput import throughput
from hta_dsv4.cli.files import write_whole
from hta_dsv4.cli.options import Companions, Frames, Inputs, RulesFile, Salvage, load_runs, rule_set
from hta_dsv4.cli.sweep_points import sweep_point
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.captures import Capture, capture_files
from hta_dsv4.runs import comparing
from hta_dsv4.runs.companions import companion_notes
from hta_dsv4.runs.loading import load
from hta_dsv4.runs.profiler_cost import profiler_notes
from hta_dsv4.runs.run import Run
from hta_dsv4.runs.sweep_record import sweeps_beside
from hta_dsv4.trace.manifest import manifest_for


class ReportForm(str, Enum):
    """What a report is written as."""

    HTML, MD = "html", "md"


Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="File to write; the ending .html or .md says the form. Standard output for Markdown.",
    ),
]


def report(
    traces: Inputs,
    out: Out = None,
    form: Annotated[
        ReportForm | None,
        typer.Option("--format", help="html: one file, works offline; md: a comment to paste."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="[X=]TRACE",
            help="A capture at one value of --param, to show what grows; repeatable.",
        ),
    ] = None,
    param: Annotated[
        str | None, typer.Option("--param", help="The parameter of --sweep, e.g. max_context.")
    ] = None,
    rules: RulesFile = None,
    salvage: Salvage = False,
    companion: Companions = None,
    frames: Frames = False,
) -> None:
    """Write a report on one variant or several: figures and tables in one HTML file, or a pull-request comment.

    Variants are given in the order in which the changes were made; each is explained against the one before it.

    Example: hta-dsv4 report original mma split_k -o report.html
    """
    chosen = form or (ReportForm.MD if out is None or out.suffix.lower() == ".md" else ReportForm.HTML)
    if out is None and chosen is ReportForm.HTML:
        raise HtaDsv4Error(
            "report --format html: an HTML report is a file of some MB; name it with -o report.html"
        )
    if sweep and len(sweep) < 2:
        raise HtaDsv4Error("--sweep: give it at least twice, once per value of the parameter")
    runs = load_runs(traces, rules, salvage, companion, frames)
    from hta_dsv4.present.report import build  # Plotly takes a second to import

    found = None
    if sweep:
        points = [sweep_point(text, param) for text in sweep]
        loaded = [(p.x, load(p.path, label=p.label, rules=rule_set(rules))) for p in points]
        found = comparing.scaling(loaded, param or "x")
    files = [c for r in runs for c in _files(r)]
    notes = profiler_notes(runs, [r.shares("bucket") for r in runs])
    alone = [(r.label, r.traces[0].path) for r in runs if len(r.traces) == 1]
    over_c = []
    try:
        over_c = [throughput(s) for s in sweeps_beside(alone)]
    except HtaDsv4Error as error:  # a broken manifest costs this section, not the report
        notes = (*notes, f"throughput over concurrency is not shown: {error}")
    made = build(runs, files, found, notes=notes, throughput=over_c)
    if chosen is ReportForm.MD:
        from hta_dsv4.present.report_md import report_md

        text = report_md(made)
    else:
        from hta_dsv4.present.report_html import report_html

        text = report_html(made)
    if out is None:
        sys.stdout.write(text)
        return
    write_whole(out, text.encode("utf-8", errors="backslashreplace"))
    for note in companion_notes(
        runs, ()
    ):  # in the page too, but who runs the command can do it again at once
        print(f"note: {note}", file=sys.stderr)
    print(f"wrote {out}, {_size(out)}", file=sys.stderr)


def annotate(
    trace: Annotated[
        str,
        typer.Argument(metavar="[LABEL=]TRACE", help="A trace file, a folder of ranks, or a shipped trace."),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Perfetto trace to write, e.g. out.pftrace; .gz compresses it."),
    ],
    rules: RulesFile = None,
    salvage: Salvage = False,
    companion: Companions = None,
    frames: Frames = False,
) -> None:
    """Write a trace for ui.perfetto.dev: a track per bucket, steps, origins, counters; overlapping kernels survive.

    Example: hta-dsv4 annotate decode.pt.trace.json.gz -o decode.pftrace
    """
    from hta_dsv4.present.perfetto import gpus
    from hta_dsv4.present.perfetto_file import perfetto_bytes, perfetto_library

    perfetto_library()
    (run,) = load_runs([trace], rules, salvage, companion, frames)
    found = gpus(run)
    write_whole(out, perfetto_bytes(found, compress=out.suffix == ".gz"))
    for note in dict.fromkeys((*(note for g in found for note in g.notes), *companion_notes([run], ()))):
        print(f"note: {note}", file=sys.stderr)
    print(f"wrote {out}, {_size(out)}; open it at https://ui.perfetto.dev", file=sys.stderr)


def _files(run: Run) -> list[Capture]:
    found = {t.path: manifest_for(t.path) for t in run.traces if t.path.is_file()}
    return capture_files(run, {path: m.as_dict() for path, m in found.items() if m is not None})


def _size(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
