"""One rank's activities on its own clock, with the steps they belong to: what the ranks of a run are compared by.

Files of one run may count their times from different base times, so times here are absolute (base time added). They
are still those of each rank's own clock; :mod:`hta_dsv4.analysis.clocks` says how the clocks differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hta_dsv4.trace import activities as col
from hta_dsv4.trace import steps as steps_module
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.steps import Steps

Ints = NDArray[np.int64]

_LARGEST_BASE = 1 << 61  # keeps base + start within int64; Unix time in ns is 0.8 of it


@dataclass(frozen=True, slots=True, eq=False)
class RankPart:
    """One rank of a run.

    Attributes:
        rank: rank number.
        activities: classified activity table of the rank, in time order, index 0..n-1.
        start, end: int64 [n], ns on the rank's own clock since 1970 where the file says its base time.
        step: int64 [n], position of the activity's step among the counted ones; -1 outside them.
        labels: the counted steps' labels, in order.
        run: int64 [steps], which run of consecutive counted steps each belongs to.
        host: the machine's name, where the file says it.
    """

    rank: int
    activities: pd.DataFrame
    start: Ints
    end: Ints
    step: Ints
    labels: tuple[str, ...]
    run: Ints
    host: str | None = None

    @property
    def steps(self) -> int:
        """Number of counted steps."""
        return len(self.labels)


def rank_parts(
    traces: Sequence[Trace], tables: Sequence[pd.DataFrame], steps: Sequence[Steps]
) -> tuple[RankPart, ...]:
    """Cut traces into ranks.

    Args:
        traces: one per file; a merged file holds several ranks.
        tables: the classified activity table of each.
        steps: the steps of each.

    Returns:
        One part per rank with GPU activity, by rank number.
    """
    parts = []
    for trace, table, found in zip(traces, tables, steps, strict=True):
        base = trace.meta.base_time_ns if 0 <= trace.meta.base_time_ns <= _LARGEST_BASE else 0
        host = trace.meta.extra.get("host_name")
        of_activity = found.of_activity.fillna(-1).to_numpy(dtype=np.int64)
        ranks = table[col.RANK].to_numpy()
        for rank in sorted({int(r) for r in np.unique(ranks)}):
            mine = ranks == rank
            acts = table[mine].reset_index(drop=True)
            counted = found.counted
            counted = counted[counted[steps_module.RANK] == rank]
            labels = counted.index.to_numpy()
            step = np.full(len(acts), -1, np.int64)
            inside = np.isin(of_activity[mine], labels)
            step[inside] = np.searchsorted(labels, of_activity[mine][inside])
            run = (np.diff(labels, prepend=labels[0]) > 1).cumsum() if len(labels) else np.zeros(0, np.int64)
            start = acts[col.START_NS].to_numpy() + base
            parts.append(
                RankPart(
                    rank, acts, start, start + acts[col.DUR_NS].to_numpy().clip(min=0), step,
                    tuple(str(x) for x in counted[steps_module.LABEL]), run.astype(np.int64), _text(host),
                )
            )  # fmt: skip
    return tuple(sorted(parts, key=lambda p: p.rank))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
