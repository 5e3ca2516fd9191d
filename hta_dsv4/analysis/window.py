"""The part of a trace that analyses of the GPU's timeline look at: the counted steps of one rank, or all of it.

Fill, coverage and idle cut the trace here, device by device, so that they speak of the same time: what lies between two
runs of counted steps (a prefill) is nobody's idle time, and two GPUs are never merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.analysis.counted import Counted, counted, step_times
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.steps import Steps

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """What is looked at.

    Attributes:
        rank: rank number.
        steps: counted steps; 0 where the trace shows none, then the window is the whole trace of the rank.
        activities: classified activity table, in time order, index 0..n-1.
        step: int64 [activities], position of the activity's step among the counted ones; -1 without steps.
        run: int64 [activities], which run of consecutive counted steps.
        run_of_step: int64 [steps], the same of each step.
    """

    rank: int
    steps: int
    activities: pd.DataFrame
    step: Ints
    run: Ints
    run_of_step: Ints

    def step_times(self) -> pd.DataFrame:
        """Sum, busy, wall, overlap and idle of each step (:func:`~hta_dsv4.analysis.counted.step_times`)."""
        return step_times(Counted(self.rank, self.activities, self.step, self.run_of_step))

    def between_steps(self, span: Span, at: Ints) -> npt.NDArray[np.bool_]:
        """Whether a gap ahead of an activity is in no step's wall: all before it are of earlier steps than all from it.

        Args:
            span: one of :meth:`spans`.
            at: int64 [n], positions in it, from 1 on.

        Returns:
            Bool [n]; never true where the window shows no steps.
        """
        step = self.step[span.rows]
        latest, soonest = np.maximum.accumulate(step), np.minimum.accumulate(step[::-1])[::-1]
        apart: npt.NDArray[np.bool_] = latest[at - 1] < soonest[at]
        return apart

    def spans(self) -> Iterator[Span]:
        """One span per run and device, in order of run, then device."""
        device = self.activities[col.DEVICE].to_numpy(dtype=np.int64, na_value=-1)
        start = self.activities[col.START_NS].to_numpy()
        end = start + self.activities[col.DUR_NS].to_numpy().clip(min=0)
        order = np.lexsort((np.arange(len(start)), start, device, self.run))
        if not len(order):
            return
        new = (np.diff(device[order]) != 0) | (np.diff(self.run[order]) != 0)
        for rows in np.split(order, np.flatnonzero(new) + 1):
            first = rows[0]
            yield Span(int(self.run[first]), int(device[first]), rows, start[rows], end[rows])


@dataclass(frozen=True, slots=True)
class Span:
    """One device over one run of steps.

    Attributes:
        run, device: which; device -1 where the activities name none.
        rows: int64 [n], positions in the window's activities, by start.
        start, end: int64 [n], ns; ``end >= start``.
    """

    run: int
    device: int
    rows: Ints
    start: Ints
    end: Ints

    @property
    def wall_ns(self) -> int:
        """First start to last end."""
        return int(self.end.max() - self.start[0])


def window(activities: pd.DataFrame, steps: Steps, rank: int) -> Window:
    """Cut what is looked at out of a trace.

    Args:
        activities: classified activity table of one trace.
        steps: the steps of the same trace.
        rank: which rank of the trace.

    Returns:
        The counted steps of the rank, or all its activities where there is no step.
    """
    part = counted(activities, steps, rank)
    if part.steps:
        return of_counted(part)
    table = activities[activities[col.RANK] == rank].reset_index(drop=True)
    none, nowhere = np.full(len(table), -1, dtype=np.int64), np.zeros(len(table), dtype=np.int64)
    return Window(rank, 0, table, none, nowhere, np.zeros(0, dtype=np.int64))


def of_counted(part: Counted) -> Window:
    """The counted steps of a rank as a window; empty where there are none."""
    step, runs = part.step.astype(np.int64), part.run.astype(np.int64)
    return Window(part.rank, part.steps, part.activities.reset_index(drop=True), step, runs[step], runs)
