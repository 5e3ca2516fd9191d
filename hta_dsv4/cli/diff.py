"""``hta-dsv4 diff``: variants side by side, and why each differs from the one before it."""

from __future__ import annotations

from dataclasses import replace

from hta_dsv4.analysis.places import STEP
from hta_dsv4.analysis.shares import KEYS, SHARE_KEYS, parse_by
from hta_dsv4.cli.cluster import ClusterOption, runs_from
from hta_dsv4.cli.options import (
    Again,
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
    load_runs,
    write,
)  # fmt: skip
from hta_dsv4.cluster.choice import AUTO
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import machine
from hta_dsv4.present.diff_grid import explanation_grids
from hta_dsv4.present.diff_json import explanation_body
from hta_dsv4.present.launch_grid import launch_bodies
from hta_dsv4.present.shares_grid import comparison_grid
from hta_dsv4.runs import comparing
from hta_dsv4.runs.companions import companion_notes
from hta_dsv4.runs.launching import launch_changes
from hta_dsv4.runs.profiler_cost import profiler_notes
from hta_dsv4.runs.run import Run


def diff(
    traces: Inputs,
    by: ShareBy = "bucket",
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
    that appeared and kernels that are gone; a step's wall time into own time, overlap and idle. Then which launch
    configurations changed: grid, block, registers, shared memory, bytes of copies; and what runs alike at another
    speed.

    Example: hta-dsv4 diff original=a.json.gz mma=b.json.gz split_k=c.json.gz --by role
    """
    chosen = form(as_json, as_csv, as_md, parquet)
    if len(traces) < 2:
        raise HtaDsv4Error("diff takes at least two traces; for one use: hta-dsv4 shares TRACE")
    keys = parse_by(by, SHARE_KEYS)
    if STEP in keys:
        raise HtaDsv4Error(
            f"diff --by {by}: the n-th step of one variant is not that of another; ask hta-dsv4 shares --by {by}"
        )
    causes = tuple(k for k in keys if k in KEYS) or ("bucket",)  # a kernel is matched, wherever it ran
    repeats: dict[str, list[Run]] = {}
    with runs_from(cluster, traces, by, rules, salvage, companion, frames) as runs:
        comparison = comparing.compare(runs, by)
        comparison = replace(
            comparison,
            notes=(
                *comparison.notes,
                *profiler_notes(runs, comparison.variants),
                *companion_notes(runs, keys),
            ),
        )
        for repeat in load_runs(again or [], rules, salvage):
            repeats.setdefault(repeat.label, []).append(repeat)
        explained = comparing.why(runs, causes, repeats)
        launches = launch_changes(runs, explained)
    write(
        chosen,
        lambda: machine.dumps(
            "diff",
            {
                **machine.comparison_body(comparison),
                "explanation": explanation_body(explained),
                "launches": launch_bodies(launches),
            },
        ),
        lambda: machine.comparison_rows(comparison),
        lambda: [comparison_grid(comparison, top), *explanation_grids(explained, top, full, launches)],
        full,
    )
