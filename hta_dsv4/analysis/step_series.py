"""One rank of a capture as time and launches in each step, of the step and of each row: small, and enough to judge.

A trace of a gigabyte becomes some kilobytes, so that many captures can be held side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.analysis.budgets import BUCKET, KERNEL, ORIGIN, ROLE, STEP, Budget
from hta_dsv4.analysis.comparability import Conditions
from hta_dsv4.analysis.counted import Counted, own_by_run
from hta_dsv4.analysis.profile import UNKNOWN
from hta_dsv4.trace import activities as col

_COLUMN = {BUCKET: col.BUCKET, ROLE: col.ROLE, ORIGIN: col.ORIGIN, KERNEL: col.NAME}


@dataclass(frozen=True)
class Capture:
    """One rank of a capture, reduced to what budgets ask of it.

    Attributes:
        conditions: what the capture was recorded under.
        steps: counted steps.
        times: measure (sum, own, busy, wall, idle) -> int64 [steps], ns.
        ns: kind (bucket, role, origin, kernel) -> name -> int64 [steps], own times: waiting for the launch ahead is no
            row's.
        launches: the same, activities.
        rank: which rank of the capture; ``None`` where it has one only.
    """

    conditions: Conditions
    steps: int
    times: Mapping[str, np.ndarray]
    ns: Mapping[str, Mapping[str, np.ndarray]]
    launches: Mapping[str, Mapping[str, np.ndarray]]
    rank: int | None = None

    def row(self, budget: Budget, counts: bool) -> np.ndarray | None:
        """A budget's quantity in each step, ``None`` where nothing matches: ns, or launches."""
        if budget.kind == STEP:
            return _total(self.launches[BUCKET], self.steps) if counts else self.times[budget.name]
        table = (self.launches if counts else self.ns)[budget.kind]
        found = [v for name, v in table.items() if budget.matches(name)]
        return np.sum(found, axis=0) if found else None


def reduce_capture(
    part: Counted, times: pd.DataFrame, conditions: Conditions, rank: int | None = None
) -> Capture:
    """What budgets ask of one rank of a capture, small.

    Args:
        part: its counted steps, classified.
        times: :func:`hta_dsv4.analysis.counted.step_times` of it.
        conditions: what the capture was recorded under.
        rank: which rank it is, of several.
    """
    acts = part.activities
    duration = own_by_run(acts, part.run[part.step])
    ns: dict[str, dict[str, np.ndarray]] = {}
    launches: dict[str, dict[str, np.ndarray]] = {}
    for kind, column in _COLUMN.items():
        ns[kind], launches[kind] = {}, {}
        if column not in acts:
            continue
        codes, names = pd.factorize(acts[column].astype(object).to_numpy())
        total, count = (np.zeros((len(names) + 1, part.steps), dtype=np.int64) for _ in range(2))
        np.add.at(total, (codes, part.step), duration)  # a missing name has code -1: the last row
        np.add.at(count, (codes, part.step), 1)
        for i, name in enumerate([*(str(n) for n in names), UNKNOWN]):
            if count[i].any():
                ns[kind][name] = ns[kind].get(name, 0) + total[i]
                launches[kind][name] = launches[kind].get(name, 0) + count[i]
    measures = {str(m): times[m].to_numpy() for m in times}
    return Capture(conditions, part.steps, measures, ns, launches, rank)


def _total(table: Mapping[str, np.ndarray], steps: int) -> np.ndarray:
    out: np.ndarray = np.sum([np.zeros(steps, dtype=np.int64), *table.values()], axis=0)
    return out
