"""What every table of a run says beside its figures: what is left out, what disagrees, how far origins go."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from hta_dsv4.analysis.shares import RankShares
from hta_dsv4.classify.architecture import read_activities
from hta_dsv4.classify.graphs import Fit
from hta_dsv4.classify.origin_columns import INFERRED, METHODS
from hta_dsv4.classify.origin_columns import NONE as NO_METHOD
from hta_dsv4.runs.companion_file import companion_option
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.steps import NONE, Steps

IN_REPLAYS = "most of it runs in graph replays"
"""What a note says of variants of which only an eager companion tells the origins."""


def share_notes(
    traces: Sequence[Trace], found: Sequence[Steps], ranks: Sequence[RankShares]
) -> tuple[str, ...]:
    """What a share table leaves out or could not settle.

    Args:
        traces: as read.
        found: the steps of each trace.
        ranks: the share tables of all ranks.
    """
    notes: list[str] = []
    for trace, steps in zip(traces, found, strict=True):
        where = f"{trace.path.name}: " if len(traces) > 1 else ""
        if trace.partial:
            notes.append(f"{where}PARTIAL: salvaged from a cut file; every figure covers only what was whole")
        if steps.method == NONE and len(trace.activities):
            notes.append(f"{where}no steps: {steps.detail}; figures are totals of the trace")
            reading = read_activities(trace.activities, steps)
            notes += [f"{where}{sentence}" for sentence in (reading.sentences() if reading else ())]
        left_out = steps.table[~steps.table["counted"]]
        if len(left_out):
            kinds = ", ".join(f"{n} {p}" for p, n in left_out["phase"].value_counts().items())
            notes.append(f"{where}{kinds} step(s) left out: the table is of decode steps")
        notes += [f"{where}{steps.method} and {a.method} disagree: {a.detail}" for a in steps.disagreements]
        notes += [where + w for w in trace.warnings]
        devices = trace.activities.groupby(col.RANK)[col.DEVICE].nunique(dropna=False)
        if len(devices) and int(devices.max()) > 1:
            notes.append(
                f"{where}{int(devices.max())} GPUs in one rank: all times are those of each GPU, added; wall, idle and "
                "what lies between steps too, gaps counted on each"
            )
    for rank in ranks:
        if rank.steps and rank.outside:
            total = rank.extent.sum_ns + rank.outside_ns
            notes.append(
                f"rank {rank.rank}: {rank.outside} activities, {rank.outside_ns / 1e3:.3f} us, "
                f"{100 * rank.outside_ns / total:.1f} % of the trace's sum, lie outside the counted steps"
            )
    return tuple(notes)


def origin_notes(
    label: str, traces: Sequence[Trace], table: pd.DataFrame, fits: Sequence[Fit | None]
) -> tuple[str, ...]:
    """How far the origins can be trusted, and what would tell more.

    Args:
        label: the variant's name.
        traces: as read.
        table: the classified activities of all of them.
        fits: how well a companion fits each; ``None`` without one.
    """
    total = int(table[col.DUR_NS].sum())
    if not total:
        return ()
    by_method = table.groupby(col.ORIGIN_METHOD, observed=True)[col.DUR_NS].sum()
    share = {str(m): 100 * int(ns) / total for m, ns in by_method.items()}
    notes = [f.sentence for f in fits if f is not None]
    told = [f"{share[m]:.1f} % by {m}" for m in METHODS if m in share and m != NO_METHOD]
    inferred = sum(share.get(m, 0.0) for m in INFERRED)
    notes.append(
        "origins, share of the sum: "
        + (", ".join(told) or "none is known")
        + (f"; {inferred:.1f} % are inferred, not recorded" if inferred else "")
    )
    if share.get(NO_METHOD, 0.0) > 5:
        given = any(f is not None for f in fits)
        remedy = _origin_remedy(traces, table, None if given else companion_option(label, traces))
        notes.append(f"{share[NO_METHOD]:.1f} % of the sum have no origin; {remedy}")
    return tuple(notes)


def _origin_remedy(traces: Sequence[Trace], table: pd.DataFrame, companion: str | None) -> str:
    """What would tell the origin of most activities that have none: no stack reaches into a graph replay."""
    lost = table[table[col.ORIGIN_METHOD].eq(NO_METHOD)]
    replayed = lost[col.LAUNCH_NAME].astype("string").str.contains("GraphLaunch").fillna(False)
    if 2 * int(lost.loc[replayed, col.DUR_NS].sum()) > int(lost[col.DUR_NS].sum()):
        give = f"its eager trace with {companion}" if companion else "an eager trace with --companion"
        return f"{IN_REPLAYS}, where no op or stack tells: give {give}"
    if any(t.meta.with_stack for t in traces) and not any(_has_frames(t) for t in traces):
        return "the trace was recorded with stacks: read them with --frames"
    return "name parts with record_function, record with stacks, or give an eager trace with --companion"


def _has_frames(trace: Trace) -> bool:
    return len(trace.events) > 0 and "python_function" in set(trace.events[col.CATEGORY].cat.categories)


def why_empty(traces: Sequence[Trace]) -> str:
    """Why a trace has no GPU activity, as far as it tells, and the remedy."""
    if any(len(t.events) for t in traces):
        return (
            "CPU-only trace, no GPU activity in it; record with ProfilerActivity.CUDA and check that CUPTI is not "
            "held by another profiler"
        )
    return "no GPU events in the trace; check that the profiled region ran"
