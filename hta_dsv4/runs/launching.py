"""How each variant of a chain launches its kernels compared with the one before it: the traces' metadata joined in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hta_dsv4.analysis.apart import work_differs
from hta_dsv4.analysis.launch_changes import LaunchChanges
from hta_dsv4.analysis.launch_changes import launch_changes as find_changes
from hta_dsv4.analysis.why import Explanation
from hta_dsv4.runs.apart import recorded_under
from hta_dsv4.runs.run import Run


def launch_changes(runs: Sequence[Run], explanation: Explanation) -> tuple[LaunchChanges, ...]:
    """Which launch configurations changed along a chain of variants.

    Args:
        runs: the variants that were explained.
        explanation: what :func:`hta_dsv4.runs.comparing.why` gave for them.

    Returns:
        One entry per pair of the explanation; empty where it is.
    """
    if not explanation.pairs:
        return ()
    meta = {r.label: r.counted_trace.meta for r in runs}
    pairs = [w.decomposition for w in explanation.pairs]
    facts = {r.label: recorded_under(r) for r in runs}
    return tuple(
        replace(
            find_changes(p, meta.get(p.base.label), meta.get(p.other.label)),
            same_work=not work_differs(facts[p.base.label], facts[p.other.label]),
        )
        for p in pairs
    )
