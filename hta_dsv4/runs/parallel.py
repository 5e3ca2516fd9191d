"""Several ranks beside one GPU, loaded: speed-up, efficiency, what is divided and what is not."""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.analysis.communication import Communication
from hta_dsv4.analysis.parallel_gain import ParallelGain, Side
from hta_dsv4.analysis.parallel_gain import parallel_gain as gain_of
from hta_dsv4.analysis.phases import kernel_times, phase_notes
from hta_dsv4.analysis.rank_gpus import used_gpus
from hta_dsv4.analysis.shares import parse_by
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.run import Run
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.ranks import world_size

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
        HtaDsv4Error: one rank only, a single that is a rank of several itself, a variant without steps or GPU time, no
            bucket in common, an unknown ``by``, or a broken manifest.
    """
    keys = parse_by(by)
    said = communication if communication is not None else many.collectives()
    world = world_size(single.traces)
    if len(single.ranks) == 1 and world is not None and world > 1:
        raise HtaDsv4Error(
            f"{single.label} is one rank of {world} itself (distributedInfo.world_size): no step on one GPU; name a "
            "trace of the whole model on one GPU"
        )
    gpus = [{t.path.name: _gpus(t) for t in run.traces} for run in (single, many)]
    one, ranks = ({g for g in side.values() if g} for side in gpus)
    notes = []
    if len(ranks) > 1:
        said_of = ", ".join(f"{name} {gpu or 'says none'}" for name, gpu in gpus[1].items())
        notes.append(f"not comparable: {many.label} has ranks on different GPUs ({said_of}), so no speed-up")
    elif one and ranks and one != ranks:
        notes.append(
            f"not comparable: gpu differs: {single.label} {' and '.join(sorted(one))}, {many.label} "
            f"{' and '.join(sorted(ranks))}: a part of the difference is the GPU's, so no speed-up"
        )
    comparable = not notes
    if len(single.ranks) > 1:
        notes.append(f"{single.label} has {len(single.ranks)} ranks itself: speed-up is over one of them")
    for fact in _SAME:
        a, b = single.manifest.get(fact), many.manifest.get(fact)
        if a is not None and b is not None and a != b:
            notes.append(f"{fact} differs ({a} and {b}): a part of the difference is not that of the ranks")
    notes += phase_notes([(r.label, kernel_times(r.counted)) for r in (single, many)])
    return gain_of(
        _side(single),
        _side(many),
        len(many.ranks),
        keys,
        communication=_waits(said, many),
        notes=notes,
        comparable=comparable,
    )


def _gpus(trace: Trace) -> str:
    """The GPU models that the ranks of a trace used."""
    return " and ".join(sorted({name for names in used_gpus(trace).values() for name in names}))


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
