"""A candidate's captures against budgets and a baseline: from loaded runs to verdicts.

>>> import hta_dsv4.runs.gating
>>> from hta_dsv4.analysis.budget_file import read_budgets
>>> budgets = read_budgets(Path("budgets.toml"))  # doctest: +SKIP
>>> gating.gate(budgets, [load("main.json.gz")], [load("candidate.json.gz")]).verdict  # doctest: +SKIP
'pass'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from hta_dsv4.analysis.budgets import Budgets
from hta_dsv4.analysis.comparability import Conditions, comparability
from hta_dsv4.analysis.counted import Counted, step_times
from hta_dsv4.analysis.gate import Gate
from hta_dsv4.analysis.gate import gate as judge
from hta_dsv4.analysis.gate_causes import with_causes
from hta_dsv4.analysis.profile import KNOWN_ORIGIN_SHARE, Profile, profile
from hta_dsv4.analysis.step_series import Capture, reduce_capture
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.apart import facts_of
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.steps import NONE


def gate(
    budgets: Budgets, base: Iterable[Run], candidate: Iterable[Run], *, labels: tuple[str, str] | None = None
) -> Gate:
    """Judge a candidate by budgets, against a baseline where they are relative to one.

    Args:
        budgets: as read.
        base: captures of the baseline; may be none. Taken one at a time, so a generator holds one trace in memory.
        candidate: captures of the candidate, one or more.
        labels: what the two sides are called; by default as their first captures.

    Returns:
        The verdicts, with the kernels behind each that is not passed.

    Raises:
        HtaDsv4Error: no candidate, a budget that needs a baseline where there is none, a budget that matches nothing,
            no GPU activity, or a broken manifest.
    """
    old, old_profiles = _reduced(base)
    new, new_profiles = _reduced(candidate)
    if not new:
        raise HtaDsv4Error("gate: no capture of the candidate; name a trace")
    comparable = comparability(
        [c[0].conditions for c in old],
        [c[0].conditions for c in new],
        may_differ=budgets.may_differ,
        must_be_known=budgets.must_be_known,
        conditions=budgets.conditions,
    )
    found = judge(budgets, old, new, comparable)
    found = with_causes(found, old_profiles, new_profiles)
    if labels:
        found = replace(found, base_label=labels[0] if old else None, candidate_label=labels[1])
    return found


def conditions_of(run: Run) -> Conditions:
    """What a run was recorded under, from its trace and the manifest beside it.

    Args:
        run: one capture.

    Raises:
        HtaDsv4Error: no GPU activity, or a broken manifest.
    """
    overhead = run.manifest.get("timing", {}).get("profiler_overhead")
    return Conditions(
        run.label,
        facts_of(run),
        _partial(run),
        None if overhead is None else 100 * float(overhead),
        _knows_origin(run),
    )


def reduced(run: Run) -> list[Capture]:
    """One capture as time and launches per step of each of its ranks, with what it was recorded under.

    Raises:
        HtaDsv4Error: no GPU activity.
    """
    conditions, alone = conditions_of(run), len(run.ranks) == 1
    return [
        reduce_capture(part, step_times(part), conditions, None if alone else part.rank)
        for part in _parts(run)
    ]


def _parts(run: Run) -> list[Counted]:
    return [run.counted] if len(run.ranks) == 1 else [run.counted_of(rank) for rank in run.ranks]


def _reduced(runs: Iterable[Run]) -> tuple[list[list[Capture]], dict[int | None, Profile]]:
    """All captures, and the profiles of the first one's ranks, for the causes."""
    out: list[list[Capture]] = []
    first: dict[int | None, Profile] = {}
    for run in runs:
        out.append(reduced(run))
        if len(out) > 1:
            continue
        for part in _parts(run):
            if part.steps:
                found = profile(run.label, part, step_times(part))
                # Its launches are not asked for, and would keep the capture in memory while others are read.
                light = Counted(part.rank, part.activities.iloc[:0].copy(), part.step[:0], part.run)
                first[part.rank] = replace(found, part=light)
        if run.counted.rank in first:
            first[None] = first[run.counted.rank]  # where ranks are not told apart, the median one
    return out, first


def _partial(run: Run) -> str:
    cut = [t.path.name for t in run.traces if t.partial]
    if cut:
        return f"{cut[0]} is cut, and what was salvaged is not the whole step; capture again"
    if not all(part.steps for part in _parts(run)):
        why = next((s.detail for s in run.steps if s.method == NONE), "no complete decode step")
        return f"no steps, so nothing per step ({why}); capture whole steps with markers"
    return ""


def _knows_origin(run: Run) -> bool:
    return all(_origin_known(part.activities) for part in _parts(run))


def _origin_known(acts: pd.DataFrame) -> bool:
    total = int(acts[col.DUR_NS].sum())
    if col.ORIGIN not in acts or not total:
        return False
    known = int(acts[col.DUR_NS][acts[col.ORIGIN].astype(str) != "unknown"].sum())
    return known >= KNOWN_ORIGIN_SHARE * total
