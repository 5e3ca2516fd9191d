"""Findings of several variants: each its own, and captures that differ in the static maximum alone read as a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.findings import MATERIAL, Findings
from hta_dsv4.analysis.scaling import Scaling
from hta_dsv4.runs.comparing import scaling
from hta_dsv4.runs.run import Run

_ALIKE = ("config", "concurrency", "context", "switches", "launch")
"""What the manifests of a sweep have in common."""


def findings(
    runs: Sequence[Run], *, device: str | None = None, workloads: Sequence[Workload] | None = None,
    material: float = MATERIAL,
) -> tuple[Findings, ...]:  # fmt: skip
    """What to attack next in each variant.

    Args:
        runs: the variants. Where manifests show captures of one variant at several static maxima, the largest is told
            what the sweep says.
        device: the GPU, where traces do not name it.
        workloads: what was decoded, one per run; as the runs say by default.
        material: part of the step below which a finding is not listed.

    Returns:
        One result per run, in their order.

    Raises:
        HtaDsv4Error: unknown ``device``, no GPU activity, or a broken manifest.
    """
    found = sweeps(runs)
    return tuple(
        run.findings(
            device=device,
            workload=None if workloads is None else workloads[i],
            sweep=found.get(i),
            material=material,
        )
        for i, run in enumerate(runs)
    )


def sweeps(runs: Sequence[Run]) -> dict[int, Scaling]:
    """Position of a run -> the sweep over the static maximum of which it is the largest."""
    groups: dict[str, list[tuple[int, float]]] = {}
    for i, run in enumerate(runs):
        if len(runs) < 2 or not run.counted.steps:
            continue
        entry: Any = run.manifest
        maximum = entry.get("max_context")
        if maximum:
            groups.setdefault(repr([entry.get(k) for k in _ALIKE]), []).append((i, float(maximum)))
    out = {}
    for group in groups.values():
        if len({x for _, x in group}) > 1:
            largest = max(group, key=lambda pair: pair[1])[0]
            out[largest] = scaling([(x, runs[i]) for i, x in group], "max_context", "origin")
    return out
