"""Which GPU models did the ranks of a run use? Of different ones no rank's time is that of another."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Trace

_LISTED = 4
"""Ranks of one model that are named; more are counted."""


def used_gpus(trace: Trace) -> dict[int, tuple[str, ...]]:
    """The GPU models that each rank of a trace ran on.

    A file may list every GPU of its host, so those count on which the rank has activities; all of the file where its
    numbers are not those of the activities.

    Args:
        trace: as read.

    Returns:
        Rank -> names, sorted; empty where the file names none.
    """
    names = {d.index: d.name for d in trace.meta.devices if d.name}
    every = tuple(sorted(set(names.values())))
    table = trace.activities[[col.RANK, col.DEVICE]].drop_duplicates()
    out: dict[int, tuple[str, ...]] = {}
    for rank, devices in table.groupby(col.RANK)[col.DEVICE]:
        mine = [None if pd.isna(d) else names.get(int(d)) for d in devices]
        out[int(str(rank))] = tuple(sorted({n for n in mine if n})) if all(mine) else every
    return out


def mixed_gpus_note(traces: Sequence[Trace]) -> tuple[str, ...]:
    """That ranks ran on different GPU models, and which.

    Args:
        traces: of all ranks.

    Returns:
        One sentence; none where they ran on one model, or where that is not known.
    """
    ranks: dict[str, list[int]] = {}
    for trace in traces:
        for rank, names in used_gpus(trace).items():
            if names:
                ranks.setdefault(" and ".join(names), []).append(rank)
    if len(ranks) < 2:
        return ()
    said = "; ".join(f"{_ranks(sorted(of))} {model}" for model, of in sorted(ranks.items()))
    return (
        f"not comparable: ranks on different GPUs ({said}): what differs between them may be the GPU's, and no rank "
        "stands for the others",
    )


def _ranks(of: Sequence[int]) -> str:
    more = f" and {len(of) - _LISTED:,} more" if len(of) > _LISTED else ""
    return f"rank{'s' if len(of) > 1 else ''} {', '.join(map(str, of[:_LISTED]))}{more}"
