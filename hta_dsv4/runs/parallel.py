"""Several ranks beside one GPU, loaded: speed-up, efficiency, what is divided and what is not."""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.analysis.communication import Communication
from hta_dsv4.analysis.parallel_gain import ParallelGain, Side
from hta_dsv4.analysis.parallel_gain import parallel_gain as gain_of
from hta_dsv4.analysis.phases import kernel_times, phase_notes
from hta_dsv4.analysis.shares import parse_by
from hta_dsv4.runs.run import Run

_SAME = ("config", "context", "max_context", "launch", "switches")
"""Facts of manifests that must not differ where only the number of ranks is to."""


def parallel_gain(
    single: Run, many: Run, by: str | Sequence[str] = "bucket", *, communication: Communication | None = None
) -> ParallelGain:
    """What a folder of ranks wins over the same step on one GPU.

    Args:
        single: a trace of one GPU.
        many: the ranks; the median one stands for them.
        by: ``bucket``, ``role``, ``origin``, ``kernel``, or several of them.
        communication: of ``many``, where it is known already.

    Raises:
        HtaDsv4Error: one rank only, a variant without steps, an unknown ``by``, or a broken manifest.
    """
    keys = parse_by(by)
    said = communication if communication is not None else many.collectives()
    notes = []
    if len(single.ranks) > 1:
        notes.append(f"{single.label} has {len(single.ranks)} ranks itself: speed-up is over one of them")
    for fact in _SAME:
        a, b = single.manifest.get(fact), many.manifest.get(fact)
        if a is not None and b is not None and a != b:
            notes.append(f"{fact} differs ({a} and {b}): a part of the difference is not that of the ranks")
    notes += phase_notes([(r.label, kernel_times(r.counted)) for r in (single, many)])
    return gain_of(
        _side(single), _side(many), len(many.ranks), keys, communication=_waits(said, many), notes=notes
    )


def _side(run: Run) -> Side:
    said = run.manifest.get("timing", {}).get("unprofiled_step_ms")
    return Side(run.label, run.counted, None if said is None else float(said) * 1e6, run.workload().batch)


def _waits(said: Communication, run: Run) -> tuple[float, float] | None:
    table = said.by_rank
    mine = table[table["rank"] == run.counted.rank] if len(table) else table
    if not len(mine) or not run.counted.steps:
        return None
    return float(mine["transfer_ns"].sum()) / run.counted.steps, float(
        mine["wait_ns"].sum()
    ) / run.counted.steps
