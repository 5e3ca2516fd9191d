"""Several variants, loaded: side by side, why one differs from the next, how time follows a parameter.

>>> import hta_dsv4
>>> hta_dsv4.compare({"original": "a.json.gz", "split_k": "b.json.gz"}).table  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from hta_dsv4.analysis import compare as compare_module
from hta_dsv4.analysis.apart import MAXIMUM, WORKLOAD
from hta_dsv4.analysis.compare import Comparison
from hta_dsv4.analysis.counted import step_times
from hta_dsv4.analysis.phases import kernel_times, phase_notes
from hta_dsv4.analysis.profile import profile
from hta_dsv4.analysis.scaling import Point, Scaling
from hta_dsv4.analysis.scaling import scaling as fit_scaling
from hta_dsv4.analysis.shares import KEYS, OWN_NS_PER_STEP, Shares, median_of, parse_by
from hta_dsv4.analysis.why import Captured, Explanation, explain, step_rows
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.apart import apart, recorded_under
from hta_dsv4.runs.loading import load
from hta_dsv4.runs.run import Run


def compare(
    runs: Mapping[str, Run | str | Path] | Sequence[Run | str | Path], by: str | Sequence[str] = "bucket"
) -> Comparison:
    """Put variants side by side, the first as base.

    Args:
        runs: label -> run or path, or a sequence of runs or paths (labelled by themselves).
        by: ``bucket``, ``role``, ``kernel``, or several of them.

    Returns:
        The comparison.

    Raises:
        HtaDsv4Error: unknown ``by``, repeated labels, unreadable traces.
    """
    loaded = _loaded(runs)
    return compare_module.compare([_apportioned(r, r.shares(by)) for r in loaded], apart(loaded).notes)


def why(
    runs: Mapping[str, Run | str | Path] | Sequence[Run | str | Path],
    by: str | Sequence[str] = "bucket",
    again: Mapping[str, Sequence[Run]] | None = None,
) -> Explanation:
    """Say why the time per step changed from each variant to the next.

    Args:
        runs: as for :func:`compare`, in the order in which the changes were made.
        by: ``bucket``, ``role``, ``origin``, ``kernel``, or several of them.
        again: label -> further captures of that variant, which show how much repeated captures differ.

    Returns:
        The exact decomposition of each change, its verdicts, fusions and splits; empty, with the reason, where a
        variant has no steps.

    Raises:
        HtaDsv4Error: fewer than two variants, an unknown ``by``, unreadable traces.
    """
    keys, loaded, again = parse_by(by), _loaded(runs), again or {}
    if unknown := set(again) - {r.label for r in loaded}:
        known = ", ".join(r.label for r in loaded)
        raise HtaDsv4Error(f"{min(unknown)!r} repeats no variant; the variants are {known}")
    variants = []
    for run in loaded:
        if not run.counted.steps:
            return Explanation(reason=f"{run.label} has no steps, so there is no time per step to explain")
        first = profile(run.label, run.counted, step_times(run.counted))
        repeats = tuple(r.counted for r in again.get(run.label, ()) if r.counted.steps)
        ranks = (
            f"{run.label}: rank {run.counted.rank}, the {median_of(len(run.ranks))}, stands for the variant; what the "
            "others do, and who waits for whom: hta-dsv4 ranks; what they win over one GPU: its --single TRACE"
        )
        variants.append(Captured(first, repeats, (ranks,) if len(run.ranks) > 1 else ()))
    return explain(variants, keys)


def scaling(points: Sequence[tuple[float, Run]], parameter: str, by: str | None = None) -> Scaling:
    """Fit time per step over the values of a parameter.

    Args:
        points: value and capture; several captures at one value are repeats.
        parameter: what the values are, e.g. ``max_context``.
        by: ``bucket``, ``role``, ``origin`` or ``kernel``; by default origin where every capture knows it, else bucket.

    Returns:
        The fits, with what grows although it should not.

    Raises:
        HtaDsv4Error: fewer than two values, a capture without steps, an unknown ``by``.
    """
    runs = [run for _, run in points]
    if by is None:
        by = "origin" if runs and all(_knows_origin(r) for r in runs) else "bucket"
    (key,) = keys if len(keys := parse_by(by)) == 1 else ("",)
    if not key:
        raise HtaDsv4Error(f"--by {by}: a fit has rows of one kind; give a single key")
    made = [Point(run.label, x, step_rows(run.counted, key), _unprofiled_ns(run)) for x, run in points]
    found = fit_scaling(made, parameter, key)
    phased = phase_notes([(f"{parameter} = {x:,.15g}", kernel_times(run.counted)) for x, run in points])
    other = apart([run for _, run in points], _varied(points, parameter))
    alarm = other.notes[:1] if other.workload else ()
    return replace(found, notes=(*alarm, *found.notes, *phased))


def _apportioned(run: Run, shares: Shares) -> Shares:
    """A share table whose own times per step are those of the explanation: rounded so that they add up to the step.

    Rounded one by one a row may be 1 ns off, and would stand twice in one output with two figures. A table by place
    (layer, scope) has no other to agree with.
    """
    rank, keys = shares.median_rank, list(shares.by)
    if not rank.steps or run.counted.rank != rank.rank or not set(keys) <= set(KEYS):
        return shares
    atoms = profile(run.label, run.counted, step_times(run.counted)).atoms
    own = atoms.groupby(keys, sort=False)["step_ns"].sum()
    index = pd.MultiIndex.from_frame(rank.table[keys]) if len(keys) > 1 else pd.Index(rank.table[keys[0]])
    exact = own.reindex(index)
    if exact.isna().any():  # a name that the two tables spell differently
        return shares
    table = rank.table.assign(**{OWN_NS_PER_STEP: pd.array(exact.to_numpy(dtype="int64"), dtype="Int64")})
    ranks = tuple(replace(r, table=table) if r is rank else r for r in shares.ranks)
    return replace(shares, ranks=ranks)


def _varied(points: Sequence[tuple[float, Run]], parameter: str) -> str:
    """The fact of the captures that the parameter is, whatever its user calls it: the one with the same values."""
    facts = [recorded_under(run) for _, run in points]
    if any(parameter in f for f in facts):
        return parameter
    same = (
        n for n in (*WORKLOAD, MAXIMUM) if all(f.get(n) == x for f, (x, _) in zip(facts, points, strict=True))
    )
    return next(same, parameter)


def _unprofiled_ns(run: Run) -> float | None:
    """A step without the profiler, where the manifest says it."""
    said = run.manifest.get("timing", {}).get("unprofiled_step_ms")
    return None if said is None else float(said) * 1e6


def _knows_origin(run: Run) -> bool:
    return bool(run.counted.steps) and profile(run.label, run.counted, step_times(run.counted)).knows_origin


def _loaded(runs: Mapping[str, Run | str | Path] | Sequence[Run | str | Path]) -> list[Run]:
    pairs = runs.items() if isinstance(runs, Mapping) else [(None, r) for r in runs]
    loaded = []
    for label, run in pairs:
        if not isinstance(run, Run):
            run = load(run, label=label)
        elif label is not None and label != run.label:
            run = replace(run, label=label)
        loaded.append(run)
    return loaded
